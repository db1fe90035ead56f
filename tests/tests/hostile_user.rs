//! Users of one machine against each other: sockets, objects and memory of another user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::fs::XattrFlags;
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::daemon::{Io, Spec};
use system_tests::inspect::ask;
use system_tests::native::{self, VICTIM, WATCH};
use system_tests::place::{Node, Place};
use system_tests::process::{Output, User, wait_until};

/// How long an operation may take that must not wait for a stalled engine.
const SOON: Duration = Duration::from_secs(2);

struct Stage(Commons);

impl Stage {
    fn open(test: &str) -> Result<Option<Self>> {
        let helpers: [Helper; 2] = [(VICTIM, native::victim), (WATCH, native::watch)];
        Ok(Commons::open(test, &["ibv_devices"], &helpers)?.map(Self))
    }

    fn daemon(&self, user: Option<User>, extra: &[&str]) -> Result<Node> {
        let extra = extra.iter().map(|arg| (*arg).to_owned()).collect();
        self.0.node(&Spec { user, extra, ..Spec::new(Io::Loopback) })
    }

    /// A client execs this program while a peer writes into its memory.
    fn becomes(&self, program: &Path) -> Result<Output> {
        let node = self.daemon(None, &[])?;
        let program = program.to_str().expect("a name of ours");
        let args = ["-d", "rnic0", "exploit", program];
        let output = run_as(&node, Some(User::NOBODY), VICTIM, &args)?;
        ensure!(output.stdout.contains("the page is intact"), "{output}");
        ensure!(
            output.stdout.contains("the peer's write: REM_"),
            "the peer must be told: {output}"
        );
        node.stop()?;
        Ok(output)
    }

    /// A copy of [`WATCH`] that may use raw sockets whichever user starts it.
    fn program_with_capabilities(&self) -> Result<PathBuf> {
        let path = self.0.scratch.join("watch-with-capabilities");
        fs::copy(self.0.scratch.join(WATCH), &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        // Revision 2 (`linux/capability.h`), effective: CAP_NET_RAW is permitted, nothing is
        // inheritable.
        let words = [0x0200_0001u32, 1 << 13, 0, 0, 0];
        let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        rustix::fs::setxattr(&path, "security.capability", &value, XattrFlags::empty())?;
        Ok(path)
    }

    /// A copy of [`WATCH`] that runs as root whichever user starts it.
    fn program_of_roots(&self) -> Result<PathBuf> {
        let path = self.0.scratch.join("watch-as-root");
        fs::copy(self.0.scratch.join(WATCH), &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755))?;
        Ok(path)
    }
}

/// A command line of a user beside a daemon.
fn run_as(node: &Node, user: Option<User>, program: &str, args: &[&str]) -> Result<Output> {
    node.cmd(program)?.args(args).as_user(user).limit(Duration::from_secs(30)).run()
}

