//! What a daemon costs when there is nothing to do, and what it does to latency when there are
//! more spinning threads than cores.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::inspect::cpu_time;
use system_tests::lab::{Lab, Need, Pair, cpu_of, note};
use system_tests::native::{self, VICTIM};
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Running, wait_until};
use system_tests::programs::Dialogue;

/// Of a core.
const IDLE_LIMIT: f64 = 0.01;
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Round trips of each latency test, and of one beside other work, where each may take long.
const ROUND_TRIPS: usize = 10_000;
const ROUND_TRIPS_BESIDE_WORK: usize = 1000;
/// Of all round trips, those longer than a millisecond.
const SLOW_LIMIT: f64 = 0.01;
/// The same beside other work, which takes slices of some milliseconds from the programs too. An
/// engine that does not give its CPU away makes nearly all of them wait.
const SLOW_LIMIT_BESIDE_WORK: f64 = 0.3;
/// Of the time, what a thread that spins loses to the machine's other work where there is none.
const QUIET: f64 = 0.02;

fn holder(node: &Node, queue_pairs: &str) -> Result<Running> {
    let gid = node.gid_index().to_string();
    let cmd = node.cmd(VICTIM)?.args(["-d", node.device(), "-g", &gid, "hold", queue_pairs]);
    let mut holder = cmd.start()?;
    wait_until("open queue pairs", Duration::from_secs(20), || {
        ensure!(holder.try_status()?.is_none(), "the holder failed: {}", holder.stderr());
        Ok(holder.stdout().contains("ready"))
    })?;
    Ok(holder)
}

fn idle_over(test: &str, io: Io) -> Result<()> {
    let Some(mut lab) = Lab::open(test, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::victim()?);
    let pair = lab.pair(io, 1500)?;
    let holder = holder(&pair.left, "100")?;
    // What is still being acknowledged is not idleness.
    std::thread::sleep(Duration::from_millis(500));
    let pids = [pair.left.daemon.pid(), pair.right.daemon.pid(), holder.pid()];
    let used = || -> Result<Vec<Duration>> { pids.iter().map(|pid| cpu_time(*pid)).collect() };
    let (before, began) = (used()?, Instant::now());
    std::thread::sleep(IDLE_TIME);
    let (after, elapsed) = (used()?, began.elapsed());
    let names = ["daemon with 100 QPs", "daemon without", "program with 100 QPs"];
    for ((name, before), after) in names.iter().zip(before).zip(after) {
        let share = (after - before).as_secs_f64() / elapsed.as_secs_f64();
        eprintln!("{name}: {:.2}% of a core", 100.0 * share);
        ensure!(share < IDLE_LIMIT, "an idle {name} uses {:.2}% of a core", 100.0 * share);
    }
    drop(holder);
    pair.stop()
}

#[test]
fn an_idle_daemon_costs_nothing_over_udp() -> Result<()> {
    idle_over("an_idle_daemon_over_udp", Io::Udp)
}

#[test]
fn an_idle_daemon_costs_nothing_over_af_xdp() -> Result<()> {
    idle_over("an_idle_daemon_over_af_xdp", Io::AfXdp)
}

/// Round trips, in microseconds, that perftest lists with `-U` (unsorted).
fn listed(printed: &str) -> Vec<f64> {
    let rows = printed.lines().map(|line| line.split(',').map(str::trim).collect::<Vec<_>>());
    rows.filter_map(|row| match row[..] {
        [number, value] if number.parse::<u32>().is_ok() => value.parse().ok(),
        _ => None,
    })
    .collect()
}

/// What part of its round trips took longer than a millisecond.
fn slow_share(pair: &Pair, program: &str, round_trips: usize) -> Result<f64> {
    let line = format!("{program} -s 8 -n {round_trips} -U");
    let dialogue = Dialogue::new(&line).limit(Duration::from_secs(120));
    let printed = dialogue.run(&pair.left, &pair.right)?.client.stdout;
    let mut times = listed(&printed);
    let start: String = printed.chars().take(2000).collect();
    ensure!(times.len() >= round_trips - 1, "{} round trips in:\n{start}", times.len());
    times.sort_by(f64::total_cmp);
    // Perftest prints half a round trip.
    let slow = times.iter().filter(|half| 2.0 * **half > 1000.0).count();
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let share = slow as f64 / times.len() as f64;
    let at = |part: usize| 2.0 * times[(times.len() - 1) * part / 1000];
    eprintln!(
        "{program}: round trip p50 {:.1} us, p99 {:.1}, p99.9 {:.1}, {slow} above 1 ms",
        at(500),
        at(990),
        at(999)
    );
    Ok(share)
}

