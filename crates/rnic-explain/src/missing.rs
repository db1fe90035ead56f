//! PSNs that were passed over, in bounded memory.

use roce_wire::Psn;
use std::time::Duration;

/// Gaps that are kept; of more, the oldest are forgotten.
const MOST: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Gap {
    first: Psn,
    len: u32,
    since: Duration,
}

/// Gaps between packets.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    gaps: Vec<Gap>,
    /// PSNs of gaps that were forgotten.
    forgotten: u64,
}

impl Missing {
    pub(crate) fn add(&mut self, first: Psn, len: u32, since: Duration) {
        if self.gaps.len() == MOST {
            self.forgotten += u64::from(self.gaps.remove(0).len);
        }
        self.gaps.push(Gap { first, len, since });
    }

    /// Whether the PSN is missing, and since when. It is not any more.
    pub(crate) fn take(&mut self, psn: Psn) -> Option<Duration> {
        let at = self.gaps.iter().position(|gap| gap.first.steps_to(psn) < gap.len)?;
        let gap = self.gaps.remove(at);
        let before = gap.first.steps_to(psn);
        let after = gap.len - before - 1;
        if after > 0 {
            self.gaps.insert(at, Gap { first: psn.wrapping_add(1), len: after, ..gap });
        }
        if before > 0 {
            self.gaps.insert(at, Gap { len: before, ..gap });
        }
        Some(gap.since)
    }

    /// How many PSNs never came.
    pub(crate) fn count(&self) -> u64 {
        self.forgotten + self.gaps.iter().map(|gap| u64::from(gap.len)).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_missing_no_more() {
        let mut missing = Missing::default();
        let (now, later) = (Duration::from_secs(1), Duration::from_secs(2));
        missing.add(Psn::new(0xff_fffe), 4, now);
        missing.add(Psn::new(10), 1, later);
        assert_eq!(missing.count(), 5);
        assert_eq!(missing.take(Psn::new(0xff_ffff)), Some(now));
        assert_eq!(missing.take(Psn::new(0xff_ffff)), None);
        assert_eq!(missing.take(Psn::new(1)), Some(now));
        assert_eq!(missing.take(Psn::new(10)), Some(later));
        assert_eq!(missing.take(Psn::new(2)), None);
        assert_eq!(missing.count(), 2);
    }

    #[test]
    fn old_gaps_are_forgotten_but_counted() {
        let mut missing = Missing::default();
        for gap in 0..1000 {
            missing.add(Psn::new(gap * 3), 2, Duration::ZERO);
        }
        assert_eq!((missing.count(), missing.gaps.len()), (2000, MOST));
    }
}
