//! Clients with very different numbers of busy queue pairs: of two users, or of one. A run of the
//! ordinary form has one of the tests.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::checker::{self, Stream};
use system_tests::choice;
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::daemon::{Io, Spec};
use system_tests::inspect::counter;
use system_tests::lab::{cpu_of, own_loopback};
use system_tests::measure::judge;
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Running, User, wait_until};
use system_tests::programs::next_port;
use system_tests::rounds::{MOST_LEFT, Share, share_left};

/// Queue pairs of the busy program at each of its ends.
const MANY: u32 = 250;
/// The user of the busy program.
const BUSY: User = User::NOBODY;
/// What a client must keep of the rate that it has beside a program with one queue pair.
const KEPT: f64 = 0.75;
/// What a client may gain in the same engine: messages of many queue pairs need more of the
/// engine's time than those of one, so that the busy program sends less.
const GAIN: f64 = 1.6;

/// A program of perftest that writes without a pause, from itself to itself.
struct Busy {
    _server: Running,
    _client: Running,
}

impl Busy {
    fn start(node: &Node, qps: u32) -> Result<Self> {
        let (port, qps, gid) = (next_port(), qps.to_string(), node.gid_index().to_string());
        let service = port.to_string();
        let place = ["-d", node.device(), "-x", &gid, "-p", &service];
        let work = ["-F", "-s", "16384", "-t", "16", "-q", &qps, "--run_infinitely"];
        let end = || -> Result<_> {
            let cmd = node.cmd("ib_write_bw")?.as_user(Some(BUSY)).on_cpu(cpu_of(1));
            Ok(cmd.args(place).args(work).limit(Duration::from_secs(600)))
        };
        let before = sent(node)?;
        let server = end()?.start()?;
        wait_until("a server that listens", Duration::from_secs(20), || node.listens(port))
            .with_context(|| server.stderr())?;
        let mut client = end()?.arg(node.address().to_string()).start()?;
        wait_until("a busy client", Duration::from_secs(30), || {
            ensure!(client.try_status()?.is_none(), "it failed: {}", client.stderr());
            Ok(sent(node)? > before + 10_000)
        })
        .with_context(|| format!("{}\n{}", client.stdout(), client.stderr()))?;
        Ok(Self { _server: server, _client: client })
    }
}

/// Packets that the programs of all users have sent.
fn sent(node: &Node) -> Result<u64> {
    counter(node, "tx_packets")
}

/// Which take turns.
const OF_USERS: &str = "users_with_few_and_with_many_queue_pairs";
const OF_ONE_USER: &str = "programs_of_one_user_with_few_and_with_many_queue_pairs";

/// A program of `tenant` keeps its rate beside many busy queue pairs of another program as it does
/// beside one.
fn keeps_its_rate(test: &str, tenant: User, most: f64) -> Result<()> {
    if !choice::has_turn(&[OF_USERS, OF_ONE_USER], &test) {
        return Ok(());
    }
    let helpers: [Helper; 1] = [(checker::PROGRAM, checker::build)];
    let Some(commons) = Commons::open(test, &["ib_write_bw"], &helpers)? else { return Ok(()) };
    let addresses = vec![own_loopback()];
    let mut node = commons.node(&Spec { addresses, ..Spec::new(Io::Udp) })?;
    node.host = Host { user: Some(tenant), cpu: cpu_of(0), ..node.host };
    judge(test, |_| Ok(share(&node, most)?.at_least(KEPT))).with_context(|| node.daemon.log())?;
    node.stop()?;
    Ok(())
}

/// The share of its rate that the tenant keeps.
fn share(node: &Node, most: f64) -> Result<Share> {
    let stream = RefCell::new(Stream::start(node, node, &[])?);
    let beside = |qps| {
        let _busy = Busy::start(node, qps)?;
        let mut stream = stream.borrow_mut();
        stream.work(0.6)?;
        stream.rate(1.4)
    };
    let share = share_left(3, most, || beside(1), || beside(MANY))?;
    stream.into_inner().end()?;
    Ok(share)
}

#[test]
fn users_with_few_and_with_many_queue_pairs() -> Result<()> {
    keeps_its_rate(OF_USERS, SOMEBODY, MOST_LEFT)
}

#[test]
fn programs_of_one_user_with_few_and_with_many_queue_pairs() -> Result<()> {
    keeps_its_rate(OF_ONE_USER, BUSY, GAIN)
}
