//! A world full of random traffic: several connections, both directions, all verbs.

use crate::area::Area;
use crate::flow::{Flow, SharedWord};
use crate::message::INLINE;
use rnic_abi::verbs::{AccessFlags, QpState};
use rnic_core::counters::Counters;
use rnic_core::profile::Profile;
use rnic_sim::link::{FaultCounts, Faults};
use rnic_sim::pair::End;
use rnic_sim::rng::Rng;
use rnic_sim::verbs::{Connection, QpSetup};
use rnic_sim::world::{World, WorldConfig};

/// How a world ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Everything arrives.
    Clean,
    /// In the middle one end of the first connection goes to ERR.
    OneSideFails,
    /// It goes to RESET.
    OneSideResets,
    /// It is destroyed.
    Destroyed,
    /// The memory region that the first flow writes to is deregistered.
    KeyVanishes,
    /// The application unmaps that memory.
    PageVanishes,
}

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    salt: u64,
    pub(crate) faults: Faults,
    pub(crate) receive_delay: u64,
    pub(crate) ending: Ending,
    /// Chance per step that a send queue is paused (SQD) or resumed.
    pub(crate) pauses: u32,
    /// Whose habits the two hosts have.
    pub(crate) profiles: [Profile; 2],
    connections: usize,
    path_mtu: u8,
    messages: u64,
    shared_cq: bool,
    lazy: u32,
}

/// Messages of one world, all flows together.
const MESSAGES: u64 = 240;
/// Picoseconds per byte of a link on which all that may be in flight passes before a timeout.
const FAST: u64 = 800;
/// Time after which a world that is not done is stuck.
const TIME_LIMIT: u64 = 600_000_000_000;

impl Plan {
    pub(crate) fn random(seed: u64, salt: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(1000) + salt);
        let connections = rng.pick(&[1, 1, 2, 4]);
        Self {
            seed,
            salt,
            faults: Faults { delay: 500 + rng.below(20_000), ..Faults::default() },
            receive_delay: 0,
            ending: Ending::Clean,
            pauses: 0,
            profiles: [Profile::Spec; 2],
            connections,
            path_mtu: rng.pick(&[1, 1, 2, 3, 4, 5]),
            messages: MESSAGES / (2 * connections as u64),
            shared_cq: rng.chance(500_000),
            lazy: rng.pick(&[0, 0, 500_000, 950_000]),
        }
    }
}

struct Traffic {
    world: World,
    rng: Rng,
    plan: Plan,
    flows: Vec<Flow>,
    shared: [SharedWord; 2],
    has_disrupted: bool,
}

/// Runs a world to its end and returns what happened in it.
pub(crate) fn run(plan: &Plan) -> (FaultCounts, Counters) {
    let mut traffic = Traffic::new(plan);
    traffic.run();
    let mut counters = Counters::default();
    for host in traffic.world.hosts() {
        counters.add(host.engine.counters());
    }
    (traffic.world.fault_counts(), counters)
}

fn connection(plan: &Plan, rng: &mut Rng) -> Connection {
    let depth = rng.pick(&[1, 2, 4, 7, 16]);
    let psn = |rng: &mut Rng| match rng.below(2) {
        // About to wrap around.
        0 => 0x00ff_ffff - rng.below32(200),
        _ => rng.below32(1 << 24),
    };
    Connection {
        path_mtu: plan.path_mtu,
        sq_psn: psn(rng),
        rq_psn: psn(rng),
        max_rd_atomic: depth,
        max_dest_rd_atomic: depth,
        min_rnr_timer: rng.pick(&[1, 5, 12]),
        ..Connection::default()
    }
}

/// The ends of all connections. Those of one host share a PD, and maybe one CQ.
fn ends(world: &mut World, plan: &Plan) -> Vec<[End; 2]> {
    let mut first: Option<[End; 2]> = None;
    let mut both_ends = || {
        let both = [0, 1].map(|host| {
            End::new(world, host, |setup: &mut QpSetup| {
                setup.caps.max_inline_data = u32::try_from(INLINE).unwrap();
                let Some(first) = first else { return };
                setup.pd = first[host].pd;
                if plan.shared_cq {
                    (setup.send_cq, setup.recv_cq) = (first[host].send_cq, first[host].send_cq);
                }
            })
        });
        first.get_or_insert(both);
        both
    };
    (0..plan.connections).map(|_| both_ends()).collect()
}

