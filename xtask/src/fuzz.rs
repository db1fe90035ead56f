//! `cargo xtask fuzz`: long runs of the fuzzers, in parts that add up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use system_tests::paths;
use system_tests::process::{Cmd, tail};

use crate::tool;

/// A fuzzer of `fuzz/`.
struct Target {
    name: &'static str,
    /// The input is a list of steps. It has no magic numbers to learn from comparisons, and the
    /// number of times that a branch is taken mainly tells the number of steps. Not recording these
    /// two makes the fuzzer three times as fast.
    is_script: bool,
    /// Bytes of the longest input.
    max_len: u32,
}

const TARGETS: [Target; 9] = [
    Target { name: "frame", is_script: false, max_len: 512 },
    Target { name: "engine_rx", is_script: true, max_len: 384 },
    Target { name: "wqe", is_script: true, max_len: 384 },
    Target { name: "control", is_script: false, max_len: 1024 },
    Target { name: "capture", is_script: false, max_len: 2048 },
    Target { name: "mad", is_script: false, max_len: 320 },
    Target { name: "cm", is_script: true, max_len: 512 },
    Target { name: "observe", is_script: false, max_len: 1024 },
    Target { name: "rsocket", is_script: true, max_len: 512 },
];

/// Executions of a part. The count is saved after each part, so an interrupt loses at most one.
const PART: u64 = 250_000;
const PART_LIMIT: Duration = Duration::from_secs(1800);
/// Seconds after which an input counts as an endless loop. This is wall-clock time, on a machine
/// that may be busy.
const HANGS: u32 = 300;
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const HOST: &str = "x86_64-unknown-linux-gnu";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this target: frame, engine_rx, wqe, control, capture, mad, cm, observe or rsocket; may
    /// be given several times
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Executions of each target, those of earlier calls included
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    runs: u64,
    /// Stop each target after so many seconds, however many executions there were
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Build with a sanitizer: none, or address, which is slower and sees what unsafe code does
    #[arg(long, value_name = "NAME", default_value = "none")]
    sanitizer: String,
    /// Count from zero again
    #[arg(long)]
    fresh: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = choose(&options.target)?;
    let tool = tool::installed("cargo-fuzz")?;
    let mut reports = Vec::new();
    for target in chosen {
        eprintln!("== {}", target.name);
        let binary = build(target, &tool, &options.sanitizer)?;
        reports.push(fuzz(target, &binary, options)?);
    }
    println!();
    for report in &reports {
        println!("{report}");
    }
    let findings: usize = reports.iter().map(|report| report.findings.len()).sum();
    ensure!(findings == 0, "{findings} findings: run a target's binary with one of the files");
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let find = |name: &String| {
        TARGETS.iter().find(|target| target.name == name).with_context(|| {
            let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            format!("there is no target {name}; there are {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

fn out() -> PathBuf {
    paths::target().join("fuzz")
}

/// Builds a fuzzer with the nightly toolchain, which only libFuzzer's instrumentation needs.
fn build(target: &Target, tool: &Path, sanitizer: &str) -> Result<PathBuf> {
    let how = if target.is_script { "plain" } else { "traced" };
    let folder = out().join(format!("{sanitizer}-{how}"));
    let mut build = Cmd::new("rustup")
        .args(["run", "nightly"])
        .arg(tool)
        .args(["fuzz", "build", "--fuzz-dir", "fuzz", "--sanitizer", sanitizer, "--target-dir"])
        .arg(&folder)
        .without_env("CARGO")
        .dir(paths::repository())
        .limit(BUILD_LIMIT);
    if target.is_script {
        build = build.arg("--no-trace-compares");
    }
    let built = build.arg(target.name).run()?;
    ensure!(
        built.success(),
        "{built}\nfuzzing needs a nightly toolchain: rustup toolchain install nightly"
    );
    Ok(folder.join(HOST).join("release").join(target.name))
}

/// The result of a target, including earlier calls.
struct Report {
    name: &'static str,
    count: Count,
    findings: Vec<PathBuf>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, count: Count { executions, seconds }, findings } = self;
        let rate = executions / (*seconds).max(1);
        write!(f, "{name:<12} {executions:>12} executions in {seconds} s ({rate}/s)")?;
        write!(f, ", {} findings", findings.len())?;
        findings.iter().try_for_each(|file| write!(f, "\n    {}", file.display()))
    }
}

/// Executions of a target, and the time they took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Count {
    executions: u64,
    seconds: u64,
}

impl Count {
    /// What earlier calls saved; zero when that cannot be read.
    fn parse(text: &str) -> Self {
        let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(executions), Some(seconds)) => Self { executions, seconds },
            _ => Self::default(),
        }
    }
}

