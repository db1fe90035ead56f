//! The least possible latency, when engine and program share a core or a thread.

use std::collections::BTreeSet;

use super::rows::{self, FUNCTION, LATENCY, Target};
use super::series::{Metric, Readings};

const SHARED_CORES: &str = "Floor of the latency on shared cores";
const FUNCTIONS: &str = "Floor of the latency of functions";

/// What the terms are.
const SHARED_CORES_METHOD: &str = "\
With fewer than 4 CPUs, engine and program share one. Half a round trip then takes at least: half of \
the raw round trip, a thread switch to the engine after the post, a thread switch to the program \
after the delivery and, for a WRITE into ordinary memory, a process_vm_writev of 8 bytes (the data \
of a small SEND is inside its completion). This sum is the floor; its terms are medians of this \
run, measured with warm caches. The difference to the measured latency is the engine, the ACK, \
posting, polling and cold caches. On a wire without trains the ACK is a frame of its own; it costs \
half of the time that a raw round trip with two frames takes longer than one with one frame. 'It \
leaves' is the stricter target of the row less floor and ACK: the time for engine and program. If \
it is negative, shared cores of this machine cannot reach the target. With 4 CPUs or more no \
thread yields, and the thread switches do not apply.";

const FUNCTIONS_METHOD: &str = "\
A program that drives the engine in it needs neither thread switches nor system calls for memory: \
half of the raw round trip is the floor. The ACK leaves with the answer, as the second datagram of a \
train; it costs half of the time that a raw round trip of two takes longer. 'It leaves' is the \
stricter target of the row less floor and ACK: the time for engine, program, posting and polling.";

/// Heading and method of floors below one group.
pub(super) fn about(floors: &[Floor]) -> (&'static str, &'static str) {
    match floors.first() {
        Some(Floor { switches: 0.0, .. }) => (FUNCTIONS, FUNCTIONS_METHOD),
        _ => (SHARED_CORES, SHARED_CORES_METHOD),
    }
}

/// With so many CPUs, engine and program each have their own.
const ENOUGH_CPUS: usize = 4;
const SWITCH: &str = "raw/switch";
const POKE: &str = "raw/poke/process-vm";
/// Between post and delivery.
const SWITCHES: f64 = 2.0;

/// A row of latencies, and the raw round trips over the same link.
struct Path {
    title: &'static str,
    probe: &'static str,
    ping: &'static str,
    /// With two packets, where that of the ACK costs something.
    two: Option<&'static str>,
    /// The engine writes into the program's memory by a system call.
    pokes: bool,
    /// Engine and program are two threads.
    switches: bool,
}

const fn write(title: &'static str, probe: &'static str, ping: &'static str) -> Path {
    Path { title, probe, ping, two: None, pokes: true, switches: true }
}

const fn send(title: &'static str, probe: &'static str, ping: &'static str) -> Path {
    Path { pokes: false, ..write(title, probe, ping) }
}

const fn function(title: &'static str, probe: &'static str) -> Path {
    let path = send(title, probe, "raw/ping/udp").with_ack("raw/ping-2/udp");
    Path { switches: false, ..path }
}

impl Path {
    const fn with_ack(self, two: &'static str) -> Self {
        Self { two: Some(two), ..self }
    }
}

const PATHS: &[Path] = &[
    write("WRITE, udp", "udp/write-lat", "raw/ping/udp"),
    send("SEND, udp", "udp/send-lat", "raw/ping/udp"),
    write("WRITE, af-packet", "af-packet/write-lat", "raw/ping/af-packet"),
    write("WRITE, af-xdp native", "xdp-native/write-lat", "raw/ping/xdp-native")
        .with_ack("raw/ping-2/xdp-native"),
    write("WRITE, af-xdp generic", "xdp-generic/write-lat", "raw/ping/xdp-generic")
        .with_ack("raw/ping-2/xdp-generic"),
    send("SEND, af-xdp generic", "xdp-generic/send-lat", "raw/ping/xdp-generic")
        .with_ack("raw/ping-2/xdp-generic"),
    function("WRITE, function", "function/write-lat"),
    function("SEND, function", "function/send-lat"),
];

/// Microseconds of one path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Floor {
    pub(super) title: &'static str,
    pub(super) wire: f64,
    pub(super) switches: f64,
    pub(super) poke: f64,
    pub(super) measured: f64,
    /// What the frame of the ACK adds to the floor, where it has one.
    pub(super) ack: Option<f64>,
    /// The least that a target of the row allows.
    pub(super) allowed: Option<f64>,
}

impl Floor {
    pub(super) fn total(&self) -> f64 {
        self.wire + self.switches + self.poke
    }

    /// The part of the measured latency that engine and program could save at most.
    pub(super) fn above(&self) -> f64 {
        self.measured - self.total()
    }

    /// What the targets leave for the engine and its program.
    pub(super) fn left(&self) -> Option<f64> {
        Some(self.allowed? - self.total() - self.ack.unwrap_or(0.0))
    }
}

/// The probes that the floors of the chosen rows need.
pub(super) fn terms(chosen: &BTreeSet<&str>) -> Vec<&'static str> {
    let paths = PATHS.iter().filter(|path| chosen.contains(path.probe));
    let terms = |path: &Path| {
        [Some(path.ping), path.two, path.switches.then_some(SWITCH), path.pokes.then_some(POKE)]
    };
    paths.flat_map(terms).flatten().collect()
}

/// The floors shown below the rows of `group`: those whose terms were all measured.
pub(super) fn below(group: &str, readings: &Readings, cpus: usize) -> Vec<Floor> {
    let is_here = |path: &&Path| match path.switches {
        true => group == LATENCY && cpus < ENOUGH_CPUS,
        false => group == FUNCTION,
    };
    PATHS.iter().filter(is_here).filter_map(|path| floor(path, readings)).collect()
}

