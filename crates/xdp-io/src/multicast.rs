//! Membership in multicast groups.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{Error, Result, sys};

/// Membership of an interface in a multicast group, for ports that receive whole frames: the
/// kernel announces it to the routers and lets the group's frames through the interface's address
/// filter. Ends when dropped. Needs no privilege.
///
/// A [`group_socket`](crate::udp::group_socket) joins by itself.
pub struct Membership {
    /// Held open: the membership ends when it is closed.
    socket: OwnedFd,
}

impl From<Membership> for OwnedFd {
    /// What keeps the membership while it is open.
    fn from(membership: Membership) -> OwnedFd {
        membership.socket
    }
}

impl Membership {
    /// Joins `group` on the interface with index `interface`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] when `group` is no multicast address, [`Error::Os`] (ENODEV: no
    /// such interface).
    pub fn join(interface: u32, group: IpAddr) -> Result<Membership> {
        if !group.is_multicast() {
            return Err(Error::InvalidConfig("the group to join is no multicast address"));
        }
        let domain = if group.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = sys::socket(domain, libc::SOCK_DGRAM, 0).map_err(Error::os("socket(UDP)"))?;
        join(socket.as_fd(), interface, group)?;
        Ok(Membership { socket })
    }
}

/// Joins `group` with a socket; with `interface` 0 the routes choose the interface.
pub(crate) fn join(socket: BorrowedFd<'_>, interface: u32, group: IpAddr) -> Result<()> {
    change(socket, interface, group, [libc::IP_ADD_MEMBERSHIP, libc::IPV6_ADD_MEMBERSHIP])
        .map_err(Error::os("joining the multicast group"))
}

/// Ends the membership of a [group's socket](crate::udp::group_socket): it receives nothing more,
/// whatever process has it.
///
/// # Errors
/// [`Error::Os`], EADDRNOTAVAIL when it is no member.
pub fn leave(socket: BorrowedFd<'_>, interface: u32, group: IpAddr) -> Result<()> {
    change(socket, interface, group, [libc::IP_DROP_MEMBERSHIP, libc::IPV6_DROP_MEMBERSHIP])
        .map_err(Error::os("leaving the multicast group"))
}

/// `options`: of IPv4, of IPv6.
fn change(
    socket: BorrowedFd<'_>,
    interface: u32,
    group: IpAddr,
    options: [i32; 2],
) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            let request = v4_interface(group.octets(), interface);
            sys::set_option(socket, libc::IPPROTO_IP, options[0], &request)
        }
        IpAddr::V6(group) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                ipv6mr_interface: interface,
            };
            sys::set_option(socket, libc::IPPROTO_IPV6, options[1], &request)
        }
    }
}

/// The socket receives what it is a member of itself, and nothing that other sockets of the host
/// have joined.
pub(crate) fn only_own(socket: BorrowedFd<'_>, group: IpAddr) -> Result<()> {
    match group {
        IpAddr::V4(_) => sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0),
        IpAddr::V6(_) => sys::set_option(socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, &0),
    }
    .map_err(Error::os("IP_MULTICAST_ALL"))
}

/// `linux/in6.h`.
const IPV6_MULTICAST_ALL: i32 = 29;

fn v4_interface(group: [u8; 4], interface: u32) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group) },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: interface as i32,
    }
}

/// Makes a socket bound to `own` send multicast on the interface of that address.
pub(crate) fn send_from(socket: BorrowedFd<'_>, interface: u32, own: IpAddr) -> Result<()> {
    match own {
        IpAddr::V4(own) => {
            let mut request = v4_interface([0; 4], 0);
            request.imr_address.s_addr = u32::from_ne_bytes(own.octets());
            sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
        }
        IpAddr::V6(_) => sys::set_option(
            socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MULTICAST_IF,
            &(interface as i32),
        ),
    }
    .map_err(Error::os("choosing the multicast interface"))
}
