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
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, skip};
use system_tests::packages::Toolbox;
use system_tests::paths::{self, Scratch};
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

/// Unless their user says otherwise.
#[test]
fn programs_have_engines_of_their_own() -> Result<()> {
    let name = "programs_have_engines_of_their_own";
    let Some(lab) = Lab::open(name, Need::Nothing, &PROGRAMS)? else { return Ok(()) };
    let home = new_home()?;
    let host = Host::here(IpAddr::V4(Ipv4Addr::LOCALHOST), &lab.tools);
    let dirs = std::env::join_paths(lab.tools.library_dirs())?;
    for (option, engine, count) in [
        (None, None, 1),
        (Some("--engine=daemon"), None, 0),
        (Some("--shared-memory"), None, 0),
        (None, Some("daemon"), 0),
    ] {
        let port = next_port();
        let run = rnic(&home, &["run"]).args(option).arg("--");
        let run = run.arg(lab.tools.program("ibv_rc_pingpong")?).env("LD_LIBRARY_PATH", &dirs);
        let run = run.args(["-g", "0", "-p", &port.to_string()]);
        let server = engine.map_or(run.clone(), |engine| run.env("RNIC_ENGINE", engine)).start()?;
        wait_until("listening server", Duration::from_secs(10), || host.listens(port))
            .with_context(|| server.stderr())?;
        let status = status(rnic(&home, &[]))?;
        let engines = status["users"].as_array().map_or(0, Vec::len);
        ensure!(engines == count, "{option:?}, {engine:?}: {status}");
        server.signal(Signal::KILL)?;
        server.wait()?;
    }
    Ok(())
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

/// Also by an ordinary user, for whom it takes a user namespace.
#[test]
fn a_program_finds_the_device_where_the_kernel_has_its_own() -> Result<()> {
    let name = "a_program_finds_the_device_where_the_kernel_has_its_own";
    let Some(lab) = Lab::open(name, Need::Nothing, &["ibstat"])? else { return Ok(()) };
    let home = new_home()?;
    let listed = |folder: &str| -> Result<Vec<String>> {
        let entries = std::fs::read_dir(folder)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    let attributes = "cd /sys/class/infiniband/rnic0 && cat node_type ports/1/gids/0 \
                      ports/1/gid_attrs/types/0 ports/1/gid_attrs/ndevs/0 ports/1/state \
                      device/net/lo/ifindex && test -c /dev/infiniband/uverbs0 && \
                      cat /sys/class/infiniband_verbs/uverbs0/ibdev && \
                      ls /sys/class /dev && echo > /dev/null";
    let namespaces = at_home(&home, "unshare").args(["-Urm", "true"]).run()?.success();
    if !namespaces && !is_root() {
        skip(name, "the kernel gives ordinary users no namespaces");
        return Ok(());
    }
    for user in [unprivileged(), None] {
        let home = new_home()?;
        if user.is_none() && is_root() {
            chown(home.join("runtime"), Some(0), Some(0))?;
        }
        let shell = rnic(&home, &["run", "--", "sh", "-c", attributes]).as_user(user);
        let seen = shell.check()?;
        // The private daemon of an earlier test may still have the port on 127.0.0.1: this one then
        // has another loopback address.
        let after_address = seen.strip_prefix("1: CA\n0000:0000:0000:0000:0000:ffff:7f");
        let after_address = after_address.and_then(|seen| seen.split_once('\n'));
        let expected = "RoCE v2\nlo\n4: ACTIVE\n1\nrnic0\n";
        let is_right = after_address.is_some_and(|(_, seen)| seen.starts_with(expected));
        ensure!(is_right, "{user:?}: {seen}");
        for entry in listed("/sys/class")?.into_iter().chain(listed("/dev")?) {
            ensure!(seen.lines().any(|line| line == entry), "{user:?}: {entry} is hidden:\n{seen}");
        }
        let ibstat = rnic_run(&home, &lab.tools, "ibstat")?.as_user(user).check()?;
        for line in ["CA 'rnic0'", "State: Active", "Link layer: Ethernet"] {
            ensure!(ibstat.contains(line), "{user:?}: no {line}:\n{ibstat}");
        }
        end(&status(rnic(&home, &[]).as_user(user))?)?;
    }
    let as_before = rnic(&home, &["run", "--no-view", "--", "ls", "/sys/class"]).check()?;
    let kernels = Path::new("/sys/class/infiniband").exists();
    ensure!(as_before.contains("infiniband\n") == kernels, "{as_before}");
    end_private(&home)
}

/// Messages of 64 KiB that perftest sends.
const SENT: u64 = 20_000;

/// What perftest reads of what its client has sent: words of four bytes, as the field counts data,
/// and packets.
fn counted_by_perftest(home: &Scratch, tools: &Toolbox, host: &Host) -> Result<(u64, u64)> {
    let (port, sent) = (next_port(), SENT.to_string());
    let counters = "counters/port_xmit_data,hw_counters/tx_packets";
    let line = ["-d", "rnic0", "-x", "0", "-n", &sent, "-p", &port.to_string(), "-W", counters];
    let bandwidth = rnic_run(home, tools, "ib_write_bw")?.args(line);
    let server = bandwidth.start()?;
    wait_until("listening server", Duration::from_secs(10), || host.listens(port))?;
    let client = bandwidth.arg("127.0.0.1").limit(Duration::from_secs(30)).check()?;
    ensure!(server.wait()?.success(), "the server failed");
    let counted = |counter: &str| -> Result<u64> {
        let line = client.lines().find_map(|line| line.trim().strip_prefix(counter));
        let value = line.with_context(|| format!("no {counter}:\n{client}"))?;
        Ok(value.trim_start_matches('=').trim().parse()?)
    };
    Ok((counted("counters/port_xmit_data")?, counted("hw_counters/tx_packets")?))
}

/// What left in the last 20 ms may be missing.
fn is_likely((words, packets): (u64, u64)) -> bool {
    let sent = SENT * 65_536 / 4;
    let likely = sent - sent / 5..sent + sent / 50;
    likely.contains(&words) && packets >= likely.start * 4 / 4096
}

/// Counters that perftest reads before and after its run, from files that it opened before.
#[test]
fn the_files_of_a_device_count_what_it_sends() -> Result<()> {
    let name = "the_files_of_a_device_count_what_it_sends";
    let Some(lab) = Lab::open(name, Need::Nothing, &["ib_write_bw"])? else { return Ok(()) };
    let home = new_home()?;
    let host = Host::here(IpAddr::V4(Ipv4Addr::LOCALHOST), &lab.tools);
    // A daemon without a CPU for a while writes later, and the program reads what there is.
    let mut counted = Vec::new();
    for _ in 0..10 {
        let now = counted_by_perftest(&home, &lab.tools, &host)?;
        counted.push(now);
        if is_likely(now) {
            break;
        }
    }
    ensure!(counted.last().is_some_and(|last| is_likely(*last)), "words, packets: {counted:?}");
    let found = status(rnic(&home, &[]))?;
    let socket = found["socket"].as_str().context("no socket")?;
    let files = PathBuf::from(format!("{socket}.files"));
    ensure!(files.is_dir(), "no {}", files.display());
    end(&found)?;
    wait_until("the end of the files", Duration::from_secs(10), || Ok(!files.exists()))
}

/// Those of a system's daemon: in the view that `rnic run` gives, and in a container that has the
/// folders as volumes.
#[test]
fn scripts_find_a_device_its_interface_and_its_counters() -> Result<()> {
    let name = "scripts_find_a_device_its_interface_and_its_counters";
    let Some(lab) = Lab::open(name, Need::Root, &["ibv_devinfo"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let scripts = paths::repository().join("tests/scripts");
    let find = scripts.join("find_devices.sh");
    let socket = pair.left.daemon.socket();
    let rnic = pair.net.left.netns.cmd(Dist::get()?.bin("rnic"));
    let in_view = rnic.args(["run", "--socket"]).arg(&socket).arg("--").arg(&find).check()?;
    let contained = || {
        let files = PathBuf::from(format!("{}.files", socket.display()));
        let cmd = pair.net.left.netns.cmd("unshare").arg("-m");
        cmd.arg(scripts.join("container.sh")).arg(files)
    };
    let in_container = contained().arg(&find).check()?;
    ensure!(in_container == in_view, "a container sees:\n{in_container}\nnot:\n{in_view}");
    for expected in [
        "rnic0 port 1 gid 0 RoCE v2 ==> eth0 (up)\nrnic0 port 1 gid 1 RoCE v2 ==> eth0 (up)\n",
        " ACTIVE, Ethernet, ",
        " Gb/sec (",
        "1: CA, firmware ",
        ", node -1\ninterfaces eth0 CPUs ",
        "verbs uverbs0 abi 1\n",
    ] {
        ensure!(in_view.contains(expected), "no {expected:?}:\n{in_view}");
    }
    // The library too, which talks to the daemon by its socket.
    let devinfo = contained().arg(lab.tools.program("ibv_devinfo")?).arg("-v");
    let devinfo = devinfo.env("LD_LIBRARY_PATH", Dist::get()?.lib()).env("RNIC_SOCKET", &socket);
    let text = devinfo.check()?;
    ensure!(text.contains("PORT_ACTIVE") && text.contains("soft-rnic"), "{text}");
    pair.stop()
}

/// UCX skips a device whose files it does not find.
#[test]
fn ucx_uses_both_transports() -> Result<()> {
    let name = "ucx_uses_both_transports";
    let programs = ["ucx_info", "ucx_perftest"];
    let Some(lab) = Lab::open(name, Need::Nothing, &programs)? else { return Ok(()) };
    let home = new_home()?;
    let info = rnic_run(&home, &lab.tools, "ucx_info")?.arg("-d").check()?;
    for transport in ["rc_verbs", "ud_verbs"] {
        let line = format!("Transport: {transport}\n#         Device: rnic0:1");
        ensure!(info.contains(&line), "no {transport}:\n{info}");
    }
    let host = Host::here(IpAddr::V4(Ipv4Addr::LOCALHOST), &lab.tools);
    for transport in ["rc_v,self", "ud_v,self"] {
        for test in UCX_TESTS {
            let port = next_port();
            let perftest = rnic_run(&home, &lab.tools, "ucx_perftest")?
                .env("UCX_TLS", transport)
                .env("UCX_NET_DEVICES", "rnic0:1")
                .args(["-p", &port.to_string()]);
            let server = perftest.start()?;
            wait_until("listening server", Duration::from_secs(10), || host.listens(port))
                .with_context(|| server.stderr())?;
            let line = ["127.0.0.1", "-n", "200", "-w", "10", "-t"];
            let client = perftest.args(line).args(test.split(' ')).limit(Duration::from_secs(60));
            let client = client.run()?;
            ensure!(
                client.success() && client.stdout.contains("Final:"),
                "{transport} {test}: {client}\nserver: {}",
                server.stderr()
            );
            ensure!(!client.stderr.contains("ERROR"), "{transport} {test}: {client}");
        }
    }
    end_private(&home)
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

/// What `ucx_perftest -t` knows, and sizes that take every protocol: inline, copied, by rendezvous.
const UCX_TESTS: [&str; 7] = [
    "ucp_put_bw -s 8",
    "ucp_put_lat -s 100000",
    "ucp_get -s 4000",
    "ucp_am_lat -s 8",
    "ucp_am_bw -s 100000",
    "tag_lat -s 2000",
    "tag_bw -s 1000000",
];

/// The same where nothing was asked of the daemon since its last client: on a busy machine it may
/// have ended by itself.
fn end_private(home: &Scratch) -> Result<()> {
    match status(rnic(home, &[])) {
        Ok(status) => end(&status),
        Err(_) if !daemon_runs_in(home) => Ok(()),
        Err(error) => Err(error),
    }
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
