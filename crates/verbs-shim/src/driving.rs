//! Polls and posts that turn the engine of a function.
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
/// Fewer wait for so long at most, if the program goes on to post: 50 us at 2.5 GHz.
const POSTS_TICKS: u64 = 125_000;
/// The first posts look at the time, and then every so many: it is a good part of a post.
const POSTS_PER_LOOK: u32 = 4;

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

/// What the thread that drives has posted since the last turn.
#[derive(Debug, Default)]
struct Posts {
    count: AtomicU32,
    /// When the first of these were posted.
    since: AtomicU64,
}

impl Posts {
    /// So many more are posted now. Whether they are not to wait for a poll that finds nothing:
    /// some programs make none for long.
    #[inline]
    fn are_due_with(&self, more: u32, now: impl Fn() -> u64) -> bool {
        let before = self.count.load(Ordering::Relaxed);
        let count = before.saturating_add(more);
        self.count.store(count, Ordering::Relaxed);
        if before == 0 {
            self.since.store(now(), Ordering::Relaxed);
        }
        let is_time_to_look =
            count <= POSTS_PER_LOOK || before / POSTS_PER_LOOK != count / POSTS_PER_LOOK;
        let waited = || now().wrapping_sub(self.since.load(Ordering::Relaxed));
        count >= MANY_POSTS || is_time_to_look && waited() >= POSTS_TICKS
    }

    #[inline]
    fn are_none(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn forget(&self) {
        self.count.store(0, Ordering::Relaxed);
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
        let turned = self.try_turn(work);
        if turned.contains(Turned::BUSY) {
            // The engine's thread may be waiting for this CPU.
            // SAFETY: no arguments; it cannot fail on Linux.
            unsafe { libc::sched_yield() };
        }
        turned
    }

    fn try_turn(&self, work: impl FnOnce(&Driver) -> Turned) -> Turned {
        let Some(drives) = &self.drives else { return Turned::default() };
        // A handler that has interrupted a turn may poll elsewhere.
        if DRIVING.get().is_none_or(|it| !it.is_turning()) {
            DRIVING.set(Some(drives.driver.driving()));
        }
        let turned = work(&drives.driver);
        if !turned.contains(Turned::BUSY) {
            drives.posts.forget();
        }
        if turned.contains(Turned::WAKE) {
            self.wake_engine();
        }
        turned
    }

    /// This thread drives, and has posted so many requests. The next poll that finds nothing sends
    /// them; a turn is made at once where many wait, or for long. True for the first of them since
    /// a turn.
    #[inline]
    pub(crate) fn note_posts(&self, count: u32) -> bool {
        let Some(drives) = &self.drives else { return false };
        let are_first = drives.posts.are_none();
        // Where something else needs the CPU, trains that are as long as can be save it.
        if drives.posts.are_due_with(count, ticks) && !self.is_crowded() {
            self.try_turn(Driver::turn);
        }
        are_first
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
    fn posts_are_due_when_they_are_many() {
        let posts = Posts::default();
        let singles = |posts: &Posts| (1..).find(|_| posts.are_due_with(1, || 7));
        assert_eq!(singles(&posts), Some(MANY_POSTS));
        assert!(posts.are_due_with(1, || 7), "no turn was made");
        posts.forget();
        assert_eq!(singles(&posts), Some(MANY_POSTS));
        posts.forget();
        assert!(!posts.are_due_with(MANY_POSTS - 1, || 7));
        assert!(posts.are_due_with(u32::MAX, || 7), "one call posts a list");
    }

    #[test]
    fn posts_are_due_when_the_first_has_waited() {
        let posts = Posts::default();
        let waited = |since: u64, ticks: u64| {
            posts.forget();
            assert!(!posts.are_due_with(1, || since), "the time of others is no matter");
            (2..=POSTS_PER_LOOK).find(|_| posts.are_due_with(1, || since + ticks))
        };
        assert_eq!(waited(1000, POSTS_TICKS), Some(2));
        assert_eq!(waited(1_000_000, POSTS_TICKS - 1), None);
        assert!(!posts.are_due_with(POSTS_PER_LOOK - 1, || 1_000_000 + POSTS_TICKS));
        assert!(posts.are_due_with(2, || 1_000_000 + POSTS_TICKS), "a list passes the look");
    }
}
