//! What is measured once in every round.

use system_tests::daemon::Io;

/// One thing to measure. Rows of the table refer to it by its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) key: &'static str,
    pub(super) topology: Topology,
    pub(super) work: Work,
}

/// Where it is measured. Probes with the same topology that follow each other share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    /// A fresh veth pair without daemons. Each probe has its own, because attaching an XDP program
    /// once disables offloads at the peer.
    Wire,
    /// One namespace.
    Alone,
    /// A daemon on either end of a veth pair.
    Daemons { io: Io, xdp_mode: &'static str },
    /// The same by UDP sockets, with so many engines in each daemon (`--engines`).
    Engines(u8),
    /// Two programs of one daemon.
    OneDaemon,
    /// As `Wire`, where on each of the two CPUs a process computes, and every program has a session
    /// of its own.
    CrowdedWire,
    /// The same with daemons, by UDP sockets.
    Crowded,
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
    /// Two of them at the same time, for some seconds. Their sum.
    Both { lines: [&'static str; 2], form: Form },
    /// `ibv_rc_pingpong`: half of the mean round trip.
    Pingpong { line: &'static str, form: Form },
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
    /// As root, with an engine of its own.
    Function,
}

const fn raw(key: &'static str) -> Probe {
    Probe { key, topology: Topology::Wire, work: Work::Raw }
}

const fn ours(key: &'static str, topology: Topology, line: &'static str) -> Probe {
    Probe { key, topology, work: Work::Perftest { line, form: Form::Plain } }
}

const fn both(
    key: &'static str,
    topology: Topology,
    lines: [&'static str; 2],
    form: Form,
) -> Probe {
    Probe { key, topology, work: Work::Both { lines, form } }
}

const fn pingpong(key: &'static str, line: &'static str, form: Form) -> Probe {
    Probe { key, topology: Topology::Crowded, work: Work::Pingpong { line, form } }
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

const fn function(key: &'static str, topology: Topology, line: &'static str) -> Probe {
    Probe { key, topology, work: Work::Perftest { line, form: Form::Function } }
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
const SEND_LAT_EVENTS: &str = "ib_send_lat -s 8 -n 500000 -e";
const RATE_1: &str = "ib_write_bw -s 8 -n 500000";
const RATE_16: &str = "ib_write_bw -s 8 -n 30000 -q 16";
const BOTH_64K: &str = "ib_write_bw -b -s 65536 -m 4096 -n 15000";
const BOTH_1M: &str = "ib_write_bw -b -s 1048576 -m 4096 -n 2000";
const WRITE_8M: &str = "ib_write_bw -s 8388608 -m 4096 -n 400";
const QPS_16: &str = "ib_write_bw -s 65536 -m 4096 -n 2000 -q 16";
const QPS_128: &str = "ib_write_bw -s 65536 -m 4096 -n 250 -q 128";

// At the same time, so each for the same time.
const WRITE_AND_READ: [&str; 2] =
    ["ib_write_bw -s 65536 -m 4096 -D 2", "ib_read_bw -s 65536 -m 4096 -D 2"];
const RATE_TWICE: [&str; 2] = ["ib_write_bw -s 8 -D 2 -q 16"; 2];

// Each turn sends so much one way and then back.
const STREAM_64K: &str = "rstream -S 65536 -C 15000";
const STREAM_1M: &str = "rstream -S 1048576 -C 1000";
const STREAM_LAT: &str = "rstream -S 64 -C 1 -I 20000";

// Not as many: without the CPU at the right time each may take milliseconds.
const FEW_SEND_LAT: &str = "ib_send_lat -s 8 -n 5000";
const FEW_SEND_LAT_EVENTS: &str = "ib_send_lat -s 8 -n 5000 -e";
const FEW_PINGPONGS: &str = "ibv_rc_pingpong -s 8 -n 20000";
const FEW_PINGPONGS_EVENTS: &str = "ibv_rc_pingpong -s 8 -n 20000 -e";
const FEW_WRITE_64K: &str = "ib_write_bw -s 65536 -m 4096 -n 10000";

/// In the order of measuring: the raw limit of a row comes shortly before it, because the host
/// may move the machine's CPUs at any time, which changes what a cache line costs on its way
/// between them, and all throughput by a quarter.
pub(super) const PROBES: &[Probe] = &[
    Probe { key: "iperf3-lo", topology: Topology::Alone, work: Work::Iperf3 },
    raw("raw/loopback/process-vm"),
    raw("raw/loopback/memcpy"),
    ours("loopback/write-1m", Topology::OneDaemon, WRITE_1M),
    shared("loopback/write-1m-shared", Topology::OneDaemon, WRITE_1M),
    function("loopback/function-write-1m", Topology::OneDaemon, WRITE_1M),
    // Memory that the engine shares with the program.
    raw("raw/udp/1024x62/memcpy"),
    raw("raw/udp/4096x15/memcpy"),
    Probe { key: "iperf3", topology: Topology::Wire, work: Work::Iperf3 },
    raw("raw/udp/write-65536-4096-128/memcpy"),
    raw("raw/udp/write-8388608-4096/memcpy"),
    raw("raw/udp/write-1048576-4096/memcpy"),
    raw("raw/udp/write-65536-4096/memcpy"),
    function("function/write-64k", UDP, WRITE_64K),
    function("function/write-1m", UDP, WRITE_1M),
    function("function/send-64k", UDP, SEND_64K),
    function("function/send-1m", UDP, SEND_1M),
    function("function/read-64k", UDP, READ_64K),
    function("function/read-1m", UDP, READ_1M),
    function("function/both-64k", UDP, BOTH_64K),
    function("function/both-1m", UDP, BOTH_1M),
    both("function/mixed-64k", UDP, WRITE_AND_READ, Form::Function),
    function("function/write-8m", UDP, WRITE_8M),
    function("function/qps-16", UDP, QPS_16),
    function("function/qps-128", UDP, QPS_128),
    shared("udp/write-64k-shared", UDP, WRITE_64K),
    shared("udp/write-1m-shared", UDP, WRITE_1M),
    // Memory of another process.
    raw("raw/udp/4096x15/process-vm"),
    raw("raw/udp/1024x62/process-vm"),
    raw("raw/udp/write-65536-1024/process-vm"),
    raw("raw/udp/write-65536-4096-128/process-vm"),
    raw("raw/udp/write-8388608-4096/process-vm"),
    raw("raw/udp/write-1048576-4096/process-vm"),
    raw("raw/udp/write-65536-4096/process-vm"),
    ours("udp/write-64k", UDP, WRITE_64K),
    ours("udp/write-1m", UDP, WRITE_1M),
    ours("udp/write-64k-1024", UDP, WRITE_64K_1024),
    ours("udp/write-8m", UDP, WRITE_8M),
    ours("udp/qps-16", UDP, QPS_16),
    ours("udp/qps-128", UDP, QPS_128),
    ours("udp/both-64k", UDP, BOTH_64K),
    ours("udp/both-1m", UDP, BOTH_1M),
    both("udp/mixed-64k", UDP, WRITE_AND_READ, Form::Plain),
    user("udp/user-write-64k", UDP, WRITE_64K),
    ours("udp/read-64k", UDP, READ_64K),
    ours("udp/read-1m", UDP, READ_1M),
    ours("udp/send-64k", UDP, SEND_64K),
    stream("udp/rstream-64k", UDP, STREAM_64K),
    ours("udp/send-1m", UDP, SEND_1M),
    stream("udp/rstream-1m", UDP, STREAM_1M),
    ours("udp/rate-1", UDP, RATE_1),
    function("function/rate-1", UDP, RATE_1),
    ours("udp/rate-16", UDP, RATE_16),
    function("function/rate-16", UDP, RATE_16),
    both("function/rate-twice", UDP, RATE_TWICE, Form::Function),
    both("engines-1/rate-twice", Topology::Engines(1), RATE_TWICE, Form::Plain),
    both("engines-2/rate-twice", Topology::Engines(2), RATE_TWICE, Form::Plain),
    // Latency.
    raw("raw/line"),
    raw("raw/switch"),
    raw("raw/poke/process-vm"),
    Probe { key: "qperf-64", topology: Topology::Wire, work: Work::Qperf { bytes: 64 } },
    Probe { key: "qperf", topology: Topology::Wire, work: Work::Qperf { bytes: 8 } },
    raw("raw/ping-2/udp"),
    raw("raw/ping/udp"),
    function("function/send-lat", UDP, SEND_LAT),
    function("function/write-lat", UDP, WRITE_LAT),
    function("function/send-lat-events", UDP, SEND_LAT_EVENTS),
    ours("udp/send-lat", UDP, SEND_LAT),
    ours("udp/send-lat-events", UDP, SEND_LAT_EVENTS),
    ours("udp/write-lat", UDP, WRITE_LAT),
    user("udp/user-write-lat", UDP, WRITE_LAT),
    stream("udp/rstream-lat", UDP, STREAM_LAT),
    // Frames.
    raw("raw/ping/af-packet"),
    raw("raw/af-packet/write-1048576-4096/process-vm"),
    raw("raw/af-packet/write-65536-4096/process-vm"),
    ours("af-packet/write-64k", PACKET, WRITE_64K),
    ours("af-packet/write-1m", PACKET, WRITE_1M),
    ours("af-packet/write-lat", PACKET, WRITE_LAT),
    user("af-packet/user-write-64k", PACKET, WRITE_64K),
    user("af-packet/user-write-lat", PACKET, WRITE_LAT),
    raw("raw/ping-2/xdp-native"),
    raw("raw/ping/xdp-native"),
    raw("raw/xdp-native/8x1/memcpy"),
    raw("raw/xdp-native/write-65536-1024/memcpy"),
    raw("raw/xdp-native/write-65536-4096/memcpy"),
    raw("raw/xdp-native/write-65536-1024/process-vm"),
    raw("raw/xdp-native/write-65536-4096/process-vm"),
    ours("xdp-native/write-64k", NATIVE, WRITE_64K),
    ours("xdp-native/write-64k-1024", NATIVE, WRITE_64K_1024),
    shared("xdp-native/write-64k-shared", NATIVE, WRITE_64K),
    shared("xdp-native/write-64k-1024-shared", NATIVE, WRITE_64K_1024),
    ours("xdp-native/rate-1", NATIVE, RATE_1),
    ours("xdp-native/rate-16", NATIVE, RATE_16),
    ours("xdp-native/write-lat", NATIVE, WRITE_LAT),
    user("xdp-native/user-write-64k", NATIVE, WRITE_64K),
    user("xdp-native/user-write-lat", NATIVE, WRITE_LAT),
    raw("raw/ping-2/xdp-generic"),
    raw("raw/ping/xdp-generic"),
    raw("raw/xdp-generic/8x1/memcpy"),
    raw("raw/xdp-generic/write-65536-1024/memcpy"),
    raw("raw/xdp-generic/write-65536-4096/memcpy"),
    raw("raw/xdp-generic/write-65536-1024/process-vm"),
    raw("raw/xdp-generic/write-65536-4096/process-vm"),
    ours("xdp-generic/write-64k", GENERIC, WRITE_64K),
    ours("xdp-generic/write-64k-1024", GENERIC, WRITE_64K_1024),
    ours("xdp-generic/rate-1", GENERIC, RATE_1),
    ours("xdp-generic/rate-16", GENERIC, RATE_16),
    ours("xdp-generic/write-lat", GENERIC, WRITE_LAT),
    ours("xdp-generic/send-lat", GENERIC, SEND_LAT),
    ours("xdp-generic/send-lat-events", GENERIC, SEND_LAT_EVENTS),
    // A machine that others use.
    Probe { key: "crowd/iperf3", topology: Topology::CrowdedWire, work: Work::Iperf3 },
    Probe { key: "crowd/qperf", topology: Topology::CrowdedWire, work: Work::Qperf { bytes: 8 } },
    ours("crowd/write-64k", Topology::Crowded, FEW_WRITE_64K),
    ours("crowd/send-lat", Topology::Crowded, FEW_SEND_LAT),
    ours("crowd/send-lat-events", Topology::Crowded, FEW_SEND_LAT_EVENTS),
    pingpong("crowd/pingpong", FEW_PINGPONGS, Form::Plain),
    pingpong("crowd/pingpong-events", FEW_PINGPONGS_EVENTS, Form::Plain),
    function("crowd/function-write-64k", Topology::Crowded, FEW_WRITE_64K),
    function("crowd/function-send-lat", Topology::Crowded, FEW_SEND_LAT),
    function("crowd/function-send-lat-events", Topology::Crowded, FEW_SEND_LAT_EVENTS),
    pingpong("crowd/function-pingpong", FEW_PINGPONGS, Form::Function),
    pingpong("crowd/function-pingpong-events", FEW_PINGPONGS_EVENTS, Form::Function),
];
