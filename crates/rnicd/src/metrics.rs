//! `rnicd --metrics`: the device's numbers over HTTP, in the text format of OpenMetrics 1.0.
//!
//! A program that reaches the address may ask as often as it likes, slowly or with nonsense. So one
//! thread serves one connection at a time, each for a second at most: that costs scrapers time, and
//! the engines nothing but the questions that are answered.

mod text;

use crate::config::Address;
use crate::counted::Counted;
use crate::http::{self, Client, Request, Response};
use anyhow::{Context, Result};
use rnic_abi::os::remove_stale_socket;
use rnic_host::server::Service;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The server while it lives. Dropped, it takes no further clients, and its address is free; its
/// thread is not waited for, as it may be with a slow one.
pub(crate) struct Metrics {
    listener: Arc<Incoming>,
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
        let listener = Arc::new(listen(address)?);
        let (end, ended) = UnixStream::pair()?;
        let mut exporter =
            Exporter { counted: Counted::new(service), service: Arc::clone(service) };
        let clients = Arc::clone(&listener);
        let serve = move || {
            while wait(&clients, &ended) {
                match clients.accept() {
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
        Ok(Self { listener, _end: end, path })
    }
}

fn listen(address: &Address) -> Result<Incoming> {
    Incoming::bind(address)
        .with_context(|| format!("cannot serve metrics at {address} (--metrics)"))
}

/// Whether numbers could be served there. Nothing of it is left.
///
/// # Errors
/// When nothing can listen there.
pub(crate) fn check(address: &Address) -> Result<()> {
    drop(listen(address)?);
    if let Address::Unix(path) = address {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // The thread may keep it open for a while. Where it no longer listens, another may.
        let _ = shutdown(self.listener.as_fd(), Shutdown::Both);
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
                // A program that lives keeps its place.
                remove_stale_socket(path)?;
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
        let response = match http::request(client, deadline)? {
            Request::Get { path, .. } if path == "/metrics" => {
                let totals = self.service.engines.overview().totals;
                let mut numbers = self.counted.now().clone();
                numbers.extend(self.service.connections.counters());
                let body = text::render(&self.service, &numbers, totals);
                let content_type = text::CONTENT_TYPE;
                let response =
                    Response { status: "200 OK", content_type, headers: "", body: &body };
                return response.send(client, deadline);
            }
            Request::Get { .. } => {
                Response::refusal("404 Not Found", "the metrics are at /metrics\n")
            }
            Request::OtherMethod => {
                Response::refusal("405 Method Not Allowed", "only GET is served\n")
            }
            Request::Nonsense => Response::refusal("400 Bad Request", "this is no request\n"),
        };
        response.send(client, deadline)
    }
}

/// How long one client may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Until a client is accepted again after a failure.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_abi::os::Listener;

    #[test]
    fn the_socket_of_a_program_that_lives_stays() {
        let folder = std::env::temp_dir().join(format!("rnicd-metrics-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let address = |name| Address::Unix(folder.join(name));
        let refused = |name| Incoming::bind(&address(name)).err().map(|error| error.kind());
        // As the daemon's own control socket: of another type.
        let _control = Listener::bind(&folder.join("control"), 0o600).unwrap();
        assert_eq!(refused("control"), Some(io::ErrorKind::AddrInUse));
        assert!(folder.join("control").exists());
        // A program that takes no more clients. The daemon does not wait until it does.
        let full = UnixListener::bind(folder.join("full")).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let _waits = UnixStream::connect(folder.join("full")).unwrap();
        assert_eq!(refused("full"), Some(io::ErrorKind::AddrInUse));
        drop(UnixListener::bind(folder.join("stale")).unwrap());
        assert_eq!(refused("stale"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
