//! Two processes that pass a word of memory to each other, turn by turn: the time to reach the
//! other process, on the same CPU or on another.

use std::time::Instant;
use std::{hint, thread};

use anyhow::Result;

use crate::delays::{self, Delays};
use crate::pair::{self, Side, Stage};

/// Round trips of a cache line that are timed together: a single one is as short as reading the
/// clock.
const LINES: u32 = 64;

/// Switches between threads: both processes share a CPU and yield to each other, as engine and
/// program do.
pub(crate) fn switch(stage: Stage) -> Result<String> {
    let stage = Stage { cpus: [stage.cpus[0]; 2], ..stage };
    // There and back.
    take(&stage, 1, 2, thread::yield_now)
}

/// A cache line to the other CPU and back.
pub(crate) fn line(stage: &Stage) -> Result<String> {
    take(stage, LINES, LINES, hint::spin_loop)
}

/// Times `rounds` turns at once, and reports a share of `1 / parts`.
fn take(stage: &Stage, rounds: u32, parts: u32, wait: fn()) -> Result<String> {
    pair::with_board(|board| {
        pair::run(stage, board, |side| {
            side.start()?;
            let mut delays = Delays::new();
            while side.board.is_running() {
                let began = Instant::now();
                for _ in 0..rounds {
                    hand_over(side, wait);
                }
                if side.index == 0 {
                    delays.add(began.elapsed());
                }
            }
            if side.index == 0 {
                delays.publish(side.board);
            }
            Ok(())
        })?;
        // Each process waits half of the time for the other, so waiting does not show disturbance
        // by others.
        delays::report(board, parts, 0.0)
    })
}

/// Passes the word and waits until it returns.
fn hand_over(side: &Side<'_>, wait: fn()) {
    let turn = &side.board.turn;
    let is_ours = || turn.get() % 2 == side.index as u64;
    if is_ours() {
        turn.set(turn.get() + 1);
    }
    while !is_ours() && side.board.is_running() {
        wait();
    }
}
