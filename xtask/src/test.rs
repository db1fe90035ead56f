//! `cargo xtask test`: everything that must hold before a change lands.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use system_tests::dist::{DIST_ENV, Dist, cargo};
use system_tests::lab::SKIPS_ENV;
use system_tests::packages::{Apt, Toolbox};
use system_tests::process::is_root;
use system_tests::{paths, rxe};

use crate::stages::{self, Stage};
use crate::{budget, compliance, lint};

/// Programs of the system tests. Those of a guest are only of use to root.
const PROGRAMS: [&str; 6] =
    ["ib_write_bw", "ibv_rc_pingpong", "rping", "qperf", "iperf3", "dpkg-deb"];

/// Headers that our C interface is compared with, and the packages that bring them.
const HEADERS: [(&str, &str); 2] = [
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
];

const TESTS: &[Stage] = &[
    ("unit tests", unit),
    ("compliance", compliance::stage),
    ("memory model (loom)", loom),
    ("instruction budget", budget::stage),
    ("release build", dist),
    ("system tests", system),
];

const LIMIT: Duration = Duration::from_secs(1800);

pub(crate) fn run() -> Result<()> {
    let began = Instant::now();
    let _ = fs::remove_file(skips());
    let packages: Stage = ("packages", packages);
    let list: Vec<_> = [packages].iter().chain(lint::STAGES).chain(TESTS).copied().collect();
    let outcomes = stages::run(&list)?;
    stages::summary(&outcomes);
    println!("{:<24} {:>7.1} s", "all", began.elapsed().as_secs_f64());
    let skipped = fs::read_to_string(skips()).unwrap_or_default();
    print!("{skipped}");
    stages::conclude("test", &outcomes)
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

fn unit() -> Result<()> {
    let args = ["test", "--quiet", "--workspace", "--exclude", "system-tests", "--no-fail-fast"];
    cargo().args(args).limit(LIMIT).inherit_output().check()?;
    Ok(())
}

/// Loom replaces atomics and threads at compile time, so it gets a target folder of its own.
fn loom() -> Result<()> {
    let tests = paths::repository().join("crates/rnic-abi/tests");
    let is_loom = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("loom");
    let Ok(mut entries) = fs::read_dir(&tests) else { return Ok(()) };
    if !entries.any(|entry| entry.is_ok_and(is_loom)) {
        return Ok(());
    }
    cargo()
        .args(["test", "--quiet", "--release", "-p", "rnic-abi", "--test", "loom*"])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", paths::target().join("loom"))
        .limit(LIMIT)
        .inherit_output()
        .check()?;
    Ok(())
}

fn dist() -> Result<()> {
    Dist::get()?;
    Ok(())
}

fn system() -> Result<()> {
    let args = ["test", "-p", "system-tests", "--no-fail-fast", "--", "--nocapture"];
    cargo()
        .args(args)
        .arg("--test-threads=1")
        .env(DIST_ENV, Dist::get()?.root())
        .env(SKIPS_ENV, skips())
        // An error of a test is its message; where it was made says nothing to the reader.
        .env("RUST_LIB_BACKTRACE", "0")
        .limit(LIMIT)
        .inherit_output()
        .check()?;
    Ok(())
}

fn skips() -> PathBuf {
    paths::target().join("skipped-tests.txt")
}
