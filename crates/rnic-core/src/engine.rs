//! The engine: one thread drives it, one call at a time.
//!
//! ```text
//! loop {
//!     for command in queue { engine.execute(now, command) }
//!     let turn = engine.turn(now, &mut ports, &mut tap);
//!     if !turn.more && !turn.worked && engine.prepare_sleep() {
//!         // wait for frames, a doorbell's eventfd, or engine.next_deadline()
//!         engine.awake();
//!     }
//!     // now and then, if engine.any_parked(): see which clients' eventfds fired, client_rang()
//! }
//! ```

use crate::clients::RecordOwner;
use crate::command::ClientId;
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::egress::Egress;
use crate::event::Tap;
use crate::ingress::{Ingress, Target};
use crate::mr::Region;
use crate::owned::OwnedSlab;
use crate::ports::{Dma, Host, Ports, Wire};
use crate::qp::Qp;
use crate::qpn::{MAX_QPS, QpnCodec};
use crate::shared::{Ctx, Shared};
use crate::time::Instant;
use crate::view::{self, CqView, QpView};
use crate::wheel::TimerKey;
use rnic_abi::cpu_hints::CpuHints;
use rnic_abi::cq::CqProducer;
use roce_wire::Qpn;
use std::collections::BTreeSet;
use std::ops::Range;

/// One shard of a NIC: it owns its QPs completely.
#[derive(Debug)]
pub struct Engine {
    pub(crate) shared: Shared,
    pub(crate) qps: OwnedSlab<Qp>,
    pub(crate) codec: QpnCodec,
    pub(crate) ingress: Ingress,
    egress: Egress,
    /// Scratch of the timer stage.
    due: Vec<TimerKey>,
    /// Turns in a row that could not take everything that had arrived.
    behind: u32,
}

/// Turns for which timers wait until what has arrived is looked at: as much as a link keeps.
const PATIENT_TURNS: u32 = 64;

/// What a turn did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Anything at all.
    pub worked: bool,
    /// Applications have new completions.
    pub completed: bool,
    /// Applications have new data, in their memory or carried by a completion.
    pub placed: bool,
    /// Doorbells rang.
    pub rang: bool,
    /// Some of them those of send queues.
    pub posted: bool,
    /// There is more to do right now: do not sleep.
    pub more: bool,
}

impl Turn {
    /// An application has something new.
    #[must_use]
    pub fn delivered(self) -> bool {
        self.completed || self.placed
    }

    /// What two parts of a turn did together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            worked: self.worked || other.worked,
            completed: self.completed || other.completed,
            placed: self.placed || other.placed,
            rang: self.rang || other.rang,
            posted: self.posted || other.posted,
            more: self.more || other.more,
        }
    }
}

impl Engine {
    /// An engine without clients.
    pub fn new(config: EngineConfig, now: Instant) -> Self {
        let codec = QpnCodec::new(config.secret, config.shard);
        let max_qp = (config.limits.max_qp as usize).min(MAX_QPS);
        Self {
            shared: Shared::new(config, now),
            qps: OwnedSlab::new(max_qp),
            codec,
            ingress: Ingress::new(codec, config.shard),
            egress: Egress::new(config.shard),
            due: Vec::new(),
            behind: 0,
        }
    }

