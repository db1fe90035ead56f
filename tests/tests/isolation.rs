//! What users can have that makes them different from each other's other processes: control groups,
//! namespaces, file systems of their own. Whatever becomes of one user, others are served, and the
//! daemon can end.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use system_tests::checker::{self, Stream};
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::daemon::{Io, Spec};
use system_tests::fuse::Silence;
use system_tests::inspect::{Census, ask, engine_process};
use system_tests::lab::{own_loopback, skip};
use system_tests::native::{self, VICTIM};
use system_tests::paths::Scratch;
use system_tests::place::{Node, Place};
use system_tests::process::{Cmd, Running, User, wait_until};

/// How long an operation may take that must not wait for another user.
const SOON: Duration = Duration::from_secs(2);
/// The daemon waits so long for an engine process that does not answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// A daemon that waited for the user would never end.
const END: Duration = Duration::from_secs(10);
/// When an operation has failed.
const AWAY: Duration = Duration::from_secs(20);

struct Stage {
    commons: Commons,
    node: Node,
}

impl Stage {
    fn open(test: &str) -> Result<Option<Self>> {
        let helpers: [Helper; 2] = [(VICTIM, native::victim), (checker::PROGRAM, checker::build)];
        let Some(commons) = Commons::open(test, &["ibv_devinfo"], &helpers)? else {
            return Ok(None);
        };
        let addresses = vec![own_loopback()];
        let node = commons.node(&Spec { addresses, ..Spec::new(Io::Udp) })?;
        Ok(Some(Self { commons, node }))
    }

    fn start(&self, user: User, program: &str, args: &[&str]) -> Result<Running> {
        let cmd = self.node.cmd(program)?.args(["-d", self.node.device()]).args(args);
        cmd.as_user(Some(user)).limit(Duration::from_secs(60)).start()
    }

