//! rdma-core's own tests, unmodified: what other devices are judged by.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, alone};
use system_tests::place::{Host, Node};
use system_tests::pyverbs::{Expected, Outcome, PROGRAMS, Suite};
use system_tests::{paths, process};

/// Tests that pass, at least: a table that fits an empty report would say nothing.
const FEWEST: usize = 138;

#[test]
fn the_tests_of_rdma_core_pass_or_are_skipped_as_told() -> Result<()> {
    let name = "the_tests_of_rdma_core_pass_or_are_skipped_as_told";
    let Some(mut lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let suite = Suite::provide(&lab.tools)?;
    lab.tools = lab.tools.clone().with_libraries(suite.libraries());
    // Those of the connection manager look up the addresses of the device's interface.
    let pair = lab.pair(Io::Udp, 4200)?;
    let node = Node { by_rnic_run: true, ..pair.left };
    let outcomes = suite.run(&node)?;
    let log = node.stop()?;
    pair.right.stop()?;
    let document = fs::read_to_string(paths::repository().join("docs/verbs.md"))?;
    let differences = Expected::read(&document)?.differences(&outcomes);
    let log = process::tail(&log, 20);
    ensure!(differences.is_empty(), "{}\nthe daemon:\n{log}", differences.join("\n"));
    let passed = outcomes.values().filter(|outcome| **outcome == Outcome::Passed).count();
    eprintln!("{passed} of {} tests pass", outcomes.len());
    ensure!(passed >= FEWEST, "only {passed} tests pass");
    Ok(())
}

#[test]
fn the_device_claims_what_is_documented() -> Result<()> {
    let name = "the_device_claims_what_is_documented";
    let Some(lab) = Lab::open(name, Need::Nothing, &["ibv_devinfo"])? else { return Ok(()) };
    let daemon = Daemon::start(Dist::get()?, &alone())?;
    let address = Ipv4Addr::LOCALHOST.into();
    let node = Node::new(daemon, Host::here(address, &lab.tools), Dist::get()?);
    let text = node.cmd("ibv_devinfo")?.arg("-v").check()?;
    node.stop()?;
    let after = text.lines().skip_while(|line| !line.contains("device_cap_flags:")).skip(1);
    let claimed = after.map(str::trim).take_while(|line| !line.contains(':'));
    let claimed: BTreeSet<&str> = claimed.collect();
    let document = fs::read_to_string(paths::repository().join("docs/verbs.md"))?;
    let rows = document.lines().filter(|line| line.starts_with("| `IBV_DEVICE_"));
    let rows = rows.filter(|line| line.contains("| claimed |"));
    let names = rows.flat_map(|line| line.split('`'));
    let told: BTreeSet<&str> = names.filter_map(|name| name.strip_prefix("IBV_DEVICE_")).collect();
    ensure!(claimed == told, "claimed: {claimed:?}\ndocumented: {told:?}");
    Ok(())
}
