//! Applications, daemons and links that fail: what they leave behind, and which programs learn of
//! it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use system_tests::checker;
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::Dist;
use system_tests::emulator::{Dice, Faults};
use system_tests::inspect::Census;
use system_tests::lab::{Lab, Need, Pair, alone, at_end, long_form};
use system_tests::native::{self, VICTIM};
use system_tests::netns::End;
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Running, wait_until};
use system_tests::programs::{Dialogue, next_port};

/// How long a daemon may take to clean up behind a client. An engine process stays for 2 s.
const CLEANUP: Duration = Duration::from_secs(10);
/// How long anything that is expected may take.
const SOON: Duration = Duration::from_secs(10);
/// Connections killed in a normal run, and in the long form (`RNIC_LONG=1`).
const ROUNDS: (u64, u64) = (25, 1000);

fn open(test: &str) -> Result<Option<Lab>> {
    let Some(mut lab) = Lab::open(test, Need::Root, &["ibv_devinfo"])? else { return Ok(None) };
    lab.tools = lab.tools.clone().with_built(checker::build()?).with_built(native::victim()?);
    Ok(Some(lab))
}

/// A device of its own, without a network.
fn single_node(lab: &Lab) -> Result<Node> {
    let daemon = Daemon::start(Dist::get()?, &alone())?;
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    Ok(Node::new(daemon, host, Dist::get()?))
}

/// Starts the victim in a role.
fn victim(node: &Node, role: &str) -> Result<Running> {
    let gid = node.gid_index().to_string();
    let cmd = node.cmd(VICTIM)?.args(["-d", node.device(), "-g", &gid]);
    cmd.args(role.split(' ')).limit(Duration::from_secs(60)).start()
}

/// Waits until a program has printed a line that begins like this.
fn says(running: &mut Running, beginning: &str) -> Result<()> {
    let what = format!("line {beginning:?}");
    let heard = wait_until(&what, SOON, || {
        let said = running.stdout().lines().any(|line| line.starts_with(beginning));
        let ended = running.try_status()?.is_some();
        ensure!(said || !ended, "the program ended without saying {beginning:?}");
        Ok(said)
    });
    heard.with_context(|| format!("{}{}", running.stdout(), running.stderr()))
}

/// Two victims that move data to each other, the first on the left.
fn streams(pair: &Pair, options: &str) -> Result<[Running; 2]> {
    let (to, port) = (pair.left.address(), next_port());
    let mut left = victim(&pair.left, &format!("-p {port} {options} stream"))?;
    let mut right = victim(&pair.right, &format!("-p {port} {options} stream {to}"))?;
    says(&mut left, "moved")?;
    says(&mut right, "moved")?;
    Ok([left, right])
}

/// Messages that a stream has moved so far.
fn moved(stream: &Running) -> u64 {
    let text = stream.stdout();
    let last = text.lines().rev().find_map(|line| line.strip_prefix("moved "));
    last.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn only_the_peer_notices_a_killed_application() -> Result<()> {
    let Some(lab) = open("a_killed_application")? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 1500)?;
    let before = [Census::of(&pair.left)?, Census::of(&pair.right)?];
    let [survivor, victim] = streams(&pair, "-T 14 -r 7")?;
    let bystander = Dialogue::new("checker -t 3");
    std::thread::scope(|scope| -> Result<()> {
        let checking = scope.spawn(|| bystander.run(&pair.left, &pair.right));
        std::thread::sleep(Duration::from_millis(700));
        victim.signal(Signal::KILL)?;
        victim.wait()?;
        let output = survivor.wait()?;
        let failure = output.stdout.lines().last().unwrap_or_default().to_owned();
        // Reported by the daemon, whose write found no process, or not at all: then all retries
        // fail.
        let reasons = ["send REM_ACCESS_ERR", "send REM_OP_ERR", "send RETRY_EXC_ERR"];
        ensure!(reasons.iter().any(|reason| failure.contains(reason)), "{output}");
        eprintln!("{failure}");
        // Eight tries, each given up between once and four times 67 ms.
        let silence = failure.split(' ').find_map(|word| word.parse::<u64>().ok());
        ensure!(silence.is_some_and(|ms| ms < 2500), "{failure}");
        checking.join().expect("no panic")?;
        Ok(())
    })?;
    before[0].returns(&pair.left, CLEANUP)?;
    before[1].returns(&pair.right, CLEANUP)?;
    pair.stop()
}

