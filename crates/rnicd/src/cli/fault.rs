//! `rnic fault add|list|clear`.

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
    /// A fault is `KIND[=PROBABILITY][,qp=QPN][,opcode=OPCODE][,psn=FIRST-LAST][,count=N]`.
    ///
    /// KIND is drop, duplicate, reorder, delay:TIME (250us, 3ms, 1s), corrupt, or mark (ECN
    /// congestion experienced). PROBABILITY is 0 to 1, or 0% to 100%; without one it is 1.
    /// Without qp, opcode and psn a fault applies to any received packet. QPN and PSN are those of
    /// the packet's BTH, decimal or 0x...; OPCODE is a number or a name as `rnic capture` shows it.
    /// With count a fault ends after it was applied to N packets. At most one fault, the first that
    /// matches, is applied to a packet.
    Add(Add),
    /// Show the faults in force, and how often each was applied
    List(Target),
    /// Remove all faults
    Clear {
        #[command(flatten)]
        place: super::Place,
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
        Action::Clear { place } => (place.socket, false, FaultChange::Clear),
    };
    let client = Client::connect(socket.as_deref())?;
    if !as_json {
        client.tell();
    }
    let found = client.faults(change)?;
    if as_json {
        return json(&found);
    }
    Ok(if found.is_empty() { "no faults are injected".into() } else { render(COLUMNS, &found) })
}

const COLUMNS: &[Column<report::Fault>] = &[
    ("KIND", |fault| Cell::from(&*fault.kind)),
    ("DELAY", |fault| Cell::of(fault.delay_us, |us| Cell::amount(format_args!("{us}us")))),
    ("PROBABILITY", |fault| Cell::amount(format_args!("{:?}", fault.probability))),
    ("QPN", |fault| Cell::of(fault.qpn, |qpn| Cell::hex(qpn, 6))),
    ("OPCODE", |fault| Cell::of(fault.opcode, Cell::opcode)),
    ("FIRST-PSN", |fault| Cell::of(fault.psn_first, |psn| Cell::hex(psn, 6))),
    ("LAST-PSN", |fault| Cell::of(fault.psn_last, |psn| Cell::hex(psn, 6))),
    ("LEFT", |fault| Cell::of(fault.left, Cell::amount)),
    ("STRUCK", |fault| Cell::amount(fault.struck)),
];
