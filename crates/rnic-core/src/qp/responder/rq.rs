//! Where receive WQEs come from: a queue of the queue pair's own, or a shared one.

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
}

impl ReceiveSource {
    /// The queue that is reset and flushed with the queue pair.
    #[inline]
    pub(crate) fn own(&self) -> Option<&RecvQueue> {
        match self {
            Self::Own(queue) => Some(queue),
            Self::Shared { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn own_mut(&mut self) -> Option<&mut RecvQueue> {
        match self {
            Self::Own(queue) => Some(queue),
            Self::Shared { .. } => None,
        }
    }

    /// The shared receive queue.
    #[inline]
    pub(crate) fn shared(&self) -> Option<u32> {
        match self {
            Self::Own(_) => None,
            Self::Shared { srq, .. } => Some(*srq),
        }
    }

    /// The doorbell record that its completions name.
    #[inline]
    pub(crate) fn record(&self) -> RecordIndex {
        match self {
            Self::Own(queue) => queue.record,
            Self::Shared { record, .. } => *record,
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
            Self::Shared { srq, .. } => shared.take_receive(*srq, client, sges),
        }
    }

    /// The WQE at `index` is complete.
    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        match self {
            Self::Own(queue) => queue.release(index),
            // Its slot is free since it was taken.
            Self::Shared { .. } => {}
        }
    }
}
