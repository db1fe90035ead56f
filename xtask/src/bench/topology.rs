//! Sets up the topology of a probe (namespaces, daemons) and measures it once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::{Dist, cargo};
use system_tests::lab::{self, Pair};
use system_tests::native;
use system_tests::netns::NetPair;
use system_tests::packages::Toolbox;
use system_tests::paths::{self, Scratch};
use system_tests::place::{Host, Job, Node, Place};
use system_tests::process::{Cmd, User};
use system_tests::programs::{Dialogue, iperf3, perftest, pingpong, qperf, rstream};

use super::crowd::{Crowd, apart};
use super::probes::{Form, Probe, Topology, Work};
use super::series::Metric;

/// Carries RoCE path MTU 4096 with headers.
const MTU: u32 = 4200;
/// Duration of a raw case, in milliseconds.
const RAW_MILLIS: u32 = 300;

/// One measurement.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) values: Vec<(Metric, f64)>,
    /// The share of the time that a pinned process of ours waited for its core, where the topology
    /// has no more processes than cores.
    pub(super) waited: f64,
}

impl Reading {
    fn of(values: Vec<(Metric, f64)>) -> Self {
        Self { values, waited: 0.0 }
    }

    /// The sum of two that were taken at the same time.
    fn and(self, other: &Self) -> Self {
        let pairs = self.values.iter().zip(&other.values);
        Self::of(pairs.map(|((metric, one), (_, other))| (*metric, one + other)).collect())
    }
}

/// What every topology needs: programs and tools.
pub(super) struct Fixtures {
    pub(super) dist: &'static Dist,
    pub(super) tools: Toolbox,
    /// Where the installation is: outside the checkout, which may be closed to other users.
    _scratch: Scratch,
    pub(super) raw: Raw,
}

/// `rnic-raw`, which measures without an engine.
#[derive(Clone)]
pub(super) struct Raw(PathBuf);

impl Raw {
    pub(super) fn measure(&self, net: &NetPair, case: &str, millis: u32) -> Result<Reading> {
        let [left, right] = [&net.left, &net.right].map(|end| end.netns.name());
        let text = Cmd::new(&self.0).args([case, left, right]).arg(millis.to_string()).check()?;
        let report: Value = serde_json::from_str(&text).context("rnic-raw printed no JSON")?;
        let names = [
            ("bytes_per_second", Metric::Bytes),
            ("packets_per_second", Metric::Messages),
            ("p50_us", Metric::P50),
            ("p99_us", Metric::P99),
        ];
        let value = |(name, metric)| Some((metric, report[name].as_f64()?));
        let values = names.into_iter().filter_map(value).collect();
        Ok(Reading { values, waited: report["waited"].as_f64().unwrap_or(0.0) })
    }
}

impl Fixtures {
    pub(super) fn new(dist: &Dist, tools: Toolbox) -> Result<Self> {
        cargo()
            .args(["build", "--release", "--quiet", "-p", "rnic-bench", "--bin", "rnic-raw"])
            .limit(Duration::from_secs(1800))
            .check()?;
        Self::of_programs(dist, tools.with_built(native::spinners()?))
    }

    /// For programs of others that have the machine alone.
    pub(super) fn of_programs(dist: &Dist, tools: Toolbox) -> Result<Self> {
        let scratch = Scratch::new("bench")?;
        let dist = Box::leak(Box::new(dist.copy_to(&scratch.join("dist"))?));
        let raw = Raw(paths::target().join("release/rnic-raw"));
        Ok(Self { dist, tools, _scratch: scratch, raw })
    }
}

/// A topology that is set up.
pub(super) enum Set {
    Bare(NetPair),
    Daemons(Box<Pair>),
    OneDaemon(Box<Node>, NetPair),
    /// One of these on a machine that others use.
    Crowded(Box<Set>, Crowd),
}

