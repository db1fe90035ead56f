//! Attacks a daemon for a while. See the crate's README.

mod client;
mod control;
mod hoard;
mod memory;
mod process;
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
    /// The attack to run
    #[arg(value_enum)]
    attack: Kind,
    /// Duration of the attack
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seed of the random values
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Write random values into every word of shared memory
    Scribble,
    /// Ring the doorbells of all queues, also of those that do not exist
    Doorbells,
    /// Post impossible work requests
    Wqes,
    /// Post work requests under guessed keys
    Keys,
    /// Send malformed control messages
    Control,
    /// Create as many objects as the daemon allows
    Quotas,
    /// Create queues of the largest size until refused, and keep them
    Rings,
    /// Create completion channels until refused, and keep them
    Channels,
    /// Connect again and again
    Crowd,
    /// Request long lists again and again
    Lists,
    /// Register memory of a process with very many mappings
    Maps,
    /// Register a shared file of 4 GiB again and again
    Giant,
    /// Populate as much memory as `giant` without contacting the daemon
    Populate,
    /// Stop, limit, starve and kill the engine process of this user, and try to look into it
    Process,
    /// Spin on one CPU without contacting the daemon
    Spin,
}

/// A running attack.
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
        Kind::Giant => hoard::giant,
        Kind::Populate => hoard::populate,
        Kind::Process => process::process,
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
