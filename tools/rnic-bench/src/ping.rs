//! Round trips of one small packet, or of two that leave together.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::case::LinkKind;
use crate::delays::{self, Delays};
use crate::link::{self, Link, Piece};
use crate::pair::{self, Side, Stage};

/// Base transport header, RETH, 8 bytes, ICRC: a WRITE of 8 bytes.
const LEN: usize = 12 + 16 + 8 + 4;
/// How long a response may take before the packet counts as lost.
const LOST: Duration = Duration::from_millis(50);

pub(crate) fn run(stage: &Stage, link: LinkKind, packets: usize) -> Result<String> {
    pair::with_board(|board| {
        let measured = pair::run(stage, board, |side| {
            let link = link::open(link, side)?;
            side.start()?;
            match side.index {
                0 => ask(side, link, packets),
                _ => answer(side, link, packets),
            }
        })?;
        delays::report(board, 1, measured.waited)
    })
}

fn ask(side: &Side<'_>, mut link: Box<dyn Link>, packets: usize) -> Result<()> {
    let mut delays = Delays::new();
    let mut pieces: Vec<Piece> = Vec::new();
    while side.board.is_running() {
        let began = Instant::now();
        send(&mut *link, packets);
        while arrived(&pieces) < packets && side.board.is_running() && began.elapsed() < LOST {
            link.receive(&mut pieces);
        }
        if arrived(&pieces) >= packets {
            delays.add(began.elapsed());
        }
        pieces.clear();
        link.release();
    }
    delays.publish(side.board);
    Ok(())
}

fn answer(side: &Side<'_>, mut link: Box<dyn Link>, packets: usize) -> Result<()> {
    let mut pieces: Vec<Piece> = Vec::new();
    while side.board.is_running() {
        link.receive(&mut pieces);
        if arrived(&pieces) >= packets {
            pieces.clear();
            link.release();
            send(&mut *link, packets);
        }
    }
    Ok(())
}

/// Packets, which some links deliver in trains.
fn arrived(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.len / LEN).sum()
}

fn send(link: &mut dyn Link, packets: usize) {
    let (units, each) = if link.has_trains() { (1, packets) } else { (packets, 1) };
    for _ in 0..units {
        if let Some(at) = link.reserve(each, LEN) {
            link.tx()[at..at + each * LEN].fill(0x11);
        }
    }
    link.submit();
}