impl Traffic {
    fn new(plan: &Plan) -> Self {
        let mut rng = Rng::new(plan.seed.wrapping_mul(1000) + plan.salt + 1);
        let config = WorldConfig {
            seed: plan.seed,
            faults: plan.faults,
            profiles: plan.profiles.to_vec(),
            ..WorldConfig::random_pair(rng.word())
        };
        let mut world = World::new(&config);
        let mut flows = Vec::new();
        for [a, b] in ends(&mut world, plan) {
            let connection = connection(plan, &mut rng);
            world.connect((0, a.qp), (1, b.qp), &connection);
            for (from, to) in [(a, b), (b, a)] {
                let amount = (plan.messages, plan.receive_delay);
                let flow = Flow::new(&mut world, (from, to), rng.fork(), connection.mtu(), amount);
                flows.push(flow);
            }
        }
        let pds = [flows[0].from.pd, flows[0].to.pd];
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
        let shared = [0, 1].map(|host| SharedWord {
            area: Area::new(&mut world, host, pds[host], (1, 8), access),
            adds: Vec::new(),
        });
        let has_disrupted = plan.ending == Ending::Clean;
        Self { world, rng, plan: plan.clone(), flows, shared, has_disrupted }
    }

    fn run(&mut self) {
        let end = self.world.now().after_nanos(TIME_LIMIT);
        loop {
            self.drive(false);
            self.disrupt();
            self.pause();
            if self.world.now() > end {
                self.world.fail("the traffic does not come to an end");
            }
            if self.world.step() {
                continue;
            }
            if self.drive(true) || self.resume_all() {
                continue;
            }
            if self.flows.iter().all(Flow::is_done) && self.has_disrupted {
                break;
            }
            self.wait_for_receivers();
        }
        self.finish();
    }

    /// The applications poll and post. True when anything was polled or posted.
    fn drive(&mut self, eager: bool) -> bool {
        let mut worked = false;
        for host in 0..2 {
            if eager || !self.rng.chance(self.plan.lazy) {
                worked |= self.poll(host);
            }
        }
        for flow in &mut self.flows {
            flow.post(&mut self.world, &self.shared[flow.to.host]);
        }
        worked || self.world.next_event().is_some()
    }

    fn poll(&mut self, host: usize) -> bool {
        let mut worked = false;
        let ends: Vec<End> = self.flows.iter().map(|f| f.from).filter(|e| e.host == host).collect();
        for end in ends {
            for cq in [end.send_cq, end.recv_cq] {
                while let Some(cqe) = self.world.host(host).poll(cq) {
                    worked = true;
                    self.dispatch(host, &cqe);
                }
            }
        }
        self.world.check();
        worked
    }

    fn dispatch(&mut self, host: usize, cqe: &rnic_abi::cqe::Cqe) {
        let is_receive = cqe.flags.contains(rnic_abi::cqe::CqeFlags::RECV);
        let mine = |flow: &&mut Flow, world: &World| {
            let end = if is_receive { flow.to } else { flow.from };
            end.host == host && world.hosts()[host].qpn(end.qp) == cqe.qpn
        };
        let Some(flow) = self.flows.iter_mut().find(|flow| mine(flow, &self.world)) else {
            self.world.fail(&format!("host {host} has no flow for {cqe:?}"))
        };
        if is_receive {
            flow.received(&mut self.world, cqe);
        } else {
            flow.sent(&mut self.world, &mut self.shared[flow.to.host], cqe);
        }
    }

    /// Nothing happens until a receive is posted.
    fn wait_for_receivers(&mut self) {
        let next = self.flows.iter().filter_map(Flow::next_receive).min();
        match next {
            Some(at) if at > self.world.now() => {
                let nanos = at.since(self.world.now()).as_nanos();
                self.world.run_for(u64::try_from(nanos).unwrap());
            }
            // A flow that only paused posts again by itself.
            _ if self.flows.iter().any(|flow| !flow.is_done() && flow.can_post()) => {}
            _ => self.world.fail("nothing will ever happen again, but not all is done"),
        }
    }

