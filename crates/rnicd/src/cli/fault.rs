//! `rnic fault add|list|remove|clear|run`.

mod scenario;

use super::Target;
use super::client::Client;
use super::show::json;
use super::table::{Cell, Column, render};
use anyhow::Result;
use clap::{Args, Subcommand};
use rnic_abi::control::FaultChange;
use rnic_host::report;
use rnic_host::wire::Fault;
use std::path::PathBuf;

/// What to do with the faults.
#[derive(Subcommand, Debug)]
pub(super) enum Action {
    /// Add faults to those in force
    ///
    /// A fault is `KIND[=PROBABILITY][,dir=received|sent][,qp=QPN][,opcode=OPCODE]
    /// [,psn=FIRST-LAST][,after=N][,every=N][,nth=N][,count=N]`.
    ///
    /// KIND is drop, duplicate, reorder, delay:TIME (250us, 3ms, 1s), corrupt (one bit), or mark
    /// (ECN congestion experienced). Three more are for what only a peer or a program can do
    /// otherwise: rnr:TIMER has an acknowledgement say that the peer had no receive WQE (TIMER is
    /// the code of the wait, 0 to 31; rnr alone is 12, 0.64 ms); nak:CODE has it refuse the
    /// request (sequence, invalid, access, operational, invalid-rd); cq-error breaks the completion
    /// queue that the packet's queue pair completes to.
    ///
    /// PROBABILITY is 0 to 1, or 0% to 100%; without one it is 1. Without qp, opcode and psn a
    /// fault applies to any packet that is received, with dir=sent to any that is sent. QPN
    /// (destination) and PSN are those of the packet's BTH, decimal or 0x...; OPCODE is a number
    /// or a name as `rnic capture` shows it.
    ///
    /// With after=N a fault spares the first N packets that match, with every=N it strikes each Nth
    /// of the rest, and with count=N it ends after N packets. nth=N strikes the Nth that matches,
    /// and no other. N is 1 to 4294967295 (after: from 0). At most one fault, the first that
    /// strikes, is applied to a packet, and those behind it do not count it.
    Add(Add),
    /// Show the faults in force, how many packets matched each, and how many it struck
    List(Target),
    /// Remove some faults
    Remove {
        #[command(flatten)]
        place: super::Place,
        /// Numbers, as `rnic fault list` shows them
        #[arg(value_name = "NUMBER", required = true)]
        numbers: Vec<u32>,
    },
    /// Remove all faults
    Clear {
        #[command(flatten)]
        place: super::Place,
    },
    /// Add and remove faults as a scenario file says
    ///
    /// The file is TOML: `seed = NUMBER` (optional) and tables `[[fault]]` with `fault = "..."` as
    /// `rnic fault add` takes it, `start = "TIME"` (0s without it) and `stop = "TIME"`, since the
    /// command began: a number of us, ms or s, at most 86400s. At the end, which is the last stop
    /// or, if a fault has none, an interruption, it removes its faults and shows how often each
    /// struck.
    Run {
        #[command(flatten)]
        place: super::Place,
        /// The scenario; `-` is standard input
        file: PathBuf,
    },
}

/// What to inject.
#[derive(Args, Debug)]
pub(super) struct Add {
    #[command(flatten)]
    place: super::Place,
    /// Seed of the random choices: with the same seed the same packets meet the same faults
    ///
    /// [default: 1 for the first faults; later ones continue the sequence]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// e.g. drop=1%,qp=0x000011
    #[arg(value_name = "FAULT", required = true, value_parser = understood)]
    faults: Vec<String>,
}

/// Mistakes are told before there is a daemon to ask.
fn understood(text: &str) -> Result<String, String> {
    text.parse::<Fault>().map(|_| text.to_owned())
}

/// Does it. The text is for people, or JSON.
pub(super) fn fault(action: Action) -> Result<String> {
    let (socket, as_json, change): (Option<PathBuf>, bool, _) = match action {
        Action::Add(Add { place, faults, seed }) => {
            (place.socket, false, FaultChange::Add { faults, seed })
        }
        Action::List(target) => (target.place.socket, target.json, FaultChange::Keep),
        Action::Remove { place, numbers } => (place.socket, false, FaultChange::Remove(numbers)),
        Action::Clear { place } => (place.socket, false, FaultChange::Clear),
        Action::Run { place, file } => {
            // Mistakes in it are told before there is a daemon to ask.
            let scenario = scenario::read(&file)?;
            let client = Client::connect(place.socket.as_deref())?;
            client.tell();
            return Ok(shown(&scenario.run(&client)?));
        }
    };
    let client = Client::connect(socket.as_deref())?;
    if !as_json {
        client.tell();
    }
    let found = client.faults(change)?;
    if as_json { json(&found) } else { Ok(shown(&found)) }
}

fn shown(faults: &[report::Fault]) -> String {
    match faults {
        [] => "no faults are injected".into(),
        faults => render(COLUMNS, faults),
    }
}

const COLUMNS: &[Column<report::Fault>] = &[
    ("FAULT", |fault| Cell::amount(fault.fault)),
    ("KIND", |fault| Cell::from(&*fault.kind)),
    ("DIR", |fault| Cell::from(if fault.sent { "sent" } else { "received" })),
    ("DELAY", |fault| Cell::of(fault.delay_us, |us| Cell::amount(format_args!("{us}us")))),
    ("SYNDROME", |fault| Cell::of(fault.syndrome, |syndrome| Cell::hex(syndrome, 2))),
    ("PROBABILITY", |fault| Cell::amount(format_args!("{:?}", fault.probability))),
    ("QPN", |fault| Cell::of(fault.qpn, |qpn| Cell::hex(qpn, 6))),
    ("OPCODE", |fault| Cell::of(fault.opcode, Cell::opcode)),
    ("FIRST-PSN", |fault| Cell::of(fault.psn_first, |psn| Cell::hex(psn, 6))),
    ("LAST-PSN", |fault| Cell::of(fault.psn_last, |psn| Cell::hex(psn, 6))),
    ("AFTER", |fault| Cell::amount(fault.after)),
    ("EVERY", |fault| Cell::amount(fault.every)),
    ("LEFT", |fault| Cell::of(fault.left, Cell::amount)),
    ("MATCHED", |fault| Cell::amount(fault.matched)),
    ("STRUCK", |fault| Cell::amount(fault.struck)),
];
