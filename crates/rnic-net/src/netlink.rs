//! The few rtnetlink messages that are needed, read and written as bytes.
//!
//! Parsing takes what it knows and skips the rest, so that attributes of newer kernels never turn
//! into errors.

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::net::IpAddr;

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_GETROUTE: u16 = 26;
pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_DELNEIGH: u16 = 29;
pub(super) const RTM_GETNEIGH: u16 = 30;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLM_F_CREATE: u16 = 0x400;

const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// Bits of an attribute's type that are flags.
const ATTRIBUTE_FLAGS: u16 = 0xc000;

/// A request being built.
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// `header` is the fixed structure that messages of this kind begin with.
    pub(super) fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let flags = flags | NLM_F_REQUEST | NLM_F_ACK;
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(header);
        Self { bytes }
    }

    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let len = (ATTRIBUTE_HEADER + value.len()) as u16;
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn address(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// A received message.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    sequence: u32,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The fixed structure of `N` bytes.
    pub(super) fn header<const N: usize>(&self) -> Option<&'a [u8; N]> {
        self.body.first_chunk()
    }

    /// The attributes behind a fixed structure of `header` bytes.
    pub(super) fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes { rest: self.body.get(header.next_multiple_of(4)..).unwrap_or_default() }
    }
}

/// Iterator over (type, value).
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes nested in a value.
    pub(super) fn nested(value: &'a [u8]) -> Self {
        Attributes { rest: value }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.rest, 0)?);
        let kind = u16_at(self.rest, 2)? & !ATTRIBUTE_FLAGS;
        let value = self.rest.get(ATTRIBUTE_HEADER..len)?;
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// The messages of one datagram.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let len = u32_at(rest, 0)? as usize;
        let message = Message {
            kind: u16_at(rest, 4)?,
            sequence: u32_at(rest, 8)?,
            body: rest.get(HEADER..len)?,
        };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// A socket to ask the kernel with.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request and shows every answer to `each`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn ask(
        &mut self,
        request: Request,
        mut each: impl FnMut(Message<'_>),
    ) -> io::Result<()> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.socket.send(&request.finish(sequence), 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for message in messages(&datagram).filter(|m| m.sequence == sequence) {
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        return match u32_at(message.body, 0).unwrap_or(0).cast_signed() {
                            0 => Ok(()),
                            errno => Err(io::Error::from_raw_os_error(-errno)),
                        };
                    }
                    _ => each(message),
                }
            }
        }
    }
}

/// A socket that receives the notifications of `groups` (RTNLGRP numbers).
pub(super) fn listen(groups: &[u32]) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    for group in groups {
        socket.add_membership(*group)?;
    }
    socket.set_non_blocking(true)?;
    Ok(socket)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// An address of either family by its length.
pub(super) fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(IpAddr::from(*value.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*value.first_chunk::<16>()?)),
        _ => None,
    }
}

/// AF_INET or AF_INET6.
pub(super) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_parse_as_they_were_built() {
        let bytes = Request::new(RTM_GETROUTE, 0, &[7; 12])
            .attribute(3, &[1, 2, 3, 4, 5])
            .address(1, "10.0.0.9".parse().unwrap())
            .finish(42);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind, all[0].sequence), (1, RTM_GETROUTE, 42));
        assert_eq!(all[0].header::<12>(), Some(&[7; 12]));
        let attributes: Vec<_> = all[0].attributes(12).collect();
        assert_eq!(attributes, [(3, &[1, 2, 3, 4, 5][..]), (1, &[10, 0, 0, 9][..])]);
    }

    #[test]
    fn broken_lengths_end_the_iteration() {
        for len in [0u32, 1, 15, 17, u32::MAX] {
            let mut bytes = Request::new(RTM_GETLINK, 0, &[]).finish(1);
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{len}");
        }
        for len in [0u16, 3, 100] {
            let mut value = [0; 8];
            value[..2].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Attributes::nested(&value).count(), 0, "{len}");
        }
    }
}