impl Set {
    pub(super) fn new(fixtures: &Fixtures, topology: Topology) -> Result<Self> {
        match topology {
            Topology::Wire | Topology::Alone => Ok(Self::Bare(NetPair::new(MTU)?)),
            Topology::Daemons { io, xdp_mode } => {
                let options = if io == Io::AfXdp { &["--xdp-mode", xdp_mode][..] } else { &[] };
                Ok(Self::Daemons(Box::new(pair(fixtures, io, options)?)))
            }
            Topology::Engines(count) => {
                let options = ["--engines", &count.to_string()];
                Ok(Self::Daemons(Box::new(pair(fixtures, Io::Udp, &options)?)))
            }
            Topology::CrowdedWire => Self::Bare(NetPair::new(MTU)?).crowded(fixtures),
            Topology::Crowded => {
                let mut pair = pair(fixtures, Io::Udp, &[])?;
                for node in [&mut pair.left, &mut pair.right] {
                    node.host.through = apart(&fixtures.tools)?;
                }
                Self::Daemons(Box::new(pair)).crowded(fixtures)
            }
            Topology::OneDaemon => {
                let net = NetPair::new(MTU)?;
                let daemon = Daemon::start(fixtures.dist, &lab::at_end(&net.left, Io::Udp))?;
                let host = Host::at_end(&net.left, &fixtures.tools);
                Ok(Self::OneDaemon(Box::new(Node::new(daemon, host, fixtures.dist)), net))
            }
        }
    }

    fn crowded(self, fixtures: &Fixtures) -> Result<Self> {
        Ok(Self::Crowded(Box::new(self), Crowd::gather(&fixtures.tools)?))
    }

    /// Others use the machine.
    pub(super) fn is_crowded(&self) -> bool {
        matches!(self, Self::Crowded(..))
    }

    /// The daemons of the topology.
    pub(super) fn pids(&self) -> Vec<u32> {
        match self {
            Self::Bare(_) => Vec::new(),
            Self::Daemons(pair) => vec![pair.left.daemon.pid(), pair.right.daemon.pid()],
            Self::OneDaemon(node, _) => vec![node.daemon.pid()],
            Self::Crowded(set, _) => set.pids(),
        }
    }

    pub(super) fn measure(&self, fixtures: &Fixtures, probe: &Probe) -> Result<Reading> {
        match (self, probe.work) {
            (Self::Crowded(set, _), _) => set.measure(fixtures, probe),
            (Self::Bare(net), Work::Raw) => {
                let case = probe.key.strip_prefix("raw/");
                let case = case.context("a raw probe's key begins with raw/")?;
                fixtures.raw.measure(net, case, RAW_MILLIS)
            }
            (Self::Bare(net), Work::Iperf3) => {
                tcp(fixtures, net, probe.topology, |server, client| {
                    let report =
                        Dialogue::new("iperf3").client("--json -t 1").run(server, client)?;
                    let bits = iperf3::received_bits_per_second(&report.client.stdout)?;
                    Ok(vec![(Metric::Bytes, bits / 8.0)])
                })
            }
            (Self::Bare(net), Work::Qperf { bytes }) => {
                tcp(fixtures, net, probe.topology, |server, client| {
                    let line = format!("-t 1 -m {bytes} tcp_lat");
                    let report = Dialogue::new("qperf").client(&line).run(server, client)?;
                    let seconds = qperf::value(&report.client.stdout, "latency")?;
                    Ok(vec![(Metric::P50, seconds * 1e6)])
                })
            }
            (Self::Daemons(pair), Work::Perftest { line, form }) => {
                program(line, &beside(&pair.left, 0, form), &beside(&pair.right, 1, form))
            }
            (Self::Daemons(pair), Work::Both { lines, form }) => {
                let run = |line| {
                    program(line, &beside(&pair.left, 0, form), &beside(&pair.right, 1, form))
                };
                std::thread::scope(|scope| {
                    let other = scope.spawn(|| run(lines[0]));
                    let one = run(lines[1])?;
                    let other = other.join().map_err(|_| anyhow!("a test panicked"))??;
                    Ok(one.and(&other))
                })
            }
            (Self::Daemons(pair), Work::Pingpong { line, form }) => {
                let [server, client] = [(&pair.left, 0), (&pair.right, 1)]
                    .map(|(node, side)| beside(node, side, form));
                let report = Dialogue::new(line).run(&server, &client)?.client.stdout;
                let half = pingpong::result(&report)?.round_trip / 2.0;
                Ok(Reading::of(vec![(Metric::P50, half)]))
            }
            (Self::Daemons(pair), Work::Rstream { line }) => {
                let [server, client] = [(&pair.left, 0), (&pair.right, 1)]
                    .map(|(node, side)| beside(node, side, Form::Plain));
                let report = Dialogue::new(line).run(&server, &client)?.client.stdout;
                let rstream::Row { rate, transfer } = rstream::row(&report)?;
                Ok(Reading::of(vec![(Metric::Bytes, rate), (Metric::P50, transfer)]))
            }
            (Self::OneDaemon(node, _), Work::Perftest { line, form }) => {
                program(line, &beside(node, 0, form), &beside(node, 1, form))
            }
            _ => bail!("{} does not fit its topology", probe.key),
        }
    }

