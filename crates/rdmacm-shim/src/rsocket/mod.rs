//! rsockets: sockets over RDMA, as upstream's librdmacm has them, and with the same messages.

mod connecting;
mod datagram;
mod flow;
mod iomap;
mod keep_alive;
mod link;
mod listen;
mod nic;
mod options;
mod peers;
mod poll;
mod queues;
mod region;
mod settings;
mod stream;
mod table;
mod transfer;
pub(crate) mod udp;
mod waiting;
mod wire;

pub(crate) mod calls;
pub(crate) mod data;

use std::{
    ffi::c_int,
    net::{IpAddr, SocketAddr},
};

use crate::error::{Errno, Result};

/// Calls on this descriptor do not wait.
fn unblock(fd: c_int) {
    // SAFETY: no pointers. Fails only for a descriptor that is not open.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
}

/// As with TCP, a connection to the unspecified address is one to this host.
fn this_host(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let ip: IpAddr = match address {
        SocketAddr::V4(_) => [127, 0, 0, 1].into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// For calls that return a number, or -1 with errno.
fn number<T: TryFrom<i64>>(result: Result<i64>, failed: T) -> T {
    match result.and_then(|value| T::try_from(value).map_err(|_| Errno(libc::EOVERFLOW))) {
        Ok(value) => value,
        Err(Errno(errno)) => {
            crate::stubs::set_errno(errno);
            failed
        }
    }
}
