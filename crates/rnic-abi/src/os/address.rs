//! Sockets with a path.

use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// One send is one message.
pub(super) const KIND: SocketType = SocketType::SEQPACKET;

/// The kernel's 108 bytes, without the terminator.
const LONGEST: usize = 107;

pub(super) fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, KIND, flags | SocketFlags::CLOEXEC, None)?)
}

pub(super) fn connect(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = new_socket(flags)?;
    connect_socket(&socket, path)?;
    Ok(socket)
}

pub(super) fn connect_socket(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    let address = address_of(path)?;
    Ok(retry_on_intr(|| rustix::net::connect(socket, &address))?)
}

pub(super) fn address_of(path: &Path) -> io::Result<SocketAddrUnix> {
    let bytes = path.as_os_str().as_bytes();
    // An empty or zero-led name would be one outside the file system.
    if bytes.is_empty() || bytes.len() > LONGEST || bytes.contains(&0) {
        let message = format!(
            "{} cannot be a socket path: 1 to {LONGEST} bytes are possible",
            path.display(),
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(SocketAddrUnix::new(path)?)
}
