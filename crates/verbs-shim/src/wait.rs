//! Yielding to the engine around posts and polls.
//!
//! With fewer CPUs than spinning threads the engine shares a CPU with its program and says so in
//! the doorbell area. The program then yields (`sched_yield`) after an empty poll, the engine after
//! it delivered something.
//!
//! A program that spins on its receive buffer and never polls would hold the CPU to the end of its
//! slice, and the engine could not send what it posted. Such a program yields after a post. Others
//! must not: a program that posts a stream would wait until each request is sent alone. [`Habit`]
//! predicts which it is from the time between posts. Preemption after a post looks like spinning on
//! memory, so the prediction is dropped after some posts without a poll.
//!
//! Yielding does not reach an engine in another scheduling group, and beside a thread that computes
//! each yield costs a slice. There the engine asks for sleep: a thread that polls one CQ again and
//! again for nothing sleeps until the engine writes a completion there. A thread that wakes
//! preempts one that spins; a thread that yielded does not.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use rnic_abi::{cq::ASLEEP, doorbell::Poller, os::futex};

use crate::{context::Context, cq::Cq};

/// Predicts whether the program yields after a post. Threads that share a device make it less
/// exact, which costs time and nothing else.
#[derive(Debug)]
pub(crate) struct Habit {
    /// When it posted last, in [`ticks`]; 0 when it polled since.
    posted: AtomicU64,
    /// Posts since the last long pause.
    posts: AtomicU32,
    /// Posts before the last long pause; 0 while it polls.
    usual: AtomicU32,
    /// Yields after a post since it polled.
    gave_way: AtomicU32,
    /// The number of those after which the prediction is dropped.
    trust: AtomicU32,
}

/// Least and most of [`Habit::trust`]. It doubles each time that the prediction is dropped, because
/// a program that really spins on memory loses a time slice then.
const TRUST: (u32, u32) = (128, 4096);

/// A pause of so many ticks after a post means that the program spins on memory or computes: half
/// a millisecond at 2.5 GHz.
const ABSENCE: u64 = if cfg!(target_arch = "x86_64") { 1_250_000 } else { 500_000 };

/// A time stamp that costs a post next to nothing: cycles of the processor.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and where it is forbidden the C library
    // cannot read its clock either.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn ticks() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

impl Habit {
    pub(crate) fn new() -> Self {
        Self {
            posted: AtomicU64::new(0),
            posts: AtomicU32::new(0),
            usual: AtomicU32::new(0),
            gave_way: AtomicU32::new(0),
            trust: AtomicU32::new(TRUST.0),
        }
    }

    /// Something was posted. True when a long pause is likely now.
    #[inline]
    fn posts(&self, now: u64) -> bool {
        let before = self.posted.swap(now, Ordering::Relaxed);
        let mut posts = self.posts.load(Ordering::Relaxed);
        // A yield after a post may take long and is no pause of the program.
        if posts != 0 && before != 0 && now.saturating_sub(before) > ABSENCE {
            self.usual.store(posts, Ordering::Relaxed);
            posts = 0;
        }
        posts = posts.wrapping_add(1);
        let stays_away = posts == self.usual.load(Ordering::Relaxed) && self.spend_trust();
        self.posts.store(if stays_away { 0 } else { posts }, Ordering::Relaxed);
        stays_away
    }

    /// It is about to yield after a post. False when it did so too often without a poll that could
    /// confirm the prediction.
    fn spend_trust(&self) -> bool {
        let gave_way = self.gave_way.load(Ordering::Relaxed);
        let trust = self.trust.load(Ordering::Relaxed);
        if gave_way < trust {
            self.gave_way.store(gave_way + 1, Ordering::Relaxed);
            return true;
        }
        self.usual.store(0, Ordering::Relaxed);
        self.gave_way.store(0, Ordering::Relaxed);
        self.trust.store(trust.saturating_mul(2).min(TRUST.1), Ordering::Relaxed);
        false
    }

    /// A poll found something.
    #[inline]
    fn finds(&self) {
        if self.gave_way.load(Ordering::Relaxed) != 0 {
            self.gave_way.store(0, Ordering::Relaxed);
        }
    }

