//! The command-line tool.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    rnicd::cli::main(rnicd::cli::Command::parse())
}
