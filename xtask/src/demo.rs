//! `cargo xtask demo`: unmodified RDMA programs at work, and a short table of what they measured.
//!
//! Root sees two network namespaces joined by a veth with a daemon in each. Other users see
//! two daemons on loopback addresses. To show another program, add it to [`STEPS`].

use std::net::IpAddr;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Pair, cpu_of};
use system_tests::netns::{self, NetPair};
use system_tests::packages::Toolbox;
use system_tests::place::{Host, Node, Place};
use system_tests::process::is_root;
use system_tests::programs::{Dialogue, iperf3, perftest, pingpong, qperf};

/// What the number in a program's output means.
#[derive(Clone, Copy, PartialEq)]
enum Quantity {
    /// Bytes per second.
    Rate,
    /// Microseconds of half a round trip.
    Delay,
    /// Only that it worked.
    Success,
}

struct Step {
    title: &'static str,
    line: &'static str,
    quantity: Quantity,
    read: fn(&str) -> Result<f64>,
}

/// What is shown on every kind of packet I/O.
const STEPS: [Step; 5] = [
    Step {
        title: "ping-pong, data checked",
        line: "ibv_rc_pingpong -c -m 4096 -n 2000",
        quantity: Quantity::Success,
        read: half_round_trip,
    },
    Step {
        title: "RDMA WRITE 64 KiB",
        line: "ib_write_bw -s 65536 -m 4096 -n 10000",
        quantity: Quantity::Rate,
        read: bandwidth,
    },
    Step {
        title: "RDMA READ 64 KiB",
        line: "ib_read_bw -s 65536 -m 4096 -n 10000",
        quantity: Quantity::Rate,
        read: bandwidth,
    },
    Step {
        title: "SEND 64 KiB",
        line: "ib_send_bw -s 65536 -m 4096 -n 10000",
        quantity: Quantity::Rate,
        read: bandwidth,
    },
    Step {
        title: "RDMA WRITE 8 B, latency",
        line: "ib_write_lat -s 8 -n 10000",
        quantity: Quantity::Delay,
        read: latency,
    },
];

/// Programs of the demo that are not on every machine.
const PROGRAMS: [&str; 5] = ["ibv_rc_pingpong", "ib_write_bw", "iperf3", "qperf", "dpkg-deb"];

/// Carries RoCE path MTU 4096 with headers.
const MTU: u32 = 4200;

/// A column of the table: a title and one result for each step.
struct Column {
    title: &'static str,
    cells: Vec<Result<f64>>,
}

/// What TCP does over a link of the same kind.
struct Tcp {
    rate: f64,
    delay: f64,
}

pub(crate) fn run() -> Result<()> {
    let began = Instant::now();
    let tools = provide()?;
    eprintln!("building the optimized programs: some minutes the first time");
    let dist = Dist::release()?;
    let (columns, tcp) = if is_root() {
        netns::sweep()?;
        let af_xdp = on_veth(dist, &tools, Io::AfXdp)?;
        (vec![af_xdp, on_veth(dist, &tools, Io::Udp)?], tcp_on_veth(&tools)?)
    } else {
        eprintln!("not root: two daemons on loopback addresses, kernel UDP sockets only");
        (vec![on_loopback(dist, &tools)?], tcp_on_loopback(&tools)?)
    };
    print!("{}", table(&columns, &tcp));
    println!("\n\"vs TCP\": how many times as fast as TCP, or how many times shorter the latency");
    println!("done in {:.0} s", began.elapsed().as_secs_f64());
    let failures = columns.iter().flat_map(|column| &column.cells).filter(|c| c.is_err()).count();
    if failures > 0 {
        bail!("{failures} programs failed");
    }
    Ok(())
}

fn provide() -> Result<Toolbox> {
    let mut programs = PROGRAMS.to_vec();
    if is_root() {
        programs.push("ip");
    }
    Toolbox::provide(&programs)
}

/// Two namespaces, a veth, a daemon in each.
fn on_veth(dist: &'static Dist, tools: &Toolbox, io: Io) -> Result<Column> {
    let pair = Pair::start(dist, tools, io, MTU)?;
    let column = show(io, &pair.left, &pair.right);
    pair.stop()?;
    column
}

/// Two daemons of an ordinary user; programs are started by `rnic run`.
fn on_loopback(dist: &'static Dist, tools: &Toolbox) -> Result<Column> {
    let node = |side: u8| -> Result<Node> {
        let address = IpAddr::from([127, 0, 0, side + 1]);
        let spec = Spec { addresses: vec![address], ..Spec::new(Io::Udp) };
        let host = Host { cpu: cpu_of(side.into()), ..Host::here(address, tools) };
        let daemon = Daemon::start(dist, &spec)?;
        Ok(Node { by_rnic_run: true, ..Node::new(daemon, host, dist) })
    };
    let (left, right) = (node(0)?, node(1)?);
    let column = show(Io::Udp, &left, &right);
    left.stop()?;
    right.stop()?;
    column
}

