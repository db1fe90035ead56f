//! Programs over crates of others, which `cargo xtask programs` runs: building them takes minutes.

use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::foreign::SIDEWAY;
use system_tests::lab::{Lab, Need};
use system_tests::place::Place;
use system_tests::programs::Dialogue;

#[test]
fn programs_over_a_crate_for_verbs() -> Result<()> {
    let name = "programs_over_a_crate_for_verbs";
    let Some(mut lab) = Lab::open_long(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(SIDEWAY.build()?);
    let pair = lab.pair(Io::Udp, 4200)?;
    let said = pair.left.start("show_gids", &[], Duration::from_secs(30))?.wait()?;
    let address = pair.left.address().to_string();
    ensure!(said.success() && said.stdout.contains(&address), "{said}");
    for line in ["rc_pingpong -n 200", "rc_pingpong_split -n 200", "rc_pingpong -n 200 -t"] {
        let said = Dialogue::new(line).run(&pair.left, &pair.right)?.client;
        ensure!(said.stdout.contains("200 iters in "), "{said}");
    }
    pair.stop()
}
