//! Programs whose threads spin leave time for the engine, the control socket and each other.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, skip};
use system_tests::native::{self, SPINNERS};
use system_tests::place::{Host, Job, Node, Place};
use system_tests::process::{Running, wait_until};
use system_tests::programs::{Dialogue, pingpong};

/// Attempts on a machine that may have other work.
const ROUNDS: usize = 3;

/// The number before (`after` is false) or behind a word.
fn number(line: &str, word: &str, after: bool) -> Result<f64> {
    let (before, behind) = line.split_once(word).with_context(|| format!("no {word:?}: {line}"))?;
    let found =
        if after { behind.split_whitespace().next() } else { before.split_whitespace().last() };
    Ok(found.with_context(|| format!("no number at {word:?}: {line}"))?.parse()?)
}

/// The result of a number of threads.
struct Reached {
    reads: f64,
    /// Microseconds.
    control: f64,
}

fn reached(text: &str, threads: u32) -> Result<Reached> {
    let lines: Vec<_> = text.lines().collect();
    let mark = format!("{threads} threads:");
    let at = lines.iter().position(|line| line.starts_with(&mark)).context(mark)?;
    let control = lines[..at].iter().rfind(|line| line.contains("ibv_destroy_qp"));
    let control = number(control.context("no control calls")?, "median", true)?;
    Ok(Reached { reads: number(lines[at], "READs/s", false)?, control })
}

/// 256 threads must make at least this share of the READs of two threads.
const LEAST_SHARE: f64 = 0.25;
/// The largest median time of a control call beside them, in microseconds: several time slices.
const CONTROL_LIMIT: f64 = 20_000.0;

#[test]
fn threads_that_spin_do_not_starve_the_engine() -> Result<()> {
    let name = "threads_that_spin_do_not_starve_the_engine";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::spinners()?);
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let node = Node::new(daemon, Host::here(Ipv4Addr::LOCALHOST.into(), &lab.tools), Dist::get()?);
    let gid = node.gid_index().to_string();
    let mut said = String::new();
    for _ in 0..ROUNDS {
        let cmd = node.cmd(SPINNERS)?.args(["-d", node.device(), "-g", &gid, "2", "256"]);
        said = cmd.limit(Duration::from_secs(120)).check()?;
        let (few, many) = (reached(&said, 2)?, reached(&said, 256)?);
        eprintln!(
            "READs/s: {:.0} by 2 threads, {:.0} by 256, which {:.0} us of a control call",
            few.reads, many.reads, many.control
        );
        if many.reads >= LEAST_SHARE * few.reads && many.control <= CONTROL_LIMIT {
            node.stop()?;
            return Ok(());
        }
    }
    anyhow::bail!("256 threads starve the engine or the control socket:\n{said}")
}

/// A node whose programs run in a session of their own, like those of another terminal.
struct Apart<'a>(&'a Node);

impl Place for Apart<'_> {
    fn device(&self) -> &str {
        self.0.device()
    }

    fn gid_index(&self) -> u32 {
        self.0.gid_index()
    }

    fn address(&self) -> std::net::IpAddr {
        self.0.address()
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        let program = self.0.host.tools.program(program)?;
        let cmd = self.0.cmd(SPINNERS)?.arg("apart").arg(program).args(args);
        Ok(Box::new(cmd.limit(limit).start()?))
    }

    fn listens(&self, port: u16) -> Result<bool> {
        self.0.listens(port)
    }
}

/// Processes that compute, one for each CPU, in sessions of their own.
fn computing(lab: &Lab) -> Result<Running> {
    let cpus = std::thread::available_parallelism()?.to_string();
    let host = Host::here(Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let mut running = host.cmd(SPINNERS)?.args(["foreign", &cpus]).start()?;
    wait_until("processes that compute", Duration::from_secs(10), || {
        ensure!(running.try_status()?.is_none(), "{}", running.stderr());
        Ok(running.stdout().contains("ready"))
    })?;
    Ok(running)
}

/// Round trips in one time slice, which each round trip would take if yielding had no effect.
const LEAST_ROUND_TRIPS: f64 = 3.0;
/// The scheduler's usual time slice, in microseconds.
const SLICE: f64 = 2800.0;

#[test]
fn programs_of_another_session_poll_beside_processes_that_compute() -> Result<()> {
    let name = "programs_of_another_session";
    let Some(mut lab) = Lab::open(name, Need::Root, &["ibv_rc_pingpong"])? else { return Ok(()) };
    let groups = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    if groups.unwrap_or_default().trim() != "1" {
        skip(name, "the kernel schedules sessions as one (sched_autogroup_enabled)");
        return Ok(());
    }
    lab.tools = lab.tools.clone().with_built(native::spinners()?);
    let mut pair = lab.pair(Io::Udp, 1500)?;
    // As for users, the scheduler chooses the CPUs.
    for node in [&mut pair.left, &mut pair.right] {
        node.host.cpu = None;
    }
    let computing = computing(&lab)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let dialogue = Dialogue::new("ibv_rc_pingpong -n 200").limit(Duration::from_secs(60));
        let said = dialogue.run(&Apart(&pair.left), &Apart(&pair.right))?.client.stdout;
        times.push(pingpong::result(&said)?.round_trip);
    }
    drop(computing);
    eprintln!("round trips beside processes that compute: {times:.0?} us");
    times.sort_by(f64::total_cmp);
    let median = times[ROUNDS / 2];
    ensure!(median * LEAST_ROUND_TRIPS < SLICE, "a round trip costs a slice: {times:.0?} us");
    pair.stop()
}
