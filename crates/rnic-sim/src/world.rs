//! The world: hosts, the links between them, and the only clock.
//!
//! Time jumps from one thing that happens to the next: an arrival, a deadline, a turn that has more
//! to do. A turn takes some time, so that packets pile up and arrive in bursts. Everything follows
//! from the seed.
//!
//! A world that fails, by a violation or by any panic while it exists, says its seed and how to
//! replay it, prints the last events of each engine, and writes what the links carried to a pcap
//! file.

mod report;

use crate::arrivals::Arrivals;
use crate::host::Host;
use crate::link::{Blow, FaultCounts, Faults, Link, Strike};
use crate::pcap::Capture;
use crate::port::{Packet, PortConfig};
use crate::rng::Rng;
use crate::sweep;
use crate::verbs::{Connection, QpId};
use crate::witness::Terms;
use rnic_core::config::EngineConfig;
use rnic_core::profile::Profile;
use rnic_core::secret::Secret;
use rnic_core::time::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host of the world.
pub type HostId = usize;

/// What a world is made with.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Everything random follows from it.
    pub seed: u64,
    /// Packet I/O of each host.
    pub ports: Vec<PortConfig>,
    /// What all links do to packets, until changed.
    pub faults: Faults,
    /// IPv6 addresses instead of IPv4.
    pub ipv6: bool,
    /// Nanoseconds that a turn of an engine takes.
    pub turn_time: u64,
    /// Engines never sleep.
    pub busy_poll: bool,
    /// What engines are made with; each gets a secret of its own.
    pub engine: EngineConfig,
    /// Vendor behaviour of each host; the last goes for all further ones.
    pub profiles: Vec<Profile>,
}

impl WorldConfig {
    /// Two hosts with simple ports and good links.
    pub fn pair(seed: u64) -> Self {
        Self {
            seed,
            ports: vec![PortConfig::frames(); 2],
            faults: Faults::default(),
            ipv6: false,
            turn_time: 1_000,
            busy_poll: false,
            engine: EngineConfig::new([0; 2]),
            profiles: vec![Profile::Spec],
        }
    }

    /// Two hosts with any ports and any budgets of their engines.
    pub fn random_pair(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0070_6f72_7473);
        let ports = vec![PortConfig::random(&mut rng), PortConfig::random(&mut rng)];
        let turn_time = rng.pick(&[100, 1_000, 5_000]);
        let plain = Self::pair(seed);
        let engine = EngineConfig {
            carry_small_receives: rng.chance(700_000),
            window_bytes: rng.pick(&[1, 20_000, plain.engine.window_bytes]),
            visit_bytes: rng.pick(&[1, 5_000, plain.engine.visit_bytes]),
            turn_bytes: rng.pick(&[1, 20_000, plain.engine.turn_bytes]),
            park_after_nanos: rng.pick(&[1, 50_000, plain.engine.park_after_nanos]),
            ..plain.engine
        };
        let ipv6 = rng.chance(300_000);
        let busy_poll = rng.chance(200_000);
        Self { ports, ipv6, turn_time, busy_poll, engine, ..plain }
    }
}

/// When a host's engine runs.
#[derive(Debug, Default)]
struct Schedule {
    /// The last turn left something to do.
    awake: bool,
    /// The last turn ends.
    busy_until: Instant,
    /// It looked at its clients' eventfds.
    looked: Instant,
    /// Turns in a row in which its wire took nothing.
    refused: u32,
    /// Turns in a row that did nothing but ask for another.
    fruitless: u32,
}

/// Hosts and links.
#[derive(Debug)]
pub struct World {
    seed: u64,
    now: Instant,
    hosts: Vec<Host>,
    schedules: Vec<Schedule>,
    arrivals: Vec<Arrivals>,
    links: BTreeMap<(HostId, HostId), Link>,
    turn_time: u64,
    busy_poll: bool,
    visit_bytes: u32,
    turns: u64,
    /// Turns of all engines since the last completion of any.
    without_completion: u32,
    capture: Capture,
    strays: Vec<(Instant, Packet)>,
    /// Packets that left any host so far.
    sent: u64,
    /// What happens to those with these numbers.
    chosen: BTreeMap<u64, Blow>,
    /// Packets on links since the last look, where something looks.
    carried: Option<Vec<Carried>>,
    rng: Rng,
    faults: Faults,
    quiet: bool,
}

