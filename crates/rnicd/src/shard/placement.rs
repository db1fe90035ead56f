//! Where the engine's thread runs, and when engine and programs yield the CPU to each other.
//!
//! With fewer CPUs than spinning threads, engine and program share one CPU: the engine yields
//! (`sched_yield`) only after it delivered something, the program after a post and after an empty
//! poll. Then each runs exactly when it has something to do. Yielding after every idle turn, or
//! never, costs milliseconds instead: threads of equal weight switch only at the end of a slice.
//!
//! A yield reaches only threads of the same scheduling group, and a daemon that a service manager
//! started is in another group than its programs. And a yield may hand the CPU to any thread:
//! beside a third one that computes, each costs a slice. In both cases the engine sleeps as soon as
//! it has nothing to do, because a thread that wakes preempts others. Programs that poll again and
//! again for nothing are asked to sleep too, until the engine wakes them.
//!
//! With more polling threads than CPUs, those on the engine's CPU would yield and all others would
//! spin, each to the end of its slice. Then all yield, on every CPU. That is better than sleep:
//! each thread gets its turn for the price of a switch.

use crate::config::Placement as Policy;
use rnic_abi::doorbell::{Courtesy, GiveWay};
use rnic_core::Engine;
use rnic_core::time::Instant;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Follows programs from CPU to CPU.
#[derive(Debug)]
pub(crate) struct Placement {
    follows: bool,
    cpus: u32,
    allowed: Option<CpuSet>,
    /// The CPU shared with a program.
    cpu: Option<u32>,
    looked: Instant,
    /// When threads that poll were counted last.
    counted: Instant,
    /// Some programs are in another scheduling group.
    strangers: bool,
    /// Set while a third thread competes for the shared CPU: until then the engine sleeps instead
    /// of yielding, and programs that poll again and again for nothing do too.
    crowded: Option<Instant>,
    /// Set while more threads poll than there are CPUs: until then all of them yield on every CPU,
    /// and the engine sleeps instead of yielding.
    many: Option<Instant>,
    /// When the crowd ended last, and how long it was.
    last_crowd: (Instant, u64),
    away: Away,
}

/// How long recent yields of the engine took.
#[derive(Clone, Copy, Debug, Default)]
struct Away {
    since: Instant,
    nanos: u64,
}

impl Away {
    /// Adds a yield. True when too much of the time was lost that way.
    fn add(&mut self, from: Instant, to: Instant) -> bool {
        let nanos = to.as_nanos().saturating_sub(from.as_nanos());
        if nanos < LONG_ABSENCE {
            return false;
        }
        if to.as_nanos().saturating_sub(self.since.as_nanos()) > WINDOW {
            *self = Self { since: from, nanos: 0 };
        }
        self.nanos += nanos;
        self.nanos > WINDOW / 2
    }
}

/// How often to look where programs are, nanoseconds.
const LOOK_EVERY: u64 = 500_000;
/// How often to count the threads that poll, nanoseconds: several slices.
const COUNT_EVERY: u64 = 10_000_000;
/// How long a count above the number of CPUs holds, nanoseconds: not every polling thread gets a
/// CPU between two counts.
const MANY_FOR: u64 = 100_000_000;
/// With this many CPUs, engine and program each get one of their own.
const ENOUGH_CPUS: u32 = 4;
/// A yield that takes longer was not to a program that answers or has more to post, nanoseconds.
const LONG_ABSENCE: u64 = 30_000;
/// The CPU is contended when long yields take half of so many nanoseconds. That is longer than the
/// scheduler takes to balance two threads that begin to share a CPU: some slices each.
const WINDOW: u64 = 50_000_000;
/// Least and most nanoseconds until it is tried again whether the CPU is still contended; doubled
/// each time that it is.
const CROWDED_FOR: (u64, u64) = (100_000_000, 3_200_000_000);
/// The slice of an engine that does not yield, nanoseconds: the shorter the slice, the sooner a
/// waking thread preempts one that spins.
const SHORT_SLICE: u64 = 100_000;
/// The kernel's default slice. EEVDF charges a thread that yields the rest of its slice: of two
/// threads that yield to each other, the one with the longer slice gathers lag and is delayed.
const USUAL_SLICE: u64 = 0;

impl Placement {
    /// For the calling thread.
    pub(crate) fn new(policy: Policy) -> Self {
        let allowed = sched_getaffinity(None).ok();
        let cpus = allowed.as_ref().map_or(ENOUGH_CPUS, CpuSet::count);
        let follows = match policy {
            Policy::Program => true,
            Policy::Free => false,
            Policy::Auto => cpus < ENOUGH_CPUS,
        };
        request_slice(SHORT_SLICE);
        Self {
            follows,
            cpus,
            allowed,
            cpu: None,
            looked: Instant::ZERO,
            counted: Instant::ZERO,
            strangers: false,
            crowded: None,
            many: None,
            last_crowd: (Instant::ZERO, 0),
            away: Away::default(),
        }
    }

