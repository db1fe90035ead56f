//! `cargo xtask`: the commands that build, try and test soft-rnic.

#![forbid(unsafe_code)]

mod bench;
mod book;
mod budget;
mod cluster;
mod compliance;
mod demo;
mod deny;
mod fuzz;
mod generated;
mod interop;
mod layers;
mod lint;
mod messages;
mod package;
mod pgo;
mod programs;
mod prose;
mod sbom;
mod screenshots;
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
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build everything, run unmodified RDMA programs and print what they measured
    Demo,
    /// Install missing packages and run every check and test
    Test(test::Options),
    /// Build bin/rnicd, bin/rnic, lib/libibverbs.so.1, lib/librdmacm.so.1 and the rest of a tree
    Dist {
        /// Where to put them [default: target/dist]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Compile twice, the second time by what programs used of the first; needs root
        #[arg(long)]
        pgo: bool,
    },
    /// Make a Debian package and an archive of everything that is installed
    Package(package::Options),
    /// Run an OpenMPI job on hosts that are network namespaces, over our device and over TCP
    Cluster(cluster::Options),
    /// Print what the packages are made of, as CycloneDX
    Sbom,
    /// Build programs of others over the verbs, run them, and compare docs/programs.md
    Programs,
    /// Measure soft-rnic, kernel TCP and the raw system calls side by side, as ratios
    Bench(bench::Options),
    /// Compare bandwidth and latency with a build that cannot be observed
    Unobserved(bench::unobserved::Options),
    /// Count the instructions of the engine's hot paths and compare with the budget
    Budget {
        /// Write the counts as the new budget
        #[arg(long)]
        write: bool,
    },
    /// Break rules of the specification in a copy of the engine, one by one: a test must fail
    Compliance(compliance::Options),
    /// Run the fuzzers; counts add up over calls
    Fuzz(fuzz::Options),
    /// Run the interoperability suite against a card in another host
    Interop(interop::Options),
    /// Check formatting, clippy, layering, comments, documents and dependencies
    Lint,
    /// Check the licences, advisories and versions of our dependencies; needs a network
    Deny,
    /// Check which crate may depend on which
    Layers,
    /// Take the pictures of docs/images anew, with Debian's chromium
    Screenshots,
    /// Write docs/walkthrough anew, from the stories of `rnic lab`
    Walkthrough,
    /// Write docs/options.md anew, from the help of `rnicd` and `rnic`
    Options,
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
        Command::Dist { out, pgo } => {
            let out = out.clone().unwrap_or_else(|| paths::target().join("dist"));
            let dist = if *pgo { pgo::build(&out)? } else { Dist::build(RELEASE, &out)? };
            println!("{}", dist.root().display());
            Ok(())
        }
        Command::Cluster(options) => cluster::run(options),
        Command::Package(options) => package::run(options),
        Command::Sbom => sbom::run(),
        Command::Programs => programs::run(),
        Command::Bench(options) => bench::run(options),
        Command::Unobserved(options) => bench::unobserved::run(options),
        Command::Budget { write } => budget::run(*write),
        Command::Compliance(options) => compliance::run(options),
        Command::Fuzz(options) => fuzz::run(options),
        Command::Interop(options) => interop::run(options),
        Command::Lint => stages::all("lint", lint::stages()),
        Command::Deny => stages::all("deny", deny::stages()),
        Command::Layers => layers::check(),
        Command::Screenshots => screenshots::take(),
        Command::Walkthrough => generated::walkthrough(),
        Command::Options => generated::options(),
    }
}
