//! A world full of random traffic: several connections, both directions, all verbs.

use crate::area::Area;
use crate::disturb::Disturbances;
use crate::flow::{Amount, DEPTH, Flow, MAX_LEN, SharedWord};
use crate::lent::{LOCAL, Lent};
use crate::message::INLINE;
use crate::plan::{Ending, Plan};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpType};
use rnic_core::counters::Counters;
use rnic_core::time::Instant;
use rnic_sim::link::FaultCounts;
use rnic_sim::pair::End;
use rnic_sim::rng::Rng;
use rnic_sim::srq::SrqId;
use rnic_sim::verbs::{Connection, CqId, QpSetup};
use rnic_sim::world::{HostId, World};
use rnic_sim::xrc::PRIVATE;
use std::thread;

/// Time after which a world that is not done is stuck.
pub(crate) const TIME_LIMIT: u64 = 600_000_000_000;

pub(crate) struct Traffic {
    pub(crate) world: World,
    pub(crate) rng: Rng,
    pub(crate) plan: Plan,
    pub(crate) flows: Vec<Flow>,
    shared: [SharedWord; 2],
    pub(crate) has_disrupted: bool,
    /// The CQ of a host that is not polled.
    pub(crate) unpolled: Option<(HostId, CqId)>,
    /// READs and atomics that may be outstanding, by connection.
    pub(crate) depths: Vec<u8>,
    /// The connection that is to grow old.
    pub(crate) aging: Option<usize>,
    pub(crate) disturbances: Disturbances,
    /// No wire stalls before.
    pub(crate) next_stall: Instant,
}

/// Runs a world to its end and returns what happened in it.
pub(crate) fn run(plan: &Plan) -> (FaultCounts, Counters, Disturbances) {
    let mut traffic = Traffic::new(plan);
    traffic.run();
    traffic.finish();
    let ended = |flow: &Flow| flow.lent.as_ref().map_or(0, |lent| lent.ended);
    traffic.disturbances.windows = traffic.flows.iter().map(ended).sum();
    if plan.shares {
        traffic.disturbances.shared = traffic.flows.iter().map(|flow| flow.taken).sum();
    }
    if plan.xrc {
        traffic.disturbances.windows_of_xrc = traffic.disturbances.windows;
    }
    traffic.disturbances.named = traffic.flows.iter().map(|flow| flow.named).sum();
    let mut counters = Counters::default();
    for host in traffic.world.hosts() {
        counters.add(host.engine.counters());
    }
    (traffic.world.fault_counts(), counters, traffic.disturbances)
}

impl Drop for Traffic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{:?}", self.plan);
        }
    }
}

/// Receives and CQEs of a flow whose CQ is to overflow.
const FEW: u32 = 8;

/// Slots of a shared receive queue, and SGEs of each.
const SHARED: (u32, u32) = (32, 4);

/// A shared receive queue for each end, of a protection domain of its own, if the plan has them.
fn shared_queues(world: &mut World, plan: &Plan) -> [Option<(SrqId, u32)>; 2] {
    [0, 1].map(|host| {
        let host = world.host(host);
        let mut queue = || {
            let (pd, (max_wr, max_sge)) = (host.alloc_pd(), SHARED);
            (host.create_srq(pd, max_wr, max_sge).expect("a queue"), pd)
        };
        plan.shares.then(&mut queue)
    })
}

/// The two ends of a connection, and the shared receive queues that they use.
type Ends = ([End; 2], [Option<(SrqId, u32)>; 2]);

/// The ends of all connections. Those of one host share a PD, and maybe one CQ.
fn ends(world: &mut World, plan: &Plan) -> Vec<Ends> {
    let few = (plan.ending == Ending::CqOverflows).then(|| world.host(1).create_cq(FEW));
    let mut first: Option<[End; 2]> = None;
    let mut both_ends = || {
        let queues = shared_queues(world, plan);
        let both = [0, 1].map(|host| {
            End::with_memory(world, host, MAX_LEN, |setup: &mut QpSetup| {
                setup.caps.max_inline_data = u32::try_from(INLINE).unwrap();
                setup.srq = queues[host].map(|(srq, _)| srq);
                if plan.xrc {
                    setup.qp_type = QpType::XrcSend;
                }
                let Some(first) = first else {
                    setup.recv_cq = few.filter(|_| host == 1).unwrap_or(setup.recv_cq);
                    return;
                };
                setup.pd = first[host].pd;
                if plan.shared_cq {
                    (setup.send_cq, setup.recv_cq) = (first[host].send_cq, first[host].send_cq);
                }
            })
        });
        first.get_or_insert(both);
        (both, queues)
    };
    (0..plan.connections).map(|_| both_ends()).collect()
}

/// Connects two ends in both directions. Of XRC, each direction leads to a target of its own.
/// Requester and responder of each, and the end that binds windows at the responder.
fn connect(
    world: &mut World,
    [a, b]: [End; 2],
    connection: &Connection,
    xrcds: Option<[u32; 2]>,
) -> [(End, End, End); 2] {
    let Some(xrcds) = xrcds else {
        world.connect((0, a.qp), (1, b.qp), connection);
        return [(a, b, b), (b, a, a)];
    };
    [(a, b), (b, a)].map(|(from, to)| {
        let qp = world.host(to.host).create_target(xrcds[to.host]);
        world.connect((from.host, from.qp), (to.host, qp), connection);
        (from, End { qp, ..to }, to)
    })
}

