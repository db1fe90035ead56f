//! Identifiers whose programs wait for the way to a peer, each no longer than its program wants.

use super::known::Key;
use rnic_core::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Askers {
    by_id: BTreeMap<u32, Asker>,
    by_key: BTreeSet<(Key, u32)>,
    deadlines: BTreeSet<(Instant, u32)>,
    /// For whose way no thread was free: by user, in the order of asking.
    delayed: BTreeMap<Place, u32>,
    /// Grows with each that is delayed.
    turn: u64,
    /// The user that had a turn last.
    last: u8,
}

/// A user, and a number.
type Place = (u8, u64);

struct Asker {
    key: Key,
    until: Instant,
    delayed: Option<Place>,
}

impl Askers {
    /// The identifier waits until then. What it waited for before does not count any more.
    pub(super) fn add(&mut self, id: u32, key: Key, until: Instant) {
        self.remove(id);
        self.by_id.insert(id, Asker { key, until, delayed: None });
        self.by_key.insert((key, id));
        self.deadlines.insert((until, id));
    }

    /// No thread looks for the way of this one yet, which is a program's of this user.
    pub(super) fn delay(&mut self, id: u32, user: u8) {
        if let Some(asker) = self.by_id.get_mut(&id) {
            self.turn += 1;
            let place = (user, self.turn);
            if let Some(before) = asker.delayed.replace(place) {
                self.delayed.remove(&before);
            }
            self.delayed.insert(place, id);
        }
    }

    /// A thread looks for the way of this one.
    pub(super) fn begin(&mut self, id: u32) {
        if let Some(place) = self.by_id.get_mut(&id).and_then(|asker| asker.delayed.take()) {
            self.delayed.remove(&place);
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.begin(id);
        if let Some(Asker { key, until, .. }) = self.by_id.remove(&id) {
            self.by_key.remove(&(key, id));
            self.deadlines.remove(&(until, id));
        }
    }

    /// Takes the identifiers that wait for this way.
    pub(super) fn take(&mut self, key: Key) -> Vec<u32> {
        let all = (key, 0)..=(key, u32::MAX);
        let ids: Vec<u32> = self.by_key.range(all).map(|(_, id)| *id).collect();
        ids.iter().for_each(|id| self.remove(*id));
        ids
    }

    /// Takes one that has waited long enough.
    pub(super) fn take_late(&mut self, now: Instant) -> Option<u32> {
        let (until, id) = *self.deadlines.first()?;
        if until > now {
            return None;
        }
        self.remove(id);
        Some(id)
    }

    /// When the first of them has waited long enough.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// One whose way no thread looks for: of each user in turn, the first. It stays.
    pub(super) fn next_delayed(&mut self) -> Option<(u8, u32, Key)> {
        let behind = (Bound::Excluded((self.last, u64::MAX)), Bound::Unbounded);
        let next = self.delayed.range(behind).next().or_else(|| self.delayed.iter().next());
        let ((user, _), id) = next.map(|(place, id)| (*place, *id))?;
        self.last = user;
        self.by_id.get(&id).map(|asker| (user, id, asker.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn key(last: u8) -> Key {
        let of = |last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last));
        (of(0), of(last), 0)
    }

    fn at(nanos: u64) -> Instant {
        Instant::ZERO.after_nanos(nanos)
    }

    #[test]
    fn each_is_answered_once_by_its_way_or_by_its_limit() {
        let mut askers = Askers::default();
        askers.add(1, key(1), at(10));
        askers.add(2, key(1), at(20));
        askers.add(3, key(2), at(5));
        assert_eq!(askers.next_deadline(), Some(at(5)));
        assert_eq!(askers.take_late(at(4)), None);
        assert_eq!(askers.take_late(at(5)), Some(3));
        assert!(askers.take(key(2)).is_empty());
        assert_eq!(askers.take(key(1)), [1, 2]);
        assert_eq!((askers.take_late(at(99)), askers.next_deadline()), (None, None));
    }

    #[test]
    fn one_that_asks_again_or_ends_leaves_nothing_behind() {
        let mut askers = Askers::default();
        askers.add(1, key(1), at(10));
        askers.delay(1, 0);
        askers.add(1, key(2), at(30));
        assert!(askers.take(key(1)).is_empty());
        assert_eq!(askers.next_delayed(), None);
        askers.delay(1, 0);
        askers.delay(1, 0);
        assert_eq!(askers.next_delayed(), Some((0, 1, key(2))));
        askers.begin(1);
        assert_eq!(askers.next_delayed(), None);
        askers.delay(1, 0);
        askers.remove(1);
        assert_eq!(askers.next_delayed(), None);
        assert_eq!(askers.next_deadline(), None);
        assert!(askers.by_key.is_empty() && askers.by_id.is_empty());
    }

    #[test]
    fn users_have_turns_however_many_ways_one_asks_for() {
        let mut askers = Askers::default();
        for (id, user) in [(1, 7), (2, 7), (3, 7), (4, 0), (5, 9)] {
            askers.add(id, key(u8::try_from(id).unwrap()), at(10));
            askers.delay(id, user);
        }
        let mut turns = Vec::new();
        while let Some((user, id, _)) = askers.next_delayed() {
            turns.push((user, id));
            askers.begin(id);
        }
        assert_eq!(turns, [(7, 1), (9, 5), (0, 4), (7, 2), (7, 3)]);
    }
}