fn floor(path: &Path, readings: &Readings) -> Option<Floor> {
    let median = |probe| Some(readings.spread(probe, Metric::P50)?.median);
    let ping = median(path.ping)?;
    Some(Floor {
        title: path.title,
        wire: ping / 2.0,
        switches: if path.switches { SWITCHES * median(SWITCH)? } else { 0.0 },
        poke: if path.pokes { median(POKE)? } else { 0.0 },
        measured: median(path.probe)?,
        ack: path.two.and_then(median).map(|two| (two - ping) / 2.0),
        allowed: allowed(path.probe, readings),
    })
}

/// The least that a target of the median of `probe` allows.
fn allowed(probe: &str, readings: &Readings) -> Option<f64> {
    let row = rows::all().find(|row| row.probe == probe && row.metric == Metric::P50)?;
    let limits = row.against.iter().filter_map(|against| match against.target? {
        Target::AtMost { factor, offset } => {
            Some(factor * readings.spread(against.probe, against.metric)?.median + offset)
        }
        Target::AtLeast(_) => None,
    });
    limits.min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::probes::PROBES;

    fn readings(values: &[(&str, f64)]) -> Readings {
        let mut readings = Readings::default();
        for (probe, value) in values {
            for (round, weather) in [0.5, 1.0, 3.0].into_iter().enumerate() {
                readings.add(probe, Metric::P50, round, value * weather);
            }
        }
        readings
    }

    const UDP: [(&str, f64); 5] = [
        ("raw/ping/udp", 6.0),
        ("raw/switch", 0.75),
        ("udp/write-lat", 8.0),
        ("udp/send-lat", 7.0),
        ("raw/poke/process-vm", 0.5),
    ];

    #[test]
    fn a_floor_is_half_the_wire_two_switches_and_the_poke_of_a_write() {
        let floors = below(LATENCY, &readings(&UDP), 2);
        let [write, send] = &floors[..] else { panic!("{floors:?}") };
        let Floor { wire, switches, poke, .. } = *write;
        assert_eq!((write.title, wire, switches, poke), ("WRITE, udp", 3.0, 1.5, 0.5));
        assert_eq!((write.total(), write.above()), (5.0, 3.0));
        assert_eq!((send.title, send.total(), send.above()), ("SEND, udp", 4.5, 2.5));
    }

    #[test]
    fn the_frame_of_an_ack_is_half_of_what_two_take_longer() {
        let mut values = vec![
            ("raw/ping/xdp-native", 2.5),
            ("raw/switch", 0.75),
            ("raw/poke/process-vm", 0.5),
            ("xdp-native/write-lat", 6.0),
        ];
        let ack = |values: &[_]| below(LATENCY, &readings(values), 2)[0].ack;
        assert_eq!(ack(&values), None);
        values.push(("raw/ping-2/xdp-native", 4.0));
        assert_eq!(ack(&values), Some(0.75));
    }

    #[test]
    fn a_program_that_drives_switches_to_no_thread() {
        let values = [("raw/ping/udp", 6.0), ("raw/ping-2/udp", 7.0), ("function/send-lat", 7.0)];
        let floors = below(FUNCTION, &readings(&values), 2);
        let [send] = &floors[..] else { panic!("{floors:?}") };
        assert_eq!((send.total(), send.ack), (3.0, Some(0.5)));
        // Half of 6 us and 1.5, less a floor of 3 and the ACK.
        assert_eq!(send.left(), Some(1.0));
        assert_eq!(below(FUNCTION, &readings(&values), 8).len(), 1);
        assert!(below(LATENCY, &readings(&values), 2).is_empty());
    }

    #[test]
    fn the_strictest_target_says_what_is_left() {
        let left = |values: &[_]| below(LATENCY, &readings(values), 2)[0].left();
        // Half of 6 us and 4, less a floor of 5.
        assert_eq!(left(&UDP), Some(2.0));
        // A quarter of 22 us.
        assert_eq!(left(&[&UDP[..], &[("qperf", 22.0)]].concat()), Some(0.5));
    }

    #[test]
    fn what_lacks_a_term_has_no_floor() {
        let titles = |readings| -> Vec<_> {
            below(LATENCY, &readings, 2).iter().map(|floor| floor.title).collect()
        };
        assert_eq!(titles(readings(&UDP[..4])), ["SEND, udp"]);
        assert!(titles(readings(&UDP[2..])).is_empty());
    }

    #[test]
    fn the_section_is_for_shared_cores_and_follows_the_latencies() {
        assert!(below(LATENCY, &readings(&UDP), 4).is_empty());
        assert!(below("Kernel TCP", &readings(&UDP), 2).is_empty());
        assert!(rows::all().any(|row| row.group == LATENCY));
    }

    #[test]
    fn every_probe_of_a_path_exists() {
        let mut keys: BTreeSet<_> = PATHS.iter().map(|path| path.probe).collect();
        keys.extend(terms(&keys));
        for key in keys {
            assert!(PROBES.iter().any(|probe| probe.key == key), "{key}");
        }
    }

    #[test]
    fn a_latency_brings_the_terms_of_its_floor() {
        let terms = |probe| terms(&BTreeSet::from([probe]));
        assert_eq!(terms("udp/write-lat"), ["raw/ping/udp", SWITCH, POKE]);
        assert_eq!(terms("udp/send-lat"), ["raw/ping/udp", SWITCH]);
        assert_eq!(terms("function/send-lat"), ["raw/ping/udp", "raw/ping-2/udp"]);
        let ack = terms("xdp-native/write-lat");
        assert!(ack.contains(&"raw/ping-2/xdp-native"), "{ack:?}");
        assert!(terms("udp/write-64k").is_empty());
    }
}
