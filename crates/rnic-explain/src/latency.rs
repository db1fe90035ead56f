//! A distribution of times in bounded memory.

use serde::Serialize;
use std::time::Duration;

/// Each power of two nanoseconds is divided into so many parts: a value is known within 6 %.
const PARTS: u64 = 16;
const POWERS: usize = 40;

/// How often each time was seen.
#[derive(Clone, Debug)]
pub(crate) struct Distribution {
    /// Empty until something is measured: most connections of a large capture are short.
    buckets: Vec<u32>,
    seen: u64,
    shortest: Duration,
    longest: Duration,
}

/// The values that people ask for, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    pub min_ns: u64,
    pub median_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl Distribution {
    pub(crate) fn add(&mut self, time: Duration) {
        self.buckets.resize(POWERS * PARTS as usize, 0);
        let bucket = &mut self.buckets[bucket_of(nanos(time))];
        *bucket = bucket.saturating_add(1);
        self.seen += 1;
        self.shortest = self.shortest.min(time);
        self.longest = self.longest.max(time);
    }

    /// None where nothing was measured.
    pub(crate) fn summary(&self) -> Option<Latency> {
        (self.seen > 0).then(|| Latency {
            count: self.seen,
            min_ns: nanos(self.shortest),
            median_ns: self.at_most(self.seen.div_ceil(2)),
            p99_ns: self.at_most((self.seen * 99).div_ceil(100)),
            max_ns: nanos(self.longest),
        })
    }

    /// So many of the values are at most this.
    fn at_most(&self, count: u64) -> u64 {
        let mut sum = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            sum += u64::from(*bucket);
            if sum >= count {
                return end_of(index).clamp(nanos(self.shortest), nanos(self.longest));
            }
        }
        nanos(self.longest)
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Self { buckets: Vec::new(), seen: 0, shortest: Duration::MAX, longest: Duration::ZERO }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Values below [`PARTS`] have a bucket each.
fn bucket_of(value: u64) -> usize {
    if value < PARTS {
        return value as usize;
    }
    let power = u64::from(value.ilog2() - PARTS.ilog2());
    let index = (power + 1) * PARTS + (value >> power) - PARTS;
    (index as usize).min(POWERS * PARTS as usize - 1)
}

/// The largest value of a bucket.
fn end_of(index: usize) -> u64 {
    let index = index as u64;
    if index < PARTS {
        return index;
    }
    let power = index / PARTS - 1;
    ((index % PARTS + PARTS + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_its_bucket_and_buckets_are_narrow() {
        for value in (0..100_000).chain((17..38).map(|power| 1u64 << power)) {
            let index = bucket_of(value);
            let begin = index.checked_sub(1).map_or(0, |before| end_of(before) + 1);
            assert!((begin..=end_of(index)).contains(&value), "{value}");
            assert!(end_of(index) - begin <= value / PARTS, "{value}");
        }
    }

    #[test]
    fn the_summary_has_the_middle_and_the_ends() {
        let mut times = Distribution::default();
        assert_eq!(times.summary(), None);
        for value in 1..=1000 {
            times.add(Duration::from_micros(value));
        }
        let summary = times.summary().unwrap();
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (1000, 1000, 1_000_000));
        assert!((500_000..540_000).contains(&summary.median_ns), "{summary:?}");
        assert!((990_000..=1_000_000).contains(&summary.p99_ns), "{summary:?}");
        times.add(Duration::MAX);
        assert_eq!(times.summary().unwrap().max_ns, u64::MAX);
    }
}
