//! Engine processes of users at a root daemon: what they have, and what is left of them.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::daemon::{Io, Spec};
use system_tests::inspect::{Census, engine_process};
use system_tests::lab::long_form;
use system_tests::native::{self, VICTIM};
use system_tests::place::{Node, Place};
use system_tests::process::{Output, Running, User, wait_until};

/// Visits of users in the ordinary form, and in the long one.
const VISITS: [u32; 2] = [100, 1000];
/// Different users: more than there are engine processes at a time.
const USERS: u32 = 40;

struct Stage {
    /// Programs and libraries, until the test ends.
    _commons: Commons,
    node: Node,
}

impl Stage {
    fn open(test: &str) -> Result<Option<Self>> {
        let helpers: [Helper; 1] = [(VICTIM, native::victim)];
        let Some(commons) = Commons::open(test, &["ibv_devinfo"], &helpers)? else {
            return Ok(None);
        };
        let node = commons.node(&Spec::new(Io::Loopback))?;
        Ok(Some(Self { _commons: commons, node }))
    }

    fn run(&self, user: User, program: &str, args: &[&str]) -> Result<Output> {
        let cmd = self.node.cmd(program)?.args(args).as_user(Some(user));
        cmd.limit(Duration::from_secs(30)).run()
    }

    /// A program of `user` with objects, until it is dropped.
    fn holder(&self, user: User) -> Result<Running> {
        let cmd = self.node.cmd(VICTIM)?.args(["-d", self.node.device(), "hold", "2"]);
        let mut holder = cmd.as_user(Some(user)).start()?;
        wait_until("holder", Duration::from_secs(10), || {
            ensure!(holder.try_status()?.is_none(), "the holder failed: {}", holder.stderr());
            Ok(holder.stdout().contains("ready"))
        })?;
        Ok(holder)
    }
}

/// CAP_KILL, SETGID, SETUID, NET_ADMIN, NET_RAW, IPC_LOCK, SYS_PTRACE and BPF.
const DAEMON_MAY: [u32; 8] = [5, 6, 7, 12, 13, 14, 19, 39];

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
}

#[test]
fn an_engine_process_has_its_users_rights_and_nothing_else() -> Result<()> {
    let Some(stage) = Stage::open("an_engine_process_has_its_users_rights")? else {
        return Ok(());
    };
    let holder = stage.holder(SOMEBODY)?;
    let pid = engine_process(&stage.node, SOMEBODY)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ids = SOMEBODY.uid.to_string();
    for name in ["Uid:", "Gid:"] {
        let all: Vec<_> = field(&status, name).split_whitespace().collect();
        ensure!(all.len() == 4 && all.iter().all(|id| *id == ids), "{name} {all:?}");
    }
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        ensure!(field(&status, name).trim_matches('0').is_empty(), "{status}");
    }
    ensure!(field(&status, "NoNewPrivs:") == "1", "{status}");
    let daemon = fs::read_to_string(format!("/proc/{}/status", stage.node.daemon.pid()))?;
    for name in ["CapPrm:", "CapEff:", "CapBnd:"] {
        let set = u64::from_str_radix(field(&daemon, name), 16)?;
        let more = DAEMON_MAY.iter().fold(set, |set, capability| set & !(1 << capability));
        ensure!(more == 0, "the daemon keeps {name} {more:#x}");
    }
    // What is not dumpable belongs to root in /proc.
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{pid}/mem"))?);
    ensure!(owner == 0, "it is dumpable");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    ensure!(core.is_some_and(|line| line.split_whitespace().nth(4) == Some("0")), "{core:?}");
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let number: u32 = entry.file_name().to_string_lossy().parse()?;
        let to = fs::read_link(entry.path())?.display().to_string();
        let own = to.starts_with("socket:") || to.starts_with("anon_inode:");
        let shared = to.starts_with("/memfd:rnic-");
        ensure!(own || shared || to == "/dev/null", "descriptor {number}: {to}");
    }
    // Nor has it the terminal of the daemon, whose keys do not reach it.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").context("no name in /proc/PID/stat")?.1;
    let fields: Vec<_> = fields.split(' ').collect();
    let (group, terminal) = (fields[2], fields[4]);
    ensure!(group == pid.to_string() && terminal == "0", "{stat}");
    drop(holder);
    stage.node.stop()?;
    Ok(())
}

#[test]
fn the_death_of_an_engine_process_ends_the_devices_of_its_user_only() -> Result<()> {
    let Some(stage) = Stage::open("the_death_of_an_engine_process")? else { return Ok(()) };
    let _other = stage.holder(User::NOBODY)?;
    let other = engine_process(&stage.node, User::NOBODY)?;
    let holder = stage.holder(SOMEBODY)?;
    let pid = engine_process(&stage.node, SOMEBODY)?;
    let target = rustix::process::Pid::from_raw(pid.cast_signed()).context("no process")?;
    rustix::process::kill_process(target, rustix::process::Signal::KILL)?;
    wait_until("line in the log", Duration::from_secs(5), || {
        Ok(stage.node.daemon.log().contains(&format!("engine process {pid} of user")))
    })?;
    drop(holder);
    // The next program starts it again.
    let again = stage.holder(SOMEBODY)?;
    ensure!(engine_process(&stage.node, SOMEBODY)? != pid, "it is the same process");
    ensure!(
        engine_process(&stage.node, User::NOBODY)? == other,
        "another user's process has changed"
    );
    drop(again);
    stage.node.stop()?;
    Ok(())
}

