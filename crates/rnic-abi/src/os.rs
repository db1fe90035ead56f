//! System calls: memory files, address spaces, descriptor passing, wake-ups, and where the control
//! socket is.

pub mod event_fd;
#[cfg(not(loom))]
pub mod futex;
pub mod maps;
pub mod memory;
pub mod paths;
pub mod peer;
pub mod socket;

pub use event_fd::EventFd;
pub use paths::{
    candidate_socket_paths, default_socket_path, named_socket_paths, own_directories, own_directory,
};
pub use peer::Credentials;
pub use socket::{Connection, Descriptors, Listener};

use std::io;

/// The result of a system call that returns -1 and sets `errno` when it fails.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The same for calls that return a number of bytes.
fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Repeats a system call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}