#[test]
fn the_socket_of_another_user_is_closed() -> Result<()> {
    let Some(stage) = Stage::open("the_socket_of_another_user")? else { return Ok(()) };
    for (owner, extra) in [(Some(SOMEBODY), &[][..]), (None, &["--mode", "0600"][..])] {
        let node = stage.daemon(owner, extra)?;
        let own = run_as(&node, owner, "ibv_devices", &[])?;
        ensure!(own.stdout.contains("rnic0"), "its owner must reach it: {own}");
        let other = run_as(&node, Some(User::NOBODY), "ibv_devices", &[])?;
        ensure!(!other.stdout.contains("rnic0"), "another user must not: {other}");
        node.stop()?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_may_not_reach_a_clients_memory_says_so() -> Result<()> {
    let Some(stage) = Stage::open("a_daemon_that_may_not_reach")? else { return Ok(()) };
    // The socket is open to all users, but this daemon has no right to their memory.
    let node = stage.daemon(Some(SOMEBODY), &["--mode", "0666"])?;
    let output = run_as(&node, Some(User::NOBODY), VICTIM, &["-d", "rnic0", "fork"])?;
    ensure!(
        !output.success() && output.stderr.contains("ibv_reg_mr: Operation not permitted"),
        "{output}"
    );
    node.stop()?;
    Ok(())
}

#[test]
fn users_of_one_daemon_do_not_see_each_others_objects() -> Result<()> {
    let Some(stage) = Stage::open("users_of_one_daemon")? else { return Ok(()) };
    let node = stage.daemon(None, &[])?;
    let mut holder = node.cmd(VICTIM)?.args(["-d", node.device(), "hold", "2"]).start()?;
    wait_until("holder", Duration::from_secs(10), || {
        ensure!(holder.try_status()?.is_none(), "the holder failed: {}", holder.stderr());
        Ok(holder.stdout().contains("ready"))
    })?;
    for what in ["qp", "mr", "cq"] {
        let seen = ask(&node, what)?;
        ensure!(
            seen.as_array().is_some_and(|list| !list.is_empty()),
            "root sees no {what}: {seen}"
        );
        let text = node.rnic(&[what, "--json"]).as_user(Some(User::NOBODY)).check()?;
        // Keys, QP numbers and PSNs would be enough to write into a user's memory.
        ensure!(text.trim() == "[]", "another user sees root's {what}: {text}");
    }
    drop(holder);
    node.stop()?;
    Ok(())
}

#[test]
fn only_the_owner_captures_traffic_and_injects_faults() -> Result<()> {
    let Some(stage) = Stage::open("only_the_owner_captures")? else { return Ok(()) };
    let node = stage.daemon(None, &[])?;
    let capture = stage.0.scratch.join("stolen.pcapng");
    let capture = capture.to_str().expect("a name of ours");
    let commands = [
        &["fault", "add", "drop=1"][..],
        &["fault", "list"],
        &["fault", "clear"],
        &["fault", "remove", "1"],
        &["capture", "-w", capture],
        &["trace", "-w", capture],
        &["watch", "--picture", capture],
        &["watch", "--web", "127.0.0.1:0"],
    ];
    for args in commands {
        let cmd = node.rnic(args).as_user(Some(User::NOBODY));
        let output = cmd.limit(Duration::from_secs(5)).run()?;
        ensure!(!output.success() && output.stderr.contains("only root"), "{output}");
    }
    node.stop()?;
    Ok(())
}

/// A client may become a setuid-root program while the daemon still has its session. The kernel
/// allows writes to the process with that number if the daemon's own rights allow them.
#[test]
fn a_client_that_becomes_root_is_not_written_to() -> Result<()> {
    let Some(stage) = Stage::open("a_client_that_becomes_root")? else { return Ok(()) };
    let program = stage.program_of_roots()?;
    let output = stage.becomes(&program)?;
    ensure!(output.stdout.contains("watching as user 0"), "not root's: {output}");
    Ok(())
}

#[test]
fn a_client_that_gets_file_capabilities_is_not_written_to() -> Result<()> {
    let Some(stage) = Stage::open("a_client_that_gets_file_capabilities")? else { return Ok(()) };
    let program = stage.program_with_capabilities()?;
    let output = stage.becomes(&program)?;
    ensure!(output.stdout.contains("watching as user 65534 with capabilities 2000"), "{output}");
    Ok(())
}

#[test]
fn a_reused_process_id_is_not_the_client() -> Result<()> {
    let Some(stage) = Stage::open("a_process_id_that_comes_again")? else { return Ok(()) };
    let node = stage.daemon(None, &[])?;
    let output = run_as(&node, None, VICTIM, &["-d", "rnic0", "reborn"])?;
    ensure!(
        output.success() && output.stdout.contains("unrelated process's page intact"),
        "{output}"
    );
    node.stop()?;
    Ok(())
}

/// An engine waits for memory that is slow to appear. Other users are served meanwhile, except that
/// their packets wait when that engine owns the wire.
#[test]
fn an_engine_that_waits_for_memory_does_not_delay_other_users() -> Result<()> {
    let Some(stage) = Stage::open("an_engine_that_memory_keeps")? else { return Ok(()) };
    let node = stage.daemon(None, &[])?;
    let mut stall = node.cmd(VICTIM)?.args(["-d", node.device(), "stall"]).start()?;
    wait_until("engine that waits", Duration::from_secs(10), || {
        ensure!(stall.try_status()?.is_none(), "it does not stall: {}", stall.stderr());
        Ok(stall.stdout().contains("waits"))
    })?;
    let took = |what, act: &dyn Fn() -> Result<()>| -> Result<()> {
        let began = Instant::now();
        act()?;
        eprintln!("{what}: {:.3} s", began.elapsed().as_secs_f64());
        ensure!(began.elapsed() < SOON, "{what} took {:?}", began.elapsed());
        Ok(())
    };
    took("opening the device as another user", &|| {
        let opened = run_as(&node, Some(User::NOBODY), "ibv_devinfo", &["-d", "rnic0"])?;
        ensure!(opened.success(), "{opened}");
        Ok(())
    })?;
    took("rnic status", &|| ask(&node, "status").map(drop))?;
    let began = Instant::now();
    node.stop()?;
    eprintln!("SIGTERM to end: {:.3} s", began.elapsed().as_secs_f64());
    ensure!(began.elapsed() < SOON, "the daemon took {:?} to end", began.elapsed());
    Ok(())
}
