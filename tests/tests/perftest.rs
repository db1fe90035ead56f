//! Unmodified perftest between two daemons: every operation, its options, every message size.

use anyhow::{Context, Result, ensure};
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need, Pair};
use system_tests::programs::{Dialogue, perftest};

const PROGRAMS: [&str; 1] = ["ib_write_bw"];

/// A line of perftest and the number of rows of its table.
type Case = (&'static str, usize);

/// All sizes from 2 bytes to 8 MiB (`-a`), path MTUs, many QPs, both directions, completion
/// events. `ib_read_*` and `ib_atomic_*` know no UC; atomics move 8 bytes.
const BANDWIDTH: [Case; 19] = [
    ("ib_write_bw -a -n 50 -m 4096", 23),
    ("ib_read_bw -a -n 50 -m 4096", 23),
    ("ib_send_bw -a -n 50 -m 4096", 23),
    ("ib_write_bw -a -n 20 -m 256", 23),
    ("ib_write_bw -s 65536 -n 1000 -m 1024", 1),
    ("ib_read_bw -s 65536 -n 1000 -m 1024", 1),
    ("ib_send_bw -s 65536 -n 1000 -m 1024", 1),
    ("ib_write_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_read_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_write_bw -s 65536 -n 1000 -b", 1),
    ("ib_read_bw -s 65536 -n 1000 -b", 1),
    ("ib_send_bw -s 65536 -n 1000 -b", 1),
    ("ib_write_bw -s 4096 -n 1000 -e", 1),
    ("ib_send_bw -s 4096 -n 1000 -e", 1),
    ("ib_atomic_bw -n 1000 -A FETCH_AND_ADD", 1),
    ("ib_atomic_bw -n 1000 -A CMP_AND_SWAP", 1),
    ("ib_send_bw -s 65536 -n 1000 -r 64 --use-srq", 1),
    ("ib_write_bw -s 65536 -n 1000 -c UC", 1),
];

const LATENCY: [Case; 9] = [
    ("ib_write_lat -a -n 100", 23),
    ("ib_read_lat -a -n 100", 23),
    ("ib_send_lat -a -n 100", 23),
    ("ib_write_lat -s 8 -n 1000 -m 1024", 1),
    ("ib_send_lat -s 8 -n 1000 -e", 1),
    ("ib_send_lat -s 220 -n 1000 -I 220", 1),
    ("ib_atomic_lat -n 1000", 1),
    ("ib_send_lat -s 8 -n 1000 -c UC", 1),
    ("ib_send_lat -s 8 -n 1000 -c UD", 1),
];

/// The few that show that another packet I/O carries everything.
const SHORT: [Case; 4] = [
    ("ib_write_bw -a -n 20 -m 4096", 23),
    ("ib_read_bw -s 65536 -n 500 -m 4096", 1),
    ("ib_send_bw -s 65536 -n 500 -m 1024 -q 8", 1),
    ("ib_send_lat -s 8 -n 500", 1),
];

fn run(pair: &Pair, (line, rows): Case) -> Result<()> {
    let client = Dialogue::new(line).run(&pair.left, &pair.right)?.client;
    let found = if line.contains("_lat ") {
        perftest::latency(&client.stdout)?.len()
    } else {
        perftest::bandwidth(&client.stdout)?.len()
    };
    ensure!(found == rows, "{found} rows in place of {rows}: {client}");
    Ok(())
}

fn all(test: &str, io: Io, cases: &[Case]) -> Result<()> {
    let Some(lab) = Lab::open(test, Need::Root, &PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(io, 4200)?;
    for case in cases {
        run(&pair, *case).with_context(|| format!("{} over {}", case.0, io.as_str()))?;
    }
    pair.stop()
}

#[test]
fn bandwidth_over_udp() -> Result<()> {
    all("bandwidth_over_udp", Io::Udp, &BANDWIDTH)
}

#[test]
fn latency_over_udp() -> Result<()> {
    all("latency_over_udp", Io::Udp, &LATENCY)
}

#[test]
fn a_selection_over_af_xdp() -> Result<()> {
    all("a_selection_over_af_xdp", Io::AfXdp, &SHORT)
}

#[test]
fn a_selection_over_af_packet() -> Result<()> {
    all("a_selection_over_af_packet", Io::AfPacket, &SHORT)
}

/// Connections made by the RDMA CM in place of perftest's own TCP exchange.
#[test]
fn connected_by_the_rdma_cm() -> Result<()> {
    const CASES: [Case; 2] =
        [("ib_write_bw -R -s 65536 -n 500", 1), ("ib_send_lat -R -s 8 -n 500", 1)];
    all("connected_by_the_rdma_cm", Io::Udp, &CASES)
}