    /// Whether some programs are in another scheduling group.
    pub(crate) fn set_strangers(&mut self, strangers: bool, engine: &mut Engine) {
        if std::mem::replace(&mut self.strangers, strangers) == strangers {
            return;
        }
        if strangers && self.cpu.is_some() {
            self.cpu = self.move_to(None);
        }
        self.agree(engine);
    }

    /// True when spinning keeps no other thread from running.
    #[inline]
    pub(crate) fn may_spin(&self) -> bool {
        !self.needs_sleep() && self.many.is_none()
    }

    /// True when engine and program yield to each other.
    #[inline]
    pub(crate) fn hands_over(&self) -> bool {
        self.cpu.is_some() && self.crowded.is_none() && self.many.is_none()
    }

    /// True when yielding is of no use, or costs too much.
    #[inline]
    fn needs_sleep(&self) -> bool {
        (self.follows && self.strangers) || self.crowded.is_some()
    }

    /// Moves to the CPU of a program, when there is one to follow.
    #[inline]
    pub(crate) fn after_turn(&mut self, now: Instant, engine: &mut Engine) {
        if self.crowded.is_some_and(|until| now >= until) {
            self.crowded = None;
            self.away = Away::default();
            self.agree(engine);
        }
        if now.as_nanos().saturating_sub(self.counted.as_nanos()) >= COUNT_EVERY {
            self.counted = now;
            self.count(now, engine);
        }
        let follows = self.follows && !self.strangers;
        if follows && now.as_nanos().saturating_sub(self.looked.as_nanos()) >= LOOK_EVERY {
            self.looked = now;
            self.look(now, engine);
        }
    }

    /// Tells engine and programs where to yield, and whether to spin or to sleep.
    fn agree(&self, engine: &mut Engine) {
        let hands_over = self.hands_over();
        request_slice(if hands_over { USUAL_SLICE } else { SHORT_SLICE });
        let many = self.many.is_some();
        let give_way = match self.cpu {
            _ if many => GiveWay::Everywhere,
            Some(cpu) => GiveWay::On(cpu),
            None => GiveWay::Nowhere,
        };
        engine.ask_programs(Courtesy { give_way, sleep: self.needs_sleep() && !many });
    }

    /// Looks whether there are more threads that poll than CPUs.
    fn count(&mut self, now: Instant, engine: &mut Engine) {
        let before = self.many;
        if engine.take_pollers(now) > self.cpus {
            self.many = Some(now.after_nanos(MANY_FOR));
        } else if before.is_some_and(|until| now >= until) {
            self.many = None;
        }
        if before.is_some() != self.many.is_some() {
            self.agree(engine);
        }
    }

    fn look(&mut self, now: Instant, engine: &mut Engine) {
        let target = engine.program_cpu(self.cpu, now);
        let here = u32::try_from(sched_getcpu()).ok();
        if target == self.cpu && (target.is_none() || target == here) {
            return;
        }
        self.cpu = self.move_to(target);
        self.agree(engine);
    }

    /// Returns the CPU that is now shared.
    fn move_to(&self, target: Option<u32>) -> Option<u32> {
        let allowed = self.allowed.as_ref()?;
        match target.and_then(|cpu| usize::try_from(cpu).ok()) {
            Some(cpu) if cpu < CpuSet::MAX_CPU && allowed.is_set(cpu) => {
                let mut one = CpuSet::new();
                one.set(cpu);
                sched_setaffinity(None, &one).ok()?;
                target
            }
            _ => {
                let _ = sched_setaffinity(None, allowed);
                None
            }
        }
    }

    /// The engine yielded from one time to the other.
    #[inline]
    pub(crate) fn was_away(&mut self, from: Instant, to: Instant, engine: &mut Engine) {
        if self.away.add(from, to) {
            let (ended, nanos) = self.last_crowd;
            let is_new = to.as_nanos().saturating_sub(ended.as_nanos()) > nanos;
            let next = if is_new { 0 } else { nanos * 2 };
            let nanos = next.clamp(CROWDED_FOR.0, CROWDED_FOR.1);
            let until = to.after_nanos(nanos);
            self.crowded = Some(until);
            self.last_crowd = (until, nanos);
            self.agree(engine);
        }
    }
}

/// Something that is tried every time while it is of use, and ever more seldom when it is not.
#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    /// Occasions until the next attempt.
    skip: u32,
    /// Occasions between two attempts.
    every: u32,
}

