//! What a person installs: the archive on this machine, the Debian package in a fresh Debian 12
//! that its own systemd has booted.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::debian;
use system_tests::dist::{DIST_ENV, Dist, cargo};
use system_tests::lab::{Lab, Need};
use system_tests::netns::Netns;
use system_tests::paths::{self, Scratch};
use system_tests::process::{Cmd, Running, User, wait_until};

/// Makes both packages and returns the one whose name ends so.
fn package(scratch: &Scratch, end: &str) -> Result<PathBuf> {
    let made = cargo().args(["xtask", "package", "--out"]).arg(scratch.path());
    made.env(DIST_ENV, Dist::get()?.root()).limit(Duration::from_secs(900)).check()?;
    found(scratch, end)
}

/// The package in a folder whose name ends so.
fn found(scratch: &Scratch, end: &str) -> Result<PathBuf> {
    let files = fs::read_dir(scratch.path())?.flatten().map(|entry| entry.path());
    let found = files.into_iter().find(|path| path.to_string_lossy().ends_with(end));
    found.with_context(|| format!("no package {end} was made"))
}

/// A pingpong whose both ends an ordinary user starts with `rnic run`.
fn pingpong(rnic: &str) -> String {
    format!(
        "{rnic} run -- ibv_rc_pingpong -c -g 0 -n 100 > server.log 2>&1 & server=$!
         for try in 1 2 3 4 5 6 7 8 9 10; do
             sleep 0.3
             if {rnic} run -- ibv_rc_pingpong -c -g 0 -n 100 127.0.0.1; then break; fi
         done
         wait $server && cat server.log && grep -q '100 iters' server.log"
    )
}

#[test]
fn the_archive_is_unpacked_anywhere_and_runs_programs() -> Result<()> {
    let test = "the_archive_is_unpacked_anywhere_and_runs_programs";
    let programs = ["ibv_rc_pingpong", "xz", "strip", "readelf"];
    let Some(_lab) = Lab::open_long(test, Need::Root, &programs)? else { return Ok(()) };
    let (made, place) = (Scratch::new("package")?, paths::public("archive")?);
    let archive = package(&made, ".tar.xz")?;
    let unpack = Cmd::new("tar").arg("-xf").arg(&archive).args(["--strip-components=1", "-C"]);
    unpack.arg(&place).check()?;
    let home = Scratch::new("archive-home")?;
    let script = pingpong(&place.join("bin/rnic").display().to_string());
    let shell = Cmd::new("sh").args(["-c", &script]).dir(home.path()).as_user(Some(User::NOBODY));
    shell.env("XDG_RUNTIME_DIR", "").limit(Duration::from_secs(30)).check()?;
    Ok(())
}

/// Nothing of the time, the machine's names or an order of files is in them.
#[test]
fn packages_that_are_made_twice_are_the_same() -> Result<()> {
    let test = "packages_that_are_made_twice_are_the_same";
    let programs = ["dpkg-deb", "xz", "strip", "readelf"];
    let Some(_lab) = Lab::open_long(test, Need::Root, &programs)? else { return Ok(()) };
    let places = [Scratch::new("package")?, Scratch::new("package")?];
    let firsts = [package(&places[0], ".deb")?, found(&places[0], ".tar.xz")?];
    let seconds = [package(&places[1], ".deb")?, found(&places[1], ".tar.xz")?];
    for (first, second) in firsts.iter().zip(&seconds) {
        ensure!(fs::read(first)? == fs::read(second)?, "{first:?} and {second:?} differ");
    }
    Ok(())
}

/// A booted Debian with an interface `eth1`. What is written to its disk is gone at its end.
struct System {
    _running: Running,
    init: u32,
    _netns: Netns,
}

