//! A program can make as many objects as the device claims to support.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, note};
use system_tests::native;
use system_tests::paths::Scratch;
use system_tests::place::{Host, Node};

/// A user's limits, in the order of the program's output.
const LIMITS: &str = "[quota]\nqps = 10000\ncqs = 3000\npds = 200\n";
const GIVEN: [u32; 3] = [10_000, 3_000, 200];

/// The number behind a word.
fn number(line: &str, word: &str) -> Result<u32> {
    let rest = line.split_once(word).with_context(|| format!("no {word:?} in {line:?}"))?.1;
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    Ok(digits.parse()?)
}

#[test]
fn as_many_objects_as_the_device_claims_can_be_made_in_seconds() -> Result<()> {
    let name = "as_many_objects_as_the_device_claims_can_be_made_in_seconds";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::promise()?);
    let scratch = Scratch::new("promise")?;
    let config = scratch.path().join("rnicd.toml");
    std::fs::write(&config, LIMITS)?;
    let mut spec = Spec::new(Io::Loopback);
    spec.extra = vec!["--config".into(), config.display().to_string()];
    let daemon = Daemon::start(Dist::get()?, &spec)?;
    let host = Host::here(Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let text = node.cmd(native::PROMISE)?.check()?;
    note(&text);
    let lines: Vec<_> = text.lines().collect();
    ensure!(lines.len() == GIVEN.len(), "{text}");
    for (line, given) in lines.iter().zip(GIVEN) {
        ensure!(number(line, "promised")? == given && number(line, "given")? == given, "{line}");
        // A second or two is usual; minutes would be a fault on any machine.
        ensure!(number(line, "made in")? < 30 && number(line, "destroyed in")? < 30, "{line}");
    }
    node.stop()?;
    Ok(())
}
