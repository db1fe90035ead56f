//! Round trips of one small packet.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::case::LinkKind;
use crate::link::{self, Link, Piece};
use crate::pair::{self, Side, Stage};

/// Base transport header, RETH, 8 bytes, ICRC: a WRITE of 8 bytes.
const LEN: usize = 12 + 16 + 8 + 4;
/// Round trips before the first that counts.
const WARM_UP: usize = 1000;
/// How long an answer may take before the packet counts as lost.
const LOST: Duration = Duration::from_millis(50);

pub(crate) fn run(stage: &Stage, link: LinkKind) -> Result<String> {
    pair::with_board(|board| {
        let measured = pair::run(stage, board, |side| {
            let link = link::open(link, side)?;
            side.start()?;
            match side.index {
                0 => ask(side, link),
                _ => answer(side, link),
            }
        })?;
        let [p50, p99] = [0, 1].map(|i| board.delays[i].get());
        ensure!(p50 > 0, "too few round trips");
        Ok(format!(
            r#"{{"p50_us":{},"p99_us":{},"waited":{}}}"#,
            p50 as f64 / 1e3,
            p99 as f64 / 1e3,
            measured.waited
        ))
    })
}

fn ask(side: &Side<'_>, mut link: Box<dyn Link>) -> Result<()> {
    let mut delays: Vec<u32> = Vec::with_capacity(1 << 20);
    let mut pieces: Vec<Piece> = Vec::new();
    while side.board.is_running() {
        let began = Instant::now();
        send(&mut *link);
        while pieces.is_empty() && side.board.is_running() && began.elapsed() < LOST {
            link.receive(&mut pieces);
        }
        if !pieces.is_empty() && delays.len() < delays.capacity() {
            delays.push(began.elapsed().as_nanos() as u32);
        }
        pieces.clear();
        link.release();
    }
    let counted = delays.get_mut(WARM_UP..).unwrap_or_default();
    counted.sort_unstable();
    for (slot, share) in side.board.delays.iter().zip([50, 99]) {
        let value = counted.get(counted.len() * share / 100).copied().unwrap_or(0);
        slot.set(value.into());
    }
    Ok(())
}

fn answer(side: &Side<'_>, mut link: Box<dyn Link>) -> Result<()> {
    let mut pieces: Vec<Piece> = Vec::new();
    while side.board.is_running() {
        link.receive(&mut pieces);
        if !pieces.is_empty() {
            pieces.clear();
            link.release();
            send(&mut *link);
        }
    }
    Ok(())
}

fn send(link: &mut dyn Link) {
    if let Some(at) = link.reserve(1, LEN) {
        link.tx()[at..at + LEN].fill(0x11);
    }
    link.submit();
}
