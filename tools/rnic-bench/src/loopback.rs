//! A device that talks to itself: 1 MiB from one memory to another.

use std::time::Duration;

use anyhow::Result;

use crate::case::Copy;
use crate::memory::Memory;
use crate::pair::{self, Stage};

const MESSAGE: usize = 1 << 20;

/// Plain copies take one, foreign memory two: into the device's buffer and out of it.
pub(crate) fn run(stage: &Stage, copy: Copy) -> Result<String> {
    pair::with_board(|board| {
        let measured = pair::run(stage, board, |side| {
            side.start()?;
            if side.index == 1 {
                while side.board.is_running() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Ok(());
            }
            let whole = std::slice::from_ref(&(0..MESSAGE));
            let mut buffer = vec![0; MESSAGE];
            let mut source = Memory::new(MESSAGE, copy)?;
            let mut target = Memory::new(MESSAGE, copy)?;
            let mut bytes = 0;
            while side.board.is_running() {
                source.fetch(0, &mut buffer, whole)?;
                if copy == Copy::ProcessVm {
                    target.place(0, &buffer, whole)?;
                }
                bytes += MESSAGE as u64;
                side.board.bytes.set(bytes);
            }
            Ok(())
        })?;
        Ok(format!(
            r#"{{"bytes_per_second":{},"waited":{}}}"#,
            measured.bytes as f64 / measured.seconds,
            measured.waited
        ))
    })
}
