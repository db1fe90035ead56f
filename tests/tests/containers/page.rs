//! The commands of docs/containers.md that need neither Docker nor Kubernetes, as they are there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use system_tests::commons::Commons;
use system_tests::native::SANDBOX;
use system_tests::netns::{End, NetPair, Netns};
use system_tests::paths::{self, Scratch};
use system_tests::place::{Host, Place};
use system_tests::process::{Cmd, User, wait_until};

use super::{HELPERS, SOON};

/// The commands of a section's block that begins with some text, without prompts.
fn commands(section: &str, beginning: &str) -> Result<Vec<String>> {
    let page = fs::read_to_string(paths::repository().join("docs/containers.md"))?;
    let (_, rest) = page.split_once(&format!("## {section}\n")).context("no such section")?;
    let rest = rest.split("\n## ").next().unwrap_or_default();
    let mut blocks = rest.split("```console\n").skip(1);
    let begins = |block: &&str| block.strip_prefix("$ ").is_some_and(|b| b.starts_with(beginning));
    let block = blocks.find(begins).with_context(|| format!("no block with {beginning}"))?;
    let block = block.split("```").next().unwrap_or_default();
    Ok(block.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect())
}

/// Where daemons of this user have their sockets.
const RUNTIME: &str = "run";

/// A container's or a job's folder, with what only its user may enter.
fn home() -> Result<Scratch> {
    let folder = Scratch::new("container")?;
    let make = Cmd::new("mkdir").args(["-m", "0700", RUNTIME]).dir(folder.path());
    make.as_user(Some(User::NOBODY)).check()?;
    Ok(folder)
}

/// A shell of an ordinary user that finds the installation, in a folder of its own.
fn shell(commons: &Commons, folder: &Path, script: &str) -> Cmd {
    let bin = commons.dist.bin("rnic");
    let bin = bin.parent().unwrap_or(folder).display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let shell = Cmd::new("sh").args(["-ec", script]).env("PATH", format!("{bin}:{path}"));
    let shell =
        shell.env("XDG_RUNTIME_DIR", folder.join(RUNTIME)).without_env("RNIC_SOCKET").dir(folder);
    shell.as_user(Some(User::NOBODY))
}

#[test]
fn a_daemon_in_each_container_as_the_page_says() -> Result<()> {
    let name = "a_daemon_in_each_container_as_the_page_says";
    let Some(commons) = Commons::open(name, &["ib_write_bw"], &HELPERS)? else { return Ok(()) };
    let block = commands("A daemon in the container", "rnicd")?;
    let [daemon, program] = &block[..] else { anyhow::bail!("{block:?}") };
    let daemon = daemon.strip_suffix(" &").context("the daemon goes on")?;
    let net = NetPair::new(1500)?;
    let sandbox = [commons.scratch.join(SANDBOX).display().to_string(), "-c".to_owned()];
    let folders = [home()?, home()?];
    let ends = [(&net.left, &folders[0]), (&net.right, &folders[1])];
    let run = |(end, folder): (&End, &Scratch), script: &str| {
        let shell = shell(&commons, folder.path(), script).through(&sandbox);
        shell.in_netns(Some(end.netns.name()))
    };
    let mut daemons = Vec::new();
    for end in ends {
        let running = run(end, &format!("exec {daemon}")).limit(Duration::from_secs(60)).start()?;
        let socket = end.1.path().join(RUNTIME).join("rnicd.sock");
        wait_until("a daemon", SOON, || Ok(socket.exists())).with_context(|| running.stderr())?;
        daemons.push(running);
    }
    let serving = run(ends[0], program).start()?;
    let host = Host::at_end(&net.left, &commons.lab.tools);
    wait_until("a server", SOON, || host.listens(18515)).with_context(|| serving.stderr())?;
    let called = run(ends[1], &format!("{program} {}", net.left.ipv4)).run()?;
    let served = serving.wait()?;
    ensure!(called.success() && served.success(), "{called}\n{served}");
    for daemon in daemons {
        let ended = daemon.terminate(SOON)?;
        ensure!(ended.success(), "{ended}");
    }
    Ok(())
}

#[test]
fn a_job_unpacks_the_archive_as_the_page_says() -> Result<()> {
    let name = "a_job_unpacks_the_archive_as_the_page_says";
    let Some(commons) = Commons::open(name, &["ibv_devinfo"], &[])? else { return Ok(()) };
    let folder = home()?;
    let home = "--transform=s,^dist,soft-rnic-0.1.0-x86_64,";
    let tree = commons.dist.root().parent().context("a folder")?;
    let pack = Cmd::new("tar").arg("-cf").arg(folder.join("soft-rnic-0.1.0-x86_64.tar.xz"));
    pack.arg("-C").arg(tree).args([home, "dist"]).check()?;
    let tests = folder.join("my-rdma-tests");
    fs::write(&tests, "#!/bin/sh\nexec ibv_devinfo\n")?;
    fs::set_permissions(&tests, fs::Permissions::from_mode(0o755))?;
    let block = commands("CI jobs", "tar -xf")?;
    let shell = shell(&commons, folder.path(), &block.join("\n"));
    // Its private daemon has 127.0.0.1, where another one may be at work.
    let netns = Netns::new("job")?;
    let said = shell.in_netns(Some(netns.name())).run()?;
    let daemon = Cmd::new("ip").args(["netns", "pids", netns.name()]).check()?;
    for pid in daemon.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)) {
        match kill_process(pid, Signal::TERM) {
            // It has ended by itself.
            Err(Errno::SRCH) => {}
            killed => killed?,
        }
    }
    ensure!(said.success() && said.stdout.contains("PORT_ACTIVE"), "{said}");
    Ok(())
}