#[test]
fn an_application_killed_at_any_moment_leaves_nothing() -> Result<()> {
    let Some(lab) = open("killed_at_any_moment")? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 1500)?;
    let mut dice = Dice::new(7, Faults { corrupt: 1.0, ..Faults::NONE });
    for _ in 0..5 {
        one_death(&pair, &mut dice)?;
    }
    // Caches are filled now; from here on nothing may grow.
    let before = [Census::at_rest(&pair.left, CLEANUP)?, Census::at_rest(&pair.right, CLEANUP)?];
    for round in 0..if long_form() { ROUNDS.1 } else { ROUNDS.0 } {
        one_death(&pair, &mut dice).with_context(|| format!("round {round}"))?;
    }
    let after = [before[0].returns(&pair.left, CLEANUP)?, before[1].returns(&pair.right, CLEANUP)?];
    eprintln!("before {before:?}\nafter  {after:?}");
    pair.stop()
}

/// Starts a transfer and kills one end, or both, at a random moment.
fn one_death(pair: &Pair, dice: &mut Dice) -> Result<()> {
    let (to, port) = (pair.left.address(), next_port());
    // A lost peer is detected after a few milliseconds.
    let left = victim(&pair.left, &format!("-p {port} -T 8 -r 1 stream"))?;
    let right = victim(&pair.right, &format!("-p {port} -T 8 -r 1 stream {to}"))?;
    let chance = dice.roll().flipped_bit.unwrap_or_default();
    std::thread::sleep(Duration::from_millis(chance % 120));
    let (first, second) = if chance & 0x1000 == 0 { (left, right) } else { (right, left) };
    first.signal(Signal::KILL)?;
    first.wait()?;
    if chance & 0x6000 == 0 {
        second.signal(Signal::KILL)?;
    }
    survivor_ends(second)
}

