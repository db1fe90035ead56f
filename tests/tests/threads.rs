//! Any verb from any thread, and children of such a process.

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, own_loopback};
use system_tests::native::{self, CROWD};
use system_tests::place::{Host, Node};

#[test]
fn many_threads_share_a_context_while_children_are_forked() -> Result<()> {
    let name = "many_threads_share_a_context_while_children_are_forked";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::crowd()?);
    let address = own_loopback();
    let spec = Spec { addresses: vec![address], ..Spec::new(Io::Udp) };
    let daemon = Daemon::start(Dist::get()?, &spec)?;
    let node = Node::new(daemon, Host::here(address, &lab.tools), Dist::get()?);
    for _ in 0..3 {
        let output = node.cmd(CROWD)?.args(["-d", node.daemon.device(), "-g", "0"]).run()?;
        ensure!(output.success(), "{output}\nthe daemon:\n{}", node.daemon.log());
        eprint!("{}", output.stdout);
    }
    node.stop()?;
    Ok(())
}
