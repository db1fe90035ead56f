//! A received packet on its way through its queue pair.

use crate::by_reference::Payload;
use roce_wire::{Bth, Datagram, OpcodeInfo, Psn};

/// A received packet that found its QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) datagram: &'a Datagram<'a>,
    pub(crate) info: &'static OpcodeInfo,
    pub(crate) psn: Psn,
    /// Where the payload is. In an internal train the datagram may have no more than a note of
    /// that.
    pub(crate) bytes: Payload,
}

impl Packet<'_> {
    #[inline(always)]
    pub(in crate::qp) fn bth(&self) -> Bth {
        self.datagram.bth()
    }

    /// Immediate data, raw, or the key to invalidate.
    pub(in crate::qp) fn imm_or_key(&self) -> u32 {
        match self.datagram.imm() {
            Some(imm) => u32::from_ne_bytes(imm.0),
            None => self.datagram.ieth().map_or(0, |ieth| ieth.rkey.0),
        }
    }
}
