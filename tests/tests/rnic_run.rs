//! `rnic run`: an ordinary user, no daemon, no configuration.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::packages::Toolbox;
use system_tests::paths::Scratch;
use system_tests::place::{Host, Place};
use system_tests::process::{Cmd, User, is_root, wait_until};
use system_tests::programs::next_port;

/// A user id that no other test uses.
const STRANGER: User = User { uid: 23_457, gid: 23_457 };

const PROGRAMS: [&str; 2] = ["ibv_rc_pingpong", "ibv_devices"];

/// An unprivileged user: `nobody` when we are root, else ourselves.
fn unprivileged() -> Option<User> {
    is_root().then_some(User::NOBODY)
}

/// A folder with an installation and with a user's own runtime folder.
fn new_home() -> Result<Scratch> {
    let home = Scratch::new("home")?;
    Dist::get()?.copy_to(&home.join("dist"))?;
    let runtime = home.join("runtime");
    DirBuilder::new().mode(0o700).create(&runtime)?;
    if let Some(User { uid, gid }) = unprivileged() {
        chown(&runtime, Some(uid), Some(gid))?;
    }
    Ok(home)
}

/// A command of the user whose home it is.
fn at_home(home: &Scratch, program: impl AsRef<OsStr>) -> Cmd {
    Cmd::new(program)
        .env("XDG_RUNTIME_DIR", home.join("runtime"))
        .env("HOME", home.path())
        .without_env("RNIC_SOCKET")
        .dir(home.path())
        .as_user(unprivileged())
}

/// `rnic` of that user.
fn rnic(home: &Scratch, args: &[&str]) -> Cmd {
    at_home(home, home.join("dist/bin/rnic")).args(args)
}

/// `rnic run -- PROGRAM` of that user.
fn rnic_run(home: &Scratch, tools: &Toolbox, program: &str) -> Result<Cmd> {
    let dirs = std::env::join_paths(tools.library_dirs())?;
    let cmd = rnic(home, &["run", "--"]).arg(tools.program(program)?);
    Ok(cmd.env("LD_LIBRARY_PATH", dirs))
}

/// What `rnic status` says.
fn status(rnic: Cmd) -> Result<Value> {
    let text = rnic.args(["status", "--json"]).check()?;
    serde_json::from_str(&text).context(text)
}

#[test]
fn two_programs_of_an_ordinary_user_talk_to_each_other() -> Result<()> {
    let name = "two_programs_of_an_ordinary_user_talk_to_each_other";
    let Some(lab) = Lab::open(name, Need::Nothing, &PROGRAMS)? else { return Ok(()) };
    let home = new_home()?;
    let host = Host::here(IpAddr::V4(Ipv4Addr::LOCALHOST), &lab.tools);
    let port = next_port();
    let line = ["-g", "0", "-c", "-n", "500", "-p", &port.to_string()];
    let pingpong = rnic_run(&home, &lab.tools, "ibv_rc_pingpong")?.args(line);
    let server = pingpong.start()?;
    wait_until("listening server", Duration::from_secs(10), || host.listens(port))
        .with_context(|| server.stderr())?;
    let client = pingpong.clone().arg("127.0.0.1").limit(Duration::from_secs(20)).run()?;
    ensure!(client.success(), "{client}\nserver: {}", server.stderr());
    let server = server.wait()?;
    ensure!(server.success(), "{server}");
    // The private daemon ends with its last client.
    wait_until("end of the private daemon", Duration::from_secs(10), || Ok(!daemon_runs_in(&home)))
}

#[test]
fn the_exit_status_is_the_programs() -> Result<()> {
    let name = "the_exit_status_is_the_programs";
    let Some(lab) = Lab::open(name, Need::Nothing, &PROGRAMS)? else { return Ok(()) };
    let home = new_home()?;
    let sh = rnic_run(&home, &lab.tools, "sh")?;
    let output = sh.args(["-c", "exit 7"]).run()?;
    ensure!(output.code() == 7, "{output}");
    let devices = rnic_run(&home, &lab.tools, "ibv_devices")?.check()?;
    ensure!(devices.contains("rnic0"), "no device:\n{devices}");
    Ok(())
}

