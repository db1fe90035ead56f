//! What ours is divided by: kernel TCP, and the mechanism without an engine.

use super::Column::Tcp;
use super::Metric::{Bytes, Messages, P50};
use super::{IPERF3, QPERF, Row, VALIDITY, at_least, row, shown};

const TCP: &str = "Kernel TCP";
const RAW: &str = "Raw limits (no engine; ICRC on both sides)";

pub(super) const ROWS: &[Row] = &[
    row(TCP, "iperf3, one stream, veth", "iperf3", Bytes, &[]),
    row(TCP, "iperf3, one stream, lo", "iperf3-lo", Bytes, &[IPERF3]),
    row(TCP, "qperf tcp_lat, 8 bytes, veth", "qperf", P50, &[]),
    row(
        RAW,
        "UDP GSO 4096x15, memcpy",
        VALIDITY.0,
        Bytes,
        &[at_least(Tcp, "iperf3", Bytes, VALIDITY.1)],
    ),
    row(RAW, "UDP GSO 1024x62, memcpy", "raw/udp/1024x62/memcpy", Bytes, &[IPERF3]),
    row(RAW, "UDP GSO 4096x15, process_vm", "raw/udp/4096x15/process-vm", Bytes, &[IPERF3]),
    row(RAW, "UDP GSO 1024x62, process_vm", "raw/udp/1024x62/process-vm", Bytes, &[IPERF3]),
    row(RAW, "UDP WRITE 64 KiB, memcpy", "raw/udp/write-65536-4096/memcpy", Bytes, &[IPERF3]),
    row(RAW, "UDP WRITE 1 MiB, memcpy", "raw/udp/write-1048576-4096/memcpy", Bytes, &[IPERF3]),
    row(
        RAW,
        "UDP WRITE 64 KiB, process_vm",
        "raw/udp/write-65536-4096/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "UDP WRITE 1 MiB, process_vm",
        "raw/udp/write-1048576-4096/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "UDP WRITE 64 KiB MTU 1024, process_vm",
        "raw/udp/write-65536-1024/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_PACKET WRITE 64 KiB, process_vm",
        "raw/af-packet/write-65536-4096/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_PACKET WRITE 1 MiB, process_vm",
        "raw/af-packet/write-1048576-4096/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP native 4096, memcpy",
        "raw/xdp-native/write-65536-4096/memcpy",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP native 4096, process_vm",
        "raw/xdp-native/write-65536-4096/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP native 1024, memcpy",
        "raw/xdp-native/write-65536-1024/memcpy",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP native 1024, process_vm",
        "raw/xdp-native/write-65536-1024/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP generic 4096, memcpy",
        "raw/xdp-generic/write-65536-4096/memcpy",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP generic 4096, process_vm",
        "raw/xdp-generic/write-65536-4096/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP generic 1024, memcpy",
        "raw/xdp-generic/write-65536-1024/memcpy",
        Bytes,
        &[IPERF3],
    ),
    row(
        RAW,
        "AF_XDP generic 1024, process_vm",
        "raw/xdp-generic/write-65536-1024/process-vm",
        Bytes,
        &[IPERF3],
    ),
    row(RAW, "AF_XDP native, 66-byte frames, memcpy", "raw/xdp-native/8x1/memcpy", Messages, &[]),
    row(RAW, "AF_XDP generic, 66-byte frames, memcpy", "raw/xdp-generic/8x1/memcpy", Messages, &[]),
    row(RAW, "round trip, UDP", "raw/ping/udp", P50, &[QPERF]),
    row(RAW, "round trip, AF_PACKET", "raw/ping/af-packet", P50, &[QPERF]),
    row(RAW, "round trip, AF_XDP native", "raw/ping/xdp-native", P50, &[QPERF]),
    row(RAW, "round trip, AF_XDP generic", "raw/ping/xdp-generic", P50, &[QPERF]),
    row(RAW, "change of threads on one CPU", "raw/switch", P50, &[]),
    row(RAW, "8 bytes by process_vm", "raw/poke/process-vm", P50, &[]),
    row(
        RAW,
        "loopback, two process_vm copies",
        "raw/loopback/process-vm",
        Bytes,
        &[shown(Tcp, "iperf3-lo", Bytes)],
    ),
    row(
        RAW,
        "loopback, one memcpy",
        "raw/loopback/memcpy",
        Bytes,
        &[shown(Tcp, "iperf3-lo", Bytes)],
    ),
];
