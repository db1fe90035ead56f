//! The lines of the table, what each is divided by, and how good it has to be.

mod crowd;
mod functions;
mod limits;
mod wide;

pub(super) use functions::FUNCTION;

use super::series::Metric;

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Heading that the row belongs under.
    pub(super) group: &'static str,
    pub(super) title: &'static str,
    pub(super) probe: &'static str,
    pub(super) metric: Metric,
    pub(super) against: &'static [Against],
}

/// What a row is divided by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Against {
    pub(super) column: Column,
    pub(super) probe: &'static str,
    pub(super) metric: Metric,
    pub(super) target: Option<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Kernel TCP on a link of the same kind.
    Tcp,
    /// The limit of the same mechanism, without an engine.
    Raw,
    /// Another row; shown with its target only.
    Other(&'static str),
}

/// How good a row has to be, compared with `factor * other + offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    AtLeast(f64),
    AtMost { factor: f64, offset: f64 },
}

impl Row {
    /// What no engine gets ahead of, and how much of it: the mechanism alone, of whose round trips
    /// a latency is half.
    pub(super) fn limit(&self) -> Option<(&'static str, Metric, f64)> {
        let raw = self.against.iter().find(|against| against.column == Raw)?;
        let share = if raw.metric == P50 { 0.5 } else { 1.0 };
        Some((raw.probe, raw.metric, share))
    }
}

impl Target {
    /// What to divide by, so that 1 is the border.
    pub(super) fn scale(self) -> (f64, f64) {
        match self {
            Self::AtLeast(factor) => (factor, 0.0),
            Self::AtMost { factor, offset } => (factor, offset),
        }
    }

    pub(super) fn is_met_by(self, scaled: f64) -> bool {
        match self {
            Self::AtLeast(_) => scaled >= 1.0,
            Self::AtMost { .. } => scaled <= 1.0,
        }
    }

    pub(super) fn show(self) -> String {
        match self {
            Self::AtLeast(factor) => format!(">= {factor}"),
            Self::AtMost { factor, offset: 0.0 } => format!("<= {factor}"),
            Self::AtMost { factor, offset } => format!("<= {factor} + {offset} us"),
        }
    }
}

use Column::{Other, Raw, Tcp};

/// The same program as root, which the daemon's own engine serves.
const ROOT: Column = Other("root's");

use Metric::{Bytes, Messages, P50, P99};

const fn at_least(column: Column, probe: &'static str, metric: Metric, factor: f64) -> Against {
    Against { column, probe, metric, target: Some(Target::AtLeast(factor)) }
}

const fn at_most(column: Column, probe: &'static str, metric: Metric, factor: f64) -> Against {
    Against { column, probe, metric, target: Some(Target::AtMost { factor, offset: 0.0 }) }
}

const fn shown(column: Column, probe: &'static str, metric: Metric) -> Against {
    Against { column, probe, metric, target: None }
}

/// Half of a raw round trip and 4 us more.
const fn near_raw(probe: &'static str) -> Against {
    let target = Some(Target::AtMost { factor: 0.5, offset: 4.0 });
    Against { column: Raw, probe, metric: P50, target }
}

const fn row(
    group: &'static str,
    title: &'static str,
    probe: &'static str,
    metric: Metric,
    against: &'static [Against],
) -> Row {
    Row { group, title, probe, metric, against }
}

const IPERF3: Against = shown(Tcp, "iperf3", Bytes);
const QPERF: Against = shown(Tcp, "qperf", P50);

const UDP: &str = "io udp, one QP, path MTU 4096";
const PACKET: &str = "io af-packet, one QP, path MTU 4096";
const XDP: &str = "io af-xdp, one QP";
const USER: &str = "An ordinary user at root's daemon (engine process), path MTU 4096";
const LOOPBACK: &str = "Loopback: two programs of one device, 1 MiB";
pub(super) const LATENCY: &str = "Latency of 8 bytes (half a round trip; TCP: qperf tcp_lat)";
const STREAMS: &str = "rsockets: rdma-core's rstream, io udp, path MTU 4096 (64 B: mean of half a round trip; TCP: \
     qperf tcp_lat)";
const RATE: &str = "Message rate, 8-byte WRITE";

/// The raw row that decides whether a run is void.
pub(super) const REFERENCE: &str = "raw/udp/4096x15/memcpy";
/// Its median is at least so much of its best.
pub(super) const STEADY: f64 = 0.75;

/// All rows, in the order of the table.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    limits::ROWS.iter().chain(OURS).chain(wide::ROWS).chain(functions::ROWS).chain(crowd::ROWS)
}

