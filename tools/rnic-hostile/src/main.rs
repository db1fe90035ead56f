//! Attacks a daemon for a while. See the crate's README.

mod client;
mod control;
mod hoard;
mod memory;
mod quota;
mod random;
mod work;

use clap::{Parser, ValueEnum};
use random::Random;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(name = "rnic-hostile", about = "Attack a soft-rnic daemon (RNIC_SOCKET) for a while")]
struct Args {
    /// What to do
    #[arg(value_enum)]
    attack: Kind,
    /// For how long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seed of what is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Write random values into every word of shared memory
    Scribble,
    /// Ring every doorbell there is and is not
    Doorbells,
    /// Post impossible work requests
    Wqes,
    /// Post work requests under guessed keys
    Keys,
    /// Send control messages that make no sense
    Control,
    /// Make as many objects as the daemon gives
    Quotas,
    /// Take the largest queues there are, and keep them
    Rings,
    /// Take all completion channels there are, and keep them
    Channels,
    /// Connect without pause
    Crowd,
    /// Ask for long lists without pause
    Lists,
    /// Register memory of a process with very many mappings
    Maps,
    /// Use one CPU and leave the daemon alone
    Spin,
}

/// An attack under way.
struct Attack {
    random: Random,
    until: Instant,
    /// Things done, for the report.
    done: u64,
}

impl Attack {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let until = Instant::now() + Duration::from_secs_f64(args.seconds);
    let mut attack = Attack { random: Random::new(args.seed), until, done: 0 };
    let run: fn(&mut Attack) -> io::Result<()> = match args.attack {
        Kind::Scribble => memory::scribble,
        Kind::Doorbells => memory::doorbells,
        Kind::Wqes => work::wqes,
        Kind::Keys => work::keys,
        Kind::Control => control::control,
        Kind::Quotas => quota::quotas,
        Kind::Rings => hoard::rings,
        Kind::Channels => hoard::channels,
        Kind::Crowd => hoard::crowd,
        Kind::Lists => hoard::lists,
        Kind::Maps => hoard::maps,
        Kind::Spin => spin,
    };
    let result = run(&mut attack);
    println!("did {} things", attack.done);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnic-hostile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn spin(attack: &mut Attack) -> io::Result<()> {
    while attack.goes_on() {
        attack.done += 1;
    }
    Ok(())
}
