//! The daemon's listening socket.

use super::address::{address_of, new_socket};
use super::connection::Connection;
use super::lock_file::{LockFile, in_use};
use super::socket_file::{SocketFile, remove_stale_socket};
use rustix::io::retry_on_intr;
use rustix::net::{SocketFlags, accept_with};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A daemon's listening socket. Its path goes away with it.
///
/// A file with the added suffix `.lock` beside the socket, locked while the daemon lives, keeps
/// two daemons that start at once from removing each other's socket as a stale one.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    place: Place,
}

/// The path, as long as a daemon listens there.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    _lock: LockFile,
}

impl Listener {
    /// Listens at `path`, which gets the permission bits `mode`. A socket left there by a daemon
    /// that died is replaced.
    ///
    /// # Errors
    /// `AddrInUse` when another daemon listens there; `AlreadyExists` when something other than a
    /// socket is there; `InvalidInput` when the path is longer than 107 bytes.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        let address = address_of(path)?;
        let lock = LockFile::take(path)?;
        remove_stale_socket(path).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => in_use(path),
            _ => error,
        })?;
        let socket = new_socket(SocketFlags::empty())?;
        rustix::net::bind(&socket, &address)?;
        // From here on a failure must take the path away again.
        let listener = Self { socket, place: Place { path: path.to_path_buf(), _lock: lock } };
        // Before listening: until then no process can connect, whatever the mode.
        SocketFile::at(path)?.set_mode(mode)?;
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// Waits for a client; never waits after [`set_nonblocking`](Self::set_nonblocking).
    ///
    /// # Errors
    /// `WouldBlock` when no connection waits; else what the kernel says.
    pub fn accept(&self) -> io::Result<Connection> {
        let accepted = retry_on_intr(|| accept_with(&self.socket, SocketFlags::CLOEXEC))?;
        Ok(Connection(accepted))
    }

    /// Makes [`accept`](Self::accept) wait or not.
    ///
    /// # Errors
    /// None in practice.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.socket, nonblocking)?)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.place.path
    }
}

/// The path goes away; the socket is the caller's to close.
impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> Self {
        listener.socket
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The lock is still held: what is at the path is ours. Nothing can be done about a
        // failure, and the next daemon copes with it.
        let _ = fs::remove_file(&self.path);
    }
}

const BACKLOG: i32 = 128;
