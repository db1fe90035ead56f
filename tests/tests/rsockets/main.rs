//! rsockets: unmodified programs over our librdmacm, between two namespaces and within one.

mod children;
mod sockets;
mod trouble;

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::inspect::counter;
use system_tests::lab::{Lab, Need, long_form};
use system_tests::paths;
use system_tests::place::{Job, Node, Place};
use system_tests::process::wait_until;
use system_tests::programs::{Dialogue, next_port};

const PROGRAMS: [&str; 4] = ["rstream", "riostream", "rcopy", "udpong"];
const LIMIT: Duration = Duration::from_secs(60);
/// What is done at once takes longer where other programs have the CPUs.
const SOON: Duration = Duration::from_secs(30);

/// Each way to wait: blocking, polling, without blocking.
const LINES: [&str; 8] = [
    "rstream -S 64 -C 200 -T v",
    "rstream -S 1000000 -C 20 -T v",
    "rstream -S 10000 -C 100 -T a",
    "rstream -S 4000 -C 100 -T n",
    "rstream -S 4000 -C 50 -f gai",
    "riostream -S 64 -C 50 -T v",
    "riostream -S 100000 -C 20 -T n",
    "udpong -S 1000 -C 100",
];

/// What combines these.
const MORE: [&str; 7] = [
    "rstream",
    "rstream -S 64 -C 1000 -T b -k 2",
    "rstream -S 64 -C 1000 -T n -T a -T v",
    "rstream -S 500 -C 100 -T r",
    "riostream",
    "udpong -S 1400 -C 1000 -T e",
    "udpong -T b",
];

fn run(server: &dyn Place, client: &dyn Place) -> Result<()> {
    let more: &[&str] = if long_form() { &MORE } else { &[] };
    for line in LINES.iter().chain(more) {
        Dialogue::new(line).run(server, client)?;
        eprintln!("{line}");
    }
    Ok(())
}

#[test]
fn rsockets_carry_data_between_namespaces() -> Result<()> {
    let name = "rsockets_carry_data_between_namespaces";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 1500)?;
    run(&pair.left, &pair.right)?;
    // IPv6.
    no_listener(&pair.left)?;
    for (program, more) in [("rstream", "-T v"), ("udpong", "-C 50")] {
        let number = next_port();
        let (address, port) = (pair.net.left.ipv6.to_string(), number.to_string());
        let args = |side: &str| -> Vec<String> {
            let line = [side, &address, "-p", &port, "-S", "1000"].map(str::to_owned);
            line.into_iter().chain(more.split(' ').map(str::to_owned)).collect()
        };
        let server = pair.left.start(program, &args("-b"), LIMIT)?;
        match program {
            "rstream" => listening(&pair.left)?,
            _ => has_udp_port(&pair.left, number)?,
        }
        let client = pair.right.start(program, &args("-s"), LIMIT)?.wait()?;
        ensure!(client.success(), "{program}: {client}\n{}", server.said());
    }
    pair.stop()
}

#[test]
fn rsockets_carry_data_within_one_host() -> Result<()> {
    let name = "rsockets_carry_data_within_one_host";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::AfPacket, 4200)?;
    run(&pair.left, &pair.left)?;
    pair.stop()
}

