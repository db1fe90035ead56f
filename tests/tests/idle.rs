//! What a daemon costs when there is nothing to do, and what it does to latency when there are
//! more spinning threads than cores.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use system_tests::choice;
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::inspect::cpu_time;
use system_tests::lab::{Lab, Need, Pair};
use system_tests::measure::{Reading, is_quiet, judge, taken_by_others};
use system_tests::native::{self, VICTIM};
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Running, wait_until};
use system_tests::programs::Dialogue;

/// Of a core.
const IDLE_LIMIT: f64 = 0.01;
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Round trips of each latency test; fewer while the machine has other work, when each may take
/// long.
const ROUND_TRIPS: usize = 10_000;
const ROUND_TRIPS_BESIDE_WORK: usize = 1000;
/// The largest share of round trips that may take more than a millisecond.
const SLOW_LIMIT: f64 = 0.01;
/// The same while the machine has other work, which takes time slices of some milliseconds from the
/// programs too. An engine that never yields makes nearly all round trips wait.
const SLOW_LIMIT_BESIDE_WORK: f64 = 0.3;

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

#[test]
fn an_idle_daemon_costs_nothing() -> Result<()> {
    let name = "an_idle_daemon_costs_nothing";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::victim()?);
    let pairs = [lab.pair(Io::Udp, 1500)?, lab.pair(Io::AfXdp, 1500)?];
    let holders = [holder(&pairs[0].left, "100")?, holder(&pairs[1].left, "100")?];
    // Wait for the last acknowledgements: they are not idleness.
    std::thread::sleep(Duration::from_millis(500));
    let idle =
        pairs.iter().zip(&holders).zip(["udp", "af-xdp"]).flat_map(|((pair, holder), io)| {
            [
                (pair.left.daemon.pid(), format!("daemon with 100 QPs over {io}")),
                (pair.right.daemon.pid(), format!("daemon without over {io}")),
                (holder.pid(), format!("program with 100 QPs over {io}")),
            ]
        });
    let idle: Vec<_> = idle.collect();
    let used = || idle.iter().map(|(pid, _)| cpu_time(*pid)).collect::<Result<Vec<_>>>();
    let (before, began) = (used()?, Instant::now());
    std::thread::sleep(IDLE_TIME);
    let (after, elapsed) = (used()?, began.elapsed());
    for (((_, name), before), after) in idle.iter().zip(before).zip(after) {
        let share = (after - before).as_secs_f64() / elapsed.as_secs_f64();
        eprintln!("{name}: {:.2}% of a core", 100.0 * share);
        ensure!(share < IDLE_LIMIT, "an idle {name} uses {:.2}% of a core", 100.0 * share);
    }
    drop(holders);
    pairs.into_iter().try_for_each(Pair::stop)
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

/// The share of round trips that took longer than a millisecond.
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
/// daemon, and must get it back as soon as there is a completion. A run of the ordinary form has
/// one kind of packet I/O.
fn spinning(test: &str, io: Io) -> Result<()> {
    if !choice::has_turn(&[Io::Udp, Io::AfXdp], &io) {
        return Ok(());
    }
    let Some(lab) = Lab::open(test, Need::Root, &["ib_write_lat"])? else { return Ok(()) };
    let pair = lab.pair(io, 1500)?;
    for program in ["ib_write_lat", "ib_send_lat"] {
        judge(&format!("{test} {program}"), |_| few_are_slow(&pair, program))?;
    }
    pair.stop()
}

/// The limit depends on what the machine does to threads that only spin, before and after: where
/// they lose their CPUs to other work, slow round trips say little about the engine.
fn few_are_slow(pair: &Pair, program: &str) -> Result<Reading> {
    let before = taken_by_others();
    let many = if is_quiet(before) { ROUND_TRIPS } else { ROUND_TRIPS_BESIDE_WORK };
    let slow = slow_share(pair, program, many)?;
    let taken = before.max(taken_by_others());
    if slow < SLOW_LIMIT {
        return Ok(Reading::Good);
    }
    if !is_quiet(taken) && slow < SLOW_LIMIT_BESIDE_WORK {
        return Ok(Reading::Unclear(format!("other work takes {:.0}% of a CPU", 100.0 * taken)));
    }
    Ok(Reading::Bad(format!("{program}: {:.1}% of the round trips above 1 ms", 100.0 * slow)))
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

/// Both ends are silent for longer than an engine polls a client, while they exchange their
/// addresses.
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

/// How long a request of a client that is silent most of the time may take, in microseconds.
const LATE_LIMIT: u64 = 5000;

#[test]
fn a_client_that_posts_now_and_then_is_served_beside_a_stream() -> Result<()> {
    let name = "a_client_that_posts_now_and_then";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::victim()?);
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    judge(name, |_| late(&node))?;
    node.stop()?;
    Ok(())
}

/// A client waits longer beside a stream than alone only because of the stream.
fn late(node: &Node) -> Result<Reading> {
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
    let waits = format!(
        "longest wait in the best of five rounds: alone {alone} us, beside a stream {beside} us"
    );
    eprintln!("{waits}");
    Ok(match (beside < LATE_LIMIT, alone < LATE_LIMIT) {
        (true, _) => Reading::Good,
        (false, true) => Reading::Bad(waits),
        (false, false) => Reading::Unclear(waits),
    })
}
