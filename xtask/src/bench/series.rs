//! Values of one quantity over the rounds of a run.

use std::collections::BTreeMap;

/// What a probe reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    /// Payload bytes per second.
    Bytes,
    /// Messages or packets per second.
    Messages,
    /// Microseconds, the median.
    P50,
    /// Microseconds, the 99th percentile.
    P99,
}

impl Metric {
    /// A value with its unit.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Bytes => format!("{:.2} GB/s", value / 1e9),
            Self::Messages => format!("{:.3} M/s", value / 1e6),
            Self::P50 | Self::P99 => format!("{value:.2} us"),
        }
    }

    /// A value with its range, the unit once.
    pub(super) fn show_range(self, spread: Spread) -> String {
        let bare = |value| {
            let text = self.show(value);
            text.split(' ').next().unwrap_or_default().to_owned()
        };
        let Spread { median, min, max } = spread;
        format!("{} ({}..{})", self.show(median), bare(min), bare(max))
    }
}

/// Median and range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[half],
            _ => f64::midpoint(values[half - 1], values[half]),
        };
        Some(Self { median, min, max })
    }
}

/// Everything that was read, by probe, metric and round.
#[derive(Default)]
pub(super) struct Readings {
    values: BTreeMap<(String, Metric), BTreeMap<usize, f64>>,
}

impl Readings {
    pub(super) fn add(&mut self, probe: &str, metric: Metric, round: usize, value: f64) {
        self.values.entry((probe.to_owned(), metric)).or_default().insert(round, value);
    }

    pub(super) fn spread(&self, probe: &str, metric: Metric) -> Option<Spread> {
        let series = self.values.get(&(probe.to_owned(), metric))?;
        Spread::of(series.values().copied().collect())
    }

    /// `ours / (factor * other + offset)`, round by round: values of the same round were measured
    /// under the same conditions.
    pub(super) fn ratio(
        &self,
        ours: (&str, Metric),
        other: (&str, Metric),
        (factor, offset): (f64, f64),
    ) -> Option<Spread> {
        let series = |(probe, metric): (&str, Metric)| self.values.get(&(probe.to_owned(), metric));
        let (ours, other) = (series(ours)?, series(other)?);
        let ratio = |(round, value): (&usize, &f64)| {
            Some(value / other.get(round).map(|other| factor * other + offset)?)
        };
        Spread::of(ours.iter().filter_map(ratio).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_even_count_lies_between() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn ratios_pair_the_values_of_a_round() {
        let mut readings = Readings::default();
        for (round, ours, other) in [(0, 1.0, 2.0), (1, 30.0, 20.0)] {
            readings.add("ours", Metric::Bytes, round, ours);
            readings.add("other", Metric::Bytes, round, other);
        }
        readings.add("ours", Metric::Bytes, 2, 100.0);
        let key = |name| (name, Metric::Bytes);
        let ratio = readings.ratio(key("ours"), key("other"), (1.0, 0.0)).unwrap();
        assert_eq!((ratio.min, ratio.max), (0.5, 1.5));
    }

    #[test]
    fn ranges_name_the_unit_once() {
        let spread = Spread { median: 2e9, min: 1e9, max: 3e9 };
        assert_eq!(Metric::Bytes.show_range(spread), "2.00 GB/s (1.00..3.00)");
    }
}
