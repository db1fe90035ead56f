//! A machine that others use, too.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::lab;
use system_tests::native::SPINNERS;
use system_tests::packages::Toolbox;
use system_tests::place::Host;
use system_tests::process::{Running, wait_until};

/// A process on each of the CPUs that are measured, which computes, in a session of its own.
/// Dropped, they end.
pub(super) struct Crowd {
    _computing: Vec<Running>,
}

impl Crowd {
    /// Starts them. `tools` has the program that does it.
    pub(super) fn gather(tools: &Toolbox) -> Result<Self> {
        let computing = [0, 1].into_iter().map(|side| computing(tools, side));
        Ok(Self { _computing: computing.collect::<Result<_>>()? })
    }
}

fn computing(tools: &Toolbox, side: usize) -> Result<Running> {
    let host = Host { cpu: lab::cpu_of(side), ..Host::here(Ipv4Addr::LOCALHOST.into(), tools) };
    let mut running = host.cmd(SPINNERS)?.args(["foreign", "1"]).start()?;
    wait_until("a process that computes", Duration::from_secs(10), || {
        ensure!(running.try_status()?.is_none(), "{}", running.stderr());
        Ok(running.stdout().contains("ready"))
    })?;
    Ok(running)
}

/// What gives a program a session of its own, as terminals and service managers do.
pub(super) fn apart(tools: &Toolbox) -> Result<Vec<String>> {
    let program = tools.program(SPINNERS)?.to_string_lossy().into_owned();
    Ok(vec![program, "apart".to_owned()])
}