/// A user who kills its engine process again and again waits for the next one, alone.
#[test]
fn a_user_whose_engine_processes_die_waits_alone() -> Result<()> {
    let Some(stage) = Stage::open("a_user_whose_engine_processes_die")? else { return Ok(()) };
    let opens = |user| stage.run(user, "ibv_devinfo", &["-d", "rnic0"]);
    let mut killed = 0;
    wait_until("refusal", Duration::from_secs(20), || {
        if !opens(SOMEBODY)?.success() {
            // Only when it has been killed several times.
            return Ok(killed > 2 && stage.node.daemon.log().contains("starts it again in"));
        }
        let pid = engine_process(&stage.node, SOMEBODY)?;
        let target = rustix::process::Pid::from_raw(pid.cast_signed()).context("no process")?;
        rustix::process::kill_process(target, rustix::process::Signal::KILL)?;
        killed += 1;
        Ok(false)
    })
    .with_context(|| stage.node.daemon.log())?;
    let began = Instant::now();
    let other = opens(User::NOBODY)?;
    ensure!(other.success() && began.elapsed() < Duration::from_secs(2), "{other}");
    wait_until("device for the user", Duration::from_secs(3), || Ok(opens(SOMEBODY)?.success()))?;
    stage.node.stop()?;
    Ok(())
}

#[test]
fn users_come_and_go_and_leave_nothing_behind() -> Result<()> {
    let Some(stage) = Stage::open("users_come_and_go")? else { return Ok(()) };
    ensure!(stage.run(SOMEBODY, "ibv_devinfo", &["-d", "rnic0"])?.success());
    let before = Census::at_rest(&stage.node, Duration::from_secs(20))?;
    let visits = VISITS[usize::from(long_form())];
    let began = Instant::now();
    for visit in 0..visits {
        let id = 30_000 + visit % USERS;
        let user = User { uid: id, gid: id };
        if visit % 3 == 0 {
            // Killed at any moment, with everything it has.
            let holder = stage.holder(user)?;
            holder.signal(rustix::process::Signal::KILL)?;
        } else {
            let output = stage.run(user, "ibv_devinfo", &["-d", "rnic0"])?;
            ensure!(output.success(), "visit {visit}: {output}");
        }
    }
    let took = began.elapsed().as_secs_f64();
    eprintln!("{visits} visits of {USERS} users took {took:.1} s");
    before.returns(&stage.node, Duration::from_secs(30))?;
    stage.node.stop()?;
    Ok(())
}

/// Also when it cannot notice the daemon's end.
#[test]
fn an_engine_process_that_is_stopped_does_not_outlive_a_killed_daemon() -> Result<()> {
    let Some(stage) = Stage::open("an_engine_process_that_is_stopped")? else { return Ok(()) };
    let _holder = stage.holder(SOMEBODY)?;
    let pid = engine_process(&stage.node, SOMEBODY)?;
    let target = rustix::process::Pid::from_raw(pid.cast_signed()).context("no process")?;
    rustix::process::kill_process(target, rustix::process::Signal::STOP)?;
    stage.node.daemon.signal(rustix::process::Signal::KILL)?;
    let gone = wait_until("end of the engine process", Duration::from_secs(5), || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        Ok(status.is_empty() || field(&status, "State:").starts_with('Z'))
    });
    let _ = rustix::process::kill_process(target, rustix::process::Signal::KILL);
    gone
}

/// Memory that never appears keeps the engine process of its user, even from ending.
#[test]
fn memory_that_blocks_stops_its_own_user_only() -> Result<()> {
    let Some(stage) = Stage::open("memory_that_blocks")? else { return Ok(()) };
    let cmd = stage.node.cmd(VICTIM)?.args(["-d", stage.node.device(), "stall"]);
    let mut stall = cmd.env("STALL_AS", User::NOBODY.uid.to_string()).start()?;
    let waits = wait_until("engine that waits", Duration::from_secs(10), || {
        ensure!(stall.try_status()?.is_none(), "it does not stall: {}", stall.stderr());
        Ok(stall.stdout().contains("waits"))
    });
    waits.with_context(|| stage.node.daemon.log())?;
    let began = Instant::now();
    let _holder = stage.holder(SOMEBODY)?;
    ensure!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
    let began = Instant::now();
    stage.node.stop()?;
    ensure!(began.elapsed() < Duration::from_secs(2), "the end took {:?}", began.elapsed());
    Ok(())
}
