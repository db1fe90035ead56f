//! The machine that was measured.

use std::fs;

use anyhow::{Context, Result};
use system_tests::paths;
use system_tests::process::Cmd;

/// What a reader needs to know to compare.
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cpus: usize,
    pub(super) memory_gib: f64,
    pub(super) kernel: String,
    pub(super) commit: String,
}

/// `pgo`: what was measured is a build of that kind.
pub(super) fn describe(pgo: bool) -> Result<Machine> {
    let field = |file: &str, name: &str| -> Result<String> {
        let text = fs::read_to_string(file).with_context(|| file.to_owned())?;
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
        Ok(value.unwrap_or("unknown").to_owned())
    };
    let kib = field("/proc/meminfo", "MemTotal")?;
    let kib: f64 = kib.trim_end_matches(" kB").parse().unwrap_or(0.0);
    let git = |args: &[&str]| Cmd::new("git").dir(paths::repository()).args(args).check();
    let mut commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_default().trim().to_owned();
    if git(&["status", "--porcelain", "-uno"]).is_ok_and(|text| !text.trim().is_empty()) {
        commit += ", with local changes";
    }
    if pgo {
        commit += ", built with --pgo";
    }
    Ok(Machine {
        cpu: field("/proc/cpuinfo", "model name")?,
        cpus: super::lab_cpus(),
        memory_gib: kib / f64::from(1 << 20),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        commit,
    })
}

impl Machine {
    pub(super) fn line(&self) -> String {
        let Self { cpu, cpus, memory_gib, kernel, commit } = self;
        format!("{cpu}, {cpus} CPUs, {memory_gib:.0} GiB, Linux {kernel}, commit {commit}")
    }
}

/// Raises the priority of our session's scheduling group, and restores it on drop.
pub(super) struct Boost {
    before: String,
}

const AUTOGROUP: &str = "/proc/self/autogroup";
/// About ten times the share of an ordinary group. More would starve the kernel's own threads,
/// which carry packets too.
const NICE: &str = "-10";

impl Boost {
    pub(super) fn raise() -> Result<Self> {
        let text = fs::read_to_string(AUTOGROUP)
            .context("--boost needs a kernel with sched_autogroup_enabled")?;
        let before = text.rsplit(' ').next().unwrap_or("0").trim().to_owned();
        fs::write(AUTOGROUP, NICE).context("cannot raise the priority of our session")?;
        Ok(Self { before })
    }
}

impl Drop for Boost {
    fn drop(&mut self) {
        if let Err(error) = fs::write(AUTOGROUP, &self.before) {
            eprintln!("the priority of this session stays at {NICE}: {error}");
        }
    }
}
