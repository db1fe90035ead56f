//! Which ways are known, and which are looked for.
//!
//! A way is looked for by a thread that may wait for seconds, so no more than a few are at a time.
//! What comes from the network must not use up those of programs: addresses can be forged. Nor must
//! programs that ask for addresses where no host is use up those of what comes from the network:
//! connections come in then, too. So answers have threads of their own, and a way that is known
//! stays in use while it is looked at again. Of those of programs no user may use up all: the last
//! third is for users that have fewer than that.

use rnic_core::cm::Outgoing;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What a way depends on: both addresses and the traffic class.
pub(super) type Key = (IpAddr, IpAddr, u8);

/// See the [module](self). `P` is a way, `H` keeps it valid.
pub(super) struct Known<P, H> {
    ways: HashMap<Key, Way<P, H>>,
    /// What threads look for, and for which user; answers are for none.
    sought: HashMap<Key, Option<u8>>,
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

/// What is known of a way that a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// There is one.
    Known,
    /// It is looked for.
    Sought,
    /// It has to be [found](Known::found).
    Seek,
    /// No thread is free to look for it for this user.
    Busy,
}

impl<P, H> Default for Known<P, H> {
    fn default() -> Self {
        Self { ways: HashMap::new(), sought: HashMap::new() }
    }
}