/// Runs every step between two nodes. A step that fails is a result too.
fn show(io: Io, server: &Node, client: &Node) -> Result<Column> {
    let mut cells = Vec::new();
    for step in &STEPS {
        eprint!("{:<7} {:<45}", io.as_str(), step.line);
        let cell = Dialogue::new(step.line)
            .run(server, client)
            .and_then(|transcript| (step.read)(&transcript.client.stdout));
        system_tests::interrupt::check()?;
        match &cell {
            Ok(value) => eprintln!("{}", shown(step.quantity, *value)),
            Err(error) => eprintln!("FAILED\n{error:#}"),
        }
        cells.push(cell);
    }
    Ok(Column { title: io.as_str(), cells })
}

/// TCP gets a fresh pair: attaching an XDP program once disables offloads at the peer.
fn tcp_on_veth(tools: &Toolbox) -> Result<Tcp> {
    let net = NetPair::new(MTU)?;
    let left = Host { cpu: cpu_of(0), ..Host::at_end(&net.left, tools) };
    let right = Host { cpu: cpu_of(1), ..Host::at_end(&net.right, tools) };
    tcp(&left, &right)
}

fn tcp_on_loopback(tools: &Toolbox) -> Result<Tcp> {
    let host = |side: u8| {
        let address = IpAddr::from([127, 0, 0, side + 1]);
        Host { cpu: cpu_of(side.into()), ..Host::here(address, tools) }
    };
    tcp(&host(0), &host(1))
}

fn tcp(server: &dyn Place, client: &dyn Place) -> Result<Tcp> {
    eprint!("{:<7} {:<45}", "tcp", "iperf3, one stream");
    let report = Dialogue::new("iperf3").client("--json -t 3").run(server, client)?;
    let rate = iperf3::received_bits_per_second(&report.client.stdout)? / 8.0;
    eprintln!("{}", shown(Quantity::Rate, rate));
    eprint!("{:<7} {:<45}", "tcp", "qperf tcp_lat -m 8");
    let report = Dialogue::new("qperf").client("-t 3 -m 8 tcp_lat").run(server, client)?;
    let delay = qperf::value(&report.client.stdout, "latency")? * 1e6;
    eprintln!("{}", shown(Quantity::Delay, delay));
    Ok(Tcp { rate, delay })
}

/// The table with a line for each step: ours, TCP, and how many times better than TCP ours is.
fn table(columns: &[Column], tcp: &Tcp) -> String {
    let mut text = format!("\n{:<26}", "");
    for column in columns {
        text += &format!("{:>11}{:>10}", column.title, "vs TCP");
    }
    text += &format!("{:>11}\n", "TCP");
    for (row, step) in STEPS.iter().enumerate() {
        text += &format!("{:<26}", step.title);
        for column in columns {
            let (value, ratio) = match &column.cells[row] {
                Ok(value) => {
                    let ratio = ratio(step.quantity, *value, tcp);
                    (
                        shown(step.quantity, *value),
                        ratio.map_or(String::new(), |r| format!("{r:.2}x")),
                    )
                }
                Err(_) => ("FAILED".into(), String::new()),
            };
            text += &format!("{value:>11}{ratio:>10}");
        }
        let baseline = match step.quantity {
            Quantity::Rate => shown(Quantity::Rate, tcp.rate),
            Quantity::Delay => shown(Quantity::Delay, tcp.delay),
            Quantity::Success => String::new(),
        };
        text += &format!("{baseline:>11}\n");
    }
    text
}

fn ratio(quantity: Quantity, value: f64, tcp: &Tcp) -> Option<f64> {
    match quantity {
        Quantity::Rate => Some(value / tcp.rate),
        Quantity::Delay => Some(tcp.delay / value),
        Quantity::Success => None,
    }
}

fn shown(quantity: Quantity, value: f64) -> String {
    match quantity {
        Quantity::Rate => format!("{:.2} GB/s", value / 1e9),
        Quantity::Delay => format!("{value:.1} us"),
        Quantity::Success => "ok".into(),
    }
}

fn bandwidth(text: &str) -> Result<f64> {
    Ok(perftest::bandwidth(text)?.last().context("no row")?.average)
}

fn latency(text: &str) -> Result<f64> {
    Ok(perftest::latency(text)?.last().context("no row")?.typical)
}

fn half_round_trip(text: &str) -> Result<f64> {
    Ok(pingpong::result(text)?.round_trip / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_ratios_where_more_is_better() {
        let cells = vec![Ok(5.0), Ok(1e9), Ok(1e9), Err(anyhow::anyhow!("x")), Ok(5.0)];
        let columns = [Column { title: "udp", cells }];
        let text = table(&columns, &Tcp { rate: 4e9, delay: 20.0 });
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert!(lines[0].ends_with("ok                     "), "{:?}", lines[0]);
        assert!(lines[1].contains("1.00 GB/s     0.25x  4.00 GB/s"), "{:?}", lines[1]);
        assert!(lines[3].contains("FAILED"), "{:?}", lines[3]);
        assert!(lines[4].contains("5.0 us     4.00x    20.0 us"), "{:?}", lines[4]);
    }
}
