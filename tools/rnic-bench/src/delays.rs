//! Durations of single events.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::pair::Board;

/// Events before the first that counts.
const WARM_UP: usize = 1000;
/// Events that are kept.
const MOST: usize = 1 << 20;

/// Durations in nanoseconds, in a process of a pair.
pub(crate) struct Delays(Vec<u32>);

impl Delays {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(MOST))
    }

    pub(crate) fn add(&mut self, delay: Duration) {
        if self.0.len() < MOST {
            self.0.push(delay.as_nanos() as u32);
        }
    }

    /// Median and 99th percentile, for the parent to report.
    pub(crate) fn publish(mut self, board: &Board) {
        let counted = self.0.get_mut(WARM_UP..).unwrap_or_default();
        counted.sort_unstable();
        for (slot, share) in board.delays.iter().zip([50, 99]) {
            let value = counted.get(counted.len() * share / 100).copied().unwrap_or(0);
            slot.set(value.into());
        }
    }
}

/// What was published, divided by the number of equal parts that each event had.
pub(crate) fn report(board: &Board, parts: u32, waited: f64) -> Result<String> {
    let [p50, p99] = [0, 1].map(|i| board.delays[i].get() as f64 / f64::from(parts) / 1e3);
    ensure!(p50 > 0.0, "too few events");
    Ok(format!(r#"{{"p50_us":{p50},"p99_us":{p99},"waited":{waited}}}"#))
}
