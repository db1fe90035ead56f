//! Unmodified OpenMPI: ranks on some hosts, over UCX and over libfabric, with every byte of
//! messages and collective operations compared, in the long form also while packets are lost.

use anyhow::{Result, ensure};
use system_tests::cluster::{Cluster, LIBFABRIC, PROGRAMS, UCX_DAEMONS, UCX_RC, UCX_UD};
use system_tests::lab::{Lab, Need, long_form};

#[test]
fn four_ranks_on_four_hosts() -> Result<()> {
    let Some(_lab) = Lab::open("four_ranks_on_four_hosts", Need::Root, &PROGRAMS)? else {
        return Ok(());
    };
    let cluster = Cluster::start(4)?;
    for way in [UCX_DAEMONS, LIBFABRIC] {
        eprintln!("{}: {:?}", way.name, cluster.run(way, 1, 1)?);
    }
    if long_form() {
        cluster.inject("drop=1%")?;
        eprintln!("{}, 1 % lost: {:?}", UCX_DAEMONS.name, cluster.run(UCX_DAEMONS, 1, 1)?);
        cluster.clear_faults()?;
    }
    cluster.stop().map(drop)
}

/// Eight ranks on one host, and on four, each with an engine of its own.
#[test]
fn ranks_have_functions() -> Result<()> {
    let name = "ranks_have_functions";
    let Some(_lab) = Lab::open(name, Need::Root, &PROGRAMS)? else { return Ok(()) };
    for (hosts, on_each) in [(1, 8), (4, 2)] {
        let cluster = Cluster::start(hosts)?;
        for way in [UCX_RC, UCX_UD] {
            eprintln!("{hosts} hosts, {}: {:?}", way.name, cluster.run(way, on_each, 1)?);
        }
        let have_functions = cluster.stop()?;
        ensure!(have_functions.iter().all(|have| *have), "functions: {have_functions:?}");
    }
    Ok(())
}
