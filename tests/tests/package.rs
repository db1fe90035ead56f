//! What a person installs: the archive on this machine, the Debian package in a fresh Debian 12 or
//! 13 that its own systemd has booted. Built again it is the same, and it has a list of its parts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::debian::{self, Release};
use system_tests::dist::{DIST_ENV, Dist, RELEASE, cargo};
use system_tests::lab::{Lab, Need};
use system_tests::netns::Netns;
use system_tests::packages::Apt;
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

/// A program whose both ends an ordinary user starts with `rnic run`, and what its server prints.
fn both_ends(rnic: &str, server: &str, client: &str, said: &str) -> String {
    format!(
        "{rnic} run -- {server} > server.log 2>&1 & server=$!
         for try in $(seq 50); do
             sleep 0.2
             if {rnic} run -- {client}; then break; fi
         done
         wait $server && cat server.log && grep -q '{said}' server.log"
    )
}

fn pingpong(rnic: &str) -> String {
    let line = "ibv_rc_pingpong -c -g 0 -n 100";
    both_ends(rnic, line, &format!("{line} 127.0.0.1"), "100 iters")
}

/// The libraries that a program or library names.
fn needed(file: &Path) -> Result<Vec<String>> {
    let told = Cmd::new("readelf").args(["-d", "-W"]).arg(file).check()?;
    let name =
        |line: &str| Some(line.split_once("(NEEDED)")?.1.split(['[', ']']).nth(1)?.to_owned());
    Ok(told.lines().filter_map(name).collect())
}

