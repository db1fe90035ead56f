//! The first thing a user tries: unmodified pingpong programs between two daemons on a veth.

use anyhow::{Result, ensure};
use system_tests::choice;
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need, Pair};
use system_tests::native::{self, VICTIM};
use system_tests::place::Place;
use system_tests::process::engine_in_program;
use system_tests::programs::{Dialogue, pingpong};

const PROGRAMS: [&str; 6] = [
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ibv_xsrq_pingpong",
    "ibv_devinfo",
];

/// The path MTU, and the interface MTU that carries it with headers.
const MTUS: [(u32, u32); 2] = [(4096, 4200), (1024, 1500)];

/// Runs a pingpong with checked data and compares the amount that it reports.
fn exchange(pair: &Pair, program: &str, size: u64) -> Result<()> {
    let line = format!("{program} -c -s {size} -n 500");
    let transcript = Dialogue::new(&line).run(&pair.left, &pair.right)?;
    for output in [Some(&transcript.client), transcript.server.as_ref()].into_iter().flatten() {
        let result = pingpong::result(&output.stdout)?;
        ensure!(result.bytes == 2 * 500 * size && result.iterations == 500, "{output}");
        ensure!(!output.stdout.contains("invalid data"), "{output}");
    }
    Ok(())
}

/// Pingpongs over reliable and unreliable connections, and without any: each size at one path MTU,
/// and over one of these kinds of connections; in the long form all combinations.
fn over(test: &str, io: Io) -> Result<()> {
    let Some(lab) = Lab::open(test, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let kinds = ["ibv_rc_pingpong", "ibv_uc_pingpong"];
    let ways: Vec<_> = MTUS.iter().flat_map(|mtus| kinds.map(|kind| (*mtus, kind))).collect();
    let connected = choice::pairs(test, &ways, &[1, 4096, 4097, 65_536]);
    let datagrams = choice::pairs(test, &MTUS, &[1, 24, 25, 1000]);
    for mtus in MTUS {
        let (path_mtu, interface_mtu) = mtus;
        let pair = lab.pair(io, interface_mtu)?;
        for ((_, program), size) in connected.iter().filter(|((at, _), _)| *at == mtus) {
            exchange(&pair, &format!("{program} -m {path_mtu}"), **size)?;
        }
        for (_, size) in datagrams.iter().filter(|(at, _)| *at == mtus) {
            exchange(&pair, "ibv_ud_pingpong", **size)?;
        }
        exchange(&pair, "ibv_ud_pingpong", path_mtu.into())?;
        pair.stop()?;
    }
    Ok(())
}

#[test]
fn pingpong_over_udp() -> Result<()> {
    over("pingpong_over_udp", Io::Udp)
}

#[test]
fn pingpong_over_af_xdp() -> Result<()> {
    over("pingpong_over_af_xdp", Io::AfXdp)
}

#[test]
fn pingpong_over_af_packet() -> Result<()> {
    over("pingpong_over_af_packet", Io::AfPacket)
}

/// Sixteen queue pairs, or one, take their receives from one queue.
#[test]
fn srq_pingpong_over_udp() -> Result<()> {
    let name = "srq_pingpong_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let all = ["-m 4096", "-m 1024 -s 65536", "-q 1", "-e", "-e -q 3 -r 20"];
    for options in choice::half(name, &all) {
        let line = format!("ibv_srq_pingpong {options} -n 500");
        Dialogue::new(&line).run(&pair.left, &pair.right)?;
    }
    pair.stop()
}

/// On-demand memory, explicit, or all there is, prefetched or not, and memory of the device.
#[test]
fn pingpong_in_every_kind_of_memory() -> Result<()> {
    let name = "pingpong_in_every_kind_of_memory";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let all = ["-o", "-o -P", "-O", "-O -P", "-O -e -N", "-j", "-j -e", "-j -N"];
    let (chosen, sizes) = (choice::half(name, &all), [(4096, 10_000), (1024, 16)]);
    for ((path_mtu, size), options) in choice::pairs("sizes_of_pingpongs", &sizes, &chosen) {
        exchange(&pair, &format!("ibv_rc_pingpong -m {path_mtu} {options}"), size)?;
    }
    Dialogue::new("ibv_srq_pingpong -c -o -n 500").run(&pair.left, &pair.right)?;
    pair.stop()
}

/// What the tools can vary, beside sizes and memory.
#[test]
fn pingpongs_with_every_option() -> Result<()> {
    let name = "pingpongs_with_every_option";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    // Not -t with -e: the tool gives up at an event whose completion it has polled already.
    let all = ["-t", "-N", "-N -e", "-t -N", "-N -e -l 3 -r 10", "-m 256 -t -N"];
    for options in choice::half(name, &all) {
        exchange(&pair, &format!("ibv_rc_pingpong {options}"), 5000)?;
    }
    // A datagram has no path MTU of its own.
    let kinds = [("ibv_uc_pingpong", " -m 512", 5000), ("ibv_ud_pingpong", "", 700)];
    for ((program, more, size), options) in choice::pairs(name, &kinds, &["-e", "-l 5", "-e -r 10"])
    {
        exchange(&pair, &format!("{program} {options}{more}"), size)?;
    }
    for options in choice::half(name, &["-c", "-c -e -l 2", "-c -q 2 -r 40 -m 2048"]) {
        let line = format!("ibv_srq_pingpong {options} -s 5000 -n 500");
        Dialogue::new(&line).run(&pair.left, &pair.right)?;
    }
    pair.stop()
}

/// One client or several have a connection each, and name one queue of the server.
#[test]
fn xsrq_pingpong_over_udp() -> Result<()> {
    let name = "xsrq_pingpong_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    // They share a domain by a file, which programs with engines of their own do not.
    let counts: &[usize] = if engine_in_program() { &[1] } else { &[1, 4] };
    for (clients, options) in choice::pairs(name, counts, &["-m 4096", "-m 1024 -s 65536", "-e"]) {
        let dialogue = Dialogue::new(&format!("ibv_xsrq_pingpong {options} -n 300"));
        let dialogue = dialogue.server(&format!("-c {clients}"));
        dialogue.run_several(&pair.left, &pair.right, clients)?;
    }
    pair.stop()
}

#[test]
fn a_pingpong_that_sleeps_for_completions() -> Result<()> {
    let name = "a_pingpong_that_sleeps_for_completions";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    Dialogue::new("ibv_rc_pingpong -e -n 500 -m 4096").run(&pair.left, &pair.right)?;
    Dialogue::new("ibv_uc_pingpong -e -n 500 -m 4096").run(&pair.left, &pair.right)?;
    Dialogue::new("ibv_ud_pingpong -e -n 500").run(&pair.left, &pair.right)?;
    pair.stop()
}

#[test]
fn devinfo_shows_an_active_ethernet_port() -> Result<()> {
    let name = "devinfo_shows_an_active_ethernet_port";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let text = pair.left.cmd("ibv_devinfo")?.arg("-v").check()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    for expected in [
        "rnic0",
        "PORT_ACTIVE",
        "4096 (5)",
        "Ethernet",
        "::ffff:10.77.0.1",
        // The device claims no feature that it does not have.
        "max_ah: 262144",
        "max_mw: 1048576",
        "general_odp_caps: ODP_SUPPORT ODP_SUPPORT_IMPLICIT",
        "ud_odp_caps: SUPPORT_SEND SUPPORT_RECV SUPPORT_SRQ",
        "xrc_odp_caps: SUPPORT_SEND SUPPORT_RECV SUPPORT_WRITE SUPPORT_READ SUPPORT_ATOMIC SUPPORT_SRQ",
    ] {
        ensure!(text.contains(expected), "ibv_devinfo -v shows no {expected}:\n{text}");
    }
    pair.stop()
}

#[test]
fn completion_timestamps_agree_with_the_clock_of_the_device() -> Result<()> {
    let name = "completion_timestamps";
    let Some(mut lab) = Lab::open(name, Need::Root, &[])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::victim()?);
    let pair = lab.pair(Io::Udp, 1500)?;
    let gid = pair.left.gid_index().to_string();
    let cmd = pair.left.cmd(VICTIM)?.args(["-d", pair.left.device(), "-g", &gid, "clock"]);
    let output = cmd.run()?;
    ensure!(output.success() && output.stdout.contains("the clocks agree"), "{output}");
    pair.stop()
}
