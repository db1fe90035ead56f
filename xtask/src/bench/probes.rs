//! What is measured once in every round.

use system_tests::daemon::Io;

/// One thing to measure. Rows of the table refer to it by its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) key: &'static str,
    pub(super) topology: Topology,
    pub(super) work: Work,
}

/// Where it is measured. Probes with the same topology follow each other and share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    /// A fresh veth pair without daemons. Each probe has its own, because attaching an XDP program
    /// once disables offloads at the peer.
    Wire,
    /// One namespace.
    Alone,
    /// A daemon on either end of a veth pair.
    Daemons { io: Io, xdp_mode: &'static str },
    /// Two programs of one daemon.
    OneDaemon,
}

/// How it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A case of `rnic-raw`; its name is the key without `raw/`.
    Raw,
    /// iperf3, one stream.
    Iperf3,
    /// qperf's tcp_lat.
    Qperf { bytes: u32 },
    /// rdma-core's `rstream`, over rsockets.
    Rstream { line: &'static str },
    /// A program of perftest.
    Perftest { line: &'static str, form: Form },
}

/// How a program of perftest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As root, as the daemon.
    Plain,
    /// As root, with memory that the daemon maps.
    SharedMemory,
    /// As an ordinary user, with an engine process.
    OtherUser,
}

const fn raw(key: &'static str) -> Probe {
    Probe { key, topology: Topology::Wire, work: Work::Raw }
}

const fn ours(key: &'static str, topology: Topology, line: &'static str) -> Probe {
    Probe { key, topology, work: Work::Perftest { line, form: Form::Plain } }
}

const fn shared(key: &'static str, topology: Topology, line: &'static str) -> Probe {
    Probe { key, topology, work: Work::Perftest { line, form: Form::SharedMemory } }
}

const fn stream(key: &'static str, topology: Topology, line: &'static str) -> Probe {
    Probe { key, topology, work: Work::Rstream { line } }
}

const fn user(key: &'static str, topology: Topology, line: &'static str) -> Probe {
    Probe { key, topology, work: Work::Perftest { line, form: Form::OtherUser } }
}

const UDP: Topology = Topology::Daemons { io: Io::Udp, xdp_mode: "auto" };
const PACKET: Topology = Topology::Daemons { io: Io::AfPacket, xdp_mode: "auto" };
const NATIVE: Topology = Topology::Daemons { io: Io::AfXdp, xdp_mode: "native" };
const GENERIC: Topology = Topology::Daemons { io: Io::AfXdp, xdp_mode: "generic" };

// About a second each, as iperf3 and qperf: programs and caches need some time to warm up.
const WRITE_64K: &str = "ib_write_bw -s 65536 -m 4096 -n 30000";
const WRITE_1M: &str = "ib_write_bw -s 1048576 -m 4096 -n 4000";
const WRITE_64K_1024: &str = "ib_write_bw -s 65536 -m 1024 -n 10000";
const SEND_64K: &str = "ib_send_bw -s 65536 -m 4096 -n 30000";
const SEND_1M: &str = "ib_send_bw -s 1048576 -m 4096 -n 4000";
const READ_64K: &str = "ib_read_bw -s 65536 -m 4096 -n 30000";
const READ_1M: &str = "ib_read_bw -s 1048576 -m 4096 -n 4000";
const WRITE_LAT: &str = "ib_write_lat -s 8 -n 50000";
const SEND_LAT: &str = "ib_send_lat -s 8 -n 50000";
const SEND_LAT_EVENTS: &str = "ib_send_lat -s 8 -n 20000 -e";
const RATE_1: &str = "ib_write_bw -s 8 -n 500000";
const RATE_16: &str = "ib_write_bw -s 8 -n 30000 -q 16";

// Each turn sends so much one way and then back.
const STREAM_64K: &str = "rstream -S 65536 -C 15000";
const STREAM_1M: &str = "rstream -S 1048576 -C 1000";
const STREAM_LAT: &str = "rstream -S 64 -C 1 -I 20000";

