//! A shared receive queue of a client, and the check that each receive completes once.

use crate::tenant::{AppQueue, CAPS, Tenant, queue};
use crate::world::World;
use rnic_abi::cqe::Cqe;
use rnic_abi::wqe::recv_stride;
use rnic_core::{ClientCommand, Outcome};
use std::collections::BTreeMap;

/// The queue as its application sees it.
pub(crate) struct SharedReceives {
    pub(crate) handle: u32,
    pub(crate) queue: AppQueue,
    /// `wr_id` of what is posted and not polled, by index.
    pub(crate) posted: BTreeMap<u32, u64>,
}

/// Its doorbell record: behind those of all queue pairs.
const RECORD: usize = 12;

impl SharedReceives {
    /// One more receive may be posted: slots are free when their completion was polled.
    pub(crate) fn has_room(&mut self) -> bool {
        let producer = self.queue.ring.producer();
        let oldest = self.posted.keys().next().copied().unwrap_or(producer);
        producer.wrapping_sub(oldest) < CAPS.max_recv_wr && self.queue.ring.free() > 0
    }

    /// A receive of it was polled.
    pub(crate) fn complete(&mut self, cqe: &Cqe) {
        assert_eq!(cqe.record, self.queue.record.value(), "another queue's record");
        let posted = self.posted.remove(&cqe.wqe_index);
        assert_eq!(posted, Some(cqe.wr_id), "a receive that is not posted: {cqe:?}");
    }

    /// No queue pair has a receive in use: the others are all still there.
    pub(crate) fn check(&mut self) {
        let left = self.queue.ring.in_use();
        assert_eq!(left as usize, self.posted.len(), "receives got lost");
    }
}

impl Tenant {
    /// Makes the queue from which all further QPs take their receives.
    pub(crate) fn create_srq(&mut self, world: &mut World) {
        let stride = recv_stride(CAPS.max_recv_sge);
        let (queue, engine_queue) = queue(RECORD, CAPS.max_recv_wr, stride);
        let create = ClientCommand::CreateSrq {
            pd: self.pds[0],
            queue: engine_queue,
            max_wr: CAPS.max_recv_wr,
            max_sge: CAPS.max_recv_sge,
        };
        let Ok(Outcome::Handle(handle)) = world.command(self.client, create) else {
            panic!("the engine makes the SRQ");
        };
        self.srq = Some(SharedReceives { handle, queue, posted: BTreeMap::new() });
    }

    /// The queue from which a QP takes its receives.
    pub(crate) fn receives(&self, nth: usize) -> &AppQueue {
        self.srq.as_ref().map_or(&self.qps[nth].rq, |srq| &srq.queue)
    }
}