    /// All that root may ask the daemon names an engine process that does not answer, which is
    /// waited for once.
    fn is_named(&self, silent: u32) -> Result<()> {
        let line = format!("engine process {silent} of user {}", User::NOBODY.uid);
        for what in ["status", "qp", "mr", "cq", "counters"] {
            soon(what, ANSWER_PATIENCE, || {
                let output = self.node.rnic(&[what]).limit(AWAY).run()?;
                ensure!(output.success(), "{output}");
                let said = [&output.stdout, &output.stderr];
                ensure!(said.iter().any(|text| text.contains(&line)), "no {line:?}: {output}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Another user opens the device, and the daemon ends, both soon.
    fn others_are_served_and_the_daemon_ends(self) -> Result<()> {
        soon("ibv_devinfo", SOON, || {
            let opened = self.start(SOMEBODY, "ibv_devinfo", &[])?.wait()?;
            ensure!(opened.success(), "{opened}");
            Ok(())
        })?;
        let began = Instant::now();
        self.node.stop()?;
        ensure!(began.elapsed() < END, "the daemon took {:?} to end", began.elapsed());
        Ok(())
    }
}

/// One of some tries takes less than this: other work of the machine delays some of them, but what
/// waits takes that long each time.
fn soon(what: &str, limit: Duration, mut act: impl FnMut() -> Result<()>) -> Result<()> {
    let mut all = Vec::new();
    for _ in 0..10 {
        let began = Instant::now();
        act()?;
        let took = began.elapsed();
        if took < limit {
            return Ok(());
        }
        all.push(took);
    }
    bail!("{what} takes {all:?}")
}

/// A control group whose processes the kernel stops; they go on when it is dropped.
struct Freezer {
    folder: PathBuf,
    /// The file, and what stops and continues them.
    switch: (&'static str, [&'static str; 2]),
}

impl Freezer {
    /// Of either version of control groups.
    fn new() -> Option<Self> {
        let name = format!("rnic-test-frozen-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup/freezer", ("freezer.state", ["FROZEN", "THAWED"])),
            ("/sys/fs/cgroup", ("cgroup.freeze", ["1", "0"])),
            ("/sys/fs/cgroup/unified", ("cgroup.freeze", ["1", "0"])),
        ];
        kinds.into_iter().find_map(|(mount, switch)| {
            let folder = PathBuf::from(mount).join(&name);
            fs::create_dir(&folder).ok()?;
            let freezer = Self { folder, switch };
            freezer.folder.join(switch.0).exists().then_some(freezer)
        })
    }

    fn freeze(&self, pid: u32) -> Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string())?;
        fs::write(self.folder.join(self.switch.0), self.switch.1[0])?;
        Ok(())
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join(self.switch.0), self.switch.1[1]);
        // They were killed, and end now.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_frozen_engine_process_is_its_users_trouble_alone() -> Result<()> {
    let Some(stage) = Stage::open("a_frozen_engine_process")? else { return Ok(()) };
    let Some(freezer) = Freezer::new() else {
        skip("a_frozen_engine_process", "no control group can be made that freezes");
        return Ok(());
    };
    let holder = stage.start(User::NOBODY, VICTIM, &["hold", "2"])?;
    wait_until("holder", AWAY, || Ok(holder.stdout().contains("ready")))?;
    let frozen = engine_process(&stage.node, User::NOBODY)?;
    freezer.freeze(frozen)?;
    stage.is_named(frozen)?;
    stage.others_are_served_and_the_daemon_ends()
}

/// A page fault that a FUSE server does not answer keeps the process that has it even when that is
/// killed.
#[test]
fn a_file_system_that_never_answers_stops_its_own_user_only() -> Result<()> {
    let test = "a_file_system_that_never_answers";
    let Some(stage) = Stage::open(test)? else { return Ok(()) };
    let folder = stage.commons.scratch.join("silence");
    fs::create_dir(&folder)?;
    let silence = match Silence::mount(&folder) {
        Ok(silence) => silence,
        Err(error) => {
            skip(test, &format!("{error:#}"));
            return Ok(());
        }
    };
    let file = silence.file();
    let file = file.to_str().context("a name of ours")?;
    let sender = stage.start(User::NOBODY, VICTIM, &["stall", file])?;
    wait_until("engine that waits", Duration::from_secs(10), || Ok(silence.is_asked()))
        .with_context(|| sender.stderr())?;
    stage.others_are_served_and_the_daemon_ends()
}

/// Clients whose user and process ids are others than those by which the daemon knows them.
#[test]
fn clients_in_namespaces_of_their_own_are_who_they_are() -> Result<()> {
    let Some(mut stage) = Stage::open("clients_in_namespaces")? else { return Ok(()) };
    // Root of a user namespace, process 1 of a process namespace: an ordinary user all the same.
    let words = "unshare --user --map-root-user --pid --fork --kill-child";
    stage.node.host.user = Some(SOMEBODY);
    stage.node.host.through = words.split(' ').map(str::to_owned).collect();
    let before = Census::at_rest(&stage.node, AWAY)?;
    let mut stream = Stream::start(&stage.node, &stage.node, &[])?;
    stream.work(0.5)?;
    let status = ask(&stage.node, "status")?;
    let sessions = status["sessions"].as_array().context("no sessions")?;
    ensure!(
        sessions.iter().filter(|session| session["uid"] == SOMEBODY.uid).count() == 2,
        "{status}"
    );
    engine_process(&stage.node, SOMEBODY)?;
    // Killed with its namespace.
    drop(stream);
    before.returns(&stage.node, AWAY)?;
    stage.node.stop()?;
    Ok(())
}

/// A daemon and programs of a user in a process namespace, from start to end.
const INSIDE: &str = r#"
    "$RNICD" --io loopback --device rnic0 --socket "$RNIC_SOCKET" & daemon=$!
    until [ -S "$RNIC_SOCKET" ]; do sleep 0.05; done
    user="setpriv --reuid=65534 --regid=65534 --clear-groups"
    $user "$PINGPONG" -d rnic0 -g 0 -n 1000 & server=$!
    until $user "$PINGPONG" -d rnic0 -g 0 -n 1000 127.0.0.1; do sleep 0.1; done
    wait $server || exit
    kill $daemon && wait $daemon
"#;

/// As in a container. Where `/proc` is still the host's, the numbers are other processes' there.
#[test]
fn a_daemon_in_a_process_namespace_serves_the_users_in_it() -> Result<()> {
    let test = "a_daemon_in_a_process_namespace";
    let Some(commons) = Commons::open(test, &["ibv_rc_pingpong"], &[])? else { return Ok(()) };
    for options in [&["--pid", "--mount-proc"][..], &["--pid"]] {
        let scratch = Scratch::new("inside")?;
        let cmd = Cmd::new("unshare").args(options).args(["--fork", "--kill-child"]);
        let cmd = cmd.args(["sh", "-c", INSIDE]).env("RNIC_SOCKET", scratch.join("socket"));
        let cmd = cmd.env("RNICD", commons.dist.bin("rnicd"));
        let cmd = cmd.env("PINGPONG", commons.lab.tools.program("ibv_rc_pingpong")?);
        let output = cmd.env("LD_LIBRARY_PATH", commons.dist.lib()).limit(AWAY).run()?;
        ensure!(output.success(), "{options:?}: {output}");
        let served = format!("serves user {}", User::NOBODY.uid);
        ensure!(output.stderr.contains(&served), "{options:?}: {output}");
    }
    Ok(())
}