#[test]
fn every_command_finds_the_daemon_that_rnic_run_started() -> Result<()> {
    let name = "every_command_finds_the_daemon_that_rnic_run_started";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let home = new_home()?;
    rnic(&home, &["run", "--", "true"]).check()?;
    let found = status(rnic(&home, &[]))?;
    let socket = found["socket"].as_str().context("no socket")?;
    ensure!(Path::new(socket).parent() == Some(&home.join("runtime")), "{found}");
    ensure!(found["private"] == true, "{found}");
    for args in [&["qp"][..], &["mr"], &["cq"], &["counters"]] {
        let output = rnic(&home, args).run()?;
        ensure!(output.success(), "{output}");
        let pid = format!("process {},", found["pid"]);
        ensure!(output.stderr.contains(&pid) && output.stderr.contains(socket), "{output}");
    }
    let devices = rnic(&home, &["devices"]).check()?;
    ensure!(devices.contains(socket), "{devices}");
    end(&found)
}

#[test]
fn a_named_socket_without_a_daemon_starts_none() -> Result<()> {
    let name = "a_named_socket_without_a_daemon_starts_none";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let home = new_home()?;
    let nothing = home.join("nothing");
    let run = rnic(&home, &["run", "--", "true"]).env("RNIC_SOCKET", &nothing).run()?;
    ensure!(!run.success(), "{run}");
    ensure!(run.stderr.contains("RNIC_SOCKET") && run.stderr.contains("nothing"), "{run}");
    ensure!(std::fs::read_dir(home.join("runtime"))?.next().is_none(), "something was started");
    Ok(())
}

/// Any user may make a folder of any name in `/tmp`.
#[test]
fn a_folder_that_another_user_took_is_not_used() -> Result<()> {
    let name = "a_folder_that_another_user_took_is_not_used";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let folder = |suffix| Folder(format!("/tmp/rnicd-{}{suffix}", STRANGER.uid).into());
    let (taken, own) = (folder(""), folder(".1"));
    std::fs::create_dir(&taken.0)?;
    let home = new_home()?;
    // The runtime folder is another user's too, as `sudo -E` leaves it.
    let rnic = |args: &[&str]| rnic(&home, args).as_user(Some(STRANGER));
    rnic(&["run", "--", "true"]).check()?;
    let found = status(rnic(&[]))?;
    let socket = found["socket"].as_str().context("no socket")?;
    ensure!(Path::new(socket).parent() == Some(&own.0), "{found}");
    end(&found)
}

/// A daemon in a pid namespace cannot serve processes outside it.
#[test]
fn pid_namespaces_that_share_a_runtime_folder_have_a_daemon_each() -> Result<()> {
    let name = "pid_namespaces_that_share_a_runtime_folder_have_a_daemon_each";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let home = new_home()?;
    // Both are root's.
    chown(home.join("runtime"), Some(0), Some(0))?;
    let script = "dist/bin/rnic run -- true && echo ready && sleep 60";
    let inside = ["--pid", "--fork", "--kill-child", "sh", "-c", script];
    let inside = at_home(&home, "unshare").args(inside).as_user(None).start()?;
    wait_until("the daemon inside", Duration::from_secs(20), || {
        Ok(inside.stdout().contains("ready"))
    })
    .with_context(|| inside.stderr())?;
    let run = rnic(&home, &["run", "--", "true"]).as_user(None).run()?;
    ensure!(run.success(), "{run}");
    let found = status(rnic(&home, &[]).as_user(None))?;
    drop(inside);
    end(&found)
}

/// Ends a private daemon that would otherwise wait some seconds more for a client.
fn end(status: &Value) -> Result<()> {
    let pid = status["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    Ok(kill_process(pid.context("no process")?, Signal::TERM)?)
}

/// Removed at the end of the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a process has a control socket under a folder: by the folder in its command line.
fn daemon_runs_in(home: &Scratch) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let needle = home.path().as_os_str().as_encoded_bytes();
    lines.any(|line| line.windows(needle.len()).any(|window| window == needle))
}
