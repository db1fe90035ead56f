//! `rnicd --metrics`: the device's numbers over HTTP, in the text format of OpenMetrics 1.0.
//!
//! A program that reaches the address may ask as often as it likes, slowly or with nonsense. So one
//! thread serves one connection at a time, each for a second at most: that costs scrapers time, and
//! the engines nothing but the questions that are answered.

mod text;

use crate::config::Address;
use crate::counted::Counted;
use anyhow::{Context, Result};
use rnic_host::server::Service;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The server while it lives. Dropped, it takes no further clients; its thread is not waited for,
/// as it may be with a slow one.
pub(crate) struct Metrics {
    /// Closed, it ends the thread.
    _end: UnixStream,
    /// Removed at the end.
    path: Option<PathBuf>,
}

impl Metrics {
    /// Begins to serve the numbers of a device.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub(crate) fn serve(address: &Address, service: &Arc<Service>) -> Result<Self> {
        let listener = Incoming::bind(address)
            .with_context(|| format!("cannot serve metrics at {address} (--metrics)"))?;
        let (end, ended) = UnixStream::pair()?;
        let mut exporter =
            Exporter { counted: Counted::new(service), service: Arc::clone(service) };
        let serve = move || {
            while wait(&listener, &ended) {
                match listener.accept() {
                    // A client that goes away, or is slow, does without an answer.
                    Ok(mut client) => drop(exporter.attend(&mut *client)),
                    // No descriptor is free, or the client has gone already.
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        thread::Builder::new().name("rnic-metrics".into()).spawn(serve)?;
        tracing::info!("metrics: {address}");
        let path = if let Address::Unix(path) = address { Some(path.clone()) } else { None };
        Ok(Self { _end: end, path })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a client comes, and not the end.
fn wait(listener: &Incoming, ended: &UnixStream) -> bool {
    loop {
        let fds = [listener.as_fd(), ended.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return fds[1].revents().is_empty(),
        }
    }
}

/// A connection with a deadline for everything.
trait Client: Read + Write {
    /// How long the next call may take.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Client for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Client for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

enum Incoming {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Incoming {
    fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                // A client may have gone again when it is its turn.
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                let is_socket = |path| {
                    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
                };
                // One that an earlier daemon left. A daemon that lives keeps its place.
                if is_socket(path) && UnixStream::connect(path).is_err() {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener))
            }
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Client>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept()?.0),
            Self::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }
}

impl AsFd for Incoming {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

struct Exporter {
    counted: Counted,
    service: Arc<Service>,
}

impl Exporter {
    /// Reads one request and answers it.
    fn attend(&mut self, client: &mut dyn Client) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let reply = match request(client, deadline)? {
            Request::Metrics => {
                let totals = self.service.engines.overview().totals;
                let mut numbers = self.counted.now().clone();
                numbers.extend(self.service.connections.counters());
                let body = text::render(&self.service, &numbers, totals);
                response("200 OK", text::CONTENT_TYPE, &body)
            }
            Request::Elsewhere => {
                response("404 Not Found", "text/plain", "the metrics are at /metrics\n")
            }
            Request::OtherMethod => {
                response("405 Method Not Allowed", "text/plain", "only GET is served\n")
            }
            Request::Nonsense => response("400 Bad Request", "text/plain", "this is no request\n"),
        };
        write_until(client, reply.as_bytes(), deadline)
    }
}

/// What a client wants.
#[derive(PartialEq, Eq, Debug)]
enum Request {
    Metrics,
    Elsewhere,
    OtherMethod,
    Nonsense,
}

/// Reads until the end of the headers.
fn request(client: &mut dyn Client, deadline: Instant) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        client.limit(left(deadline)?)?;
        let length = client.read(&mut chunk)?;
        bytes.extend_from_slice(chunk.get(..length).unwrap_or_default());
        match understood(&bytes) {
            Some(request) => return Ok(request),
            None if length == 0 || bytes.len() > LONGEST_REQUEST => return Ok(Request::Nonsense),
            None => {}
        }
    }
}

/// The request, once it is complete.
fn understood(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let path = parsed.path.unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            Some(match (parsed.method, path) {
                (Some("GET"), "/metrics") => Request::Metrics,
                (Some("GET"), _) => Request::Elsewhere,
                _ => Request::OtherMethod,
            })
        }
        Err(_) => Some(Request::Nonsense),
    }
}

fn response(status: &str, content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn write_until(client: &mut dyn Client, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        client.limit(left(deadline)?)?;
        let length = client.write(bytes)?;
        bytes = bytes.get(length..).unwrap_or_default();
    }
    Ok(())
}

/// The time until then.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// How long one client may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a request with its headers.
const LONGEST_REQUEST: usize = 8192;
const MOST_HEADERS: usize = 64;
/// Until a client is accepted again after a failure.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_get_is_answered_with_metrics() {
        let of = |text: &str| understood(text.as_bytes());
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some(Request::Metrics));
        assert_eq!(of("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Some(Request::Metrics));
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), Some(Request::Elsewhere));
        assert_eq!(of("POST /metrics HTTP/1.1\r\n\r\n"), Some(Request::OtherMethod));
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(of("\0\0\0\0"), Some(Request::Nonsense));
        let many = "a: b\r\n".repeat(MOST_HEADERS + 1);
        assert_eq!(of(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Some(Request::Nonsense));
    }

    #[test]
    fn a_client_that_does_not_end_its_request_is_left() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        let endless = thread::spawn(move || while client.write_all(b"GET /").is_ok() {});
        assert!(matches!(request(&mut server, Instant::now() + PATIENCE), Ok(Request::Nonsense)));
        drop(server);
        endless.join().unwrap();
        let (_silent, mut server) = UnixStream::pair().unwrap();
        assert!(request(&mut server, Instant::now() + Duration::from_millis(10)).is_err());
    }
}
