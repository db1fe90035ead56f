//! A shared receive queue of a client, and the check that each receive completes once.

use crate::tenant::{AppQueue, CAPS, Tenant, queue};
use crate::world::World;
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::QpType;
use rnic_abi::wqe::recv_stride;
use rnic_core::{ClientCommand, NewSrq, NewXrcSrq, Outcome, XrcOpen};
use std::collections::BTreeMap;

/// The queue as its application sees it.
pub(crate) struct SharedReceives {
    pub(crate) handle: u32,
    /// Its number in packets of XRC, else 0.
    pub(crate) srqn: u32,
    pub(crate) queue: AppQueue,
    /// `wr_id` of what is posted and not polled, by index.
    pub(crate) posted: BTreeMap<u32, u64>,
    pub(crate) is_gone: bool,
}

/// Its doorbell record, and that of the one for XRC: behind those of all queue pairs.
const RECORD: usize = 12;
const XRC_RECORD: usize = 13;

impl SharedReceives {
    /// One more receive may be posted: slots are free when their completion was polled.
    pub(crate) fn has_room(&mut self) -> bool {
        let producer = self.queue.ring.producer();
        let oldest = self.posted.keys().next().copied().unwrap_or(producer);
        let used = producer.wrapping_sub(oldest);
        !self.is_gone && used < CAPS.max_recv_wr && self.queue.ring.free() > 0
    }

    /// A receive of it was polled.
    pub(crate) fn complete(&mut self, cqe: &Cqe) {
        assert_eq!(cqe.record, self.queue.record.value(), "another queue's record");
        let posted = self.posted.remove(&cqe.wqe_index);
        assert_eq!(posted, Some(cqe.wr_id), "a receive that is not posted: {cqe:?}");
    }

    /// It was destroyed, with what was posted. Nothing completes there any more.
    pub(crate) fn forget(&mut self) {
        self.is_gone = true;
        self.posted.clear();
    }

    /// No queue pair has a receive in use: the others are all still there.
    pub(crate) fn check(&mut self) {
        let left = if self.is_gone { 0 } else { self.queue.ring.in_use() };
        assert_eq!(left as usize, self.posted.len(), "receives got lost");
    }
}

impl Tenant {
    /// Makes the queue from which all further QPs take their receives.
    pub(crate) fn create_srq(&mut self, world: &mut World) {
        self.srq = Some(self.new_srq(world, RECORD, None));
    }

    /// Opens a domain, and makes the queue that messages to its targets name.
    pub(crate) fn open_domain(&mut self, world: &mut World) {
        let how = XrcOpen { file: None, create: true, exclusive: false };
        let opened = world.command(self.client, ClientCommand::OpenXrcd(how));
        let Ok(Outcome::Handle(xrcd)) = opened else { panic!("the engine opens a domain") };
        let xrc = NewXrcSrq { xrcd, cq: self.cq };
        self.xrc = Some((xrcd, self.new_srq(world, XRC_RECORD, Some(xrc))));
    }

    fn new_srq(&self, world: &mut World, record: usize, xrc: Option<NewXrcSrq>) -> SharedReceives {
        let stride = recv_stride(CAPS.max_recv_sge);
        let (queue, engine_queue) = queue(record, CAPS.max_recv_wr, stride);
        let create = ClientCommand::CreateSrq(NewSrq {
            pd: self.pds[0],
            queue: engine_queue,
            max_wr: CAPS.max_recv_wr,
            max_sge: CAPS.max_recv_sge,
            xrc,
        });
        let Ok(Outcome::NewSrq { srq: handle, srqn }) = world.command(self.client, create) else {
            panic!("the engine makes the SRQ");
        };
        SharedReceives { handle, srqn, queue, posted: BTreeMap::new(), is_gone: false }
    }

    /// The number of the queue of its domain; 0 without one.
    pub(crate) fn srqn(&self) -> u32 {
        self.xrc.as_ref().map_or(0, |(_, srq)| srq.srqn)
    }

    /// The queue from which a QP takes its receives.
    pub(crate) fn receives(&self, nth: usize) -> &AppQueue {
        match (&self.xrc, &self.srq) {
            (Some((_, srq)), _) if self.qps[nth].qp_type == QpType::XrcRecv => &srq.queue,
            (_, Some(srq)) => &srq.queue,
            _ => &self.qps[nth].rq,
        }
    }
}
