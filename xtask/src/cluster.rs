//! `cargo xtask cluster`: an unmodified OpenMPI job on hosts that are network namespaces at one
//! switch, over our device and over the kernel's TCP.

use anyhow::Result;
use clap::Args;
use system_tests::cluster::{Cluster, LIBFABRIC, PROGRAMS, Times, UCX_RC, UCX_TCP, UCX_UD, Way};
use system_tests::netns;
use system_tests::packages::Toolbox;

/// What is run.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Hosts, each with a daemon and a rank
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    hosts: u32,
    /// How often the ranks exchange everything; the first time is not measured where there are more
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Percent of the packets that every device loses in a further run
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    loss: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    Toolbox::provide(&PROGRAMS)?;
    netns::sweep()?;
    let cluster = Cluster::start(options.hosts)?;
    println!("{} hosts, all data compared; seconds, and their ratio to TCP's", options.hosts);
    println!("{:28} {:>16} {:>16} {:>16}", "", "messages", "sums", "barriers");
    let tcp = cluster.run(UCX_TCP, 1, options.rounds)?;
    show(UCX_TCP.name, tcp, tcp);
    let measure = |name: &str, way: Way| -> Result<()> {
        show(name, cluster.run(way, 1, options.rounds)?, tcp);
        Ok(())
    };
    for way in [UCX_RC, UCX_UD, LIBFABRIC] {
        measure(way.name, way)?;
    }
    cluster.inject(&format!("drop={}%", options.loss))?;
    measure(&format!("{}, {} % lost", UCX_RC.name, options.loss), UCX_RC)?;
    cluster.clear_faults()?;
    cluster.stop().map(drop)
}

fn show(name: &str, times: Times, tcp: Times) {
    let cell = |mine: f64, theirs: f64| format!("{mine:.3} s {:.2}x", mine / theirs);
    println!(
        "{name:28} {:>16} {:>16} {:>16}",
        cell(times.messages, tcp.messages),
        cell(times.sums, tcp.sums),
        cell(times.barriers, tcp.barriers)
    );
}
