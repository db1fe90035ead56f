//! What happens to the traffic now and then, without harm.

use crate::flow::Flow;
use crate::plan::Ending;
use crate::traffic::Traffic;
use rnic_core::time::Instant;
use rnic_sim::verbs::QpId;
use rnic_sim::world::HostId;

/// Nanoseconds that a wire takes nothing, at most: less than the retries last.
const LONGEST_STALL: u64 = 6_000_000;
/// Nanoseconds in which something gets through, so that all retries are available again.
const BETWEEN_STALLS: u64 = 20_000_000;
/// PSNs after which a number, taken for a serial number, means the past and the future.
const HALF: u32 = 1 << 23;
/// Most PSNs to either side of that.
const ABOUT: u32 = 300;

/// How often that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Disturbances {
    pub(crate) pauses: u64,
    pub(crate) depths: u64,
    pub(crate) stalls: u64,
    pub(crate) leaps: u64,
    pub(crate) resizes: u64,
    /// Windows that were taken away.
    pub(crate) windows: u64,
    /// Those of them that requests of XRC used.
    pub(crate) windows_of_xrc: u64,
    /// Messages to the second of a flow's shared receive queues.
    pub(crate) named: u64,
    /// Receives that a queue pair of RC took from a shared queue.
    pub(crate) shared: u64,
}

impl Disturbances {
    pub(crate) fn add(&mut self, other: &Self) {
        self.pauses += other.pauses;
        self.depths += other.depths;
        self.stalls += other.stalls;
        self.leaps += other.leaps;
        self.resizes += other.resizes;
        self.windows += other.windows;
        self.windows_of_xrc += other.windows_of_xrc;
        self.named += other.named;
        self.shared += other.shared;
    }
}

impl Traffic {
    pub(crate) fn disturb(&mut self) {
        self.pause();
        self.stall();
        self.grow_old();
        self.resize();
    }

    /// Before the world is found to be stuck, everything goes on. True when anything was held back.
    pub(crate) fn calm_down(&mut self) -> bool {
        let aged = self.try_to_age() || self.aging.take().is_some();
        for flow in &mut self.flows {
            flow.trouble.holds = false;
        }
        self.resume_all() || aged
    }

    /// Now and then a send queue is drained, or goes on, perhaps with another number of READs.
    fn pause(&mut self) {
        if self.rng.chance(self.plan.pauses) {
            let flow = self.any(self.flows.len());
            let depth = self.new_depth(flow);
            if !self.flows[flow].may_toggle_pause() {
                return;
            }
            self.disturbances.pauses += 1;
            self.disturbances.depths += u64::from(depth.is_some());
            self.flows[flow].toggle_pause(&mut self.world, depth);
        }
    }

    fn any(&mut self, count: usize) -> usize {
        usize::try_from(self.rng.below(count as u64)).unwrap()
    }

    fn new_depth(&mut self, flow: usize) -> Option<u8> {
        let most = self.depths[flow / 2];
        let changes = self.rng.chance(self.plan.depth_changes);
        changes.then(|| 1 + u8::try_from(self.rng.below(most.into())).unwrap())
    }

    /// All send queues go on. True when any was paused.
    fn resume_all(&mut self) -> bool {
        let mut any = false;
        for flow in self.flows.iter_mut().filter(|flow| flow.trouble.is_paused) {
            let trouble = &flow.trouble;
            if trouble.ending.is_none() && !trouble.has_failed && !trouble.is_drained {
                self.world.fail("a send queue in SQD finished and was not told to be drained");
            }
            flow.toggle_pause(&mut self.world, None);
            any = true;
        }
        any
    }

    /// Now and then a wire takes nothing for a while; then no wire does that for some time.
    fn stall(&mut self) {
        if self.world.now() < self.next_stall || !self.rng.chance(self.plan.stalls) {
            return;
        }
        let host = self.any(2);
        let nanos = self.rng.below(LONGEST_STALL) >> self.rng.below(12);
        let until = self.world.now().after_nanos(nanos);
        self.disturbances.stalls += 1;
        self.next_stall = until.after_nanos(BETWEEN_STALLS);
        let port = &mut self.world.host(host).port;
        // A dead wire stays dead.
        if !port.refuses(until) {
            port.refuse_until(until);
        }
        for flow in &mut self.flows {
            flow.trouble.excused_until = flow.trouble.excused_until.max(until);
        }
    }

    /// Now and then a completion queue changes its size.
    fn resize(&mut self) {
        // One that is to overflow must stay small.
        if self.plan.ending == Ending::CqOverflows || !self.rng.chance(self.plan.resizes) {
            return;
        }
        let flow = self.any(self.flows.len());
        let Flow { from, to, .. } = &self.flows[flow];
        let (host, cq) = self.rng.pick(&[(from.host, from.send_cq), (to.host, to.recv_cq)]);
        let capacity = self.rng.pick(&[256, 512, 1024]);
        self.disturbances.resizes += 1;
        if self.world.host(host).resize_cq(cq, capacity).is_err() {
            self.world.fail("a completion queue has more completions than it had room for");
        }
    }

    /// Now and then a connection comes to rest, and its PSNs leap.
    fn grow_old(&mut self) {
        if self.aging.is_none() && self.rng.chance(self.plan.leaps) {
            let connection = self.any(self.plan.connections);
            self.aging = Some(connection);
            for flow in self.connection(connection) {
                flow.trouble.holds = true;
            }
        }
        if self.aging.is_some() && self.try_to_age() {
            self.aging = None;
        }
    }

    /// Both directions of a connection.
    fn connection(&mut self, connection: usize) -> &mut [Flow] {
        &mut self.flows[2 * connection..2 * connection + 2]
    }

    fn try_to_age(&mut self) -> bool {
        let Some(connection) = self.aging else { return false };
        let [flow, back] = self.connection(connection) else { return false };
        let ends = |flow: &Flow| [(flow.from.host, flow.from.qp), (flow.to.host, flow.to.qp)];
        let directions = [ends(flow), ends(back)];
        let has_failed = [&*flow, &*back]
            .iter()
            .any(|flow| flow.trouble.has_failed || flow.trouble.ending.is_some());
        let psns = [self.leap(), self.leap()];
        let leapt = !has_failed && self.age(directions, psns);
        self.disturbances.leaps += u64::from(leapt);
        let done = has_failed || leapt;
        if done {
            for flow in self.connection(connection) {
                flow.trouble.holds = false;
            }
        }
        done
    }

    /// The PSNs of a connection leap, if it is at rest. Of XRC each direction has its own.
    fn age(&mut self, directions: [[(HostId, QpId); 2]; 2], psns: [u32; 2]) -> bool {
        let [[a, b], _] = directions;
        if !self.plan.xrc {
            return self.world.leap(a, b, (psns[0], psns[1]));
        }
        let mut any = false;
        for ([from, to], psn) in directions.into_iter().zip(psns) {
            any |= self.world.leap(from, to, (psn, 0));
        }
        any
    }

    /// How far PSNs leap: anywhere, but for the most part to where the old ones look new, or come
    /// again.
    fn leap(&mut self) -> u32 {
        let half = HALF - ABOUT + self.rng.below32(2 * ABOUT);
        let more = HALF + self.rng.below32(HALF);
        let around = 2 * HALF - ABOUT + self.rng.below32(2 * ABOUT);
        let any = self.rng.below32(2 * HALF);
        self.rng.pick(&[half, half, more, around, any])
    }

    /// All wires work.
    pub(crate) fn heal(&mut self) {
        for host in 0..2 {
            self.world.host(host).port.refuse_until(Instant::ZERO);
        }
    }
}
