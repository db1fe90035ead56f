//! Whether something else needs the CPU of a thread that drives.
//!
//! Such a thread never yields, so nothing is learnt from yields. But time in which it made no turn,
//! did not sleep, and had no CPU because another thread was given it, was that thread's.

use super::contention::{Away, SLICE, WINDOW};
use crate::system::CpuUse;
use rnic_core::time::Instant;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub(in super::super) struct Crowd {
    away: Away,
    /// A time, and what the thread had had of its CPUs by then.
    sample: Option<(Instant, CpuUse)>,
    until: Option<Instant>,
}

/// A crowd is believed in for so long after time was lost to it.
const BELIEVED: Duration = Duration::from_secs(1);
/// More nanoseconds of a window are those of a thread that computes: it has half of the time.
const MOST: u64 = WINDOW / 4;
/// Shorter ones say nothing, nanoseconds: interrupts last as long.
const GAP: u64 = SLICE / 4;
/// How old a sample may be when the thread makes its next turn, nanoseconds.
const SAMPLE: u64 = 1_000_000;

impl Crowd {
    /// The thread has slept, or it is another one.
    pub(in super::super) fn forget_sample(&mut self) {
        self.sample = None;
    }

    /// A turn begins, and the one before began at `left`. Whether another thread had the CPU for
    /// most of the time in between. `cpu_use` is what this one has had of its CPUs.
    #[inline]
    pub(in super::super) fn look(
        &mut self,
        left: Instant,
        now: Instant,
        cpu_use: fn() -> CpuUse,
    ) -> bool {
        let gap = between(left, now);
        match self.sample {
            Some((when, _)) if gap < GAP && between(when, now) < SAMPLE => false,
            _ => self.take_sample(gap, now, cpu_use()),
        }
    }

    #[cold]
    fn take_sample(&mut self, gap: u64, now: Instant, cpu: CpuUse) -> bool {
        let Some((when, before)) = self.sample.replace((now, cpu)) else { return false };
        let ran = cpu.nanos.saturating_sub(before.nanos);
        let lost = between(when, now).saturating_sub(ran).min(gap);
        let was_taken = cpu.losses != before.losses && cpu.sleeps == before.sleeps;
        if gap < GAP || lost * 2 < gap || !was_taken {
            return false;
        }
        let since = Instant::from_nanos(now.as_nanos() - lost);
        if self.away.add(since, now, MOST) {
            self.until = Some(now.after(BELIEVED));
        }
        true
    }

    /// One that begins now.
    #[cfg(test)]
    pub(in super::super) fn new(now: Instant) -> Self {
        Self { until: Some(now.after(BELIEVED)), ..Self::default() }
    }

    /// Whether something else needs the CPU.
    #[inline]
    pub(in super::super) fn is_on(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| now >= *until);
        self.until.is_some()
    }
}

fn between(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Turns every 100 us, and every 8 ms none for 4 ms, in which the thread works, sleeps or loses
    /// its CPU. When it is a crowd, milliseconds.
    fn crowded_after(crowd: &mut Crowd, in_gap: CpuUse) -> Option<u64> {
        let (mut left, mut cpu) = (0, CpuUse::default());
        (1..4000).map(|turn| turn * 100).filter(|now| now % 8000 > 4000).find_map(|now| {
            let gap = now - left;
            let used = if gap > 100 { in_gap } else { of(gap, 0, 0) };
            cpu.nanos += used.nanos;
            cpu.sleeps += used.sleeps;
            cpu.losses += used.losses;
            let took = crowd.take_sample(gap * 1000, at(now), cpu);
            assert_eq!(took, used.losses > 0 && used.sleeps == 0 && left > 0);
            left = now;
            crowd.is_on(at(now)).then_some(now / 1000)
        })
    }

    fn of(micros: u64, sleeps: u64, losses: u64) -> CpuUse {
        CpuUse { nanos: micros * 1000, sleeps, losses }
    }

    #[test]
    fn a_thread_that_computes_takes_more_than_a_quarter_of_the_time() {
        let mut crowd = Crowd::default();
        let began = crowded_after(&mut crowd, of(100, 0, 1)).unwrap();
        assert!((28..=37).contains(&began), "{began} ms");
        assert!(crowd.is_on(at(began * 1000 + 999_000)));
        assert!(!crowd.is_on(at((began + 1) * 1000 + 1_000_000)));
    }

    #[test]
    fn a_program_that_works_or_sleeps_between_its_polls_is_no_crowd() {
        assert_eq!(crowded_after(&mut Crowd::default(), of(4100, 0, 0)), None);
        assert_eq!(crowded_after(&mut Crowd::default(), of(100, 1, 0)), None);
    }

    #[test]
    fn short_gaps_are_not_looked_at_but_now_and_then() {
        static LOOKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let looks = || {
            LOOKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            CpuUse::default()
        };
        let mut crowd = Crowd::default();
        assert!((1..=100).all(|k| !crowd.look(at(k * 100 - 100), at(k * 100), looks)));
        assert_eq!(LOOKS.load(std::sync::atomic::Ordering::Relaxed), 10);
    }

    #[test]
    fn a_rest_is_not_lost() {
        let mut crowd = Crowd::default();
        assert!(!crowd.look(at(0), at(100), || of(0, 0, 0)));
        crowd.forget_sample();
        assert!(!crowd.look(at(100), at(9000), || of(100, 0, 1)));
        assert!(crowd.look(at(9000), at(18_000), || of(200, 0, 2)));
    }
}
