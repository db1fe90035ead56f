//! `cargo xtask unobserved`: what it costs that the device can be observed, while nothing does.
//!
//! Two builds are compared: the ordinary one, and one whose code for watchers is left out. Daemons
//! of both run all the time. Windows of either build alternate, so that both meet the same machine.
//! The result is the median of the rounds' ratios, with the bounds between which it lies in 95 of
//! 100 cases: where these are too far apart to tell, nothing was measured.

use std::fmt;

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::dist::{Dist, RELEASE};
use system_tests::lab::{NOT_MEASURED, Pair};
use system_tests::packages::Toolbox;
use system_tests::process::is_root;
use system_tests::{netns, paths};

use super::probes::Form;
use super::series::{Metric, Spread};
use super::topology::{Fixtures, beside, pair, program};

/// What may be lost.
const MOST_LOST: f64 = 0.02;
/// How seldom the median lies outside of its bounds.
const DOUBT: f64 = 0.05;
/// Fewer rounds have no bounds.
const FEWEST_ROUNDS: usize = 6;
/// Cargo's feature of the daemon without the code.
const FEATURE: &str = "rnicd/unobservable";

/// What is compared: a program, its number, and whether less is better.
const CASES: [(&str, &str, Metric, bool); 2] = [
    ("bandwidth", "ib_write_bw -s 65536 -m 4096 -n 30000", Metric::Bytes, false),
    ("latency", "ib_send_lat -s 8 -n 50000", Metric::P50, true),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Rounds of four windows each, at least 6
    #[arg(long, value_name = "N", default_value_t = 15)]
    runs: usize,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(is_root(), "this needs root for network namespaces");
    ensure!(options.runs >= FEWEST_ROUNDS, "--runs must be at least {FEWEST_ROUNDS}");
    netns::sweep()?;
    paths::sweep()?;
    let tools = Toolbox::provide(&["ib_write_bw", "ib_send_lat"])?;
    eprintln!("building twice (release)");
    let place = paths::target().join("unobservable");
    let without = Dist::build_with(RELEASE, &["--features", FEATURE], &place)?;
    let with = Dist::build(RELEASE, &paths::target().join("dist"))?;
    let fixtures = [Fixtures::new(&with, tools.clone())?, Fixtures::new(&without, tools)?];
    let [with, without] = [&fixtures[0], &fixtures[1]].map(|of| pair(of, Io::Udp, &[]));
    let pairs = [with?, without?];
    let mut failed = Vec::new();
    for (name, line, metric, less) in CASES {
        let mut ratios = Vec::new();
        for round in 0..options.runs {
            let [with, without] = round_of(&pairs, line, metric)?;
            eprintln!("{name} {round}: {} and {}", metric.show(with), metric.show(without));
            ratios.push(if less { without / with } else { with / without });
        }
        let verdict = Verdict::of(ratios);
        println!("{name}: {verdict}");
        failed.extend((verdict.said == Said::Worse).then_some(name));
    }
    for pair in pairs {
        pair.stop()?;
    }
    ensure!(failed.is_empty(), "being observable costs more than 2 %: {}", failed.join(", "));
    Ok(())
}

/// Means of two windows of each build, in an order that favours neither where the machine becomes
/// slower or faster.
fn round_of(pairs: &[Pair; 2], line: &str, metric: Metric) -> Result<[f64; 2]> {
    let mut sums = [0.0; 2];
    for which in [0, 1, 1, 0] {
        let Pair { left, right, .. } = &pairs[which];
        let (server, client) = (beside(left, 0, Form::Plain), beside(right, 1, Form::Plain));
        let reading = program(line, &server, &client)?;
        let value = reading.values.iter().find(|(other, _)| *other == metric);
        sums[which] += value.map_or(0.0, |(_, value)| *value) / 2.0;
    }
    ensure!(sums.iter().all(|sum| *sum > 0.0), "{line} measured nothing");
    Ok(sums)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Said {
    Equal,
    Worse,
    NotMeasured,
}

/// What rounds say together.
struct Verdict {
    spread: Spread,
    bounds: (f64, f64),
    said: Said,
}

impl Verdict {
    /// Of the ratios of the rounds, of which there are enough; more than 1 is better.
    fn of(mut ratios: Vec<f64>) -> Self {
        ratios.sort_by(f64::total_cmp);
        let outside = outside(ratios.len());
        let bounds = (ratios[outside], ratios[ratios.len() - 1 - outside]);
        let least = 1.0 - MOST_LOST;
        let said = match bounds {
            (low, _) if low >= least => Said::Equal,
            (_, high) if high < least => Said::Worse,
            _ => Said::NotMeasured,
        };
        let nothing = Spread { median: 0.0, min: 0.0, max: 0.0 };
        Self { spread: Spread::of(ratios).unwrap_or(nothing), bounds, said }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((low, high), median) = (self.bounds, self.spread.median);
        write!(f, "{median:.3} of a build without the code ({low:.3}..{high:.3}): ")?;
        match self.said {
            Said::Equal => write!(f, "within 2 %"),
            Said::Worse => write!(f, "more than 2 % worse"),
            Said::NotMeasured => write!(f, "{NOT_MEASURED}, the windows differ too much"),
        }
    }
}

/// So many of `n` sorted values at either end lie outside of the median's bounds: each value is
/// above the true median as often as below it.
fn outside(n: usize) -> usize {
    let mut probability = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let (mut sum, mut count) = (0.0, 0);
    while count < n {
        sum += probability;
        if 2.0 * sum > DOUBT {
            break;
        }
        probability *= (n - count) as f64 / (count + 1) as f64;
        count += 1;
    }
    count.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_sign_test() {
        // The 1st of 6, the 4th of 15 and the 10th of 30 values from either end.
        assert_eq!([6, 15, 30].map(outside), [0, 3, 9]);
    }

    #[test]
    fn only_what_the_windows_can_tell_is_said() {
        let said = |ratio: f64, noise: f64| {
            let ratios = (0..15).map(|k| ratio * (1.0 + noise * (f64::from(k) - 7.0) / 7.0));
            Verdict::of(ratios.collect()).said
        };
        assert_eq!([said(1.0, 0.02), said(0.99, 0.01), said(1.1, 0.05)], [Said::Equal; 3]);
        assert_eq!([said(0.9, 0.05), said(0.97, 0.01)], [Said::Worse; 2]);
        assert_eq!([said(1.0, 0.3), said(0.98, 0.05)], [Said::NotMeasured; 2]);
    }
}
