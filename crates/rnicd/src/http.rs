//! As much of HTTP as it takes to answer questions: one request on each connection, which has a
//! deadline for all of it. What a client sends is bounded, and it is not waited for.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connection with a deadline for everything.
pub(crate) trait Client: Read + Write {
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

/// What a client asks for.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// A GET.
    Get {
        /// Without what follows `?`.
        path: String,
        /// What follows it.
        query: String,
        /// The name by which the client calls this server.
        host: Option<String>,
    },
    OtherMethod,
    Nonsense,
}

/// What a server says.
pub(crate) struct Response<'a> {
    /// Number and words.
    pub(crate) status: &'a str,
    pub(crate) content_type: &'a str,
    /// Further headers, each with the end of its line.
    pub(crate) headers: &'a str,
    pub(crate) body: &'a str,
}

impl<'a> Response<'a> {
    /// A sentence about what went wrong.
    pub(crate) fn refusal(status: &'a str, body: &'a str) -> Self {
        Self { status, content_type: "text/plain", headers: "", body }
    }

    /// Sends it.
    ///
    /// # Errors
    /// When the client goes away, or does not take it in time.
    pub(crate) fn send(&self, client: &mut dyn Client, deadline: Instant) -> io::Result<()> {
        let text = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}",
            self.status,
            self.content_type,
            self.body.len(),
            self.headers,
            self.body
        );
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            client.limit(left(deadline)?)?;
            let length = client.write(bytes)?;
            bytes = bytes.get(length..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Reads until the end of the headers.
///
/// # Errors
/// When the client goes away, or is not ready in time.
pub(crate) fn request(client: &mut dyn Client, deadline: Instant) -> io::Result<Request> {
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
        Ok(httparse::Status::Complete(_)) if parsed.method == Some("GET") => {
            let target = parsed.path.unwrap_or_default();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let host =
                parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
            let host = host.map(|header| String::from_utf8_lossy(header.value).into_owned());
            Some(Request::Get { path: path.to_owned(), query: query.to_owned(), host })
        }
        Ok(httparse::Status::Complete(_)) => Some(Request::OtherMethod),
        Err(_) => Some(Request::Nonsense),
    }
}

/// The time until then.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Bytes of a request with its headers.
const LONGEST_REQUEST: usize = 8192;
const MOST_HEADERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[test]
    fn a_request_is_understood_when_it_is_complete() {
        let of = |text: &str| understood(text.as_bytes());
        let get = |path: &str, query: &str, host: Option<&str>| {
            let (path, query) = (path.to_owned(), query.to_owned());
            Some(Request::Get { path, query, host: host.map(str::to_owned) })
        };
        assert_eq!(of("GET /a HTTP/1.1\r\nhOst: x\r\n\r\n"), get("/a", "", Some("x")));
        assert_eq!(of("GET /a?x=1 HTTP/1.0\r\n\r\n"), get("/a", "x=1", None));
        assert_eq!(of("POST /a HTTP/1.1\r\n\r\n"), Some(Request::OtherMethod));
        assert_eq!(of("GET /a HTTP/1.1\r\nHost: x\r\n"), None);
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

    #[test]
    fn a_client_that_does_not_read_is_left() {
        let (_client, mut server) = UnixStream::pair().unwrap();
        let body = "x".repeat(4 << 20);
        let deadline = Instant::now() + Duration::from_millis(50);
        let sent = Response::refusal("200 OK", &body).send(&mut server, deadline);
        assert!(sent.is_err() && Instant::now() >= deadline);
    }
}
