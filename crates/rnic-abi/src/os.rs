//! System calls: memory files, address spaces, descriptor passing, wake-ups, and where the control
//! socket is.

mod address;
pub mod blocking;
mod connection;
mod descriptor;
pub mod discovery;
pub mod driving;
pub mod event_fd;
pub mod function;
#[cfg(not(loom))]
pub mod futex;
mod listener;
mod lock_file;
pub mod maps;
pub mod memory;
mod of_process;
pub mod paths;
pub mod peer;
pub mod process;
pub mod select;
pub mod signals;
mod socket_file;

pub use connection::{Connection, Descriptors, has_hung_up};
pub use descriptor::{Descriptor, Inode};
pub use event_fd::EventFd;
pub use listener::Listener;
pub use of_process::OfProcess;
pub use paths::{
    candidate_socket_paths, default_socket_path, files_beside, named_socket_paths, own_directories,
    own_directory,
};
pub use peer::Credentials;
pub use socket_file::{SocketFile, remove_stale_socket};

use std::io;

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}
