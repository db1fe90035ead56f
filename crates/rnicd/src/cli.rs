//! The `rnic` command.

mod capture;
mod client;
mod counters;
mod explain;
mod fault;
mod lab;
mod private;
mod programs;
mod run;
mod show;
mod table;
mod trace;
mod view;
mod watch;
mod watching;

use clap::{Args, Parser, Subcommand};
use rnic_abi::control::Inspect;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run RDMA programs on soft-rnic and inspect its daemon
#[derive(Parser, Debug)]
#[command(name = "rnic", version)]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Run a program with soft-rnic's libibverbs and librdmacm
    ///
    /// Uses the daemon of this user or host; when there is none, starts a private one on 127.0.0.1
    /// and ::1, which ends after its last client.
    Run(run::Options),
    /// Try whether a program can have the view of the daemons at these sockets
    #[command(hide = true)]
    TryView { sockets: OsString },
    /// Start a private daemon that listens at this socket, and leave it alone
    #[command(hide = true, name = private::START)]
    StartPrivate { socket: PathBuf },
    /// Show the daemon, its device, port and clients
    Status(Target),
    /// Show the devices of all daemons that can be found
    Devices(Target),
    /// Show queue pairs
    Qp(Target),
    /// Show memory regions
    Mr(Target),
    /// Show completion queues
    Cq(Target),
    /// Show the counters of the port, or of a queue pair, that are not zero; all with --json
    ///
    /// docs/counters.md says what each counts.
    Counters(counters::Options),
    /// Inject faults into packets that are received or sent: drop, delay, corrupt, refuse ...
    #[command(subcommand)]
    Fault(fault::Action),
    /// Show what the device sends and receives, or write it to a file for Wireshark
    ///
    /// Each frame has a comment: the message that it is a part of (QPN/index of its WQE), why it
    /// was sent again, dropped or refused, which injected fault disturbed it. Packets that a fault
    /// kept from the wire, and those that the device sends to itself, are shown as well. What comes
    /// faster than it is written is lost and counted. docs/observe.md says more.
    Capture(capture::Options),
    /// Show what the engines do, as JSON lines or as a timeline
    ///
    /// docs/observe.md explains each event and its fields.
    Trace(trace::Options),
    /// Watch queue pairs live: windows, queues, timers, WQEs, a ladder of packets
    ///
    /// Keys: arrows choose a queue pair, Enter opens it, Esc closes it, e shows all events, Space
    /// holds the view, ? explains it, q quits. What comes faster than it is shown is counted; no
    /// program waits for it. docs/observe.md says more.
    Watch(watch::Options),
    /// Say what a capture file shows: connections, losses, refusals, and what to do about them
    ///
    /// Reads pcap and pcapng files of any RoCEv2 device, from `rnic capture`, tcpdump or Wireshark.
    /// Needs no daemon.
    Explain(explain::Options),
    /// Tell how RDMA works: stories of a few packets, played in a simulated world, step by step
    ///
    /// Needs no daemon, no privilege and no network.
    Lab(lab::Options),
}

/// Which daemon.
#[derive(Args, Debug)]
struct Place {
    /// Control socket [default: $RNIC_SOCKET, else the first daemon that answers: this user's, the
    /// host's (for root first), a private one of `rnic run`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Which daemon, and how to show what it says.
#[derive(Args, Debug)]
struct Target {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Does what the command line says.
pub fn main(command: Command) -> ExitCode {
    let shown = match command.action {
        Action::Run(options) => return run::run(&options),
        Action::TryView { sockets } => view::attempt(&sockets).map(|()| String::new()),
        Action::StartPrivate { socket } => private::start(&socket).map(|()| String::new()),
        Action::Status(target) => show::status(&target),
        Action::Devices(target) => show::devices(&target),
        Action::Qp(target) => show::list(&target, Inspect::Qps, |qp| qp.client, show::QP),
        Action::Mr(target) => show::list(&target, Inspect::Mrs, |mr| mr.client, show::MR),
        Action::Cq(target) => show::list(&target, Inspect::Cqs, |cq| cq.client, show::CQ),
        Action::Counters(options) => match counters::counters(&options) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Err(error),
        },
        Action::Fault(action) => fault::fault(action),
        Action::Explain(options) => explain::explain(&options),
        Action::Lab(options) => lab::lab(&options),
        Action::Capture(options) => match capture::capture(&options) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Err(error),
        },
        Action::Watch(options) => match watch::watch(&options) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Err(error),
        },
        Action::Trace(options) => match trace::trace(&options) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Err(error),
        },
    };
    match shown {
        Ok(text) => print(&text),
        Err(error) => {
            tell(format_args!("rnic: {}", crate::for_people(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Opens a file that a command reads; `advice` is for a user who has no such file.
fn open(path: &Path, advice: &str) -> anyhow::Result<File> {
    File::open(path).map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let advice = if is_missing { format!("; {advice}") } else { String::new() };
        anyhow::anyhow!("cannot open {}: {error}{advice}", path.display())
    })
}

/// A line beside what is printed. A reader that has gone (`2>&1 | head`) is no error, and must not
/// keep the command from what it has still to do: `eprintln` would panic.
fn tell(line: impl fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            tell(format_args!("rnic: cannot write: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
