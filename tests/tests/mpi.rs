//! Unmodified OpenMPI: four ranks on four hosts, over UCX and over libfabric, with every byte of
//! messages and collective operations compared, in the long form also while packets are lost.

use anyhow::Result;
use system_tests::cluster::{Cluster, LIBFABRIC, PROGRAMS, UCX_FUNCTIONS, UCX_RC, UCX_UD};
use system_tests::lab::{Lab, Need, long_form};

#[test]
fn four_ranks_on_four_hosts() -> Result<()> {
    let Some(_lab) = Lab::open("four_ranks_on_four_hosts", Need::Root, &PROGRAMS)? else {
        return Ok(());
    };
    let cluster = Cluster::start(4)?;
    for way in [UCX_RC, UCX_UD, LIBFABRIC] {
        eprintln!("{}: {:?}", way.name, cluster.run(way, 1, 1)?);
    }
    if long_form() {
        cluster.inject("drop=1%")?;
        eprintln!("{}, 1 % lost: {:?}", UCX_RC.name, cluster.run(UCX_RC, 1, 1)?);
        cluster.clear_faults()?;
    }
    cluster.stop()
}

/// Eight ranks on one host, and on four, each with an engine of its own.
#[test]
fn ranks_with_functions() -> Result<()> {
    let name = "ranks_with_functions";
    let Some(_lab) = Lab::open_long(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    for (hosts, on_each) in [(1, 8), (4, 2)] {
        let cluster = Cluster::start(hosts)?;
        for way in [UCX_FUNCTIONS, UCX_RC] {
            eprintln!("{hosts} hosts, {}: {:?}", way.name, cluster.run(way, on_each, 1)?);
        }
        cluster.stop()?;
    }
    Ok(())
}
