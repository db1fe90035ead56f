//! Messages that a new user sees after a mistake: they say what is wrong and what to do.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use rustix::process::Signal;
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, alone, own_loopback};
use system_tests::netns::Netns;
use system_tests::paths::{self, Scratch};
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Cmd, Output, User, wait_until};

/// An error must fail, name the cause, fit on a screen, and not be a crash.
fn ensure_helpful(output: &Output, words: &[&str]) -> Result<()> {
    let said = output.said();
    ensure!(!output.success(), "it must fail: {output}");
    ensure!(output.code() < 128, "it must not crash: {output}");
    ensure!(!said.contains("panicked at"), "it must not panic: {output}");
    ensure!(said.lines().count() <= 12, "too much to read: {output}");
    for word in words {
        ensure!(said.contains(word), "it must mention {word:?}: {output}");
    }
    Ok(())
}

/// The same, and docs/errors.md has a line for it: its first cell, in which `...` stands for names.
fn ensure_explained(output: &Output, words: &[&str]) -> Result<()> {
    ensure_helpful(output, words)?;
    let said = output.said();
    let document = fs::read_to_string(paths::repository().join("docs/errors.md"))?;
    let cells = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let is_told = |cell: &str| cell.split("...").all(|part| said.contains(part.trim()));
    ensure!(cells.map(|(cell, _)| cell).any(is_told), "docs/errors.md does not explain: {output}");
    Ok(())
}

fn rnicd(args: &[&str]) -> Result<Cmd> {
    Ok(Cmd::new(Dist::get()?.bin("rnicd")).args(args))
}

#[test]
fn an_interface_that_does_not_exist_is_named() -> Result<()> {
    let name = "an_interface_that_does_not_exist_is_named";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let scratch = Scratch::new("newcomer")?;
    let socket = scratch.join("socket");
    let run = rnicd(&["--netdev", "nosuch0", "--io", "udp", "--socket"])?.arg(&socket);
    ensure_explained(&run.run()?, &["nosuch0"])
}

/// What one can get wrong with the commands of the book's first chapters.
#[test]
fn mistakes_with_options_are_explained() -> Result<()> {
    let name = "mistakes_with_options_are_explained";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let scratch = Scratch::new("mistakes")?;
    let socket = scratch.join("socket");
    let no_file = ["/nonexistent/rnicd.toml", "without --config the defaults apply"];
    for (args, words) in [
        (&["--io", "af-xdp"][..], &["--netdev"][..]),
        (&["--mode", "999"], &["0660"]),
        (&["--address", "203.0.113.9"], &["203.0.113.9"]),
        (&["--address", "0.0.0.0"], &["unicast"]),
        (&["--device", "a b"], &["letters, digits"]),
        (&["--config", "/nonexistent/rnicd.toml"], &no_file),
        (&["--log", "a=b=c"], &["rnic_net=debug"]),
        (&["--group", "no such group"], &["getent group"]),
        (&["--io", "loopback", "--metrics", "unix:/nonexistent/metrics"], &["--metrics"]),
    ] {
        let run = rnicd(args)?.arg("--socket").arg(&socket);
        ensure_explained(&run.limit(Duration::from_secs(10)).run()?, words)?;
    }
    let nowhere = rnicd(&["--io", "loopback", "--socket", "/nonexistent/socket"])?;
    ensure_explained(&nowhere.limit(Duration::from_secs(10)).run()?, &["--socket"])?;
    let lonely = Cmd::new("cp").arg(Dist::get()?.bin("rnic")).arg(scratch.path());
    lonely.check()?;
    let rnic = Cmd::new(scratch.join("rnic")).args(["run", "--", "true"]);
    ensure_explained(&rnic.env("RNIC_SOCKET", &socket).run()?, &["neither in"])
}

