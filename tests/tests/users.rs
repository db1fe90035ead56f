//! Programs of several users at root's daemons, each with an engine process of its own: they reach
//! each other over every packet I/O, within one host too, and what shows or disturbs the traffic of
//! the daemon does so with theirs.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system_tests::checker;
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::daemon::Io;
use system_tests::inspect::{ask, counter};
use system_tests::lab::Pair;
use system_tests::place::{Job, Node, Place};
use system_tests::process::{User, wait_until};
use system_tests::programs::Dialogue;

/// Every kind of operation, in messages of one and of many packets.
const CHECKER: &str = "checker -m 1024 -s 20000 -n 200 -T 15";

/// Datagrams to a group that both ends are members of.
const GROUP: &str = "ib_send_bw -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3 -s 1024 -n 200";

/// The programs of one user beside a daemon.
struct Theirs<'a> {
    node: &'a Node,
    user: Option<User>,
}

impl Place for Theirs<'_> {
    fn device(&self) -> &str {
        self.node.device()
    }

    fn gid_index(&self) -> u32 {
        self.node.gid_index()
    }

    fn address(&self) -> IpAddr {
        self.node.address()
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        let cmd = self.node.cmd(program)?.as_user(self.user).args(args).limit(limit);
        Ok(Box::new(cmd.start()?))
    }

    fn cm_listeners(&self) -> Result<Option<u64>> {
        self.node.cm_listeners()
    }

    fn listens(&self, port: u16) -> Result<bool> {
        self.node.listens(port)
    }
}

fn open(test: &str, io: Io) -> Result<Option<(Commons, Pair)>> {
    let helpers: [Helper; 1] = [(checker::PROGRAM, checker::build)];
    let programs = ["ib_send_bw", "rping", "ucmatose"];
    let Some(commons) = Commons::open(test, &programs, &helpers)? else { return Ok(None) };
    let pair = Pair::start(commons.dist, &commons.lab.tools, io, 1500)?;
    Ok(Some((commons, pair)))
}

/// Checked data between root and two users, on two hosts and on one.
fn everybody_reaches_everybody(test: &str, io: Io) -> Result<()> {
    let Some((_commons, pair)) = open(test, io)? else { return Ok(()) };
    let (left, right) = (&pair.left, &pair.right);
    let (root, one, other) = (None, Some(SOMEBODY), Some(User::NOBODY));
    let dialogues = [
        (left, one, right, other),
        (left, root, right, one),
        (left, other, right, root),
        (left, one, left, other),
        (left, one, left, one),
        (left, root, left, other),
        (left, other, left, root),
    ];
    for (server, server_user, client, client_user) in dialogues {
        let server = Theirs { node: server, user: server_user };
        let client = Theirs { node: client, user: client_user };
        for line in [CHECKER, GROUP] {
            let said = Dialogue::new(line).limit(Duration::from_secs(60)).run(&server, &client);
            said.with_context(|| format!("{line} of {server_user:?} and {client_user:?}"))?;
        }
    }
    for node in [left, right] {
        let lost = counter(node, "shard_rx_misled")? + counter(node, "shard_rx_lost")?;
        ensure!(lost == 0, "{lost} datagrams did not find their engine");
    }
    pair.stop()?;
    Ok(())
}

#[test]
fn users_over_udp() -> Result<()> {
    everybody_reaches_everybody("users_over_udp", Io::Udp)
}

#[test]
fn users_over_af_packet() -> Result<()> {
    everybody_reaches_everybody("users_over_af_packet", Io::AfPacket)
}

#[test]
fn users_over_af_xdp() -> Result<()> {
    everybody_reaches_everybody("users_over_af_xdp", Io::AfXdp)
}

/// Each compares its data.
const BY_ADDRESS: [&str; 2] = ["rping -C 10 -V -S 4000", "ucmatose -c 4 -C 10 -S 1000"];

