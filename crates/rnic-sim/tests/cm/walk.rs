//! Several managers over links that lose, repeat and delay, and programs that do anything at any
//! time. Whatever happens: no queue pair has two connections, what one end believes to be up is
//! what the other one accepted, private data is that of the peer, and nothing is left when all have
//! let go.

use rnic_core::cm::{Cm, CmError, Connect, Happening, Offer, Owner, PrivateData};
use rnic_sim::cm::{Managers, Rough, address, way};
use rnic_sim::rng::Rng;
use roce_wire::Qpn;
use roce_wire::cm::{PortSpace, TransportType};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const HOSTS: usize = 3;
const PORT: u16 = 4000;
/// Of each host: they are its first identifiers.
const LISTENERS: usize = 2;

/// A world.
struct Walk {
    net: Managers,
    rng: Rng,
    /// Identifiers that programs have, by host.
    held: Vec<BTreeSet<u32>>,
    /// Connections that are up, by host and identifier: both queue pairs.
    up: BTreeMap<(usize, u32), (u32, u32)>,
    /// Own queue pairs, by host and identifier.
    own: BTreeMap<(usize, u32), u32>,
    /// Those that have heard of their end.
    over: BTreeSet<(usize, u32)>,
    /// Queue pairs made.
    made: u32,
    /// Numbers that each host uses again, if this is a world in which they do.
    free: Option<[VecDeque<u32>; HOSTS]>,
    ups: u32,
}

fn owner(host: usize) -> Owner {
    Owner { user: 0, place: host as u64 }
}

/// Programs act some time after the event.
fn may_be_late(done: Result<(), CmError>) {
    assert!(matches!(done, Ok(()) | Err(CmError::State)), "{done:?}");
}

fn tag(qpn: u32) -> PrivateData {
    PrivateData::new(&qpn.to_be_bytes()).expect("short")
}

impl Walk {
    fn new(seed: u64, reuses: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut net = Managers::new(HOSTS, seed);
        net.rough = Rough {
            loss: rng.pick(&[0, 100_000, 300_000]),
            duplicates: rng.pick(&[0, 100_000]),
            late: rng.pick(&[0, 100_000]),
        };
        let mut held = vec![BTreeSet::new(); HOSTS];
        for (host, held) in held.iter_mut().enumerate() {
            for space in [PortSpace::Tcp, PortSpace::Ib] {
                let bound = net.cms[host].bind(owner(host), space, None, PORT, false);
                let (listener, _) = bound.expect("free");
                net.cms[host].listen(listener, 8).expect("idle");
                held.insert(listener);
            }
        }
        let (up, own, over) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let free = reuses.then(Default::default);
        Self { net, rng, held, up, own, over, made: 0x100, free, ups: 0 }
    }

    fn offer(&mut self, host: usize) -> Offer {
        let used = self.free.as_mut().and_then(|free| free[host].pop_front());
        let qpn = used.unwrap_or_else(|| {
            self.made += 1;
            self.made
        });
        Offer {
            qpn: Qpn::new(qpn),
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            rnr_retry_count: 7,
        }
    }

    fn connect(&mut self) {
        let from = self.rng.below(HOSTS as u64) as usize;
        // Also to itself.
        let to = self.rng.below(HOSTS as u64) as usize;
        let offer = self.offer(from);
        let (space, transport) = self.rng.pick(&[
            (PortSpace::Tcp, TransportType::Rc),
            (PortSpace::Tcp, TransportType::Uc),
            (PortSpace::Ib, TransportType::Extended),
        ]);
        let connect = Connect {
            route: way(from, to),
            port: PORT,
            transport,
            offer,
            retry_count: 7,
            mtu_code: 3,
            ack_timeout: 14,
            private: tag(offer.qpn.value()),
        };
        let bound = self.net.cms[from].bind(owner(from), space, None, 0, false);
        let Ok((id, _)) = bound else { return };
        self.held[from].insert(id);
        let now = self.net.now();
        self.own.insert((from, id), offer.qpn.value());
        self.net.cms[from].connect(now, id, &connect).expect("a new one");
        self.net.collect(from);
    }

    /// A program does something with one that it has.
    fn meddle(&mut self) {
        let host = self.rng.below(HOSTS as u64) as usize;
        let ids: Vec<u32> = self.held[host].iter().skip(LISTENERS).copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = self.rng.pick(&ids);
        let now = self.net.now();
        let cm: &mut Cm = &mut self.net.cms[host];
        match self.rng.below(3) {
            0 => {
                let _ = cm.disconnect(now, id);
            }
            1 => {
                if cm.establish(id).is_ok() {
                    self.is_up(host, id);
                }
            }
            _ => {
                cm.release(now, id).expect("it is held");
                self.held[host].remove(&id);
                self.forget(host, id);
            }
        }
        self.net.collect(host);
    }

    /// With its identifier, a program lets go of the queue pair.
    fn forget(&mut self, host: usize, id: u32) {
        self.up.remove(&(host, id));
        self.over.remove(&(host, id));
        let own = self.own.remove(&(host, id));
        if let Some(free) = &mut self.free {
            free[host].extend(own);
        }
    }

