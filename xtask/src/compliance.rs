//! `cargo xtask compliance`: every rule of `docs/compliance.md` has a place in the engine, and a
//! test that fails when the engine does not keep it.
//!
//! A mutation breaks a rule, or is a bug. Mutations are files beside the tests. All of them are
//! built into one copy of the engine; an environment variable switches on one of them for a run of
//! a test.

mod mutations;
mod run;
mod source;
mod splice;
mod table;
mod twin;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use system_tests::choice::{CHOICE_ENV, draw, seed};
use system_tests::dist::cargo;

use mutations::Mutations;
use run::Mutated;
use source::Source;
use table::Table;

/// What to check.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// Break every rule, one by one; without any option, twenty rules and bugs chosen by the commit
    #[arg(long)]
    all: bool,
    /// Plant every bug, one by one
    #[arg(long)]
    bugs: bool,
    /// Break this rule or plant this bug
    #[arg(long, value_name = "NAME", conflicts_with_all = ["all", "bugs"])]
    only: Option<String>,
    /// Only run the random walk, with seeds 0 to N - 1 and nothing planted: N worlds of mixed verbs
    /// under mixed faults. The tests run 1000; RNIC_SIM_SEEDS=N makes them run more, and
    /// RNIC_SIM_SEED=N replays one
    #[arg(long, value_name = "N", conflicts_with_all = ["all", "bugs", "only"])]
    walk: Option<u64>,
}

/// Rules and bugs of one ordinary run.
const PER_RUN: usize = 20;

/// Seeds of each random sweep of rnic-sim.
const SEEDS: &str = "RNIC_SIM_SEEDS";
const BUILD_LIMIT: Duration = Duration::from_secs(900);
/// Millions of worlds.
const WALK_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The stage of `cargo xtask test`: a choice, or everything in the long form.
pub(crate) fn stage(long: bool) -> Result<()> {
    run(&Options { all: long, bugs: long, ..Options::default() })
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(seeds) = options.walk {
        return walk(seeds);
    }
    let table = Table::read()?;
    let source = Source::read()?;
    let mutations = Mutations::read()?;
    let mut faults = rules(&table, &source, &mutations);
    faults.extend(bugs(&table, &mutations));
    let mutated = Mutated::build(&mutations)?;
    faults.extend(mutated.missing(&table));
    if !faults.is_empty() {
        bail!("docs/compliance.md and the code differ:\n  {}", faults.join("\n  "));
    }
    let cases = cases(options, &table)?;
    mutated.baseline(&table)?;
    let unnoticed = mutated.unnoticed(&cases)?;
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

/// The random walk of the unchanged engine, optimized because there may be many seeds.
fn walk(seeds: u64) -> Result<()> {
    let test =
        || cargo().args(["test", "--quiet", "--release", "-p", "rnic-sim", "--test", "faults"]);
    test().arg("--no-run").limit(BUILD_LIMIT).show_output().check()?;
    let began = Instant::now();
    let walk = test().args(["--", "--exact", "--nocapture", "the_walk"]);
    walk.env(SEEDS, seeds.to_string()).limit(WALK_LIMIT).show_output().check()?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{seeds} worlds in {seconds:.0} s, nothing wrong");
    Ok(())
}

/// Checks the document's rules against the citations in the code and against the mutations.
fn rules(table: &Table, source: &Source, mutations: &Mutations) -> Vec<String> {
    let mut faults = Vec::new();
    for row in &table.rules {
        let places = source.places(&row.name);
        if row.code != places {
            let (said, found) = (row.code.join(", "), places.join(", "));
            faults.push(format!("{}: the code cites it at {found}, not at {said}", row.name));
        }
        if mutations.places(&row.name).is_empty() {
            faults.push(format!("{}: no mutation breaks it", row.name));
        }
    }
    let known: BTreeSet<&str> = table.rules.iter().map(|row| row.name.as_str()).collect();
    if known.len() != table.rules.len() {
        faults.push("two rules have the same name".into());
    }
    let others = table.other_places.iter().filter(|place| !source.has(place));
    faults.extend(others.map(|place| format!("there is no {place}")));
    let cited = source.names().filter(|name| !known.contains(name));
    faults.extend(cited.map(|name| format!("{name}: the code cites it, and it has no row")));
    faults
}

/// Checks the document's bugs against the mutations.
fn bugs(table: &Table, mutations: &Mutations) -> Vec<String> {
    let mut faults = Vec::new();
    for row in &table.bugs {
        let places = mutations.places(&row.name);
        if row.code != places {
            let (said, found) = (row.code.join(", "), places.join(", "));
            faults.push(format!("{}: its mutation is at {found}, not at {said}", row.name));
        }
    }
    let rows = table.rules.iter().chain(&table.bugs);
    let known: BTreeSet<&str> = rows.map(|row| row.name.as_str()).collect();
    let unknown = mutations.names().iter().filter(|name| !known.contains(name.as_str()));
    faults.extend(unknown.map(|name| format!("{name}: a mutation without a row")));
    faults
}

/// What to plant, and the test that must fail.
fn cases<'a>(options: &Options, table: &'a Table) -> Result<Vec<&'a table::Row>> {
    if let Some(name) = &options.only {
        let found = table.rules.iter().chain(&table.bugs).find(|row| row.name == *name);
        return Ok(vec![found.with_context(|| format!("{name} has no row"))?]);
    }
    if options.all || options.bugs {
        let rules = table.rules.iter().filter(|_| options.all);
        return Ok(rules.chain(table.bugs.iter().filter(|_| options.bugs)).collect());
    }
    let seed = seed();
    println!("chosen by {CHOICE_ENV}={seed}");
    Ok(choice(&seed, table.rules.iter().chain(&table.bugs).collect()))
}

/// A random few, independent of their order in the document.
fn choice<'a>(seed: &str, mut rows: Vec<&'a table::Row>) -> Vec<&'a table::Row> {
    rows.sort_by_cached_key(|row| draw(seed, &row.name));
    rows.truncate(PER_RUN);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_the_seeds() {
        let table = Table::read().unwrap();
        let rows = || table.rules.iter().chain(&table.bugs).collect::<Vec<_>>();
        let chosen = |seed: &str| -> Vec<_> {
            choice(seed, rows()).iter().map(|row| row.name.clone()).collect()
        };
        assert_eq!(chosen("one").len(), PER_RUN);
        assert_eq!(chosen("one"), chosen("one"));
        assert_ne!(chosen("one"), chosen("two"));
        // After enough commits, every rule was chosen.
        let seeds = (0..200).map(|seed| chosen(&seed.to_string()));
        let met: BTreeSet<_> = seeds.flatten().collect();
        assert_eq!(met.len(), rows().len());
    }
}
