//! Unmodified perftest between two daemons: every operation, its options, every message size over
//! UDP, and some of it over other packet I/O. Except in the long form, the commit says which half
//! of a long table is run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use system_tests::choice;
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need};
use system_tests::place::{OverV6, Place};
use system_tests::programs::{Dialogue, perftest};

const PROGRAMS: [&str; 1] = ["ib_write_bw"];

/// Limit of one program. The slowest takes some seconds, with other work on the machine ten times
/// as long.
const LIMIT: Duration = Duration::from_secs(120);

/// A line of perftest and the number of rows of its table.
type Case = (&'static str, usize);

/// All sizes from 2 bytes to 8 MiB (`-a`), path MTUs, many QPs, both directions, completion
/// events (which `ib_write_*` does not have). Three operations alternate, so that every second row
/// has each of them and each option.
const BANDWIDTH: [Case; 17] = [
    ("ib_write_bw -a -n 10 -m 4096", 23),
    ("ib_read_bw -a -n 10 -m 4096", 23),
    ("ib_send_bw -a -n 10 -m 4096", 23),
    ("ib_write_bw -s 65536 -n 500 -m 256", 1),
    ("ib_read_bw -s 65536 -n 500 -m 256", 1),
    ("ib_send_bw -s 65536 -n 500 -m 256", 1),
    ("ib_write_bw -s 65536 -n 500 -m 1024", 1),
    ("ib_read_bw -s 65536 -n 500 -m 1024", 1),
    ("ib_send_bw -s 65536 -n 500 -m 1024", 1),
    ("ib_write_bw -s 4096 -n 300 -q 16", 1),
    ("ib_read_bw -s 4096 -n 300 -q 16", 1),
    ("ib_send_bw -s 4096 -n 300 -q 16", 1),
    ("ib_write_bw -s 65536 -n 500 -b", 1),
    ("ib_read_bw -s 65536 -n 500 -b", 1),
    ("ib_send_bw -s 65536 -n 500 -b", 1),
    ("ib_read_bw -s 4096 -n 500 -e", 1),
    ("ib_send_bw -s 4096 -n 500 -e", 1),
];

const LATENCY: [Case; 5] = [
    ("ib_write_lat -s 8 -n 500 -m 1024", 1),
    ("ib_read_lat -s 8 -n 500 -e", 1),
    ("ib_send_lat -s 8 -n 500 -e", 1),
    ("ib_send_lat -s 220 -n 500 -I 220", 1),
    ("ib_write_lat -s 220 -n 200 -I 220", 1),
];

/// Messages of the largest possible number of packets, and every size of what the ordinary form
/// tries with one size; only in the long form.
const EVERY_SIZE: [Case; 8] = [
    ("ib_write_bw -a -n 10 -m 256", 23),
    ("ib_write_lat -a -n 10", 23),
    ("ib_read_lat -a -n 10", 23),
    ("ib_send_lat -a -n 10", 23),
    ("ib_write_bw --odp -a -n 10 -m 4096", 23),
    ("ib_write_bw -c UC -a -n 10 -m 4096", 23),
    ("ib_write_bw -c XRC -a -n 10 -m 1024", 23),
    ("ib_send_lat -c UD -a -n 100", 12),
];

const ATOMIC: [Case; 4] = [
    ("ib_atomic_bw -n 500 -A FETCH_AND_ADD", 1),
    ("ib_atomic_bw -n 500 -A CMP_AND_SWAP", 1),
    ("ib_atomic_bw -n 100 -A CMP_AND_SWAP -b -e -q 16", 1),
    ("ib_atomic_lat -n 500", 1),
];

/// Unreliable connections: what the receiving host loses for want of time would not be repeated, so
/// that no case has more on its way than a socket holds, unless its receiver waits for nothing.
const UNRELIABLE: [Case; 9] = [
    ("ib_write_bw -c UC -s 8388608 -n 5 -m 4096", 1),
    ("ib_write_bw -c UC -s 65536 -n 200 -q 16", 1),
    ("ib_write_bw -c UC -s 65536 -n 200 -b", 1),
    ("ib_send_bw -c UC -s 4096 -n 500 -m 4096", 1),
    ("ib_send_bw -c UC -s 4096 -n 500 -e", 1),
    ("ib_write_lat -c UC -s 65536 -n 200", 1),
    ("ib_send_lat -c UC -s 4096 -n 200 -m 1024", 1),
    ("ib_send_lat -c UC -s 220 -n 500 -I 220", 1),
    ("ib_send_bw -c UC --use-srq -s 4096 -n 100", 1),
];

/// Datagrams of every size: one packet each, so that `-a` ends at the path MTU.
const DATAGRAMS_OF_EVERY_SIZE: [Case; 1] = [("ib_send_bw -c UD -a -n 100", 12)];

/// No queue pair gets more datagrams than its receives are, as none is refused for now.
const DATAGRAMS: [Case; 8] = [
    ("ib_send_bw -c UD -s 4096 -n 500", 1),
    ("ib_send_bw -c UD -s 1024 -n 100 -q 16", 1),
    ("ib_send_bw -c UD -s 1024 -n 500 -b", 1),
    ("ib_send_bw -c UD -s 1024 -n 500 -e", 1),
    ("ib_send_bw -c UD --use-srq -s 1024 -n 500", 1),
    ("ib_send_lat -c UD -s 64 -n 500 -e", 1),
    ("ib_send_lat -c UD -s 220 -n 500 -I 220", 1),
    ("ib_send_lat -c UD --use-srq -s 64 -n 500", 1),
];

/// Datagrams to a group, IPv4 or IPv6, whose members are both ends; perftest has one queue pair for
/// that.
const GROUPS: [Case; 3] = [
    ("ib_send_bw -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3 -s 1024 -n 500", 1),
    ("ib_send_bw -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3 -s 1024 -n 500 -e", 1),
    ("ib_send_lat -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3 -s 64 -n 500", 1),
];

const GROUPS_OVER_IPV6: [Case; 1] =
    [("ib_send_bw -c UD -g -M 255:14:0:0:0:0:0:0:0:0:0:0:0:0:18:52 -s 1024 -n 500", 1)];

/// Many queue pairs, or one, on a shared receive queue.
const SHARED: [Case; 4] = [
    ("ib_send_bw --use-srq -s 4096 -n 300 -q 16", 1),
    ("ib_send_bw --use-srq -s 4096 -n 200 -b -q 2", 1),
    ("ib_send_bw --use-srq -s 65536 -n 500 -e", 1),
    ("ib_send_lat --use-srq -s 8 -n 500", 1),
];

/// On-demand memory. perftest takes it for no atomics and no unreliable connections.
const ON_DEMAND: [Case; 4] = [
    ("ib_write_bw --odp -s 8388608 -n 5 -m 4096", 1),
    ("ib_read_bw --odp -s 65536 -n 500", 1),
    ("ib_send_bw --odp -s 65536 -n 500 -q 4", 1),
    ("ib_send_lat --odp -s 8 -n 500", 1),
];

/// XRC: each request names a shared receive queue.
const NAMED: [Case; 12] = [
    ("ib_send_bw -c XRC -s 65536 -n 500 -m 4096", 1),
    ("ib_send_bw -c XRC -s 4096 -n 300 -q 16", 1),
    ("ib_send_bw -c XRC -s 4096 -n 500 -b -e", 1),
    ("ib_send_lat -c XRC -s 64 -n 500", 1),
    ("ib_send_bw -c XRC --use-srq -s 4096 -n 300", 1),
    ("ib_send_lat -c XRC -s 220 -n 200 -I 220", 1),
    ("ib_write_bw -c XRC -s 65536 -n 200 -b -q 4", 1),
    ("ib_write_lat -c XRC -s 8 -n 200", 1),
    ("ib_read_bw -c XRC -s 65536 -n 200 -m 4096", 1),
    ("ib_read_lat -c XRC -s 8 -n 200", 1),
    ("ib_atomic_bw -c XRC -A FETCH_AND_ADD -n 200", 1),
    ("ib_atomic_lat -c XRC -A CMP_AND_SWAP -n 200", 1),
];

/// A few cases that show that another packet I/O or address family works.
const SHORT: [Case; 7] = [
    ("ib_write_bw -s 8388608 -n 5 -m 4096", 1),
    ("ib_read_bw -s 65536 -n 200 -m 4096", 1),
    ("ib_send_bw -s 65536 -n 200 -m 1024 -q 8", 1),
    ("ib_write_lat -s 8 -n 200", 1),
    ("ib_send_lat -s 8 -n 200", 1),
    ("ib_write_lat -c UC -s 8 -n 200", 1),
    ("ib_send_lat -c UD -s 64 -n 200", 1),
];

fn run(server: &dyn Place, client: &dyn Place, (line, rows): Case) -> Result<()> {
    let began = Instant::now();
    let client = Dialogue::new(line).limit(LIMIT).run(server, client)?.client;
    eprintln!("{:5.1} s  {line}", began.elapsed().as_secs_f64());
    let found = if line.contains("_lat ") {
        perftest::latency(&client.stdout)?.len()
    } else {
        perftest::bandwidth(&client.stdout)?.len()
    };
    ensure!(found == rows, "{found} rows instead of {rows}: {client}");
    Ok(())
}

fn all(lab: &Lab, io: Io, tables: &[&[Case]]) -> Result<()> {
    let pair = lab.pair(io, 4200)?;
    for case in tables.concat() {
        run(&pair.left, &pair.right, case)
            .with_context(|| format!("{} over {}", case.0, io.as_str()))?;
    }
    pair.stop()
}

const OVER_IPV6: [&str; 2] = [PROGRAMS[0], "ibv_devinfo"];

fn over_ipv6(test: &str, lab: Option<Lab>, io: Io) -> Result<()> {
    let Some(lab) = lab else { return Ok(()) };
    let pair = lab.pair(io, 4200)?;
    let left = OverV6::of(&pair.left, pair.net.left.ipv6)?;
    let right = OverV6::of(&pair.right, pair.net.right.ipv6)?;
    for case in [&choice::half(test, &SHORT)[..], &GROUPS_OVER_IPV6].concat() {
        run(&left, &right, case).with_context(|| format!("{} over IPv6", case.0))?;
    }
    pair.stop()
}

#[test]
fn everything_over_udp() -> Result<()> {
    let name = "everything_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::Udp, &[&choice::half(name, &BANDWIDTH), &LATENCY, &ATOMIC])
}

#[test]
fn unreliable_connections_over_udp() -> Result<()> {
    let name = "unreliable_connections_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::Udp, &[&choice::half(name, &UNRELIABLE)])
}

#[test]
fn datagrams_over_udp() -> Result<()> {
    let name = "datagrams_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::Udp, &[&DATAGRAMS_OF_EVERY_SIZE, &choice::half(name, &DATAGRAMS), &GROUPS])
}

#[test]
fn datagrams_over_af_packet() -> Result<()> {
    let name = "datagrams_over_af_packet";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::AfPacket, &[&choice::half(name, &[&DATAGRAMS[..], &GROUPS].concat())])
}

