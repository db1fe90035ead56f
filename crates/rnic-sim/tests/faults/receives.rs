//! Receive buffers of a flow, and the queue that they are posted to.

use crate::area::Area;
use rnic_abi::verbs::AccessFlags;
use rnic_core::time::Instant;
use rnic_sim::pair::End;
use rnic_sim::rng::Rng;
use rnic_sim::srq::SrqId;
use rnic_sim::verbs::SendWr;
use rnic_sim::world::World;
use std::collections::VecDeque;

/// The receive queue of the responder's queue pair, or a shared one, maybe of its XRC domain.
#[derive(Debug)]
pub(crate) struct Receives {
    /// With its number, which is 0 but for XRC.
    shared: Option<(SrqId, u32)>,
    pub(crate) buffers: Area,
    len: u64,
    /// The slots of those posted; what is posted without one is not looked at.
    pub(crate) posted: VecDeque<Option<usize>>,
    /// Those posted again later.
    idle: VecDeque<(Instant, usize)>,
}

impl Receives {
    /// So many buffers of `len` bytes in a protection domain.
    pub(crate) fn new(
        world: &mut World,
        to: End,
        pd: u32,
        (count, len): (usize, u64),
        access: AccessFlags,
    ) -> Self {
        Self {
            shared: None,
            buffers: Area::new(world, to.host, pd, (count, len), access),
            len,
            posted: VecDeque::new(),
            idle: (0..count).map(|slot| (Instant::ZERO, slot)).collect(),
        }
    }

    /// The same for the shared queue that the queue pair was made with, if it was.
    pub(crate) fn of_queue(self, srq: Option<SrqId>) -> Self {
        Self { shared: srq.map(|srq| (srq, 0)), ..self }
    }

    /// The same for a shared queue of an XRC domain, which completes where `to` receives.
    pub(crate) fn of_domain(self, world: &mut World, to: End, pd: u32, xrcd: u32) -> Self {
        let room = u32::try_from(self.idle.len()).unwrap().next_power_of_two();
        let host = world.host(to.host);
        let srq = host.create_xrc_srq(pd, xrcd, to.recv_cq, room);
        Self { shared: Some((srq, host.srqn(srq))), ..self }
    }

    /// When the next buffer is to be posted.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.idle.front().map(|(at, _)| *at)
    }

    /// Posts what is to be posted by now.
    pub(crate) fn post(&mut self, world: &mut World, to: End, rng: &mut Rng) {
        while let Some((at, slot)) = self.idle.front().copied()
            && at <= world.now()
        {
            self.idle.pop_front();
            self.buffers.refill(world, slot, rng);
            let cuts = 1 + usize::try_from(rng.below(4)).unwrap();
            let sges = self.buffers.sges(slot, self.len, cuts, rng);
            let (host, wr_id) = (world.host(to.host), slot as u64);
            match self.shared {
                Some((srq, _)) => host.post_srq_recv(srq, wr_id, &sges),
                None => host.post_recv(to.qp, wr_id, &sges),
            }
            .expect("room for every buffer");
            self.posted.push_back(Some(slot));
        }
    }

    /// Posts a buffer again, later.
    pub(crate) fn post_later(&mut self, at: Instant, slot: usize) {
        self.idle.push_back((at, slot));
    }

    /// A request for this queue, which those of XRC name.
    pub(crate) fn address(&self, wr: SendWr) -> SendWr {
        match self.shared {
            Some((_, number)) => wr.named(number),
            None => wr,
        }
    }
}
