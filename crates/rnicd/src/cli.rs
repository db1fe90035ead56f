//! The `rnic` command.

mod capture;
mod client;
mod private;
mod run;
mod show;
mod table;

use clap::{Args, Parser, Subcommand};
use rnic_abi::control::Inspect;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run RDMA programs on soft-rnic, and look at what its daemon does.
#[derive(Parser, Debug)]
#[command(name = "rnic", version, about)]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Run a program with soft-rnic's libibverbs and librdmacm
    ///
    /// Uses the daemon of this host; when there is none, starts a private one on 127.0.0.1 and ::1,
    /// which ends after its last client.
    Run(run::Options),
    /// The daemon, its device, its port, its sessions
    Status(Target),
    /// Devices of all daemons that can be found
    Devices(Target),
    /// Queue pairs
    Qp(Target),
    /// Memory regions
    Mr(Target),
    /// Completion queues
    Cq(Target),
    /// Counters of port and engine
    Counters(Target),
    /// Inject faults into what the device receives
    ///
    /// A fault is `KIND[=PROBABILITY][,qp=QPN][,opcode=N][,psn=FIRST-LAST][,count=N]`, where KIND is
    /// drop, duplicate, reorder, delay:TIME (250us, 3ms), corrupt or mark (ECN congestion
    /// experienced). They replace those before; without any, injection ends.
    Fault(Faults),
    /// Show what the device sends and receives, or write it to a file for Wireshark
    Capture(capture::Options),
}

/// What to inject.
#[derive(Args, Debug)]
struct Faults {
    /// Control socket [default: $RNIC_SOCKET, else the first that answers: of this host,
    /// of this user, of `rnic run`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Equal seeds treat equal arrivals alike
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// e.g. drop=0.01,qp=0x11
    #[arg(value_name = "FAULT")]
    faults: Vec<String>,
}

/// Which daemon, and how to show what it says.
#[derive(Args, Debug)]
struct Target {
    /// Control socket [default: $RNIC_SOCKET, else the first that answers: of this host,
    /// of this user, of `rnic run`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Does what the command line says.
pub fn main(command: Command) -> ExitCode {
    let shown = match command.action {
        Action::Run(options) => return run::run(&options),
        Action::Status(target) => show::status(&target),
        Action::Devices(target) => show::devices(&target),
        Action::Qp(target) => show::list(&target, Inspect::Qps, show::QP),
        Action::Mr(target) => show::list(&target, Inspect::Mrs, show::MR),
        Action::Cq(target) => show::list(&target, Inspect::Cqs, show::CQ),
        Action::Counters(target) => show::counters(&target),
        Action::Fault(faults) => inject(faults),
        Action::Capture(options) => capture::capture(&options),
    };
    match shown {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("rnic: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn inject(Faults { socket, seed, faults }: Faults) -> anyhow::Result<String> {
    let text = match faults.len() {
        0 => "no faults are injected any more".to_owned(),
        count => format!("{count} faults from now on, seed {seed}; `rnic counters` counts them"),
    };
    let client = client::Client::connect(socket.as_deref())?;
    client.tell();
    client.inject(faults, seed)?;
    Ok(text)
}

/// A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("rnic: cannot write: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
