//! `cargo xtask bench`: ours, kernel TCP and the raw limits of the mechanism, side by side.
//!
//! Absolute numbers of a shared machine mean little. Every round of a run measures everything, one
//! after the other, and the table shows ratios. If the raw reference was not steady, the machine
//! was busy or throttled, and the run is void. How far it is above TCP is a matter of the machine.

mod connections;
mod crowd;
mod distance;
mod idle_cost;
mod idle_qps;
mod latency_floor;
mod machine;
pub(crate) mod practice;
mod probes;
mod report;
mod rows;
mod rxe;
mod series;
mod topology;
pub(crate) mod unobserved;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use system_tests::packages::Toolbox;
use system_tests::process::is_root;
use system_tests::rxe::HOST_PROGRAMS;
use system_tests::{interrupt, netns, paths};

use crate::pgo;
use distance::Distance;
use probes::{PROBES, Probe, Topology};
use rows::{REFERENCE, Row, STEADY};
use series::Readings;
use topology::{Fixtures, Reading, Set};
use watch::Watch;

/// What to measure and how to show it.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Three rounds and fewer repetitions
    #[arg(long)]
    quick: bool,
    /// Only rows whose heading, title or key contains this; can be given several times
    #[arg(long, value_name = "FILTER")]
    case: Vec<String>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Rounds [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Also write docs/performance.md, unless the run is void
    #[arg(long)]
    write: bool,
    /// Measure a build as `cargo xtask dist --pgo` makes it
    #[arg(long)]
    pgo: bool,
    /// Also compare with Linux rxe, both in one emulated machine
    ///
    /// Debian's kernel with rxe and ours run in QEMU, on any host. Emulation makes it a comparison
    /// of instructions, not of hardware.
    #[arg(long)]
    rxe: bool,
    /// Also compare with the rxe of this machine's kernel, both on this machine
    ///
    /// Makes the veth pair rnicva-rnicvb in the initial network namespace, with routing rules of
    /// preference 1 to 5 for its two addresses, and removes everything afterwards, the module
    /// rdma_rxe too unless it was loaded before.
    #[arg(long)]
    rxe_here: bool,
    /// Raise the priority of everything measured, on a machine that others use too
    #[arg(long)]
    boost: bool,
}

/// Programs that are measured.
const PROGRAMS: [&str; 8] =
    ["ib_write_bw", "ibv_rc_pingpong", "iperf3", "qperf", "cmtime", "rstream", "ip", "dpkg-deb"];
/// A reading counts as disturbed when others used more of a core, or a pinned process waited longer
/// for its own, than this share of the time.
const DISTURBED: f64 = 0.06;
/// After so many consecutive failures a probe is left out.
const FAILURES: usize = 2;