/// The same with `rnic`. The command line's own errors need no explanation elsewhere.
#[test]
fn mistakes_with_commands_are_explained() -> Result<()> {
    let name = "mistakes_with_commands_are_explained";
    let Some(lab) = Lab::open(name, Need::Nothing, &["ibv_devinfo"])? else { return Ok(()) };
    let scratch = Scratch::new("mistakes")?;
    let text = scratch.join("text");
    fs::write(&text, "no program, and no capture\n")?;
    let text = text.to_string_lossy();
    let daemon = Daemon::start(Dist::get()?, &alone())?;
    let rnic = |args: &[&str]| -> Result<Output> {
        let rnic = Cmd::new(Dist::get()?.bin("rnic")).args(args);
        rnic.env("RNIC_SOCKET", daemon.socket()).limit(Duration::from_secs(10)).run()
    };
    let [socket, capture, scenario] =
        ["socket", "x.pcapng", "x.toml"].map(|name| format!("/nonexistent/{name}"));
    for (args, words) in [
        (&["run", "--", &text][..], [&*text, "`chmod +x` makes it one"]),
        (&["run", "--", "nosuchprogram"], ["nosuchprogram", "no folder of PATH has it"]),
        (&["run", "--socket", &socket, "--", "true"], [&socket, "leave --socket out"]),
        (&["capture", "-w", &capture], [&capture, "make its folder first"]),
        (&["explain", &capture], [&capture, "`rnic capture -w FILE` writes"]),
        (&["fault", "run", &scenario], [&scenario, "`rnic fault run --help`"]),
        (&["explain", &text], [&text, "neither a pcap nor a pcapng header"]),
        (&["lab", "nosuch"], ["nosuch", "`rnic lab` lists all"]),
    ] {
        ensure_explained(&rnic(args)?, &words)?;
    }
    for (args, words) in [
        (&["run"][..], "<PROGRAM>"),
        (&["run", "--engine", "nowhere", "--", "true"], "daemon, program"),
        (&["fault", "add", "drop=200%"], "as in drop=1%"),
        (&["fault", "add", "dorp=1%"], "one of drop"),
    ] {
        ensure_helpful(&rnic(args)?, &[words, "--help"])?;
    }
    let host = Host::here([127, 0, 0, 1].into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let devinfo = node.cmd("ibv_devinfo")?.env("RNIC_ENGINE", "nowhere");
    ensure_explained(&devinfo.run()?, &["daemon, program or auto"])?;
    node.stop()?;
    Ok(())
}

#[test]
fn a_check_says_what_the_host_can_do() -> Result<()> {
    let name = "a_check_says_what_the_host_can_do";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let scratch = Scratch::new("check")?;
    let check = |args: &[&str]| -> Result<Output> {
        let socket = ["--check", "--socket"];
        rnicd(&socket)?.arg(scratch.join("socket")).args(args).run()
    };
    let good = check(&["--io", "udp", "--address", &own_loopback().to_string()])?;
    let said = &good.stdout;
    ensure!(good.success() && said.contains("rnicd can start here."), "{good}");
    ensure!(["kernel", "memory access", "limits"].iter().all(|what| said.contains(what)), "{said}");
    let bad = check(&["--netdev", "nosuch0", "--io", "udp"])?;
    ensure_helpful(&bad, &["FAILED   interface", "nosuch0", "keep the daemon from starting"])?;
    ensure!(!scratch.join("socket").exists(), "a check listens");
    Ok(())
}

/// SIGHUP changes what a daemon that runs can change, and names the rest.
#[test]
fn a_reload_takes_what_can_be_changed() -> Result<()> {
    let name = "a_reload_takes_what_can_be_changed";
    let programs = ["ibv_rc_pingpong"];
    let Some(lab) = Lab::open(name, Need::Nothing, &programs)? else { return Ok(()) };
    let scratch = Scratch::new("reload")?;
    let file = scratch.join("rnicd.toml");
    fs::write(&file, "mode = \"0666\"\n")?;
    let extra = vec!["--config".into(), file.display().to_string()];
    let daemon = Daemon::start(Dist::get()?, &Spec { extra, ..alone() })?;
    let host = Host::here([127, 0, 0, 1].into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let mode =
        || -> Result<u32> { Ok(fs::metadata(node.daemon.socket())?.permissions().mode() & 0o777) };
    let reload = |text: &str, what: &str, done: &dyn Fn() -> Result<bool>| -> Result<()> {
        fs::write(&file, text)?;
        node.daemon.signal(Signal::HUP)?;
        wait_until(what, Duration::from_secs(10), done).with_context(|| node.daemon.log())
    };
    let says = |words: &str| Ok(node.daemon.log().contains(words));

    let metrics = scratch.join("metrics");
    let text = format!("mode = \"0662\"\nmetrics = \"unix:{}\"\n", metrics.display());
    let text = text + "idle = \"event\"\nspin = 9\n[quota]\nqps = 0\ngroups = 2\n";
    reload(&text, "a reload", &|| says("the configuration file was read again"))?;
    ensure!(mode()? == 0o662 && metrics.exists(), "{}", node.daemon.log());
    ensure!(says("a restart is needed to change idle, spin, quota.groups")?, "what is fixed");
    let refused = node.cmd("ibv_rc_pingpong")?.args(["-d", node.device(), "-g", "0"]);
    ensure_helpful(&refused.limit(Duration::from_secs(10)).run()?, &["Couldn't create QP"])?;

    reload("mode = \"0660\"\nnonsense = 1\n", "an error", &|| says("nothing is reloaded"))?;
    ensure!(says("nonsense")? && mode()? == 0o662, "{}", node.daemon.log());
    fs::remove_file(&file)?;
    node.daemon.signal(Signal::HUP)?;
    let missing = format!("{}: No such file or directory", file.display());
    wait_until(&missing, Duration::from_secs(10), || says(&missing))?;
    // What it has stays.
    ensure!(!says("defaults apply")? && !says("os error")?, "{}", node.daemon.log());
    // What the log lets pass changes first.
    reload("mode = \"0664\"\nlog = \"error\"\n", "a mode", &|| Ok(mode()? == 0o664))?;
    let log = node.stop()?;
    ensure!(log.matches("was read again").count() == 1 && !metrics.exists(), "{log}");
    Ok(())
}

/// The numbers of a device as one address serves them, empty where none does.
fn metrics_at(netns: &Netns, address: &str) -> Result<String> {
    netns.enter(|| {
        let ask = || -> std::io::Result<String> {
            let mut client = TcpStream::connect(address)?;
            client.set_read_timeout(Some(Duration::from_secs(5)))?;
            client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            client.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().unwrap_or_default()
    })
}

/// Also to the same port of more or fewer addresses; where that fails they stay where they were.
#[test]
fn a_reload_moves_the_metrics() -> Result<()> {
    let name = "a_reload_moves_the_metrics";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let (scratch, netns) = (Scratch::new("metrics")?, Netns::new("metrics")?);
    let file = scratch.join("rnicd.toml");
    let set = |address: &str| fs::write(&file, format!("metrics = \"{address}\"\n"));
    set("127.0.0.1:9879")?;
    let extra = vec!["--config".into(), file.display().to_string()];
    let netns_name = Some(netns.name().to_owned());
    let spec = Spec { extra, netns: netns_name, ..Spec::new(Io::Loopback) };
    let daemon = Daemon::start(Dist::get()?, &spec)?;
    let reload = |address: &str, says: &str| -> Result<()> {
        let count = || daemon.log().matches(says).count();
        let before = count();
        set(address)?;
        daemon.signal(Signal::HUP)?;
        wait_until(says, Duration::from_secs(10), || Ok(count() > before))
            .with_context(|| daemon.log())
    };
    let are_at = |address: &str| Ok::<_, Error>(metrics_at(&netns, address)?.contains("# EOF"));
    let read = "the configuration file was read again";
    ensure!(are_at("127.0.0.1:9879")? && !are_at("127.0.0.2:9879")?, "{}", daemon.log());
    reload("0.0.0.0:9879", read)?;
    ensure!(are_at("127.0.0.1:9879")? && are_at("127.0.0.2:9879")?, "{}", daemon.log());
    reload("203.0.113.9:9879", "cannot serve metrics at http://203.0.113.9:9879/metrics")?;
    ensure!(are_at("127.0.0.2:9879")?, "{}", daemon.log());
    reload("127.0.0.1:9879", read)?;
    ensure!(are_at("127.0.0.1:9879")? && !are_at("127.0.0.2:9879")?, "{}", daemon.log());
    reload("127.0.0.1:9880", read)?;
    reload("127.0.0.1:9879", read)?;
    ensure!(are_at("127.0.0.1:9879")? && !are_at("127.0.0.1:9880")?, "{}", daemon.log());
    daemon.stop()?;
    Ok(())
}

#[test]
fn an_unknown_option_and_an_unknown_command_are_explained() -> Result<()> {
    let name = "an_unknown_option_and_an_unknown_command_are_explained";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    ensure_helpful(&rnicd(&["--nosuch"])?.run()?, &["--nosuch", "--help"])?;
    ensure_helpful(&rnicd(&["--io", "carrier-pigeon"])?.run()?, &["carrier-pigeon", "udp"])?;
    let rnic = Cmd::new(Dist::get()?.bin("rnic")).arg("nosuch");
    ensure_helpful(&rnic.run()?, &["nosuch"])
}

#[test]
fn a_command_without_a_daemon_says_how_to_start_one() -> Result<()> {
    let name = "a_command_without_a_daemon_says_how_to_start_one";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let scratch = Scratch::new("newcomer")?;
    let rnic = Cmd::new(Dist::get()?.bin("rnic")).arg("status");
    let rnic = rnic.env("RNIC_SOCKET", scratch.join("nothing"));
    ensure_explained(&rnic.run()?, &["rnicd", "nothing"])
}

#[test]
fn a_program_that_is_not_there_is_named() -> Result<()> {
    let name = "a_program_that_is_not_there_is_named";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let scratch = Scratch::new("newcomer")?;
    let rnic = Cmd::new(Dist::get()?.bin("rnic")).args(["run", "--", "no-such-program"]);
    let runtime = scratch.join("runtime");
    fs::create_dir(&runtime)?;
    let rnic = rnic.env("XDG_RUNTIME_DIR", runtime).without_env("RNIC_SOCKET");
    ensure_explained(&rnic.run()?, &["no-such-program"])
}

/// Also to a user who may not look into each folder of PATH, or may execute nothing there.
#[test]
fn a_program_that_cannot_be_started_is_explained() -> Result<()> {
    let name = "a_program_that_cannot_be_started_is_explained";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let scratch = Scratch::new("newcomer")?;
    let dist = Dist::get()?.copy_to(&scratch.join("dist"))?;
    let daemon = Daemon::start(Dist::get()?, &alone())?;
    let closed = scratch.join("closed");
    fs::create_dir(&closed)?;
    fs::set_permissions(&closed, Permissions::from_mode(0o700))?;
    let script = scratch.join("orphan");
    fs::write(&script, "#!/nonexistent/interpreter\n")?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    let path = std::env::join_paths([closed.as_path(), scratch.path(), Path::new("/usr/bin")])?;
    let run = |program: &str| -> Cmd {
        let run = Cmd::new(dist.bin("rnic")).args(["run", "--no-view", "--", program]);
        run.env("RNIC_SOCKET", daemon.socket()).env("PATH", &path).as_user(Some(User::NOBODY))
    };
    for (program, status, words) in [
        ("nosuchprogram", 127, ["nosuchprogram", "has it, of those that you may enter"]),
        ("orphan", 126, [&script.to_string_lossy(), "header names is missing"]),
        ("/tmp", 126, ["/tmp", "it is a folder"]),
    ] {
        let output = run(program).run()?;
        ensure_explained(&output, &words)?;
        ensure!(output.code() == status, "{output}");
    }
    let mount = "mount -t tmpfs -o noexec none $0 && cp /usr/bin/true $0 && exec \"$@\"";
    let mounted = ["unshare", "--mount", "sh", "-c", mount, &closed.to_string_lossy()];
    let copy = closed.join("true");
    let run = run(&copy.to_string_lossy()).as_user(None).through(&mounted.map(str::to_owned));
    ensure_explained(&run.run()?, &["closed/true", "(noexec)"])?;
    daemon.stop()?;
    Ok(())
}

#[test]
fn a_busy_socket_is_explained() -> Result<()> {
    let name = "a_busy_socket_is_explained";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let first = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let second = rnicd(&["--io", "loopback", "--socket"])?.arg(first.socket());
    ensure_explained(&second.run()?, &["socket"])?;
    first.stop()?;
    Ok(())
}

#[test]
fn a_second_daemon_on_an_interface_is_told_of_the_first() -> Result<()> {
    let name = "a_second_daemon_on_an_interface_is_told_of_the_first";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let netns = Netns::new("newcomer")?;
    netns.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"])?;
    netns.ip(&["address", "add", "10.77.0.1/24", "dev", "eth0"])?;
    netns.ip(&["link", "set", "eth0", "up"])?;
    let scratch = Scratch::new("newcomer")?;
    for (first_io, second_io) in [(Io::Udp, "auto"), (Io::AfPacket, "udp"), (Io::AfXdp, "auto")] {
        let mut spec = Spec::new(first_io);
        spec.netdev = Some("eth0".into());
        spec.netns = Some(netns.name().to_owned());
        let first = Daemon::start(Dist::get()?, &spec)?;
        for place in [&["--netdev", "eth0"][..], &["--address", "10.77.0.1"]] {
            let run = rnicd(place)?.args(["--io", second_io, "--socket"]);
            let run = run.arg(scratch.join("socket")).in_netns(Some(netns.name()));
            let pid = format!("process {} ", first.pid());
            let words = ["10.77.0.1 is served already", &pid, "--socket", "--address"];
            ensure_explained(&run.limit(Duration::from_secs(10)).run()?, &words)?;
        }
        first.stop()?;
    }
    Ok(())
}

#[test]
fn af_xdp_without_rights_says_which_rights() -> Result<()> {
    let name = "af_xdp_without_rights_says_which_rights";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let netns = Netns::new("newcomer")?;
    netns.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"])?;
    netns.ip(&["address", "add", "10.77.0.1/24", "dev", "eth0"])?;
    netns.ip(&["link", "set", "eth0", "up"])?;
    let scratch = Scratch::new("newcomer")?;
    let dist = Dist::get()?.copy_to(&scratch.join("dist"))?;
    let run = Cmd::new(dist.bin("rnicd")).args(["--netdev", "eth0", "--io", "af-xdp", "--socket"]);
    let run = run.arg(scratch.join("socket")).in_netns(Some(netns.name()));
    let run = run.as_user(Some(User::NOBODY));
    ensure_explained(&run.run()?, &["CAP_NET_RAW"])
}

#[test]
fn a_program_whose_daemon_is_gone_finds_no_device() -> Result<()> {
    let name = "a_program_whose_daemon_is_gone_finds_no_device";
    let Some(lab) = Lab::open(name, Need::Nothing, &["ibv_devinfo"])? else { return Ok(()) };
    let scratch = Scratch::new("newcomer")?;
    let host = Host::here([127, 0, 0, 1].into(), &lab.tools);
    let dirs = std::iter::once(Dist::get()?.lib()).chain(lab.tools.library_dirs());
    let devinfo = host
        .cmd("ibv_devinfo")?
        .env("LD_LIBRARY_PATH", std::env::join_paths(dirs)?)
        .env("RNIC_SOCKET", scratch.join("nothing"));
    let output = devinfo.run()?;
    // The program returns -1 from its main.
    ensure!(output.code() == 255, "{output}");
    ensure!(output.said().contains("No IB devices"), "{output}");
    Ok(())
}
