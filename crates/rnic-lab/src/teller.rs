//! Plays in a world and writes down what happens there.
//!
//! Everything that a story says happened comes from here: from a call that was made, an event of an
//! engine, a packet on a link, or bytes that were read. A scenario adds explanations to these, and
//! an explanation of something that did not happen does not appear.

use crate::levels::Levels;
use crate::narrate;
use crate::rules::rules;
use rnic_abi::verbs::WrOpcode;
use rnic_core::event::{DropReason, Event, PacketInfo};
use rnic_core::time::Instant;
use rnic_page::packet::{block, label};
use rnic_page::{Flight, Kind, Party, Step};
use rnic_sim::link::Blow;
use rnic_sim::verbs::{CqId, QpId};
use rnic_sim::world::{Carried, HostId, World, WorldConfig};
use roce_wire::{Opcode, Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};

/// What the story calls the hosts.
pub(crate) const NAMES: [&str; 4] = ["A", "B", "C", "D"];
/// How long a program waits for a completion before it gives up, nanoseconds.
pub(crate) const PATIENCE: u64 = 100_000_000;

/// Nanoseconds after which nothing is on its way any more, unless it is late.
const QUIET: u64 = 40_000;

/// An explanation that waits for what it explains.
pub(crate) struct Remark {
    host: HostId,
    what: Box<dyn Fn(&Event) -> bool>,
    text: String,
}

/// A packet that a host is going to see.
struct Arriving {
    at: Instant,
    number: u64,
    is_damaged: bool,
    info: Option<(u8, u32, u32)>,
    /// PSNs that it uses: a READ has those of its answer.
    psns: u32,
}

/// See the [module](self).
pub(crate) struct Teller {
    pub(crate) world: World,
    pub(crate) steps: Vec<Step>,
    pub(crate) levels: Levels,
    start: Instant,
    /// Packets that left and whose event was not seen, by host.
    left: Vec<VecDeque<Carried>>,
    /// Packets on their way, by receiver.
    arriving: Vec<VecDeque<Arriving>>,
    /// The number of the packet that a host looks at.
    pub(crate) current: Vec<u64>,
    current_psns: Vec<u32>,
    /// And its headers, if they could be read.
    pub(crate) packet: Vec<Option<PacketInfo>>,
    /// What was posted, by host, queue pair and index.
    pub(crate) posted: BTreeMap<(HostId, u32, u32), WrOpcode>,
    /// Up to where everything is acknowledged, by host and queue pair.
    acked: BTreeMap<(HostId, u32), Psn>,
    /// Path MTU of the connections, bytes.
    pub(crate) mtu: u32,
    remarks: Vec<Remark>,
    pub(crate) said: Vec<String>,
    pub(crate) qps: Vec<(HostId, QpId)>,
    /// Next PSN that each queue pair expects, by host and number.
    pub(crate) expected: BTreeMap<(HostId, u32), u32>,
    pub(crate) polled: BTreeMap<(HostId, CqId), u64>,
}

impl Teller {
    pub(crate) fn new(config: &WorldConfig, blows: &[(u64, Blow)]) -> Self {
        let mut world = World::new(config);
        world.be_quiet();
        world.take_carried();
        for (number, blow) in blows {
            world.strike_number(*number, *blow);
        }
        let hosts = config.ports.len();
        for host in 0..hosts {
            world.host(host).trace.keep_all();
        }
        Self {
            start: world.now(),
            world,
            steps: Vec::new(),
            levels: Levels::default(),
            left: (0..hosts).map(|_| VecDeque::new()).collect(),
            arriving: (0..hosts).map(|_| VecDeque::new()).collect(),
            current: vec![0; hosts],
            current_psns: vec![1; hosts],
            packet: vec![None; hosts],
            posted: BTreeMap::new(),
            acked: BTreeMap::new(),
            mtu: 256,
            remarks: Vec::new(),
            said: Vec::new(),
            qps: Vec::new(),
            expected: BTreeMap::new(),
            polled: BTreeMap::new(),
        }
    }

    pub(crate) fn hosts(&self) -> Vec<Party> {
        let party = |(host, name): (&rnic_sim::host::Host, &&str)| Party {
            name: (*name).to_owned(),
            address: host.ip.to_string(),
        };
        self.world.hosts().iter().zip(&NAMES).map(party).collect()
    }

    /// Explains the next call.
    pub(crate) fn say(&mut self, text: &str) -> &mut Self {
        self.said.push(text.to_owned());
        self
    }

    /// Explains the next event of a host that is like this, if there is one.
    pub(crate) fn when(
        &mut self,
        host: HostId,
        what: impl Fn(&Event) -> bool + 'static,
        text: &str,
    ) {
        self.remarks.push(Remark { host, what: Box::new(what), text: text.to_owned() });
    }

