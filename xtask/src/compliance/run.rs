//! The build of rnic-sim's tests around the mutated engine, and runs of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use system_tests::dist::cargo;
use system_tests::process::{Cmd, tail};
use system_tests::{interrupt, paths};

use super::BUILD_LIMIT;
use super::mutations::Mutations;
use super::table::{Row, Table, Test};
use super::twin::{self, SWITCH};

/// Test programs that were built with all mutations, by name.
pub(super) struct Mutated {
    programs: BTreeMap<String, PathBuf>,
}

/// A test that runs longer than this hangs because of the mutation.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// The random walk is among the tests that must pass, on a machine that may be busy.
const BASELINE_LIMIT: Duration = Duration::from_secs(600);
/// Exit code of a test program of which a test failed.
const TEST_FAILED: i32 = 101;

impl Mutated {
    pub(super) fn build(mutations: &Mutations) -> Result<Self> {
        let twin = twin::write(mutations)?;
        let messages = cargo()
            .dir(twin)
            .args(["test", "--quiet", "--no-run", "-p", "rnic-sim", "--tests"])
            .arg("--message-format=json-render-diagnostics")
            // A mutation may leave something unused or in parentheses: no warning is wanted.
            .env("RUSTFLAGS", "-A warnings")
            .env("CARGO_TARGET_DIR", paths::target().join("mutated/target"))
            .limit(BUILD_LIMIT)
            .check()?;
        let mut programs = BTreeMap::new();
        for line in messages.lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let name = message["target"]["name"].as_str();
            if let (Some(name), Some(path)) = (name, message["executable"].as_str()) {
                programs.insert(name.to_owned(), PathBuf::from(path));
            }
        }
        Ok(Self { programs })
    }

    /// Tests that the document names and that do not exist.
    pub(super) fn missing(&self, table: &Table) -> Vec<String> {
        let lists: BTreeMap<&str, String> = self
            .programs
            .iter()
            .filter_map(|(name, path)| {
                let list = Cmd::new(path).args(["--list", "--format=terse"]).check().ok()?;
                Some((name.as_str(), list))
            })
            .collect();
        let exists = |test: &Test| {
            let line = format!("{}: test", test.path);
            lists.get(test.program.as_str()).is_some_and(|list| list.lines().any(|l| l == line))
        };
        let tests = table.tests().into_iter().filter(|test| !exists(test));
        tests.map(|test| format!("{} {}: no such test", test.program, test.path)).collect()
    }

    /// Runs every named test on the unchanged engine: all must pass.
    pub(super) fn baseline(&self, table: &Table) -> Result<()> {
        for program in self.programs.keys() {
            let tests = table.tests().into_iter().filter(|test| test.program == *program);
            let paths: Vec<&str> = tests.map(|test| test.path.as_str()).collect();
            if !paths.is_empty() {
                let command = self.command(program)?.args(["--quiet", "--exact"]).args(paths);
                command.without_env(SWITCH).limit(BASELINE_LIMIT).check()?;
            }
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Result<Cmd> {
        let path = self.programs.get(program).with_context(|| format!("no program {program}"))?;
        Ok(Cmd::new(path).dir(paths::repository()).limit(RUN_LIMIT))
    }

    /// Switches on each case by itself and lists the tests that did not notice.
    pub(super) fn unnoticed(&self, cases: &[&Row]) -> Result<Vec<String>> {
        let next = AtomicUsize::new(0);
        let unnoticed = Mutex::new(Vec::new());
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(row) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if interrupt::check().is_err() {
                            return;
                        }
                        if let Err(error) = self.run(row) {
                            let mut all = unnoticed.lock().unwrap_or_else(PoisonError::into_inner);
                            all.push(format!("{}: {error:#}", row.name));
                        }
                    }
                });
            }
        });
        interrupt::check()?;
        let mut unnoticed = unnoticed.into_inner().unwrap_or_else(PoisonError::into_inner);
        unnoticed.sort();
        Ok(unnoticed)
    }

    fn run(&self, row: &Row) -> Result<()> {
        let Test { program, path } = &row.test;
        let began = Instant::now();
        let command = self.command(program)?.args(["--exact", path]).env(SWITCH, &row.name);
        let output = command.run()?;
        if output.success() {
            bail!("{program} {path} passes");
        }
        let failed = output.stdout.contains("test result: FAILED");
        if output.code() != TEST_FAILED || !failed {
            bail!("{program} {path} breaks off: {}", tail(&output.stderr, 5));
        }
        eprintln!("{:<28} {program} {path} ({:.1} s)", row.name, began.elapsed().as_secs_f64());
        Ok(())
    }
}
