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
/// A host may stop a CPU for all of a look, but not for so many.
const FAILURES: usize = 10;
/// How long a run waits in all for it.
const PATIENCE: Duration = Duration::from_secs(900);

/// What a cache line took, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Look {
    took: f64,
    /// Since the look before: while a run waits, it looks more often than while it measures.
    lasted: Duration,
}

/// Measures it, and waits for better times.
pub(super) struct Distance {
    raw: Raw,
    net: NetPair,
    looks: RefCell<Vec<Look>>,
    last_look: Cell<Instant>,
    /// What is left of [`PATIENCE`].
    patience: Cell<Duration>,
}

impl Distance {
    pub(super) fn new(raw: Raw) -> Result<Self> {
        let net = NetPair::new(1500)?;
        let (looks, last_look) = (RefCell::default(), Cell::new(Instant::now()));
        let distance = Self { raw, net, looks, last_look, patience: Cell::new(PATIENCE) };
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
    pub(super) fn look(&self) -> Result<f64> {
        let Reading { values, .. } = self.raw.measure(&self.net, "line", LOOK)?;
        let p50 = values.into_iter().find(|(metric, _)| *metric == Metric::P50);
        let (_, took) = p50.context("rnic-raw told no median")?;
        let lasted = self.last_look.replace(Instant::now()).elapsed();
        self.looks.borrow_mut().push(Look { took, lasted });
        Ok(took)
    }

    /// Whether that is the usual distance, as far as is known by now.
    pub(super) fn is_usual(&self, took: f64) -> bool {
        is_usual(&self.looks.borrow(), took)
    }

    /// Waits until the distance is the usual one, and returns what a cache line takes then. `None`
    /// when it is not, and the run has waited enough.
    pub(super) fn settle(&self) -> Result<Option<f64>> {
        let began = Instant::now();
        let mut failures = 0;
        loop {
            match self.look() {
                Ok(took) if self.is_usual(took) => {
                    if began.elapsed() > PAUSE {
                        self.patience.set(self.patience.get().saturating_sub(began.elapsed()));
                    }
                    return Ok(Some(took));
                }
                Ok(_) => failures = 0,
                Err(error) if failures == FAILURES => return Err(error),
                Err(_) => failures += 1,
            }
            if began.elapsed() >= self.patience.get() {
                self.patience.set(Duration::ZERO);
                return Ok(None);
            }
            sleep(PAUSE);
            interrupt::check()?;
        }
    }
}

fn is_usual(looks: &[Look], took: f64) -> bool {
    usual(looks).is_some_and(|usual| took < OTHER * usual && took * OTHER > usual)
}

/// What a cache line took half of the time or less.
fn usual(looks: &[Look]) -> Option<f64> {
    let mut sorted = looks.to_vec();
    sorted.sort_by(|one, other| one.took.total_cmp(&other.took));
    let all: Duration = sorted.iter().map(|look| look.lasted).sum();
    let mut passed = Duration::ZERO;
    let median = sorted.into_iter().find(|look| {
        passed += look.lasted;
        passed * 2 >= all
    });
    median.map(|look| look.took)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(took: f64, millis: u64) -> Look {
        Look { took, lasted: Duration::from_millis(millis) }
    }

    #[test]
    fn two_threads_of_one_core_are_too_near() {
        let looks = [0.055, 0.19, 0.2, 0.81, 0.25, 0.06, 0.18].map(|took| look(took, 500));
        let usual = looks.iter().map(|look| look.took).filter(|took| is_usual(&looks, *took));
        assert_eq!(usual.collect::<Vec<_>>(), [0.19, 0.2, 0.25, 0.18]);
        assert!(!is_usual(&[], 0.2));
    }

    /// A run that waits looks often.
    #[test]
    fn a_wait_must_last_as_long_as_what_was_measured_to_be_usual() {
        let mut looks = vec![look(0.2, 3000); 10];
        looks.extend([look(0.8, 500); 50]);
        assert!(is_usual(&looks, 0.2) && !is_usual(&looks, 0.8));
        looks.extend([look(0.8, 500); 11]);
        assert!(is_usual(&looks, 0.8) && !is_usual(&looks, 0.2));
    }
}
