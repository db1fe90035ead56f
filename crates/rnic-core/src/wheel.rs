//! Timers: a hierarchical wheel of what they are for.
//!
//! The wheel is lazy. A QP keeps its real deadline; the wheel reports its key at most [`TICK`]
//! nanoseconds after what was scheduled. When the deadline has moved later since (every ACK moves
//! it), the engine schedules the key again on expiry, so restarting a timer on the data path costs
//! one store. Spurious reports are allowed, missed ones are not.

use crate::time::Instant;

/// Nanoseconds of one tick: far below the shortest ACK timeout that makes sense, and about the
/// shortest RNR timer (10 us).
pub const TICK: u64 = 8_192;
const LEVELS: usize = 4;
const SLOTS: usize = 64;
const LEVEL_BITS: u32 = 6;

/// What a timer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerKey {
    /// The timer of the QP in this slot.
    Qp(u32),
}

/// A wheel of timers.
#[derive(Debug)]
pub struct Wheel {
    /// Current tick: everything scheduled at or before it has been reported.
    now: u64,
    levels: [Level; LEVELS],
    /// Entries taken out of a bucket while it is being emptied; kept to reuse its memory.
    scratch: Vec<Entry>,
    len: usize,
}

#[derive(Debug)]
struct Level {
    occupied: u64,
    buckets: Vec<Vec<Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tick: u64,
    key: TimerKey,
}

impl Wheel {
    /// An empty wheel.
    pub fn new(now: Instant) -> Self {
        let level = || Level { occupied: 0, buckets: (0..SLOTS).map(|_| Vec::new()).collect() };
        Self {
            now: now.as_nanos() / TICK,
            levels: [level(), level(), level(), level()],
            scratch: Vec::new(),
            len: 0,
        }
    }

    /// Asks for `key` to be reported once at `deadline`, rounded up to the tick.
    pub fn schedule(&mut self, deadline: Instant, key: TimerKey) {
        let tick = deadline.as_nanos().div_ceil(TICK).max(self.now + 1);
        self.place(Entry { tick, key });
        self.len += 1;
    }

    fn place(&mut self, entry: Entry) {
        let ahead = entry.tick - self.now;
        let top = LEVELS - 1;
        // The level whose bucket width still separates the entry from now. Beyond the wheel's
        // horizon it waits in the farthest bucket and is placed again from there.
        let level = (0..top).find(|l| ahead < 1 << (LEVEL_BITS * (*l as u32 + 1))).unwrap_or(top);
        let horizon = (1u64 << (LEVEL_BITS * LEVELS as u32)) - 1;
        let tick = entry.tick.min(self.now + horizon);
        let bucket = (tick >> (LEVEL_BITS * level as u32)) as usize % SLOTS;
        let Some(level) = self.levels.get_mut(level) else { return };
        level.occupied |= 1 << bucket;
        if let Some(bucket) = level.buckets.get_mut(bucket) {
            bucket.push(entry);
        }
    }

    /// Moves to `now` and appends every key whose time has come.
    pub fn expire(&mut self, now: Instant, due: &mut Vec<TimerKey>) {
        let target = now.as_nanos() / TICK;
        while self.now < target {
            if self.len == 0 {
                self.now = target;
                return;
            }
            self.now = self.next_stop().min(target);
            self.cascade();
            self.empty_bucket(due);
        }
    }

    /// The next tick at which a bucket of some level must be looked at.
    fn next_stop(&self) -> u64 {
        let mut stop = u64::MAX;
        for (l, level) in (0u32..).zip(&self.levels) {
            if level.occupied == 0 {
                continue;
            }
            let shift = LEVEL_BITS * l;
            let current = self.now >> shift;
            let rotated = level.occupied.rotate_right((current % SLOTS as u64) as u32 + 1);
            let steps = u64::from(rotated.trailing_zeros()) + 1;
            stop = stop.min((current + steps) << shift);
        }
        stop.max(self.now + 1)
    }

    /// Spreads the coarse buckets that begin at this tick over the finer levels.
    fn cascade(&mut self) {
        for l in (1..LEVELS).rev() {
            let shift = LEVEL_BITS * l as u32;
            if self.now & ((1 << shift) - 1) == 0 {
                let bucket = (self.now >> shift) as usize % SLOTS;
                self.take(l, bucket);
                let mut entries = std::mem::take(&mut self.scratch);
                for entry in entries.drain(..) {
                    // An entry due right now goes to this tick's own bucket of level 0.
                    self.place_or_due(entry);
                }
                self.scratch = entries;
            }
        }
    }

    fn place_or_due(&mut self, entry: Entry) {
        if entry.tick > self.now {
            self.place(entry);
            return;
        }
        let bucket = self.now as usize % SLOTS;
        self.levels[0].occupied |= 1 << bucket;
        self.levels[0].buckets[bucket].push(entry);
    }

    fn take(&mut self, level: usize, bucket: usize) {
        let level = &mut self.levels[level];
        level.occupied &= !(1 << bucket);
        std::mem::swap(&mut self.scratch, &mut level.buckets[bucket]);
    }

    fn empty_bucket(&mut self, due: &mut Vec<TimerKey>) {
        self.take(0, self.now as usize % SLOTS);
        let mut entries = std::mem::take(&mut self.scratch);
        for entry in entries.drain(..) {
            if entry.tick <= self.now {
                self.len -= 1;
                due.push(entry.key);
            } else {
                self.place(entry);
            }
        }
        self.scratch = entries;
    }

    /// Entries not reported yet.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When [`expire`](Self::expire) should be called next; never later than the earliest entry.
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.len > 0).then(|| Instant::from_nanos(self.next_stop().saturating_mul(TICK)))
    }
}

#[cfg(test)]
mod tests {
    use super::{TICK, TimerKey, Wheel};
    use crate::time::Instant;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn nothing_is_reported_early_and_nothing_is_forgotten() {
        let mut wheel = Wheel::new(at(0));
        wheel.schedule(at(100_000), TimerKey::Qp(1));
        wheel.schedule(at(50_000_000), TimerKey::Qp(2));
        let mut due = Vec::new();
        wheel.expire(at(99_000), &mut due);
        assert!(due.is_empty());
        wheel.expire(at(100_000 + TICK), &mut due);
        assert_eq!(due, [TimerKey::Qp(1)]);
        wheel.expire(at(60_000_000), &mut due);
        assert_eq!(due, [TimerKey::Qp(1), TimerKey::Qp(2)]);
        assert_eq!(wheel.next_deadline(), None);
    }

    proptest! {
        #[test]
        fn every_entry_is_reported_once_and_on_time(
            start in 0u64..1 << 40,
            delays in proptest::collection::vec(0u64..1 << 42, 1..60),
        ) {
            let mut wheel = Wheel::new(at(start));
            for (slot, delay) in (0u32..).zip(&delays) {
                wheel.schedule(at(start + delay), TimerKey::Qp(slot));
            }
            let mut seen = vec![0; delays.len()];
            let mut due = Vec::new();
            while let Some(next) = wheel.next_deadline() {
                wheel.expire(next, &mut due);
                for TimerKey::Qp(slot) in due.drain(..) {
                    seen[slot as usize] += 1;
                    let deadline = start + delays[slot as usize];
                    prop_assert!(next.as_nanos() >= deadline);
                    prop_assert!(next.as_nanos() <= deadline + 2 * TICK);
                }
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
        }
    }
}
