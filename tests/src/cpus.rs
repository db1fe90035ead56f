//! On which CPUs a daemon's threads run, in tests that compare rates beside an attacker.
//!
//! How CPUs are shared is the kernel's, and no fault of a daemon: a process that starts on the
//! tenant's CPU takes time of the tenant, whatever it is. So the tenant has CPU 0, with the engine
//! that serves it, and everything else that works is on CPU 1: the attacker with its engine
//! process, and the threads of the daemon that attend to clients and start engine processes. What
//! slows the tenant then makes its engine wait. On a machine with one CPU nothing is pinned.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::lab::cpu_of;
use crate::place::Node;

/// The program that becomes a daemon whose engine is on CPU 0 from its start. An engine remembers
/// where it may run.
#[must_use]
pub fn engine_on_the_tenants() -> Vec<String> {
    cpu_of(0)
        .map_or_else(Vec::new, |cpu| ["taskset", "-c", &cpu.to_string()].map(Into::into).into())
}

/// Puts the threads of a daemon on CPU 1, and those that they start, but not its engine.
///
/// # Errors
/// When the daemon has ended.
pub fn daemon_on_the_attackers(node: &Node) -> Result<()> {
    put(node, cpu_of(1), |name| !name.starts_with("rnic-engine"))
}

/// Where the engine processes run that the daemon starts from now on: the tenant's CPU, or that of
/// attackers.
///
/// # Errors
/// When the daemon has ended.
pub fn engine_processes_start_on(node: &Node, side: usize) -> Result<()> {
    put(node, cpu_of(side), |name| name == "rnic-starter")
}

/// Pins the threads of a daemon whose names are such.
fn put(node: &Node, cpu: Option<usize>, which: impl Fn(&str) -> bool) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut one = CpuSet::new();
    one.set(cpu);
    for entry in fs::read_dir(format!("/proc/{}/task", node.daemon.pid()))? {
        let entry = entry?;
        // A thread may end meanwhile.
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
        if which(name.trim_end()) {
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let thread = thread.and_then(Pid::from_raw).context("no number of a thread")?;
            match sched_setaffinity(Some(thread), &one) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).context("cannot pin a thread of the daemon"),
            }
        }
    }
    Ok(())
}