    /// Explanations of what did not happen.
    pub(crate) fn unmet(&self) -> Vec<&str> {
        self.remarks.iter().map(|remark| remark.text.as_str()).collect()
    }

    pub(crate) fn now(&self) -> u64 {
        self.since_start(self.world.now())
    }

    fn since_start(&self, at: Instant) -> u64 {
        at.as_nanos().saturating_sub(self.start.as_nanos())
    }

    /// Adds a step with what was said about it.
    pub(crate) fn push(&mut self, mut step: Step) -> &mut Step {
        step.text.splice(0..0, std::mem::take(&mut self.said));
        self.add(step)
    }

    fn add(&mut self, step: Step) -> &mut Step {
        self.steps.push(step);
        let last = self.steps.len() - 1;
        &mut self.steps[last]
    }

    /// A step of now.
    pub(crate) fn step(&self, kind: Kind, host: HostId, title: String) -> Step {
        Step::new(kind, self.now(), host, title)
    }

    /// A packet from outside, which no host of the world has sent.
    pub(crate) fn injected(&mut self, carried: &Carried) {
        let at = self.now();
        let mut step = self.departure(carried.from, at, carried, false);
        step.reason = Some("made by hand".to_owned());
        self.push(step);
    }

    /// Runs until a condition holds: false when it never will, or not within `nanos`.
    pub(crate) fn run(&mut self, nanos: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.world.now().after_nanos(nanos);
        loop {
            if done(self) {
                return true;
            }
            match self.world.next_event() {
                Some(at) if at <= end => {
                    self.world.step();
                    self.collect();
                }
                _ => return false,
            }
        }
    }

    /// Runs until everything has happened that will.
    pub(crate) fn settle(&mut self) {
        self.run(PATIENCE, |_| false);
    }

    /// Runs until what is on its way has arrived, but not until timers fire that find nothing to
    /// do.
    pub(crate) fn quiet(&mut self) {
        self.run(QUIET, |_| false);
    }

    /// Lets time pass although nothing may happen.
    pub(crate) fn pause(&mut self, nanos: u64) {
        let end = self.world.now().after_nanos(nanos);
        self.run(nanos, |_| false);
        let left = end.as_nanos().saturating_sub(self.world.now().as_nanos());
        self.world.run_for(left);
        self.collect();
    }

    /// Tells what the last turn did.
    fn collect(&mut self) {
        for carried in self.world.take_carried() {
            self.note_arrivals(carried.to, &carried);
            self.left[carried.from].push_back(carried);
        }
        for host in 0..self.left.len() {
            for (at, event) in self.world.host(host).trace.take() {
                self.tell(host, at, &event);
            }
        }
        self.resync();
    }

    fn note_arrivals(&mut self, to: HostId, carried: &Carried) {
        for (at, packet) in &carried.arrivals {
            let is_damaged = packet.bytes != carried.packet.bytes;
            let bth = packet.parse().map(|datagram| datagram.bth());
            let info = bth.map(|b| (b.opcode.code(), b.psn.value(), b.dest_qp.value()));
            let read = packet.parse().filter(|p| p.opcode() == Opcode::RcReadRequest);
            let length = read.and_then(|p| p.reth()).map_or(0, |reth| reth.dma_len);
            let psns = length.div_ceil(self.mtu).max(1);
            let number = carried.number;
            self.arriving[to].push_back(Arriving { at: *at, number, is_damaged, info, psns });
        }
        let order = self.arriving[to].make_contiguous();
        order.sort_by_key(|arriving| arriving.at);
    }

    fn tell(&mut self, host: HostId, at: Instant, event: &Event) {
        match event {
            Event::Received { packet, .. } => self.find(host, at, Some(packet)),
            Event::Dropped { packet, .. } if !self.looks_at(host, packet.as_ref()) => {
                self.find(host, at, packet.as_ref());
            }
            _ => {}
        }
        if self.is_told(host, event) {
            return;
        }
        let sent = matches!(event, Event::Sent { .. });
        let carried = if sent { self.left[host].pop_front() } else { None };
        let at = self.since_start(at);
        self.levels.saw(host, at, event);
        let mut step = match (event, &carried) {
            (Event::Sent { qpn, retransmit, .. }, Some(carried)) => {
                let qp = Some(Self::qp_name(host, qpn.value()));
                Step { qp, ..self.departure(host, at, carried, *retransmit) }
            }
            _ => Step { at, ..narrate::event(self, host, event) },
        };
        self.expect(host, event);
        if let Some(place) = self.remarks.iter().position(|r| r.host == host && (r.what)(event)) {
            step.text.push(self.remarks.remove(place).text);
        }
        self.add(step);
    }

    /// The packet was refused with a NAK: that it is dropped goes without saying.
    fn is_told(&self, host: HostId, event: &Event) -> bool {
        let follows = |step: &Step| step.host == host && step.kind == Kind::Refusal;
        let reason = DropReason::OutOfSequence;
        matches!(event, Event::Dropped { reason: why, .. } if *why == reason)
            && self.steps.last().is_some_and(follows)
    }

