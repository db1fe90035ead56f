//! Our NIC against Linux's rxe in an emulated machine: each as server and as client.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::netns::Netns;
use system_tests::place::{Host, Node, Place};
use system_tests::programs::{Dialogue, perftest};
use system_tests::rxe::{Guest, Image, Machine};

const PROGRAMS: [&str; 2] = ["ibv_rc_pingpong", "ib_write_bw"];
const OURS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 79, 0, 1));
const THEIRS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 79, 0, 2));
/// The tap: the guest's end of the wire is our daemon's interface.
const INTERFACE: &str = "eth0";

/// A guest and our daemon on the two ends of a tap. The daemon goes before the namespace.
struct Stage {
    ours: Node,
    theirs: Guest,
    _netns: Netns,
}

impl Stage {
    fn new(lab: &Lab, io: Io, mtu: u32) -> Result<Self> {
        let netns = Netns::new("interop")?;
        let machine = Machine { mtu, ..Machine::new(INTERFACE, THEIRS) };
        let theirs = Guest::boot(&Image::get()?, &netns, &machine)?;
        netns.ip(&["address", "add", &format!("{OURS}/24"), "dev", INTERFACE])?;
        let spec = Spec {
            netdev: Some(INTERFACE.into()),
            netns: Some(netns.name().to_owned()),
            ..Spec::new(io)
        };
        let dist = Dist::get()?;
        let daemon = Daemon::start(dist, &spec)?;
        let host = Host { netns: Some(netns.name().to_owned()), ..Host::here(OURS, &lab.tools) };
        Ok(Self { ours: Node::new(daemon, host, dist), theirs, _netns: netns })
    }

    /// Runs a dialogue with the guest as server, then with ours.
    fn both_ways(&self, line: &str, check: fn(&str) -> Result<()>) -> Result<()> {
        let sides: [(&str, &dyn Place, &dyn Place); 2] =
            [("server rxe", &self.theirs, &self.ours), ("client rxe", &self.ours, &self.theirs)];
        for (title, server, client) in sides {
            let context = || format!("{line}, {title}; guest:\n{}", self.theirs.console());
            let transcript = Dialogue::new(line).run(server, client).with_context(context)?;
            check(&transcript.client.stdout).with_context(context)?;
        }
        Ok(())
    }
}

fn anything(_: &str) -> Result<()> {
    Ok(())
}

fn has_rows(text: &str) -> Result<()> {
    ensure!(!perftest::bandwidth(text)?.is_empty());
    Ok(())
}

fn pingpong(test: &str, io: Io, mtu: u32, path_mtu: u32) -> Result<()> {
    let Some(lab) = Lab::open(test, Need::Guest, &PROGRAMS)? else { return Ok(()) };
    let stage = Stage::new(&lab, io, mtu)?;
    for program in ["ibv_rc_pingpong -c", "ibv_uc_pingpong -c"] {
        for size in [1, 4096, 30_001] {
            stage.both_ways(&format!("{program} -m {path_mtu} -s {size} -n 100"), anything)?;
        }
    }
    stage.both_ways("ibv_ud_pingpong -s 1000 -n 100", anything)?;
    stage.ours.stop()?;
    Ok(())
}

#[test]
fn pingpong_with_rxe_over_udp_at_4096() -> Result<()> {
    pingpong("pingpong_with_rxe_over_udp_at_4096", Io::Udp, 4200, 4096)
}

#[test]
fn pingpong_with_rxe_over_udp_at_1024() -> Result<()> {
    pingpong("pingpong_with_rxe_over_udp_at_1024", Io::Udp, 1500, 1024)
}

#[test]
fn pingpong_with_rxe_over_af_xdp_at_4096() -> Result<()> {
    pingpong("pingpong_with_rxe_over_af_xdp_at_4096", Io::AfXdp, 4200, 4096)
}

#[test]
fn pingpong_with_rxe_over_af_packet_at_1024() -> Result<()> {
    pingpong("pingpong_with_rxe_over_af_packet_at_1024", Io::AfPacket, 1500, 1024)
}

#[test]
fn every_operation_with_rxe() -> Result<()> {
    let name = "every_operation_with_rxe";
    let Some(lab) = Lab::open(name, Need::Guest, &PROGRAMS)? else { return Ok(()) };
    let stage = Stage::new(&lab, Io::AfPacket, 4200)?;
    for line in [
        "ib_write_bw -s 65536 -n 100 -m 4096",
        "ib_read_bw -s 65536 -n 100 -m 4096",
        "ib_send_bw -s 65536 -n 100 -m 4096",
        "ib_write_bw -s 65537 -n 100 -m 1024",
        "ib_read_bw -s 65537 -n 100 -m 1024",
        "ib_send_bw -s 65537 -n 100 -m 1024",
        "ib_atomic_bw -n 100 -A FETCH_AND_ADD",
        "ib_atomic_bw -n 100 -A CMP_AND_SWAP",
    ] {
        stage.both_ways(line, has_rows)?;
    }
    stage.both_ways("rping -C 5 -v", anything)?;
    stage.ours.stop()?;
    Ok(())
}
