//! `cargo xtask compliance`: every rule of `docs/compliance.md` has a place in the engine, and a
//! test that fails when the engine does not keep it.
//!
//! One build with `--cfg planted` is enough: the environment variable `RNIC_PLANTED` names the rule
//! that is switched off, or the bug that is planted, in one run of one test.

mod run;
mod source;
mod table;

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use system_tests::dist::cargo;

use run::Planted;
use source::Source;
use table::Table;

/// What to check.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// Switch off every rule; otherwise twenty, others every day
    #[arg(long)]
    all: bool,
    /// Plant every bug; otherwise none
    #[arg(long)]
    bugs: bool,
    /// Switch off this rule or plant this bug
    #[arg(long, value_name = "NAME", conflicts_with_all = ["all", "bugs"])]
    only: Option<String>,
    /// Only run the random walk, with seeds 0 to N - 1 and nothing planted: N worlds of mixed verbs
    /// under mixed faults. The tests run 1000; RNIC_SIM_SEEDS=N makes them run more, and
    /// RNIC_SIM_SEED=N replays one
    #[arg(long, value_name = "N", conflicts_with_all = ["all", "bugs", "only"])]
    walk: Option<u64>,
}

/// Rules that one ordinary run switches off.
const PER_RUN: usize = 20;

/// Seeds of each random sweep of rnic-sim.
const SEEDS: &str = "RNIC_SIM_SEEDS";
const BUILD_LIMIT: Duration = Duration::from_secs(900);
/// Millions of worlds.
const WALK_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Chooses another twenty than today's.
const SEED: &str = "RNIC_COMPLIANCE_SEED";

/// As part of all tests: a choice, or everything in the long form.
pub(crate) fn stage(long: bool) -> Result<()> {
    run(&Options { all: long, bugs: long, ..Options::default() })
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(seeds) = options.walk {
        return walk(seeds);
    }
    let table = Table::read()?;
    let source = Source::read()?;
    let mut faults = names(&table, &source);
    let planted = Planted::build()?;
    faults.extend(planted.missing(&table));
    if !faults.is_empty() {
        bail!("docs/compliance.md and the code differ:\n  {}", faults.join("\n  "));
    }
    let cases = cases(options, &table)?;
    planted.baseline(&table)?;
    let unnoticed = planted.unnoticed(&cases)?;
    println!(
        "{} rules, {} bugs; {} of them planted, {} noticed",
        table.rules.len(),
        table.bugs.len(),
        cases.len(),
        cases.len() - unnoticed.len()
    );
    if !unnoticed.is_empty() {
        bail!("the test passes although the engine is wrong:\n  {}", unnoticed.join("\n  "));
    }
    Ok(())
}

/// The walk of the engine as it is, optimized because there may be many seeds.
fn walk(seeds: u64) -> Result<()> {
    let test =
        || cargo().args(["test", "--quiet", "--release", "-p", "rnic-sim", "--test", "faults"]);
    test().arg("--no-run").limit(BUILD_LIMIT).inherit_output().check()?;
    let began = Instant::now();
    let walk = test().args(["--", "--exact", "--nocapture", "the_walk"]);
    walk.env(SEEDS, seeds.to_string()).limit(WALK_LIMIT).inherit_output().check()?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{seeds} worlds in {seconds:.0} s, nothing wrong");
    Ok(())
}

/// Rules, bugs and places: the document against the code.
fn names(table: &Table, source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let documented: BTreeSet<&str> =
        table.rules.iter().chain(&table.bugs).map(|row| row.name.as_str()).collect();
    for row in table.rules.iter().chain(&table.bugs) {
        let places = source.places(&row.name);
        if places.is_empty() {
            faults.push(format!("{}: rnic-core has no such switch", row.name));
        } else if row.code != places {
            let (said, found) = (row.code.join(", "), places.join(", "));
            faults.push(format!("{}: the code is at {found}, not at {said}", row.name));
        }
    }
    for name in source.names() {
        if !documented.contains(name) {
            faults.push(format!("{name}: has no row"));
        }
    }
    if documented.len() != table.rules.len() + table.bugs.len() {
        faults.push("two rows have the same name".into());
    }
    faults
}

/// What to plant, and the test that must fail.
fn cases<'a>(options: &Options, table: &'a Table) -> Result<Vec<&'a table::Row>> {
    if let Some(name) = &options.only {
        let found = table.rules.iter().chain(&table.bugs).find(|row| row.name == *name);
        return Ok(vec![found.with_context(|| format!("{name} has no row"))?]);
    }
    let bugs = if options.bugs { table.bugs.as_slice() } else { &[] };
    let rules: Vec<_> = match (options.all, options.bugs) {
        (true, _) => table.rules.iter().collect(),
        (false, true) => Vec::new(),
        (false, false) => {
            let start = usize::try_from(rotation()?)? * PER_RUN % table.rules.len().max(1);
            table.rules.iter().cycle().skip(start).take(PER_RUN.min(table.rules.len())).collect()
        }
    };
    Ok(rules.into_iter().chain(bugs).collect())
}

/// Days since 1970, unless the environment says otherwise.
fn rotation() -> Result<u32> {
    if let Ok(seed) = std::env::var(SEED) {
        return seed.parse().with_context(|| format!("{SEED}={seed} is not a number"));
    }
    let days = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / (24 * 60 * 60);
    Ok(u32::try_from(days)?)
}
