//! The harness's own test: namespaces, the veth pair, dialogues and their readers, without RDMA.

use std::path::Path;

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::netns::{NetPair, Netns};
use system_tests::paths::Scratch;
use system_tests::place::Host;
use system_tests::process::User;
use system_tests::programs::{Dialogue, iperf3, qperf};

#[test]
fn tcp_programs_talk_across_a_veth_pair() -> Result<()> {
    let name = "tcp_programs_talk_across_a_veth_pair";
    let Some(lab) = Lab::open(name, Need::Root, &["iperf3", "qperf"])? else { return Ok(()) };
    let net = NetPair::new(4200)?;
    let (left, right) = (Host::at_end(&net.left, &lab.tools), Host::at_end(&net.right, &lab.tools));
    let iperf3 = Dialogue::new("iperf3").client("--json -t 1").run(&left, &right)?;
    ensure!(iperf3::received_bits_per_second(&iperf3.client.stdout)? > 1e6);
    let qperf = Dialogue::new("qperf").client("-t 1 tcp_lat").run(&left, &right)?;
    ensure!(qperf::value(&qperf.client.stdout, "latency")? > 0.0);
    Ok(())
}

#[test]
fn both_ends_are_reached_by_ipv4_and_ipv6_at_once() -> Result<()> {
    let name = "both_ends_are_reached_by_ipv4_and_ipv6_at_once";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let net = NetPair::new(4200)?;
    let path = Path::new("/run/netns").join(net.left.netns.name());
    for address in net.right.addresses() {
        // A datagram that fits the MTU: no duplicate address detection may delay the first one.
        let sent = net.left.netns.enter(|| -> std::io::Result<usize> {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = std::net::UdpSocket::bind(any)?;
            socket.connect((address, 9))?;
            socket.send(&[0; 4096])
        })??;
        ensure!(sent == 4096);
    }
    ensure!(path.exists());
    drop(net);
    ensure!(!path.exists(), "a dropped namespace stays");
    Ok(())
}

#[test]
fn commands_run_in_their_namespace_and_as_their_user() -> Result<()> {
    let name = "commands_run_in_their_namespace_and_as_their_user";
    let Some(_lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    let netns = Netns::new("who")?;
    let report = "id -u; ip -o link | wc -l; taskset -cp $$; echo $$";
    let cmd = netns.cmd("sh").args(["-c", report]).as_user(Some(User::NOBODY)).on_cpu(Some(0));
    let running = cmd.start()?;
    let pid = running.pid();
    let text = running.wait()?.stdout;
    let lines: Vec<_> = text.lines().collect();
    ensure!(lines[..2] == ["65534", "1"], "{text}");
    ensure!(lines[2].ends_with(": 0"), "{text}");
    ensure!(lines[3] == pid.to_string(), "the process id must stay the same: {text}");
    Ok(())
}

#[test]
fn a_server_that_fails_early_is_shown() -> Result<()> {
    let name = "a_server_that_fails_early_is_shown";
    let Some(lab) = Lab::open(name, Need::Root, &["iperf3"])? else { return Ok(()) };
    let net = NetPair::new(1500)?;
    let (left, right) = (Host::at_end(&net.left, &lab.tools), Host::at_end(&net.right, &lab.tools));
    let broken = Dialogue::new("iperf3 --no-such-option");
    let error = broken.run(&left, &right).err().map(|error| format!("{error:#}"));
    ensure!(error.as_ref().is_some_and(|text| text.contains("no-such-option")), "{error:?}");
    Ok(())
}

#[test]
fn a_daemon_that_ends_before_it_is_ready_is_shown() -> Result<()> {
    let scratch = Scratch::new("dist")?;
    for file in Dist::files() {
        let path = scratch.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder"))?;
        std::fs::write(&path, "#!/bin/sh\necho \"no such thing as $2\" >&2; exit 3\n")?;
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    let dist = Dist::open(scratch.path())?;
    let error = Daemon::start(&dist, &Spec::new(Io::Udp)).err().map(|error| format!("{error:#}"));
    ensure!(error.as_ref().is_some_and(|text| text.contains("no such thing as udp")), "{error:?}");
    Ok(())
}
