//! The daemon.

use clap::Parser;
use rnicd::config::Args;
use std::process::ExitCode;

fn main() -> ExitCode {
    match rnicd::daemon::run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnicd: {}", rnicd::for_people(&error));
            ExitCode::FAILURE
        }
    }
}
