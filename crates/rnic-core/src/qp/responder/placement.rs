//! FLUSH and ATOMIC_WRITE: requests that make data visible in order.
//!
//! Both are answered by a READ response without data, and what repeats them gets that answer again.

use super::super::Qp;
use super::super::packet::Packet;
use super::super::verdict::{AtomicRequest, Deferred, Update, Verdict};
use super::Checked;
use super::replies::ReplyKind;
use crate::event::{NakReason, Tap};
use crate::shared::Ctx;
use rnic_abi::verbs::AccessFlags;
use roce_wire::{Feth, Operation};

/// Bytes of an ATOMIC_WRITE.
const WORD: u32 = 8;

/// The rights that a FLUSH of such a placement needs; `None` where there is no such placement.
fn rights(feth: Feth) -> Option<AccessFlags> {
    let kinds = [
        (Feth::GLOBAL_VISIBILITY, AccessFlags::FLUSH_GLOBAL),
        (Feth::PERSISTENCE, AccessFlags::FLUSH_PERSISTENT),
    ];
    let placement = feth.placement();
    let known = kinds.iter().fold(0, |bits, (bit, _)| bits | bit);
    let is_range = feth.selectivity() == Feth::RANGE;
    // Rule: FlushKind
    if placement == 0 || placement & !known != 0 || !(is_range || is_whole(feth)) {
        return None;
    }
    let asked = kinds.iter().filter(|(bit, _)| placement & bit != 0);
    Some(asked.fold(AccessFlags::empty(), |all, (_, right)| all | *right))
}

fn is_whole(feth: Feth) -> bool {
    feth.selectivity() == Feth::WHOLE_REGION
}

impl Qp {
    /// Requests that are neither SEND, WRITE nor READ.
    #[inline(never)]
    pub(super) fn execute_other<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked<Verdict> {
        match packet.info.operation {
            Operation::Flush => self.execute_flush(ctx, packet),
            _ => Ok(Verdict::AfterFlush(Deferred::Atomic)),
        }
    }

    /// What an atomic of the peer does.
    #[inline(never)]
    pub(crate) fn atomic_of<T: Tap>(
        &self,
        ctx: &Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Result<AtomicRequest, NakReason> {
        match packet.info.operation {
            Operation::AtomicWrite => self.prepare_atomic_write(ctx, packet),
            _ => self.prepare_atomic(ctx, packet),
        }
    }

    /// The rights that such requests need of the queue pair.
    #[inline(never)]
    pub(super) fn rights_of_other(packet: &Packet<'_>) -> Result<AccessFlags, NakReason> {
        match packet.info.operation {
            Operation::AtomicWrite => Ok(AccessFlags::REMOTE_WRITE),
            Operation::CmpSwap | Operation::FetchAdd => Ok(AccessFlags::REMOTE_ATOMIC),
            Operation::Flush => Self::flush_rights(packet),
            // No other request is one of this transport.
            _ => Err(NakReason::NotAllowed),
        }
    }

    /// The rights that a FLUSH needs of queue pair and region.
    fn flush_rights(packet: &Packet<'_>) -> Result<AccessFlags, NakReason> {
        packet.datagram.feth().and_then(rights).ok_or(NakReason::NotAllowed)
    }

    /// Nothing is left to do but to answer: no answer leaves before the payload of everything
    /// accepted is in memory.
    fn execute_flush<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked<Verdict> {
        let need = Self::flush_rights(packet)?;
        let reth = self.check_reth(packet)?;
        let whole = packet.datagram.feth().is_some_and(is_whole);
        // Of a whole region neither address nor length is looked at.
        // Rule: FlushWholeRegion
        let (va, len) = match whole.then(|| ctx.shared.mrs.start_of(reth.rkey.0)).flatten() {
            Some(start) => (start, 0),
            None => (reth.va, reth.dma_len),
        };
        // Rule: FlushNeedsRight
        self.check_key(ctx, reth.rkey.0, va, len, need)?;
        self.finish_atomic(ctx, packet.psn, ReplyKind::Done);
        Ok(Verdict::Done)
    }

    fn prepare_atomic_write<T: Tap>(
        &self,
        ctx: &Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Result<AtomicRequest, NakReason> {
        let reth = self.check_reth(packet)?;
        let word = packet.datagram.payload().first_chunk();
        // Rule: AtomicWriteLength
        let Some(word) = word.filter(|_| reth.dma_len == WORD) else {
            return Err(NakReason::Length);
        };
        // Rule: AtomicWriteAlignment
        if !reth.va.is_multiple_of(WORD.into()) {
            return Err(NakReason::Alignment);
        }
        let target = self.check_key(ctx, reth.rkey.0, reth.va, WORD, AccessFlags::REMOTE_WRITE)?;
        // The bytes are stored as they came.
        let update = Update::Store(u64::from_ne_bytes(*word));
        Ok(AtomicRequest { space: target.space, addr: target.addr, update })
    }
}
