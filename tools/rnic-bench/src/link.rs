//! The ports of `xdp-io` behind one trait: units of equal datagrams are sent, pieces of them
//! received.

mod frame;
mod udp;

use anyhow::Result;

use crate::case::LinkKind;
use crate::pair::Side;
use roce_wire::Flow;

/// Addresses of the two ends.
const ADDRESSES: [[u8; 4]; 2] = [[10, 77, 0, 1], [10, 77, 0, 2]];
/// The interface at both ends.
const INTERFACE: &str = "eth0";

/// Received datagrams of one flow: `len` bytes of the receive arena, `segment` bytes each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) segment: usize,
}

pub(crate) trait Link {
    /// Datagrams that leave together travel as one train.
    fn has_trains(&self) -> bool;
    /// Makes room for a unit of `count` datagrams of `len` bytes each and returns where it begins
    /// in the transmit arena; nothing when the link is full.
    fn reserve(&mut self, count: usize, len: usize) -> Option<usize>;
    /// The transmit arena.
    fn tx(&mut self) -> &mut [u8];
    /// Sends what was reserved.
    fn submit(&mut self);
    /// Appends what arrived; valid until `release`.
    fn receive(&mut self, pieces: &mut Vec<Piece>);
    /// The receive arena.
    fn rx(&self) -> &[u8];
    fn release(&mut self);
}

/// Opens one end.
pub(crate) fn open(kind: LinkKind, side: &Side<'_>) -> Result<Box<dyn Link>> {
    Ok(match kind {
        LinkKind::Udp => Box::new(udp::Udp::open(side)?),
        LinkKind::AfPacket => Box::new(frame::Packet::open(side)?),
        LinkKind::XdpNative => Box::new(frame::Xdp::open(side, xdp_io::xsk::XdpMode::Native)?),
        LinkKind::XdpGeneric => Box::new(frame::Xdp::open(side, xdp_io::xsk::XdpMode::Generic)?),
    })
}

/// The flow from one side to the other.
pub(crate) fn flow(from: usize) -> Flow {
    let [src, dst] = [ADDRESSES[from], ADDRESSES[1 - from]].map(Into::into);
    Flow { src, dst, sport: roce_wire::ROCE_PORT, tos: 0, hop_limit: 64, flow_label: 0, df: true }
}