/// Everything that a run found.
pub(super) struct Run {
    rows: Vec<&'static Row>,
    readings: Readings,
    /// Why a probe has no readings.
    failures: BTreeMap<&'static str, String>,
    /// How often a probe was still disturbed after its last repetition.
    disturbed: BTreeMap<&'static str, usize>,
    /// How often it was not read because the CPUs were not as far apart as usual.
    left_out: BTreeMap<&'static str, usize>,
    rounds: usize,
    idle_cost: Vec<idle_cost::Finding>,
    rxe: Vec<rxe::Comparison>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(is_root(), "bench needs root for network namespaces and AF_XDP");
    ensure!(lab_cpus() >= 2, "bench needs two processors: sender and receiver spin");
    let rounds = options.runs.unwrap_or(if options.quick { 3 } else { 7 });
    ensure!(rounds > 0, "--runs must be at least 1");
    netns::sweep()?;
    paths::sweep()?;
    let mut programs = PROGRAMS.to_vec();
    if options.rxe {
        programs.extend(HOST_PROGRAMS);
    }
    if options.rxe_here {
        programs.push("rdma");
        rxe::kernel_has_rxe()?;
    }
    let tools = Toolbox::provide(&programs)?;
    if !options.pgo {
        eprintln!("building (release)");
    }
    let fixtures = Fixtures::new(&pgo::release(options.pgo)?, tools)?;
    let _boost = options.boost.then(machine::Boost::raise).transpose()?;
    let mut run = Run::choose(&options.case, rounds);
    run.measure(&fixtures, if options.quick { 2 } else { 4 })?;
    run.idle_cost = idle_cost::measure(&fixtures, &options.case, options.quick)?;
    for (wanted, place) in [(options.rxe, rxe::Place::Guest), (options.rxe_here, rxe::Place::Here)]
    {
        if wanted {
            run.rxe.push(rxe::measure(fixtures.dist, options.quick, place)?);
        }
    }
    let machine = machine::describe(options.pgo)?;
    if options.json {
        println!("{}", report::json(&run, &machine));
    } else {
        print!("{}", report::text(&run, &machine));
    }
    let valid = run.check();
    if options.write && valid.is_ok() {
        let path = paths::repository().join("docs/performance.md");
        fs::write(&path, report::markdown(&run, &machine))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    valid
}

fn lab_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl Run {
    fn choose(filters: &[String], rounds: usize) -> Self {
        let wanted = |row: &&Row| {
            let texts = [row.group, row.title, row.probe];
            filters.is_empty()
                || filters.iter().any(|f| texts.iter().any(|text| text.contains(f.as_str())))
                || row.probe == REFERENCE
        };
        Self {
            rows: rows::all().filter(wanted).collect(),
            readings: Readings::default(),
            failures: BTreeMap::new(),
            disturbed: BTreeMap::new(),
            left_out: BTreeMap::new(),
            rounds,
            idle_cost: Vec::new(),
            rxe: Vec::new(),
        }
    }

    /// Every chosen probe once per round.
    fn measure(&mut self, fixtures: &Fixtures, tries: usize) -> Result<()> {
        let mut keys: BTreeSet<&str> = self.rows.iter().flat_map(|row| row.probes()).collect();
        keys.extend(latency_floor::terms(&keys));
        let distance = Distance::new(fixtures.raw.clone())?;
        let mut failed: BTreeMap<&str, usize> = BTreeMap::new();
        let mut taken = Vec::new();
        for round in 0..self.rounds {
            let chosen = PROBES.iter().filter(|probe| {
                keys.contains(probe.key) && failed.get(probe.key).is_none_or(|n| *n < FAILURES)
            });
            let chosen: Vec<_> = chosen.collect();
            let told = |key: &str| format!("{}/{} {key:<46}", round + 1, self.rounds);
            for probes in chosen.chunk_by(|a, b| a.shares_scene_with(b)) {
                for (key, outcome) in perform(fixtures, &distance, probes, tries)? {
                    match outcome {
                        Ok(None) => {
                            eprintln!("{} the CPUs are not as far apart as usual", told(key));
                            *self.left_out.entry(key).or_default() += 1;
                        }
                        Ok(Some(measured)) => {
                            eprintln!("{} {}", told(key), measured.reading);
                            taken.push((key, round, measured));
                        }
                        Err(error) => {
                            eprintln!("{} FAILED\n{error:#}", told(key));
                            *failed.entry(key).or_default() += 1;
                            self.failures.insert(key, format!("{error:#}"));
                        }
                    }
                }
            }
        }
        self.keep(taken, |took| distance.is_usual(took));
        Ok(())
    }

    /// Only now is it known how far from each other the CPUs were most of the time.
    fn keep(
        &mut self,
        taken: Vec<(&'static str, usize, Measured)>,
        is_usual: impl Fn(f64) -> bool,
    ) {
        for (key, round, Measured { reading, disturbed, took }) in taken {
            if !took.into_iter().flatten().all(&is_usual) {
                *self.left_out.entry(key).or_default() += 1;
                continue;
            }
            *self.disturbed.entry(key).or_default() += usize::from(disturbed);
            for (metric, value) in reading.values {
                self.readings.add(key, metric, round, value);
            }
        }
    }

    /// Fails when the run is void.
    fn check(&self) -> Result<()> {
        let spread = self.readings.spread(REFERENCE, series::Metric::Bytes);
        let Some(spread) = spread else { bail!("this run is void: it has no raw reference") };
        let steadiness = spread.median / spread.max;
        ensure!(
            steadiness >= STEADY,
            "this run is void: the median of raw UDP GSO with copy and ICRC is {steadiness:.2} of \
             its best round, not {STEADY}; the machine was busy or throttled, try again"
        );
        Ok(())
    }
}

impl Row {
    /// The probes that the row needs.
    fn probes(&self) -> impl Iterator<Item = &'static str> {
        self.against.iter().map(|against| against.probe).chain([self.probe])
    }
}

impl Probe {
    fn shares_scene_with(&self, other: &Self) -> bool {
        self.topology == other.topology
            && !matches!(self.topology, Topology::Wire | Topology::Alone | Topology::CrowdedWire)
    }
}

/// What a probe read.
struct Measured {
    reading: Reading,
    /// By other work.
    disturbed: bool,
    /// What a cache line took before it and after it; `None` where that does not matter.
    took: Option<[f64; 2]>,
}

/// `None` while the CPUs are not as far apart as usual.
type Outcome = Result<Option<Measured>>;
type Outcomes = Vec<(&'static str, Outcome)>;

/// Measures probes of one topology. Only an interrupt is an error.
fn perform(
    fixtures: &Fixtures,
    distance: &Distance,
    probes: &[&'static Probe],
    tries: usize,
) -> Result<Outcomes> {
    let set = match Set::new(fixtures, probes[0].topology) {
        Ok(set) => set,
        Err(error) => {
            interrupt::check()?;
            let error = format!("{error:#}");
            return Ok(probes
                .iter()
                .map(|p| (p.key, Err(anyhow::anyhow!(error.clone()))))
                .collect());
        }
    };
    // Rings of new daemons may be in memory that the host has yet to provide.
    let has_daemons = !set.pids().is_empty();
    if has_daemons && !set.is_crowded() {
        // One that fails is measured again, and then its error is told.
        let _ = set.measure(fixtures, probes[0]);
        interrupt::check()?;
    }
    let mut outcomes = Vec::new();
    for probe in probes {
        let outcome = match set.is_crowded() {
            // Others use the machine all the time: that is what is measured.
            true => set
                .measure(fixtures, probe)
                .map(|reading| Some(Measured { reading, disturbed: false, took: None })),
            false => quietest(fixtures, distance, (&set, probe), tries),
        };
        interrupt::check()?;
        outcomes.push((probe.key, outcome));
    }
    if let Err(error) = set.strike() {
        interrupt::check()?;
        eprintln!("{error:#}");
    }
    Ok(outcomes)
}

/// Measures until no other process disturbs, at most `tries` times; returns the least disturbed
/// reading.
fn quietest(
    fixtures: &Fixtures,
    distance: &Distance,
    (set, probe): (&Set, &Probe),
    tries: usize,
) -> Outcome {
    let mut best: Option<(f64, Measured)> = None;
    for _ in 0..tries {
        let Some(before) = distance.settle()? else { break };
        let watch = Watch::start(&set.pids())?;
        let reading = set.measure(fixtures, probe)?;
        let disturbance = watch.finish()?.max(reading.waited);
        let after = distance.look().unwrap_or(f64::INFINITY);
        if !distance.is_usual(after) {
            continue;
        }
        let disturbed = disturbance > DISTURBED;
        if best.as_ref().is_none_or(|(least, _)| disturbance < *least) {
            best =
                Some((disturbance, Measured { reading, disturbed, took: Some([before, after]) }));
        }
        if !disturbed {
            break;
        }
    }
    Ok(best.map(|(_, measured)| measured))
}

#[cfg(test)]
mod tests {
    use super::*;
    use series::Metric::Bytes;

    #[test]
    fn what_was_read_while_the_cpus_were_elsewhere_is_left_out() {
        let mut run = Run::choose(&[], 3);
        let took = [Some([0.06, 0.3]), Some([0.06, 0.06]), None];
        let read = |(round, took)| {
            let reading = Reading { values: vec![(Bytes, round as f64)], waited: 0.0 };
            ("iperf3", round, Measured { reading, disturbed: false, took })
        };
        run.keep(took.into_iter().enumerate().map(read).collect(), |took| took < 0.1);
        assert_eq!(run.left_out["iperf3"], 1);
        let spread = run.readings.spread("iperf3", Bytes).unwrap();
        assert_eq!((spread.min, spread.max), (1.0, 2.0));
    }
}
