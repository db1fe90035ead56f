//! The daemon.

use clap::Parser;
use rnicd::config::Args;
use rnicd::{ENGINE_PROCESS, daemon, engine_process};
use std::process::ExitCode;

fn main() -> ExitCode {
    let is_engine = std::env::args_os().nth(1).is_some_and(|first| first == ENGINE_PROCESS);
    let ended = if is_engine { engine_process::run() } else { daemon::run(Args::parse()) };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnicd: {}", rnicd::for_people(&error));
            ExitCode::FAILURE
        }
    }
}
