//! `cargo xtask budget`: counts the instructions of the engine's hot paths and compares them with a
//! file.
//!
//! callgrind counts the instructions, so the numbers do not depend on the machine's other work.
//! Only lines of our own sources count: copying payload and computing CRCs is done by other
//! libraries and depends on the processor.
//!
//! Some cases are counted of an engine that can be watched as well, while none watches: its code
//! without events is the same, but helpers that both forms use might be inlined less often.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use system_tests::dist::cargo;
use system_tests::packages::Apt;
use system_tests::paths::{self, Scratch};
use system_tests::process::{Cmd, is_root};

const BOTH: &[&str] = &["requester", "responder"];
const RESPONDER: &[&str] = &["responder"];
/// Cases of `tools/rnic-bench/benches/hot.rs`, and the sides that count. The path MTU is 4096.
const CASES: [(&str, &[&str]); 7] = [
    ("write-8", BOTH),
    ("write-65536", BOTH),
    ("write-1048576", BOTH),
    ("send-8", BOTH),
    ("read-65536", BOTH),
    ("srq-8", RESPONDER),
    ("crowded-srq-8", RESPONDER),
];
/// What one count may be at most of another, in hundredths: a receive of a shared queue costs
/// little more than one of an own queue, and idle queue pairs that share it cost nothing.
const AT_MOST: [(&str, u64, &str); 2] = [
    ("srq-8 responder", 115, "send-8 responder"),
    ("crowded-srq-8 responder", 100, "srq-8 responder"),
];
/// Cases that are counted in an engine that can be watched, too.
const WATCHABLE: [(&str, &[&str]); 2] = [("write-8", BOTH), ("send-8", BOTH)];
/// Messages that are counted; more would change nothing.
const MESSAGES: u64 = 64;
/// How far a count may be from the budget.
const TOLERANCE: f64 = 0.03;
/// How far the count of an engine that can be watched may be from that of one that cannot.
const WATCHABLE_TOLERANCE: f64 = 0.02;
/// Sources whose instructions count.
const OURS: [&str; 3] = ["crates/rnic-core/src/", "crates/rnic-abi/src/", "crates/roce-wire/src/"];
const LIMIT: Duration = Duration::from_secs(1800);

/// Instructions per message by case and side, as in `write-8 requester`.
pub(crate) type Counts = BTreeMap<String, u64>;

/// Counts, and compares with the budget or writes a new one.
pub(crate) fn run(write: bool) -> Result<()> {
    provide_valgrind()?;
    let counts = count_all(&build(&[])?, &CASES)?;
    println!("where engines can be watched, and none watches:");
    let watchable = count_all(&build(&["--features", "observe"])?, &WATCHABLE)?;
    let same: Counts =
        counts.clone().into_iter().filter(|(key, _)| watchable.contains_key(key)).collect();
    let faults = compare(&same, &watchable, WATCHABLE_TOLERANCE);
    ensure!(
        faults.is_empty(),
        "an engine that can be watched costs more than one that cannot:\n  {}",
        faults.join("\n  ")
    );
    let excess = excess(&counts);
    ensure!(
        excess.is_empty(),
        "a hot path costs too much beside another:\n  {}",
        excess.join("\n  ")
    );
    if write {
        let file = file();
        return fs::write(&file, render(&counts))
            .with_context(|| format!("cannot write {}", file.display()));
    }
    let faults = compare(&recorded()?, &counts, TOLERANCE);
    if !faults.is_empty() {
        bail!(
            "the hot paths left their budget; if that is right, run `cargo xtask budget --write`:\
             \n  {}",
            faults.join("\n  ")
        );
    }
    Ok(())
}

/// The budget as it is in the file.
pub(crate) fn recorded() -> Result<Counts> {
    let file = file();
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    parse(&text)
}

fn file() -> PathBuf {
    paths::repository().join("tools/rnic-bench/budget.txt")
}

/// The stage of `cargo xtask test`.
pub(crate) fn stage() -> Result<()> {
    run(false)
}

fn provide_valgrind() -> Result<()> {
    if Cmd::new("valgrind").arg("--version").run().is_ok_and(|output| output.success()) {
        return Ok(());
    }
    ensure!(is_root(), "the instruction budget needs the package valgrind, which root installs");
    Apt::system().install(&["valgrind"])
}

/// Counts these cases, and shows the counts.
fn count_all(program: &Path, cases: &[(&str, &[&str])]) -> Result<Counts> {
    let mut counts = Counts::new();
    for (case, sides) in cases {
        for side in *sides {
            let instructions = count(program, case, side)?;
            println!("{case:<16} {side:<12} {instructions:>8} instructions per message");
            counts.insert(format!("{case} {side}"), instructions);
        }
    }
    Ok(counts)
}

fn build(features: &[&str]) -> Result<PathBuf> {
    let text = cargo()
        .args(["build", "--profile", "bench", "--quiet", "--message-format=json"])
        .args(["-p", "rnic-bench", "--bench", "hot"])
        .args(features)
        .limit(LIMIT)
        .check()?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut made = messages
        .filter(|message| message["target"]["name"] == "hot")
        .filter_map(|message| Some(message["executable"].as_str()?.to_owned()));
    made.next().map(PathBuf::from).context("cargo made no benchmark `hot`")
}

