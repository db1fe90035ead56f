//! `rnic run`: an ordinary user, no daemon, no configuration.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::packages::Toolbox;
use system_tests::paths::Scratch;
use system_tests::place::{Host, Place};
use system_tests::process::{Cmd, User, is_root, wait_until};

const PROGRAMS: [&str; 2] = ["ibv_rc_pingpong", "ibv_devices"];

/// Somebody without rights: nobody when we are root, else ourselves.
fn anybody() -> Option<User> {
    is_root().then_some(User::NOBODY)
}

/// `rnic run -- PROGRAM` of a user whose runtime folder and installation are in `home`.
fn rnic_run(home: &Scratch, tools: &Toolbox, program: &str) -> Result<Cmd> {
    let dist = Dist::get()?.copy_to(&home.join("dist"))?;
    let cmd = Cmd::new(dist.bin("rnic")).args(["run", "--"]).arg(tools.program(program)?);
    let dirs = std::env::join_paths(tools.library_dirs())?;
    Ok(cmd
        .env("XDG_RUNTIME_DIR", home.path())
        .env("HOME", home.path())
        .env("LD_LIBRARY_PATH", dirs)
        .without_env("RNIC_SOCKET")
        .dir(home.path())
        .as_user(anybody()))
}

#[test]
fn two_programs_of_an_ordinary_user_talk_to_each_other() -> Result<()> {
    let name = "two_programs_of_an_ordinary_user_talk_to_each_other";
    let Some(lab) = Lab::open(name, Need::Nothing, &PROGRAMS)? else { return Ok(()) };
    let home = Scratch::new("home")?;
    let host = Host::here(IpAddr::V4(Ipv4Addr::LOCALHOST), &lab.tools);
    let line = ["-g", "0", "-c", "-n", "500", "-p", "18999"];
    let pingpong = rnic_run(&home, &lab.tools, "ibv_rc_pingpong")?.args(line);
    let server = pingpong.start()?;
    wait_until("listening server", Duration::from_secs(10), || host.listens(18_999))
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
    let home = Scratch::new("home")?;
    let sh = rnic_run(&home, &lab.tools, "sh")?;
    let output = sh.args(["-c", "exit 7"]).run()?;
    ensure!(output.code() == 7, "{output}");
    let devices = rnic_run(&home, &lab.tools, "ibv_devices")?.check()?;
    ensure!(devices.contains("rnic0"), "no device:\n{devices}");
    Ok(())
}

/// Whether a process has a control socket under a folder: by the folder in its command line.
fn daemon_runs_in(home: &Scratch) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let needle = home.path().as_os_str().as_encoded_bytes();
    lines.any(|line| line.windows(needle.len()).any(|window| window == needle))
}
