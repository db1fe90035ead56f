//! What a daemon costs while nothing happens, how long it takes to start, and how fast programs
//! connect.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use system_tests::daemon::{Daemon, Io};
use system_tests::interrupt;
use system_tests::lab;
use system_tests::netns::NetPair;

use super::series::Spread;
use super::topology::Fixtures;
use super::{connections, idle_qps};

/// One of these costs.
pub(super) struct Finding {
    pub(super) title: String,
    pub(super) value: String,
    pub(super) target: &'static str,
    pub(super) met: Option<bool>,
    /// Compared with what `target` names, where that is a reference and no limit.
    pub(super) ratio: Option<f64>,
}

impl Finding {
    pub(super) fn verdict(&self) -> String {
        if let Some(ratio) = self.ratio {
            return format!("{ratio:.2}x {}", self.target);
        }
        match self.met {
            Some(true) => format!("{}: met", self.target),
            Some(false) => format!("{}: MISSED", self.target),
            None => format!("{}: not measured", self.target),
        }
    }
}

struct Cost {
    title: &'static str,
    target: &'static str,
    /// The value to show, and whether the target is met.
    measure: fn(&Fixtures, bool) -> Result<(String, bool)>,
}

const GROUP: &str = "standing costs";

const COSTS: &[Cost] = &[
    Cost { title: "daemon start, udp", target: "< 200 ms", measure: start_time },
    Cost { title: "idle daemon", target: "< 1 % of a core", measure: idle },
    Cost { title: "ibv_reg_mr of 1 GiB", target: "< 1 ms", measure: idle_qps::registration },
    Cost {
        title: "memory of an idle QP",
        target: "<= 4 KiB of the engine",
        measure: idle_qps::memory,
    },
    Cost {
        title: "time per message, 10,000 idle QPs",
        target: "<= 1.1x of none",
        measure: idle_qps::in_one_process,
    },
    Cost {
        title: "the same in 100 processes",
        target: "<= 1.1x of none",
        measure: idle_qps::in_many_processes,
    },
    Cost {
        title: "1,000 connections by cmtime, udp",
        target: ">= 1000 a second",
        measure: connections::between_namespaces,
    },
];

pub(super) fn measure(
    fixtures: &Fixtures,
    filters: &[String],
    quick: bool,
) -> Result<Vec<Finding>> {
    let wanted = |cost: &&Cost| {
        filters.is_empty()
            || filters.iter().any(|f| GROUP.contains(f.as_str()) || cost.title.contains(f.as_str()))
    };
    let mut findings = Vec::new();
    for cost in COSTS.iter().filter(wanted) {
        let outcome = (cost.measure)(fixtures, quick);
        interrupt::check()?;
        let (value, met) = match outcome {
            Ok((value, met)) => (value, Some(met)),
            Err(error) => {
                eprintln!("{}: {error:#}", cost.title);
                ("failed".to_owned(), None)
            }
        };
        eprintln!("{:<50} {value}", cost.title);
        let title = cost.title.to_owned();
        findings.push(Finding { title, value, target: cost.target, met, ratio: None });
    }
    Ok(findings)
}

fn start_time(fixtures: &Fixtures, quick: bool) -> Result<(String, bool)> {
    let net = NetPair::new(4200)?;
    let spec = lab::at_end(&net.left, Io::Udp);
    let mut times = Vec::new();
    for _ in 0..if quick { 3 } else { 7 } {
        let began = Instant::now();
        let daemon = Daemon::start(fixtures.dist, &spec)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        daemon.stop()?;
    }
    let Spread { median, min, max } = Spread::of(times).context("no start")?;
    Ok((format!("{median:.0} ms ({min:.0}..{max:.0})"), median < 200.0))
}

fn idle(fixtures: &Fixtures, quick: bool) -> Result<(String, bool)> {
    let net = NetPair::new(4200)?;
    let daemon = Daemon::start(fixtures.dist, &lab::at_end(&net.left, Io::Udp))?;
    std::thread::sleep(Duration::from_millis(500));
    let (began, before) = (Instant::now(), run_time(daemon.pid())?);
    std::thread::sleep(Duration::from_secs(if quick { 2 } else { 5 }));
    let share = (run_time(daemon.pid())? - before) / began.elapsed().as_secs_f64();
    daemon.stop()?;
    Ok((format!("{:.3} % of a core", share * 100.0), share < 0.01))
}

/// Seconds that the threads of a process ran so far.
fn run_time(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let run = text.split_whitespace().next().context("an empty schedstat")?;
        nanoseconds += run.parse::<u64>()?;
    }
    Ok(nanoseconds as f64 / 1e9)
}
