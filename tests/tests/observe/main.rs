//! Faults under unmodified programs, and what capture, trace, counters and `rnic fault list` say
//! about them: the same, to the packet.

mod account;
mod agreement;
mod watch;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use account::{Account, commented, counters, explains_one_loss};
use agreement::{everything, tshark_reads_the_same};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::checker;
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, Pair, long_form};
use system_tests::observer::Observer;
use system_tests::paths::Scratch;
use system_tests::place::{Host, Node};
use system_tests::process::wait_until;
use system_tests::programs::Dialogue;
use system_tests::pyverbs::{self, Outcome, Suite};

const SOON: Duration = Duration::from_secs(5);
const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_send_lat", "tshark"];
const ATTEMPTS: usize = 3;
/// Of rdma-core.
const PYTHON: [&str; 2] = [
    "tests.test_qpex.QpExTestCase.test_qp_ex_ud_send_imm",
    "tests.test_mr.MWTest.test_mw_type2_invalidate_remote",
];
const DIALOGUES: [&str; 2] = ["ib_write_bw -n 150 -s 8192 -t 16 -Q 1", "ib_send_lat -n 150 -s 64"];

/// The story of the packet that the first fault dropped: in trace and capture, and on the page.
fn story(account: &Account, sender: &Account) -> Result<()> {
    let fault = account.events.iter().find(|e| e["event"] == "fault").context("no fault")?;
    let is_it = |e: &&Value| e["psn"] == fault["psn"] && e["dest_qpn"] == fault["dest_qpn"];
    let first = sender.events.iter().filter(is_it).find(|e| e["event"] == "sent");
    let id = first.context("the lost packet was not sent")?["id"].clone();
    let of_message = |name: &str| sender.events.iter().any(|e| e["id"] == id && e["event"] == name);
    for name in ["wqe_fetched", "sent", "acked", "completed"] {
        ensure!(of_message(name), "message {id} has no {name}");
    }
    let again = sender
        .events
        .iter()
        .filter(is_it)
        .any(|e| e["event"] == "sent" && e["retransmit"] == true && e["id"] == id);
    ensure!(again, "the lost packet of message {id} was not sent again");
    let id = id.as_str().context("an id is text")?;
    let text = format!("message {id}; sent again: ");
    ensure!(sender.frames(|_, comment| comment.starts_with(&text)) > 0, "no frame of {text}");
    // The page of the receiver shows where it was lost, that of the sender both times it was sent.
    let psn = fault["psn"].as_u64().context("a fault strikes a packet")?;
    let lost = account.steps_of(psn, "fault 1: drop");
    ensure!(lost.iter().any(|step| step["flight"]["fate"] == "lost"), "{lost:?}");
    let sent = sender.steps_of(psn, &format!("message {id}"));
    let again: Vec<_> = sent.iter().filter(|step| step["flight"]["again"] == true).collect();
    ensure!(sent.len() > again.len() && !again.is_empty(), "{sent:?}");
    Ok(())
}

#[test]
fn data_is_right_and_tshark_reads_what_we_read() -> Result<()> {
    let test = "data_is_right_and_tshark_reads";
    let Some(mut lab) = Lab::open(test, Need::Root, &["tshark"])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    let node = loopback(&lab)?;
    let scratch = Scratch::new("loopback")?;
    let capture = Observer::start(&node, &["capture"], scratch.join("y.pcapng"))?;
    let lines = node.rnic(&["capture"]).start()?;
    let faults = [
        "drop=1%",
        "duplicate=1%",
        "reorder=2%",
        "delay:1ms=1%",
        "drop=0.5%,dir=sent",
        "rnr:1=1%,dir=sent",
        "nak:sequence=1%",
    ];
    let account = Account::of(&lab, &node, &faults, &scratch, || {
        let line = "checker -n 60 -T 15 -m 1024 -s 0,1,63,1025,3000,16391";
        Dialogue::new(line).limit(Duration::from_secs(60)).run(&node, &node).map(|_| ())
    })?;
    account.check(true)?;
    let (file, said) = capture.stop()?;
    ensure!(!said.contains("lost"), "{said}");
    lines.signal(Signal::INT)?;
    let lines = lines.wait()?;
    ensure!(!lines.stderr.contains("lost"), "{}", lines.stderr);
    tshark_reads_the_same(&lab, &file, &lines.stdout)?;
    node.stop()?;
    Ok(())
}