impl System {
    fn boot(root: &Path, packages: &Path) -> Result<Self> {
        let netns = Netns::new("system")?;
        for line in [
            "link add eth1 mtu 4200 type veth peer name other mtu 4200",
            "link set eth1 up",
            "link set other up",
            "addr add 10.7.0.1/24 dev eth1",
        ] {
            netns.ip(&line.split(' ').collect::<Vec<_>>())?;
        }
        let running = Cmd::new("systemd-nspawn")
            .args(["--quiet", "--volatile=overlay", "--register=no", "--keep-unit", "--boot"])
            .arg(format!("--network-namespace-path=/run/netns/{}", netns.name()))
            .args(["--machine=rnic-test", "--console=pipe"])
            .arg(format!("--bind-ro={}:/packages", packages.display()))
            .arg(format!("--directory={}", root.display()))
            .limit(Duration::from_secs(300))
            .start()?;
        let mut init = 0;
        wait_until("a system that boots", Duration::from_secs(60), || {
            let children =
                fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid()));
            let first = children.unwrap_or_default();
            let Some(pid) = first.split_whitespace().next() else { return Ok(false) };
            init = pid.parse()?;
            let up = inside(init, "systemctl is-system-running --wait").run()?;
            Ok(["running", "degraded"].contains(&up.stdout.trim()))
        })
        .with_context(|| format!("{}\n{}", running.stdout(), running.stderr()))?;
        Ok(Self { _running: running, init, _netns: netns })
    }

    /// Runs a script as root, and returns its output.
    fn run(&self, script: &str) -> Result<String> {
        inside(self.init, script).check()
    }

    /// Runs a script as the ordinary user `user`.
    fn run_as_user(&self, script: &str) -> Result<String> {
        let quoted = script.replace('\'', "'\\''");
        self.run(&format!("su - user -c '{quoted}'"))
    }
}

fn inside(init: u32, script: &str) -> Cmd {
    let enter = Cmd::new("nsenter").args(["-t", &init.to_string(), "-m", "-p", "-n", "-u", "-i"]);
    enter.args(["sh", "-c", script]).limit(Duration::from_secs(60))
}

#[test]
fn a_fresh_debian_installs_upgrades_and_removes_it() -> Result<()> {
    let test = "a_fresh_debian_installs_upgrades_and_removes_it";
    let programs =
        ["dpkg-deb", "debootstrap", "systemd-nspawn", "lintian", "strip", "readelf", "xz"];
    let Some(_lab) = Lab::open_long(test, Need::Root, &programs)? else { return Ok(()) };
    let scratch = Scratch::new("package")?;
    let deb = package(&scratch, ".deb")?;
    let complaints = Cmd::new("lintian").arg("--allow-root").arg(&deb).check()?;
    ensure!(complaints.trim().is_empty(), "lintian: {complaints}");

    let system = System::boot(&debian::root()?, scratch.path())?;
    system.run("useradd -m user && dpkg -i /packages/*.deb")?;
    system.run_as_user(&pingpong("rnic")).context("with a private daemon")?;

    system.run("systemctl start rnicd@eth1").context("the service")?;
    let devices = system.run_as_user("rnic devices")?;
    ensure!(devices.contains("rnic_eth1"), "{devices}");
    system.run_as_user(&pingpong("rnic")).context("with the service")?;
    let journal = system.run("journalctl -u rnicd@eth1 -p warning --no-pager -o cat")?;
    ensure!(!journal.contains("INFO"), "the journal does not know levels:\n{journal}");

    system.run("systemctl reload rnicd@eth1 && systemctl is-active rnicd@eth1")?;

    let process = "systemctl show -p MainPID --value rnicd@eth1";
    let before = system.run(process)?;
    system.run("dpkg -i /packages/*.deb")?;
    let after = system.run(process)?;
    ensure!(before != after && after.trim() != "0", "not restarted: {before} {after}");
    system.run_as_user("rnic run -- ibv_devinfo").context("after the upgrade")?;

    system.run("dpkg -P soft-rnic")?;
    let left = system.run("pgrep rnicd; find / -xdev -name '*rnic*' -not -path '/proc/*'; true")?;
    let left: Vec<_> = left.lines().filter(|line| !line.contains("/var/lib/dpkg")).collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}
