//! A list of stages, all of which are run, timed and summarized.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use system_tests::interrupt;

/// A named piece of work.
pub(crate) struct Stage {
    name: String,
    work: Box<dyn Fn() -> Result<()>>,
}

impl Stage {
    pub(crate) fn new(name: impl Into<String>, work: impl Fn() -> Result<()> + 'static) -> Self {
        Self { name: name.into(), work: Box::new(work) }
    }
}

/// How a stage went.
pub(crate) struct Outcome {
    name: String,
    took: Duration,
    error: Option<anyhow::Error>,
}

/// Runs every stage, also after a failed one, and fails when any did.
pub(crate) fn all(title: &str, stages: Vec<Stage>) -> Result<()> {
    let outcomes = run(stages)?;
    summary(&outcomes);
    conclude(title, &outcomes)
}

/// Runs every stage; only an interrupt ends the list early.
pub(crate) fn run(stages: Vec<Stage>) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for Stage { name, work } in stages {
        eprintln!("== {name}");
        let began = Instant::now();
        let error = work().err();
        interrupt::check()?;
        if let Some(error) = &error {
            eprintln!("{error:#}\n== {name} FAILED");
        }
        outcomes.push(Outcome { name, took: began.elapsed(), error });
    }
    Ok(outcomes)
}

/// Prints each stage's time and result.
pub(crate) fn summary(outcomes: &[Outcome]) {
    println!();
    for Outcome { name, took, error } in outcomes {
        let result = if error.is_some() { "FAILED" } else { "ok" };
        println!("{name:<26} {:>7.1} s  {result}", took.as_secs_f64());
    }
}

/// Fails when a stage did.
pub(crate) fn conclude(title: &str, outcomes: &[Outcome]) -> Result<()> {
    let failed = |outcome: &&Outcome| outcome.error.is_some();
    let failed: Vec<_> =
        outcomes.iter().filter(failed).map(|outcome| outcome.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("{title} failed: {}", failed.join(", "));
    }
    Ok(())
}
