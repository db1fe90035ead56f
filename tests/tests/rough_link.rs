//! Every byte and completion over a link that loses, duplicates, reorders and corrupts packets,
//! with every packet checked by other software.
//!
//! The link's captures hold what each daemon sent before any fault. Tshark dissects each frame,
//! and an ICRC that shares no code with ours is computed for it.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pcap_file::pcap::PcapReader;
use system_tests::checker;
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::emulator::{EmulatedPair, Faults, LinkReport};
use system_tests::frame::Frame;
use system_tests::inspect::{ask, counter};
use system_tests::lab::{Lab, Need, at_end, long_form};
use system_tests::netns::End;
use system_tests::paths::{self, Scratch};
use system_tests::place::{Host, Node, OverV6};
use system_tests::process::Cmd;
use system_tests::programs::Dialogue;

/// Local ACK timeout 2^15 x 4.096 us = 134 ms, seven retries: enough for a busy machine.
const CHECKER: &str = "checker -n 400 -T 15 -s 0,1,63,64,1023,1024,1025,3000,16391,65536";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

const PROGRAMS: [&str; 3] = ["ibv_devinfo", "tshark", "ethtool"];

fn over(lab: Option<Lab>, io: Io, path_mtu: u32, version: Version) -> Result<()> {
    let Some(mut lab) = lab else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    let folder = Scratch::new("link")?;
    let interface_mtu = if path_mtu > 1024 { 4200 } else { 1500 };
    let mut link = EmulatedPair::new(interface_mtu, Faults::ROUGH, 42, folder.path())?;
    let node = |end: &End| -> Result<Node> {
        let daemon = Daemon::start(Dist::get()?, &at_end(end, io))?;
        Ok(Node::new(daemon, Host::at_end(end, &lab.tools), Dist::get()?))
    };
    let nodes = [node(&link.left)?, node(&link.right)?];
    let ends = [link.left.ipv6, link.right.ipv6];
    let dialogue =
        Dialogue::new(&format!("{CHECKER} -m {path_mtu}")).limit(Duration::from_secs(90));
    let said = match version {
        Version::V4 => dialogue.run(&nodes[0], &nodes[1]),
        Version::V6 => {
            let [left, right] = [OverV6::of(&nodes[0], ends[0])?, OverV6::of(&nodes[1], ends[1])?];
            dialogue.run(&left, &right)
        }
    };
    let report = link.finish(Duration::from_millis(300))?;
    said.with_context(|| what_happened(&nodes, &report))?;
    no_fallback(&nodes, io)?;
    faults_were_felt(&nodes, &report)?;
    for (node, capture) in nodes.iter().zip(&report.captures) {
        frames_are_the_daemons(node, capture)?;
        tshark_agrees(&lab, capture)?;
    }
    let [left, right] = nodes;
    left.stop()?;
    right.stop()?;
    Ok(())
}

/// Diagnostics of a failure: what the link did, what the daemons counted, and captures that are
/// kept.
fn what_happened(nodes: &[Node; 2], report: &LinkReport) -> String {
    let kept = paths::cache("rough-link").and_then(|folder| {
        for capture in &report.captures {
            std::fs::copy(capture, folder.join(capture.file_name().unwrap_or_default()))?;
        }
        Ok(folder)
    });
    let kept = kept.map(|folder| folder.display().to_string()).unwrap_or_default();
    let [left, right] = nodes;
    format!("captures are in {kept}\n{report:?}\n{}", counters_of([left, right]))
}

fn counters_of(nodes: [&Node; 2]) -> String {
    let [left, right] = nodes.map(|node| match ask(node, "counters") {
        Ok(counters) => counters.to_string(),
        Err(error) => format!("{error:#}"),
    });
    format!("left:  {left}\nright: {right}")
}

/// Checks that the daemon uses the packet I/O that it was started with.
fn no_fallback(nodes: &[Node; 2], io: Io) -> Result<()> {
    for node in nodes {
        let status = ask(node, "status")?;
        let text = status.to_string();
        ensure!(text.contains(&format!("\"{}", io.as_str())), "not {}: {text}", io.as_str());
    }
    Ok(())
}

fn faults_were_felt(nodes: &[Node; 2], report: &LinkReport) -> Result<()> {
    let (right, left) = (&report.to_right, &report.to_left);
    let each = [
        ("lost", right.lost + left.lost),
        ("doubled", right.duplicated + left.duplicated),
        ("reordered", right.reordered + left.reordered),
        ("damaged", right.corrupted + left.corrupted),
    ];
    for (what, count) in each {
        ensure!(count > 0, "the link {what} nothing: {report:?}");
    }
    let sum = |name| -> Result<u64> { Ok(counter(&nodes[0], name)? + counter(&nodes[1], name)?) };
    ensure!(sum("retransmitted_packets")? > 0, "nothing was sent again: {report:?}");
    ensure!(sum("duplicate_request")? > 0, "no duplicate arrived: {report:?}");
    eprintln!(
        "{each:?} of {} frames, {} sent again",
        right.roce_in + left.roce_in,
        sum("retransmitted_packets")?
    );
    Ok(())
}