/// Two daemons and two programs that poll, on two cores: each program shares a core with its
/// daemon, and must get it back as soon as there is something for it.
fn spinning(test: &str, io: Io) -> Result<()> {
    let Some(lab) = Lab::open(test, Need::Root, &["ib_write_lat"])? else { return Ok(()) };
    let pair = lab.pair(io, 1500)?;
    for program in ["ib_write_lat", "ib_send_lat"] {
        few_are_slow(&pair, program, test).with_context(|| format!("over {}", io.as_str()))?;
    }
    pair.stop()
}

/// Whether they are is compared with what the machine does to threads that only spin, before and
/// after: where it does not leave them their CPUs, the waits say little about an engine.
fn few_are_slow(pair: &Pair, program: &str, test: &str) -> Result<()> {
    let before = taken_by_others();
    let many = if before < QUIET { ROUND_TRIPS } else { ROUND_TRIPS_BESIDE_WORK };
    let slow = slow_share(pair, program, many)?;
    let taken = before.max(taken_by_others());
    let is_quiet = taken < QUIET;
    if !is_quiet && slow >= SLOW_LIMIT {
        note(&format!("NOT MEASURED {test}: {:.0}% of a CPU is others'", 100.0 * taken));
    }
    let limit = if is_quiet { SLOW_LIMIT } else { SLOW_LIMIT_BESIDE_WORK };
    ensure!(slow < limit, "{program}: {:.1}% of the round trips above 1 ms", 100.0 * slow);
    Ok(())
}

/// The largest part of half a second that a thread which spins on either CPU did not have, in
/// pieces that would make a round trip slow.
fn taken_by_others() -> f64 {
    let spin = |cpu| {
        if let Some(cpu) = cpu_of(cpu) {
            let mut set = CpuSet::new();
            set.set(cpu);
            // Unpinned, it says the same of all CPUs together.
            let _ = sched_setaffinity(None, &set);
        }
        let (began, mut last, mut lost) = (Instant::now(), Instant::now(), Duration::ZERO);
        while began.elapsed() < Duration::from_millis(500) {
            let gap = last.elapsed();
            last += gap;
            if gap > Duration::from_millis(1) {
                lost += gap;
            }
        }
        lost.as_secs_f64() / began.elapsed().as_secs_f64()
    };
    std::thread::scope(|threads| {
        let spinning = [0, 1].map(|cpu| threads.spawn(move || spin(cpu)));
        spinning.map(|one| one.join().expect("no panic")).into_iter().fold(0.0, f64::max)
    })
}

#[test]
fn more_spinning_threads_than_cores_over_udp() -> Result<()> {
    spinning("more_spinning_threads_over_udp", Io::Udp)
}

#[test]
fn more_spinning_threads_than_cores_over_af_xdp() -> Result<()> {
    spinning("more_spinning_threads_over_af_xdp", Io::AfXdp)
}

fn busy_device(lab: &Lab) -> Result<Node> {
    let mut spec = Spec::new(Io::Loopback);
    spec.extra = vec!["--busy-poll".into()];
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    Ok(Node::new(Daemon::start(Dist::get()?, &spec)?, host, Dist::get()?))
}

/// Both ends are silent for longer than a client is polled while they tell each other where they
/// are.
#[test]
fn a_daemon_that_never_sleeps_hears_its_clients() -> Result<()> {
    let name = "a_daemon_that_never_sleeps";
    let Some(lab) = Lab::open(name, Need::Root, &["ibv_rc_pingpong"])? else { return Ok(()) };
    let node = busy_device(&lab)?;
    for line in ["ibv_rc_pingpong -n 100", "ibv_rc_pingpong -e -n 100"] {
        Dialogue::new(line).limit(Duration::from_secs(60)).run(&node, &node)?;
    }
    node.stop()?;
    Ok(())
}

/// How long a request may take of a client that is silent most of the time.
const LATE_LIMIT: u64 = 5000;

/// On a machine with other work the waits come from there: then only what no such machine explains
/// is a failure, the length of a stream.
#[test]
fn a_client_that_posts_now_and_then_is_served_beside_a_stream() -> Result<()> {
    let name = "a_client_that_posts_now_and_then";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::victim()?);
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let gid = node.gid_index().to_string();
    let cmd = node.cmd(VICTIM)?.args(["-d", node.device(), "-g", &gid, "late"]);
    let output = cmd.limit(Duration::from_secs(60)).run()?;
    ensure!(output.success(), "{output}");
    let least = |kind: &str| -> Result<u64> {
        let rounds = output
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix(kind)?.trim().strip_suffix(" us")?.parse().ok());
        rounds.min().with_context(|| format!("no round {kind}: {output}"))
    };
    let (alone, beside) = (least("alone")?, least("beside")?);
    eprintln!(
        "longest wait in the best of five rounds: alone {alone} us, beside a stream {beside} us"
    );
    if beside >= LATE_LIMIT && alone >= LATE_LIMIT {
        note(&format!("NOT MEASURED {name}: the machine is busy"));
    } else {
        ensure!(beside < LATE_LIMIT, "a request waited {beside} us, {alone} us without the stream");
    }
    node.stop()?;
    Ok(())
}