/// Runs parts until there were enough executions, the time is over or something was found.
fn fuzz(target: &Target, binary: &Path, options: &Options) -> Result<Report> {
    let kept = out().join(format!("{}.executions", target.name));
    if options.fresh {
        let _ = fs::remove_file(&kept);
    }
    let before = Count::parse(&fs::read_to_string(&kept).unwrap_or_default());
    let began = Instant::now();
    let mut report = Report { name: target.name, count: before, findings: findings(target)? };
    let time_left = || match options.seconds {
        Some(seconds) => Duration::from_secs(seconds).saturating_sub(began.elapsed()),
        None => PART_LIMIT,
    };
    let Report { count, findings: found, .. } = &mut report;
    while count.executions < options.runs && !time_left().is_zero() && found.is_empty() {
        let runs = PART.min(options.runs - count.executions);
        count.executions += part(target, binary, runs, time_left().min(PART_LIMIT))?;
        count.seconds = before.seconds + began.elapsed().as_secs();
        let Count { executions, seconds } = *count;
        fs::write(&kept, format!("{executions} {seconds}\n")).context("cannot keep the count")?;
        *found = findings(target)?;
        eprintln!("{:<12} {executions} in {seconds} s", target.name);
    }
    Ok(report)
}

/// Calls the fuzzer once, which adds new inputs to the corpus. Returns its executions.
fn part(target: &Target, binary: &Path, runs: u64, time: Duration) -> Result<u64> {
    let corpus = folder("corpus", target)?;
    let artifacts = folder("findings", target)?;
    let kept = |kind: &str| paths::repository().join("fuzz").join(kind).join(target.name);
    let inputs = [corpus, kept("seeds"), kept("regressions")];
    let output = Cmd::new("nice")
        .args(["-n", "15"])
        .arg(binary)
        .arg(format!("-runs={runs}"))
        .arg(format!("-max_total_time={}", time.as_secs().max(1)))
        .arg(format!("-max_len={}", target.max_len))
        .arg(format!("-use_counters={}", u8::from(!target.is_script)))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-timeout={HANGS}"))
        .arg(format!("-report_slow_units={HANGS}"))
        .args(["-print_final_stats=1", "-verbosity=0"])
        .args(inputs.iter().filter(|folder| folder.exists()))
        .limit(time + PART_LIMIT)
        .run()?;
    let executed = executions(&output.stderr);
    if !output.success() {
        eprintln!("{}", tail(&output.stderr, 60));
        if findings(target)?.is_empty() {
            bail!("the fuzzer {} failed without an input to blame", target.name);
        }
    }
    Ok(executed)
}

/// What libFuzzer's statistics say.
fn executions(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Inputs that broke a promise, including those of earlier calls.
fn findings(target: &Target) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder("findings", target)?)?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

fn folder(kind: &str, target: &Target) -> Result<PathBuf> {
    let folder = out().join(kind).join(target.name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_read_from_the_statistics() {
        let text = "Done 12 runs\nstat::number_of_executed_units: 4271079\nstat::peak_rss_mb: 28\n";
        assert_eq!(executions(text), 4_271_079);
        assert_eq!(executions("==1== ERROR: libFuzzer: deadly signal"), 0);
    }

    #[test]
    fn counts_are_kept_between_calls() {
        assert_eq!(Count::parse("250000 12\n"), Count { executions: 250_000, seconds: 12 });
        assert_eq!(Count::parse("250000"), Count::default());
    }

    #[test]
    fn an_unknown_target_is_refused_with_the_known_ones() {
        let error = choose(&["frames".into()]).err().unwrap().to_string();
        assert!(error.contains("engine_rx"), "{error}");
    }
}
