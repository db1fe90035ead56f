//! `cargo xtask`: the commands a person types to build, try and test soft-rnic.

#![forbid(unsafe_code)]

mod bench;
mod budget;
mod compliance;
mod demo;
mod deny;
mod fuzz;
mod interop;
mod layers;
mod lint;
mod stages;
mod test;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use system_tests::dist::{Dist, RELEASE};
use system_tests::{interrupt, paths};

#[derive(Parser)]
#[command(name = "cargo xtask", about, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build everything and show unmodified RDMA programs at work, with numbers
    Demo,
    /// Install what is missing and run every check and test
    Test(test::Options),
    /// Build bin/rnicd, bin/rnic, lib/libibverbs.so.1 and lib/librdmacm.so.1
    Dist {
        /// Where to put them [default: target/dist]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Measure ours, kernel TCP and the raw limits side by side, as ratios
    Bench(bench::Options),
    /// Count the instructions of the engine's hot paths and compare with the budget
    Budget {
        /// Make what is counted the new budget
        #[arg(long)]
        write: bool,
    },
    /// Switch rules of the specification off, one by one: a test must notice
    Compliance(compliance::Options),
    /// Run the fuzzers for long, in parts that add up
    Fuzz(fuzz::Options),
    /// Run the interoperability suite against a card in another host
    Interop(interop::Options),
    /// Check formatting, clippy, layering and documentation
    Lint,
    /// Check the licences, advisories and versions of what we depend on; needs a network
    Deny,
    /// Check which crate may depend on which
    Layers,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    interrupt::install()?;
    match command {
        Command::Demo => demo::run(),
        Command::Test(options) => test::run(options),
        Command::Dist { out } => {
            let dist =
                Dist::build(RELEASE, &out.clone().unwrap_or_else(|| paths::target().join("dist")))?;
            println!("{}", dist.root().display());
            Ok(())
        }
        Command::Bench(options) => bench::run(options),
        Command::Budget { write } => budget::run(*write),
        Command::Compliance(options) => compliance::run(options),
        Command::Fuzz(options) => fuzz::run(options),
        Command::Interop(options) => interop::run(options),
        Command::Lint => stages::all("lint", lint::stages()),
        Command::Deny => stages::all("deny", deny::stages()),
        Command::Layers => layers::check(),
    }
}
