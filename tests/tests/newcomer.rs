//! Messages that a new user sees after a mistake: they say what is wrong and what to do.

use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::netns::Netns;
use system_tests::paths::Scratch;
use system_tests::place::Host;
use system_tests::process::{Cmd, Output, User};

/// An error must fail, name the cause, fit on a screen, and not be a crash.
fn ensure_helpful(output: &Output, words: &[&str]) -> Result<()> {
    let said = format!("{}{}", output.stdout, output.stderr);
    ensure!(!output.success(), "it must fail: {output}");
    ensure!(output.code() < 128, "it must not crash: {output}");
    ensure!(!said.contains("panicked at"), "it must not panic: {output}");
    ensure!(said.lines().count() <= 12, "too much to read: {output}");
    for word in words {
        ensure!(said.contains(word), "it must mention {word:?}: {output}");
    }
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
    ensure_helpful(&run.run()?, &["nosuch0"])
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
    ensure_helpful(&rnic.run()?, &["rnicd", "nothing"])
}

#[test]
fn a_program_that_is_not_there_is_named() -> Result<()> {
    let name = "a_program_that_is_not_there_is_named";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let scratch = Scratch::new("newcomer")?;
    let rnic = Cmd::new(Dist::get()?.bin("rnic")).args(["run", "--", "no-such-program"]);
    let runtime = scratch.join("runtime");
    std::fs::create_dir(&runtime)?;
    let rnic = rnic.env("XDG_RUNTIME_DIR", runtime).without_env("RNIC_SOCKET");
    ensure_helpful(&rnic.run()?, &["no-such-program"])
}

#[test]
fn a_busy_socket_is_explained() -> Result<()> {
    let name = "a_busy_socket_is_explained";
    let Some(_lab) = Lab::open(name, Need::Nothing, &[])? else { return Ok(()) };
    let first = Daemon::start(Dist::get()?, &Spec::new(Io::Loopback))?;
    let second = rnicd(&["--io", "loopback", "--socket"])?.arg(first.socket());
    ensure_helpful(&second.run()?, &["socket"])?;
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
            ensure_helpful(&run.limit(Duration::from_secs(10)).run()?, &words)?;
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
    ensure_helpful(&run.run()?, &["CAP_NET_RAW"])
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
    ensure!(format!("{}{}", output.stdout, output.stderr).contains("No IB devices"), "{output}");
    Ok(())
}
