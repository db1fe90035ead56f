//! libfabric's own tools, unmodified: its verbs provider asks both libraries when it starts.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::place::{Host, Node};

/// Its provider asks the connection manager for the device, and connects by it.
#[test]
fn fi_info_finds_the_device() -> Result<()> {
    let Some(lab) = Lab::open("fi_info_finds_the_device", Need::Root, &["fi_info"])? else {
        return Ok(());
    };
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let host = Host::here(Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let output = node.cmd("fi_info")?.args(["-p", "verbs"]).run()?;
    ensure!(output.success() && output.stdout.contains("rnic0"), "{output}");
    node.stop()?;
    Ok(())
}
