//! A user who takes and keeps as much of the daemon's resources as possible, while other users come
//! later: they are served, and the daemon survives within the limits that the kernel sets it.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use system_tests::checker::{self, Stream};
use system_tests::choice;
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::cpus;
use system_tests::daemon::{Io, Spec};
use system_tests::inspect::Census;
use system_tests::lab::{cpu_of, skip};
use system_tests::measure::judge;
use system_tests::native::{self, HOSTILE, VICTIM};
use system_tests::place::{Node, Place};
use system_tests::process::{Cmd, Running, User, wait_until};
use system_tests::rounds::{MOST_LEFT, Share, share_left};

/// How long an attack lasts unless it is ended earlier.
const ATTACK: f64 = 60.0;
/// How long the attacker may take to get everything that it can, and a new user to be served.
const SOON: Duration = Duration::from_secs(30);
/// Lines that a daemon may log in a test, about itself and about the attack.
const LINES: usize = 100;

struct Stage(Commons);

impl Stage {
    fn open(test: &str) -> Result<Option<Self>> {
        let helpers: [Helper; 3] = [
            (VICTIM, native::victim),
            (HOSTILE, native::hostile),
            (checker::PROGRAM, checker::build),
        ];
        Ok(Commons::open(test, &["prlimit"], &helpers)?.map(Self))
    }

    /// Starts root's daemon through a program that limits it.
    fn daemon(&self, through: &[String]) -> Result<Node> {
        self.configured(through, "")
    }

    /// The same with a configuration file.
    fn configured(&self, through: &[String], config: &str) -> Result<Node> {
        let file = self.0.scratch.join("rnicd.toml");
        fs::write(&file, config)?;
        let extra = vec!["--config".into(), file.display().to_string()];
        self.0.node(&Spec { through: through.to_vec(), extra, ..Spec::new(Io::Loopback) })
    }

    fn command(&self, node: &Node, kind: &str, seconds: f64) -> Cmd {
        Cmd::new(self.0.scratch.join(HOSTILE))
            .args([kind, "--seconds", &seconds.to_string()])
            .env("RNIC_SOCKET", node.daemon.socket())
            .env("TMPDIR", self.0.scratch.path())
            // It needs as many descriptors as it makes the daemon use.
            .through(&words("prlimit --nofile=8192:8192"))
            .as_user(Some(User::NOBODY))
            .limit(Duration::from_secs_f64(seconds) + SOON)
    }

    fn attack(&self, node: &Node, kind: &str, seconds: f64) -> Result<Running> {
        self.command(node, kind, seconds).start()
    }

    /// An attack that has got everything that it can, and how many objects that is.
    fn hoarder(&self, node: &Node, kind: &str) -> Result<(Running, u64)> {
        got(self.attack(node, kind, ATTACK)?, node)
    }
}

