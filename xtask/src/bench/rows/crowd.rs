//! A machine that others use.

use super::Column::Tcp;
use super::Metric::{Bytes, P50, P99};
use super::{Row, at_least, at_most, row, shown};

const CROWD: &str =
    "A process that computes on each CPU, programs in sessions of their own, io udp";

pub(super) const ROWS: &[Row] = &[
    row(CROWD, "iperf3, one stream", "crowd/iperf3", Bytes, &[]),
    row(CROWD, "qperf tcp_lat, 8 bytes", "crowd/qperf", P50, &[]),
    row(
        CROWD,
        "WRITE 64 KiB, daemon",
        "crowd/write-64k",
        Bytes,
        &[shown(Tcp, "crowd/iperf3", Bytes)],
    ),
    row(
        CROWD,
        "SEND 8 B p50, daemon",
        "crowd/send-lat",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 5.0)],
    ),
    // The median hides that now and then the other process has the CPU.
    row(CROWD, "SEND 8 B p99, daemon", "crowd/send-lat", P99, &[]),
    row(
        CROWD,
        "SEND 8 B p50, daemon, sleeping on events",
        "crowd/send-lat-events",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 5.0)],
    ),
    row(
        CROWD,
        "ibv_rc_pingpong, mean, daemon",
        "crowd/pingpong",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 5.0)],
    ),
    row(
        CROWD,
        "ibv_rc_pingpong -e, mean, daemon",
        "crowd/pingpong-events",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 5.0)],
    ),
    row(
        CROWD,
        "WRITE 64 KiB, function",
        "crowd/function-write-64k",
        Bytes,
        &[at_least(Tcp, "crowd/iperf3", Bytes, 1.0)],
    ),
    row(
        CROWD,
        "SEND 8 B p50, function",
        "crowd/function-send-lat",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 3.0)],
    ),
    row(CROWD, "SEND 8 B p99, function", "crowd/function-send-lat", P99, &[]),
    row(
        CROWD,
        "SEND 8 B p50, function, sleeping on events",
        "crowd/function-send-lat-events",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 3.0)],
    ),
    row(
        CROWD,
        "ibv_rc_pingpong, mean, function",
        "crowd/function-pingpong",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 3.0)],
    ),
    row(
        CROWD,
        "ibv_rc_pingpong -e, mean, function",
        "crowd/function-pingpong-events",
        P50,
        &[at_most(Tcp, "crowd/qperf", P50, 3.0)],
    ),
];
