//! Unmodified OpenMPI: four ranks on four hosts, over UCX and over libfabric, with every byte of
//! messages and collective operations compared, in the long form also while packets are lost.

use anyhow::Result;
use system_tests::cluster::{Cluster, LIBFABRIC, PROGRAMS, UCX_RC, UCX_UD};
use system_tests::lab::{Lab, Need, long_form};

#[test]
fn four_ranks_on_four_hosts() -> Result<()> {
    let Some(_lab) = Lab::open("four_ranks_on_four_hosts", Need::Root, &PROGRAMS)? else {
        return Ok(());
    };
    let cluster = Cluster::start(4)?;
    for way in [UCX_RC, UCX_UD, LIBFABRIC] {
        eprintln!("{}: {:?}", way.name, cluster.run(way, 1)?);
    }
    if long_form() {
        cluster.inject("drop=1%")?;
        eprintln!("{}, 1 % lost: {:?}", UCX_RC.name, cluster.run(UCX_RC, 1)?);
        cluster.clear_faults()?;
    }
    cluster.stop()
}
