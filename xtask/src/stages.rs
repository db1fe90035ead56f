//! A list of stages, all of which are run, timed and summarized.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use system_tests::interrupt;

/// A named piece of work.
pub(crate) struct Stage {
    name: String,
    work: Box<dyn Fn() -> Result<()> + Send>,
}

impl Stage {
    pub(crate) fn new(
        name: impl Into<String>,
        work: impl Fn() -> Result<()> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), work: Box::new(work) }
    }
}

/// The error of a stage that this machine cannot run; it does not fail the run.
#[derive(Debug)]
pub(crate) struct Skipped(pub(crate) String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// How a stage went.
pub(crate) struct Outcome {
    name: String,
    took: Duration,
    error: Option<anyhow::Error>,
}

impl Outcome {
    fn result(&self) -> &'static str {
        match &self.error {
            None => "ok",
            Some(error) if error.is::<Skipped>() => "SKIPPED",
            Some(_) => "FAILED",
        }
    }
}

/// Runs every stage, also after a failed one, and fails when any did.
pub(crate) fn all(title: &str, stages: Vec<Stage>) -> Result<()> {
    let outcomes = run(stages)?;
    summary(&outcomes);
    conclude(title, &outcomes)
}

/// Runs every stage; only an interrupt ends the list early.
pub(crate) fn run(stages: Vec<Stage>) -> Result<Vec<Outcome>> {
    stages.into_iter().map(run_one).collect()
}

fn run_one(Stage { name, work }: Stage) -> Result<Outcome> {
    eprintln!("== {name}");
    let began = Instant::now();
    let error = work().err();
    interrupt::check()?;
    let outcome = Outcome { name, took: began.elapsed(), error };
    if let Some(error) = &outcome.error {
        eprintln!("{error:#}\n== {} {}", outcome.name, outcome.result());
    }
    Ok(outcome)
}

/// Runs these lists at the same time, each from its first stage on. A list that is at its end goes
/// on with the last stages of the longest one, so no stage may need another one of its list.
pub(crate) fn run_beside(lists: Vec<Vec<Stage>>) -> Result<Vec<Outcome>> {
    let lists: Mutex<Vec<VecDeque<Stage>>> =
        Mutex::new(lists.into_iter().map(VecDeque::from).collect());
    let lock = || lists.lock().unwrap_or_else(PoisonError::into_inner);
    let count = lock().len();
    let next = |own: usize| {
        let mut lists = lock();
        let stage = lists[own].pop_front();
        stage.or_else(|| lists.iter_mut().max_by_key(|list| list.len())?.pop_back())
    };
    let work = |own: usize| -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        while let Some(stage) = next(own) {
            outcomes.push(run_one(stage)?);
        }
        Ok(outcomes)
    };
    let work = &work;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..count).map(|own| scope.spawn(move || work(own))).collect();
        let outcomes = running.into_iter().map(|list| list.join().expect("no stage panics"));
        Ok(outcomes.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

/// Prints each stage's time and result.
pub(crate) fn summary(outcomes: &[Outcome]) {
    println!();
    for outcome in outcomes {
        let Outcome { name, took, error } = outcome;
        let result = outcome.result();
        let reason = error.as_ref().filter(|error| error.is::<Skipped>());
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        println!("{name:<26} {:>7.1} s  {result}{reason}", took.as_secs_f64());
    }
}

/// Fails when a stage did, and says again why: a reader of a long log begins at its end.
pub(crate) fn conclude(title: &str, outcomes: &[Outcome]) -> Result<()> {
    let failed = |outcome: &&Outcome| outcome.result() == "FAILED";
    for Outcome { name, error, .. } in outcomes.iter().filter(failed) {
        if let Some(error) = error {
            println!("\n== {name} FAILED: {error:#}");
        }
    }
    let failed: Vec<_> =
        outcomes.iter().filter(failed).map(|outcome| outcome.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("{title} failed: {}", failed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_stage_fails_the_run() {
        let stage = |work: fn() -> Result<()>| Stage::new("it", work);
        let skipped = || Err(Skipped("no tool".into()).into());
        assert!(all("run", vec![stage(|| Ok(())), stage(skipped)]).is_ok());
        let error = all("run", vec![stage(|| bail!("wrong")), stage(skipped)]).unwrap_err();
        assert_eq!(error.to_string(), "run failed: it");
        let outcomes = run_beside(vec![vec![stage(|| Ok(()))], vec![stage(|| bail!("wrong"))]]);
        // Which thread runs which stage is open: the first to be awake may take both.
        let mut results: Vec<_> = outcomes.unwrap().iter().map(Outcome::result).collect();
        results.sort_unstable();
        assert_eq!(results, ["FAILED", "ok"]);
    }

    #[test]
    fn a_list_at_its_end_helps_with_another() {
        let (first, rest) = std::sync::mpsc::channel();
        let rest = Mutex::new(rest);
        // The first stage of the long list waits for its second, which only the other list can run.
        let waits = Stage::new("waits", move || Ok(rest.lock().unwrap().recv()?));
        let ends = Stage::new("ends", move || Ok(first.send(())?));
        let outcomes = run_beside(vec![vec![waits, ends], Vec::new()]).unwrap();
        let results: Vec<_> = outcomes.iter().map(Outcome::result).collect();
        assert_eq!(results, ["ok", "ok"]);
    }
}
