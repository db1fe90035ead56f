//! Every byte, every completion and their order, over every I/O path.

use anyhow::{Context, Result};
use system_tests::checker;
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need, Pair};
use system_tests::place::{Node, Place};
use system_tests::programs::Dialogue;

/// The path MTU, and the interface MTU that carries it with headers.
const MTUS: [(u32, u32); 3] = [(256, 1500), (1024, 1500), (4096, 4200)];

/// A place seen under its IPv6 address.
struct OverV6<'a> {
    node: &'a Node,
    address: std::net::Ipv6Addr,
    gid_index: u32,
}

impl Place for OverV6<'_> {
    fn device(&self) -> &str {
        self.node.device()
    }

    fn gid_index(&self) -> u32 {
        self.gid_index
    }

    fn address(&self) -> std::net::IpAddr {
        self.address.into()
    }

    fn start(
        &self,
        program: &str,
        args: &[String],
        limit: std::time::Duration,
    ) -> Result<Box<dyn system_tests::place::Job>> {
        self.node.start(program, args, limit)
    }

    fn listens(&self, port: u16) -> Result<bool> {
        self.node.listens(port)
    }
}

fn open(test: &str) -> Result<Option<Lab>> {
    let Some(mut lab) = Lab::open(test, Need::Root, &["ibv_devinfo"])? else { return Ok(None) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    Ok(Some(lab))
}

/// The index of the global IPv6 address: behind the IPv4 one.
fn v6<'a>(pair: &'a Pair) -> Result<[OverV6<'a>; 2]> {
    let side = |node: &'a Node, address| -> Result<OverV6<'a>> {
        let text = node.cmd("ibv_devinfo")?.arg("-v").check()?;
        let wanted = format!("{address}");
        let gid_index = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("GID[")?.split_once(']'))
            .find(|(_, rest)| rest.contains(&wanted))
            .and_then(|(index, _)| index.trim().parse().ok())
            .with_context(|| format!("no GID {wanted} in:\n{text}"))?;
        Ok(OverV6 { node, address, gid_index })
    };
    Ok([side(&pair.left, pair.net.left.ipv6)?, side(&pair.right, pair.net.right.ipv6)?])
}

fn over(test: &str, io: Io) -> Result<()> {
    let Some(lab) = open(test)? else { return Ok(()) };
    for (path_mtu, interface_mtu) in MTUS {
        let pair = lab.pair(io, interface_mtu)?;
        let line = format!("checker -m {path_mtu} -n 1500 -x {path_mtu}");
        Dialogue::new(&line).run(&pair.left, &pair.right)?;
        let [left, right] = v6(&pair)?;
        Dialogue::new(&line).run(&left, &right).context("over IPv6")?;
        Dialogue::new(&format!("{line} --events")).run(&pair.left, &pair.right)?;
        pair.stop()?;
    }
    Ok(())
}

#[test]
fn over_udp() -> Result<()> {
    over("over_udp", Io::Udp)
}

#[test]
fn over_af_xdp() -> Result<()> {
    over("over_af_xdp", Io::AfXdp)
}

#[test]
fn over_af_packet() -> Result<()> {
    over("over_af_packet", Io::AfPacket)
}
