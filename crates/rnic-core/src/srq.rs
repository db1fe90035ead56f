//! Shared receive queues: receives that many queue pairs take, each WQE once and in order.

use crate::clients::Clients;
use crate::command::ClientId;
use crate::owned::Owned;
use crate::recv_queue::{NoRecv, Recv, RecvQueue};
use rnic_abi::wqe::Sge;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) client: ClientId,
    pub(crate) client_slot: u32,
    /// Protection domain of its receives.
    pub(crate) pd: u32,
    pub(crate) queue: RecvQueue,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// The limit event is due once fewer WQEs are left; 0: it is not armed.
    pub(crate) limit: u32,
    /// Queue pairs that take from it; messages of XRC may use it besides.
    pub(crate) users: u32,
    /// What one of an XRC domain has besides.
    pub(crate) xrc: Option<XrcSrq>,
}

impl Owned for Srq {
    fn owner(&self) -> Option<ClientId> {
        Some(self.client)
    }
}

/// What a shared receive queue of an XRC domain has besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) handle: u32,
    /// Its number in packets.
    pub(crate) number: u32,
    pub(crate) domain: u32,
    /// How its client opened the domain.
    pub(crate) opening: u32,
    /// Where its receives complete.
    pub(crate) cq: u32,
}

impl Srq {
    /// Takes the next WQE. Its slot is free at once: all of it is copied, and which queue pair
    /// completes first is not known.
    #[inline]
    pub(crate) fn take(&mut self, clients: &Clients, sges: &mut Vec<Sge>) -> Result<Recv, NoRecv> {
        let taken = self.queue.take(clients, self.client_slot, sges);
        if let Ok(Recv { index, .. }) | Err(NoRecv::Broken { index, .. }) = taken {
            // Rule: SrqSlotFreeWhenTaken
            self.queue.release(index);
        }
        taken
    }

    /// Fewer WQEs are left than the armed limit: true once, then it is not armed any more.
    #[inline]
    pub(crate) fn is_below_limit(&mut self, clients: &Clients) -> bool {
        if self.limit == 0 {
            return false;
        }
        self.queue.refresh_producer(clients, self.client_slot);
        // Rule: SrqLimitEvent
        let is_below = self.queue.waiting() < self.limit;
        if is_below {
            // Rule: SrqLimitOnce
            self.limit = 0;
        }
        is_below
    }
}