    /// A poll found nothing: the program does not spin on memory.
    #[inline]
    fn polls(&self) {
        if self.posted.load(Ordering::Relaxed) != 0 {
            self.posted.store(0, Ordering::Relaxed);
            self.posts.store(0, Ordering::Relaxed);
            self.usual.store(0, Ordering::Relaxed);
            self.gave_way.store(0, Ordering::Relaxed);
            self.trust.store(TRUST.0, Ordering::Relaxed);
        }
    }
}

/// After work was made visible and, if it sleeps, the engine was woken.
#[inline]
pub(crate) fn after_post(context: &Context) {
    if should_give_way(context) && context.habit.posts(ticks()) {
        give_way();
    }
}

/// After a poll that found something.
#[inline]
pub(crate) fn after_full_poll(context: &Context) {
    context.habit.finds();
    if STREAKS.load(Ordering::Relaxed) {
        Streak::end();
    }
}

/// After a poll that found nothing.
#[inline]
pub(crate) fn after_empty_poll(cq: &Cq) {
    let context = cq.context();
    context.bell.publish_poller(this_thread());
    let gives_way = should_give_way(context);
    if gives_way {
        context.habit.polls();
    }
    let may_sleep = context.bell.asks_to_sleep();
    if (may_sleep || STREAKS.load(Ordering::Relaxed)) && sleeps(cq, may_sleep) {
        return;
    }
    if gives_way {
        give_way();
    }
}

/// What a thread polls for nothing again and again: one CQ, nothing else and without a completion
/// in between. Only then does it sleep: it may have better things to do.
#[derive(Clone, Copy)]
struct Streak {
    /// The CQ's address; 0 while there is none.
    cq: usize,
    /// How long to sleep the next time.
    sleep: Duration,
}

const NO_STREAK: Streak = Streak { cq: 0, sleep: SLEEP.0 };

/// Least and most that a thread sleeps: it may wait for other things too. Every sleep in vain
/// doubles it.
const SLEEP: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

thread_local! {
    static STREAK: Cell<Streak> = const { Cell::new(NO_STREAK) };
}

/// The number of the calling thread in this process.
#[inline]
fn this_thread() -> Poller {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static THIS: Cell<Option<Poller>> = const { Cell::new(None) };
    }
    THIS.get().unwrap_or_else(|| {
        let new = Poller::new(NEXT.fetch_add(1, Ordering::Relaxed));
        THIS.set(Some(new));
        new
    })
}

/// Some thread was asked to sleep once. Until then streaks cost nothing.
static STREAKS: AtomicBool = AtomicBool::new(false);

impl Streak {
    #[cold]
    fn end() {
        STREAK.set(NO_STREAK);
    }

    /// One more poll for nothing, of this CQ. For how long to sleep now.
    fn poll(&mut self, cq: usize, may_sleep: bool) -> Option<Duration> {
        if self.cq != cq || !may_sleep {
            *self = Self { cq, ..NO_STREAK };
            return None;
        }
        let sleep = self.sleep;
        self.sleep = (sleep * 2).min(SLEEP.1);
        Some(sleep)
    }
}

/// One more poll for nothing. True when the thread slept, or there is a completion now.
#[cold]
fn sleeps(cq: &Cq, may_sleep: bool) -> bool {
    STREAKS.store(true, Ordering::Relaxed);
    let mut streak = STREAK.get();
    let sleep = streak.poll(std::ptr::from_ref(cq).addr(), may_sleep);
    STREAK.set(streak);
    let Some(sleep) = sleep else { return false };
    let state = cq.state.lock();
    let Some(place) = state.ring.prepare_sleep().filter(|_| state.stash.is_empty()) else {
        return true;
    };
    drop(state);
    cq.sleepers.fetch_add(1, Ordering::Relaxed);
    let woken = futex::sleep(place.word(), ASLEEP, sleep).is_ok();
    if cq.sleepers.fetch_sub(1, Ordering::Relaxed) > 1 {
        place.remains();
    }
    // As seldom as LIVENESS_POLLS would be far too seldom now.
    if !woken && sleep == SLEEP.1 {
        cq.context().look_at_daemon();
    }
    true
}

