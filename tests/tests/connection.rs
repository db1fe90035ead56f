//! Unmodified programs that connect by IP address, through librdmacm.

use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need, Pair};
use system_tests::place::Place;
use system_tests::process::wait_until;
use system_tests::programs::Dialogue;

const PROGRAMS: [&str; 4] = ["rping", "ucmatose", "udaddy", "ib_write_bw"];

/// Each compares its data, or fails.
const LINES: [&str; 6] = [
    "rping -C 20 -V -S 4000",
    "ucmatose -c 8 -C 20 -S 1000",
    "udaddy -c 4 -C 10 -S 1000",
    "ib_write_bw -R -s 65536 -n 200",
    "ib_send_bw -R -c UD -s 1024 -n 200",
    "ib_read_lat -R -s 8 -n 100",
];

fn connect(server: &dyn Place, client: &dyn Place) -> Result<()> {
    for line in LINES {
        Dialogue::new(line).run(server, client)?;
        eprintln!("{line}");
    }
    Ok(())
}

fn between_namespaces(test: &str, io: Io) -> Result<()> {
    let Some(lab) = Lab::open(test, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(io, 4200)?;
    connect(&pair.left, &pair.right)?;
    pair.stop()
}

#[test]
fn programs_connect_over_udp() -> Result<()> {
    between_namespaces("programs_connect_over_udp", Io::Udp)
}

#[test]
fn programs_connect_over_af_packet() -> Result<()> {
    between_namespaces("programs_connect_over_af_packet", Io::AfPacket)
}

#[test]
fn programs_connect_within_one_host() -> Result<()> {
    let name = "programs_connect_within_one_host";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    connect(&pair.left, &pair.left)?;
    pair.stop()
}

#[test]
fn rping_connects_over_ipv6() -> Result<()> {
    let Some(lab) = Lab::open("rping_connects_over_ipv6", Need::Root, &PROGRAMS)? else {
        return Ok(());
    };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (limit, address) = (Duration::from_secs(60), pair.net.left.ipv6.to_string());
    let args =
        |side: &str| [side, "-a", &address, "-p", "7174", "-C", "5", "-V"].map(str::to_owned);
    let server = pair.left.start("rping", &args("-s"), limit)?;
    std::thread::sleep(Duration::from_secs(1));
    let client = pair.right.start("rping", &args("-c"), limit)?.wait()?;
    let server = server.wait()?;
    ensure!(client.success() && server.success(), "server: {server}\nclient: {client}");
    pair.stop()
}

/// A client at a port where no program listens hears so at once, and not after a minute of silence.
#[test]
fn a_port_without_a_listener_refuses_at_once() -> Result<()> {
    let name = "a_port_without_a_listener_refuses_at_once";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let args = ["-c", "-a", &pair.left.address().to_string(), "-p", "999"].map(str::to_owned);
    let output = pair.right.start("rping", &args, Duration::from_secs(30))?.wait()?;
    let said = format!("{}{}", output.stdout, output.stderr);
    ensure!(!output.success() && said.contains("REJECTED"), "{output}");
    pair.stop()
}

/// When either end is killed, the other one hears that the connection is over.
#[test]
fn the_death_of_a_program_ends_its_connection() -> Result<()> {
    let name = "the_death_of_a_program_ends_its_connection";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    survive(&pair, true)?;
    survive(&pair, false)?;
    pair.stop()
}

fn survive(pair: &Pair, client_dies: bool) -> Result<()> {
    let limit = Duration::from_secs(60);
    let address = pair.left.address().to_string();
    let port = system_tests::programs::next_port().to_string();
    let common = ["-a", &address, "-p", &port, "-d"].map(str::to_owned);
    let args = |first: &[&str]| {
        let first = first.iter().map(|arg| (*arg).to_owned());
        first.chain(common.iter().cloned()).collect::<Vec<_>>()
    };
    let server = pair.left.start("rping", &args(&["-s"]), limit)?;
    std::thread::sleep(Duration::from_secs(1));
    let client = pair.right.start("rping", &args(&["-c", "-C", "100000000"]), limit)?;
    std::thread::sleep(Duration::from_secs(1));
    let (dies, mut other) = if client_dies { (client, server) } else { (server, client) };
    // Kills it.
    drop(dies);
    wait_until("end of the other program", Duration::from_secs(20), || {
        Ok(other.exit_code()?.is_some())
    })?;
    // What is under way may fail before the event comes.
    let said = other.said();
    let heard = ["RDMA_CM_EVENT_DISCONNECTED", "cq completion failed"];
    ensure!(heard.iter().any(|text| said.contains(text)), "{said}");
    Ok(())
}
