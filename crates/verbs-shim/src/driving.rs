//! Polls that turn the engine of a function.
//!
//! A thread whose polls find nothing again and again, or that waits for completion events
//! ([`resting`]), could as well do the engine's work:
//! [`rnic_abi::os::driving`] says how both agree on that.

mod resting;

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use rnic_abi::{
    cqe::Cqe,
    os::{
        driving::{Driving, State, Turned},
        function::Driver,
    },
};

use crate::{
    context::Context,
    cpu_sharing::ticks,
    cq::{Cq, CqState},
    error::{Errno, Result},
    lock::Guard,
    report,
};
pub(crate) use resting::Rested;
use resting::Waits;

/// A poll's lock.
type Polling<'a> = Guard<'a, CqState>;

/// So many polls that found nothing, since the program last asked for an event and within
/// [`STREAK_TICKS`], before it wishes to drive.
const STREAK: u32 = 64;
/// 3 ms at 2.5 GHz.
const STREAK_TICKS: u64 = 7_500_000;
/// So many requests fill a train. Its peer receives them while the program posts the next ones.
const MANY_POSTS: u32 = 64;

thread_local! {
    /// The number of this thread; 0 until it has asked something of the daemon or the function.
    /// Only then: a thread that does nothing but post and poll may have forbidden itself all system
    /// calls but those that these make.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// What this thread has turned last.
    static DRIVING: Cell<Option<&'static Driving>> = const { Cell::new(None) };
}

/// The calling thread asks something of the daemon or the function. A forked child's thread has
/// another number than the one that it is a copy of.
///
/// # Errors
/// EDEADLK in the handler of a signal that has interrupted a turn: the function would answer after
/// that turn.
pub(crate) fn note_request() -> Result<()> {
    if DRIVING.get().is_some_and(|it| it.is_turning() && it.calls(THREAD.get())) {
        report::debug("a signal's handler asks something in the middle of a poll");
        return Err(Errno(libc::EDEADLK));
    }
    // SAFETY: no arguments; it cannot fail.
    let number = unsafe { libc::syscall(libc::SYS_gettid) };
    THREAD.set(u32::try_from(number).unwrap_or(0));
    Ok(())
}

/// How many requests were posted since the last turn. Threads that post at the same time may lose
/// some: these leave a little later then.
#[derive(Debug, Default)]
struct Posts(AtomicU32);

impl Posts {
    /// So many more: whether there are many now.
    #[inline]
    fn are_many_with(&self, more: u32) -> bool {
        let count = self.0.load(Ordering::Relaxed).saturating_add(more);
        self.0.store(count, Ordering::Relaxed);
        count >= MANY_POSTS
    }

    #[inline]
    fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// A context's way to drive.
pub(crate) struct Drives {
    driver: Driver,
    /// Polls that found nothing, and when the first of them did.
    streak: AtomicU32,
    began: AtomicU64,
    posts: Posts,
    pub(crate) waits: Waits,
}

impl Drives {
    pub(crate) fn new(driver: Driver) -> Self {
        let (streak, began) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { driver, streak, began, posts: Posts::default(), waits: Waits::default() }
    }

    /// True when there were many within a short time. Threads that poll at the same time may lose
    /// some: it takes a little longer then.
    fn note_empty_poll(&self) -> bool {
        let streak = self.streak.load(Ordering::Relaxed) + 1;
        self.streak.store(streak % STREAK, Ordering::Relaxed);
        if streak == 1 {
            self.began.store(ticks(), Ordering::Relaxed);
        }
        let is_quick = || ticks().wrapping_sub(self.began.load(Ordering::Relaxed)) < STREAK_TICKS;
        streak >= STREAK && is_quick()
    }
}

impl Context {
    /// Whether a poll that finds nothing is to [drive](Self::drive). Counts such polls where not.
    #[inline]
    pub(crate) fn may_drive(&self) -> bool {
        let Some(drives) = &self.drives else { return false };
        let (driving, thread) = (drives.driver.driving(), THREAD.get());
        if driving.calls(thread) {
            return true;
        }
        if drives.note_empty_poll() && !self.bell.cpu_hints().sleeps() {
            driving.wish(thread);
        }
        false
    }

    /// A turn of the engine, or what comes before the first and after the last one. True when there
    /// may be completions now. The caller holds no lock.
    pub(crate) fn drive(&self) -> bool {
        self.turn(Driver::turn).contains(Turned::DELIVERED)
    }

    fn turn(&self, work: impl FnOnce(&Driver) -> Turned) -> Turned {
        let Some(drives) = &self.drives else { return Turned::default() };
        // A handler that has interrupted a turn may poll elsewhere.
        if DRIVING.get().is_none_or(|it| !it.is_turning()) {
            DRIVING.set(Some(drives.driver.driving()));
        }
        drives.posts.forget();
        let turned = work(&drives.driver);
        if turned.contains(Turned::WAKE) {
            self.wake_engine();
        }
        if turned.contains(Turned::BUSY) {
            // The engine's thread may be waiting for this CPU.
            // SAFETY: no arguments; it cannot fail on Linux.
            unsafe { libc::sched_yield() };
        }
        turned
    }

    /// This thread drives, and has posted so many requests. The next poll that finds nothing sends
    /// them, but many are sent at once.
    #[inline]
    pub(crate) fn note_posts(&self, count: u32) {
        if self.drives.as_ref().is_some_and(|drives| drives.posts.are_many_with(count)) {
            self.drive();
        }
    }

    /// Polls of this thread turn the engine now.
    #[inline]
    pub(crate) fn is_driving(&self) -> bool {
        self.drives.as_ref().is_some_and(|it| it.driver.driving().calls(THREAD.get()))
    }

    /// The program may wait for an event next, and not poll. Where it does not do so
    /// [here](resting), it drives no more.
    pub(crate) fn before_event(&self) {
        let Some(drives) = &self.drives else { return };
        drives.streak.store(0, Ordering::Relaxed);
        if !drives.waits.note_request() && drives.driver.driving().withdraw() {
            self.wake_engine();
        }
    }

    /// Closes the program's copies of the function's sockets: the context is being closed, or the
    /// engine is gone.
    #[cold]
    pub(crate) fn release(&self) {
        let Some(drives) = &self.drives else { return };
        if drives.driver.driving().state() == State::Stale {
            drives.driver.turn();
        }
        drives.driver.release();
    }
}

impl Cq {
    /// The first completion of a poll, which turns the engine when there is none.
    #[inline]
    pub(crate) fn first<'a>(&'a self, mut state: Polling<'a>) -> (Polling<'a>, Option<Cqe>) {
        let found = self.next(&mut state);
        if found.is_some() || !self.context().may_drive() {
            return (state, found);
        }
        drop(state);
        let delivered = self.context().drive();
        state = self.state.lock();
        let found = if delivered { self.next(&mut state) } else { None };
        (state, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_posts_since_the_last_turn_make_one() {
        let posts = Posts::default();
        let singles = |posts: &Posts| (1..).find(|_| posts.are_many_with(1));
        assert_eq!(singles(&posts), Some(MANY_POSTS));
        assert!(posts.are_many_with(1), "the turn was not made");
        posts.forget();
        assert_eq!(singles(&posts), Some(MANY_POSTS));
        posts.forget();
        assert!(!posts.are_many_with(MANY_POSTS - 1));
        assert!(posts.are_many_with(u32::MAX), "one call posts a list");
    }
}
