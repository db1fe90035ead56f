//! Connection managers that talk over faulty links, without engines.

use crate::rng::Rng;
use rnic_core::Secret;
use rnic_core::cm::{Cm, CmConfig, CmEvent, Outgoing, Route};
use rnic_core::time::Instant;
use roce_wire::Qpn;
use roce_wire::mad::MAD_LEN;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// What links do to datagrams, each so often in a million.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rough {
    /// Lost.
    pub loss: u32,
    /// Delivered twice.
    pub duplicates: u32,
    /// Late, behind others.
    pub late: u32,
}

/// Some connection managers, each of a host of its own, and what is on the way between them.
#[derive(Debug)]
pub struct Managers {
    /// The managers.
    pub cms: Vec<Cm>,
    /// What they told their programs, in order.
    pub events: Vec<Vec<CmEvent>>,
    /// What the links do.
    pub rough: Rough,
    now: Instant,
    rng: Rng,
    /// By arrival, in order of sending.
    flying: BTreeMap<(Instant, u64), (usize, Route, [u8; MAD_LEN])>,
    sent: u64,
}

/// Most identifiers of a manager.
pub const MAX_IDS: usize = 64;
/// And of one user there.
pub const MAX_OF_USER: usize = 48;

/// The address of a host.
pub fn address(host: usize) -> IpAddr {
    let last = u8::try_from(host + 1).unwrap_or(u8::MAX);
    Ipv4Addr::new(10, 0, 0, last).into()
}

/// The way from one host to another.
pub fn way(from: usize, to: usize) -> Route {
    Route {
        local: address(from),
        remote: address(to),
        traffic_class: 0,
        flow_label: 0,
        qpn: Qpn::GSI,
    }
}

/// The configuration of a manager.
pub fn config(host: usize, seed: u64) -> CmConfig {
    CmConfig {
        secret: Secret::new([seed, host as u64]),
        guid: 0x0200_00ff_fe00_0000 | host as u64,
        max_ids: MAX_IDS,
        max_of_user: MAX_OF_USER,
        mtu_code: 5,
    }
}

impl Managers {
    /// So many, on good links.
    pub fn new(hosts: usize, seed: u64) -> Self {
        Self {
            cms: (0..hosts).map(|host| Cm::new(config(host, seed))).collect(),
            events: vec![Vec::new(); hosts],
            rough: Rough::default(),
            now: Instant::ZERO,
            rng: Rng::new(seed),
            flying: BTreeMap::new(),
            sent: 0,
        }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Takes what a host's manager has to say. To be called after each command to it.
    pub fn collect(&mut self, host: usize) {
        while let Some(outgoing) = self.cms[host].next_mad() {
            self.fly(&outgoing);
        }
        while let Some(event) = self.cms[host].next_event() {
            self.events[host].push(event);
        }
    }

    fn fly(&mut self, outgoing: &Outgoing) {
        let Outgoing { route, mad, .. } = outgoing;
        let Some(to) = (0..self.cms.len()).find(|host| address(*host) == route.remote) else {
            return;
        };
        let back = Route { local: route.remote, remote: route.local, ..*route };
        let copies = match self.rng.chance(self.rough.loss) {
            true => 0,
            false => 1 + u64::from(self.rng.chance(self.rough.duplicates)),
        };
        for _ in 0..copies {
            let late = if self.rng.chance(self.rough.late) { LATE } else { 0 };
            let at = self.now.after_nanos(FLIGHT + self.rng.below(late.max(1)));
            self.sent += 1;
            self.flying.insert((at, self.sent), (to, back, *mad));
        }
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<Instant> {
        let deadlines = self.cms.iter().filter_map(Cm::next_deadline);
        deadlines.chain(self.flying.keys().map(|(at, _)| *at)).min()
    }

    /// The next thing happens; false when there is none.
    pub fn step(&mut self) -> bool {
        let Some(at) = self.next_event() else { return false };
        self.now = self.now.max(at);
        let first = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now);
        if let Some((to, back, mad)) = first.map(|entry| entry.remove()) {
            self.cms[to].receive(self.now, &back, &mad);
            self.collect(to);
        }
        for host in 0..self.cms.len() {
            self.cms[host].expire(self.now);
            self.collect(host);
        }
        true
    }

    /// Lets time pass.
    pub fn run_for(&mut self, nanos: u64) {
        let end = self.now.after_nanos(nanos);
        while self.next_event().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }
}

/// Nanoseconds on the way.
const FLIGHT: u64 = 50_000;
/// Nanoseconds that some take longer at most: longer than an answer may take.
const LATE: u64 = 10_000_000_000;