const OURS: &[Row] = &[
    row(
        UDP,
        "WRITE 64 KiB",
        "udp/write-64k",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/udp/write-65536-4096/process-vm", Bytes, 0.8)],
    ),
    row(
        UDP,
        "WRITE 1 MiB",
        "udp/write-1m",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/udp/write-1048576-4096/process-vm", Bytes, 0.8)],
    ),
    row(
        UDP,
        "WRITE 64 KiB, shared memory",
        "udp/write-64k-shared",
        Bytes,
        &[
            at_least(Tcp, "iperf3", Bytes, 1.6),
            at_least(Raw, "raw/udp/write-65536-4096/memcpy", Bytes, 0.7),
        ],
    ),
    row(
        UDP,
        "WRITE 1 MiB, shared memory",
        "udp/write-1m-shared",
        Bytes,
        &[
            at_least(Tcp, "iperf3", Bytes, 2.0),
            at_least(Raw, "raw/udp/write-1048576-4096/memcpy", Bytes, 0.7),
        ],
    ),
    row(
        UDP,
        "SEND 64 KiB",
        "udp/send-64k",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "udp/write-64k", Bytes, 0.8)],
    ),
    row(
        UDP,
        "SEND 1 MiB",
        "udp/send-1m",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "udp/write-1m", Bytes, 0.8)],
    ),
    row(
        UDP,
        "READ 64 KiB",
        "udp/read-64k",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "udp/write-64k", Bytes, 0.7)],
    ),
    row(
        UDP,
        "READ 1 MiB",
        "udp/read-1m",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "udp/write-1m", Bytes, 0.7)],
    ),
    row(
        UDP,
        "WRITE 64 KiB, path MTU 1024",
        "udp/write-64k-1024",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/udp/write-65536-1024/process-vm", Bytes, 0.7)],
    ),
    row(
        PACKET,
        "WRITE 64 KiB",
        "af-packet/write-64k",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/af-packet/write-65536-4096/process-vm", Bytes, 0.8)],
    ),
    row(
        PACKET,
        "WRITE 1 MiB",
        "af-packet/write-1m",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/af-packet/write-1048576-4096/process-vm", Bytes, 0.8)],
    ),
    row(
        XDP,
        "native, WRITE 64 KiB, path MTU 4096",
        "xdp-native/write-64k",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/xdp-native/write-65536-4096/process-vm", Bytes, 0.8)],
    ),
    row(
        XDP,
        "native, WRITE 64 KiB, path MTU 1024",
        "xdp-native/write-64k-1024",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/xdp-native/write-65536-1024/process-vm", Bytes, 0.8)],
    ),
    row(
        XDP,
        "native, WRITE 64 KiB, path MTU 4096, shared memory",
        "xdp-native/write-64k-shared",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/xdp-native/write-65536-4096/memcpy", Bytes, 0.8)],
    ),
    row(
        XDP,
        "native, WRITE 64 KiB, path MTU 1024, shared memory",
        "xdp-native/write-64k-1024-shared",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/xdp-native/write-65536-1024/memcpy", Bytes, 0.8)],
    ),
    row(
        XDP,
        "generic, WRITE 64 KiB, path MTU 4096",
        "xdp-generic/write-64k",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/xdp-generic/write-65536-4096/process-vm", Bytes, 0.8)],
    ),
    row(
        XDP,
        "generic, WRITE 64 KiB, path MTU 1024",
        "xdp-generic/write-64k-1024",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/xdp-generic/write-65536-1024/process-vm", Bytes, 0.8)],
    ),
    row(
        USER,
        "WRITE 64 KiB, udp",
        "udp/user-write-64k",
        Bytes,
        &[IPERF3, at_least(ROOT, "udp/write-64k", Bytes, 0.7)],
    ),
    row(
        USER,
        "WRITE 64 KiB, af-packet",
        "af-packet/user-write-64k",
        Bytes,
        &[IPERF3, at_least(ROOT, "af-packet/write-64k", Bytes, 0.7)],
    ),
    row(
        USER,
        "WRITE 64 KiB, af-xdp native",
        "xdp-native/user-write-64k",
        Bytes,
        &[IPERF3, at_least(ROOT, "xdp-native/write-64k", Bytes, 0.7)],
    ),
    row(
        USER,
        "WRITE 8 B p50, udp",
        "udp/user-write-lat",
        P50,
        &[QPERF, at_most(ROOT, "udp/write-lat", P50, 2.0)],
    ),
    row(
        USER,
        "WRITE 8 B p50, af-packet",
        "af-packet/user-write-lat",
        P50,
        &[QPERF, at_most(ROOT, "af-packet/write-lat", P50, 2.0)],
    ),
    row(
        USER,
        "WRITE 8 B p50, af-xdp native",
        "xdp-native/user-write-lat",
        P50,
        &[QPERF, at_most(ROOT, "xdp-native/write-lat", P50, 2.0)],
    ),
    row(
        LOOPBACK,
        "WRITE",
        "loopback/write-1m",
        Bytes,
        &[shown(Tcp, "iperf3-lo", Bytes), at_least(Raw, "raw/loopback/process-vm", Bytes, 0.8)],
    ),
    row(
        LOOPBACK,
        "WRITE, shared memory",
        "loopback/write-1m-shared",
        Bytes,
        &[at_least(Tcp, "iperf3-lo", Bytes, 2.0), shown(Raw, "raw/loopback/memcpy", Bytes)],
    ),
    row(
        LATENCY,
        "WRITE p50, udp",
        "udp/write-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.25), near_raw("raw/ping/udp")],
    ),
    row(
        LATENCY,
        "WRITE p99, udp",
        "udp/write-lat",
        P99,
        &[at_most(Other("p50"), "udp/write-lat", P50, 5.0)],
    ),
    row(
        LATENCY,
        "SEND p50, udp",
        "udp/send-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.25), near_raw("raw/ping/udp")],
    ),
    row(
        LATENCY,
        "SEND p99, udp",
        "udp/send-lat",
        P99,
        &[at_most(Other("p50"), "udp/send-lat", P50, 5.0)],
    ),
    row(
        LATENCY,
        "SEND p50, udp, sleeping on events",
        "udp/send-lat-events",
        P50,
        &[at_most(Tcp, "qperf", P50, 2.0)],
    ),
    row(
        LATENCY,
        "WRITE p50, af-packet",
        "af-packet/write-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.25), near_raw("raw/ping/af-packet")],
    ),
    row(
        LATENCY,
        "WRITE p50, af-xdp native",
        "xdp-native/write-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.25), near_raw("raw/ping/xdp-native")],
    ),
    row(
        LATENCY,
        "WRITE p50, af-xdp generic",
        "xdp-generic/write-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.25), near_raw("raw/ping/xdp-generic")],
    ),
    row(
        LATENCY,
        "WRITE p99, af-xdp generic",
        "xdp-generic/write-lat",
        P99,
        &[at_most(Other("p50"), "xdp-generic/write-lat", P50, 5.0)],
    ),
    row(
        LATENCY,
        "SEND p50, af-xdp generic",
        "xdp-generic/send-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.25), near_raw("raw/ping/xdp-generic")],
    ),
    row(
        LATENCY,
        "SEND p50, af-xdp generic, sleeping on events",
        "xdp-generic/send-lat-events",
        P50,
        &[at_most(Tcp, "qperf", P50, 2.0)],
    ),
    row(
        STREAMS,
        "64 KiB",
        "udp/rstream-64k",
        Bytes,
        &[IPERF3, at_least(Other("ib_send_bw"), "udp/send-64k", Bytes, 0.9)],
    ),
    row(
        STREAMS,
        "1 MiB",
        "udp/rstream-1m",
        Bytes,
        &[IPERF3, at_least(Other("ib_send_bw"), "udp/send-1m", Bytes, 0.9)],
    ),
    row(STREAMS, "64 B", "udp/rstream-lat", P50, &[at_most(Tcp, "qperf-64", P50, 0.5)]),
    row(
        RATE,
        "1 QP, af-xdp native",
        "xdp-native/rate-1",
        Messages,
        &[at_least(Raw, "raw/xdp-native/8x1/memcpy", Messages, 0.7)],
    ),
    row(
        RATE,
        "16 QPs, af-xdp native",
        "xdp-native/rate-16",
        Messages,
        &[at_least(Raw, "raw/xdp-native/8x1/memcpy", Messages, 0.7)],
    ),
    row(
        RATE,
        "1 QP, af-xdp generic",
        "xdp-generic/rate-1",
        Messages,
        &[at_least(Raw, "raw/xdp-generic/8x1/memcpy", Messages, 0.7)],
    ),
    row(
        RATE,
        "16 QPs, af-xdp generic",
        "xdp-generic/rate-16",
        Messages,
        &[at_least(Raw, "raw/xdp-generic/8x1/memcpy", Messages, 0.7)],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::probes::PROBES;

    #[test]
    fn every_probe_of_a_row_exists() {
        for row in all() {
            let against = row.against.iter().map(|against| against.probe);
            for key in against.chain([row.probe]) {
                assert!(PROBES.iter().any(|probe| probe.key == key), "{key} of {}", row.title);
            }
        }
    }

    #[test]
    fn a_target_with_an_offset_has_its_border_at_one() {
        let target = Target::AtMost { factor: 0.5, offset: 4.0 };
        assert_eq!(target.scale(), (0.5, 4.0));
        assert!(target.is_met_by(0.9) && !target.is_met_by(1.1));
        assert!(Target::AtLeast(0.8).is_met_by(1.0));
    }
}
