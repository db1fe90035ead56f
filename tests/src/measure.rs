//! How a test judges a measurement on a machine that has other work too.
//!
//! There is one policy, [`judge`]. A reading that other work disturbed says nothing and is repeated
//! in a quieter moment. When no attempt can be judged, the test passes, and the summary of the run
//! names it as `NOT MEASURED`. A reading that is bad whatever else the machine does fails the test
//! at once. One that is bad where the machine was found quiet behind it fails the test when another
//! one says the same, because other work may have ended in between.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::lab::{NOT_MEASURED, cpu_of, note};

/// How often a test measures before it gives up.
const ATTEMPTS: usize = 3;
/// How long a test waits for a quiet moment before it repeats a measurement.
const PATIENCE: Duration = Duration::from_secs(20);
/// The machine is quiet when a thread that spins loses no more than this part of the time.
const QUIET: f64 = 0.02;

/// What an attempt to measure says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// What was measured is good enough.
    Good,
    /// It is too bad, and other work of the machine does not explain that.
    Bad(String),
    /// It is too bad, and the machine was quiet right behind it.
    Suspect(String),
    /// Other work of the machine may explain it.
    Unclear(String),
}

/// Measures until a reading can be judged, at most [`ATTEMPTS`] times. `measure` gets the number of
/// the attempt, from 0.
///
/// # Errors
/// When a reading is bad, or two are suspect, or a measurement fails.
pub fn judge(test: &str, measure: impl FnMut(usize) -> Result<Reading>) -> Result<()> {
    judge_between(test, measure, await_quiet, note)
}

fn judge_between(
    test: &str,
    mut measure: impl FnMut(usize) -> Result<Reading>,
    mut pause: impl FnMut(),
    report: impl FnOnce(&str),
) -> Result<()> {
    let (mut reasons, mut has_suspect) = (Vec::new(), false);
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            pause();
        }
        match measure(attempt)? {
            Reading::Good => return Ok(()),
            Reading::Bad(what) => bail!("{test}: {what}"),
            Reading::Suspect(what) if has_suspect => bail!("{test}, twice: {what}"),
            Reading::Suspect(what) => {
                eprintln!("{test}: attempt {} of {ATTEMPTS} is suspect: {what}", attempt + 1);
                has_suspect = true;
                reasons.push(what);
            }
            Reading::Unclear(why) => {
                eprintln!("{test}: attempt {} of {ATTEMPTS} says nothing: {why}", attempt + 1);
                reasons.push(why);
            }
        }
    }
    report(&format!("{NOT_MEASURED} {test}: {}", reasons.join("; ")));
    Ok(())
}

/// Whether so large a share of the time, lost to other work, leaves the machine quiet.
#[must_use]
pub fn is_quiet(taken: f64) -> bool {
    taken < QUIET
}

fn await_quiet() {
    let began = Instant::now();
    while began.elapsed() < PATIENCE && !is_quiet(taken_by_others()) {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The largest part of half a second that a thread which spins on either CPU did not have, in
/// pieces that would make a round trip slow.
#[must_use]
pub fn taken_by_others() -> f64 {
    let spin = |cpu| {
        if let Some(cpu) = cpu_of(cpu) {
            let mut set = CpuSet::new();
            set.set(cpu);
            // Without it the threads still measure all CPUs together.
            let _ = sched_setaffinity(None, &set);
        }
        let (began, mut last, mut lost) = (Instant::now(), Instant::now(), Duration::ZERO);
        while began.elapsed() < Duration::from_millis(500) {
            let gap = last.elapsed();
            last += gap;
            if gap > Duration::from_millis(1) {
                lost += gap;
            }
        }
        lost.as_secs_f64() / began.elapsed().as_secs_f64()
    };
    std::thread::scope(|threads| {
        let spinning = [0, 1].map(|cpu| threads.spawn(move || spin(cpu)));
        spinning.map(|one| one.join().expect("no panic")).into_iter().fold(0.0, f64::max)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges these readings. Returns the result, the pauses made and what was reported.
    fn judged(readings: &[Reading]) -> (Result<()>, usize, Option<String>) {
        let (mut pauses, mut reported) = (0, None);
        let result = judge_between(
            "a_test",
            |attempt| Ok(readings[attempt].clone()),
            || pauses += 1,
            |line| reported = Some(line.to_owned()),
        );
        (result, pauses, reported)
    }

    fn unclear() -> Reading {
        Reading::Unclear("busy".into())
    }

    #[test]
    fn the_first_reading_that_can_be_judged_counts() {
        let (result, pauses, reported) = judged(&[unclear(), Reading::Good]);
        assert!(result.is_ok() && pauses == 1 && reported.is_none());
        let (result, pauses, reported) = judged(&[unclear(), Reading::Bad("slow".into())]);
        assert_eq!(result.unwrap_err().to_string(), "a_test: slow");
        assert!(pauses == 1 && reported.is_none());
    }

    #[test]
    fn what_other_work_may_have_disturbed_is_bad_when_it_is_seen_again() {
        let suspect = || Reading::Suspect("late".into());
        let (result, pauses, reported) = judged(&[suspect(), Reading::Good]);
        assert!(result.is_ok() && pauses == 1 && reported.is_none());
        for readings in [vec![suspect(), suspect()], vec![suspect(), unclear(), suspect()]] {
            let (result, pauses, reported) = judged(&readings);
            assert_eq!(result.unwrap_err().to_string(), "a_test, twice: late");
            assert!(pauses == readings.len() - 1 && reported.is_none());
        }
        let (result, _, reported) = judged(&[suspect(), unclear(), unclear()]);
        assert!(result.is_ok());
        assert_eq!(reported.as_deref(), Some("NOT MEASURED a_test: late; busy; busy"));
    }

    #[test]
    fn a_test_without_a_clear_reading_is_reported_as_not_measured() {
        let (result, pauses, reported) = judged(&[unclear(), unclear(), unclear()]);
        assert!(result.is_ok() && pauses == 2);
        assert_eq!(reported.as_deref(), Some("NOT MEASURED a_test: busy; busy; busy"));
    }
}
