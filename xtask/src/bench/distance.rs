//! How far apart the two CPUs are.
//!
//! A host may move the CPUs of a virtual machine at any time. Between CPUs that share no cache, a
//! cache line takes five times as long and throughput falls by half: a reading is compared with
//! others only when the CPUs were near each other before and after it.

use std::cell::Cell;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use system_tests::interrupt;
use system_tests::netns::NetPair;

use super::series::Metric;
use super::topology::{Raw, Reading};

/// Duration of a look, in milliseconds.
const LOOK: u32 = 30;
/// Between two looks while the CPUs are far apart.
const PAUSE: Duration = Duration::from_millis(500);
/// The CPUs are far apart when a cache line takes so many times as long as it did at best. Two
/// threads of one core are twice as near each other as two cores with a common cache.
const FAR: f64 = 3.5;
/// How long a run waits in all for them to be near.
const PATIENCE: Duration = Duration::from_secs(900);

/// Measures it, and waits for better times.
pub(super) struct Distance {
    raw: Raw,
    net: NetPair,
    /// What a cache line took at best, in microseconds.
    least: Cell<f64>,
    /// What is left of [`PATIENCE`].
    patience: Cell<Duration>,
}

impl Distance {
    pub(super) fn new(raw: Raw) -> Result<Self> {
        let net = NetPair::new(1500)?;
        let (least, patience) = (Cell::new(f64::INFINITY), Cell::new(PATIENCE));
        Ok(Self { raw, net, least, patience })
    }

    /// What a cache line takes now, to the other CPU and back, in microseconds.
    pub(super) fn look(&self) -> Result<f64> {
        let Reading { values, .. } = self.raw.measure(&self.net, "line", LOOK)?;
        let p50 = values.into_iter().find(|(metric, _)| *metric == Metric::P50);
        let (_, took) = p50.context("rnic-raw told no median")?;
        self.least.set(self.least.get().min(took));
        Ok(took)
    }

    /// Whether that is near, as far as is known by now.
    pub(super) fn is_near(&self, took: f64) -> bool {
        took < FAR * self.least.get()
    }

    /// Waits until they are near, and returns what a cache line takes then. `None` when they are
    /// not, and the run has waited enough.
    pub(super) fn settle(&self) -> Result<Option<f64>> {
        let began = Instant::now();
        let mut took = self.look()?;
        while !self.is_near(took) {
            if began.elapsed() >= self.patience.get() {
                self.patience.set(Duration::ZERO);
                return Ok(None);
            }
            sleep(PAUSE);
            interrupt::check()?;
            took = self.look()?;
        }
        if began.elapsed() > PAUSE {
            self.patience.set(self.patience.get().saturating_sub(began.elapsed()));
        }
        Ok(Some(took))
    }
}