#[test]
fn every_header_is_to_tshark_what_it_is_to_us() -> Result<()> {
    let test = "every_header_is_to_tshark_what_it_is_to_us";
    let programs = [&pyverbs::PROGRAMS[..], &["tshark"]].concat();
    let Some(mut lab) = Lab::open(test, Need::Root, &programs)? else { return Ok(()) };
    let suite = Suite::provide(&lab.tools)?;
    let tools = lab.tools.clone().with_libraries(suite.libraries());
    lab.tools = tools.with_built(checker::build()?);
    let node = loopback(&lab)?;
    let scratch = Scratch::new("headers")?;
    let faults = ["fault", "add", "--seed", "7", "drop=1%", "rnr:1=2%", "nak:sequence=1%"];
    let act = || {
        node.rnic(&faults).check()?;
        Dialogue::new("checker -n 60 -T 15 -m 1024 -s 0,1,63,1025,3000").run(&node, &node)?;
        node.rnic(&["fault", "clear"]).check()?;
        // Datagrams, and an invalidation.
        let outcomes = suite.run_tests(&node, &PYTHON)?;
        let all_pass = outcomes.values().all(|outcome| *outcome == Outcome::Passed);
        ensure!(all_pass && outcomes.len() == PYTHON.len(), "{outcomes:?}");
        Ok(())
    };
    let (file, lines) = captured(&node, &scratch, act)?;
    let missing = &everything() - &tshark_reads_the_same(&lab, &file, &lines)?;
    ensure!(missing.is_empty(), "no packet has {missing:?}");
    node.stop()?;
    Ok(())
}

/// The frames of `act` as a file and as lines. A machine with other work may make captures lose
/// some: then it is done again.
fn captured(
    node: &Node,
    scratch: &Scratch,
    act: impl Fn() -> Result<()>,
) -> Result<(PathBuf, String)> {
    for attempt in 0..ATTEMPTS {
        let file = scratch.join(&format!("{attempt}.pcapng"));
        let capture = Observer::start(node, &["capture"], file)?;
        let lines = node.rnic(&["capture"]).start()?;
        // It says first which daemon it found.
        wait_until("a capture", SOON, || Ok(!lines.stderr().is_empty()))?;
        act()?;
        let (file, said) = capture.stop()?;
        lines.signal(Signal::INT)?;
        let lines = lines.wait()?;
        if !said.contains("lost") && !lines.stderr.contains("lost") {
            return Ok((file, lines.stdout));
        }
        eprintln!("{said}{}", lines.stderr);
    }
    bail!("captures lose frames {ATTEMPTS} times")
}

/// A daemon with only itself to talk to.
fn loopback(lab: &Lab) -> Result<Node> {
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    Ok(Node::new(daemon, host, Dist::get()?))
}

