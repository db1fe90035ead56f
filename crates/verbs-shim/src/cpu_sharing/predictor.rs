//! Which programs yield after a post.
//!
//! A program that spins on its receive buffer and never polls would keep the CPU until the end of
//! its time slice, and the engine could not send what the program posted. Such a program yields
//! after a post. Others must not: a program that posts a stream would wait until each request is
//! sent alone.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Predicts from the time between posts whether the program will spin on memory. Threads that share
/// a device make the prediction less exact, which costs only time.
#[derive(Debug)]
pub(crate) struct YieldPredictor {
    /// Time of the last post, in [`ticks`]; 0 after a poll.
    posted: AtomicU64,
    /// Posts since the last long pause.
    posts: AtomicU32,
    /// Posts before the last long pause; 0 after an empty poll.
    usual: AtomicU32,
    /// Yields after a post since the last poll that could confirm the prediction.
    yields: AtomicU32,
    /// Drop the prediction after so many yields.
    trust: AtomicU32,
}

/// Limits of [`YieldPredictor::trust`]. It doubles each time the prediction is dropped, because a
/// program that really spins on memory loses a time slice each time.
const TRUST: (u32, u32) = (128, 4096);

/// A pause of so many ticks after a post means that the program spins on memory or computes: half
/// a millisecond at 2.5 GHz.
const ABSENCE: u64 = if cfg!(target_arch = "x86_64") { 1_250_000 } else { 500_000 };

/// A time stamp that is cheap enough for every post: processor cycles.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and where it is forbidden the C library
    // cannot read its clock either.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Nanoseconds, where there is no cycle counter.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn ticks() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

impl YieldPredictor {
    pub(crate) fn new() -> Self {
        Self {
            posted: AtomicU64::new(0),
            posts: AtomicU32::new(0),
            usual: AtomicU32::new(0),
            yields: AtomicU32::new(0),
            trust: AtomicU32::new(TRUST.0),
        }
    }

    /// Records a post. True when a long pause is likely to follow.
    #[inline]
    pub(super) fn note_post(&self) -> bool {
        self.note_post_at(ticks())
    }

    #[inline]
    fn note_post_at(&self, now: u64) -> bool {
        // Not in one operation, which would take as long as the rest of this.
        let before = self.posted.load(Ordering::Relaxed);
        self.posted.store(now, Ordering::Relaxed);
        let mut posts = self.posts.load(Ordering::Relaxed);
        // A yield after a post may take long, and is not a pause of the program.
        if posts != 0 && before != 0 && now.saturating_sub(before) > ABSENCE {
            self.usual.store(posts, Ordering::Relaxed);
            posts = 0;
        }
        posts = posts.wrapping_add(1);
        let pauses = posts == self.usual.load(Ordering::Relaxed) && self.spend_trust();
        self.posts.store(if pauses { 0 } else { posts }, Ordering::Relaxed);
        pauses
    }

    /// Records a yield after a post. False when there were too many without a poll that could
    /// confirm the prediction.
    fn spend_trust(&self) -> bool {
        let yields = self.yields.load(Ordering::Relaxed);
        let trust = self.trust.load(Ordering::Relaxed);
        if yields < trust {
            self.yields.store(yields + 1, Ordering::Relaxed);
            return true;
        }
        self.usual.store(0, Ordering::Relaxed);
        self.yields.store(0, Ordering::Relaxed);
        self.trust.store(trust.saturating_mul(2).min(TRUST.1), Ordering::Relaxed);
        false
    }

    /// Records a poll that found a completion.
    #[inline]
    pub(super) fn note_full_poll(&self) {
        if self.yields.load(Ordering::Relaxed) != 0 {
            self.yields.store(0, Ordering::Relaxed);
        }
    }

    /// Records a poll that found nothing: the program does not spin on memory.
    #[inline]
    pub(super) fn note_empty_poll(&self) {
        if self.posted.load(Ordering::Relaxed) != 0 {
            self.posted.store(0, Ordering::Relaxed);
            self.posts.store(0, Ordering::Relaxed);
            self.usual.store(0, Ordering::Relaxed);
            self.yields.store(0, Ordering::Relaxed);
            self.trust.store(TRUST.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: u64 = 1000;

    #[test]
    fn a_program_that_spins_on_memory_yields_after_each_post() {
        let predictor = YieldPredictor::new();
        assert!(!predictor.note_post_at(MICROSECOND));
        let mut now = 4000 * MICROSECOND;
        // After its first long pause; then the responses come at once.
        assert!((0..100).all(|_| {
            now += 10 * MICROSECOND;
            predictor.note_post_at(now)
        }));
        predictor.note_empty_poll();
        assert!(!predictor.note_post_at(now + MICROSECOND));
    }

    #[test]
    fn a_program_that_posts_a_burst_yields_after_it() {
        let predictor = YieldPredictor::new();
        let burst =
            |at: u64| (0..50).filter(|k| predictor.note_post_at(at + k * MICROSECOND)).count();
        assert_eq!(burst(MICROSECOND), 0);
        assert_eq!([burst(10_000_000), burst(10_100_000), burst(20_000_000)], [1, 1, 1]);
    }

    #[test]
    fn a_preempted_stream_soon_stops_yielding_after_posts() {
        let predictor = YieldPredictor::new();
        predictor.note_post_at(MICROSECOND);
        // The program was preempted for a while, and never finds its completion queue empty.
        let yields = (0..100_000).filter(|k| {
            if k % 1600 == 1599 {
                predictor.note_full_poll();
            }
            predictor.note_post_at((4000 + k) * MICROSECOND)
        });
        assert_eq!(yields.count() as u32, TRUST.0);
    }

    #[test]
    fn a_program_that_spins_on_memory_and_takes_completions_is_trusted() {
        let predictor = YieldPredictor::new();
        predictor.note_post_at(MICROSECOND);
        let yields = (0..100_000).filter(|k| {
            predictor.note_full_poll();
            predictor.note_post_at((4000 + 10 * k) * MICROSECOND)
        });
        assert_eq!(yields.count(), 100_000);
    }

    #[test]
    fn a_program_that_never_polls_loses_few_slices() {
        let predictor = YieldPredictor::new();
        let mut now = MICROSECOND;
        let slices = (0..100_000).filter(|_| {
            let yields = predictor.note_post_at(now);
            now += if yields { 10 } else { 4000 } * MICROSECOND;
            !yields
        });
        assert!(slices.count() < 40);
    }

    #[test]
    fn a_stream_does_not_yield_after_posts() {
        let predictor = YieldPredictor::new();
        let pauses = (1..1_000_000).filter(|k| {
            if k % 100 == 0 {
                predictor.note_empty_poll();
            }
            predictor.note_post_at(k * MICROSECOND)
        });
        assert_eq!(pauses.count(), 0);
    }
}