/// Instructions per message in the turns of one side.
fn count(program: &Path, case: &str, side: &str) -> Result<u64> {
    let scratch = Scratch::new("callgrind")?;
    let out = scratch.join("out");
    Cmd::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*{side}_turn*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(program)
        .args([case, &MESSAGES.to_string()])
        .limit(Duration::from_secs(300))
        .check()?;
    let ours = own_instructions(&fs::read_to_string(&out)?);
    ensure!(ours > 0, "callgrind counted nothing for {side} of {case}");
    Ok(ours / MESSAGES)
}

/// Instructions of our own source lines in callgrind's profile.
///
/// A line of the profile is a position and a count; the source file is the last that `fl=`, `fi=`
/// or `fe=` named. The line after `calls=` is what a call cost, which its callee counts already.
fn own_instructions(profile: &str) -> u64 {
    let mut ours = false;
    let mut skip = false;
    let mut sum = 0;
    for line in profile.lines() {
        if let Some((key, value)) = line.split_once('=') {
            match key {
                "fl" | "fi" | "fe" => ours = OURS.iter().any(|dir| value.contains(dir)),
                "calls" => skip = true,
                _ => {}
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let count = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
            if ours && !skip {
                sum += count.unwrap_or(0);
            }
            skip = false;
        }
    }
    sum
}

const HEADER: &str = "\
# Instructions per message of the engine's hot paths (path MTU 4096, 32 messages on the way).
# Written by `cargo xtask budget --write`; `cargo xtask budget` compares, within 3 %.
";

fn render(counts: &Counts) -> String {
    let mut text = HEADER.to_owned();
    for (key, count) in counts {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{key} {count}");
    }
    text
}

fn parse(text: &str) -> Result<Counts> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (key, count) = line.rsplit_once(' ').context("a line is CASE SIDE COUNT")?;
            Ok((key.to_owned(), count.parse().with_context(|| line.to_owned())?))
        })
        .collect()
}

/// The counts that are further from their budget than a part of it.
fn compare(budget: &Counts, counts: &Counts, tolerance: f64) -> Vec<String> {
    let keys: BTreeSet<_> = budget.keys().chain(counts.keys()).collect();
    let fault = |key: &String| match (budget.get(key), counts.get(key)) {
        (Some(&wanted), Some(&found)) => {
            let change = found as f64 / wanted as f64 - 1.0;
            (change.abs() > tolerance).then(|| {
                format!("{key}: {found} instructions, {:+.1} % of {wanted}", change * 100.0)
            })
        }
        (None, _) => Some(format!("{key} has no budget")),
        (_, None) => Some(format!("{key} is no case any more")),
    };
    keys.into_iter().filter_map(fault).collect()
}

/// The counts that are too large beside another one.
fn excess(counts: &Counts) -> Vec<String> {
    let fault = |(key, hundredths, than): &(&str, u64, &str)| {
        let (Some(count), Some(other)) = (counts.get(*key), counts.get(*than)) else {
            return Some(format!("{key} or {than} was not counted"));
        };
        let is_excess = count * 100 > other * hundredths;
        is_excess.then(|| format!("{key}: {count}, more than {hundredths} % of {than}: {other}"))
    };
    AT_MOST.iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_lines_count_and_calls_do_not_count_twice() {
        let profile = "events: Ir\n\
            fl=/w/crates/rnic-core/src/engine.rs\nfn=turn\n10 5\ncalls=1 20\n11 1000\n12 7\n\
            fi=/rustc/x/core/src/iter.rs\n3 100\nfe=/w/crates/roce-wire/src/icrc.rs\n4 1\n\
            totals: 1113\n";
        assert_eq!(own_instructions(profile), 13);
    }

    #[test]
    fn a_budget_survives_writing_and_reading() {
        let counts = Counts::from([("write-8 requester".to_owned(), 812)]);
        assert_eq!(parse(&render(&counts)).unwrap(), counts);
    }

    #[test]
    fn a_path_may_cost_as_much_beside_another_and_no_more() {
        let counts = |srq, crowded| {
            let counts = [("send-8", 1000), ("srq-8", srq), ("crowded-srq-8", crowded)];
            counts.map(|(case, count)| (format!("{case} responder"), count)).into()
        };
        assert!(excess(&counts(1150, 1150)).is_empty());
        assert_eq!(excess(&counts(1151, 1151)).len(), 1);
        assert_eq!(excess(&counts(1000, 1001)).len(), 1);
        assert_eq!(excess(&Counts::new()).len(), 2);
    }

    #[test]
    fn small_changes_are_within_the_budget() {
        let counts = |count| Counts::from([("a b".to_owned(), count)]);
        assert!(compare(&counts(1000), &counts(1029), TOLERANCE).is_empty());
        assert_eq!(compare(&counts(1000), &counts(1031), TOLERANCE).len(), 1);
        assert_eq!(compare(&counts(1000), &counts(960), TOLERANCE).len(), 1);
        assert_eq!(compare(&counts(1000), &Counts::new(), TOLERANCE).len(), 1);
    }
}