/// A packet that a host sent over a link.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Its number among all packets of the world, from 1.
    pub number: u64,
    /// When it left.
    pub at: Instant,
    /// Where from.
    pub from: HostId,
    /// Where to.
    pub to: HostId,
    /// As it left.
    pub packet: Packet,
    /// As it arrives: never, once or twice.
    pub arrivals: Vec<(Instant, Packet)>,
    /// What was done to it on purpose.
    pub blow: Option<Blow>,
}

/// Turns without any effect after which an engine is considered to spin.
const FRUITLESS_LIMIT: u32 = 10_000;
/// Turns without any completion after which the engines are considered to talk in circles.
const CIRCLES_LIMIT: u32 = 100_000;
/// Nanoseconds between two looks of a busy engine's thread at the eventfds of its clients.
const LOOK_EVERY: u64 = 50_000;
/// Turns without a pause of an engine whose wire takes nothing.
const TRY_OFTEN: u32 = 1_000;
/// Nanoseconds from then on until it tries again, which keeps a wire that is dead cheap.
const TRY_EVERY: u64 = 100_000;
const CAPTURE_BYTES: usize = 8 << 20;
/// Most packets that an engine sends for one queue pair at a time.
const MAX_VISIT: u32 = 128;
/// Turns that both engines need at most to receive and to send everything.
const SEVERAL_TURNS: u64 = 1_000;
/// The clock of a host does not start at zero.
const START: Instant = Instant::from_nanos(1_000_000_000);

impl World {
    /// Makes hosts and links.
    pub fn new(config: &WorldConfig) -> Self {
        let mut rng = Rng::new(config.seed);
        let hosts: Vec<Host> = (0..config.ports.len())
            .map(|id| {
                let secret = Secret::new([rng.word(), rng.word()]);
                let profile = config.profiles.get(id).or(config.profiles.last());
                let profile = profile.copied().unwrap_or_default();
                let engine = EngineConfig { secret, profile, ..config.engine };
                let mut host = Host::new(address(id, config.ipv6), engine, config.ports[id], START);
                if std::env::var_os(sweep::TRACE).is_some() {
                    host.trace.keep_all();
                }
                host
            })
            .collect();
        Self {
            seed: config.seed,
            now: START,
            schedules: hosts.iter().map(|_| Schedule::default()).collect(),
            arrivals: hosts.iter().map(|_| Arrivals::default()).collect(),
            hosts,
            links: BTreeMap::new(),
            turn_time: config.turn_time,
            busy_poll: config.busy_poll,
            visit_bytes: config.engine.visit_bytes,
            turns: 0,
            without_completion: 0,
            capture: Capture::new(CAPTURE_BYTES),
            strays: Vec::new(),
            sent: 0,
            chosen: BTreeMap::new(),
            carried: None,
            rng,
            faults: config.faults,
            quiet: false,
        }
    }