/// Programs of two users, and of a user and root, connect through the daemons' connection managers.
/// A port is one user's at a time, and is free when its program, or its engine process, has died.
#[test]
fn users_connect_by_address() -> Result<()> {
    let Some((_commons, pair)) = open("users_connect_by_address", Io::Udp)? else {
        return Ok(());
    };
    let (left, right) = (&pair.left, &pair.right);
    let (root, one, other) = (None, Some(SOMEBODY), Some(User::NOBODY));
    let dialogues = [
        (left, one, right, other),
        (left, root, right, one),
        (left, other, right, root),
        (left, one, left, other),
    ];
    for (server, server_user, client, client_user) in dialogues {
        let server = Theirs { node: server, user: server_user };
        let client = Theirs { node: client, user: client_user };
        for line in BY_ADDRESS {
            let said = Dialogue::new(line).limit(Duration::from_secs(60)).run(&server, &client);
            said.with_context(|| format!("{line} of {server_user:?} and {client_user:?}"))?;
        }
    }
    let [one, other, root] = [one, other, root].map(|user| Theirs { node: left, user });
    let serve = |whose: &Theirs<'_>, port: &str| {
        let args = ["-s", "-a", &left.address().to_string(), "-p", port].map(str::to_owned);
        whose.start("rping", &args, Duration::from_secs(30))
    };
    let refused = |whose: &Theirs<'_>, port: &str, why: &str| -> Result<()> {
        let output = serve(whose, port)?.wait()?;
        ensure!(!output.success() && output.said().contains(why), "port {port}: {output}");
        Ok(())
    };
    // As soon as the daemon has noticed that the one before is gone.
    let take_over = |whose: &Theirs<'_>, port: &str| -> Result<_> {
        let mut server = serve(whose, port)?;
        wait_until("the port", Duration::from_secs(10), || {
            std::thread::sleep(Duration::from_millis(500));
            let serves = server.exit_code()?.is_none();
            if !serves {
                let ended = std::mem::replace(&mut server, serve(whose, port)?).wait()?;
                ensure!(ended.said().contains("Address already"), "{ended}");
            }
            Ok(serves)
        })
        .map(|()| server)
    };
    refused(&one, "999", "Permission denied")?;
    let port = system_tests::programs::next_port().to_string();
    let first = serve(&one, &port)?;
    std::thread::sleep(Duration::from_secs(1));
    refused(&other, &port, "Address already in use")?;
    refused(&root, &port, "Address already in use")?;
    // Kills it.
    drop(first);
    let _second = take_over(&other, &port)?;
    let status = ask(left, "status")?;
    let engines = status["users"].as_array().context("users")?;
    let engine = engines.iter().find(|user| user["uid"] == User::NOBODY.uid);
    let pid = engine.and_then(|user| user["pid"].as_i64()).context("an engine process")?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid)?).context("a process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let _third = take_over(&root, &port)?;
    ensure!(counter(left, "cm_received")? > 0, "the connection manager's counters");
    pair.stop()
}

/// A user's frames cross the link without the daemon; its captures and faults see them all the
/// same, whether the engine process was there first or not.
#[test]
fn captures_and_faults_of_root_meet_the_traffic_of_users() -> Result<()> {
    let test = "captures_and_faults_of_root";
    let Some((commons, pair)) = open(test, Io::Udp)? else { return Ok(()) };
    let (left, right) = (&pair.left, &pair.right);
    let [server, early] = [left, right].map(|node| Theirs { node, user: Some(SOMEBODY) });
    let late = Theirs { node: right, user: Some(User::NOBODY) };
    // Its engine process stays for some seconds.
    Dialogue::new(CHECKER).run(&server, &early)?;
    for user in [early, late] {
        let name = user.user.map_or(0, |user| user.uid).to_string();
        let file = commons.scratch.join(&name);
        let written = file.to_str().context("a name of ours")?;
        let mut capture = right.rnic(&["capture", "-w", written]).start()?;
        wait_until("capture", Duration::from_secs(5), || {
            ensure!(capture.try_status()?.is_none(), "{}", capture.stderr());
            Ok(file.metadata().is_ok_and(|file| file.len() > 0))
        })?;
        right.rnic(&["fault", "add", "--seed", "42", "drop=0.2%"]).check()?;
        let before =
            counter(right, "retransmitted_packets")? + counter(left, "retransmitted_packets")?;
        Dialogue::new(CHECKER).limit(Duration::from_secs(60)).run(&server, &user)?;
        let after =
            counter(right, "retransmitted_packets")? + counter(left, "retransmitted_packets")?;
        ensure!(after > before, "user {name}: nothing was sent again");
        ensure!(counter(right, "fault_dropped")? > 0, "user {name}: no fault has struck");
        right.rnic(&["fault", "clear"]).check()?;
        capture.signal(rustix::process::Signal::INT)?;
        wait_until("end of the capture", Duration::from_secs(5), || {
            Ok(capture.try_status()?.is_some())
        })?;
        let len = file.metadata()?.len();
        // All messages, and their acknowledgements.
        ensure!(len > 200 * 20_000, "user {name}: the capture has {len} bytes");
    }
    let status = ask(right, "status")?;
    let users = status["users"].as_array().context("no users")?;
    ensure!(users.iter().all(|user| user["handed_over"].is_null()), "{status}");
    let moved = |user: &Value, what: &str| user[what].as_u64().unwrap_or(0) > 100 * 20_000;
    let busy = users.iter().all(|user| moved(user, "tx_bytes") && moved(user, "rx_bytes"));
    ensure!(busy, "what users send and receive is not shown: {status}");
    pair.stop()?;
    Ok(())
}
