//! A scenario: faults that start and stop at times.

use crate::cli::client::Client;
use crate::cli::tell;
use crate::cli::watching::interruption;
use anyhow::{Context, Result, bail, ensure};
use rnic_abi::control::FaultChange;
use rnic_host::report;
use rnic_host::wire::{Fault, MAX_FAULTS};
use serde::Deserialize;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use toml::Spanned;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Scenario {
    seed: Option<u64>,
    /// In the order of their times.
    steps: Vec<(Duration, Step)>,
    /// All faults stop.
    ends: bool,
}

/// Of the fault of this index.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Start(usize, String),
    Stop(usize),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    seed: Option<u64>,
    fault: Vec<Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    fault: Spanned<String>,
    start: Option<Spanned<String>>,
    stop: Option<Spanned<String>>,
}

/// Reads a file.
///
/// # Errors
/// With the line that is wrong, and why.
pub(super) fn read(path: &Path) -> Result<Scenario> {
    let name = path.display();
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        io::stdin().lock().take(LONGEST + 1).read_to_string(&mut text)
    } else {
        let advice = "`rnic fault run --help` says what is in a scenario";
        let file = crate::cli::open(path, advice)?;
        file.take(LONGEST + 1).read_to_string(&mut text)
    };
    read.with_context(|| format!("cannot read {name}"))?;
    ensure!(text.len() as u64 <= LONGEST, "{name} is longer than {LONGEST} bytes");
    parse(&text).map_err(|why| anyhow::anyhow!("{name}, {why}"))
}

fn parse(text: &str) -> Result<Scenario, String> {
    let at = |span: Range<usize>, why: &str| {
        let before = text.get(..span.start).unwrap_or(text);
        format!("line {}: {why}", before.matches('\n').count() + 1)
    };
    let document: Document = toml::from_str(text)
        .map_err(|error| at(error.span().unwrap_or_default(), error.message()))?;
    if document.fault.is_empty() || document.fault.len() > MAX_FAULTS {
        return Err(format!("line 1: a scenario has 1 to {MAX_FAULTS} tables [[fault]]"));
    }
    let time =
        |value: &Spanned<String>| time(value.get_ref()).map_err(|why| at(value.span(), &why));
    let (mut steps, mut ends) = (Vec::new(), true);
    for (index, entry) in document.fault.iter().enumerate() {
        let (span, entry) = (entry.span(), entry.get_ref());
        let fault = entry.fault.get_ref();
        fault.parse::<Fault>().map_err(|why| at(entry.fault.span(), &why))?;
        let start = entry.start.as_ref().map_or(Ok(Duration::ZERO), time)?;
        let stop = entry.stop.as_ref().map(time).transpose()?;
        if stop.is_some_and(|stop| stop <= start) {
            return Err(at(span, "the fault stops before it starts"));
        }
        steps.push((start, Step::Start(index, fault.clone())));
        steps.extend(stop.map(|stop| (stop, Step::Stop(index))));
        ends &= stop.is_some();
    }
    // What stops at a time makes room for what starts then.
    steps.sort_by_key(|(at, step)| (*at, matches!(step, Step::Start(..))));
    Ok(Scenario { seed: document.seed, steps, ends })
}

/// `250us`, `3ms`, `1s`.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let micros = units.iter().find_map(|(unit, micros)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*micros)
    });
    let micros = micros.filter(|micros| *micros <= LATEST_SECONDS * 1_000_000);
    micros.map(Duration::from_micros).ok_or_else(|| {
        format!("{text:?} is not a time: give 250us, 3ms or 1s, at most {LATEST_SECONDS}s")
    })
}

impl Scenario {
    /// Runs it, and returns its faults as they ended.
    pub(super) fn run(&self, client: &Client) -> Result<Vec<report::Fault>> {
        let interrupted = interruption()?;
        let mut run = Run { client, seed: self.seed, active: Vec::new(), ended: Vec::new() };
        let done = run.steps(self, &interrupted);
        let cleared = run.stop(|_| true);
        done.and(cleared)?;
        run.ended.sort_by_key(|(index, _)| *index);
        Ok(std::mem::take(&mut run.ended).into_iter().map(|(_, fault)| fault).collect())
    }
}

/// A scenario that runs.
struct Run<'a> {
    client: &'a Client,
    /// For the first fault.
    seed: Option<u64>,
    /// Indexes of faults, and their numbers in the daemon.
    active: Vec<(usize, u32)>,
    ended: Vec<(usize, report::Fault)>,
}