    /// Two hosts with simple ports and good links.
    pub fn pair(seed: u64) -> Self {
        Self::new(&WorldConfig::pair(seed))
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Turns of all engines so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// A host.
    pub fn host(&mut self, id: HostId) -> &mut Host {
        let host = &mut self.hosts[id];
        host.now = self.now;
        host
    }

    /// Hosts there are.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The link from one host to another.
    pub fn link(&mut self, from: HostId, to: HostId) -> &mut Link {
        let (faults, rng) = (self.faults, &mut self.rng);
        self.links.entry((from, to)).or_insert_with(|| Link::new(faults, rng.fork()))
    }

    /// Changes what all links do.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        for link in self.links.values_mut() {
            link.faults = faults;
        }
    }

    /// Adds a fault for chosen packets of one direction.
    pub fn strike(&mut self, from: HostId, to: HostId, strike: Strike) {
        self.link(from, to).strike(strike);
    }

    /// Adds a fault for the packet with this number among all that hosts send, from 1.
    pub fn strike_number(&mut self, number: u64, blow: Blow) {
        self.chosen.insert(number, blow);
    }

    /// Packets that links carried since the last call. From the first call on they are kept.
    pub fn take_carried(&mut self) -> Vec<Carried> {
        self.carried.replace(Vec::new()).unwrap_or_default()
    }

    /// What the links carried, as it left its host.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// Faults of all links.
    pub fn fault_counts(&self) -> FaultCounts {
        let mut sum = FaultCounts::default();
        for link in self.links.values() {
            sum.add(&link.counts);
        }
        sum
    }

    /// Connects two queue pairs with each other.
    pub fn connect(&mut self, a: (HostId, QpId), b: (HostId, QpId), connection: &Connection) {
        let ips = (self.hosts[a.0].ip, self.hosts[b.0].ip);
        let qpns = (self.hosts[a.0].qpn(a.1), self.hosts[b.0].qpn(b.1));
        let terms = self.terms(connection);
        // Its judges listen to answers.
        if self.hosts[a.0].is_reliable(a.1) {
            self.host(a.0).trace.witness.connected(qpns.0, terms);
            self.host(b.0).trace.witness.connected(qpns.1, terms);
        }
        self.host(a.0).connect(a.1, connection, ips.1, qpns.1);
        self.host(b.0).connect(b.1, &connection.reversed(), ips.0, qpns.0);
    }

    /// What a connection's judges may take for granted.
    pub fn terms(&self, connection: &Connection) -> Terms {
        let timeout = connection.timeout > 0;
        let most = (self.visit_bytes + connection.mtu()).min(MAX_VISIT * connection.mtu());
        Terms {
            timeout: timeout.then(|| connection.ack_timeout()),
            round_trip: 2 * self.faults.longest_delay() + SEVERAL_TURNS * self.turn_time,
            visit: u64::from(most),
        }
    }

    /// Both queue pairs of a connection grow old in no time: their PSNs leap, those of `a` by
    /// `psns.0`. False when one of them, or the link between them, is not at rest.
    pub fn leap(&mut self, a: (HostId, QpId), b: (HostId, QpId), psns: (u32, u32)) -> bool {
        for (host, qp) in [a, b] {
            let qpn = self.hosts[host].qpn(qp);
            let is_coming = self.arrivals[host].any_for(qpn);
            if is_coming || !self.hosts[host].is_at_rest(qp) {
                return false;
            }
        }
        self.host(a.0).leap(a.1, psns);
        self.host(b.0).leap(b.1, (psns.1, psns.0));
        true
    }

    /// Packets to addresses that no host has, since the last call.
    pub fn take_strays(&mut self) -> Vec<(Instant, Packet)> {
        std::mem::take(&mut self.strays)
    }

    /// A packet from outside arrives at a host now.
    pub fn inject(&mut self, to: HostId, packet: Packet) {
        self.capture.record(self.now, packet.flow, packet.ip_id, packet.bytes.clone());
        self.arrive(to, self.now, packet);
    }

    fn arrive(&mut self, to: HostId, at: Instant, packet: Packet) {
        self.arrivals[to].push(at, packet);
    }

    /// When a host must run next.
    fn next_turn(&self, id: HostId) -> Option<Instant> {
        let schedule = &self.schedules[id];
        let host = &self.hosts[id];
        let wanted = if schedule.awake || host.called || host.port.has_input() {
            Some(self.now)
        } else {
            let arrival = self.arrivals[id].next();
            let eventfd = self.next_look(id).filter(|_| host.rang);
            let timer = host.engine.next_deadline();
            let room = host.port.has_room_at(self.now);
            [arrival, eventfd, timer, room].into_iter().flatten().min()
        };
        wanted.map(|at| at.max(schedule.busy_until).max(self.now))
    }

    /// When the thread of an engine may look at the eventfds of its clients: when it sleeps, and
    /// now and then when the engine says that it cannot hear some of them otherwise.
    fn next_look(&self, id: HostId) -> Option<Instant> {
        let schedule = &self.schedules[id];
        if !schedule.awake && !self.busy_poll {
            return Some(self.now);
        }
        let is_deaf = self.hosts[id].engine.any_parked();
        is_deaf.then(|| schedule.looked.after_nanos(LOOK_EVERY))
    }

    /// Something will still happen.
    pub fn next_event(&self) -> Option<Instant> {
        (0..self.hosts.len()).filter_map(|id| self.next_turn(id)).min()
    }

    /// Runs the next turn of any engine. False when nothing will ever happen.
    pub fn step(&mut self) -> bool {
        let next = (0..self.hosts.len()).filter_map(|id| Some((self.next_turn(id)?, id))).min();
        let Some((at, id)) = next else { return false };
        self.now = at;
        while let Some(packet) = self.arrivals[id].pop_until(at) {
            self.hosts[id].port.deliver(packet);
        }
        self.run_turn(id);
        true
    }

    fn run_turn(&mut self, id: HostId) {
        self.turns += 1;
        let looks = self.next_look(id).is_some_and(|at| at <= self.now);
        let host = &mut self.hosts[id];
        host.now = self.now;
        if looks {
            host.look_at_clients();
            self.schedules[id].looked = self.now;
        }
        host.engine.awake();
        let before = (host.engine.counters().rx_packets, host.engine.counters().completions);
        let turn = host.turn(self.now);
        let after = (host.engine.counters().rx_packets, host.engine.counters().completions);
        let output = host.port.take_output();
        let refused = host.port.has_refused();
        let fruitless = before == after && output.is_empty() && !refused;
        let busy = turn.more || turn.worked || host.port.has_input();
        // Before it sleeps the engine asks to be woken, and a doorbell may still say no.
        let awake = busy || (!self.busy_poll && !host.engine.prepare_sleep());
        let schedule = &mut self.schedules[id];
        schedule.awake = awake;
        schedule.refused = if refused { schedule.refused + 1 } else { 0 };
        let pause = if schedule.refused > TRY_OFTEN { TRY_EVERY } else { self.turn_time };
        schedule.busy_until = self.now.after_nanos(pause);
        schedule.fruitless = if fruitless { schedule.fruitless + 1 } else { 0 };
        if schedule.fruitless > FRUITLESS_LIMIT {
            let turn = format!("{turn:?}");
            self.fail(&format!("host {id} spins: {FRUITLESS_LIMIT} turns did nothing; {turn}"));
        }
        self.without_completion = if before.1 == after.1 { self.without_completion + 1 } else { 0 };
        if self.without_completion > CIRCLES_LIMIT {
            self.fail(&format!(
                "the engines talk in circles: {CIRCLES_LIMIT} turns, no completion"
            ));
        }
        for at in 0..output.len() {
            self.transmit(id, &output[at..]);
        }
        self.check();
    }

    /// The first of these packets leaves; the others follow it.
    fn transmit(&mut self, from: HostId, packets: &[Packet]) {
        let [packet, followers @ ..] = packets else { return };
        self.capture.record(self.now, packet.flow, packet.ip_id, packet.bytes.clone());
        if packet.flow.src != self.hosts[from].ip {
            self.fail(&format!("host {from} sends with a wrong source: {:?}", packet.flow));
        }
        let Some(to) = self.hosts.iter().position(|host| host.ip == packet.flow.dst) else {
            self.strays.push((self.now, packet.clone()));
            return;
        };
        let now = self.now;
        self.sent += 1;
        let chosen = self.chosen.remove(&self.sent);
        let (arrivals, blow) = self.link(from, to).carry(now, packet.clone(), followers, chosen);
        if let Some(carried) = &mut self.carried {
            let (number, packet, arrivals) = (self.sent, packet.clone(), arrivals.clone());
            carried.push(Carried { number, at: now, from, to, packet, arrivals, blow });
        }
        for (at, packet) in arrivals {
            self.arrive(to, at, packet);
        }
    }

    /// Fails when any host did what must not be.
    ///
    /// # Panics
    /// Then.
    pub fn check(&self) {
        for (id, host) in self.hosts.iter().enumerate() {
            if let Some(violation) = host.violations().next() {
                self.fail(&format!("host {id}: {violation}"));
            }
        }
    }

    /// Runs until a condition holds. False when it never will within `nanos`.
    pub fn run_until(&mut self, nanos: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now.after_nanos(nanos);
        loop {
            if done(self) {
                return true;
            }
            if self.next_event().is_none_or(|at| at > end) {
                self.now = end;
                return done(self);
            }
            self.step();
        }
    }

    /// Lets time pass.
    pub fn run_for(&mut self, nanos: u64) {
        self.run_until(nanos, |_| false);
    }

    /// Runs until nothing will ever happen any more.
    ///
    /// # Panics
    /// When something still happens after `nanos`.
    pub fn run_to_silence(&mut self, nanos: u64) {
        let silent = self.run_until(nanos, |world| world.next_event().is_none());
        if !silent {
            self.fail("the world does not come to rest");
        }
    }
}

fn address(id: HostId, ipv6: bool) -> IpAddr {
    let last = u8::try_from(id + 1).expect("fewer than 255 hosts");
    if ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }
}
