//! Unmodified programs that connect by IP address, through librdmacm.

mod devices;

use std::net::Ipv6Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::Dist;
use system_tests::inspect::{Census, counter};
use system_tests::interop::endings;
use system_tests::lab::{Lab, Need, Pair, at_end, long_form};
use system_tests::mad_flood::MadFlood;
use system_tests::native;
use system_tests::netns::{End, NetPair};
use system_tests::packages::Toolbox;
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Cmd, wait_until};
use system_tests::programs::Dialogue;
use system_tests::sender_core::{Kind, SenderCore};

/// Requests of a flood.
const FLOOD: u32 = 2000;

const PROGRAMS: [&str; 6] = ["rping", "ucmatose", "udaddy", "mckey", "rdma_xserver", "ib_write_bw"];

/// Each compares its data, or fails.
const LINES: [&str; 6] = [
    "rping -C 20 -V -S 4000",
    "ucmatose -c 8 -C 20 -S 1000",
    "udaddy -c 4 -C 10 -S 1000",
    "ib_write_bw -R -s 65536 -n 200",
    "ib_send_bw -R -c UD -s 1024 -n 200",
    "ib_read_lat -R -s 8 -n 100",
];

/// How long what takes a moment may take.
const PATIENCE: Duration = Duration::from_secs(30);

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
        let serve = || pair.left.start("rping", &args("-s"), limit);
        let server = once_it_listens(&pair.left, serve)?;
        let client = pair.right.start("rping", &args("-c"), limit)?.wait()?;
        let server = server.wait()?;
        let succeeded = client.success() && server.success();
        ensure!(succeeded, "{address}: server: {server}\nclient: {client}");
    }
    pair.stop()
}

/// A server beside this daemon, once one more identifier listens there than before its start.
fn once_it_listens<T>(node: &Node, start: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = node.cm_listeners()?;
    let server = start()?;
    wait_until("a listener", PATIENCE, || Ok(node.cm_listeners()? > before))?;
    Ok(server)
}

/// Waits until a daemon has no identifier any more.
fn all_identifiers_end(node: &Node, limit: Duration) -> Result<()> {
    wait_until("the end of all identifiers", limit, || Ok(counter(node, "cm_ids")? == 0))
}

/// Endpoints, which come with address, route and queue pair: the server, the client, and what both
/// are told. The number of an XRC target's shared receive queue is private data of its REP.
const ENDPOINTS: [(&str, &str, &[&str]); 3] = [
    ("rdma_server", "rdma_client", &[]),
    ("rdma_xserver", "rdma_xclient", &["-c", "r"]),
    ("rdma_xserver", "rdma_xclient", &["-c", "x"]),
];

#[test]
fn endpoints_connect_between_hosts_and_within_one() -> Result<()> {
    let name = "endpoints_connect_between_hosts_and_within_one";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (v4, v6) = (pair.left.address().to_string(), pair.net.left.ipv6.to_string());
    for client in [&pair.right, &pair.left] {
        for (serves, calls, options) in ENDPOINTS {
            meet(&pair.left, client, (serves, calls), &v4, options)?;
        }
        // Only this server can be told an address.
        meet(&pair.left, client, ("rdma_server", "rdma_client"), &v6, &["-s", &v6])?;
    }
    all_identifiers_end(&pair.left, Duration::from_secs(20))?;
    pair.stop()
}

fn meet(
    at: &Node,
    client: &Node,
    (serves, calls): (&str, &str),
    address: &str,
    options: &[&str],
) -> Result<()> {
    let limit = Duration::from_secs(30);
    let port = system_tests::programs::next_port().to_string();
    let mut args: Vec<String> =
        ["-p", &port].iter().chain(options).map(|arg| (*arg).into()).collect();
    let server = once_it_listens(at, || at.start(serves, &args, limit))?;
    if !options.contains(&"-s") {
        args.extend(["-s".into(), address.into()]);
    }
    let client = client.start(calls, &args, limit)?.wait()?;
    let server = server.wait()?;
    let succeeded = client.success() && server.success();
    ensure!(succeeded, "{calls} {args:?}: server: {server}\nclient: {client}");
    Ok(())
}

