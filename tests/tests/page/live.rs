//! The page of `rnic watch --web`, while packets of a program come and some are lost.

use super::{DESKTOP, TELEPHONE, WATCH, verdict};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::Duration;
use system_tests::browser::{Browser, PROGRAM};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::place::{Host, Node};
use system_tests::process::{Cmd, wait_until};
use system_tests::programs::Dialogue;

const DRIVER: &str = include_str!("live.js");
const SOON: Duration = Duration::from_secs(5);

/// What a server answers to a GET.
fn get(server: SocketAddr, path: &str, host: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    ask(server, request.as_bytes())
}

fn ask(server: SocketAddr, request: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8(answer)?)
}

/// What the script asks for in order to wait. The clock of the page stands still meanwhile, so that
/// it does not run ahead of programs that are slow to start.
const PAUSE: &str = "GET /pause ";
const A_WHILE: Duration = Duration::from_millis(250);
/// More than all waits of the script together, by the clock of the page.
const PATIENCE: Duration = Duration::from_secs(45);

/// Passes requests on to a server, and its page back with a script in it that uses the page.
fn between(server: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || drop(pass(client, server)));
        }
    });
    Ok(address)
}

fn pass(mut client: TcpStream, server: SocketAddr) -> Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    if request.starts_with(PAUSE.as_bytes()) {
        thread::sleep(A_WHILE);
        write!(client, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")?;
        return Ok(());
    }
    let answer = ask(server, &request)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    let body = body.replacen("<head>", &format!("<head>{WATCH}"), 1);
    let body = body.replacen("</body>", &format!("<script>{DRIVER}</script></body>"), 1);
    let headers = head.lines().filter(|line| !line.starts_with("Content-Length"));
    let head = headers.collect::<Vec<_>>().join("\r\n");
    write!(client, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    Ok(())
}

/// Of `http://ADDRESS/SECRET/`.
fn parts(url: &str) -> Result<(SocketAddr, &str)> {
    let rest = url.strip_prefix("http://").context("an address")?;
    let slash = rest.find('/').context("a path")?;
    Ok((rest[..slash].parse()?, &rest[slash..]))
}

fn refuses_others(server: SocketAddr, path: &str) -> Result<()> {
    for (path, host, status) in [
        ("/", "127.0.0.1", "404"),
        ("/0123456789abcdef0123456789abcdef/", "127.0.0.1", "404"),
        (path, "evil.example", "403"),
        (path, "127.0.0.1", "200"),
    ] {
        let answer = get(server, path, host)?;
        ensure!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} of {host}: {answer}");
    }
    let long = format!("GET {path} HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let refused = ask(server, long.as_bytes()).map_or(true, |answer| !answer.contains(" 200 "));
    ensure!(refused, "a request without an end is answered");
    Ok(())
}

#[test]
fn the_live_page_follows_a_lossy_connection() -> Result<()> {
    let test = "the_live_page_follows_a_lossy_connection";
    let Some(lab) = Lab::open(test, Need::Root, &[PROGRAM, "ib_send_bw"])? else { return Ok(()) };
    let browser = Browser::new(&lab.tools)?;
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let rnic = |args: &[&str]| {
        Cmd::new(node.dist.bin("rnic")).args(args).env("RNIC_SOCKET", node.daemon.socket())
    };
    let refused = rnic(&["watch", "--web", "0.0.0.0:0"]).run()?;
    ensure!(!refused.success() && refused.stderr.contains("--web-for-others"), "{refused}");
    rnic(&["fault", "add", "drop=1%"]).check()?;
    let server = rnic(&["watch", "--web", "127.0.0.1:0"]).start()?;
    wait_until("the address of the page", SOON, || Ok(server.stdout().ends_with('\n')))?;
    let url = server.stdout().trim().to_owned();
    let (address, path) = parts(&url)?;
    refuses_others(address, path)?;
    // Clients that say nothing do not keep the others out for long.
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address)).collect();
    wait_until("a place among the clients", SOON, || {
        Ok(get(address, path, "127.0.0.1").is_ok_and(|answer| answer.contains(" 200 OK")))
    })?;
    drop(silent);
    let seen = thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let dialogues = scope.spawn({
            let node = &node;
            move || {
                let mut ran = Ok(());
                while ran.is_ok() && ended.try_recv() == Err(TryRecvError::Empty) {
                    ran = Dialogue::new("ib_send_bw -D 2 -s 4096").run(node, node).map(drop);
                }
                ran
            }
        });
        let seen = [DESKTOP, TELEPHONE].into_iter().try_for_each(|size| {
            let page = format!("http://{}{path}", between(address)?);
            let (dom, said) = browser.visit(&page, PATIENCE, size)?;
            verdict(&dom, &said, size)
        });
        drop(end);
        dialogues.join().ok().context("the programs' thread")??;
        seen
    });
    seen?;
    server.signal(Signal::INT)?;
    let ended = server.wait()?;
    ensure!(ended.success(), "{ended}");
    node.stop()?;
    Ok(())
}