/// Waits until an attacker has got everything that it can, and returns how many objects that is.
fn got(mut attacker: Running, node: &Node) -> Result<(Running, u64)> {
    let mut got = None;
    wait_until("end of the attacker's taking", SOON, || {
        ensure!(attacker.try_status()?.is_none(), "it failed: {}", attacker.stderr());
        let said = attacker.stdout();
        let number = said.lines().find_map(|line| line.strip_prefix("got ")?.split(' ').next());
        got = number.and_then(|number| number.parse().ok());
        Ok(got.is_some())
    })
    .with_context(|| node.daemon.log())?;
    Ok((attacker, got.context("no number")?))
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Checks that a user who now opens the device and makes queue pairs is served.
fn serves(node: &Node, user: Option<User>) -> Result<Running> {
    let gid = node.gid_index().to_string();
    let cmd = node.cmd(VICTIM)?.args(["-d", node.device(), "-g", &gid, "hold", "2"]);
    let mut holder = cmd.as_user(user).start()?;
    wait_until("newcomer's queue pairs", SOON, || {
        let (said, log) = (holder.stderr(), node.daemon.log());
        ensure!(holder.try_status()?.is_none(), "{user:?} was not served: {said}\n{log}");
        Ok(holder.stdout().contains("ready"))
    })?;
    Ok(holder)
}

/// A control group that is removed on drop, on a machine where one can be made.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn new(controller: &str, limits: &[(&str, &str)]) -> Option<Self> {
        let name = format!("rnic-test-{}", std::process::id());
        let mounts = Path::new("/sys/fs/cgroup");
        let roots = [mounts.join(controller), mounts.to_owned()];
        roots.into_iter().find_map(|root| {
            let group = Self(root.join(&name));
            fs::create_dir(&group.0).ok()?;
            let (file, value) = limits.iter().find(|(file, _)| group.0.join(file).exists())?;
            fs::write(group.0.join(file), value).ok()?;
            Some(group)
        })
    }

    /// The command that starts a program in the group.
    fn through(&self) -> Vec<String> {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        vec!["sh".into(), "-c".into(), enter, "sh".into()]
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A killed process leaves the group a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// One user takes all that it can; other users are served before, during and after that.
fn outlives(test: &str, kind: &str, through: &[String], most: u64) -> Result<()> {
    let Some(stage) = Stage::open(test)? else { return Ok(()) };
    let node = stage.daemon(through)?;
    // The engine for a second user has been started once before anything is counted.
    drop((serves(&node, Some(User::NOBODY))?, serves(&node, Some(SOMEBODY))?));
    let before = Census::at_rest(&node, SOON)?;
    let early = serves(&node, Some(SOMEBODY))?;
    let (attacker, got) = stage.hoarder(&node, kind)?;
    eprintln!("{test}: the attacker got {got}");
    ensure!((1..=most).contains(&got), "{got} is not from 1 to {most}");
    let late = [serves(&node, Some(SOMEBODY))?, serves(&node, None)?];
    drop((attacker, early, late));
    before.returns(&node, SOON)?;
    let log = node.stop()?;
    ensure!(log.lines().count() < LINES, "a long log:\n{log}");
    Ok(())
}

/// What queues must not use up: one of them in a run of the ordinary form.
const BOUNDS: [&str; 2] = ["control group", "address space"];

#[test]
fn queues_do_not_use_up_the_memory_of_a_control_group() -> Result<()> {
    const LIMIT: &str = "536870912";
    if !choice::has_turn(&BOUNDS, &BOUNDS[0]) {
        return Ok(());
    }
    let limits = [("memory.limit_in_bytes", LIMIT), ("memory.max", LIMIT)];
    let Some(group) = ControlGroup::new("memory", &limits) else {
        eprintln!("no control group can be made here: the address space is limited instead");
        return in_an_address_space();
    };
    outlives("queues_in_a_control_group", "rings", &group.through(), 512 / 8 / 2)
}

#[test]
fn queues_do_not_use_up_the_address_space() -> Result<()> {
    if !choice::has_turn(&BOUNDS, &BOUNDS[1]) {
        return Ok(());
    }
    in_an_address_space()
}

fn in_an_address_space() -> Result<()> {
    outlives("queues_in_an_address_space", "rings", &words("prlimit --as=805306368"), 768 / 8 / 2)
}

/// The administrator allows users more than the machine has: while one user has it all, others may
/// be refused, but every user is served once that one has gone.
#[test]
fn a_daemon_that_promises_too_much_lives_on() -> Result<()> {
    const PROMISE: &str = "[quota]\nring-bytes = 1099511627776\nsessions = 4096\n\
                           [total]\nring-bytes = 1099511627776\nsessions = 8192\n";
    let Some(stage) = Stage::open("a_daemon_that_promises_too_much")? else { return Ok(()) };
    let node = stage.configured(&words("prlimit --as=536870912"), PROMISE)?;
    let early = serves(&node, Some(SOMEBODY))?;
    let crowd = stage.attack(&node, "crowd", 2.0)?;
    let (rings, got) = stage.hoarder(&node, "rings")?;
    let (more, _) = stage.hoarder(&node, "channels")?;
    eprintln!("the attacker got {got} queues");
    drop(crowd.wait()?);
    drop((rings, more, early));
    drop(Census::at_rest(&node, SOON)?);
    drop((serves(&node, Some(SOMEBODY))?, serves(&node, Some(User::NOBODY))?));
    let log = node.stop()?;
    ensure!(log.lines().count() < LINES, "a long log:\n{log}");
    Ok(())
}

#[test]
fn channels_do_not_use_up_the_descriptors() -> Result<()> {
    outlives("channels", "channels", &words("prlimit --nofile=1024:1024"), 1024 / 2)
}

/// Connections without a pause, first with few threads and then with little address space.
#[test]
fn connections_without_pause_keep_no_user_out() -> Result<()> {
    let Some(stage) = Stage::open("connections_without_pause")? else { return Ok(()) };
    let few = [("pids.max", "100")];
    let group = ControlGroup::new("pids", &few);
    let tasks = group.as_ref().map(ControlGroup::through);
    for through in tasks.into_iter().chain([words("prlimit --as=402653184")]) {
        let node = stage.daemon(&through)?;
        let early = serves(&node, Some(SOMEBODY))?;
        let crowd = [stage.attack(&node, "crowd", ATTACK)?, stage.attack(&node, "crowd", ATTACK)?];
        let began = Instant::now();
        let mut served = 0;
        while began.elapsed() < Duration::from_secs(4) {
            drop((serves(&node, Some(SOMEBODY))?, serves(&node, None)?));
            served += 1;
        }
        eprintln!("{through:?}: {served} newcomers each");
        drop((crowd, early));
        let log = node.stop()?;
        ensure!(log.lines().count() < LINES, "a long log:\n{log}");
    }
    Ok(())
}

#[test]
fn long_lists_do_not_keep_engines_busy() -> Result<()> {
    others_keep_their_rate("lists", "spin", "")
}

/// Registering what is large takes the kernel seconds, in which it locks what threads of a process
/// share.
#[test]
fn large_registrations_do_not_stop_other_users() -> Result<()> {
    /// What one registration takes, and as much again for the test.
    const NEEDED_KIB: u64 = 8 << 20;
    let available = available_kib()?;
    if available < NEEDED_KIB {
        let few = format!("{available} KiB of memory are available, {NEEDED_KIB} are needed");
        skip("large_registrations", &few);
        return Ok(());
    }
    // Twice as much: what the attacker of the round before had may not be given back yet.
    let limits = "[quota]\nshared-bytes = 17179869184\n[total]\nshared-bytes = 25769803776\n";
    others_keep_their_rate("giant", "populate", limits)
}

fn available_kib() -> Result<u64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.context("no MemAvailable in /proc/meminfo")
}