impl Attempts {
    fn is_due(&self) -> bool {
        self.skip == 0
    }

    fn skip_one(&mut self) {
        self.skip = self.skip.saturating_sub(1);
    }

    fn learn(&mut self, was_of_use: bool) {
        self.every = if was_of_use { 0 } else { (self.every * 2).clamp(64, 1 << 16) };
        self.skip = self.every;
    }
}

/// Whether programs that share the CPU wait for completions. One that looks at its memory for the
/// answer instead runs until the end of its slice and posts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polling {
    attempts: Attempts,
    /// They ran for long; what they posted shows in the second half of the turn.
    is_open: bool,
}

impl Polling {
    /// Once for every completion without data: whether to let programs run.
    #[inline]
    pub(crate) fn asks(&mut self) -> bool {
        let asks = self.attempts.is_due();
        self.attempts.skip_one();
        asks
    }

    /// They ran from one time to the other.
    #[inline]
    pub(crate) fn ran(&mut self, from: Instant, to: Instant) {
        self.is_open = to.as_nanos().saturating_sub(from.as_nanos()) >= LONG_ABSENCE;
        if !self.is_open {
            self.attempts.learn(true);
        }
    }

    /// Whether doorbells rang afterwards.
    #[inline]
    pub(crate) fn conclude(&mut self, rang: bool) {
        if std::mem::take(&mut self.is_open) {
            self.attempts.learn(rang);
        }
    }
}

/// Whether programs that share the CPU have more to post when what they posted is sent. That is
/// tried out now and then: one that waits for an answer gives way again for nothing, and one that
/// waits by looking at its memory does not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posting {
    attempts: Attempts,
    asked: bool,
}

impl Posting {
    /// A program woke the engine behind a post, which took the CPU from it in the middle of what it
    /// was doing: it may well have more to post.
    pub(crate) fn woken(&mut self) {
        self.attempts.skip = 0;
    }

    /// Once in a turn: whether to let programs run now. `all_sent`: a doorbell rang in this turn
    /// and all that was posted is sent.
    #[inline]
    pub(crate) fn asks(&mut self, all_sent: bool, rang: bool) -> bool {
        if self.asked {
            self.attempts.learn(rang);
        }
        self.asked = all_sent && self.attempts.is_due();
        if all_sent {
            self.attempts.skip_one();
        }
        self.asked
    }
}

fn request_slice(nanos: u64) {
    if let Err(error) = crate::system::request_slice(nanos) {
        tracing::debug!("the scheduler grants no slice of {nanos} ns: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn a_cpu_is_crowded_when_half_of_the_time_is_lost() {
        let mut away = Away::default();
        let lost: Vec<bool> =
            (0..40).map(|k| away.add(at(k * 1100), at(k * 1100 + 1000))).collect();
        assert_eq!(lost.iter().position(|lost| *lost), Some(25));
    }

    #[test]
    fn programs_that_post_no_more_are_seldom_asked() {
        let mut posting = Posting::default();
        let turns = (0..10_000).map(|k| posting.asks(k % 2 == 0, k % 2 == 0));
        let asked = turns.filter(|asked| *asked).count();
        assert_eq!(asked, 7);
    }

    #[test]
    fn programs_that_do_nothing_with_completions_are_seldom_asked() {
        let mut polling = Polling::default();
        let mut ran = |micros, rang| {
            let mut asked = 0;
            for k in 0..10_000 {
                if polling.asks() {
                    asked += 1;
                    polling.ran(at(k * 4000), at(k * 4000 + micros));
                }
                polling.conclude(rang);
            }
            asked
        };
        assert_eq!(ran(3000, false), 8);
        // The next attempt shows that they do something now.
        assert!(ran(5, false) > 1000);
        assert_eq!(ran(5, false), 10_000);
        assert_eq!(ran(3000, true), 10_000);
    }

    #[test]
    fn programs_that_wake_the_engine_are_asked() {
        let mut posting = Posting::default();
        for k in 0..10_000 {
            posting.asks(k % 2 == 0, k % 2 == 0);
        }
        assert!(!posting.asks(true, true));
        posting.woken();
        assert!(posting.asks(true, true));
    }

    #[test]
    fn programs_that_post_more_are_always_asked() {
        let mut posting = Posting::default();
        assert!((0..100).all(|_| posting.asks(true, true)));
    }

    #[test]
    fn programs_that_answer_soon_and_rare_interruptions_do_not_count() {
        let mut away = Away::default();
        assert!((0..100_000).all(|k| !away.add(at(k * 30), at(k * 30 + 29))));
        assert!((0..1000).all(|k| !away.add(at(k * 20_000), at(k * 20_000 + 4000))));
    }
}
