//! When yielding costs too much: a third thread competes for the shared CPU, or more threads poll
//! than there are CPUs.

use rnic_core::time::Instant;

/// A yield that takes longer was to a thread that computes, nanoseconds: the shortest slice of
/// threads that ask for none of their own. Engines and programs that yield to each other are back
/// sooner: two pairs of programs that post for 16 queue pairs each, after some 200 us.
pub(super) const SLICE: u64 = 700_000;
/// The CPU is contended when long yields take half of so many nanoseconds. That is longer than the
/// scheduler takes to balance two threads that begin to share a CPU: some slices each.
pub(super) const WINDOW: u64 = 50_000_000;
/// Least and most nanoseconds until it is tried again whether the CPU is still contended; doubled
/// each time that it is.
const CONTENDED_FOR: (u64, u64) = (100_000_000, 3_200_000_000);
/// How often to count the threads that poll, nanoseconds: several slices.
const COUNT_EVERY: u64 = 10_000_000;
/// How long a count above the number of CPUs holds, nanoseconds: not every polling thread gets a
/// CPU between two counts.
const MANY_FOR: u64 = 100_000_000;

/// Whether a third thread competes for the CPU that engine and program share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contention {
    until: Option<Instant>,
    /// When it ended last, and how many nanoseconds it was assumed for.
    last: (Instant, u64),
    away: Away,
}

impl Contention {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// True when it ends now.
    #[inline]
    pub(super) fn ends(&mut self, now: Instant) -> bool {
        let ends = self.until.is_some_and(|until| now >= until);
        if ends {
            self.until = None;
            self.away = Away::default();
        }
        ends
    }

    /// The engine yielded from one time to the other. True when the CPU is contended from now on.
    #[inline]
    pub(super) fn begins(&mut self, from: Instant, to: Instant) -> bool {
        if !self.away.add(from, to, WINDOW / 2) {
            return false;
        }
        let (ended, nanos) = self.last;
        let is_new = to.as_nanos().saturating_sub(ended.as_nanos()) > nanos;
        let next = if is_new { 0 } else { nanos * 2 };
        let nanos = next.clamp(CONTENDED_FOR.0, CONTENDED_FOR.1);
        // All engines of a machine try again at the same times: those that would yield to each
        // other find that only while all of them do.
        let until = Instant::from_nanos((to.as_nanos() + nanos / 2).next_multiple_of(nanos));
        self.until = Some(until);
        self.last = (until, nanos);
        true
    }
}

/// How long recent yields of the engine took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Away {
    since: Instant,
    nanos: u64,
}

impl Away {
    /// Adds a yield. True when more than so many nanoseconds of a [`WINDOW`] were lost that way.
    pub(super) fn add(&mut self, from: Instant, to: Instant, most: u64) -> bool {
        let nanos = to.as_nanos().saturating_sub(from.as_nanos());
        if nanos < SLICE {
            return false;
        }
        if to.as_nanos().saturating_sub(self.since.as_nanos()) > WINDOW {
            *self = Self { since: from, nanos: 0 };
        }
        self.nanos += nanos;
        self.nanos > most
    }
}

/// Whether more threads poll than there are CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pollers {
    cpus: u32,
    counted: Instant,
    many_until: Option<Instant>,
}

impl Pollers {
    pub(super) fn new(cpus: u32) -> Self {
        Self { cpus, counted: Instant::ZERO, many_until: None }
    }

    #[inline]
    pub(super) fn are_many(&self) -> bool {
        self.many_until.is_some()
    }

    /// Counts them now and then. True when they became many, or few.
    #[inline]
    pub(super) fn change(&mut self, now: Instant, count: impl FnOnce() -> u32) -> bool {
        if now.as_nanos().saturating_sub(self.counted.as_nanos()) < COUNT_EVERY {
            return false;
        }
        self.counted = now;
        let before = self.many_until;
        if count() > self.cpus {
            self.many_until = Some(now.after_nanos(MANY_FOR));
        } else if before.is_some_and(|until| now >= until) {
            self.many_until = None;
        }
        before.is_some() != self.many_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn a_cpu_is_contended_when_half_of_the_time_is_lost() {
        let mut away = Away::default();
        let lost: Vec<bool> =
            (0..40).map(|k| away.add(at(k * 1100), at(k * 1100 + 1000), WINDOW / 2)).collect();
        assert_eq!(lost.iter().position(|lost| *lost), Some(25));
    }

    #[test]
    fn programs_that_answer_soon_and_rare_interruptions_do_not_count() {
        let mut away = Away::default();
        assert!((0..10_000).all(|k| !away.add(at(k * 700), at(k * 700 + 699), WINDOW / 2)));
        assert!((0..1000).all(|k| !away.add(at(k * 20_000), at(k * 20_000 + 4000), WINDOW / 2)));
    }

    /// Contention each time that it is looked for, from this microsecond on: when each ends,
    /// milliseconds, and for how many it lasted.
    fn contentions(mut now: u64) -> Vec<(u64, u64)> {
        let mut contention = Contention::default();
        let mut all = Vec::new();
        for _ in 0..7 {
            while !contention.begins(at(now), at(now + 1000)) {
                now += 1000;
            }
            let began = now;
            while !contention.ends(at(now)) {
                assert!(contention.is_on());
                now += 1000;
            }
            all.push((now / 1000, (now - began) / 1000));
        }
        all
    }

    #[test]
    fn contention_that_comes_again_is_assumed_for_twice_as_long() {
        let lengths = [100, 200, 400, 800, 1600, 3200, 3200];
        for ((end, took), about) in contentions(1_000_000).into_iter().zip(lengths) {
            assert!(end.is_multiple_of(about), "until {end} ms, not a multiple of {about}");
            assert!((about / 2..=about * 3 / 2).contains(&took), "{took} ms, not {about}");
        }
    }

    #[test]
    fn those_that_meet_try_again_at_the_same_time() {
        for ((one, _), (other, _)) in contentions(1_000_000).into_iter().zip(contentions(1_013_000))
        {
            assert_eq!(one, other);
        }
    }

    #[test]
    fn threads_that_poll_are_many_until_a_while_after_the_last_count() {
        let mut pollers = Pollers::new(2);
        assert!(!pollers.change(at(10_000), || 2) && !pollers.are_many());
        assert!(!pollers.change(at(19_000), || unreachable!()));
        assert!(pollers.change(at(20_000), || 3) && pollers.are_many());
        assert!(!pollers.change(at(110_000), || 0) && pollers.are_many());
        assert!(pollers.change(at(120_000), || 0) && !pollers.are_many());
    }
}
