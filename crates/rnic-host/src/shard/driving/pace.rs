//! How soon a program that drives comes back.

use rnic_core::Instant;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When its last poll that made turns was over, and whether that found nothing.
    left: Instant,
    left_idle: bool,
    /// Absences since the first of these, and how long all of them were.
    absences: u32,
    since: Instant,
    absent: Duration,
    /// When the last turn that delivered something began, if that was the last turn.
    delivered: Option<Instant>,
    /// How often in succession the program took long after such a turn, or posted nothing.
    unanswered: u32,
}

/// A program that is back so soon after a poll that found nothing does nothing between its polls:
/// one of them may as well make several turns.
const AT_ONCE: Duration = Duration::from_nanos(1500);
/// Between two polls of a program that is away for a moment: packets and posts wait for it.
const ABSENCE: Duration = Duration::from_micros(200);
/// So many absences, of more than a quarter of the time, are those of a program that works between
/// its polls. Fewer are those of a thread whose CPU something else needed.
const ABSENCES: u32 = 4;
const SHARE: u32 = 4;
/// When to count anew.
const WINDOW: Duration = Duration::from_millis(100);
/// A turn that received something leaves sending to the next turn, so that the program's answer
/// leaves together with the acknowledgement. Only of a program that answers, which is to say that
/// it posts before its next poll, and within this time: the peers of another one would wait for
/// nothing, and those of one that ends at once, by `_exit` or `exec`, would wait for ever.
pub(super) const PATIENCE: Duration = Duration::from_micros(50);
/// After so many turns in succession without an answer the program does not answer. A single one is
/// an interrupt. Were the acknowledgement sent alone then, a program that answers what is written
/// into its memory (`ib_write_lat`) would not poll while the answer to its own answer comes.
const UNANSWERED: u32 = 4;

impl Pace {
    /// Of a program that begins to drive for the first time.
    pub(super) fn new(now: Instant) -> Self {
        Self { left: now, unanswered: UNANSWERED, ..Self::default() }
    }

    /// Of the same program when it begins again: it is known whether it answers.
    pub(super) fn again(&self, now: Instant) -> Self {
        Self { unanswered: self.unanswered, ..Self::new(now) }
    }

    /// It polls, and found nothing before. True when it does nothing between its polls.
    #[inline]
    pub(super) fn is_back(&mut self, now: Instant) -> bool {
        if now >= self.left.after(ABSENCE) {
            self.note_absence(now);
        }
        self.left_idle && now < self.left.after(AT_ONCE)
    }

    #[cold]
    fn note_absence(&mut self, now: Instant) {
        if self.absences == 0 || now >= self.since.after(WINDOW) {
            (self.absences, self.since, self.absent) = (0, self.left, Duration::ZERO);
        }
        self.absences += 1;
        self.absent += now.since(self.left);
        if self.is_slow() && self.absent * SHARE < now.since(self.since) {
            self.absences = ABSENCES - 1;
        }
    }

    /// It is away too often: packets and posts wait for it.
    #[inline]
    pub(super) fn is_slow(&self) -> bool {
        self.absences >= ABSENCES
    }

    /// When that was.
    #[inline]
    pub(super) fn left(&self) -> Instant {
        self.left
    }

    /// Its poll is over.
    #[inline]
    pub(super) fn leaves(&mut self, now: Instant, found_nothing: bool) {
        (self.left, self.left_idle) = (now, found_nothing);
    }

    /// Whether the program answers soon what a turn delivers.
    #[inline]
    pub(super) fn answers(&self) -> bool {
        self.unanswered < UNANSWERED
    }

    /// Once in each turn, which began now: whether the program had posted something before.
    #[inline]
    pub(super) fn posted(&mut self, now: Instant, posted: bool) {
        if let Some(delivered) = self.delivered.take() {
            let answered = posted && now < delivered.after(PATIENCE);
            self.unanswered = if answered { 0 } else { self.unanswered.saturating_add(1) };
        }
    }

    /// At the end of each turn: when it began, if it delivered something.
    #[inline]
    pub(super) fn delivered(&mut self, when: Option<Instant>) {
        self.delivered = when;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Polls, each so long after the one before, until the program is slow; at most so many.
    fn polls_until_slow(gaps: impl Iterator<Item = u64>) -> Option<usize> {
        let (mut pace, mut now) = (Pace::new(at(0)), 0);
        for (poll, gap) in gaps.enumerate() {
            now += gap;
            pace.is_back(at(now));
            if pace.is_slow() {
                return Some(poll);
            }
            pace.leaves(at(now), true);
        }
        None
    }

    #[test]
    fn a_program_that_works_between_its_polls_is_slow() {
        assert_eq!(polls_until_slow([1000].into_iter().cycle().take(100)), Some(3));
        // Twenty quick polls for each slow one.
        let spins = (0..1000).map(|poll| if poll % 20 == 0 { 1000 } else { 1 });
        assert_eq!(polls_until_slow(spins), Some(60));
    }

    #[test]
    fn one_that_is_interrupted_now_and_then_is_not() {
        assert_eq!(polls_until_slow([1].into_iter().cycle().take(10_000)), None);
        let interrupted = (0..100_000).map(|poll| if poll % 8000 == 0 { 1000 } else { 1 });
        assert_eq!(polls_until_slow(interrupted), None);
        // A long absence was long ago.
        let rare = (0..1_000_000).map(|poll| if poll % 200_000 == 0 { 90_000 } else { 1 });
        assert_eq!(polls_until_slow(rare), None);
    }

    #[test]
    fn several_turns_are_for_a_program_that_does_nothing_else() {
        let mut pace = Pace::new(at(0));
        assert!(!pace.is_back(at(1)), "it has just begun");
        pace.leaves(at(2), true);
        assert!(pace.is_back(at(3)) && !pace.is_back(at(4)));
        pace.leaves(at(5), false);
        assert!(!pace.is_back(at(6)), "there may be more");
    }

    /// A program that polls quickly, before and after a turn that delivers something. Whether it
    /// is one that answers once it has polled again so long after that turn, in microseconds.
    fn answers(pace: &mut Pace, start: u64, after: u64, posted: bool) -> bool {
        let quick = (start..start + 10).map(|when| (when, false, None));
        let delivers = (start + 10, false, Some(at(start + 10)));
        for (when, posted, delivered) in quick.chain([delivers, (start + 10 + after, posted, None)])
        {
            pace.posted(at(when), posted);
            pace.delivered(delivered);
        }
        pace.answers()
    }

    #[test]
    fn one_late_answer_is_forgiven_and_four_are_not() {
        let mut pace = Pace::new(at(0));
        let afters = [2, 1000, 1000, 1000, 1000, 1000, 2];
        let mut start = (0..).step_by(10_000);
        let mut answers = |after| answers(&mut pace, start.next().unwrap(), after, true);
        assert_eq!(afters.map(&mut answers), [true, true, true, true, false, false, true]);
    }

    #[test]
    fn a_program_that_has_posted_nothing_after_what_it_received_does_not_answer() {
        let mut pace = Pace::new(at(0));
        assert!(!pace.answers(), "it has just begun");
        assert!(!answers(&mut pace, 10_000, 2, false));
        assert!(answers(&mut pace, 20_000, 2, true));
        let rounds = [30_000, 40_000, 50_000, 60_000];
        let quiet = rounds.map(|start| answers(&mut pace, start, 2, false));
        assert_eq!(quiet, [true, true, true, false]);
        assert!(answers(&mut pace, 70_000, 2, true));
        assert!(pace.again(at(90_000)).answers(), "it has begun again");
    }
}
