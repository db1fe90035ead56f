//! `cargo xtask interop`: the interoperability suite against a card in another host.

use anyhow::Result;
use clap::Args;
use system_tests::interop::card;
use system_tests::ssh::Target;
use system_tests::{interop, paths};

#[derive(Args)]
pub(crate) struct Options {
    /// The host with the card; ssh must reach it without asking for a password
    #[arg(long, value_name = "ssh://[USER@]HOST[:PORT]")]
    peer: String,
    /// The card's RDMA device there, as `ibv_devices` lists it, e.g. mlx5_0
    #[arg(long, value_name = "NAME")]
    peer_dev: String,
    /// Our network interface towards the card [default: the one the card's address is routed over]
    #[arg(long, value_name = "IFACE")]
    interface: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    paths::sweep()?;
    let outcomes = card::run(&card::Options {
        target: Target::parse(&options.peer)?,
        device: options.peer_dev.clone(),
        interface: options.interface.clone(),
        wires: interop::WIRES.to_vec(),
    })?;
    interop::all_well(&outcomes)?;
    println!("all {} cases passed", outcomes.len());
    Ok(())
}
