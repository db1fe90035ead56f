//! Every byte, every completion and their order, over every I/O path. IPv6 or events are added at
//! each path MTU, by the commit, in the long form both. Another user's programs have the one that
//! root's have not.

use anyhow::{Context, Result};
use system_tests::checker;
use system_tests::choice;
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need};
use system_tests::place::{OverV6, Place};
use system_tests::process::User;
use system_tests::programs::Dialogue;

/// The path MTU, and the interface MTU that carries it with headers.
const MTUS: [(u32, u32); 3] = [(256, 1500), (1024, 1500), (4096, 4200)];

fn open(test: &str) -> Result<Option<Lab>> {
    let Some(mut lab) = Lab::open(test, Need::Root, &["ibv_devinfo"])? else { return Ok(None) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    Ok(Some(lab))
}

/// What else varies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    V6,
    Events,
}

fn over(test: &str, io: Io) -> Result<()> {
    let Some(lab) = open(test)? else { return Ok(()) };
    let mut kinds = [More::V6, More::Events];
    if User::of_tests().is_some() {
        kinds.reverse();
    }
    let more = choice::pairs(test, &kinds, &MTUS);
    for mtus in MTUS {
        let (path_mtu, interface_mtu) = mtus;
        let has = |what| more.iter().any(|(one, at)| *one == what && **at == mtus);
        let pair = lab.pair(io, interface_mtu)?;
        let line = format!("checker -m {path_mtu} -n 1500 -x {path_mtu}");
        let run = |line: &str, left: &dyn Place, right: &dyn Place| {
            Dialogue::new(line).run(left, right).with_context(|| pair.evidence())
        };
        run(&line, &pair.left, &pair.right)?;
        if has(More::V6) {
            let left = OverV6::of(&pair.left, pair.net.left.ipv6)?;
            let right = OverV6::of(&pair.right, pair.net.right.ipv6)?;
            run(&line, &left, &right).context("over IPv6")?;
        }
        if has(More::Events) {
            run(&format!("{line} --events"), &pair.left, &pair.right)?;
        }
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
