//! Changes of threads: two processes on one CPU hand it to each other, as engine and program do.

use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::delays::{self, Delays};
use crate::pair::{self, Side, Stage};

/// A round goes there and back.
const CHANGES: u32 = 2;

pub(crate) fn run(stage: Stage) -> Result<String> {
    let stage = Stage { cpus: [stage.cpus[0]; 2], ..stage };
    pair::with_board(|board| {
        pair::run(&stage, board, |side| {
            side.start()?;
            let mut delays = Delays::new();
            while side.board.is_running() {
                let began = Instant::now();
                hand_over(side);
                if side.index == 0 {
                    delays.add(began.elapsed());
                }
            }
            if side.index == 0 {
                delays.publish(side.board);
            }
            Ok(())
        })?;
        // Each waits for the other half of the time: that says nothing about third ones.
        delays::report(board, CHANGES, 0.0)
    })
}

/// Gives the turn away, and the CPU with it, until the turn is back.
fn hand_over(side: &Side<'_>) {
    let turn = &side.board.turn;
    let is_ours = || turn.get() % 2 == side.index as u64;
    if is_ours() {
        turn.set(turn.get() + 1);
    }
    while !is_ours() && side.board.is_running() {
        thread::yield_now();
    }
}
