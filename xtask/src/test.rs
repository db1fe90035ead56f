//! `cargo xtask test`: everything that must hold before a change lands.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use system_tests::dist::{DIST_ENV, Dist, TEST, cargo};
use system_tests::lab::{AGAIN, LONG_ENV, NOT_MEASURED, NOTES_ENV, SKIPPED};
use system_tests::native::HEADERS;
use system_tests::packages::{Apt, Toolbox};
use system_tests::process::{Cmd, ENGINE_ENV, USER_ENV, User, is_root};
use system_tests::{paths, record, rxe};

use crate::stages::{self, Stage};
use crate::{budget, compliance, lint, programs};

/// Programs of the system tests. Those for a guest are needed only when root runs the tests.
const PROGRAMS: [&str; 6] =
    ["ib_write_bw", "ibv_rc_pingpong", "rping", "qperf", "iperf3", "dpkg-deb"];

/// System tests that measure no time and often wait: these lists run at the same time, and take as
/// long as each other. The longest are first, as a list that is at its end takes the last ones of
/// the other. All others run alone.
const BESIDE: [&[&str]; 2] = [
    &[
        "perftest",
        "connection",
        "observe",
        "pingpong",
        "page",
        "users",
        "rnic_run",
        "pyverbs",
        "qperf",
        "libfabric",
        "isolation",
        "errors",
        "fio",
        "containers",
        "ucx",
        "book",
        "laboratory",
        "foreign",
        "package",
    ],
    &[
        "rxe_interop",
        "rxe_rough_link",
        "interop_ssh",
        "rxe_kernel_io",
        "rsockets",
        "functions",
        "rough_link",
        "checker",
        "rxe_errors",
        "death",
        "rxe_peer",
        "engines",
        "engine_process",
        "shared_memory",
        "threads",
    ],
];

/// System tests that root's run repeats with programs of another user, in front of the last list.
const AS_USER: [&str; 1] = ["checker"];
/// Those that only the long form repeats, alone.
const AS_USER_LONG: [&str; 8] = [
    "death",
    "errors",
    "hostile_peer",
    "rough_link",
    "rxe_errors",
    "rxe_interop",
    "rxe_peer",
    "rxe_rough_link",
];
/// System tests that root's run repeats with engines in the programs, in front of the first list.
const AS_FUNCTION: [&str; 3] = ["checker", "death", "rough_link"];
/// Those that only the long form repeats, alone.
const AS_FUNCTION_LONG: [&str; 10] = [
    "connection",
    "errors",
    "hostile_peer",
    "libfabric",
    "perftest",
    "pingpong",
    "pyverbs",
    "rsockets",
    "rxe_interop",
    "threads",
];

/// Whose programs run a test, and where their engines are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Those of the user that runs the tests, with the daemon's engine.
    Usual,
    /// Another user's, who has an engine process.
    User(User),
    /// As usual, with engines of their own.
    Function,
}

/// Which tests to run.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(crate) struct Options {
    /// Only lint, unit tests, simulation, memory model and one pingpong over each kind of packet
    /// I/O: minutes, for the time between two edits
    #[arg(long)]
    quick: bool,
    /// Also what takes hours: tests and combinations that are left to the long form, attacks of ten
    /// minutes, every rule and bug of docs/compliance.md
    #[arg(long)]
    long: bool,
    /// Others run at the same time.
    #[arg(skip)]
    beside: bool,
}

/// How long one test program may take; those of the long form attack for hours.
const LIMIT: Duration = Duration::from_secs(1800);
const LONG_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

pub(crate) fn run(options: &Options) -> Result<()> {
    let began = Instant::now();
    let _ = fs::remove_file(notes());
    let _ = fs::remove_file(record());
    let mut outcomes = stages::run(vec![Stage::new("packages", packages)])?;
    outcomes.extend(stages::run_beside(builds(*options))?);
    outcomes.extend(stages::run(list(*options))?);
    if !options.quick {
        outcomes.extend(stages::run_beside(beside(*options))?);
        outcomes.extend(stages::run(alone(*options)?)?);
        let part = if options.long { programs::Part::All } else { programs::Part::Usual };
        let check = move || programs::check(&record(), part);
        outcomes.extend(stages::run(vec![Stage::new("programs", check)])?);
    }
    stages::summary(&outcomes);
    println!("{:<26} {:>7.1} s", "all", began.elapsed().as_secs_f64());
    let notes = fs::read_to_string(notes()).unwrap_or_default();
    print!("{notes}{}", counts(&notes));
    stages::conclude("test", &outcomes)
}

