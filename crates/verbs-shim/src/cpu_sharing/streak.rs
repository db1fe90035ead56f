//! Which threads sleep instead of polling.
//!
//! Yielding gives no time to an engine in another scheduling group, and next to a thread that
//! computes each yield costs a time slice. There the engine asks for sleep: a thread whose polls of
//! one CQ find nothing again and again sleeps until the engine writes a completion to that CQ. The
//! scheduler lets a thread that wakes preempt one that spins, but not a thread that yielded.
//!
//! A thread that drives the engine of a function, and shares its CPU with one that computes, rests
//! instead ([`rest`]): nothing but packets brings it completions.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rnic_abi::{cq::ASLEEP, os::futex};

use crate::cq::Cq;

/// A thread's empty polls of one CQ, with no other poll and no completion in between. Only such a
/// thread sleeps: any other may have work to do elsewhere.
#[derive(Clone, Copy)]
struct Streak {
    /// The CQ's address; 0 while there is none.
    cq: usize,
    /// How long the next sleep lasts.
    sleep: Duration,
}

const NO_STREAK: Streak = Streak { cq: 0, sleep: SLEEP.0 };

/// Limits of a sleep, which are short because the thread may also wait for other things. Every
/// sleep without a completion doubles the length.
const SLEEP: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

thread_local! {
    static STREAK: Cell<Streak> = const { Cell::new(NO_STREAK) };
}

/// The engine has asked for sleep at least once. Until then, streaks are not counted.
static ANY: AtomicBool = AtomicBool::new(false);

impl Streak {
    /// Counts an empty poll of this CQ. Returns how long to sleep now, if at all.
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

/// Counts an empty poll. True when the thread slept, or when there is a completion now.
#[cold]
pub(super) fn sleep(cq: &Cq, may_sleep: bool) -> bool {
    ANY.store(true, Ordering::Relaxed);
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
        // Perhaps of another ring than the one they sleep on: then they sleep a little longer.
        cq.state.lock().ring.others_sleep();
    }
    // After each sleep: LIVENESS_POLLS empty polls would take far too long now.
    if !woken && sleep == SLEEP.1 {
        cq.context().check_daemon();
    }
    true
}

/// Counts an empty poll of a thread that drives. It rests instead of a sleep.
#[cold]
pub(super) fn rest(cq: &Cq, may_sleep: bool) {
    ANY.store(true, Ordering::Relaxed);
    let (before, context) = (STREAK.get(), cq.context());
    let mut streak = before;
    let limit = streak.poll(std::ptr::from_ref(cq).addr(), may_sleep);
    let rests = limit.is_none_or(|limit| context.rest_in_poll(limit));
    STREAK.set(match rests {
        true if context.is_driving() => streak,
        // The engine's thread has it, and may have put a completion into the queue meanwhile.
        true => NO_STREAK,
        false => before,
    });
    if rests && limit == Some(SLEEP.1) {
        context.check_daemon();
    }
}

/// True when streaks are counted.
#[inline]
pub(super) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Ends the calling thread's streak: it found a completion.
#[cold]
pub(super) fn end() {
    STREAK.set(NO_STREAK);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_polls_of_one_queue_sleep_ever_longer() {
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
}
