//! What many idle queue pairs cost: `tests/idleqps` runs beside the measured program.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use system_tests::daemon::Io;
use system_tests::lab::Pair;
use system_tests::native;
use system_tests::place::Node;
use system_tests::process::{Running, wait_until};
use system_tests::programs::{Dialogue, perftest};

use super::series::Spread;
use super::topology::{self, Fixtures};

const PROGRAM: &str = "idleqps";
const QPS: usize = 10_000;
/// Between two programs, limited by the time per message.
const MESSAGES: &str = "ib_write_bw -s 8 -n 300000";
const READY: Duration = Duration::from_secs(120);

fn pair(fixtures: &Fixtures) -> Result<Pair> {
    let mut pair = topology::pair(fixtures, Io::Udp, &[])?;
    let folder = native::build(PROGRAM, &[PROGRAM])?;
    for node in [&mut pair.left, &mut pair.right] {
        node.host.tools = node.host.tools.clone().with_built(folder.clone());
    }
    Ok(pair)
}

/// Processes with idle queue pairs, all of them ready; killed on drop.
fn idle_qps(node: &Node, processes: usize, qps: usize) -> Result<Vec<Running>> {
    let cmd = node.cmd(PROGRAM)?.args(["-d", node.daemon.device(), "-n", &qps.to_string()]);
    let cmd = cmd.limit(Duration::from_secs(600));
    let mut idle_qps = Vec::new();
    for _ in 0..processes {
        idle_qps.push(cmd.start()?);
    }
    for process in &mut idle_qps {
        let mut ended = None;
        wait_until("ready queue pairs", READY, || {
            ended = process.try_status()?;
            Ok(ended.is_some() || process.stdout().contains("ready"))
        })?;
        if let Some(status) = ended {
            anyhow::bail!("{PROGRAM} ended with {status}: {}", process.stderr());
        }
    }
    Ok(idle_qps)
}

/// Time per message with `processes` times `qps` idle queue pairs on both sides, divided by the
/// time without, round by round.
fn slowdown(
    fixtures: &Fixtures,
    processes: usize,
    qps: usize,
    quick: bool,
) -> Result<(String, bool)> {
    let pair = pair(fixtures)?;
    let rate = || -> Result<f64> {
        let text = Dialogue::new(MESSAGES).run(&pair.left, &pair.right)?.client.stdout;
        Ok(perftest::bandwidth(&text)?.last().context("no row")?.messages)
    };
    let mut ratios = Vec::new();
    for _ in 0..if quick { 2 } else { 7 } {
        let alone = rate()?;
        let idle = [&pair.left, &pair.right].map(|node| idle_qps(node, processes, qps));
        let [left, right] = idle;
        let (_left, _right) = (left?, right?);
        ratios.push(alone / rate()?);
    }
    pair.stop()?;
    let Spread { median, min, max } = Spread::of(ratios).context("no round")?;
    Ok((format!("{median:.2}x ({min:.2}..{max:.2})"), median <= 1.1))
}

pub(super) fn in_one_process(fixtures: &Fixtures, quick: bool) -> Result<(String, bool)> {
    slowdown(fixtures, 1, QPS, quick)
}

pub(super) fn in_many_processes(fixtures: &Fixtures, quick: bool) -> Result<(String, bool)> {
    slowdown(fixtures, 100, QPS / 100, quick)
}

/// Private memory of the daemon per idle queue pair, and that of the rings.
pub(super) fn memory(fixtures: &Fixtures, _quick: bool) -> Result<(String, bool)> {
    let pair = pair(fixtures)?;
    let pid = pair.left.daemon.pid();
    // The first client also causes the allocations that all clients share.
    let _first = idle_qps(&pair.left, 1, 2)?;
    let before = [resident(pid, "RssAnon")?, resident(pid, "RssShmem")?];
    let _idle = idle_qps(&pair.left, 1, QPS)?;
    let after = [resident(pid, "RssAnon")?, resident(pid, "RssShmem")?];
    let [engine, rings] = [0, 1].map(|i| (after[i] - before[i]) / QPS as f64);
    Ok((format!("{engine:.2} KiB (+ rings {rings:.2} KiB)"), engine <= 4.0))
}

/// A line of `/proc/PID/status` in KiB.
fn resident(pid: u32, name: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.and_then(|word| word.parse().ok()).with_context(|| format!("no {name} of {pid}"))
}

pub(super) fn registration(fixtures: &Fixtures, quick: bool) -> Result<(String, bool)> {
    let pair = pair(fixtures)?;
    let cmd = pair.left.cmd(PROGRAM)?.args(["-d", pair.left.daemon.device(), "-r", "1024"]);
    let mut times = Vec::new();
    for _ in 0..if quick { 3 } else { 7 } {
        let text = cmd.check()?;
        let time = text.split(" in ").nth(1).and_then(|rest| rest.split(' ').next());
        times.push(time.context("no time")?.parse::<f64>()?);
    }
    pair.stop()?;
    let Spread { median, min, max } = Spread::of(times).context("no round")?;
    Ok((format!("{median:.0} us ({min:.0}..{max:.0})"), median < 1000.0))
}
