//! Our NIC against Linux's rxe in an emulated machine: third-party programs, and the checker on
//! both ends.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::daemon::Io;
use system_tests::inspect::{Census, ask, counter};
use system_tests::interop::peers::RxePeer;
use system_tests::interop::{InteropRun, Outcome, Peer, Wire, all_well, cases, endings, wires};
use system_tests::lab::{Lab, Need, long_form};
use system_tests::native;
use system_tests::place::Place;
use system_tests::process::wait_until;

/// Every program, either side as its client, over one of two kinds of packets, which have both
/// versions of IP and both path MTUs; the checker over both. The long form combines all. That each
/// program is called and served in every run, over one kind of packets, is left to `interop_ssh`.
#[test]
fn every_program_over_every_wire() -> Result<()> {
    let Some(lab) = open("every_program_over_every_wire")? else { return Ok(()) };
    let peer = RxePeer::boot(&lab)?;
    let nic = peer.nic(Io::AfPacket, &[])?;
    let interop = InteropRun::new(&nic, &peer.guest)?;
    let mut outcomes = interop.run_in_turn("every_program", cases::PROGRAMS, &wires())?;
    for wire in wires() {
        outcomes.extend(interop.run(cases::CHECKER, wire)?);
    }
    nic.stop()?;
    finish(&peer, &outcomes)
}

/// Kinds of packet I/O differ only in how frames enter and leave.
#[test]
fn the_checker_over_every_packet_io() -> Result<()> {
    let Some(lab) = open("the_checker_over_every_packet_io")? else { return Ok(()) };
    let peer = RxePeer::boot(&lab)?;
    let mut outcomes = Vec::new();
    let all = [
        (Io::Udp, Wire { v6: true, path_mtu: 1024 }),
        (Io::AfXdp, Wire { v6: false, path_mtu: 4096 }),
        (Io::Udp, Wire { v6: false, path_mtu: 4096 }),
        (Io::AfXdp, Wire { v6: true, path_mtu: 1024 }),
    ];
    // These two have both versions of IP and both path MTUs.
    for (io, wire) in if long_form() { &all[..] } else { &all[..2] }.iter().copied() {
        let nic = peer.nic(io, &[])?;
        let interop = InteropRun::new(&nic, &peer.guest)?;
        outcomes.extend(interop.run(&cases::PROGRAMS[..1], wire)?);
        outcomes.extend(interop.run(&cases::CHECKER[..2], wire)?);
        nic.stop()?;
    }
    finish(&peer, &outcomes)
}

/// Our connection manager and the kernel's.
#[test]
fn programs_connect_by_address() -> Result<()> {
    let Some(lab) = Lab::open("programs_connect_by_address", Need::Guest, &CONNECTING)? else {
        return Ok(());
    };
    let peer = RxePeer::boot(&lab)?;
    let nic = peer.nic(Io::AfPacket, &[])?;
    let interop = InteropRun::new(&nic, &peer.guest)?;
    let mut outcomes = interop.run_in_turn("by_address", cases::BY_ADDRESS, &wires())?;
    let by_perftest = cases::PERFTEST_BY_ADDRESS;
    outcomes.extend(interop.run_in_turn("perftest_by_address", by_perftest, &wires()[..1])?);
    is_refused(&nic, &peer.guest)?;
    is_refused(&peer.guest, &nic)?;
    nic.stop()?;
    finish(&peer, &outcomes)
}

/// Refused with private data, closed from either side, and either program killed in each state.
/// Nothing of it is left in our daemon.
#[test]
fn connections_end_whatever_state_they_are_in() -> Result<()> {
    let name = "connections_end_whatever_state_they_are_in";
    let Some(lab) = Lab::open(name, Need::Guest, &CONNECTING)? else { return Ok(()) };
    let program = native::ends()?.join(native::ENDS);
    let peer = RxePeer::boot(&lab)?;
    peer.guest.install(&program)?;
    let nic = peer.nic(Io::AfPacket, &[])?;
    let before = Census::at_rest(&nic, PATIENCE)?;
    let console = || peer.guest.console();
    endings::play(&nic, &peer.guest, false)
        .context("rxe's program is the client")
        .with_context(console)?;
    endings::play(&peer.guest, &nic, true)
        .context("rxe's program is the server")
        .with_context(console)?;
    endings::dies_while_it_disconnects(&peer.guest, &nic).with_context(console)?;
    wait_until("the end of all identifiers", PATIENCE, || Ok(counter(&nic, "cm_ids")? == 0))?;
    before.returns(&nic, PATIENCE)?;
    nic.stop().map(drop)
}

/// A client hears at once that no program listens at a port.
fn is_refused(client: &dyn Place, host: &dyn Place) -> Result<()> {
    let args = ["-c", "-a", &host.address().to_string(), "-p", "999"].map(str::to_owned);
    let said = client.start("rping", &args, Duration::from_secs(30))?.wait()?;
    let text = said.said();
    ensure!(!said.success() && text.contains("REJECTED"), "{said}");
    Ok(())
}

/// Early retransmissions, credits and marked packets do not disturb rxe.
#[test]
fn the_checker_with_the_behaviour_of_connectx() -> Result<()> {
    let Some(lab) = open("the_checker_with_the_behaviour_of_connectx")? else { return Ok(()) };
    let peer = RxePeer::boot(&lab)?;
    let nic = peer.nic(Io::AfPacket, &["--profile", "connectx"])?;
    let devices = ask(&nic, "devices")?;
    ensure!(devices[0]["profile"] == "connectx", "{devices}");
    let interop = InteropRun::new(&nic, &peer.guest)?;
    let outcomes = interop.run(&cases::CHECKER[..2], Wire { v6: false, path_mtu: 1024 })?;
    nic.stop()?;
    finish(&peer, &outcomes)
}

const PATIENCE: Duration = Duration::from_secs(20);

const CONNECTING: [&str; 4] = ["rping", "ucmatose", "udaddy", "ib_write_bw"];

fn open(test: &str) -> Result<Option<Lab>> {
    Lab::open(test, Need::Guest, &["ibv_rc_pingpong", "ib_write_bw"])
}

fn finish(peer: &RxePeer, outcomes: &[Outcome]) -> Result<()> {
    all_well(outcomes).map_err(|error| error.context(peer.guest.console()))
}
