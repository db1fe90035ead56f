//! What is left to do about a packet after its queue pair looked at it.

use super::responder::replies::ReplyKind;
use crate::event::{DropReason, NakReason};
use crate::ports::SpaceId;
use rnic_abi::verbs::WcStatus;

/// What the queue pair says about a packet. Each packet has one, and each check of a request may
/// end with one: what is deferred keeps its operands in the queue pair and the packet, so that this
/// fits a register.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    /// Nothing is left to do.
    Done,
    Drop(DropReason),
    /// The payload of all earlier packets must be in memory first.
    AfterFlush(Deferred),
}

/// What needs the payload of all earlier packets in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deferred {
    /// A request cannot be executed: it is refused, and the connection ends.
    Nak(NakReason),
    /// A request takes a receive WQE that is invalid.
    BadReceive,
    /// A request is an atomic: it is executed and answered.
    Atomic,
    /// A response fails the request that it is about.
    FailRequest(WcStatus),
    /// A response has the result of our atomic: it is stored, and the atomic is complete.
    StoreAtomic,
}

const _: () = assert!(size_of::<Verdict>() <= 8);

impl Verdict {
    pub(super) const fn nak(reason: NakReason) -> Self {
        Self::AfterFlush(Deferred::Nak(reason))
    }

    pub(super) const fn fail(status: WcStatus) -> Self {
        Self::AfterFlush(Deferred::FailRequest(status))
    }
}

impl From<NakReason> for Verdict {
    #[inline]
    fn from(reason: NakReason) -> Self {
        Self::nak(reason)
    }
}

/// An atomic of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRequest {
    pub(crate) space: SpaceId,
    pub(crate) addr: u64,
    pub(crate) update: Update,
}

/// The result of our own atomic, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicResult {
    pub(crate) space: SpaceId,
    pub(crate) addr: u64,
    pub(crate) value: u64,
}

/// What becomes of a word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Update {
    Add(u64),
    Swap { compare: u64, swap: u64 },
    Store(u64),
}

impl AtomicRequest {
    pub(crate) fn apply(&self, old: u64) -> u64 {
        match self.update {
            // Rule: SwapOnlyWhenEqual
            Update::Swap { compare, swap } if compare == old => swap,
            Update::Swap { .. } => old,
            // Rule: FetchAddWraps
            Update::Add(value) => old.wrapping_add(value),
            Update::Store(value) => value,
        }
    }

    /// What the peer is told of the word as it was.
    pub(crate) fn answer(&self, value: u64) -> ReplyKind {
        match self.update {
            Update::Store(_) => ReplyKind::Done,
            Update::Add(_) | Update::Swap { .. } => ReplyKind::Atomic { value },
        }
    }
}