    /// One end of the first connection fails; the other connections must not notice.
    fn disrupt(&mut self) {
        if self.has_disrupted || !self.flows[0].is_halfway() {
            return;
        }
        self.has_disrupted = true;
        for flow in &mut self.flows[..2] {
            flow.expects_errors = true;
        }
        let end = self.flows[0].from;
        // What completed before is polled before.
        self.poll(end.host);
        let host = self.world.host(end.host);
        match self.plan.ending {
            Ending::Clean => {}
            Ending::OneSideFails => host.set_state(end.qp, QpState::Err),
            Ending::OneSideResets => host.set_state(end.qp, QpState::Reset),
            Ending::Destroyed => host.destroy_qp(end.qp),
            Ending::KeyVanishes => self.flows[0].deregister_target(&mut self.world),
            Ending::PageVanishes => self.flows[0].unmap_target(&mut self.world),
        }
        for flow in &mut self.flows[..2] {
            flow.has_failed = true;
        }
    }

    fn finish(&mut self) {
        if self.plan.ending != Ending::Clean {
            self.flush_rest();
        }
        self.world.run_to_silence(TIME_LIMIT);
        for host in 0..2 {
            if self.poll(host) && self.plan.ending == Ending::Clean {
                self.world.fail("a completion after the end");
            }
        }
        let intact = self.flows.iter().filter(|flow| !flow.has_failed);
        for flow in intact {
            flow.check_all(&mut self.world);
            let owed = self.world.host(flow.from.host).owed(flow.from.qp).0;
            if owed != 0 {
                self.world.fail(&format!("{owed} sends never completed"));
            }
        }
        if self.plan.ending == Ending::Clean {
            self.check_shared_words();
            self.check_calm();
        }
    }

    /// Where nothing was lost, overtaken or late, nothing is missed or comes twice. A lazy
    /// application may let the peer wait for a receive.
    fn check_calm(&self) {
        let faults = self.world.fault_counts();
        let strange = faults.harmed() + faults.duplicated + faults.reordered > 0;
        if strange || self.plan.faults.ps_per_byte > FAST {
            return;
        }
        for (id, host) in self.world.hosts().iter().enumerate() {
            let counters = host.engine.counters();
            let missed = counters.packet_seq_err
                + counters.implied_nak_seq_err
                + counters.local_ack_timeout_err
                + counters.duplicate_request
                + counters.rx_ghost_response;
            if missed > 0 {
                self.world.fail(&format!("host {id} missed something although nothing was lost"));
            }
        }
    }

    /// Both ends of the first connection fail, and everything posted there completes.
    fn flush_rest(&mut self) {
        let Flow { from, to, .. } = &self.flows[0];
        let mut ends = vec![*to, *from];
        if matches!(self.plan.ending, Ending::OneSideResets | Ending::Destroyed) {
            ends.pop();
        }
        for end in ends {
            self.world.run_to_silence(TIME_LIMIT);
            self.poll(end.host);
            if self.world.host(end.host).state(end.qp) != QpState::Err {
                self.world.host(end.host).set_state(end.qp, QpState::Err);
            }
            self.world.run_to_silence(TIME_LIMIT);
            self.poll(end.host);
            let owed = self.world.host(end.host).owed(end.qp);
            if owed != (0, 0) {
                self.world.fail(&format!("sends and receives that were never flushed: {owed:?}"));
            }
        }
    }

    /// Now and then a send queue is drained, or goes on.
    fn pause(&mut self) {
        if self.rng.chance(self.plan.pauses) {
            let flow = usize::try_from(self.rng.below(self.flows.len() as u64)).unwrap();
            self.flows[flow].toggle_pause(&mut self.world);
        }
    }

    /// All send queues go on. True when any was paused.
    fn resume_all(&mut self) -> bool {
        let mut any = false;
        for flow in self.flows.iter_mut().filter(|flow| flow.is_paused) {
            flow.toggle_pause(&mut self.world);
            any = true;
        }
        any
    }

    /// Fetch-and-adds of all flows were executed once each, one after the other.
    fn check_shared_words(&mut self) {
        for word in &mut self.shared {
            word.adds.sort_unstable();
            let mut sum = 0;
            for (old, add) in &word.adds {
                if *old != sum {
                    self.world.fail(&format!("a shared add returned {old}, not {sum}"));
                }
                sum += add;
            }
            word.area.expect(0, &sum.to_ne_bytes());
            word.area.check_all(&mut self.world, "the shared word");
        }
    }
}