#[test]
fn observers_that_stop_or_die_slow_nothing_and_what_they_miss_is_counted() -> Result<()> {
    let test = "observers_that_stop_or_die";
    let Some(lab) = Lab::open(test, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let node = loopback(&lab)?;
    let scratch = Scratch::new("observers")?;
    let stopped = Observer::start(&node, &["capture"], scratch.join("stopped.pcapng"))?;
    let killed = Observer::start(&node, &["trace"], scratch.join("killed.json"))?;
    let timeline = Observer::start(&node, &["trace", "--perfetto"], scratch.join("timeline.json"))?;
    let view = watch::start(&node)?;
    Dialogue::new("ib_send_lat -n 50 -s 64").run(&node, &node)?;
    let (timeline, _) = timeline.stop()?;
    let drawn: Vec<Value> = serde_json::from_str(&fs::read_to_string(timeline)?)?;
    let of_phase = |phase: &str| drawn.iter().filter(|event| event["ph"] == phase).count();
    let [begins, ends] = ["b", "e"].map(of_phase);
    ensure!(begins == 100 && begins == ends, "{begins} WQEs begin, {ends} end");
    ensure!(of_phase("M") == 2 && of_phase("i") > 400, "tracks or packets are missing");
    stopped.running.signal(Signal::STOP)?;
    killed.running.signal(Signal::KILL)?;
    view.signal(Signal::STOP)?;
    // More packets than wait for it.
    Dialogue::new("ib_write_bw -n 2500 -s 65536 -m 1024").run(&node, &node)?;
    let sent = counters(&node)?["tx_packets"];
    ensure!(sent > 150_000, "only {sent} packets");
    stopped.running.signal(Signal::CONT)?;
    catches_up(&stopped)?;
    let (file, said) = stopped.stop()?;
    ensure!(said.contains("frames lost"), "{said}");
    let number = |what: &str| -> Option<u64> {
        said.lines().find(|line| line.contains(what))?.split(' ').next()?.parse().ok()
    };
    let (shown, lost) = (number("captured").context("no count")?, number("lost").unwrap_or(0));
    ensure!(shown + lost == sent, "{shown} and {lost} frames of {sent}");
    ensure!(file.metadata()?.len() > shown * 1000, "frames are missing in the file");
    watch::counts_what_it_missed(view)?;
    node.stop()?;
    Ok(())
}

/// Waits until a capture has written what waits for it: that is neither shown nor lost when it is
/// interrupted.
fn catches_up(capture: &Observer) -> Result<()> {
    let (mut last, mut quiet) = (0, 0);
    wait_until("a capture that has written all", Duration::from_secs(30), || {
        std::thread::sleep(Duration::from_millis(300));
        let now = capture.file.metadata()?.len();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        Ok(quiet == 4)
    })
}

#[test]
fn forced_errors_end_programs_and_captures() -> Result<()> {
    let test = "forced_errors_end_programs";
    let Some(lab) = Lab::open(test, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let node = loopback(&lab)?;
    let scratch = Scratch::new("errors")?;
    for (fault, event) in [
        ("nak:access,nth=5", "completed"),
        ("nak:invalid,nth=5,dir=sent", "completed"),
        ("cq-error,nth=60", "cq_overflow"),
    ] {
        let file = scratch.join("trouble.pcapng");
        let _ = fs::remove_file(&file);
        let args = ["capture", "--last", "30s", "--until", "error"];
        let capture = Observer::start(&node, &args, file)?;
        node.rnic(&["fault", "add", fault]).check()?;
        let line = "ib_write_bw -n 3000 -s 4096 -Q 1";
        let failed = Dialogue::new(line).limit(Duration::from_secs(10)).run(&node, &node);
        ensure!(failed.is_err(), "{fault}: the program did not notice");
        let (file, said) = capture.ended()?;
        ensure!(said.contains(&format!("stopped: {event}")), "{fault}: {said}");
        let frames = commented(&lab, &file)?;
        let kind = fault.split([':', ',']).next().unwrap_or_default().replace('-', "_");
        ensure!(frames.iter().any(|(_, text)| text.contains(&kind)), "{fault}: {frames:?}");
        node.rnic(&["fault", "clear"]).check()?;
    }
    node.stop()?;
    Ok(())
}

#[test]
fn a_scenario_starts_and_stops_faults() -> Result<()> {
    let test = "a_scenario_starts_and_stops_faults";
    let Some(lab) = Lab::open(test, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let node = loopback(&lab)?;
    let scratch = Scratch::new("scenario")?;
    let file = scratch.join("scenario.toml");
    let text = "seed = 7\n[[fault]]\nfault = \"drop,after=10,count=3\"\nstop = \"3s\"\n\
                [[fault]]\nfault = \"delay:1ms=5%\"\nstart = \"10ms\"\nstop = \"3s\"\n";
    fs::write(&file, text)?;
    let name = file.to_str().context("a name of ours")?;
    let scenario = node.rnic(&["fault", "run", name]).start()?;
    wait_until("both faults", SOON, || Ok(scenario.stderr().contains("starts 2")))?;
    Dialogue::new("ib_send_lat -n 200 -s 64").run(&node, &node)?;
    let ended = scenario.wait()?;
    ensure!(ended.success(), "{ended}");
    let rows: Vec<Vec<_>> =
        ended.stdout.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    ensure!(rows.len() == 2, "{ended}");
    let struck = |row: usize| rows[row].last().and_then(|count| count.parse::<u64>().ok());
    ensure!(struck(0) == Some(3) && struck(1) > Some(0), "{ended}");
    let left = node.rnic(&["fault", "list"]).check()?;
    ensure!(left.contains("no faults"), "{left}");
    node.stop()?;
    Ok(())
}

/// To a program that captures at the interface, a train is one packet.
#[test]
fn trains_that_tshark_captured_are_taken_apart() -> Result<()> {
    let test = "trains_that_tshark_captured";
    let Some(lab) = Lab::open(test, Need::Root, &["ib_write_bw", "tshark"])? else {
        return Ok(());
    };
    let pair = lab.pair(Io::Udp, 4200)?;
    let scratch = Scratch::new("joined")?;
    let file = scratch.join("x.pcapng");
    let name = file.to_str().context("a name of ours")?;
    let tshark = pair.left.host.cmd("tshark")?.args(["-q", "-i", "any", "-w", name]).start()?;
    wait_until("tshark", SOON, || Ok(file.metadata().is_ok_and(|file| file.len() > 0)))?;
    let explain = || -> Result<Value> {
        Ok(serde_json::from_str(&pair.left.rnic(&["explain", "--json", name]).check()?)?)
    };
    Dialogue::new(DIALOGUES[0]).run(&pair.right, &pair.left)?;
    // tshark writes what it captured after a while.
    wait_until("packets in the file", SOON, || Ok(explain()?["capture"]["trains"] != 0))?;
    tshark.signal(Signal::INT)?;
    tshark.wait()?;
    let report = explain()?;
    let connections = report["connections"].as_array().into_iter().flatten();
    let sent = || connections.clone().flat_map(|of| of["sent"].as_array()).flatten();
    let requests: u64 = sent().filter_map(|sent| sent["requests"].as_u64()).sum();
    ensure!(requests >= 100 && sent().all(|sent| sent["bad_icrc"] == 0), "{report:#}");
    pair.stop()
}

#[test]
fn all_that_is_said_of_disturbed_packets_agrees_to_the_packet() -> Result<()> {
    let test = "all_that_is_said_of_disturbed_packets";
    let Some(lab) = Lab::open(test, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let scratch = [Scratch::new("left")?, Scratch::new("right")?];
    for (faults, usual) in [
        (&["drop,nth=100"][..], DIALOGUES[0]),
        (&["drop=1%", "drop=1%,dir=sent"], DIALOGUES[1]),
        (&["corrupt=1%", "duplicate=1%"], DIALOGUES[0]),
        (&["reorder=2%", "delay:2ms=1%"], DIALOGUES[1]),
        (&["duplicate=1%,dir=sent", "reorder=2%,dir=sent", "rnr:1=2%"], DIALOGUES[1]),
    ] {
        // Of a stream, the receiver sends too few packets for the last ones to strike any.
        let is_for_both = long_form() && !faults.contains(&"rnr:1=2%");
        for dialogue in DIALOGUES.into_iter().filter(|one| is_for_both || *one == usual) {
            all_agree(&lab, &pair, (faults, dialogue), &scratch)
                .with_context(|| format!("{dialogue} with {faults:?}"))?;
        }
    }
    pair.stop()
}

fn all_agree(
    lab: &Lab,
    pair: &Pair,
    (faults, dialogue): (&[&str], &str),
    scratch: &[Scratch; 2],
) -> Result<()> {
    let at_rest = ["drop,psn=0,opcode=255"];
    let mut right = None;
    let left = Account::of(lab, &pair.left, &at_rest, &scratch[0], || {
        let act = || Dialogue::new(dialogue).run(&pair.right, &pair.left).map(|_| ());
        right = Some(Account::of(lab, &pair.right, faults, &scratch[1], act)?);
        Ok(())
    })?;
    let right = right.context("no account")?;
    for account in [&left, &right] {
        account.check(false)?;
        account.page_agrees()?;
    }
    ensure!(right.faults.iter().any(|fault| fault["struck"] != 0), "the faults struck nothing");
    if faults == ["drop,nth=100"] && dialogue == DIALOGUES[0] {
        story(&right, &left)?;
        explains_one_loss(&left)?;
    }
    Ok(())
}