    /// Programs do what events ask for, mostly.
    fn react(&mut self) {
        for host in 0..HOSTS {
            for event in std::mem::take(&mut self.net.events[host]) {
                assert_eq!(event.owner, owner(host));
                let is_new = matches!(event.what, Happening::Request(_));
                assert_eq!(self.held[host].insert(event.id), is_new, "{event:?}");
                self.react_to(host, event.id, event.what, &event.private);
            }
        }
    }

    fn react_to(&mut self, host: usize, id: u32, what: Happening, private: &PrivateData) {
        let now = self.net.now();
        match what {
            Happening::Request(request) => {
                let said = private.as_slice().get(..4).expect("a whole area");
                assert_eq!(said, request.offer.qpn.value().to_be_bytes(), "of another request");
                assert_eq!(request.route.local, address(host));
                match self.rng.below(10) {
                    0 => may_be_late(self.net.cms[host].reject(now, id, &tag(1))),
                    1 => {}
                    _ => {
                        let offer = self.offer(host);
                        let private = tag(offer.qpn.value());
                        self.own.insert((host, id), offer.qpn.value());
                        may_be_late(self.net.cms[host].accept(now, id, &offer, &private));
                    }
                }
            }
            Happening::Response(response) => {
                let said = private.as_slice().get(..4).expect("a whole area");
                assert_eq!(said, response.offer.qpn.value().to_be_bytes(), "of another reply");
                if !self.rng.chance(100_000) {
                    may_be_late(self.net.cms[host].establish(id));
                    self.is_up(host, id);
                }
            }
            Happening::Established => self.is_up(host, id),
            Happening::TimewaitExit => {
                assert!(self.over.contains(&(host, id)), "its end was not told");
            }
            _ => {
                self.over.insert((host, id));
                self.up.remove(&(host, id));
            }
        }
        self.net.collect(host);
    }

    fn is_up(&mut self, host: usize, id: u32) {
        // It may be over by the time the program looks.
        let Some((local, remote)) = self.net.cms[host].open_qpns(id) else { return };
        self.up.insert((host, id), (local.value(), remote.value()));
        self.ups += 1;
    }

    /// What must be true at any time.
    fn judge(&self) {
        let mut local = BTreeMap::new();
        let mut remote = BTreeMap::new();
        for host in 0..HOSTS {
            for id in &self.held[host] {
                let Some((ours, theirs)) = self.net.cms[host].open_qpns(*id) else { continue };
                if ours != Qpn::SMI {
                    let other = local.insert(ours, (host, *id));
                    assert_eq!(other, None, "{ours:?} has two connections");
                }
                if theirs != Qpn::SMI {
                    let other = remote.insert((host, theirs), *id);
                    assert_eq!(other, None, "{theirs:?} has two connections at host {host}");
                }
            }
        }
        if self.free.is_some() {
            return;
        }
        // Queue pairs are numbered over all hosts: two that are up with one of them are its ends.
        let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
        for (ours, theirs) in self.up.values() {
            assert_eq!(*ends.entry(*ours).or_insert(*theirs), *theirs, "{ours:#x} has two peers");
        }
        for (ours, theirs) in &ends {
            if let Some(back) = ends.get(theirs) {
                assert_eq!(back, ours, "{theirs:#x} is up with another one than {ours:#x}");
            }
        }
    }

    fn run(&mut self) {
        for _ in 0..200 {
            match self.rng.below(4) {
                0 => self.connect(),
                1 => self.meddle(),
                _ => {
                    let pause = self.rng.pick(&[10_000, 1_000_000, 3_000_000_000]);
                    self.net.run_for(pause);
                }
            }
            self.react();
            self.judge();
        }
        self.settle();
        self.close();
    }

    /// On good links, without further commands, nothing stays half open.
    fn settle(&mut self) {
        self.net.rough = Rough::default();
        for _ in 0..40 {
            self.net.run_for(10_000_000_000);
            self.react();
            self.judge();
        }
        assert_eq!(self.net.next_event(), None, "something is still due");
        for host in 0..HOSTS {
            for id in &self.held[host] {
                let open = self.net.cms[host].open_qpns(*id).is_some();
                assert_eq!(open, self.up.contains_key(&(host, *id)), "half open for ever");
            }
        }
    }

    /// What all have let go of is gone.
    fn close(&mut self) {
        for host in 0..HOSTS {
            for id in std::mem::take(&mut self.held[host]) {
                let now = self.net.now();
                self.net.cms[host].release(now, id).expect("it is held");
                self.net.collect(host);
            }
        }
        self.net.run_for(300_000_000_000);
        for cm in &self.net.cms {
            assert_eq!((cm.len(), cm.next_deadline()), (0, None), "something is left");
        }
    }
}

/// Walks through three hundred worlds: how many ends came up.
fn ups(reuses: bool) -> u32 {
    let walk = |seed| {
        let mut walk = Walk::new(seed, reuses);
        walk.run();
        walk.ups
    };
    (0..300).map(walk).sum()
}

#[test]
fn connections_come_up_and_go_down_whatever_the_links_do() {
    let ups = ups(false);
    assert!(ups > 5000, "only {ups} ends came up");
}

/// The number of a queue pair that a program has destroyed is soon that of another one.
#[test]
fn connections_end_although_their_queue_pairs_are_used_again() {
    let ups = ups(true);
    assert!(ups > 4000, "only {ups} ends came up");
}
