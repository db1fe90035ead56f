//! Programs with engines of their own.

use super::Metric::{Bytes, Messages, P50, P99};
use super::{Against, Column, Column::Other, Column::Raw, Column::Tcp, Row, Target};
use super::{IPERF3, at_least, at_most, row, shown};

pub(in super::super) const FUNCTION: &str =
    "Function (engine in the program), io udp, path MTU 4096";

/// The same program with the daemon's engine.
const DAEMON: Column = Other("daemon's");

/// Half of a raw round trip and so many microseconds more.
const fn near_ping(offset: f64) -> Against {
    let target = Some(Target::AtMost { factor: 0.5, offset });
    Against { column: Raw, probe: "raw/ping/udp", metric: P50, target }
}

pub(super) const ROWS: &[Row] = &[
    row(
        FUNCTION,
        "WRITE 64 KiB",
        "function/write-64k",
        Bytes,
        &[IPERF3, at_least(Raw, "raw/udp/write-65536-4096/memcpy", Bytes, 0.8)],
    ),
    row(
        FUNCTION,
        "WRITE 1 MiB",
        "function/write-1m",
        Bytes,
        &[
            at_least(Tcp, "iperf3", Bytes, 2.0),
            at_least(Raw, "raw/udp/write-1048576-4096/memcpy", Bytes, 0.8),
        ],
    ),
    row(
        FUNCTION,
        "SEND 64 KiB",
        "function/send-64k",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "function/write-64k", Bytes, 0.8)],
    ),
    row(
        FUNCTION,
        "READ 64 KiB",
        "function/read-64k",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "function/write-64k", Bytes, 0.8)],
    ),
    row(
        FUNCTION,
        "SEND 1 MiB",
        "function/send-1m",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "function/write-1m", Bytes, 0.8)],
    ),
    row(
        FUNCTION,
        "READ 1 MiB",
        "function/read-1m",
        Bytes,
        &[IPERF3, at_least(Other("WRITE"), "function/write-1m", Bytes, 0.8)],
    ),
    row(
        FUNCTION,
        "WRITE 64 KiB, both directions",
        "function/both-64k",
        Bytes,
        &[IPERF3, at_least(Other("one way"), "function/write-64k", Bytes, 1.0)],
    ),
    row(
        FUNCTION,
        "WRITE 1 MiB, both directions",
        "function/both-1m",
        Bytes,
        &[IPERF3, at_least(Other("one way"), "function/write-1m", Bytes, 1.0)],
    ),
    row(
        FUNCTION,
        "WRITE and READ 64 KiB at the same time",
        "function/mixed-64k",
        Bytes,
        &[IPERF3, at_least(Other("one way"), "function/write-64k", Bytes, 1.0)],
    ),
    row(
        FUNCTION,
        "WRITE 8 MiB",
        "function/write-8m",
        Bytes,
        &[
            IPERF3,
            shown(Raw, "raw/udp/write-8388608-4096/memcpy", Bytes),
            at_least(Other("1 MiB"), "function/write-1m", Bytes, 0.8),
        ],
    ),
    row(
        FUNCTION,
        "WRITE 64 KiB, 16 QPs",
        "function/qps-16",
        Bytes,
        &[IPERF3, at_least(Other("1 QP"), "function/write-64k", Bytes, 0.8)],
    ),
    row(
        FUNCTION,
        "WRITE 64 KiB, 128 QPs",
        "function/qps-128",
        Bytes,
        &[
            IPERF3,
            shown(Raw, "raw/udp/write-65536-4096-128/memcpy", Bytes),
            at_least(Other("1 QP"), "function/write-64k", Bytes, 0.8),
        ],
    ),
    row(
        FUNCTION,
        "WRITE 8 B p50",
        "function/write-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.25), near_ping(4.0)],
    ),
    row(
        FUNCTION,
        "WRITE 8 B p99",
        "function/write-lat",
        P99,
        &[at_most(Other("p50"), "function/write-lat", P50, 3.0)],
    ),
    row(
        FUNCTION,
        "SEND 8 B p50",
        "function/send-lat",
        P50,
        &[at_most(Tcp, "qperf", P50, 0.2), near_ping(1.5)],
    ),
    row(
        FUNCTION,
        "SEND 8 B p99",
        "function/send-lat",
        P99,
        &[at_most(Other("p50"), "function/send-lat", P50, 3.0)],
    ),
    row(
        FUNCTION,
        "SEND 8 B p50, sleeping on events",
        "function/send-lat-events",
        P50,
        &[at_most(Tcp, "qperf", P50, 1.0)],
    ),
    row(
        FUNCTION,
        "WRITE 8 B, 1 QP, messages",
        "function/rate-1",
        Messages,
        &[at_least(DAEMON, "udp/rate-1", Messages, 2.0)],
    ),
    row(
        FUNCTION,
        "WRITE 8 B, 16 QPs, messages",
        "function/rate-16",
        Messages,
        &[at_least(DAEMON, "udp/rate-16", Messages, 2.0)],
    ),
    row(
        FUNCTION,
        "two programs of 16 QPs, messages",
        "function/rate-twice",
        Messages,
        &[at_least(DAEMON, "engines-1/rate-twice", Messages, 1.0)],
    ),
    row(
        FUNCTION,
        "WRITE 1 MiB, two programs of one device",
        "loopback/function-write-1m",
        Bytes,
        &[shown(Tcp, "iperf3-lo", Bytes)],
    ),
];
