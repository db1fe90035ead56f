//! The UDP socket of a datagram rsocket, by plain system calls: preloaded programs have wrappers
//! around those of libc.

use std::{
    ffi::{c_int, c_void},
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::{
    error::{Errno, Result},
    id::{no_address, read_address, write_address},
};
use libc::{iovec, msghdr, sockaddr_storage, socklen_t};

/// The largest UDP datagram.
pub(crate) const MOST: usize = 65_507;

/// A new UDP socket.
pub(crate) fn open(is_v6: bool) -> Result<OwnedFd> {
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(Errno::last)?;
    // SAFETY: just made.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An address as a socket of this family has it.
pub(crate) fn as_family(address: SocketAddr, is_v6: bool) -> (sockaddr_storage, socklen_t) {
    let mut storage = no_address();
    let address = match address {
        SocketAddr::V4(v4) if is_v6 => {
            SocketAddr::new(v4.ip().to_ipv6_mapped().into(), address.port())
        }
        other => other,
    };
    write_address(&mut storage, address);
    (storage, length(&address))
}

fn length(address: &SocketAddr) -> socklen_t {
    let len = match address {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    };
    len as socklen_t
}

fn done(result: libc::c_long) -> Result<usize> {
    usize::try_from(result).map_err(|_| Errno::last())
}

pub(crate) fn bind(socket: &OwnedFd, address: SocketAddr, is_v6: bool) -> Result<()> {
    let (storage, len) = as_family(address, is_v6);
    let fd = socket.as_raw_fd();
    // SAFETY: the address is a local variable of that length.
    done(unsafe { libc::syscall(libc::SYS_bind, fd, &raw const storage, len) }).map(drop)
}

pub(crate) fn connect(socket: &OwnedFd, address: SocketAddr, is_v6: bool) -> Result<()> {
    let (storage, len) = as_family(address, is_v6);
    let fd = socket.as_raw_fd();
    // SAFETY: the address is a local variable of that length.
    done(unsafe { libc::syscall(libc::SYS_connect, fd, &raw const storage, len) }).map(drop)
}

/// The address that it is bound to.
pub(crate) fn local(socket: &OwnedFd) -> Result<SocketAddr> {
    name(socket, libc::SYS_getsockname)
}

/// The address that it is connected to.
pub(crate) fn remote(socket: &OwnedFd) -> Result<SocketAddr> {
    name(socket, libc::SYS_getpeername)
}

fn name(socket: &OwnedFd, call: libc::c_long) -> Result<SocketAddr> {
    let mut storage = no_address();
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: both are local variables.
    done(unsafe { libc::syscall(call, fd, &raw mut storage, &raw mut len) })?;
    read_address((&raw const storage).cast()).ok_or(Errno(libc::EAFNOSUPPORT))
}

/// The address that the kernel's routes lead there from.
pub(crate) fn source_for(remote: SocketAddr) -> Result<IpAddr> {
    let socket = open(remote.is_ipv6())?;
    // Sends nothing.
    connect(&socket, remote, remote.is_ipv6())?;
    Ok(local(&socket)?.ip())
}

/// Sends a head and data as one datagram.
///
/// # Safety
/// `data` has `len` bytes.
pub(crate) unsafe fn send(
    socket: &OwnedFd,
    to: SocketAddr,
    is_v6: bool,
    head: &[u8],
    (data, len): (*const u8, usize),
) -> Result<()> {
    let (mut storage, name_len) = as_family(to, is_v6);
    let mut pieces = [
        iovec { iov_base: head.as_ptr().cast::<c_void>().cast_mut(), iov_len: head.len() },
        iovec { iov_base: data.cast::<c_void>().cast_mut(), iov_len: len },
    ];
    // SAFETY: numbers and pointers, which may be null.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut storage).cast();
    message.msg_namelen = name_len;
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = 2;
    let fd = socket.as_raw_fd();
    // SAFETY: local variables, and by contract; the kernel only reads.
    done(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL) })
        .map(drop)
}

/// Receives a datagram, if there is one: its length, and where it comes from.
pub(crate) fn receive(socket: &OwnedFd, room: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let mut storage = no_address();
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    let (at, from) = (room.as_mut_ptr(), &raw mut storage);
    // SAFETY: local variables, and the room is as long as is said.
    let got =
        unsafe { libc::syscall(libc::SYS_recvfrom, fd, at, room.len(), flags, from, &raw mut len) };
    let from = read_address((&raw const storage).cast())?;
    Some((usize::try_from(got).ok()?, from))
}