/// Connections come up and go down again while each end loses one packet in twenty. Afterwards both
/// daemons have what they had before.
#[test]
fn nothing_is_left_of_connections_over_a_lossy_link() -> Result<()> {
    let name = "nothing_is_left_of_connections_over_a_lossy_link";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::cycles()?);
    let pair = Pair::start(Dist::get()?, &tools, Io::Udp, 4200)?;
    let nodes = [&pair.left, &pair.right];
    cycle(&pair, 50, 10)?;
    let before = nodes.map(|node| Census::at_rest(node, PATIENCE));
    for node in nodes {
        node.rnic(&["fault", "add", "--seed", "7", "drop=5%"]).limit(PATIENCE).check()?;
    }
    let (cycles, at_once) = if long_form() { (10_000, 500) } else { (300, 100) };
    cycle(&pair, cycles, at_once)?;
    for node in nodes {
        eprintln!("{}", node.rnic(&["fault", "list"]).limit(PATIENCE).check()?.trim());
        node.rnic(&["fault", "clear"]).limit(PATIENCE).check()?;
    }
    for (node, before) in nodes.into_iter().zip(before) {
        let before = before?;
        all_identifiers_end(node, PATIENCE)?;
        let after = before.returns(node, PATIENCE)?;
        let again = counter(node, "cm_retransmitted")?;
        let grown = (before.resident_kib, after.resident_kib);
        eprintln!("sent again: {again}; resident KiB, before and after: {grown:?}");
        ensure!(again > 0, "nothing was lost");
    }
    pair.stop()
}

fn cycle(pair: &Pair, cycles: u32, at_once: u32) -> Result<()> {
    let limit = Duration::from_secs(if long_form() { 1500 } else { 90 });
    let port = system_tests::programs::next_port().to_string();
    let to = [pair.left.address().to_string(), port];
    let args = |side: &str, more: &[u32]| {
        let more = more.iter().map(ToString::to_string);
        [side.to_owned()].into_iter().chain(to.clone()).chain(more).collect::<Vec<_>>()
    };
    let serve = || pair.left.start(native::CYCLES, &args("server", &[]), limit);
    let server = once_it_listens(&pair.left, serve)?;
    let client =
        pair.right.start(native::CYCLES, &args("client", &[cycles, at_once]), limit)?.wait()?;
    let server = server.wait()?;
    ensure!(client.success() && server.success(), "server: {server}\nclient: {client}");
    for output in [&server, &client] {
        eprintln!("{}", output.stdout.trim());
        let prefix = format!("ended {cycles} failed 0 ");
        ensure!(output.stdout.starts_with(&prefix), "{output}");
    }
    Ok(())
}

/// A core that only sends, and knows nothing of the connection manager: WRITEs and SENDs with
/// immediate data of up to 16 MiB arrive, also when packets are lost.
#[test]
fn a_core_that_only_sends_needs_no_connection_manager() -> Result<()> {
    let name = "a_core_that_only_sends_needs_no_connection_manager";
    let Some(lab) = Lab::open(name, Need::Root, &["ip"])? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::sink()?);
    for io in [Io::Udp, Io::AfPacket] {
        receive(&tools, io).with_context(|| io.as_str())?;
    }
    Ok(())
}

fn receive(tools: &Toolbox, io: Io) -> Result<()> {
    const MOST: usize = 16 << 20;
    let lengths = [4, 8, 4092, 4096, 4100, 65_536, 1 << 20, MOST];
    let net = NetPair::new(4200)?;
    let daemon = Daemon::start(Dist::get()?, &at_end(&net.left, io))?;
    let node = Node::new(daemon, Host::at_end(&net.left, tools), Dist::get()?);
    let port = system_tests::programs::next_port();
    let line = format!("-d {} -g {} -p {port}", node.device(), node.gid_index());
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let sink = node.start(native::SINK, &args, Duration::from_secs(60))?;
    let (host, messages) = ((net.left.ipv4, &*net.left.mac), 2 * lengths.len());
    let mut core = SenderCore::connect(&net.right, host, port, u32::try_from(messages)?)
        .with_context(|| sink.said())?;
    for kind in [Kind::Write, Kind::Send] {
        for len in lengths {
            // In the middle of each long message the wire loses a packet.
            let lost = (len > 4096).then_some(1);
            core.send(kind, len, lost).with_context(|| sink.said())?;
        }
    }
    let output = sink.wait()?;
    ensure!(output.success(), "{output}");
    ensure!(core.again > 0, "nothing was lost");
    ensure!(counter(&node, "cm_received")? == 0, "a core has no connection manager");
    eprintln!("{}: {}; sent again {}", io.as_str(), output.stdout.trim(), core.again);
    node.stop().map(drop)
}