/// Empty polls between two looks at whether the daemon still lives.
pub(crate) const LIVENESS_POLLS: u32 = 1024;

/// Tells the engine where the thread runs. True when another thread waits for that CPU.
#[inline]
fn should_give_way(context: &Context) -> bool {
    // SAFETY: no arguments, no effects; glibc reads it from the thread's rseq area.
    let Ok(cpu) = u32::try_from(unsafe { libc::sched_getcpu() }) else { return false };
    context.bell.publish_cpu(cpu);
    context.bell.asks_to_give_way(cpu)
}

#[inline]
fn give_way() {
    // SAFETY: no arguments; it cannot fail on Linux.
    unsafe { libc::sched_yield() };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: u64 = 1000;

    #[test]
    fn a_thread_that_polls_one_queue_for_nothing_sleeps_ever_longer() {
        let mut streak = NO_STREAK;
        let slept: Vec<_> = (0..8).map(|_| streak.poll(1, true)).collect();
        let micros = [50, 100, 200, 400, 800, 1600, 2000].map(|us| Some(Duration::from_micros(us)));
        assert_eq!((slept[0], &slept[1..]), (None, &micros[..]));
        assert_eq!(streak.poll(1, false), None);
        assert_eq!(streak.poll(1, true), Some(SLEEP.0));
    }

    #[test]
    fn a_thread_that_polls_two_queues_never_sleeps() {
        let mut streak = NO_STREAK;
        assert!((0..100).all(|k| streak.poll(1 + k % 2, true).is_none()));
    }

    #[test]
    fn a_program_that_looks_at_memory_gives_way_behind_each_post() {
        let habit = Habit::new();
        assert!(!habit.posts(MICROSECOND));
        let mut now = 4000 * MICROSECOND;
        // From the first time that it stayed away; then the answers come at once.
        assert!((0..100).all(|_| {
            now += 10 * MICROSECOND;
            habit.posts(now)
        }));
        habit.polls();
        assert!(!habit.posts(now + MICROSECOND));
    }

    #[test]
    fn a_program_that_posts_a_burst_gives_way_behind_it() {
        let habit = Habit::new();
        let burst = |at: u64| (0..50).filter(|k| habit.posts(at + k * MICROSECOND)).count();
        assert_eq!(burst(MICROSECOND), 0);
        assert_eq!([burst(10_000_000), burst(10_100_000), burst(20_000_000)], [1, 1, 1]);
    }

    #[test]
    fn a_stream_that_was_interrupted_is_soon_whole_again() {
        let habit = Habit::new();
        habit.posts(MICROSECOND);
        // Kept from the CPU for a while, and it never finds its completion queue empty.
        let gave_way = (0..100_000).filter(|k| {
            if k % 1600 == 1599 {
                habit.finds();
            }
            habit.posts((4000 + k) * MICROSECOND)
        });
        assert_eq!(gave_way.count() as u32, TRUST.0);
    }

    #[test]
    fn a_program_that_looks_at_memory_and_takes_completions_is_trusted() {
        let habit = Habit::new();
        habit.posts(MICROSECOND);
        let gave_way = (0..100_000).filter(|k| {
            habit.finds();
            habit.posts((4000 + 10 * k) * MICROSECOND)
        });
        assert_eq!(gave_way.count(), 100_000);
    }

    #[test]
    fn one_that_never_polls_loses_few_slices() {
        let habit = Habit::new();
        let mut now = MICROSECOND;
        let slices = (0..100_000).filter(|_| {
            let gave_way = habit.posts(now);
            now += if gave_way { 10 } else { 4000 } * MICROSECOND;
            !gave_way
        });
        assert!(slices.count() < 40);
    }

    #[test]
    fn a_stream_is_not_broken_up() {
        let habit = Habit::new();
        let stayed_away = (1..1_000_000).filter(|k| {
            if k % 100 == 0 {
                habit.polls();
            }
            habit.posts(k * MICROSECOND)
        });
        assert_eq!(stayed_away.count(), 0);
    }
}