/// A connected survivor ends by itself; one that was not connected waits for a call for ever.
fn survivor_ends(mut survivor: Running) -> Result<()> {
    let patience = Instant::now() + Duration::from_secs(1);
    while survivor.try_status()?.is_none() {
        let connected = survivor.stdout().contains("moved");
        if !connected && Instant::now() > patience {
            return Ok(());
        }
        ensure!(Instant::now() < patience + SOON, "hangs: {}", survivor.stdout());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

#[test]
fn an_application_that_exits_without_destroying_anything() -> Result<()> {
    let Some(lab) = open("an_application_that_leaves")? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 1500)?;
    let before = [Census::of(&pair.left)?, Census::of(&pair.right)?];
    let role = format!("-p {} -T 10 leave", next_port());
    let server = victim(&pair.left, &role)?;
    let client = victim(&pair.right, &format!("{role} {}", pair.left.address()))?;
    for end in [server, client] {
        let output = end.wait()?;
        ensure!(output.success(), "{output}");
    }
    before[0].returns(&pair.left, CLEANUP)?;
    before[1].returns(&pair.right, CLEANUP)?;
    pair.stop()
}

#[test]
fn children_do_no_harm() -> Result<()> {
    let Some(lab) = open("children_do_no_harm")? else { return Ok(()) };
    let node = single_node(&lab)?;
    let before = Census::of(&node)?;
    let output = victim(&node, "fork")?.wait()?;
    ensure!(output.success(), "{output}");
    before.returns(&node, CLEANUP)?;
    node.stop()?;
    Ok(())
}

#[test]
fn a_child_that_holds_every_descriptor_does_not_keep_a_dead_client_alive() -> Result<()> {
    let Some(lab) = open("a_child_that_holds_every_descriptor")? else { return Ok(()) };
    let node = single_node(&lab)?;
    let before = Census::of(&node)?;
    let mut parent = victim(&node, "orphan")?;
    says(&mut parent, "ready")?;
    ensure!(Census::of(&node)?.objects["qps"] == before.objects["qps"] + 2);
    parent.signal(Signal::KILL)?;
    // The child, of the same process group, lives until `parent` is dropped.
    before.returns(&node, CLEANUP)?;
    drop(parent);
    node.stop()?;
    Ok(())
}

#[test]
fn exec_ends_the_client() -> Result<()> {
    let Some(lab) = open("exec_ends_the_client")? else { return Ok(()) };
    let node = single_node(&lab)?;
    let before = Census::of(&node)?;
    let mut process = victim(&node, "exec")?;
    says(&mut process, "ready")?;
    ensure!(Census::of(&node)?.objects["qps"] == before.objects["qps"] + 2);
    before.returns(&node, CLEANUP)?;
    ensure!(process.try_status()?.is_none(), "the process itself must still run");
    node.stop()?;
    Ok(())
}

#[test]
fn a_process_without_its_main_thread_goes_on() -> Result<()> {
    let Some(lab) = open("a_process_without_its_main_thread")? else { return Ok(()) };
    let node = single_node(&lab)?;
    let before = Census::of(&node)?;
    let output = victim(&node, "mainless")?.wait()?;
    ensure!(output.success() && output.stdout.contains("ok"), "{output}");
    before.returns(&node, CLEANUP)?;
    node.stop()?;
    Ok(())
}

/// `victim wait`: a thread in `ibv_get_cq_event`, one in `ibv_get_async_event`, one that polls.
fn learned_of_the_daemons_death(output: &str) -> Result<()> {
    for line in ["ibv_get_cq_event returned", "event DEVICE_FATAL", "flushed 4 receives", "closed"]
    {
        ensure!(output.contains(line), "no {line:?} in:\n{output}");
    }
    Ok(())
}

#[test]
fn a_killed_daemon_ends_every_wait_of_its_clients() -> Result<()> {
    let Some(lab) = open("a_killed_daemon")? else { return Ok(()) };
    let mut node = single_node(&lab)?;
    let mut waiting = victim(&node, "wait")?;
    says(&mut waiting, "ready")?;
    std::thread::sleep(Duration::from_millis(100));
    let killed = Instant::now();
    node.daemon = node.daemon.kill_and_restart(Dist::get()?, &alone())?;
    let output = waiting.wait()?;
    let took = killed.elapsed();
    learned_of_the_daemons_death(&output.stdout)?;
    ensure!(output.success(), "{output}");
    ensure!(took < Duration::from_secs(1), "told only after {took:?}");
    // The next daemon has taken over the socket that the first one left behind.
    let output = victim(&node, "fork")?.wait()?;
    ensure!(output.success(), "{output}");
    node.stop()?;
    Ok(())
}

#[test]
fn a_stopped_daemon_ends_in_order_and_tells_its_clients() -> Result<()> {
    let Some(lab) = open("a_stopped_daemon")? else { return Ok(()) };
    let node = single_node(&lab)?;
    let socket = node.daemon.socket();
    let mut waiting = victim(&node, "wait")?;
    says(&mut waiting, "ready")?;
    node.stop()?;
    ensure!(!socket.exists(), "the socket stays");
    let output = waiting.wait()?;
    learned_of_the_daemons_death(&output.stdout)?;
    ensure!(output.success(), "{output}");
    Ok(())
}

/// Something happens to the left host's network for a moment, while data flows.
fn survives(
    pair: &Pair,
    stream: &Running,
    what: &str,
    harm: &[&str],
    moment: Duration,
    cure: &[&str],
) -> Result<()> {
    pair.net.left.netns.ip(harm)?;
    std::thread::sleep(moment);
    pair.net.left.netns.ip(cure)?;
    let then = moved(stream);
    wait_until("progress", SOON, || {
        let text = stream.stdout();
        ensure!(!text.contains("failed"), "the connection broke:\n{text}");
        Ok(moved(stream) > then + 20)
    })
    .with_context(|| what.to_owned())
}

fn network_changes(test: &str, io: Io) -> Result<()> {
    let Some(lab) = open(test)? else { return Ok(()) };
    let pair = lab.pair(io, 1500)?;
    let mut watch = victim(&pair.left, "events")?;
    says(&mut watch, "ready")?;
    let dev = End::INTERFACE;
    // Eight tries of at least 268 ms.
    let [left, right] = streams(&pair, "-T 16 -r 7")?;
    let moment = Duration::from_millis(300);

    let (down, up) = (["link", "set", dev, "down"], ["link", "set", dev, "up"]);
    survives(&pair, &right, "the link went down and up", &down, moment, &up)?;
    says(&mut watch, "event PORT_ERR")?;
    says(&mut watch, "event PORT_ACTIVE")?;

    let gid_changes = |text: &str| text.matches("event GID_CHANGE").count();
    let old = gid_changes(&watch.stdout());
    let (add, del) = (
        ["addr", "add", "10.77.0.33/24", "dev", dev],
        ["addr", "del", "10.77.0.33/24", "dev", dev],
    );
    survives(&pair, &right, "an address came and went", &add, moment, &del)?;
    wait_until("two GID_CHANGE events", SOON, || Ok(gid_changes(&watch.stdout()) >= old + 2))?;

    let mtu = |bytes| ["link", "set", dev, "mtu", bytes];
    survives(&pair, &right, "the MTU was lowered", &mtu("900"), moment, &mtu("1500"))?;

    let to = "10.77.0.2";
    let absent =
        ["neigh", "replace", to, "lladdr", "02:00:00:00:00:99", "dev", dev, "nud", "permanent"];
    let forget = ["neigh", "del", to, "dev", dev];
    survives(&pair, &right, "the neighbour had another MAC address", &absent, moment, &forget)?;

    drop((left, right));
    pair.stop()
}

#[test]
fn connections_survive_changes_of_the_network_over_udp() -> Result<()> {
    network_changes("changes_over_udp", Io::Udp)
}

#[test]
fn connections_survive_changes_of_the_network_over_af_xdp() -> Result<()> {
    network_changes("changes_over_af_xdp", Io::AfXdp)
}

/// The program it had attached to the interface went with it.
#[test]
fn a_killed_daemon_is_noticed_by_the_other_host() -> Result<()> {
    let Some(lab) = open("a_killed_daemon_is_noticed")? else { return Ok(()) };
    let mut pair = lab.pair(Io::AfXdp, 1500)?;
    let [_left, right] = streams(&pair, "-T 12 -r 3")?;
    let spec = at_end(&pair.net.left, Io::AfXdp);
    pair.left.daemon = pair.left.daemon.kill_and_restart(Dist::get()?, &spec)?;
    let output = right.wait()?;
    ensure!(output.stdout.contains("RETRY_EXC_ERR"), "{output}");
    // The dead daemon's XDP program and sockets do not obstruct the next daemon.
    Dialogue::new("checker -n 200").run(&pair.left, &pair.right)?;
    pair.stop()
}

/// Requests for a peer that cannot be reached fail after their retries, whatever becomes of the
/// packets: `harm` happens to the link before anything is posted.
fn unanswered(test: &str, io: Io, harm: &[&str]) -> Result<()> {
    let Some(lab) = open(test)? else { return Ok(()) };
    let pair = lab.pair(io, 4200)?;
    let to = pair.right.address();
    let mut client = victim(&pair.left, &format!("-T 8 -r 7 unanswered {to}"))?;
    says(&mut client, "connected")?;
    pair.net.left.netns.ip(harm)?;
    client.signal(Signal::USR1)?;
    let output = client.wait()?;
    ensure!(output.stdout.contains("64 gave up, 960 flushed"), "{io:?}: {output}");
    pair.stop()
}

const DOWN: [&str; 4] = ["link", "set", End::INTERFACE, "down"];

#[test]
fn requests_fail_while_the_link_is_down_over_udp() -> Result<()> {
    unanswered("requests_fail_while_the_link_is_down_over_udp", Io::Udp, &DOWN)
}

#[test]
fn requests_fail_while_the_link_is_down_over_af_packet() -> Result<()> {
    unanswered("requests_fail_while_the_link_is_down_over_af_packet", Io::AfPacket, &DOWN)
}

#[test]
fn requests_fail_while_the_link_is_down_over_af_xdp() -> Result<()> {
    unanswered("requests_fail_while_the_link_is_down_over_af_xdp", Io::AfXdp, &DOWN)
}