/// A file arrives whole.
#[test]
fn rcopy_copies_a_file() -> Result<()> {
    let Some(lab) = Lab::open("rcopy_copies_a_file", Need::Root, &PROGRAMS)? else {
        return Ok(());
    };
    let pair = lab.pair(Io::Udp, 4200)?;
    let folder = paths::public("rcopy")?;
    let (from, to) = (folder.join("from"), folder.join("to"));
    let data: Vec<u8> = (0..3_000_001_u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    fs::write(&from, &data)?;
    let port = next_port().to_string();
    let server = pair.left.start("rcopy", &["-p", &port].map(str::to_owned), LIMIT)?;
    listening(&pair.left)?;
    let target = format!("{}:{}", pair.left.address(), to.display());
    let args = [from.display().to_string(), target, "-p".into(), port];
    let client = pair.right.start("rcopy", &args, LIMIT)?.wait()?;
    ensure!(client.success(), "{client}\n{}", server.said());
    ensure!(fs::read(&to)? == data, "the copy differs");
    pair.stop()
}

/// A program whose sockets are rsockets.
fn preloaded(node: &Node, program: &str, args: &[&str], limit: Duration) -> Result<Box<dyn Job>> {
    let rnic = Dist::get()?.bin("rnic").display().to_string();
    let program = node.host.tools.program(program)?.display().to_string();
    let own = ["run", "--rsockets", "--no-view", "--", &program];
    let line: Vec<String> = own.iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    node.start(&rnic, &line, limit)
}

/// Messages of the connection manager prove that data does not go by TCP.
fn connected(node: &Node) -> Result<u64> {
    counter(node, "cm_sent")
}

const TCP_PROGRAMS: [&str; 4] = ["iperf3", "nc", "curl", "python3"];

/// Programs that know only TCP.
#[test]
fn tcp_programs_run_over_rsockets() -> Result<()> {
    let name = "tcp_programs_run_over_rsockets";
    let Some(lab) = Lab::open(name, Need::Root, &TCP_PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (left, right) = (&pair.left, &pair.right);
    let address = left.address().to_string();
    let folder = paths::public("rsockets")?;
    let data: Vec<u8> = (0..2_000_003_u32).map(|at| b'a' + ((at ^ (at >> 7)) % 26) as u8).collect();
    fs::write(folder.join("file"), &data)?;
    let port = next_port().to_string();

    let server = preloaded(left, "iperf3", &["-s", "-1", "-p", &port], LIMIT)?;
    listening(left)?;
    let args = ["-c", &address, "-p", &port, "-n", "20M"];
    let client = preloaded(right, "iperf3", &args, LIMIT)?.wait()?;
    ensure!(client.success(), "{client}\n{}", server.said());
    server.wait()?;
    no_listener(left)?;
    let by_iperf3 = connected(right)?;
    ensure!(by_iperf3 >= 2, "iperf3 has connected by TCP");

    let home = folder.display().to_string();
    let args = ["-u", "-m", "http.server", "-d", &home, &port];
    let server = preloaded(left, "python3", &args, LIMIT)?;
    listening(left)?;
    let (url, got) = (format!("http://{address}:{port}/file"), folder.join("got"));
    let got_name = got.display().to_string();
    let args = ["-sS", "-f", &url, "-o", &got_name];
    let client = preloaded(right, "curl", &args, LIMIT)?.wait()?;
    ensure!(client.success(), "{client}\n{}", server.said());
    ensure!(fs::read(&got)? == data, "curl got something else");
    ensure!(connected(right)? > by_iperf3, "curl has connected by TCP");
    drop(server);
    no_listener(left)?;

    let port = next_port().to_string();
    let server = preloaded(left, "nc", &["-l", &port], LIMIT)?;
    listening(left)?;
    let script = "import socket, sys; s = socket.create_connection((sys.argv[1], \
        int(sys.argv[2])), timeout=20); s.sendall(open(sys.argv[3], 'rb').read()); s.close()";
    let file = folder.join("file").display().to_string();
    let args = ["-c", script, &address, &port, &file];
    let client = preloaded(right, "python3", &args, LIMIT)?.wait()?;
    ensure!(client.success(), "{client}\n{}", server.said());
    let heard = server.wait()?;
    ensure!(heard.success(), "{heard}");
    ensure!(heard.stdout.len() == data.len(), "{} bytes", heard.stdout.len());

    // A child made by vfork has descriptors of its own.
    let script = "import socket, subprocess; s = socket.socket(); \
        subprocess.run(['true'], stdout=s.fileno(), close_fds=False); print('heard')";
    let parent = preloaded(right, "python3", &["-c", script], LIMIT)?.wait()?;
    ensure!(parent.success() && parent.stdout == "heard\n", "{parent}");
    pair.stop()
}

/// Waits until a server of a node without others listens.
fn listening(node: &Node) -> Result<()> {
    wait_until("a listener", SOON, || Ok(node.cm_listeners()? > Some(0)))
}

/// Waits until a server of datagrams has its port.
fn has_udp_port(node: &Node, port: u16) -> Result<()> {
    wait_until("a UDP port", SOON, || Ok(node.has_udp_port(port)? == Some(true)))
}

/// Waits until the daemon knows of the end of an earlier server, which must not be taken for the
/// next one.
fn no_listener(node: &Node) -> Result<()> {
    wait_until("the end of a listener", SOON, || Ok(node.cm_listeners()? == Some(0)))
}

/// Both ends of a connection by TCP: the end, the address, the port, and the client's own address.
const BY_TCP: &str = "
import socket, struct, sys
end, address, port, own = sys.argv[1:]
if end == 'server':
    listener = socket.create_server((address, int(port)))
    connection, peer = listener.accept()
    connection.sendall(b'%d' % peer[1])
else:
    stream = socket.socket()
    linger, options = struct.pack('ii', 1, 7), [(socket.SO_SNDBUF, 40000), (socket.SO_RCVBUF, 50000)]
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    for option in options: stream.setsockopt(socket.SOL_SOCKET, *option)
    stream.bind((own, 0))
    bound = stream.getsockname()
    assert bound[0] == own and bound[1] != 0, bound
    stream.connect((address, int(port)))
    assert stream.getsockname() == bound, (stream.getsockname(), bound)
    assert stream.recv(10) == b'%d' % bound[1]
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == linger
    assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
    got = [stream.getsockopt(socket.SOL_SOCKET, option) for option, _ in options]
    assert got == [80000, 100000], got
";

/// A preloaded program that connects by TCP has the address and the options that it has set.
#[test]
fn a_connection_by_tcp_has_what_its_program_has_set() -> Result<()> {
    let name = "a_connection_by_tcp_has_what_its_program_has_set";
    let Some(lab) = Lab::open(name, Need::Root, &["python3"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let number = next_port();
    let (address, port) = (pair.left.address().to_string(), number.to_string());
    let own = pair.right.address().to_string();
    let args = |end| ["-c", BY_TCP, end, &address, &port, &own];
    let server = pair.left.start("python3", &args("server").map(str::to_owned), LIMIT)?;
    wait_until("a server", SOON, || pair.left.listens(number))?;
    let client = preloaded(&pair.right, "python3", &args("client"), LIMIT)?.wait()?;
    ensure!(client.success(), "{client}\n{}", server.said());
    server.wait()?;
    pair.stop()
}

/// Where no rsocket answers, a preloaded program connects by TCP.
#[test]
fn a_tcp_server_is_reached_by_tcp() -> Result<()> {
    let name = "a_tcp_server_is_reached_by_tcp";
    let Some(lab) = Lab::open(name, Need::Root, &TCP_PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let port = next_port();
    let args = ["-s", "-1", "-p", &port.to_string()].map(str::to_owned);
    let server = pair.left.start("iperf3", &args, LIMIT)?;
    wait_until("a server", Duration::from_secs(10), || pair.left.listens(port))?;
    let (address, port) = (pair.left.address().to_string(), port.to_string());
    let args = ["-c", &address, "-p", &port, "-n", "1M"];
    let client = preloaded(&pair.right, "iperf3", &args, LIMIT)?.wait()?;
    ensure!(client.success(), "{client}\n{}", server.said());
    server.wait()?;
    pair.stop()
}

/// A connection that no rsocket asks for is refused, and the server goes on.
#[test]
fn strangers_are_refused() -> Result<()> {
    let Some(lab) = Lab::open("strangers_are_refused", Need::Root, &["rping", "rstream"])? else {
        return Ok(());
    };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (address, port) = (pair.left.address().to_string(), next_port().to_string());
    let run = |node: &Node, program: &str, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        node.start(program, &args, LIMIT)
    };
    let own = ["-p", &port, "-S", "64", "-C", "100"];
    let server = run(&pair.left, "rstream", &[&["-b", &address], &own[..]].concat())?;
    listening(&pair.left)?;
    let stranger = run(&pair.right, "rping", &["-c", "-a", &address, "-p", &port])?.wait()?;
    let said = stranger.said();
    ensure!(!stranger.success() && said.contains("REJECTED"), "{stranger}");
    let client = run(&pair.right, "rstream", &[&["-s", &address], &own[..]].concat())?.wait()?;
    let server = server.wait()?;
    ensure!(client.success() && server.success(), "client: {client}\nserver: {server}");
    pair.stop()
}
