//! Transfers with more than one stream, and messages that no cache holds.

use super::Metric::{Bytes, Messages};
use super::{Column::Other, Column::Raw, IPERF3, Row, at_least, row, shown};

const WIDE: &str = "io udp, path MTU 4096: both directions (their sum), 8 MiB, many QPs";

pub(super) const ROWS: &[Row] = &[
    row(
        WIDE,
        "WRITE 64 KiB, both directions",
        "udp/both-64k",
        Bytes,
        &[IPERF3, at_least(Other("one way"), "udp/write-64k", Bytes, 1.0)],
    ),
    row(
        WIDE,
        "WRITE 1 MiB, both directions",
        "udp/both-1m",
        Bytes,
        &[IPERF3, at_least(Other("one way"), "udp/write-1m", Bytes, 1.0)],
    ),
    row(
        WIDE,
        "WRITE and READ 64 KiB at the same time",
        "udp/mixed-64k",
        Bytes,
        &[IPERF3, at_least(Other("one way"), "udp/write-64k", Bytes, 1.0)],
    ),
    row(
        WIDE,
        "WRITE 8 MiB",
        "udp/write-8m",
        Bytes,
        &[
            IPERF3,
            shown(Raw, "raw/udp/write-8388608-4096/process-vm", Bytes),
            at_least(Other("1 MiB"), "udp/write-1m", Bytes, 0.8),
        ],
    ),
    row(
        WIDE,
        "WRITE 64 KiB, 16 QPs",
        "udp/qps-16",
        Bytes,
        &[IPERF3, at_least(Other("1 QP"), "udp/write-64k", Bytes, 0.8)],
    ),
    row(
        WIDE,
        "WRITE 64 KiB, 128 QPs",
        "udp/qps-128",
        Bytes,
        &[
            IPERF3,
            shown(Raw, "raw/udp/write-65536-4096-128/process-vm", Bytes),
            at_least(Other("1 QP"), "udp/write-64k", Bytes, 0.8),
        ],
    ),
    row(WIDE, "WRITE 8 B, 1 QP, messages", "udp/rate-1", Messages, &[]),
    row(WIDE, "WRITE 8 B, 16 QPs, messages", "udp/rate-16", Messages, &[]),
    row(WIDE, "two programs of 16 QPs, messages", "engines-1/rate-twice", Messages, &[]),
    row(WIDE, "the same with --engines 2", "engines-2/rate-twice", Messages, &[]),
];
