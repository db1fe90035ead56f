//! Which ways are known, and which are looked for.
//!
//! A way is looked for by a thread that may wait for seconds, so no more than a few are at a time.
//! What comes from the network must not use up all of them: addresses can be forged. So answers
//! have half of them, and a way that is known stays in use while it is looked at again.

use rnic_core::cm::Outgoing;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What a way depends on: both addresses and the traffic class.
pub(super) type Key = (IpAddr, IpAddr, u8);

/// See the [module](self). `P` is a way, `H` keeps it valid.
pub(super) struct Known<P, H> {
    ways: HashMap<Key, Way<P, H>>,
    /// Threads that look for one.
    seeking: usize,
}

enum Way<P, H> {
    /// These are to leave when it is found.
    Sought(Vec<Outgoing>),
    Found {
        path: P,
        _hold: H,
        since: Instant,
    },
}

/// What to do with a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step<P> {
    /// It leaves here. Without, it waits or is lost; what matters is sent again.
    pub(super) leave: Option<P>,
    /// Its way has to be [found](Known::found).
    pub(super) seek: bool,
}

impl<P, H> Default for Known<P, H> {
    fn default() -> Self {
        Self { ways: HashMap::new(), seeking: 0 }
    }
}

impl<P: Copy, H> Known<P, H> {
    pub(super) fn step(&mut self, key: Key, outgoing: &Outgoing, now: Instant) -> Step<P> {
        let may_seek = self.seeking < MAX_SOUGHT;
        match self.ways.get_mut(&key) {
            Some(Way::Found { path, since, .. }) => {
                let seek = may_seek && now.duration_since(*since) >= FRESH;
                if seek {
                    *since = now;
                    self.seeking += 1;
                }
                return Step { leave: Some(*path), seek };
            }
            Some(Way::Sought(waiting)) => {
                if waiting.len() < MAX_WAITING {
                    waiting.push(*outgoing);
                }
                return Step { leave: None, seek: false };
            }
            None => {}
        }
        let most = if outgoing.is_first { MAX_SOUGHT } else { MAX_SOUGHT / 2 };
        self.make_room(now);
        let seek = self.seeking < most && self.ways.len() < MAX_KNOWN;
        if seek {
            self.seeking += 1;
            self.ways.insert(key, Way::Sought(vec![*outgoing]));
        }
        Step { leave: None, seek }
    }

    /// The search is over: what leaves now, if it was found.
    pub(super) fn found(&mut self, key: Key, way: Option<(P, H)>, now: Instant) -> Vec<Outgoing> {
        self.seeking = self.seeking.saturating_sub(1);
        let waiting = match self.ways.remove(&key) {
            Some(Way::Sought(waiting)) => waiting,
            _ => Vec::new(),
        };
        let Some((path, hold)) = way else { return Vec::new() };
        self.ways.insert(key, Way::Found { path, _hold: hold, since: now });
        waiting
    }

    /// Forgets what is old where there is much.
    fn make_room(&mut self, now: Instant) {
        if self.ways.len() >= MAX_KNOWN {
            self.ways.retain(|_, way| match way {
                Way::Found { since, .. } => now.duration_since(*since) < FRESH,
                Way::Sought(_) => true,
            });
        }
    }
}

/// How long a way is used without a look at the routes.
const FRESH: Duration = Duration::from_secs(10);
/// Ways that are kept.
const MAX_KNOWN: usize = 2048;
/// Datagrams that wait for one way.
const MAX_WAITING: usize = 1024;
/// Ways that are looked for at a time: as many threads.
const MAX_SOUGHT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::cm::Route;
    use roce_wire::Qpn;
    use roce_wire::mad::MAD_LEN;
    use std::net::Ipv4Addr;

    fn outgoing(is_first: bool) -> Outgoing {
        let [local, remote] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let route = Route { local, remote, traffic_class: 0, flow_label: 0, qpn: Qpn::GSI };
        Outgoing { route, mad: [0; MAD_LEN], is_first }
    }

    fn key(n: usize) -> Key {
        let address = |n: usize| Ipv4Addr::from(0x0a00_0000 + u32::try_from(n).unwrap()).into();
        (address(0), address(n), 0)
    }

    const SEEK: Step<u8> = Step { leave: None, seek: true };
    const WAIT: Step<u8> = Step { leave: None, seek: false };

    #[test]
    fn forged_addresses_leave_room_for_what_programs_ask_for() {
        let now = Instant::now();
        let mut known: Known<u8, ()> = Known::default();
        for n in 1..1000 {
            let expected = if n <= MAX_SOUGHT / 2 { SEEK } else { WAIT };
            assert_eq!(known.step(key(n), &outgoing(false), now), expected);
        }
        assert_eq!(known.step(key(2000), &outgoing(true), now), SEEK);
        assert_eq!(known.found(key(2000), Some((7, ())), now), [outgoing(true)]);
        // None answers: others are looked for then.
        assert_eq!(known.found(key(1), None, now), []);
        assert_eq!(known.step(key(1), &outgoing(false), now), SEEK);
        assert_eq!(known.ways.len(), MAX_SOUGHT / 2 + 1);
    }

    #[test]
    fn a_known_way_is_used_while_it_is_looked_at_again() {
        let now = Instant::now();
        let later = now + FRESH;
        let mut known: Known<u8, ()> = Known::default();
        assert_eq!(known.step(key(1), &outgoing(false), now), SEEK);
        assert_eq!(known.step(key(1), &outgoing(true), now), WAIT);
        assert_eq!(known.found(key(1), Some((1, ())), now), [false, true].map(outgoing));
        let leaves = |path, seek| Step { leave: Some(path), seek };
        assert_eq!(known.step(key(1), &outgoing(false), now), leaves(1, false));
        assert_eq!(known.step(key(1), &outgoing(false), later), leaves(1, true));
        assert_eq!(known.step(key(1), &outgoing(false), later), leaves(1, false));
        assert_eq!(known.found(key(1), Some((2, ())), later), []);
        assert_eq!(known.step(key(1), &outgoing(false), later), leaves(2, false));
        // Also when all threads look for others.
        for n in 0..100 {
            known.step(key(100 + n), &outgoing(true), later);
        }
        let latest = later + FRESH;
        assert_eq!(known.step(key(1), &outgoing(false), latest), leaves(2, false));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let now = Instant::now();
        let mut known: Known<u8, ()> = Known::default();
        for n in 0..MAX_KNOWN + 100 {
            if known.step(key(n), &outgoing(true), now).seek {
                known.found(key(n), Some((1, ())), now);
            }
        }
        assert_eq!(known.ways.len(), MAX_KNOWN);
        assert_eq!(known.step(key(9999), &outgoing(true), now + FRESH), SEEK);
        assert_eq!(known.ways.len(), 1);
        for _ in 0..MAX_WAITING + 10 {
            known.step(key(9999), &outgoing(true), now);
        }
        assert_eq!(known.found(key(9999), Some((1, ())), now).len(), MAX_WAITING);
    }
}
