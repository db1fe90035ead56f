//! Whether something else needs the CPU of a thread that drives.
//!
//! Such a thread never yields, so nothing is learnt from yields. But the kernel counts how often it
//! takes the CPU from a thread, and a long gap in which it did so is time that another thread had.

use super::contention::{Away, SLICE, WINDOW};
use rnic_core::time::Instant;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub(in super::super) struct Crowd {
    away: Away,
    /// When they were counted last.
    switches: u64,
    until: Option<Instant>,
}

/// A crowd is believed in for so long after time was lost to it.
const BELIEVED: Duration = Duration::from_secs(1);

impl Crowd {
    /// Nothing was done from one time to the other. Whether another thread had the CPU then:
    /// `switches` is how often one took it.
    #[inline]
    pub(in super::super) fn note_gap(
        &mut self,
        from: Instant,
        to: Instant,
        switches: fn() -> u64,
    ) -> bool {
        let is_long = to.as_nanos().saturating_sub(from.as_nanos()) >= GAP;
        is_long && self.note_long_gap(from, to, switches())
    }

    #[cold]
    fn note_long_gap(&mut self, from: Instant, to: Instant, switches: u64) -> bool {
        let before = std::mem::replace(&mut self.switches, switches);
        let was_taken = before != self.switches;
        if was_taken && self.away.add(from, to, MOST) {
            self.until = Some(to.after(BELIEVED));
        }
        was_taken
    }

    /// Whether something else needs the CPU.
    #[inline]
    pub(in super::super) fn is_on(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| now >= *until);
        self.until.is_some()
    }
}

/// More nanoseconds of a window are those of a thread that computes: it has half of the time.
const MOST: u64 = WINDOW / 4;
/// Shorter ones say nothing, nanoseconds: interrupts last as long.
const GAP: u64 = SLICE / 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// One more each time.
    fn rising() -> u64 {
        static SWITCHES: AtomicU64 = AtomicU64::new(1);
        SWITCHES.fetch_add(1, Ordering::Relaxed)
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Slices of 4 ms, every other of which is another thread's. When it is a crowd, milliseconds.
    fn crowded_after(crowd: &mut Crowd, switches: fn() -> u64) -> Option<u64> {
        (1..50).map(|slice| slice * 8000).find_map(|now| {
            crowd.note_gap(at(now - 4000), at(now), switches);
            crowd.is_on(at(now)).then_some(now / 1000)
        })
    }

    #[test]
    fn a_thread_that_computes_takes_more_than_a_quarter_of_the_time() {
        let mut crowd = Crowd::default();
        assert_eq!(crowded_after(&mut crowd, rising), Some(32));
        assert!(crowd.is_on(at(32_000 + 999_000)) && !crowd.is_on(at(32_000 + 1_000_000)));
    }

    #[test]
    fn a_program_that_works_between_its_polls_is_no_crowd() {
        let mut crowd = Crowd::default();
        crowd.note_gap(at(0), at(4000), || 7);
        assert_eq!(crowded_after(&mut crowd, || 7), None);
    }

    #[test]
    fn short_gaps_are_not_looked_at() {
        let mut crowd = Crowd::default();
        assert!((0..100).all(|k| !crowd.note_gap(
            at(k * 200),
            at(k * 200 + 100),
            || unreachable!()
        )));
    }
}
