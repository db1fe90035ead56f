//! Writes of eight bytes into the memory of an application, as for a small message.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::case::Copy;
use crate::delays::{self, Delays};
use crate::memory::Memory;
use crate::pair::{self, Side, Stage};

const LEN: usize = 8;

pub(crate) fn run(stage: &Stage, copy: Copy) -> Result<String> {
    pair::with_board(|board| {
        let measured = pair::run(stage, board, |side| {
            side.start()?;
            if side.index == 0 {
                return poke(side, copy);
            }
            while side.board.is_running() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })?;
        delays::report(board, 1, measured.waited)
    })
}

fn poke(side: &Side<'_>, copy: Copy) -> Result<()> {
    let whole = std::slice::from_ref(&(0..LEN));
    let bytes = [0x11; LEN];
    let mut memory = Memory::new(LEN, copy)?;
    let mut delays = Delays::new();
    let mut before = Instant::now();
    while side.board.is_running() {
        memory.place(0, &bytes, whole)?;
        let now = Instant::now();
        delays.add(now - before);
        before = now;
    }
    delays.publish(side.board);
    Ok(())
}