    /// Ends the daemons in order.
    pub(super) fn strike(self) -> Result<()> {
        match self {
            Self::Bare(_) => Ok(()),
            Self::Daemons(pair) => pair.stop(),
            Self::OneDaemon(node, _net) => node.stop().map(drop),
            Self::Crowded(set, crowd) => {
                drop(crowd);
                set.strike()
            }
        }
    }
}

/// Two daemons on a veth pair, with these options.
pub(super) fn pair(fixtures: &Fixtures, io: Io, options: &[&str]) -> Result<Pair> {
    let net = NetPair::new(MTU)?;
    let node = |end, side| -> Result<Node> {
        let mut spec = lab::at_end(end, io);
        spec.extra.extend(options.iter().map(|option| (*option).to_owned()));
        let daemon = Daemon::start(fixtures.dist, &spec)?;
        let host = Host { cpu: lab::cpu_of(side), ..Host::at_end(end, &fixtures.tools) };
        Ok(Node::new(daemon, host, fixtures.dist))
    };
    let (left, right) = (node(&net.left, 0)?, node(&net.right, 1)?);
    Ok(Pair { left, right, net })
}

fn tcp(
    fixtures: &Fixtures,
    net: &NetPair,
    topology: Topology,
    run: impl Fn(&Host, &Host) -> Result<Vec<(Metric, f64)>>,
) -> Result<Reading> {
    let host = |end, side| Host { cpu: lab::cpu_of(side), ..Host::at_end(end, &fixtures.tools) };
    let (mut server, mut client) = (host(&net.left, 0), host(&net.right, 1));
    if topology == Topology::CrowdedWire {
        server.through = apart(&fixtures.tools)?;
        client.through.clone_from(&server.through);
    }
    if topology == Topology::Alone {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        client = Host { address, cpu: client.cpu, ..server.clone() };
        server.address = address;
    }
    run(&server, &client).map(Reading::of)
}

pub(super) fn program(line: &str, server: &Beside<'_>, client: &Beside<'_>) -> Result<Reading> {
    let text = Dialogue::new(line).run(server, client)?.client.stdout;
    if line.contains("_lat ") {
        let row = perftest::latency(&text)?.pop().context("no row")?;
        return Ok(Reading::of(vec![(Metric::P50, row.typical), (Metric::P99, row.p99)]));
    }
    let row = perftest::bandwidth(&text)?.pop().context("no row")?;
    Ok(Reading::of(vec![(Metric::Bytes, row.average), (Metric::Messages, row.messages)]))
}

/// A daemon's programs on one CPU.
pub(super) struct Beside<'a> {
    node: &'a Node,
    cpu: Option<usize>,
    form: Form,
}

pub(super) fn beside(node: &Node, side: usize, form: Form) -> Beside<'_> {
    Beside { node, cpu: lab::cpu_of(side), form }
}

impl Place for Beside<'_> {
    fn device(&self) -> &str {
        self.node.device()
    }

    fn gid_index(&self) -> u32 {
        self.node.gid_index()
    }

    fn address(&self) -> IpAddr {
        self.node.address()
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        let host = &self.node.host;
        let cmd = match self.form {
            Form::Plain => self.node.cmd(program)?,
            Form::OtherUser => self.node.cmd(program)?.as_user(Some(User::NOBODY)),
            Form::Function => self.node.cmd(program)?.env("RNIC_ENGINE", "program"),
            Form::SharedMemory => Cmd::new(self.node.dist.bin("rnic"))
                .args(["run", "--shared-memory", "--socket"])
                .arg(self.node.daemon.socket())
                .arg("--")
                .arg(host.tools.program(program)?)
                .in_netns(host.netns.as_deref()),
        };
        Ok(Box::new(cmd.on_cpu(self.cpu).args(args).limit(limit).start()?))
    }

    fn listens(&self, port: u16) -> Result<bool> {
        self.node.listens(port)
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self.values.iter().map(|(metric, value)| metric.show(*value)).collect();
        f.write_str(&shown.join(", "))
    }
}