/// A summary of the tests' notes: how many dialogues were repeated, and which tests were skipped or
/// not measured.
fn counts(notes: &str) -> String {
    let told = |mark| notes.lines().filter_map(move |line| line.strip_prefix(mark));
    let mut text = format!("{} dialogues were repeated\n", told(AGAIN).count());
    for mark in [SKIPPED, NOT_MEASURED] {
        let names = told(mark).map(|rest| rest.split(':').next().unwrap_or_default().trim());
        let names: Vec<_> = names.collect();
        let list = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        text += &format!("{} tests {mark}{list}\n", names.len());
    }
    text
}

/// What compiles most of the time, and unit tests. One compiler alone often leaves a CPU idle, and
/// unit tests often wait, so these lists run at the same time: tests that look at times allow for
/// it. Each list has profiles, and so locks of cargo, of its own. Only a stage that one list takes
/// over from the other may wait for a compiler of the other's.
fn builds(options: Options) -> Vec<Vec<Stage>> {
    let mut checks = lint::stages();
    checks.push(Stage::new("unit tests", move || unit(Options { beside: true, ..options })));
    let mut others = vec![
        Stage::new("build to test", move || dist(options).map(|_| ())),
        Stage::new("memory model (loom)", loom),
    ];
    if !options.quick {
        checks.push(Stage::new("system tests' build", || tests_of_system("--no-run")));
        others.push(Stage::new("compliance", move || compliance::stage(options.long)));
        others.push(Stage::new("instruction budget", budget::stage));
    }
    vec![checks, others]
}

fn list(options: Options) -> Vec<Stage> {
    if options.quick {
        let pingpong = move || system("pingpong", &["pingpong_over"], Form::Usual, options);
        vec![Stage::new("pingpong", pingpong)]
    } else {
        vec![Stage::new("system tests' library", || tests_of_system("--lib"))]
    }
}

fn beside(options: Options) -> Vec<Vec<Stage>> {
    let stage = |program: &&'static str| {
        let program = *program;
        let options = Options { beside: true, ..options };
        Stage::new(program, move || system(program, &[], Form::Usual, options))
    };
    let mut lists: Vec<Vec<_>> =
        BESIDE.iter().map(|list| list.iter().map(stage).collect()).collect();
    let options = Options { beside: true, ..options };
    if let [first, .., last] = &mut lists[..] {
        first.splice(..0, again(&AS_FUNCTION, Form::Function, options));
        last.splice(..0, again(&AS_USER, Form::User(User::NOBODY), options));
    }
    lists
}

/// These tests once more in another form. There are none when an ordinary user runs everything.
fn again(programs: &[&'static str], form: Form, options: Options) -> Vec<Stage> {
    let name = if form == Form::Function { "functions" } else { "a user" };
    let stage = |program: &&'static str| {
        let program = *program;
        let run = move || system(program, &[], form, options);
        Stage::new(format!("{program}, as {name}"), run)
    };
    programs.iter().filter(|_| is_root()).map(stage).collect()
}

fn alone(options: Options) -> Result<Vec<Stage>> {
    let mut stages = Vec::new();
    let is_alone = |program: &String| !BESIDE.concat().contains(&program.as_str());
    for program in system_programs()?.into_iter().filter(is_alone) {
        let name = program.clone();
        stages.push(Stage::new(name, move || system(&program, &[], Form::Usual, options)));
    }
    if options.long {
        stages.extend(again(&AS_USER_LONG, Form::User(User::NOBODY), options));
        stages.extend(again(&AS_FUNCTION_LONG, Form::Function, options));
    }
    Ok(stages)
}

