//! The datagrams of a packet: several where a kernel had not taken a train apart yet.

use crate::link::Seen;
use roce_wire::datagram::pad_for;
use roce_wire::{Datagram, Flow, IpIdHint, PathMtu, PayloadRule, Position, icrc, train};

/// The most datagrams of a train, as kernels make them.
const MOST: u32 = 128;

/// A datagram, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) flow: Flow,
    /// Identification of its IPv4 header; 0 for IPv6.
    pub(crate) ip_id: u16,
    pub(crate) bytes: &'a [u8],
    /// So many of the bytes were captured; the others are zeros.
    pub(crate) captured: usize,
    /// Its ICRC is wrong. Not known where the end was not captured.
    pub(crate) is_bad: bool,
    /// Its place in a train, from 1, and how many there are.
    pub(crate) of_train: Option<(usize, usize)>,
}

impl Part<'_> {
    pub(crate) fn is_whole(&self) -> bool {
        self.captured == self.bytes.len()
    }
}

/// What a packet carries, in its order. Without its end it is not taken apart, as only the ICRC
/// tells where a datagram ends.
pub(crate) fn of<'a>(seen: &Seen<'a>) -> impl Iterator<Item = Part<'a>> + use<'a> {
    let (frame, bytes) = (&seen.frame, seen.frame.payload());
    let (flow, first_id) = (frame.flow, frame.ip_id);
    let is_whole = seen.captured == bytes.len();
    let found = if is_whole { train::segment_len(&flow, first_id, bytes) } else { None };
    let len = found.unwrap_or(bytes.len()).max(1);
    let count = bytes.len().div_ceil(len).max(1);
    let rest = seen.captured;
    (0..count).map(move |index| {
        let at = index * len;
        let bytes = &bytes[at..bytes.len().min(at + len)];
        let of_train = (count > 1).then_some((index + 1, count));
        let (ip_id, is_bad) = match index {
            0 => (first_id, is_whole && found.is_none()),
            _ => further(&flow, first_id.wrapping_add(index as u16), bytes),
        };
        Part { flow, ip_id, bytes, captured: rest.min(bytes.len()), is_bad, of_train }
    })
}

/// Identification of a datagram behind the first of a train, and whether its ICRC is wrong. A
/// kernel numbers what it takes apart itself one by one, but keeps of what it joined only the
/// first number: the others may have been any.
fn further(flow: &Flow, likely: u16, bytes: &[u8]) -> (u16, bool) {
    let hint = IpIdHint::Predicted(likely);
    let check = icrc::verify(flow, hint, bytes);
    let ip_id = if flow.is_ipv4() { check.ip_id(hint) } else { 0 };
    (ip_id, !check.is_good())
}

/// Datagrams that a packet may have behind its first one, of which it has the headers: none where
/// it can be all of that datagram. `mtu` is the path MTU where that is known.
pub(crate) fn hidden(datagram: &Datagram<'_>, mtu: Option<usize>) -> u32 {
    let (len, pad) = (datagram.payload_len(), datagram.bth().pad);
    let most = mtu.unwrap_or(PathMtu::Mtu4096.bytes());
    let info = datagram.opcode().info();
    let fits = match info.payload {
        PayloadRule::FullMtu => PathMtu::ALL.iter().any(|mtu| mtu.bytes() == len) && len <= most,
        rule => rule.allows(len, pad, most) && pad == pad_for(len),
    };
    let reth = datagram.headers().reth.filter(|_| info.position == Position::Only);
    let is_told = reth.is_none_or(|reth| len == 0 || len == reth.dma_len as usize);
    if fits && is_told {
        return 0;
    }
    u32::try_from(len / train::SMALLEST).unwrap_or(MOST).clamp(1, MOST)
}
