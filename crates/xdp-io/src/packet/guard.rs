//! Keeps the kernel from answering our frames with ICMP port unreachable.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use super::filter;
use crate::address::{self, SockAddr};
use crate::{Error, Result, sys};

/// UDP sockets that hold the port on our addresses and drop everything they are sent.
pub struct PortGuard {
    port: u16,
    /// Scope of link-local addresses.
    ifindex: u32,
    /// See [`PortGuard::new`].
    trains: bool,
    held: Vec<(IpAddr, OwnedFd)>,
    taken: Vec<IpAddr>,
}

impl PortGuard {
    /// Holds `port` on `addresses`, or on all addresses when there are none. With `trains` the
    /// kernel leaves trains whole and may join what arrives from a device; without, it would split
    /// each one for a socket that drops the pieces.
    pub(super) fn new(
        port: u16,
        addresses: &[IpAddr],
        ifindex: u32,
        trains: bool,
    ) -> Result<PortGuard> {
        let mut guard = PortGuard { port, ifindex, trains, held: Vec::new(), taken: Vec::new() };
        let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        for address in if addresses.is_empty() { &all } else { addresses } {
            match guard.add_address(*address) {
                // A host without IPv6 needs no guard for it.
                Err(Error::AddressNotLocal { address }) if address.is_unspecified() => {}
                other => other?,
            }
        }
        Ok(guard)
    }

    /// Link-local addresses are those of this interface from now on. Those that it held or tried to
    /// hold on the interface before are given up: they are to be added again.
    pub(super) fn move_to(&mut self, ifindex: u32) {
        if self.ifindex != ifindex {
            self.ifindex = ifindex;
            self.held.retain(|(held, _)| !address::is_link_local(*held));
            self.taken.retain(|taken| !address::is_link_local(*taken));
        }
    }

    /// Holds the port on one more address. If another socket holds it the kernel sends no ICMP
    /// either; the address is then listed by [`PortGuard::taken`].
    ///
    /// # Errors
    /// [`Error::AddressNotLocal`], [`Error::Os`].
    pub fn add_address(&mut self, address: IpAddr) -> Result<()> {
        self.remove_address(address);
        let wanted = address::scoped(address, self.port, self.ifindex);
        let domain = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = match sys::socket(domain, libc::SOCK_DGRAM, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                return Err(Error::AddressNotLocal { address });
            }
            other => other.map_err(Error::os("socket(UDP)"))?,
        };
        if address.is_ipv6() {
            sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)
                .map_err(Error::os("IPV6_V6ONLY"))?;
        }
        sys::attach_filter(socket.as_fd(), &filter::nothing())
            .map_err(Error::os("attaching a filter to the guard socket"))?;
        if self.trains {
            sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, &1)
                .map_err(Error::os("UDP_GRO on the guard socket"))?;
        }
        match sys::bind(socket.as_fd(), SockAddr::new(&wanted).as_bytes()) {
            Ok(()) => self.held.push((address, socket)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EADDRINUSE) => self.taken.push(address),
                Some(libc::EADDRNOTAVAIL | libc::EINVAL) => {
                    return Err(Error::AddressNotLocal { address });
                }
                _ => return Err(Error::Os { operation: "bind(UDP guard)", source: error }),
            },
        }
        Ok(())
    }

    /// Releases the port on an address.
    pub fn remove_address(&mut self, address: IpAddr) {
        self.held.retain(|(held, _)| *held != address);
        self.taken.retain(|taken| *taken != address);
    }

    /// Addresses on which another socket (a kernel rxe device, another daemon) has the port, and so
    /// sees and perhaps answers the same frames.
    #[must_use]
    pub fn taken(&self) -> &[IpAddr] {
        &self.taken
    }
}