/// A thousand at once: rdma-core's cmtime. Its server does not end by itself.
#[test]
fn a_thousand_connections_come_up_together() -> Result<()> {
    let name = "a_thousand_connections_come_up_together";
    let Some(lab) = Lab::open(name, Need::Root, &["cmtime"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let count = ["-c", "1000"].map(str::to_owned);
    let serve = || pair.left.start("cmtime", &count, PATIENCE);
    let server = once_it_listens(&pair.left, serve)?;
    let address = ["-s".to_owned(), pair.left.address().to_string()];
    let args: Vec<String> = count.into_iter().chain(address).collect();
    let client = pair.right.start("cmtime", &args, PATIENCE)?.wait()?;
    ensure!(client.success() && !client.stdout.contains("event:"), "{client}\n{}", server.said());
    eprintln!("{}", client.stdout);
    drop(server);
    for node in [&pair.left, &pair.right] {
        eprintln!("sent again: {}", counter(node, "cm_retransmitted")?);
        all_identifiers_end(node, PATIENCE)?;
    }
    pair.stop()
}

/// UCX with its transport over librdmacm: its demonstration of a storage server connects by address
/// and compares what is read and written, with either of its interfaces.
#[test]
fn ucx_connects_by_address() -> Result<()> {
    let Some(lab) = Lab::open("ucx_connects_by_address", Need::Root, &["io_demo"])? else {
        return Ok(());
    };
    let pair = lab.pair(Io::Udp, 4200)?;
    for messages in ["tags", "active messages"] {
        let port = system_tests::programs::next_port().to_string();
        let run = |node: &Node, netns: &str, more: &[&str]| -> Result<Cmd> {
            let program = lab.tools.program("io_demo")?;
            let cmd = Cmd::new(node.dist.bin("rnic")).args(["run", "--socket"]);
            let cmd = cmd.arg(node.daemon.socket()).arg("--").arg(program).args(more);
            let cmd = cmd.args(["-p", &port, "-q", "-d", "4096:65536", "-o", "read,write"]);
            let cmd = if messages == "tags" { cmd } else { cmd.arg("-A") };
            let cmd = cmd.env("UCX_TLS", "rc_v,self").env("UCX_NET_DEVICES", "rnic0:1");
            let cmd = cmd.env("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm").limit(PATIENCE);
            Ok(cmd.in_netns(Some(netns)))
        };
        let serve = || run(&pair.left, pair.net.left.netns.name(), &[])?.start();
        let server = once_it_listens(&pair.left, serve)?;
        let address = pair.left.address().to_string();
        let args = [&address, "-i", "300", "-n", "5"];
        let client = run(&pair.right, pair.net.right.netns.name(), &args)?.run()?;
        let said = client.said();
        let is_good = client.success() && said.contains("Client exit with status 'OK'");
        ensure!(is_good, "{messages}: {client}\nserver: {}", server.stderr());
    }
    pair.stop()
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
    let absent = "10.77.0.99".to_owned();
    let address = [pair.left.address().to_string(), absent];
    let output = pair.left.start(native::CM, &address, Duration::from_secs(60))?.wait()?;
    ensure!(output.success(), "{output}");
    // Some are in timewait.
    all_identifiers_end(&pair.left, Duration::from_secs(20))?;
    pair.stop()
}

/// Threads that sleep in calls of librdmacm, its rsockets and libibverbs may be cancelled, and hear
/// of signals as in the kernel's calls; what they used stays usable.
#[test]
fn threads_that_sleep_are_cancelled_and_hear_of_signals() -> Result<()> {
    let name = "threads_that_sleep_are_cancelled_and_hear_of_signals";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::cm()?);
    let pair = Pair::start(Dist::get()?, &tools, Io::Udp, 4200)?;
    let args = [pair.left.address().to_string(), "10.77.0.99".to_owned(), "threads".to_owned()];
    let output = pair.left.start(native::CM, &args, Duration::from_secs(60))?.wait()?;
    ensure!(output.success(), "{output}");
    pair.stop()
}

/// Datagrams to a group, by `rdma_join_multicast`.
#[test]
fn members_of_a_group_hear_what_is_sent_to_it() -> Result<()> {
    let name = "members_of_a_group_hear_what_is_sent_to_it";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let limit = Duration::from_secs(30);
    let (other, same) = ((&pair.right, &pair.net.right), (&pair.left, &pair.net.left));
    for (group, (node, end)) in [("239.1.2.3", other), ("ff15::77", other), ("239.1.2.4", same)] {
        let run = |node: &Node, end: &End, extra: &[&str]| {
            let own = if group.contains(':') { end.ipv6.to_string() } else { end.ipv4.to_string() };
            let common = ["-m", group, "-b", &own, "-C", "20", "-S", "500"];
            let args: Vec<String> = common.iter().chain(extra).map(|arg| (*arg).into()).collect();
            node.start("mckey", &args, limit)
        };
        let member = run(node, end, &[])?;
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
    let said = output.said();
    ensure!(!output.success() && said.contains("REJECTED"), "{output}");
    pair.stop()
}

/// Refused with private data, closed from either side, and either program killed in each state,
/// between hosts and within one.
#[test]
fn connections_end_whatever_state_they_are_in() -> Result<()> {
    let name = "connections_end_whatever_state_they_are_in";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::ends()?);
    let pair = Pair::start(Dist::get()?, &tools, Io::Udp, 4200)?;
    let nodes = [&pair.left, &pair.right];
    let before = nodes.map(|node| Census::at_rest(node, PATIENCE));
    endings::play(&pair.left, &pair.right, false)?;
    endings::play(&pair.left, &pair.left, false)?;
    endings::dies_while_it_disconnects(&pair.left, &pair.right)?;
    for (node, before) in nodes.into_iter().zip(before) {
        all_identifiers_end(node, PATIENCE)?;
        before?.returns(node, PATIENCE)?;
    }
    pair.stop()
}

/// A host asks for more connections than any program decides on, says again what it said, and says
/// nonsense: what it asks for is refused, with the reason that its number has, and others connect
/// meanwhile. Nothing is left.
#[test]
fn a_flood_of_management_datagrams_is_refused_and_counted() -> Result<()> {
    let name = "a_flood_of_management_datagrams_is_refused_and_counted";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let tools = lab.tools.clone().with_built(native::ends()?);
    let pair = Pair::start(Dist::get()?, &tools, Io::Udp, 4200)?;
    let before = Census::at_rest(&pair.left, PATIENCE)?;
    let host = (pair.net.left.ipv4, &*pair.net.left.mac);
    let mut flood = MadFlood::new(&pair.net.right, host)?;
    let (holding, port) = endings::serve(&pair.left, "hold")?;
    // The program has room for eight that it does not decide.
    let mut sent = 0;
    for number in 1..=FLOOD {
        let request = flood.request(number, port);
        sent += u32::from(flood.send(&request)?) + u32::from(flood.send(&request)?);
        let nonsense = flood.nonsense();
        flood.send(&nonsense)?;
    }
    wait_until("the end of the flood", PATIENCE, || Ok(counter(&pair.left, "cm_refused")? > 1000))?;
    let count = |name: &str| counter(&pair.left, name);
    let ids = count("cm_ids")?;
    ensure!((2..=9).contains(&ids), "{ids} identifiers of {sent} requests");
    ensure!(holding.said().matches("CONNECT_REQUEST").count() <= 8, "{}", holding.said());
    for name in ["cm_refused", "cm_duplicates", "cm_malformed", "cm_strangers"] {
        eprintln!("{name} {}", count(name)?);
        ensure!(count(name)? > 0, "no {name}");
    }
    Dialogue::new("rping -C 5 -V").limit(PATIENCE).run(&pair.left, &pair.right)?;
    drop(holding);
    all_identifiers_end(&pair.left, PATIENCE)?;
    before.returns(&pair.left, PATIENCE)?;
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
    let serve = || pair.left.start("rping", &args(&["-s"]), limit);
    let server = once_it_listens(&pair.left, serve)?;
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
    let ended = other.wait()?;
    // What is under way may fail before the event comes.
    let heard = ["RDMA_CM_EVENT_DISCONNECTED", "cq completion failed"];
    ensure!(heard.iter().any(|text| ended.said().contains(text)), "{ended}");
    Ok(())
}
