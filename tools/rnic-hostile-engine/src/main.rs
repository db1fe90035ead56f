//! A daemon whose engine processes for some users attack it. See the crate's README.

mod attack;
mod client;
mod connections;
mod forbidden;
mod hand_over;
mod messages;
mod network;
mod random;
mod report;

use clap::Parser;
use report::Report;
use rnicd::config::Args;
use rnicd::engine_process::Begun;
use rnicd::{ENGINE_PROCESS, daemon};
use std::ops::Range;
use std::process::ExitCode;

/// The users whose engine processes are hostile.
const ATTACKERS: Range<u32> = 64_000..64_100;
/// The argument that makes this a client of the attacker.
const CLIENT: &str = "--client";

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    let ended = match first.to_str() {
        Some(ENGINE_PROCESS) => engine(),
        Some(CLIENT) => client::connect_again_and_again(),
        _ => daemon::run(Args::parse()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnic-hostile-engine: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// As the daemon's own engine process, until a client would come.
fn engine() -> anyhow::Result<()> {
    let place = report::place()?;
    let begun = Begun::new()?;
    if !ATTACKERS.contains(&begun.uid()) {
        return begun.serve();
    }
    let (socket, fds) = begun.into_ties();
    attack::attack(socket, fds, Report::open(&place)?)
}