/// Those of the C library and the compiler, and our own.
fn is_everywhere(library: &str) -> bool {
    ["libc.so.6", "libgcc_s.so.1", "libibverbs.so.1", "librdmacm.so.1"].contains(&library)
        || library.starts_with("ld-linux")
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
    for file in Dist::files() {
        let needed = needed(&place.join("lib/soft-rnic").join(file))?;
        ensure!(needed.iter().all(|library| is_everywhere(library)), "{file} needs {needed:?}");
    }
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

/// Also where the source is in another folder: nothing of that, the time or the machine is in them.
#[test]
fn programs_that_are_compiled_in_two_folders_are_the_same() -> Result<()> {
    let test = "programs_that_are_compiled_in_two_folders_are_the_same";
    let Some(_lab) = Lab::open_long(test, Need::Nothing, &[])? else { return Ok(()) };
    let scratch = Scratch::new("compiled-twice")?;
    let copy = scratch.join("elsewhere/soft-rnic");
    fs::create_dir_all(&copy)?;
    let pack = "git ls-files -z --cached --others --exclude-standard |
                tar --null --files-from=- --create | tar -x -C \"$0\"";
    Cmd::new("sh").args(["-c", pack]).arg(&copy).dir(paths::repository()).check()?;
    let here = Dist::build(RELEASE, &scratch.join("here"))?;
    let there = Dist::build_in(&copy, &copy.join("target"), RELEASE, &scratch.join("there"))?;
    for file in Dist::files() {
        let [first, second] = [&here, &there].map(|dist| fs::read(dist.root().join(file)));
        ensure!(first? == second?, "{file} differs");
    }
    Ok(())
}

/// Which version of CycloneDX's own library for Python has the schema.
const VALIDATOR: &str = "11.12.0";

/// A Python that has the library.
fn validator() -> Result<PathBuf> {
    let home = paths::cache("cyclonedx")?.join(VALIDATOR);
    let (python, fresh) = (home.join("bin/python"), home.with_extension("fresh"));
    if !home.is_dir() {
        Apt::system().install(&["python3-venv"])?;
        let _ = fs::remove_dir_all(&fresh);
        Cmd::new("/usr/bin/python3").args(["-m", "venv"]).arg(&fresh).check()?;
        let library = format!("cyclonedx-python-lib[json-validation]=={VALIDATOR}");
        let pip = Cmd::new(fresh.join("bin/python")).args(["-m", "pip", "install", "--quiet"]);
        pip.arg(library).limit(Duration::from_secs(300)).check()?;
        fs::rename(&fresh, &home)?;
    }
    Ok(python)
}

#[test]
fn the_list_of_crates_keeps_the_schema_of_cyclonedx() -> Result<()> {
    let test = "the_list_of_crates_keeps_the_schema_of_cyclonedx";
    let Some(_lab) = Lab::open_long(test, Need::Root, &[])? else { return Ok(()) };
    let (scratch, python) = (Scratch::new("sbom")?, validator()?);
    let list = cargo().args(["xtask", "sbom"]).limit(Duration::from_secs(900)).check()?;
    let validate = |list: &str| -> Result<_> {
        let file = scratch.join("sbom.json");
        fs::write(&file, list)?;
        let script = paths::repository().join("tests/scripts/check_sbom.py");
        Cmd::new(&python).arg(script).arg(file).run()
    };
    let said = validate(&list)?;
    ensure!(said.success() && said.stdout.contains("are as they should be"), "{said}");
    for (right, wrong) in
        [("\"SHA-256\"", "\"SHA-0\""), ("\"purl\"", "\"url\""), (" OR ", " or perhaps ")]
    {
        let said = validate(&list.replacen(right, wrong, 1))?;
        ensure!(said.code() == 1 && said.stderr.contains("sbom.json"), "{wrong}: {said}");
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
fn a_fresh_debian_12_installs_upgrades_and_removes_it() -> Result<()> {
    whole_life("a_fresh_debian_12_installs_upgrades_and_removes_it", Release::Bookworm)
}

#[test]
fn a_fresh_debian_13_installs_upgrades_and_removes_it() -> Result<()> {
    whole_life("a_fresh_debian_13_installs_upgrades_and_removes_it", Release::Trixie)
}

fn whole_life(test: &str, release: Release) -> Result<()> {
    let programs =
        ["dpkg-deb", "debootstrap", "systemd-nspawn", "lintian", "strip", "readelf", "xz"];
    let Some(_lab) = Lab::open_long(test, Need::Root, &programs)? else { return Ok(()) };
    let scratch = Scratch::new("package")?;
    let deb = package(&scratch, ".deb")?;
    let complaints = Cmd::new("lintian").arg("--allow-root").arg(&deb).check()?;
    ensure!(complaints.trim().is_empty(), "lintian: {complaints}");

    let system = System::boot(&debian::root(release)?, scratch.path())?;
    system.run("useradd -m user && dpkg -i /packages/*.deb")?;
    system.run_as_user(&pingpong("rnic")).context("with a private daemon")?;
    serve(&system)?;
    upgrade(&system)?;

    system.run("dpkg -P soft-rnic")?;
    let left = "grep -l '^rnicd' /proc/[0-9]*/comm; getent group rnic
                find / -xdev -name '*rnic*' -not -path '/proc/*' -not -path '*/dpkg/*' \
                     -not -path '/tmp/*'; ls -d /run/rnicd 2>/dev/null; true";
    // The user's private daemon ends some seconds after its last client.
    let mut last = String::new();
    let gone = wait_until("a system without any of it", Duration::from_secs(60), || {
        last = system.run(left)?;
        Ok(last.is_empty())
    });
    gone.context(last)
}

/// The service of an interface, and programs of another user.
fn serve(system: &System) -> Result<()> {
    system.run("getent group rnic && test -d /run/rnicd").context("the group and the folder")?;
    system.run("systemctl start rnicd@eth1").context("the service")?;
    let devices = system.run_as_user("rnic devices")?;
    ensure!(devices.contains("rnic_eth1"), "{devices}");
    system.run_as_user(&pingpong("rnic")).context("with the service")?;
    let write = both_ends("rnic", "ib_write_bw -x 0", "ib_write_bw -x 0 127.0.0.1", "65536 ");
    system.run_as_user(&write).context("perftest")?;
    let (server, client) = ("rping -s -C 3 -v -a 10.7.0.1", "rping -c -C 3 -a 10.7.0.1");
    system.run_as_user(&both_ends("rnic", server, client, "rdma-ping-2")).context("by address")?;
    let journal = system.run("journalctl -u rnicd@eth1 -p warning --no-pager -o cat")?;
    ensure!(!journal.contains("INFO"), "the journal does not know levels:\n{journal}");
    system.run("systemctl reload rnicd@eth1 && systemctl is-active rnicd@eth1")?;
    Ok(())
}

/// Another version over the one that runs: the service is started again, and programs go on.
fn upgrade(system: &System) -> Result<()> {
    let process = "systemctl show -p MainPID --value rnicd@eth1";
    let before = system.run(process)?;
    system.run("dpkg -i /packages/*.deb")?;
    let after = system.run(process)?;
    ensure!(before != after && after.trim() != "0", "not restarted: {before} {after}");
    system.run_as_user("rnic run -- ibv_devinfo").context("after the upgrade")?;
    Ok(())
}
