//! The kernel's neighbour table: reading it, and having it resolve an address.

use super::netlink::{
    self, Message, NLM_F_CREATE, Netlink, RTM_DELNEIGH, RTM_GETNEIGH, RTM_NEWNEIGH, Request,
    u16_at, u32_at,
};
use roce_wire::MacAddr;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

const NDMSG: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Have the kernel use, and so resolve, the entry.
const NTF_USE: u8 = 1;
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_FAILED: u16 = 0x20;
/// REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT.
const NUD_VALID: u16 = 0xde;
/// The "discard" service: no reply comes, but the datagram needs the neighbour's address.
const DISCARD_PORT: u16 = 9;

/// What the kernel knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// Its address.
    At(MacAddr),
    /// Being resolved, or nothing.
    NotYet,
    /// It did not answer.
    Failed,
}

/// A notification or table entry: the address, the interface, and what is known.
pub(super) fn parse(message: &Message<'_>) -> Option<(IpAddr, u32, Known)> {
    let header = message.header::<NDMSG>()?;
    let (mut ip, mut mac) = (None, None);
    for (kind, value) in message.attributes(NDMSG) {
        match kind {
            NDA_DST => ip = netlink::ip(value),
            NDA_LLADDR => mac = value.first_chunk().map(|mac| MacAddr(*mac)),
            _ => {}
        }
    }
    let state = u16_at(header, 8)?;
    let known = match mac {
        Some(mac) if message.kind == RTM_NEWNEIGH && state & NUD_VALID != 0 => Known::At(mac),
        _ if message.kind == RTM_DELNEIGH || state & NUD_FAILED != 0 => Known::Failed,
        _ => Known::NotYet,
    };
    Some((ip?, u32_at(header, 4)?, known))
}

/// Looks one neighbour up.
pub(super) fn look_up(netlink: &mut Netlink, ip: IpAddr, ifindex: u32) -> io::Result<Known> {
    let mut known = Known::NotYet;
    let request = Request::new(RTM_GETNEIGH, 0, &header(ip, ifindex, 0, 0)).address(NDA_DST, ip);
    let answer = netlink.ask(request, |message| {
        if let Some((_, _, found)) = parse(&message) {
            known = found;
        }
    });
    match answer {
        Ok(()) => Ok(known),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Known::NotYet),
        Err(error) => Err(error),
    }
}

/// Has the kernel find a neighbour, or check one that it has not heard of for a while.
pub(super) fn nudge(netlink: &mut Netlink, source: Option<IpAddr>, ip: IpAddr, ifindex: u32) {
    let request = Request::new(RTM_NEWNEIGH, NLM_F_CREATE, &header(ip, ifindex, 0, NTF_USE))
        .address(NDA_DST, ip);
    if netlink.ask(request, |_| {}).is_err()
        && let Some(source) = source
    {
        // Without CAP_NET_ADMIN any datagram does it. Errors show as "no answer" later.
        let scoped = |ip: IpAddr, port| match ip {
            IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, ifindex)),
            IpAddr::V4(_) => SocketAddr::new(ip, port),
        };
        if let Ok(socket) = UdpSocket::bind(scoped(source, 0)) {
            let _ = socket.send_to(&[], scoped(ip, DISCARD_PORT));
        }
    }
}

/// `struct ndmsg`.
fn header(ip: IpAddr, ifindex: u32, state: u16, flags: u8) -> [u8; NDMSG] {
    let mut header = [0; NDMSG];
    header[0] = netlink::family(ip);
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

const _: () = assert!(NUD_VALID & (NUD_INCOMPLETE | NUD_FAILED) == 0);
