//! More than one engine in the daemon (`--engines`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system_tests::checker;
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::inspect::{Census, ask};
use system_tests::lab::{Lab, Need, Pair, at_end, only_in_long_form, own_loopback};
use system_tests::native::{self, VICTIM};
use system_tests::netns::{End, NetPair};
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Running, wait_until};
use system_tests::programs::{Dialogue, next_port};

/// How long anything that is expected may take.
const SOON: Duration = Duration::from_secs(20);

fn open(test: &str, need: Need) -> Result<Option<Lab>> {
    let programs = ["ib_write_bw", "ibv_rc_pingpong", "rping"];
    let Some(mut lab) = Lab::open(test, need, &programs)? else { return Ok(None) };
    lab.tools = lab.tools.clone().with_built(checker::build()?).with_built(native::victim()?);
    Ok(Some(lab))
}

fn with_engines(spec: Spec, engines: usize) -> Spec {
    Spec { extra: vec!["--engines".to_owned(), engines.to_string()], ..spec }
}

/// Two hosts whose daemons have so many engines.
fn pair(lab: &Lab, io: Io, engines: usize) -> Result<Pair> {
    let net = NetPair::new(4200)?;
    let node = |end: &End| -> Result<Node> {
        let daemon = Daemon::start(Dist::get()?, &with_engines(at_end(end, io), engines))?;
        Ok(Node::new(daemon, Host::at_end(end, &lab.tools), Dist::get()?))
    };
    let (left, right) = (node(&net.left)?, node(&net.right)?);
    Ok(Pair { left, right, net })
}

/// Clients of each engine beside the first, as `rnic status` shows them.
fn clients(node: &Node) -> Result<Vec<u64>> {
    let status = ask(node, "status")?;
    let engines = status["users"].as_array().cloned().unwrap_or_default();
    let sessions = |engine: &Value| {
        ensure!(engine["place"] == "daemon" && engine["pid"] == node.daemon.pid(), "{engine}");
        ensure!(engine["answers"] == true, "{engine}");
        engine["sessions"].as_u64().context("no sessions")
    };
    engines.iter().map(sessions).collect()
}

/// Waits until they have so many. An engine beside programs that spin may answer late.
fn has_clients(node: &Node, expected: &[u64]) -> Result<()> {
    let mut last = None;
    wait_until("the right number of clients", SOON, || {
        last = Some(clients(node));
        Ok(last.as_ref().is_some_and(|now| now.as_deref().is_ok_and(|now| now == expected)))
    })
    .with_context(|| format!("{last:?} rather than {expected:?}"))
}

/// A program that moves data to or from a peer for some seconds.
fn stream(node: &Node, args: &str) -> Result<Running> {
    let gid = node.gid_index().to_string();
    let cmd = node.cmd(VICTIM)?.args(["-d", node.device(), "-g", &gid]);
    cmd.args(args.split(' ')).limit(Duration::from_secs(120)).start()
}

/// So many pairs of them, one after the other, once data flows in all.
fn streams(pair: &Pair, count: usize) -> Result<Vec<[Running; 2]>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let (to, port) = (pair.left.address(), next_port());
        let left = stream(&pair.left, &format!("-p {port} -T 18 -r 3 stream"))?;
        let right = stream(&pair.right, &format!("-p {port} -T 18 -r 3 stream {to}"))?;
        for end in [&left, &right] {
            wait_until("data", SOON, || Ok(end.stdout().contains("moved")))
                .with_context(|| format!("{}{}", end.stdout(), end.stderr()))?;
        }
        all.push([left, right]);
    }
    Ok(all)
}

/// Each program has the engine with the fewest, data is right beside the others, and nothing stays
/// behind.
fn programs_are_spread(lab: &Lab, io: Io, engines: usize) -> Result<()> {
    let pair = pair(lab, io, engines)?;
    has_clients(&pair.left, &vec![0; engines - 1])?;
    // Both programs of a dialogue on one host have different engines.
    for line in ["checker -t 1", "ib_write_bw -s 65536 -n 200", "rping -C 5 -V"] {
        Dialogue::new(line).run(&pair.left, &pair.left)?;
    }
    // Each starts threads for its first client.
    drop(streams(&pair, engines)?);
    let before = Census::at_rest(&pair.left, SOON)?;
    Census::at_rest(&pair.right, SOON)?;
    let running = streams(&pair, engines)?;
    for node in [&pair.left, &pair.right] {
        has_clients(node, &vec![1; engines - 1])?;
        ensure!(ask(node, "qp")?.as_array().map(Vec::len) == Some(engines), "{io:?}");
    }
    drop(running);
    before.returns(&pair.left, SOON)?;
    pair.stop()
}

#[test]
fn two_engines_over_udp() -> Result<()> {
    let Some(lab) = open("two_engines_over_udp", Need::Root)? else { return Ok(()) };
    programs_are_spread(&lab, Io::Udp, 2)
}

/// Frames of the others are handed over to the engine that has the wire. Eight programs that spin
/// take a while on two CPUs.
#[test]
fn four_engines_over_af_packet() -> Result<()> {
    let name = "four_engines_over_af_packet";
    if only_in_long_form(name) {
        return Ok(());
    }
    let Some(lab) = open(name, Need::Root)? else { return Ok(()) };
    programs_are_spread(&lab, Io::AfPacket, 4)
}

/// No privilege is needed for it.
#[test]
fn two_engines_of_one_host() -> Result<()> {
    let Some(lab) = open("two_engines_of_one_host", Need::Nothing)? else { return Ok(()) };
    for spec in
        [Spec::new(Io::Loopback), Spec { addresses: vec![own_loopback()], ..Spec::new(Io::Udp) }]
    {
        let address = spec.addresses.first().copied();
        let daemon = Daemon::start(Dist::get()?, &with_engines(spec, 2))?;
        let host = Host::here(address.unwrap_or([127, 0, 0, 1].into()), &lab.tools);
        let node = Node::new(daemon, host, Dist::get()?);
        Dialogue::new("ibv_rc_pingpong -c -n 500").run(&node, &node)?;
        Dialogue::new("checker -t 1").run(&node, &node)?;
        // The second program had the second engine.
        wait_until("bytes of the second engine", SOON, || {
            Ok(ask(&node, "status")?["users"][0]["tx_bytes"].as_u64() > Some(0))
        })?;
        node.stop()?;
    }
    Ok(())
}
