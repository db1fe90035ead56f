//! Compares docs/programs.md with the programs that the tests of a run started; and
//! `cargo xtask programs`, which runs those whose build takes too long for every run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use system_tests::dist::{DIST_ENV, Dist, cargo};
use system_tests::lab::LONG_ENV;
use system_tests::packages::PACKAGE_OF;
use system_tests::process::is_root;
use system_tests::{paths, record};

use crate::stages::Skipped;

/// Where users read what works.
const DOCUMENT: &str = "docs/programs.md";

/// A program, and the test that starts it.
type Started<'a> = (&'a str, &'a str);

/// What comes behind the programs that every run starts.
const SLOW: &str = "## Programs that are built first";
/// The test that starts those.
const SLOW_TEST: &str = "foreign";
const SLOW_LIMIT: Duration = Duration::from_secs(3600);

/// Which lines of the document a run has to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// The programs that every run starts.
    Usual,
    /// Those that are built first.
    Slow,
    All,
}

/// Runs the programs that are built first, and compares their part of the document.
pub(crate) fn run() -> Result<()> {
    let file = paths::target().join("slow-programs.txt");
    let _ = fs::remove_file(&file);
    cargo()
        .args(["test", "-p", "system-tests", "--test", SLOW_TEST, "--", "--nocapture"])
        .arg("--test-threads=1")
        .env(DIST_ENV, Dist::get()?.root())
        .env(LONG_ENV, "1")
        .env(record::ENV, &file)
        .limit(SLOW_LIMIT)
        .show_output()
        .check()?;
    check(&file, Part::Slow)
}

/// Finds lines of the document that no test keeps, and programs that the document leaves out.
pub(crate) fn check(record: &Path, part: Part) -> Result<()> {
    if !is_root() {
        return Err(Skipped("root runs all tests".into()).into());
    }
    let document = fs::read_to_string(paths::repository().join(DOCUMENT))?;
    let (usual, slow) = document.split_once(SLOW).context("docs/programs.md has two parts")?;
    let lines = match part {
        Part::Usual => table(usual),
        Part::Slow => table(slow),
        Part::All => table(&document),
    };
    let faults = faults(&lines, &started(&fs::read_to_string(record)?));
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{DOCUMENT} is not what the tests ran:\n{}", faults.join("\n"))
}

fn faults(table: &[Started<'_>], started: &BTreeSet<Started<'_>>) -> Vec<String> {
    let not_run = table.iter().filter(|line| !started.contains(*line));
    let mut faults: Vec<_> =
        not_run.map(|(program, test)| format!("{program} was not run by {test}")).collect();
    let has = |program: &str| table.iter().any(|(one, _)| *one == program);
    let package = |program: &str| PACKAGE_OF.iter().find(|(one, _)| *one == program).map(|p| p.1);
    // Other packages are what the tests need, such as compilers.
    let packages: BTreeSet<_> = table.iter().filter_map(|(program, _)| package(program)).collect();
    let is_left_out = |program: &str| {
        !has(program) && package(program).is_some_and(|package| packages.contains(package))
    };
    let left_out = started.iter().filter(|(program, _)| is_left_out(program));
    faults.extend(left_out.map(|(program, test)| format!("{program} of {test} has no line")));
    faults
}

/// The lines of the document's table.
fn table(document: &str) -> Vec<Started<'_>> {
    let line = |line| {
        let cells: Vec<_> = str::split(line, '|').map(str::trim).collect();
        let program = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        Some((program, *cells.get(4)?))
    };
    document.lines().filter_map(line).collect()
}

/// What the tests started.
fn started(record: &str) -> BTreeSet<Started<'_>> {
    let line = |line| str::split_once(line, ' ').map(|(test, program)| (program, test));
    record.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_no_test_keeps_and_a_program_without_a_line_are_found() {
        let table =
            table("| program | package | what | test |\n| `rping` | rdmacm-utils | x | a |\n");
        assert_eq!(table, [("rping", "a")]);
        let good = started("a rping\na ip\nb rping\n");
        assert_eq!(faults(&table, &good), Vec::<String>::new());
        let bad = started("b rping\nb cmtime\n");
        assert_eq!(faults(&table, &bad), ["rping was not run by a", "cmtime of b has no line"]);
    }

    #[test]
    fn the_document_has_a_program_of_every_kind() {
        let document = fs::read_to_string(paths::repository().join(DOCUMENT)).unwrap();
        let table = table(&document);
        assert!(table.len() >= 25, "{}", table.len());
    }
}
