//! What is left to do about a packet after its queue pair looked at it.

use crate::event::{DropReason, NakReason};
use crate::ports::SpaceId;
use rnic_abi::verbs::WcStatus;

/// What the queue pair says about a packet.
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
    BadReceive { wr_id: u64, index: u32 },
    /// A request is an atomic: it is executed and answered.
    Atomic(AtomicRequest),
    /// A response fails the request that it is about.
    FailRequest(WcStatus),
    /// A response has the result of our atomic: it is stored, and the atomic is complete.
    StoreAtomic { space: SpaceId, addr: u64, value: u64 },
}

impl Verdict {
    pub(super) const fn nak(reason: NakReason) -> Self {
        Self::AfterFlush(Deferred::Nak(reason))
    }

    pub(super) const fn fail(status: WcStatus) -> Self {
        Self::AfterFlush(Deferred::FailRequest(status))
    }
}

/// An atomic of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRequest {
    pub(crate) space: SpaceId,
    pub(crate) addr: u64,
    /// `None` for fetch-and-add.
    pub(crate) compare: Option<u64>,
    pub(crate) swap_or_add: u64,
}

impl AtomicRequest {
    pub(crate) fn apply(&self, old: u64) -> u64 {
        match self.compare {
            // Rule: SwapOnlyWhenEqual
            Some(compare) if compare == old => self.swap_or_add,
            Some(_) => old,
            // Rule: FetchAddWraps
            None => old.wrapping_add(self.swap_or_add),
        }
    }
}