/// Both ends on one device.
#[test]
fn datagrams_that_stay_on_their_host() -> Result<()> {
    let name = "datagrams_that_stay_on_their_host";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    for case in choice::half(name, &[&DATAGRAMS[..], &GROUPS].concat()) {
        run(&pair.left, &pair.left, case).with_context(|| format!("{} on one host", case.0))?;
    }
    pair.stop()
}

#[test]
fn shared_receive_queues_over_udp() -> Result<()> {
    let name = "shared_receive_queues_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::Udp, &[&SHARED])
}

#[test]
fn on_demand_memory_over_udp() -> Result<()> {
    let name = "on_demand_memory_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::Udp, &[&ON_DEMAND])
}

#[test]
fn requests_that_name_their_queue_over_udp() -> Result<()> {
    let name = "requests_that_name_their_queue_over_udp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::Udp, &[&choice::half(name, &NAMED)])
}

#[test]
fn everything_over_af_xdp() -> Result<()> {
    let name = "everything_over_af_xdp";
    let Some(lab) = Lab::open_long(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let tables: [&[Case]; 7] = [
        &BANDWIDTH,
        &EVERY_SIZE,
        &LATENCY,
        &ATOMIC,
        &UNRELIABLE,
        &DATAGRAMS_OF_EVERY_SIZE,
        &DATAGRAMS,
    ];
    all(&lab, Io::AfXdp, &tables)
}

#[test]
fn a_selection_over_af_xdp() -> Result<()> {
    let name = "a_selection_over_af_xdp";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::AfXdp, &[&choice::half(name, &[&SHORT[..], &ATOMIC, &GROUPS].concat())])
}

#[test]
fn a_selection_over_af_packet() -> Result<()> {
    let name = "a_selection_over_af_packet";
    let Some(lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    all(&lab, Io::AfPacket, &[&choice::half(name, &[&SHORT[..], &ATOMIC].concat())])
}

#[test]
fn a_selection_over_udp_and_ipv6() -> Result<()> {
    let name = "a_selection_over_udp_and_ipv6";
    over_ipv6(name, Lab::open(name, Need::Root, &OVER_IPV6)?, Io::Udp)
}

#[test]
fn a_selection_over_af_xdp_and_ipv6() -> Result<()> {
    let name = "a_selection_over_af_xdp_and_ipv6";
    over_ipv6(name, Lab::open_long(name, Need::Root, &OVER_IPV6)?, Io::AfXdp)
}