/// Beside a user who attacks without a pause, root's programs keep most of the rate that they have
/// beside a program that costs the machine as much without the daemon. The kernel divides CPUs
/// between processes: the tenant has one, the attacker and its engine process have the other one,
/// which is never idle.
///
/// A run of the ordinary form makes one of the attacks.
fn others_keep_their_rate(kind: &str, without: &str, config: &str) -> Result<()> {
    /// Least share of the rate.
    const KEPT: f64 = 0.7;
    if !choice::has_turn(&["lists", "giant"], &kind) {
        return Ok(());
    }
    let Some(stage) = Stage::open(kind)? else { return Ok(()) };
    let mut node = stage.configured(&cpus::engine_on_the_tenants(), config)?;
    cpus::daemon_on_the_attackers(&node)?;
    let first = serves(&node, Some(User::NOBODY))?;
    node.host.cpu = cpu_of(0);
    let node = node;
    judge(kind, |_| {
        let share = beside(&stage, &node, kind, without).with_context(|| node.daemon.log())?;
        Ok(share.at_least(KEPT))
    })?;
    drop(first);
    node.stop()?;
    Ok(())
}

/// The share of its rate that a user keeps beside an attacker, compared with that beside a program
/// `without` the daemon.
fn beside(stage: &Stage, node: &Node, kind: &str, without: &str) -> Result<Share> {
    let stream = RefCell::new(Stream::start(node, node, &[])?);
    let there = |kind: &str| stage.command(node, kind, ATTACK).on_cpu(cpu_of(1));
    let _filler = there("spin").through(&words("nice -n 19")).start()?;
    let rate = || -> Result<f64> {
        let mut stream = stream.borrow_mut();
        stream.work(0.6)?;
        stream.rate(1.4)
    };
    let calm = || {
        let _without = there(without).start()?;
        rate()
    };
    let disturbed = || {
        let _attacker = got(there(kind).start()?, node)?;
        rate()
    };
    let share = share_left(3, MOST_LEFT, calm, disturbed)?;
    stream.into_inner().end()?;
    Ok(share)
}

#[test]
fn reading_a_clients_mappings_takes_no_memory_of_the_daemon() -> Result<()> {
    const SLACK_KIB: u64 = 8 * 1024;
    let Some(stage) = Stage::open("the_map_of_a_client")? else { return Ok(()) };
    let node = stage.daemon(&[])?;
    drop((serves(&node, Some(User::NOBODY))?, serves(&node, Some(SOMEBODY))?));
    let before = Census::at_rest(&node, SOON)?.resident_kib;
    let mut attacker = stage.attack(&node, "maps", 4.0)?;
    let mut most = before;
    while attacker.try_status()?.is_none() {
        most = most.max(Census::of(&node)?.resident_kib);
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = attacker.wait()?;
    ensure!(output.success() && !output.stdout.contains("did 0 "), "no attack was made: {output}");
    eprintln!("the daemon grew by {} KiB: {}", most - before, output.stdout.trim());
    ensure!(most < before + SLACK_KIB, "from {before} to {most} KiB");
    node.stop()?;
    Ok(())
}
