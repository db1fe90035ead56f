//! Programs whose registered memory the daemon maps: every byte is checked, and that it is mapped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use system_tests::checker;
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::Dist;
use system_tests::inspect;
use system_tests::lab::{self, Lab, Need};
use system_tests::netns::NetPair;
use system_tests::place::{Host, Job, Node, Place};
use system_tests::programs::Dialogue;

/// Both directions, all operations, sizes up to 1 MiB.
const CHECKER: &str = "checker -m 1024 -t 1 -x 5";
/// Regions of a checker.
const REGIONS: usize = 7;

/// A place whose programs ask for shared memory.
struct Sharing<'a>(&'a Node);

impl Place for Sharing<'_> {
    fn device(&self) -> &str {
        self.0.device()
    }

    fn gid_index(&self) -> u32 {
        self.0.gid_index()
    }

    fn address(&self) -> std::net::IpAddr {
        self.0.address()
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        let cmd = self.0.cmd(program)?.env("RNIC_SHARED_MEMORY", "1");
        Ok(Box::new(cmd.args(args).limit(limit).start()?))
    }

    fn listens(&self, port: u16) -> Result<bool> {
        self.0.listens(port)
    }
}

/// The kind of memory of each region of a daemon.
fn kinds(node: &Node) -> Result<Vec<String>> {
    let regions = inspect::ask(node, "mr")?;
    let kinds = regions.as_array().into_iter().flatten().map(|mr| mr["memory"].as_str());
    kinds.map(|kind| kind.map(str::to_owned).ok_or_else(|| anyhow!("{regions:#}"))).collect()
}

/// Runs a dialogue, and returns the memory of a daemon's regions when it had most of them.
fn watched(dialogue: &Dialogue, ends: [&dyn Place; 2], node: &Node) -> Result<Vec<String>> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let now = kinds(node)?;
                if now.len() > most.len() {
                    most = now;
                }
                thread::sleep(Duration::from_millis(50));
            }
            anyhow::Ok(most)
        });
        let ran = dialogue.run(ends[0], ends[1]);
        ended.store(true, Ordering::Relaxed);
        let most = watcher.join().map_err(|_| anyhow!("the watcher panicked"))?;
        ran?;
        most
    })
}

fn open(test: &str) -> Result<Option<Lab>> {
    let Some(mut lab) = Lab::open(test, Need::Root, &[])? else { return Ok(None) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    Ok(Some(lab))
}

#[test]
fn every_byte_between_two_daemons() -> Result<()> {
    let Some(lab) = open("every_byte_between_two_daemons")? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 1500)?;
    let (left, right) = (Sharing(&pair.left), Sharing(&pair.right));
    let before = inspect::Census::of(&pair.right)?;
    let seen = watched(&Dialogue::new(CHECKER), [&left, &right], &pair.right)?;
    ensure!(seen == vec!["shared"; REGIONS], "memory of the regions: {seen:?}");
    before.returns(&pair.right, Duration::from_secs(10))?;
    // The peer does not share its memory.
    Dialogue::new("checker -m 1024 -n 200").run(&pair.left, &right)?;
    pair.stop()
}

#[test]
fn every_byte_between_programs_of_one_daemon() -> Result<()> {
    let name = "every_byte_between_programs_of_one_daemon";
    let Some(lab) = open(name)? else { return Ok(()) };
    let net = NetPair::new(1500)?;
    let dist = Dist::get()?;
    let daemon = Daemon::start(dist, &lab::at_end(&net.left, Io::Loopback))?;
    let node = Node::new(daemon, Host::at_end(&net.left, &lab.tools), dist);
    let sharing = Sharing(&node);
    let seen = watched(&Dialogue::new(CHECKER), [&sharing, &sharing], &node)?;
    ensure!(seen == vec!["shared"; 2 * REGIONS], "memory of the regions: {seen:?}");
    node.stop().map(drop)
}

#[test]
fn a_daemon_that_maps_no_memory_still_serves_programs() -> Result<()> {
    let name = "a_daemon_that_maps_no_memory_still_serves_programs";
    let Some(lab) = open(name)? else { return Ok(()) };
    let net = NetPair::new(1500)?;
    let dist = Dist::get()?;
    let scratch = system_tests::paths::Scratch::new("config")?;
    let config = scratch.join("rnicd.toml");
    std::fs::write(&config, "[quota]\nshared-bytes = 0\n")?;
    let mut spec = lab::at_end(&net.left, Io::Loopback);
    spec.extra = vec!["--config".into(), config.display().to_string()];
    let node = Node::new(Daemon::start(dist, &spec)?, Host::at_end(&net.left, &lab.tools), dist);
    let sharing = Sharing(&node);
    let dialogue = Dialogue::new("checker -m 1024 -t 1");
    let seen = watched(&dialogue, [&sharing, &sharing], &node)?;
    ensure!(seen == vec!["process"; 2 * REGIONS], "memory of the regions: {seen:?}");
    node.stop().map(drop)
}