    /// The host has just begun with this packet.
    fn looks_at(&self, host: HostId, packet: Option<&PacketInfo>) -> bool {
        let last = self.steps.last().filter(|step| step.host == host);
        packet.is_some() && last.is_some_and(|step| step.kind == Kind::Arrival)
    }

    /// Finds the number of a packet that a host looks at.
    fn find(&mut self, host: HostId, now: Instant, packet: Option<&PacketInfo>) {
        self.packet[host] = packet.copied();
        let info = packet.map(|p| (p.opcode.code(), p.psn.value(), p.dest_qpn.value()));
        let is_it = |arriving: &Arriving| {
            arriving.at <= now && (arriving.is_damaged || info.is_none() || arriving.info == info)
        };
        let place = self.arriving[host].iter().position(is_it);
        let found = place.and_then(|place| self.arriving[host].remove(place));
        self.current_psns[host] = found.as_ref().map_or(1, |arriving| arriving.psns);
        self.current[host] = found.map_or(0, |arriving| arriving.number);
    }

    /// What a queue pair expects, when it gets this request.
    pub(crate) fn expected_now(&self, host: HostId, qpn: Qpn) -> Option<u32> {
        self.expected.get(&(host, qpn.value())).copied()
    }

    /// The packet that a host looks at has a PSN that is acknowledged already.
    pub(crate) fn is_behind(&self, host: HostId) -> bool {
        let acked =
            |p: PacketInfo| self.acked.get(&(host, p.dest_qpn.value())).map(|a| (p.psn, *a));
        let psns = self.packet[host].and_then(acked);
        psns.is_some_and(|(psn, acked)| psn.distance_from(acked) <= 0)
    }

    /// Within a turn what is expected moves on with each request.
    fn expect(&mut self, host: HostId, event: &Event) {
        let (qpn, psn) = match event {
            Event::Received { qpn, packet } if packet.opcode.info().is_request => {
                let is_next = self.expected_now(host, *qpn) == Some(packet.psn.value());
                let next = packet.psn.wrapping_add(self.current_psns[host]);
                (qpn, is_next.then_some(next))
            }
            Event::Acked { qpn, psn } => {
                self.acked.insert((host, qpn.value()), *psn);
                return;
            }
            Event::Nak { qpn, psn, .. } | Event::RnrNak { qpn, psn, .. } => (qpn, Some(*psn)),
            _ => return,
        };
        if let (Some(expected), Some(psn)) = (self.expected.get_mut(&(host, qpn.value())), psn) {
            *expected = psn.value();
        }
    }

    fn departure(&self, host: HostId, at: u64, carried: &Carried, again: bool) -> Step {
        let label = carried.packet.parse().map_or(String::new(), |datagram| label(&datagram));
        let fate = fate(carried);
        let mut step = Step::new(Kind::Packet, at, host, label.clone());
        let title = format!("packet #{}", carried.number);
        step.blocks.push(block(&title, &carried.packet.bytes, usize::MAX));
        step.reason = fate.clone().or(again.then(|| "retransmission".to_owned()));
        step.rules = rules(narrate::departure_rules(carried));
        step.flight = Some(Flight {
            number: carried.number,
            to: carried.to,
            label,
            arrivals: carried.arrivals.iter().map(|(at, _)| self.since_start(*at)).collect(),
            fate,
            again,
        });
        step
    }

    /// The queue pairs that are known expect so and so now.
    pub(crate) fn resync(&mut self) {
        let now = self.now();
        for (host, qp) in self.qps.clone() {
            let at = self.world.host(host);
            let (qpn, attr) = (at.qpn(qp), at.query_qp(qp));
            let sends = at.sends_in_use(qp);
            let receives = at.receives_posted(qp);
            self.expected.insert((host, qpn), attr.rq_psn);
            self.levels.queues(host, now, (qpn, sends, receives));
        }
    }

    /// How the story names a queue pair.
    pub(crate) fn qp_name(host: HostId, qpn: u32) -> String {
        format!("{} {qpn:#08x}", NAMES[host])
    }
}

/// What happened to a packet on its way.
fn fate(carried: &Carried) -> Option<String> {
    let Carried { arrivals, packet, .. } = carried;
    let damaged = arrivals.iter().any(|(_, arrived)| arrived.bytes != packet.bytes);
    let marked = arrivals.iter().any(|(_, arrived)| arrived.flow != packet.flow);
    let late = matches!(carried.blow, Some(Blow::Delay(_)));
    let fate = match arrivals.len() {
        0 => "lost",
        2.. => "duplicated",
        _ if damaged => "damaged",
        _ if marked => "marked",
        _ if late => "delayed",
        _ => return None,
    };
    Some(fate.to_owned())
}
