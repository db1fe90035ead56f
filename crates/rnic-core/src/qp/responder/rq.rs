//! Where receive WQEs come from: a queue of the queue pair's own, a shared one, or the one that
//! each message names.

use crate::recv_queue::{NoRecv, Recv, RecvQueue};
use crate::shared::Shared;
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::wqe::Sge;

/// Where a queue pair takes its receive WQEs from.
#[derive(Debug)]
pub(crate) enum ReceiveSource {
    /// A receive queue that only this queue pair has, and that begins and ends with it.
    Own(RecvQueue),
    /// A shared receive queue: its handle, and its doorbell record.
    Shared { srq: u32, record: RecordIndex },
    /// The shared receive queue that the peer's last message named (XRC).
    Named(NamedSrq),
}

/// A shared receive queue that a message of XRC named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NamedSrq {
    /// Its number in packets; 0: none was named, or it is gone.
    pub(crate) number: u32,
    pub(crate) srq: u32,
    pub(crate) record: RecordIndex,
}

impl ReceiveSource {
    /// The queue that is reset and flushed with the queue pair.
    #[inline]
    pub(crate) fn own(&self) -> Option<&RecvQueue> {
        match self {
            Self::Own(queue) => Some(queue),
            Self::Shared { .. } | Self::Named(_) => None,
        }
    }

    #[inline]
    pub(crate) fn own_mut(&mut self) -> Option<&mut RecvQueue> {
        match self {
            Self::Own(queue) => Some(queue),
            Self::Shared { .. } | Self::Named(_) => None,
        }
    }

    /// The shared receive queue that it was made with.
    #[inline]
    pub(crate) fn shared(&self) -> Option<u32> {
        match self {
            Self::Own(_) | Self::Named(_) => None,
            Self::Shared { srq, .. } => Some(*srq),
        }
    }

    /// The shared receive queue that the last message named; none when none did.
    pub(crate) fn named(&self) -> Option<&NamedSrq> {
        match self {
            Self::Named(named) => Some(named).filter(|named| named.number != 0),
            _ => None,
        }
    }

    /// The doorbell record that its completions name.
    #[inline]
    pub(crate) fn record(&self) -> RecordIndex {
        match self {
            Self::Own(queue) => queue.record,
            Self::Shared { record, .. } | Self::Named(NamedSrq { record, .. }) => *record,
        }
    }

    /// Takes the next WQE into use; its SGEs replace those in `sges`.
    #[inline]
    pub(crate) fn take(
        &mut self,
        shared: &mut Shared,
        client: u32,
        sges: &mut Vec<Sge>,
    ) -> Result<Recv, NoRecv> {
        match self {
            Self::Own(queue) => queue.take(&shared.clients, client, sges),
            Self::Shared { srq, .. } | Self::Named(NamedSrq { srq, .. }) => {
                shared.take_receive(*srq, sges)
            }
        }
    }

    /// The WQE at `index` is complete.
    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        match self {
            Self::Own(queue) => queue.release(index),
            // Its slot is free since it was taken.
            Self::Shared { .. } | Self::Named(_) => {}
        }
    }
}
