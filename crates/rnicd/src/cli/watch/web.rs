//! `rnic watch --web`: the page of a story, served to a browser of this host, and kept up to date.
//!
//! The page shows bytes of other users' packets, and any user of the host can reach the port. So
//! its address has a secret part, which only the output of this command tells. The name by which a
//! browser calls the server must be an IP address: a foreign page whose name was made to lead here
//! is refused.

use super::live::Live;
use crate::http::{self, Request, Response};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What the server shows, while it is fed.
pub(super) type Shared = Arc<Mutex<Live>>;

/// What is shown now.
pub(super) fn lock(live: &Shared) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to serve. Returns the address of the page. The threads end with this process.
pub(super) fn serve(address: SocketAddr, live: &Shared) -> Result<String> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot serve at {address} (--web)"))?;
    let address = listener.local_addr()?;
    let secret = secret()?;
    let url = format!("http://{address}/{secret}/");
    let live = Arc::clone(live);
    let clients = Arc::new(AtomicUsize::new(0));
    let secret: Arc<str> = secret.into();
    let serve = move || {
        loop {
            // No descriptor is free, or the client has gone already.
            let Ok((client, _)) = listener.accept() else {
                thread::sleep(PAUSE);
                continue;
            };
            if clients.fetch_add(1, Ordering::Relaxed) >= MOST_CLIENTS {
                clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let place = Place { clients: Arc::clone(&clients) };
            let (live, secret) = (Arc::clone(&live), Arc::clone(&secret));
            let attend = move || {
                let _place = place;
                // A client that goes away, or is slow, does without an answer.
                let _ = attend(client, &live, &secret);
            };
            // Without a thread the client is gone, and its place free.
            let _ = thread::Builder::new().name("rnic-web-client".into()).spawn(attend);
        }
    };
    thread::Builder::new().name("rnic-web".into()).spawn(serve)?;
    Ok(url)
}

/// A client's place among those that are served at a time.
struct Place {
    clients: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// 128 bits that cannot be guessed.
fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    let length = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    anyhow::ensure!(length == bytes.len(), "the system has no random numbers");
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn attend(mut client: TcpStream, live: &Shared, secret: &str) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let asked = http::request(&mut client, deadline)?;
    let (content_type, body) = match wish(&asked, secret) {
        Ok(Wish::Page) => ("text/html; charset=utf-8", rnic_page::live_html(&lock(live).story())),
        Ok(Wish::News { from }) => {
            let live = lock(live);
            let text = serde_json::to_string(&live.news(from)).map_err(io::Error::other)?;
            ("application/json", text)
        }
        Err((status, text)) => return Response::refusal(status, text).send(&mut client, deadline),
    };
    let response = Response { status: "200 OK", content_type, headers: HEADERS, body: &body };
    response.send(&mut client, deadline)
}

/// What a client may have.
#[derive(PartialEq, Eq, Debug)]
enum Wish {
    Page,
    News { from: u64 },
}

type Refusal = (&'static str, &'static str);

fn wish(asked: &Request, secret: &str) -> Result<Wish, Refusal> {
    let (path, query, host) = match asked {
        Request::Get { path, query, host } => (path, query, host),
        Request::OtherMethod => return Err(("405 Method Not Allowed", "only GET is served\n")),
        Request::Nonsense => return Err(("400 Bad Request", "this is no request\n")),
    };
    if !host.as_deref().is_some_and(is_address) {
        return Err(("403 Forbidden", "call this server by its IP address, as rnic watch does\n"));
    }
    let no_such =
        ("404 Not Found", "the page is where rnic watch said, with all of that address\n");
    let rest = path.strip_prefix('/').unwrap_or_default();
    match rest.split_once('/') {
        Some((told, "")) if is_same(told, secret) => Ok(Wish::Page),
        Some((told, "news")) if is_same(told, secret) => {
            let from = query.strip_prefix("from=").and_then(|number| number.parse().ok());
            Ok(Wish::News { from: from.unwrap_or(0) })
        }
        _ => Err(no_such),
    }
}

/// The name of a server is an IP address, or leads to this host wherever it is asked for.
fn is_address(host: &str) -> bool {
    // A browser leaves out port 80.
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let is_ip = host.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok();
    let name = host.split(':').next().unwrap_or_default();
    is_ip || name == "localhost"
}

/// Takes the same time wherever they differ.
fn is_same(told: &str, secret: &str) -> bool {
    let pairs = told.bytes().zip(secret.bytes());
    told.len() == secret.len() && pairs.fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

/// The page loads nothing, tells no other server its address, and is part of no other page.
const HEADERS: &str = "Cache-Control: no-store\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
    form-action 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n\
    X-Content-Type-Options: nosniff\r\n";
/// How long one client may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Clients at a time; a browser has two or three connections.
const MOST_CLIENTS: usize = 8;
/// Until a client is accepted again after a failure.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, host: Option<&str>) -> Result<Wish, &'static str> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let host = host.map(str::to_owned);
        let get = Request::Get { path: path.into(), query: query.into(), host };
        wish(&get, "5ec2e7").map_err(|(status, _)| &status[..3])
    }

    #[test]
    fn only_those_who_know_the_address_get_the_page() {
        let host = Some("127.0.0.1:8080");
        assert_eq!(asked("/5ec2e7/", host), Ok(Wish::Page));
        assert_eq!(asked("/5ec2e7/news?from=7", host), Ok(Wish::News { from: 7 }));
        assert_eq!(asked("/5ec2e7/news?from=x", host), Ok(Wish::News { from: 0 }));
        for path in
            ["/", "", "//", "/5ec2e/", "/5ec2e8/", "/5ec2e7", "/5ec2e7/x", "/news", "/5ec2e7//"]
        {
            assert_eq!(asked(path, host), Err("404"), "{path}");
        }
    }

    #[test]
    fn a_server_that_is_called_by_a_foreign_name_says_no() {
        for host in ["127.0.0.1", "127.0.0.1:80", "[::1]:80", "[::1]", "localhost:80", "10.0.0.1"] {
            assert_eq!(asked("/5ec2e7/", Some(host)), Ok(Wish::Page), "{host}");
        }
        for host in ["evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert_eq!(asked("/5ec2e7/", Some(host)), Err("403"), "{host}");
        }
        assert_eq!(asked("/5ec2e7/", None), Err("403"));
    }

    #[test]
    fn secrets_differ_and_are_long() {
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert!(one != other && one.len() == 32);
    }
}
