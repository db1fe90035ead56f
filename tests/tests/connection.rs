//! Unmodified programs that connect by IP address, through librdmacm.

use std::net::Ipv6Addr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::inspect::counter;
use system_tests::lab::{Lab, Need, Pair};
use system_tests::native;
use system_tests::netns::End;
use system_tests::place::{Job, Node, Place};
use system_tests::process::wait_until;
use system_tests::programs::Dialogue;

const PROGRAMS: [&str; 5] = ["rping", "ucmatose", "udaddy", "mckey", "ib_write_bw"];

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
    let limit = Duration::from_secs(60);
    let local = format!("{}%{}", link_local(&pair.net.left.mac)?, End::INTERFACE);
    for address in [pair.net.left.ipv6.to_string(), local] {
        let args =
            |side: &str| [side, "-a", &address, "-p", "7174", "-C", "5", "-V"].map(str::to_owned);
        let server = serve(&pair.left, &args("-s"), limit)?;
        let client = pair.right.start("rping", &args("-c"), limit)?.wait()?;
        let server = server.wait()?;
        let succeeded = client.success() && server.success();
        ensure!(succeeded, "{address}: server: {server}\nclient: {client}");
    }
    pair.stop()
}

/// A server of `rping`, once it listens.
fn serve(node: &Node, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
    let before = node.cm_listeners()?;
    let server = node.start("rping", args, limit)?;
    wait_until("a listener", limit, || Ok(node.cm_listeners()? > before))?;
    Ok(server)
}

/// The address that the kernel makes of an interface's MAC address.
fn link_local(mac: &str) -> Result<Ipv6Addr> {
    let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Vec<u8> = bytes.collect::<std::result::Result<_, _>>()?;
    let [a, b, c, d, e, f] = bytes[..] else { bail!("{mac}") };
    let words = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
    Ok(Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3]))
}

/// What librdmacm answers to calls that make sense and to others; nothing is left of any state in
/// which an identifier is destroyed.
#[test]
fn calls_of_librdmacm_answer_as_rdma_core_does() -> Result<()> {
    let name = "calls_of_librdmacm_answer_as_rdma_core_does";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::cm()?);
    let pair = Pair::start(Dist::get()?, &tools, Io::Udp, 4200)?;
    let address = [pair.left.address().to_string()];
    let output = pair.left.start(native::CM, &address, Duration::from_secs(60))?.wait()?;
    ensure!(output.success(), "{output}");
    // Some are in timewait.
    wait_until("the end of all identifiers", Duration::from_secs(20), || {
        Ok(counter(&pair.left, "cm_ids")? == 0)
    })?;
    pair.stop()
}

/// Datagrams to a group, by `rdma_join_multicast`.
#[test]
fn members_of_a_group_hear_what_is_sent_to_it() -> Result<()> {
    let name = "members_of_a_group_hear_what_is_sent_to_it";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (limit, groups) = (Duration::from_secs(30), ["239.1.2.3", "ff15::77"]);
    for group in groups {
        let run = |node: &Node, end: &End, extra: &[&str]| {
            let own = if group.contains(':') { end.ipv6.to_string() } else { end.ipv4.to_string() };
            let common = ["-m", group, "-b", &own, "-C", "20", "-S", "500"];
            let args: Vec<String> = common.iter().chain(extra).map(|arg| (*arg).into()).collect();
            node.start("mckey", &args, limit)
        };
        let member = run(&pair.right, &pair.net.right, &[])?;
        // The sender waits for some seconds before it sends.
        let sender = run(&pair.left, &pair.net.left, &["-s"])?.wait()?;
        let member = member.wait()?;
        ensure!(sender.success() && member.success(), "member: {member}\nsender: {sender}");
    }
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
    let server = serve(&pair.left, &args(&["-s"]), limit)?;
    let before = counter(&pair.left, "rx_packets")?;
    let client = pair.right.start("rping", &args(&["-c", "-C", "100000000"]), limit)?;
    wait_until("traffic", Duration::from_secs(20), || {
        Ok(counter(&pair.left, "rx_packets")? > before + 1000)
    })?;
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