    /// Does a bounded amount of everything there is to do: [`arrivals`](Self::arrivals), then
    /// [`departures`](Self::departures). `now` must not go backwards.
    pub fn turn<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        now: Instant,
        ports: &mut Ports<'_, W, D, H>,
        tap: &mut T,
    ) -> Turn {
        let arrivals = self.arrivals(now, ports, tap);
        arrivals.and(self.departures(now, ports, tap))
    }

    /// The first half of a turn: what came from the wire changes state, and applications are told.
    /// Nothing is sent. A host that shares a CPU with the applications lets them run between the
    /// halves when something was [delivered](Turn::delivered): what they answer with then leaves
    /// together with the acknowledgement.
    pub fn arrivals<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        now: Instant,
        ports: &mut Ports<'_, W, D, H>,
        tap: &mut T,
    ) -> Turn {
        let completions_before = self.shared.counters.completions;
        self.shared.placed = false;
        let (received, more) = self.receive(now, ports, tap);
        self.behind = if more { self.behind.saturating_add(1) } else { 0 };
        self.retire(now, tap);
        self.fail_broken_cqs(now, tap);
        let told = self.notify(ports.host);
        let completed = self.shared.counters.completions != completions_before;
        let placed = self.shared.placed;
        Turn { worked: received || told, completed, placed, more, ..Turn::default() }
    }

    /// The second half of a turn: doorbells, timers, and everything that leaves.
    pub fn departures<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        now: Instant,
        ports: &mut Ports<'_, W, D, H>,
        tap: &mut T,
    ) -> Turn {
        let completions_before = self.shared.counters.completions;
        let (rang, posted, doorbells_more) = self.doorbells(now, tap);
        // After a pause, the answer that a timer waits for may lie behind more than one turn takes.
        let patient = (1..=PATIENT_TURNS).contains(&self.behind);
        // Rule: ArrivalsBeforeTimers
        let expired = !patient && self.timers(now, tap);
        let sent = self.transmit(now, ports, tap);
        self.retire(now, tap);
        self.fail_broken_cqs(now, tap);
        let told = self.notify(ports.host);
        let completed = self.shared.counters.completions != completions_before;
        let worked = rang || expired || sent.worked || told;
        let more = doorbells_more || sent.more;
        Turn { worked, completed, placed: false, rang, posted, more }
    }

    /// When [`turn`](Self::turn) must be called even if nothing arrives and no doorbell rings.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.shared.wheel.next_deadline()
    }

    /// Entries of the timer wheel: a few per QP that waits for something.
    pub fn pending_timers(&self) -> usize {
        self.shared.wheel.len()
    }

    /// Before sleeping: from now on doorbells wake the engine. False when one rang meanwhile; do
    /// not sleep then.
    #[must_use = "when this is false a doorbell is pending"]
    pub fn prepare_sleep(&mut self) -> bool {
        self.shared.clients.prepare_sleep()
    }

    /// After sleeping: doorbells are polled again.
    pub fn awake(&mut self) {
        self.shared.clients.awake();
    }

    /// Some clients ring by their eventfd only: look at those at times, also without a sleep.
    #[inline]
    pub fn any_parked(&self) -> bool {
        self.shared.clients.any_parked()
    }

    /// This client's eventfd fired: its doorbells are polled again. A client that was inactive for
    /// long is not polled until then, or until it is active otherwise.
    pub fn client_rang(&mut self, now: Instant, client: ClientId) {
        if let Some(slot) = self.shared.clients.slot_of(client) {
            self.shared.clients.note_activity(slot, now);
        }
    }

    fn receive<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        now: Instant,
        ports: &mut Ports<'_, W, D, H>,
        tap: &mut T,
    ) -> (bool, bool) {
        let ctx = Ctx { now, shared: &mut self.shared, tap };
        let mut target = Target { ctx, qps: &mut self.qps };
        self.ingress.receive(&mut target, ports)
    }

    /// Send completions that acknowledgements have made due.
    fn retire<T: Tap>(&mut self, now: Instant, tap: &mut T) {
        let mut retiring = std::mem::take(&mut self.shared.retiring);
        let mut ctx = Ctx { now, shared: &mut self.shared, tap };
        for slot in retiring.drain(..) {
            if let Some(qp) = self.qps.by_slot_mut(slot as usize) {
                qp.is_retiring = false;
                qp.retire(&mut ctx);
            }
        }
        // Retiring a QP never asks for another one, so nothing was added meanwhile.
        self.shared.retiring = retiring;
    }

    /// QPs whose doorbell rang become active.
    fn doorbells<T: Tap>(&mut self, now: Instant, tap: &mut T) -> (bool, bool, bool) {
        let Shared { clients, active, counters, config, .. } = &mut self.shared;
        let (mut rang, mut posted) = (0, false);
        let more = clients.take_doorbells(now, config.park_after_nanos, |owner| {
            rang += 1;
            posted |= matches!(owner, RecordOwner::Sq(_));
            let (RecordOwner::Sq(slot) | RecordOwner::Rq(slot)) = owner else { return };
            if let Some(qp) = self.qps.by_slot_mut(slot as usize) {
                tap.on(now, || qp.rang(owner));
                if !qp.is_active {
                    qp.is_active = true;
                    active.push_back(qp.client_slot, slot);
                }
            }
        });
        counters.doorbells += rang;
        (rang > 0, posted, more)
    }

    fn timers<T: Tap>(&mut self, now: Instant, tap: &mut T) -> bool {
        let mut due = std::mem::take(&mut self.due);
        self.shared.wheel.expire(now, &mut due);
        let mut ctx = Ctx { now, shared: &mut self.shared, tap };
        let mut fired = false;
        for key in due.drain(..) {
            let TimerKey::Qp(slot) = key;
            let Some(qp) = self.qps.by_slot_mut(slot as usize) else { continue };
            if qp.wheel_at.is_some_and(|at| at > now) {
                // Left by a QP that is gone: scheduling it again would keep it for ever.
                continue;
            }
            qp.wheel_at = qp.wheel_later.take().filter(|later| *later > now);
            match qp.deadline {
                Some(deadline) if deadline <= now => {
                    fired = true;
                    qp.handle_timer(&mut ctx);
                }
                // It moved later meanwhile.
                Some(deadline) => qp.set_deadline(&mut ctx, deadline),
                None => {}
            }
        }
        self.due = due;
        fired
    }

    fn transmit<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        now: Instant,
        ports: &mut Ports<'_, W, D, H>,
        tap: &mut T,
    ) -> crate::egress::Transmitted {
        let mut ctx = Ctx { now, shared: &mut self.shared, tap };
        self.egress.transmit(&mut ctx, &mut self.qps, ports)
    }

    /// Breaks the completion queue of one side of a queue pair as an overflow does. Its queue pairs
    /// follow at the end of the next half turn.
    pub fn break_cq<T: Tap>(&mut self, now: Instant, qpn: Qpn, receive: bool, tap: &mut T) {
        let slot = self.codec.decode(qpn).slot;
        let Some(qp) = self.qps.by_slot(slot as usize).filter(|qp| qp.qpn == qpn) else { return };
        let cq = if receive { qp.recv_cq } else { qp.send_cq };
        Ctx { now, shared: &mut self.shared, tap }.break_cq(cq);
    }

    /// An overflowed CQ takes its QPs with it: QP_FATAL for each.
    fn fail_broken_cqs<T: Tap>(&mut self, now: Instant, tap: &mut T) {
        while let Some(cq) = self.shared.broken_cqs.pop() {
            let users = self.users_of_cq(cq);
            let mut ctx = Ctx { now, shared: &mut self.shared, tap };
            for handle in users {
                if let Some(qp) = self.qps.get_mut(handle) {
                    qp.fail_fatally(&mut ctx);
                }
            }
        }
    }

    /// Handles of the queue pairs that complete at a CQ. A target of XRC does so while the shared
    /// receive queue that its peer named last does.
    fn users_of_cq(&self, cq: u32) -> Vec<u32> {
        let Some(queue) = self.shared.cqs.get(cq) else { return Vec::new() };
        let xrc = queue.srqs().filter_map(|srq| self.shared.srqs.get(srq)?.xrc);
        let domains: BTreeSet<u32> = xrc.map(|xrc| xrc.domain).collect();
        let targets = domains.into_iter().flat_map(|domain| self.shared.xrc.targets_of(domain));
        let completes_here = |handle: &u32| {
            // Rule: OverflowEndsQps
            self.qps.get(*handle).is_some_and(|qp| qp.send_cq == cq || qp.recv_cq == cq)
        };
        queue.qps().chain(targets).filter(completes_here).collect()
    }

    /// Threads that sleep and completion events for armed CQs, then async events.
    fn notify<H: Host>(&mut self, host: &mut H) -> bool {
        let worked = !self.shared.dirty_cqs.is_empty() || !self.shared.async_events.is_empty();
        if !self.shared.dirty_cqs.is_empty() {
            CqProducer::fence_before_arm_check();
            while let Some(handle) = self.shared.dirty_cqs.pop() {
                let Some(cq) = self.shared.cqs.get_mut(handle) else { continue };
                if let Some((word, at_most)) = cq.wake() {
                    host.wake(word, at_most);
                }
                if let Some(channel) = cq.fire() {
                    self.shared.counters.completion_events += 1;
                    host.completion_event(cq.client, channel, handle);
                }
            }
        }
        for (client, event) in self.shared.async_events.drain(..) {
            host.async_event(client, event);
        }
        worked
    }

    /// Counters of the port (this shard's part).
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What it was made with, and the port's present state.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// All queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = QpView> {
        self.qps.iter().map(|(_, qp)| view::of_qp(qp, &self.shared))
    }

    /// One queue pair.
    pub fn qp(&self, handle: u32) -> Option<QpView> {
        self.qps.get(handle).map(|qp| view::of_qp(qp, &self.shared))
    }

    /// The queue pair with this number.
    pub fn qp_by_number(&self, qpn: Qpn) -> Option<QpView> {
        let slot = self.codec.decode(qpn).slot;
        let found = self.qps.by_slot(slot as usize).filter(|qp| qp.qpn == qpn);
        found.map(|qp| view::of_qp(qp, &self.shared))
    }

    /// All completion queues.
    pub fn cqs(&self) -> impl Iterator<Item = CqView> {
        self.shared.cqs.iter().map(|(handle, cq)| view::of_cq(handle, cq))
    }

    /// All memory regions with their handles.
    pub fn mrs(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.shared.mrs.iter()
    }

    /// Queue pairs, completion queues and memory regions.
    pub fn totals(&self) -> [usize; 3] {
        [self.qps.len(), self.shared.cqs.len(), self.shared.mrs.len()]
    }

    /// Slots of their tables: what `qps_within` and the others do takes time for each.
    pub fn slots(&self) -> [usize; 3] {
        [self.qps.slots(), self.shared.cqs.slots(), self.shared.mrs.slots()]
    }

    /// The queue pairs in some slots.
    pub fn qps_within(&self, slots: Range<usize>) -> impl Iterator<Item = QpView> {
        self.qps.within(slots).map(|(_, qp)| view::of_qp(qp, &self.shared))
    }

    /// The completion queues in some slots.
    pub fn cqs_within(&self, slots: Range<usize>) -> impl Iterator<Item = CqView> {
        self.shared.cqs.within(slots).map(|(handle, cq)| view::of_cq(handle, cq))
    }

    /// The memory regions in some slots, with their handles.
    pub fn mrs_within(&self, slots: Range<usize>) -> impl Iterator<Item = (u32, &Region)> {
        self.shared.mrs.within(slots)
    }

    /// A CPU on which programs of active contexts post and poll: `stay` when it is one of them.
    pub fn program_cpu(&self, stay: Option<u32>) -> Option<u32> {
        self.shared.clients.program_cpu(stay)
    }

    /// How many threads of active contexts polled for nothing since the last call, as their
    /// programs tell.
    pub fn take_pollers(&self) -> u32 {
        self.shared.clients.take_pollers()
    }

    /// Asks all programs, those of later contexts too, to share CPUs like this.
    pub fn ask_programs(&mut self, hints: CpuHints) {
        self.shared.clients.ask(hints);
    }
}
