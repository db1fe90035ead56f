//! How far apart the two CPUs are.
//!
//! A host may move the CPUs of a virtual machine at any time. Between CPUs that share no cache, a
//! cache line takes five times as long as between those that do, and throughput falls by half;
//! between two threads of one core it takes a third, and each has half of the core. A reading is
//! compared with others only when the CPUs were as far from each other before and after it as they
//! were most of the time.

use std::cell::{Cell, RefCell};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use system_tests::interrupt;
use system_tests::netns::NetPair;

use super::series::Metric;
use super::topology::{Raw, Reading};

/// Duration of a look, in milliseconds.
const LOOK: u32 = 30;
/// Between two looks while the distance is not the usual one.
const PAUSE: Duration = Duration::from_millis(500);
/// Distances that differ by this factor or more are those of other pairs of CPUs.
const OTHER: f64 = 2.0;
/// Looks before a run, which tell a first usual distance.
const FIRST: usize = 10;
/// How long a run waits in all for it.
const PATIENCE: Duration = Duration::from_secs(900);

/// Measures it, and waits for better times.
pub(super) struct Distance {
    raw: Raw,
    net: NetPair,
    /// What a cache line took each time, in microseconds.
    looks: RefCell<Vec<f64>>,
    /// What is left of [`PATIENCE`].
    patience: Cell<Duration>,
}

impl Distance {
    pub(super) fn new(raw: Raw) -> Result<Self> {
        let net = NetPair::new(1500)?;
        let distance = Self { raw, net, looks: RefCell::default(), patience: Cell::new(PATIENCE) };
        let mut last = distance.look();
        for _ in 1..FIRST {
            sleep(PAUSE);
            interrupt::check()?;
            last = distance.look();
        }
        if distance.looks.borrow().is_empty() {
            last?;
        }
        Ok(distance)
    }

    /// What a cache line takes now, to the other CPU and back, in microseconds.
    fn look(&self) -> Result<f64> {
        let Reading { values, .. } = self.raw.measure(&self.net, "line", LOOK)?;
        let p50 = values.into_iter().find(|(metric, _)| *metric == Metric::P50);
        let (_, took) = p50.context("rnic-raw told no median")?;
        self.looks.borrow_mut().push(took);
        Ok(took)
    }

    /// The same during a run, in which the host may stop a CPU for all of a look: that is not the
    /// usual distance.
    pub(super) fn look_again(&self) -> f64 {
        self.look().unwrap_or(f64::INFINITY)
    }

    /// Whether that is the usual distance, as far as is known by now.
    pub(super) fn is_usual(&self, took: f64) -> bool {
        is_usual(&self.looks.borrow(), took)
    }

    /// Waits until the distance is the usual one, and returns what a cache line takes then. `None`
    /// when it is not, and the run has waited enough.
    pub(super) fn settle(&self) -> Result<Option<f64>> {
        let began = Instant::now();
        let mut took = self.look_again();
        while !self.is_usual(took) {
            if began.elapsed() >= self.patience.get() {
                self.patience.set(Duration::ZERO);
                return Ok(None);
            }
            sleep(PAUSE);
            interrupt::check()?;
            took = self.look_again();
        }
        if began.elapsed() > PAUSE {
            self.patience.set(self.patience.get().saturating_sub(began.elapsed()));
        }
        Ok(Some(took))
    }
}

fn is_usual(looks: &[f64], took: f64) -> bool {
    let mut sorted = looks.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).is_some_and(|usual| took < OTHER * usual && took * OTHER > *usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_of_one_core_are_too_near() {
        let looks = [0.055, 0.19, 0.2, 0.81, 0.25, 0.06, 0.18];
        let usual: Vec<_> = looks.into_iter().filter(|took| is_usual(&looks, *took)).collect();
        assert_eq!(usual, [0.19, 0.2, 0.25, 0.18]);
        assert!(!is_usual(&[], 0.2));
    }
}
