//! When a yield is of use: predictions that are tried less and less often while they fail.

use rnic_core::time::Instant;

/// A yield that takes longer was not to a program that answers or has more to post, nanoseconds.
const LONG_ABSENCE: u64 = 30_000;

/// Something that is tried every time while it is of use, and less and less often when it is not.
#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    /// Occasions until the next attempt.
    skip: u32,
    /// Occasions between two attempts.
    every: u32,
}

impl Backoff {
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

/// Predicts whether yielding after a completion without data makes programs post. A program that
/// polls its CQ does. One that spins on its receive buffer runs to the end of its slice and posts
/// nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompletionYield {
    backoff: Backoff,
    /// Programs ran for long; whether they posted shows in the second half of the turn.
    is_open: bool,
}

impl CompletionYield {
    /// Once for every completion without data: whether to yield.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.backoff.is_due();
        self.backoff.skip_one();
        is_due
    }

    /// Programs ran from one time to the other.
    #[inline]
    pub(super) fn note_yield(&mut self, from: Instant, to: Instant) {
        self.is_open = to.as_nanos().saturating_sub(from.as_nanos()) >= LONG_ABSENCE;
        if !self.is_open {
            self.backoff.learn(true);
        }
    }

    /// Whether doorbells rang afterwards.
    #[inline]
    pub(super) fn conclude(&mut self, rang: bool) {
        if std::mem::take(&mut self.is_open) {
            self.backoff.learn(rang);
        }
    }
}

/// Predicts whether programs have more to post when what they posted is sent. One that waits for an
/// answer by polling yields again for nothing, and one that spins on memory keeps the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PostYield {
    backoff: Backoff,
    yielded: bool,
}

impl PostYield {
    /// A program woke the engine, which then preempted it between two posts: it may well have more
    /// to post.
    pub(super) fn note_wakeup(&mut self) {
        self.backoff.skip = 0;
    }

    /// Once in a turn: whether to yield now. `all_sent`: a doorbell rang in this turn and all that
    /// was posted is sent.
    #[inline]
    pub(super) fn is_due(&mut self, all_sent: bool, rang: bool) -> bool {
        if self.yielded {
            self.backoff.learn(rang);
        }
        self.yielded = all_sent && self.backoff.is_due();
        if all_sent {
            self.backoff.skip_one();
        }
        self.yielded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn programs_that_post_no_more_are_seldom_yielded_to() {
        let mut posting = PostYield::default();
        let turns = (0..10_000).map(|k| posting.is_due(k % 2 == 0, k % 2 == 0));
        assert_eq!(turns.filter(|due| *due).count(), 7);
    }

    #[test]
    fn programs_that_do_nothing_with_completions_are_seldom_yielded_to() {
        let mut completions = CompletionYield::default();
        let mut ran = |micros, rang| {
            let mut yields = 0;
            for k in 0..10_000 {
                if completions.is_due() {
                    yields += 1;
                    completions.note_yield(at(k * 4000), at(k * 4000 + micros));
                }
                completions.conclude(rang);
            }
            yields
        };
        assert_eq!(ran(3000, false), 8);
        // The next attempt shows that they do something now.
        assert!(ran(5, false) > 1000);
        assert_eq!(ran(5, false), 10_000);
        assert_eq!(ran(3000, true), 10_000);
    }

    #[test]
    fn programs_that_wake_the_engine_are_yielded_to() {
        let mut posting = PostYield::default();
        for k in 0..10_000 {
            posting.is_due(k % 2 == 0, k % 2 == 0);
        }
        assert!(!posting.is_due(true, true));
        posting.note_wakeup();
        assert!(posting.is_due(true, true));
    }

    #[test]
    fn programs_that_post_more_are_always_yielded_to() {
        let mut posting = PostYield::default();
        assert!((0..100).all(|_| posting.is_due(true, true)));
    }
}
