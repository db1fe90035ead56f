//! The harness's own test: two Linux guests with rxe talk to each other.
//!
//! When this fails, no result of the interoperability tests means anything.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use anyhow::{Result, ensure};
use system_tests::lab::{Lab, Need};
use system_tests::netns::Netns;
use system_tests::paths::Scratch;
use system_tests::place::Place;
use system_tests::programs::{Dialogue, perftest};
use system_tests::rxe::{Guest, Image, Machine};

fn machine(host: u8) -> Machine {
    let address = IpAddr::V4(Ipv4Addr::new(10, 78, 0, host));
    Machine { bridge: Some("br0".into()), ..Machine::new(&format!("tap{host}"), address) }
}

/// Boots two guests at once.
fn two_guests(netns: &Netns) -> Result<(Guest, Guest)> {
    let began = Instant::now();
    let image = Image::get()?;
    eprintln!("image ready in {:.2?}", began.elapsed());
    let began = Instant::now();
    let boot = |host| Guest::boot(&image, netns, &machine(host));
    let (a, b) = std::thread::scope(|scope| {
        let other = scope.spawn(|| boot(2));
        (boot(1), other.join().expect("a boot panicked"))
    });
    eprintln!("two guests booted in {:.2?}", began.elapsed());
    Ok((a?, b?))
}

#[test]
fn two_guests_exchange_pingpong_and_bandwidth() -> Result<()> {
    let name = "two_guests_exchange_pingpong_and_bandwidth";
    let Some(_lab) = Lab::open(name, Need::Guest, &[])? else { return Ok(()) };
    let netns = Netns::new("rxe")?;
    netns.add_bridge("br0", 4200)?;
    let (mut a, mut b) = two_guests(&netns)?;
    for mtu in [4200, 1500] {
        a.configure(mtu, &[(a.address(), 24)])?;
        b.configure(mtu, &[(b.address(), 24)])?;
        let path_mtu = if mtu == 4200 { 4096 } else { 1024 };
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong"] {
            let line = format!("{program} -m {path_mtu} -n 100");
            let transcript = Dialogue::new(&line).run(&a, &b)?;
            ensure!(transcript.client.stdout.contains("usec/iter"), "{}", transcript.client);
        }
        let bandwidth = Dialogue::new(&format!("ib_send_bw -s 65536 -n 400 -m {path_mtu}"));
        let rows = perftest::bandwidth(&bandwidth.run(&a, &b)?.client.stdout)?;
        ensure!(rows.len() == 1 && rows[0].size == 65536 && rows[0].average > 0.0, "{rows:?}");
        eprintln!("ib_send_bw 64 KiB, path MTU {path_mtu}: {:.0} MiB/s", mib(rows[0].average));
    }
    let rows =
        perftest::latency(&Dialogue::new("ib_write_lat -s 8 -n 200").run(&a, &b)?.client.stdout)?;
    ensure!(rows[0].min <= rows[0].typical && rows[0].typical <= rows[0].max, "{rows:?}");
    Dialogue::new("rping -C 5").run(&a, &b)?;
    Ok(())
}

#[test]
fn a_guest_runs_commands_and_keeps_files() -> Result<()> {
    let name = "a_guest_runs_commands_and_keeps_files";
    let Some(lab) = Lab::open(name, Need::Guest, &[])? else { return Ok(()) };
    let netns = Netns::new("rxe")?;
    let image = Image::get()?;
    let began = Instant::now();
    let guest = Guest::boot(&image, &netns, &Machine { bridge: None, ..machine(1) })?;
    eprintln!("one guest booted in {:.2?}", began.elapsed());
    assert_eq!(guest.run("echo out; echo err >&2; exit 7")?.code(), 7);
    assert_eq!(guest.check("echo \"it's\" '$HOME'")?, "it's $HOME\n");
    let program = lab.tools.program("ip")?;
    guest.put(&program, "/root/copy")?;
    let scratch = Scratch::new("copy")?;
    let back = scratch.join("copy");
    guest.get("/root/copy", &back)?;
    ensure!(
        std::fs::read(&program)? == std::fs::read(&back)?,
        "a file changed on its way to the guest and back"
    );
    // A command that is dropped does not go on in the guest.
    drop(guest.start("sleep", &["4711".into()], std::time::Duration::from_secs(60))?);
    ensure!(!guest.check("ps")?.contains("sleep 4711\n"), "a dropped command goes on");
    Ok(())
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
