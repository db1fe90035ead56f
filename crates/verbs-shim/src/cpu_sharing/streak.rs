//! Which threads sleep instead of polling.
//!
//! Yielding does not reach an engine in another scheduling group, and beside a thread that computes
//! each yield costs a slice. There the engine asks for sleep: a thread that polls one CQ again and
//! again for nothing sleeps until the engine writes a completion there. A thread that wakes
//! preempts one that spins; a thread that yielded does not.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rnic_abi::{cq::ASLEEP, os::futex};

use crate::cq::Cq;

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

/// Some thread was asked to sleep once. Until then streaks cost nothing.
static ANY: AtomicBool = AtomicBool::new(false);

impl Streak {
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
        place.remains();
    }
    // As seldom as LIVENESS_POLLS would be far too seldom now.
    if !woken && sleep == SLEEP.1 {
        cq.context().look_at_daemon();
    }
    true
}

/// True when streaks are counted.
#[inline]
pub(super) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// The calling thread found something.
#[cold]
pub(super) fn end() {
    STREAK.set(NO_STREAK);
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