fn packages() -> Result<()> {
    let mut programs = PROGRAMS.to_vec();
    if is_root() {
        programs.extend(rxe::HOST_PROGRAMS);
    }
    Toolbox::provide(&programs)?;
    let missing = HEADERS.iter().filter(|(file, _)| !Path::new(file).exists());
    let missing: Vec<_> = missing.map(|(_, package)| *package).collect();
    if is_root() && !missing.is_empty() {
        eprintln!("installing {}", missing.join(" "));
        Apt::system().install(&missing)?;
    }
    Ok(())
}

/// Builds and runs them.
fn unit(options: Options) -> Result<()> {
    let args = ["test", "--quiet", "--workspace", "--exclude", "system-tests", "--no-fail-fast"];
    options.tests().args(args).check()?;
    Ok(())
}

/// Loom replaces atomics and threads at compile time, so its build has a target folder of its own.
fn loom() -> Result<()> {
    let tests = paths::repository().join("crates/rnic-abi/tests");
    let is_loom = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("loom");
    let Ok(mut entries) = fs::read_dir(&tests) else { return Ok(()) };
    if !entries.any(|entry| entry.is_ok_and(is_loom)) {
        return Ok(());
    }
    cargo()
        .args(["test", "--quiet", "--profile", TEST, "-p", "rnic-abi", "--test", "loom*"])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", paths::target().join("loom"))
        .limit(LIMIT)
        .show_output()
        .check()?;
    Ok(())
}

/// The build that the system tests run: in the long form the one that a user gets.
fn dist(options: Options) -> Result<&'static Dist> {
    if options.long { Dist::release() } else { Dist::get() }
}

/// Names of the system tests' programs.
fn system_programs() -> Result<Vec<String>> {
    let folder = paths::repository().join("tests/tests");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        if is_file || path.join("main.rs").is_file() {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Builds all of them at once, or runs the tests of what they share.
fn tests_of_system(option: &str) -> Result<()> {
    let test = cargo().args(["test", "--quiet", "-p", "system-tests", option]).limit(LIMIT);
    test.show_output().check()?;
    Ok(())
}

/// Runs one program of the system tests, or those of its tests whose name contains a filter.
fn system(program: &str, filter: &[&str], form: Form, options: Options) -> Result<()> {
    let tests = match form {
        Form::Usual => options.tests(),
        Form::User(user) => options.tests().env(USER_ENV, user.uid.to_string()),
        Form::Function => options.tests().env(ENGINE_ENV, "program"),
    };
    tests
        .args(["test", "-p", "system-tests", "--test", program, "--", "--nocapture"])
        .arg("--test-threads=1")
        .args(filter)
        .env(DIST_ENV, dist(options)?.root())
        .env(NOTES_ENV, notes())
        .env(record::ENV, record())
        // A test's error is its message; a backtrace would say nothing to the reader.
        .env("RUST_LIB_BACKTRACE", "0")
        .check()?;
    Ok(())
}

impl Options {
    /// A cargo that runs one stage's tests in this form.
    fn tests(self) -> Cmd {
        let cargo = if self.beside { cargo().show_output_at_end() } else { cargo().show_output() };
        if self.long { cargo.env(LONG_ENV, "1").limit(LONG_LIMIT) } else { cargo.limit(LIMIT) }
    }
}

/// Which programs the tests started.
fn record() -> PathBuf {
    paths::target().join("test-programs.txt")
}

fn notes() -> PathBuf {
    paths::target().join("test-notes.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_others_exists() {
        let programs = system_programs().unwrap();
        assert!(BESIDE.concat().iter().all(|program| programs.iter().any(|one| one == program)));
    }

    #[test]
    fn the_summary_names_tests_that_did_not_measure() {
        let notes = "again: x\nNOT MEASURED wqes: busy; busy\nSKIPPED rxe: needs root\n";
        let text = "1 dialogues were repeated\n1 tests SKIPPED: rxe\n1 tests NOT MEASURED: wqes\n";
        assert_eq!(counts(notes), text);
        assert!(counts("").ends_with("0 tests SKIPPED\n0 tests NOT MEASURED\n"));
    }
}
