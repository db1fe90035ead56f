//! UCX between two hosts, with every byte compared: its own ucx_perftest compares nothing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need};
use system_tests::native::{self, UCP};
use system_tests::place::{Node, Place};
use system_tests::process::{Cmd, wait_until};
use system_tests::programs::next_port;

/// Reliable connections, and datagrams that UCX makes reliable.
const TRANSPORTS: [&str; 2] = ["rc_v,self", "ud_v,self"];

/// Some seconds are enough, but for a busy machine, where datagrams get lost.
const LIMIT: Duration = Duration::from_secs(300);

/// Puts, gets, tagged and active messages of every protocol that the size selects, and atomics, in
/// both directions.
#[test]
fn every_byte_that_ucx_moves_is_right() -> Result<()> {
    let name = "every_byte_that_ucx_moves_is_right";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::ucp()?);
    let pair = lab.pair(Io::Udp, 4200)?;
    let [server, client] = [pair.left, pair.right].map(|node| Node { by_rnic_run: true, ..node });
    for transport in TRANSPORTS {
        let port = next_port();
        let cmd = |node: &Node| -> Result<Cmd> {
            let cmd = node.cmd(UCP)?.args(["-p", &port.to_string()]);
            let cmd = cmd.env("UCX_TLS", transport).env("UCX_NET_DEVICES", "rnic0:1");
            Ok(cmd.limit(LIMIT))
        };
        let serving = cmd(&server)?.start()?;
        wait_until("listening server", Duration::from_secs(20), || server.listens(port))
            .with_context(|| serving.stderr())?;
        let called = cmd(&client)?.arg(server.address().to_string()).run()?;
        ensure!(called.success(), "{transport}: {called}\nserver: {}", serving.stderr());
        let served = serving.wait()?;
        for output in [&called, &served] {
            let is_right = output.success() && output.stdout.contains("all data is right");
            ensure!(is_right, "{transport}: {output}");
        }
        eprintln!("{transport}:\n{}", called.stdout);
    }
    server.stop()?;
    client.stop()?;
    Ok(())
}
