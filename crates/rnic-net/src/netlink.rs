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
const NLM_F_DUMP: u16 = 0x300;
/// Something changed while the list was made.
const NLM_F_DUMP_INTR: u16 = 0x10;
pub(super) const NLM_F_CREATE: u16 = 0x400;

/// How often something is listed until the list is whole.
const MOST_LISTS: u32 = 10;
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
    flags: u16,
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
            flags: u16_at(rest, 6)?,
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
        each: impl FnMut(Message<'_>),
    ) -> io::Result<()> {
        self.converse(request, each).map(drop)
    }

    /// What `take` makes of everything of a kind that the kernel has.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn list<T>(
        &mut self,
        kind: u16,
        header: &[u8],
        take: impl Fn(Message<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        until_whole(|| {
            let mut all = Vec::new();
            let request = Request::new(kind, NLM_F_DUMP, header);
            let is_torn = self.converse(request, |message| all.extend(take(message)))?;
            Ok((all, is_torn))
        })
    }

    /// Tells whether the answer is torn.
    fn converse(
        &mut self,
        request: Request,
        mut each: impl FnMut(Message<'_>),
    ) -> io::Result<bool> {
        self.sequence += 1;
        let mut answer = Answer { sequence: self.sequence, is_torn: false };
        self.socket.send(&request.finish(answer.sequence), 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            if let Some(end) = answer.take(&datagram, &mut each) {
                return end.map(|()| answer.is_torn);
            }
        }
    }
}

/// What is known of the answer to one request.
struct Answer {
    sequence: u32,
    /// Parts of a list are from before a change and others from after it: some may be missing.
    is_torn: bool,
}

impl Answer {
    /// Shows the messages of one datagram to `each`; the result, if it was the last datagram.
    fn take(
        &mut self,
        datagram: &[u8],
        each: &mut impl FnMut(Message<'_>),
    ) -> Option<io::Result<()>> {
        for message in messages(datagram).filter(|m| m.sequence == self.sequence) {
            self.is_torn |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.kind {
                NLMSG_DONE => return Some(Ok(())),
                NLMSG_ERROR => {
                    return Some(match u32_at(message.body, 0).unwrap_or(0).cast_signed() {
                        0 => Ok(()),
                        errno => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
                    });
                }
                _ => each(message),
            }
        }
        None
    }
}

/// Lists again while the list is torn. On a host where something changes all the time the last one
/// is taken as it is: each change is notified, and the thread
/// that follows them lists once more.
fn until_whole<T>(mut list: impl FnMut() -> io::Result<(Vec<T>, bool)>) -> io::Result<Vec<T>> {
    for _ in 1..MOST_LISTS {
        if let (all, false) = list()? {
            return Ok(all);
        }
    }
    Ok(list()?.0)
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
    fn a_list_that_a_change_tore_is_asked_for_again() {
        let message = |kind, flags| Request::new(kind, flags, &[0; 4]).finish(7);
        let part = |flags| [message(RTM_NEWADDR, flags), message(NLMSG_DONE, 0)].concat();
        let look = |datagram: &[u8], sequence| {
            let mut answer = Answer { sequence, is_torn: false };
            let mut seen = 0;
            let end = answer.take(datagram, &mut |_| seen += 1);
            (seen, end.is_some_and(|end| end.is_ok()), answer.is_torn)
        };
        assert_eq!(look(&part(0), 7), (1, true, false));
        assert_eq!(look(&part(NLM_F_DUMP_INTR), 7), (1, true, true));
        assert_eq!(look(&message(NLMSG_DONE, NLM_F_DUMP_INTR), 7), (0, true, true));
        assert_eq!(look(&part(NLM_F_DUMP_INTR), 8), (0, false, false), "another request's");
        let mut lists = [(vec![1], true), (vec![1, 2], false), (Vec::new(), false)].into_iter();
        assert_eq!(until_whole(|| Ok(lists.next().unwrap())).unwrap(), [1, 2]);
        let mut count = 0;
        let torn = until_whole(|| {
            count += 1;
            Ok((vec![count], true))
        });
        assert_eq!(torn.unwrap(), [MOST_LISTS], "it comes to an end");
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