/// In the order of measuring.
pub(super) const PROBES: &[Probe] = &[
    Probe { key: "iperf3", topology: Topology::Wire, work: Work::Iperf3 },
    Probe { key: "qperf", topology: Topology::Wire, work: Work::Qperf { bytes: 8 } },
    Probe { key: "qperf-64", topology: Topology::Wire, work: Work::Qperf { bytes: 64 } },
    Probe { key: "iperf3-lo", topology: Topology::Alone, work: Work::Iperf3 },
    raw("raw/udp/4096x15/memcpy"),
    raw("raw/udp/1024x62/memcpy"),
    raw("raw/udp/4096x15/process-vm"),
    raw("raw/udp/1024x62/process-vm"),
    raw("raw/udp/write-65536-4096/memcpy"),
    raw("raw/udp/write-1048576-4096/memcpy"),
    raw("raw/udp/write-65536-4096/process-vm"),
    raw("raw/udp/write-1048576-4096/process-vm"),
    raw("raw/udp/write-65536-1024/process-vm"),
    raw("raw/af-packet/write-65536-4096/process-vm"),
    raw("raw/af-packet/write-1048576-4096/process-vm"),
    raw("raw/xdp-native/write-65536-4096/memcpy"),
    raw("raw/xdp-native/write-65536-4096/process-vm"),
    raw("raw/xdp-native/write-65536-1024/memcpy"),
    raw("raw/xdp-native/write-65536-1024/process-vm"),
    raw("raw/xdp-generic/write-65536-4096/memcpy"),
    raw("raw/xdp-generic/write-65536-4096/process-vm"),
    raw("raw/xdp-generic/write-65536-1024/memcpy"),
    raw("raw/xdp-generic/write-65536-1024/process-vm"),
    raw("raw/xdp-native/8x1/memcpy"),
    raw("raw/xdp-generic/8x1/memcpy"),
    raw("raw/ping/udp"),
    raw("raw/ping/af-packet"),
    raw("raw/ping/xdp-native"),
    raw("raw/ping/xdp-generic"),
    raw("raw/ping-2/xdp-native"),
    raw("raw/ping-2/xdp-generic"),
    raw("raw/line"),
    raw("raw/switch"),
    raw("raw/poke/process-vm"),
    raw("raw/loopback/process-vm"),
    raw("raw/loopback/memcpy"),
    ours("udp/write-64k", UDP, WRITE_64K),
    ours("udp/write-1m", UDP, WRITE_1M),
    shared("udp/write-64k-shared", UDP, WRITE_64K),
    shared("udp/write-1m-shared", UDP, WRITE_1M),
    ours("udp/send-64k", UDP, SEND_64K),
    ours("udp/send-1m", UDP, SEND_1M),
    stream("udp/rstream-64k", UDP, STREAM_64K),
    stream("udp/rstream-1m", UDP, STREAM_1M),
    stream("udp/rstream-lat", UDP, STREAM_LAT),
    ours("udp/read-64k", UDP, READ_64K),
    ours("udp/read-1m", UDP, READ_1M),
    ours("udp/write-64k-1024", UDP, WRITE_64K_1024),
    ours("udp/write-lat", UDP, WRITE_LAT),
    ours("udp/send-lat", UDP, SEND_LAT),
    ours("udp/send-lat-events", UDP, SEND_LAT_EVENTS),
    user("udp/user-write-64k", UDP, WRITE_64K),
    user("udp/user-write-lat", UDP, WRITE_LAT),
    ours("af-packet/write-64k", PACKET, WRITE_64K),
    ours("af-packet/write-1m", PACKET, WRITE_1M),
    ours("af-packet/write-lat", PACKET, WRITE_LAT),
    user("af-packet/user-write-64k", PACKET, WRITE_64K),
    user("af-packet/user-write-lat", PACKET, WRITE_LAT),
    ours("xdp-native/write-64k", NATIVE, WRITE_64K),
    ours("xdp-native/write-64k-1024", NATIVE, WRITE_64K_1024),
    shared("xdp-native/write-64k-shared", NATIVE, WRITE_64K),
    shared("xdp-native/write-64k-1024-shared", NATIVE, WRITE_64K_1024),
    ours("xdp-native/rate-1", NATIVE, RATE_1),
    ours("xdp-native/rate-16", NATIVE, RATE_16),
    ours("xdp-native/write-lat", NATIVE, WRITE_LAT),
    user("xdp-native/user-write-64k", NATIVE, WRITE_64K),
    user("xdp-native/user-write-lat", NATIVE, WRITE_LAT),
    ours("xdp-generic/write-64k", GENERIC, WRITE_64K),
    ours("xdp-generic/write-64k-1024", GENERIC, WRITE_64K_1024),
    ours("xdp-generic/rate-1", GENERIC, RATE_1),
    ours("xdp-generic/rate-16", GENERIC, RATE_16),
    ours("xdp-generic/write-lat", GENERIC, WRITE_LAT),
    ours("xdp-generic/send-lat", GENERIC, SEND_LAT),
    ours("xdp-generic/send-lat-events", GENERIC, SEND_LAT_EVENTS),
    ours("loopback/write-1m", Topology::OneDaemon, WRITE_1M),
    shared("loopback/write-1m-shared", Topology::OneDaemon, WRITE_1M),
];