impl Run<'_> {
    fn steps(&mut self, scenario: &Scenario, interrupted: &AtomicBool) -> Result<()> {
        let began = Instant::now();
        for (at, step) in &scenario.steps {
            while began.elapsed() < *at && !interrupted.load(Ordering::Relaxed) {
                sleep((*at - began.elapsed().min(*at)).min(LOOK_UP));
            }
            if interrupted.load(Ordering::Relaxed) {
                return Ok(());
            }
            match step {
                Step::Start(index, fault) => self.start(*index, fault)?,
                Step::Stop(index) => self.stop(|other| other == *index)?,
            }
            tell(format_args!("{:9.3} s  {}", began.elapsed().as_secs_f64(), words(step)));
        }
        while !scenario.ends && !interrupted.load(Ordering::Relaxed) {
            sleep(LOOK_UP);
        }
        Ok(())
    }

    fn start(&mut self, index: usize, fault: &str) -> Result<()> {
        let add = FaultChange::Add { faults: vec![fault.to_owned()], seed: self.seed.take() };
        let Some(added) = self.client.faults(add)?.pop() else {
            bail!("the daemon took the fault {fault:?}, and has none");
        };
        self.active.push((index, added.fault));
        Ok(())
    }

    /// Those that are gone already, others have removed.
    fn stop(&mut self, which: impl Fn(usize) -> bool) -> Result<()> {
        let known = self.client.faults(FaultChange::Keep)?;
        let (stopping, active): (Vec<_>, Vec<_>) =
            self.active.iter().partition(|(index, _)| which(*index));
        let ended = stopping.into_iter().filter_map(|(index, number)| {
            Some((index, known.iter().find(|fault| fault.fault == number)?.clone()))
        });
        let ended: Vec<_> = ended.collect();
        if !ended.is_empty() {
            let numbers = ended.iter().map(|(_, fault)| fault.fault).collect();
            self.client.faults(FaultChange::Remove(numbers))?;
        }
        self.active = active;
        self.ended.extend(ended);
        Ok(())
    }
}

/// Faults outlive the command that has made them, so it takes them away whatever ends it.
impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.active.is_empty()
            && let Err(error) = self.stop(|_| true)
        {
            tell(format_args!("rnic: faults of the scenario may be left: {error:#}"));
        }
    }
}

fn words(step: &Step) -> String {
    match step {
        Step::Start(index, fault) => format!("starts {}: {fault}", index + 1),
        Step::Stop(index) => format!("stops {}", index + 1),
    }
}

/// Bytes of a scenario.
const LONGEST: u64 = 64 * 1024;
const LATEST_SECONDS: u64 = 86_400;
/// How soon an interruption is noticed.
const LOOK_UP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_the_order_of_their_times() {
        let text = "seed = 7\n[[fault]]\nfault = \"drop=1%\"\nstart = \"2s\"\nstop = \"3s\"\n\
                    [[fault]]\nfault = \"rnr,nth=2\"\nstop = \"2s\"\n";
        let scenario = parse(text).unwrap();
        assert_eq!((scenario.seed, scenario.ends), (Some(7), true));
        let times: Vec<_> = scenario.steps.iter().map(|(at, _)| at.as_secs()).collect();
        assert_eq!(times, [0, 2, 2, 3]);
        assert_eq!(scenario.steps[1].1, Step::Stop(1), "what stops comes first");
        assert!(!parse("[[fault]]\nfault = \"drop\"\n").unwrap().ends);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, part) in [
            ("", "line 1: missing field"),
            ("fault = []", "line 1: a scenario has 1 to 64"),
            ("seed = 1\n\n[[fault]]\nfault = \"dorp\"\n", "line 4: \"dorp\" is not one of"),
            ("[[fault]]\nfault = \"drop\"\nstart = \"2\"\n", "line 3: \"2\" is not a time"),
            ("[[fault]]\nfault = \"drop\"\nstart = \"86401s\"\n", "line 3"),
            (
                "[[fault]]\nfault = \"drop\"\nstart = \"2s\"\nstop = \"1s\"",
                "line 1: the fault stops",
            ),
            ("[[fault]]\nfault = \"drop\"\nwhen = 1\n", "line 3: unknown field"),
            ("seed = -1\n[[fault]]\nfault = \"drop\"\n", "line 1"),
            ("[[fault]\n", "line 1"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(part), "{text:?}: {why}");
        }
        let many = "[[fault]]\nfault = \"drop\"\n".repeat(MAX_FAULTS + 1);
        assert!(parse(&many).unwrap_err().contains("1 to 64"));
    }
}