impl<P: Copy, H> Known<P, H> {
    pub(super) fn step(&mut self, key: Key, outgoing: &Outgoing, now: Instant) -> Step<P> {
        let may_seek = self.may_seek(outgoing.user);
        match self.ways.get_mut(&key) {
            Some(Way::Found { path, since, .. }) => {
                let seek = may_seek && now.duration_since(*since) >= FRESH;
                if seek {
                    *since = now;
                    self.sought.insert(key, outgoing.user);
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
        self.make_room(now);
        if outgoing.user.is_some() {
            self.make_room_for_a_program();
        }
        let seek = may_seek && self.ways.len() < MAX_KNOWN;
        if seek {
            self.sought.insert(key, outgoing.user);
            self.ways.insert(key, Way::Sought(vec![*outgoing]));
        }
        Step { leave: None, seek }
    }

    /// A program of this user wants to know whether there is a way. One that is old is looked at
    /// again first, if a thread is free.
    pub(super) fn ask(&mut self, key: Key, user: u8, now: Instant) -> Answer {
        let may_seek = self.may_seek(Some(user));
        match self.ways.get_mut(&key) {
            Some(Way::Found { since, .. }) if !may_seek || now.duration_since(*since) < FRESH => {
                return Answer::Known;
            }
            Some(Way::Found { since, .. }) => *since = now,
            Some(Way::Sought(_)) => return Answer::Sought,
            None if !may_seek => return Answer::Busy,
            None => {
                self.make_room(now);
                self.make_room_for_a_program();
                self.ways.insert(key, Way::Sought(Vec::new()));
            }
        }
        self.sought.insert(key, Some(user));
        Answer::Seek
    }

    /// Whether a thread is free for this user, or for an answer.
    fn may_seek(&self, user: Option<u8>) -> bool {
        let count =
            |is: &dyn Fn(Option<u8>) -> bool| self.sought.values().filter(|of| is(**of)).count();
        if user.is_none() {
            return count(&|of| of.is_none()) < MAX_ANSWERS;
        }
        let all = count(&|of| of.is_some());
        all < MAX_OF_ANY || (all < MAX_OF_USERS && count(&|of| of == user) < KEPT)
    }

    /// The search is over: what leaves now, if it was found.
    pub(super) fn found(&mut self, key: Key, way: Option<(P, H)>, now: Instant) -> Vec<Outgoing> {
        self.sought.remove(&key);
        let waiting = match self.ways.remove(&key) {
            Some(Way::Sought(waiting)) => waiting,
            _ => Vec::new(),
        };
        let Some((path, hold)) = way else { return Vec::new() };
        self.ways.insert(key, Way::Found { path, _hold: hold, since: now });
        waiting
    }

    /// Forgets the oldest way where there is no room: what programs ask for is not kept waiting by
    /// what came from the network.
    fn make_room_for_a_program(&mut self) {
        if self.ways.len() < MAX_KNOWN {
            return;
        }
        let age = |way: &Way<P, H>| match way {
            Way::Found { since, .. } => Some(*since),
            Way::Sought(_) => None,
        };
        let found = self.ways.iter().filter_map(|(key, way)| Some((age(way)?, *key)));
        if let Some((_, oldest)) = found.min() {
            self.ways.remove(&oldest);
        }
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
/// Ways that are looked for at a time, each by a thread: for answers,
const MAX_ANSWERS: usize = 8;
/// and for what programs of users ask for.
const MAX_OF_USERS: usize = 12;
/// Of these, for users that have fewer than that.
const KEPT: usize = 4;
/// The rest, for any user.
const MAX_OF_ANY: usize = MAX_OF_USERS - KEPT;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::cm::Route;
    use roce_wire::Qpn;
    use roce_wire::mad::MAD_LEN;
    use std::net::Ipv4Addr;

    fn outgoing(is_first: bool) -> Outgoing {
        let user = is_first.then_some(0);
        let [local, remote] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let route = Route { local, remote, traffic_class: 0, flow_label: 0, qpn: Qpn::GSI };
        Outgoing { route, mad: [0; MAD_LEN], user }
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
            let expected = if n <= MAX_ANSWERS { SEEK } else { WAIT };
            assert_eq!(known.step(key(n), &outgoing(false), now), expected);
        }
        assert_eq!(known.step(key(2000), &outgoing(true), now), SEEK);
        assert_eq!(known.found(key(2000), Some((7, ())), now), [outgoing(true)]);
        // None answers: others are looked for then.
        assert_eq!(known.found(key(1), None, now), []);
        assert_eq!(known.step(key(1), &outgoing(false), now), SEEK);
        assert_eq!(known.ways.len(), MAX_ANSWERS + 1);
    }

    #[test]
    fn programs_that_ask_for_much_leave_room_for_incoming_connections() {
        let now = Instant::now();
        let mut known: Known<u8, ()> = Known::default();
        for (n, user) in (1..1000).zip([0, 0, 1, 2].into_iter().cycle()) {
            if n % 2 == 0 {
                known.ask(key(n), user, now);
            } else {
                known.step(key(n), &Outgoing { user: Some(user), ..outgoing(true) }, now);
            }
        }
        assert_eq!(known.sought.len(), MAX_OF_USERS);
        assert_eq!(known.step(key(2000), &outgoing(false), now), SEEK);
        assert_eq!(known.found(key(2000), Some((7, ())), now), [outgoing(false)]);
        // It is looked at again, too.
        let leaves = Step { leave: Some(7), seek: true };
        assert_eq!(known.step(key(2000), &outgoing(false), now + FRESH), leaves);
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
            known.step(key(100 + n), &outgoing(n % 2 == 0), later);
        }
        let latest = later + FRESH;
        assert_eq!(known.step(key(1), &outgoing(false), latest), leaves(2, false));
        assert_eq!(known.step(key(1), &outgoing(true), latest), leaves(2, false));
    }

    #[test]
    fn a_program_is_told_of_a_way_that_is_known_or_waits_for_a_thread_that_looks() {
        let now = Instant::now();
        let mut known: Known<u8, ()> = Known::default();
        assert_eq!(known.ask(key(1), 0, now), Answer::Seek);
        assert_eq!(known.ask(key(1), 1, now), Answer::Sought);
        assert_eq!(known.step(key(1), &outgoing(true), now), WAIT);
        assert_eq!(known.found(key(1), Some((1, ())), now), [outgoing(true)]);
        assert_eq!(known.ask(key(1), 0, now), Answer::Known);
        let later = now + FRESH;
        assert_eq!(known.ask(key(1), 0, later), Answer::Seek);
        for n in 2..=MAX_OF_ANY {
            assert_eq!(known.ask(key(n), 0, later), Answer::Seek);
        }
        assert_eq!(known.ask(key(100), 0, later), Answer::Busy);
        assert_eq!(known.found(key(2), None, later), []);
        assert_eq!(known.ask(key(100), 0, later), Answer::Seek);
        // A way that is old is used where no thread is free to look at it again.
        assert_eq!(known.ask(key(1), 0, later + FRESH), Answer::Known);
    }

    #[test]
    fn a_user_leaves_threads_to_others() {
        let now = Instant::now();
        let mut known: Known<u8, ()> = Known::default();
        let asked = |known: &mut Known<u8, ()>, user: u8| {
            let keys = (0..100).map(|n| key(1000 * (usize::from(user) + 1) + n));
            keys.take_while(|key| known.ask(*key, user, now) == Answer::Seek).count()
        };
        assert_eq!(asked(&mut known, 0), MAX_OF_ANY);
        assert_eq!(known.step(key(1), &outgoing(true), now), WAIT);
        assert_eq!(asked(&mut known, 1), KEPT);
        assert_eq!(asked(&mut known, 2), 0);
        assert_eq!(known.found(key(1000), None, now), []);
        // The first one has enough.
        assert_eq!(known.ask(key(1050), 0, now), Answer::Busy);
        assert_eq!(asked(&mut known, 2), 1);
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
        assert!(!known.step(key(5000), &outgoing(false), now).seek);
        assert_eq!(known.ask(key(5000), 0, now), Answer::Seek);
        assert_eq!(known.ways.len(), MAX_KNOWN);
        assert_eq!(known.found(key(5000), Some((1, ())), now), []);
        assert_eq!(known.step(key(9999), &outgoing(true), now + FRESH), SEEK);
        assert_eq!(known.ways.len(), 1);
        for _ in 0..MAX_WAITING + 10 {
            known.step(key(9999), &outgoing(true), now);
        }
        assert_eq!(known.found(key(9999), Some((1, ())), now).len(), MAX_WAITING);
    }
}
