//! The daemon.

use clap::Parser;
use rnicd::config::{Args, Config};
use std::process::ExitCode;

fn main() -> ExitCode {
    match Config::resolve(Args::parse()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnicd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