impl Traffic {
    fn new(plan: &Plan) -> Self {
        let mut rng = Rng::new(plan.seed.wrapping_mul(1000) + plan.salt + 1);
        let mut world = World::new(&plan.world(&mut rng));
        let (mut flows, mut depths) = (Vec::new(), Vec::new());
        let ends = ends(&mut world, plan);
        let xrcds = plan.xrc.then(|| [0, 1].map(|host| world.host(host).open_xrcd(PRIVATE)));
        for ([a, b], queues) in ends {
            let connection = plan.connection(&mut rng);
            let directions = connect(&mut world, [a, b], &connection, xrcds);
            for ((from, to, binds), taste) in directions.into_iter().zip(plan.tastes) {
                let receives = match plan.receive_delay {
                    _ if plan.ending == Ending::CqOverflows => FEW as usize,
                    0 => DEPTH + 8,
                    _ => 3,
                };
                let Plan { messages, receive_delay, .. } = *plan;
                let lends = plan.lends.then_some(binds);
                let xrcd = xrcds.map(|xrcds| xrcds[to.host]);
                let shared = queues[to.host];
                let amount =
                    Amount { messages, taste, receives, receive_delay, lends, xrcd, shared };
                let flow = Flow::new(&mut world, (from, to), rng.fork(), connection.mtu(), amount);
                flows.push(flow);
            }
            depths.push(connection.max_rd_atomic);
        }
        let pds = [flows[0].from.pd, flows[0].to.pd];
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
        let shared = [0, 1].map(|host| SharedWord {
            area: Area::new(&mut world, host, pds[host], (1, 8), access),
            adds: Vec::new(),
        });
        Self {
            world,
            rng,
            plan: plan.clone(),
            flows,
            shared,
            has_disrupted: plan.ending == Ending::Clean,
            unpolled: None,
            depths,
            aging: None,
            disturbances: Disturbances::default(),
            next_stall: Instant::ZERO,
        }
    }

    fn run(&mut self) {
        let end = self.world.now().after_nanos(TIME_LIMIT);
        loop {
            self.drive(false);
            self.disrupt();
            self.disturb();
            if self.world.now() > end {
                self.world.fail("the traffic does not come to an end");
            }
            if self.has_disrupted && self.flows.iter().all(Flow::is_done) {
                break;
            }
            if self.world.step() || self.drive(true) || self.calm_down() {
                continue;
            }
            if self.has_disrupted && self.flows.iter().all(|flow| self.is_over(flow)) {
                break;
            }
            self.wait_for_receivers();
        }
    }

    /// Nothing more will come of a flow, although nothing happens any more. Where the timer is off,
    /// nothing tells a requester that its peer is gone.
    fn is_over(&self, flow: &Flow) -> bool {
        let ends = flow.trouble.ending.is_some();
        let unpolled = ends && self.unpolled.is_some() && flow.has_sent_all();
        flow.is_done() || unpolled || ends && !self.plan.timer
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
        let now = self.world.now();
        if let Some(message) = self.flows.iter().find_map(|flow| flow.overdue(now)) {
            self.world.fail(&format!("nothing comes of {message:?}"));
        }
        worked || self.world.next_event().is_some()
    }

    /// Polls every CQ of a host, and hears its async events. True when there were completions.
    pub(crate) fn poll(&mut self, host: HostId) -> bool {
        let mut worked = false;
        let ends: Vec<End> = self.flows.iter().map(|f| f.from).filter(|e| e.host == host).collect();
        for end in ends {
            for cq in [end.send_cq, end.recv_cq] {
                while self.unpolled != Some((host, cq))
                    && let Some(cqe) = self.world.host(host).poll(cq)
                {
                    worked = true;
                    self.dispatch(host, &cqe);
                }
            }
        }
        self.hear(host);
        self.world.check();
        worked
    }

    fn hear(&mut self, host: HostId) {
        for event in self.world.host(host).take_async_events() {
            let drained = event.event == AsyncEventType::SqDrained;
            for flow in self.flows.iter_mut().filter(|flow| drained && flow.from.host == host) {
                let is_mine = self.world.hosts()[host].qp_handle(flow.from.qp) == event.element;
                flow.trouble.is_drained |= is_mine && flow.trouble.is_paused;
            }
        }
    }

    fn dispatch(&mut self, host: usize, cqe: &rnic_abi::cqe::Cqe) {
        let is_receive = cqe.flags.contains(rnic_abi::cqe::CqeFlags::RECV);
        if !is_receive && cqe.wr_id & LOCAL != 0 {
            self.dispatch_local(host, cqe);
            return;
        }
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

    /// A bind or invalidation is complete, at the end that lends.
    fn dispatch_local(&mut self, host: usize, cqe: &rnic_abi::cqe::Cqe) {
        let hosts = self.world.hosts();
        let binds =
            |lent: &&mut Lent| lent.by.host == host && hosts[host].qpn(lent.by.qp) == cqe.qpn;
        match self.flows.iter_mut().filter_map(|flow| flow.lent.as_mut()).find(binds) {
            Some(lent) => lent.done(&mut self.world, cqe),
            None => self.world.fail(&format!("host {host} lends nothing: {cqe:?}")),
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

    /// Fetch-and-adds of all flows were executed once each, one after the other.
    pub(crate) fn check_shared_words(&mut self) {
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
            word.area.check_all(&mut self.world, || "the shared word".into());
        }
    }
}