/// Checks that the link saw what the daemon counted, and that every frame's ICRC is right.
fn frames_are_the_daemons(node: &Node, capture: &Path) -> Result<()> {
    let mut frames = 0;
    let mut reader = PcapReader::new(File::open(capture)?)?;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        frames += 1;
        let frame = Frame::parse(&packet.data).with_context(|| format!("frame {frames}"))?;
        let (found, right) = (frame.icrc(), frame.computed_icrc());
        ensure!(found == right, "frame {frames}: ICRC {found:08x}, computed {right:08x}");
    }
    let sent = counter(node, "tx_packets")?;
    ensure!(frames == sent, "{frames} frames captured, {sent} counted by the daemon");
    Ok(())
}

/// Checks that every frame is RoCEv2 to tshark, and none malformed.
fn tshark_agrees(lab: &Lab, capture: &Path) -> Result<()> {
    // Tshark takes some payloads for RPC over RDMA, and others for an EtherType with a packet of
    // that kind. How it dissects a payload says nothing about the frame.
    const BAD: &str = "!infiniband.bth || (_ws.malformed && !infiniband.rwh.etype)";
    let bad = Cmd::new(lab.tools.program("tshark")?)
        .arg("-r")
        .arg(capture)
        .args(["--disable-protocol", "rpcordma", "-Y", BAD])
        .limit(Duration::from_secs(120))
        .check()?;
    let shown: Vec<_> = bad.lines().take(5).collect();
    ensure!(shown.is_empty(), "{} frames tshark does not like:\n{shown:#?}", bad.lines().count());
    Ok(())
}

#[test]
fn af_xdp() -> Result<()> {
    over(Lab::open("af_xdp", Need::Root, &PROGRAMS)?, Io::AfXdp, 1024, Version::V4)
}

#[test]
fn af_packet() -> Result<()> {
    over(Lab::open("af_packet", Need::Root, &PROGRAMS)?, Io::AfPacket, 1024, Version::V4)
}

#[test]
fn udp() -> Result<()> {
    over(Lab::open("udp", Need::Root, &PROGRAMS)?, Io::Udp, 1024, Version::V4)
}

#[test]
fn udp_over_ipv6() -> Result<()> {
    over(Lab::open_long("udp_over_ipv6", Need::Root, &PROGRAMS)?, Io::Udp, 1024, Version::V6)
}

#[test]
fn af_xdp_at_the_largest_path_mtu() -> Result<()> {
    over(
        Lab::open_long("af_xdp_at_the_largest_path_mtu", Need::Root, &PROGRAMS)?,
        Io::AfXdp,
        4096,
        Version::V4,
    )
}

/// One atomic, then a message for every PSN (and 4 GiB with them), in each direction: the
/// responder's record of the atomic must not disturb later acknowledgements, after its PSN was used
/// again by another packet. Each daemon loses some of what arrives.
#[test]
fn every_psn_twice_after_one_atomic() -> Result<()> {
    const MESSAGE: u64 = 65_536;
    const PATH_MTU: u64 = 256;
    let test = "every_psn_twice_after_one_atomic";
    let Some(mut lab) = Lab::open(test, Need::Root, &["ibv_devinfo"])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    let packets: u64 = if long_form() { (1 << 24) + (1 << 16) } else { 1 << 17 };
    let pair = lab.pair(Io::Udp, 1500)?;
    for node in [&pair.left, &pair.right] {
        node.rnic(&["fault", "add", "--seed", "42", "drop=0.01%"]).check()?;
    }
    let messages = packets / (MESSAGE / PATH_MTU);
    // A later packet always reveals a loss. The timeout of 1 s is for a machine so busy that a
    // daemon does not run.
    let line = format!(
        "checker -m {PATH_MTU} -s {MESSAGE} -n {messages} --first fadd -o send,write -q 32 -T 18"
    );
    let limit = Duration::from_secs(if long_form() { 3600 } else { 90 });
    let said = Dialogue::new(&line).limit(limit).run(&pair.left, &pair.right);
    said.with_context(|| counters_of([&pair.left, &pair.right]))?;
    for node in [&pair.left, &pair.right] {
        for name in ["fault_dropped", "retransmitted_packets"] {
            let count = counter(node, name)?;
            eprintln!("{name} {count}");
            ensure!(count > 0, "no {name}");
        }
        let sent = counter(node, "tx_packets")?;
        ensure!(sent >= packets, "{sent} packets are not {packets}");
    }
    pair.stop()?;
    Ok(())
}

/// Queue pairs of one device have no link that a test could disturb: the daemon itself injects the
/// same mixture of faults, by `rnic fault`.
#[test]
fn loopback() -> Result<()> {
    let Some(mut lab) = Lab::open("loopback", Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let faults = ["drop=2%", "duplicate=1%", "reorder=5%", "corrupt=0.001"];
    node.rnic(&["fault", "add", "--seed", "42"]).args(faults).check()?;
    let dialogue = Dialogue::new(&format!("{CHECKER} -m 1024")).limit(Duration::from_secs(90));
    dialogue.run(&node, &node)?;
    let injected = ["fault_dropped", "fault_duplicated", "fault_reordered", "fault_corrupted"];
    for name in injected.iter().chain(&["retransmitted_packets", "rx_icrc_encapsulated"]) {
        let count = counter(&node, name)?;
        eprintln!("{name} {count}");
        ensure!(count > 0, "no {name}");
    }
    node.stop()?;
    Ok(())
}
