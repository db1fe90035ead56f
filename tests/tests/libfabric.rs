//! libfabric's own tools, unmodified: its verbs provider asks both libraries when it starts.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::place::{Host, Node};

/// What `fi_getinfo` says when no device serves: -FI_ENODATA.
const NO_DATA: i32 = 61;

/// Its provider needs the connection manager, which does not exist yet: to report no device is
/// right, to crash is not.
#[test]
fn fi_info_finds_a_device_that_it_cannot_connect_by() -> Result<()> {
    let name = "fi_info_finds_a_device_that_it_cannot_connect_by";
    let Some(lab) = Lab::open(name, Need::Root, &["fi_info"])? else { return Ok(()) };
    let daemon = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let host = Host::here(Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let output = node.cmd("fi_info")?.args(["-p", "verbs"]).env("RNIC_DEBUG", "1").run()?;
    ensure!(output.code() == NO_DATA, "{output}");
    ensure!(output.stderr.contains("librdmacm (soft-rnic)"), "{output}");
    node.stop()?;
    Ok(())
}
