//! Programs that are measured run once, without a clock.

use anyhow::{Context, Result, ensure};
use system_tests::dist::Dist;
use system_tests::packages::Toolbox;
use system_tests::{interrupt, netns, paths};

use super::lab_cpus;
use super::probes::{Form, PROBES, Probe, Topology, Work};
use super::topology::{Fixtures, Set};

/// Runs what is to be fast with this build: programs of perftest, as root, on every kind of I/O.
pub(crate) fn run(dist: &Dist) -> Result<()> {
    ensure!(lab_cpus() >= 2, "--pgo needs two processors: sender and receiver spin");
    netns::sweep()?;
    paths::sweep()?;
    let fixtures = Fixtures::of_programs(dist, Toolbox::provide(&["ib_write_bw", "ip"])?)?;
    let chosen: Vec<_> = PROBES.iter().filter(|probe| probe.is_practice()).collect();
    for probes in chosen.chunk_by(|a, b| a.shares_scene_with(b)) {
        let set = Set::new(&fixtures, probes[0].topology)?;
        for probe in probes {
            eprintln!("  {}", probe.key);
            set.measure(&fixtures, probe).context(probe.key)?;
            interrupt::check()?;
        }
        set.strike()?;
    }
    Ok(())
}

impl Probe {
    /// An engine in a daemon or in the program, and no other user, who could leave no counts. Not
    /// where others use the machine: what is done for them is seldom done.
    fn is_practice(&self) -> bool {
        matches!(self.topology, Topology::Daemons { .. })
            && matches!(self.work, Work::Perftest { form: Form::Plain | Form::Function, .. })
    }
}
