//! `rnic capture` and `rnic trace` beside what a test does.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::place::Node;
use crate::process::{Running, wait_until};

/// How long these commands take at most to begin and to end.
const SOON: Duration = Duration::from_secs(5);

/// A command that writes a file while it runs.
pub struct Observer {
    /// The command.
    pub running: Running,
    /// What it writes.
    pub file: PathBuf,
}

impl Observer {
    /// Starts it; `args` are its words up to the file. Everything from then on is observed.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn start(node: &Node, args: &[&str], file: PathBuf) -> Result<Self> {
        let name = file.to_str().context("a name of ours")?;
        let running = node.rnic(&[args, &["-w", name]].concat()).start()?;
        wait_until("an observer", SOON, || Ok(file.metadata().is_ok_and(|file| file.len() > 0)))?;
        Ok(Self { running, file })
    }

    /// Ends it. Returns its file, and what it printed on standard error.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(self) -> Result<(PathBuf, String)> {
        self.running.signal(Signal::INT)?;
        self.ended()
    }

    /// Waits until it has ended by itself. Returns its file, and what it printed on standard error.
    ///
    /// # Errors
    /// When it does not end.
    pub fn ended(mut self) -> Result<(PathBuf, String)> {
        wait_until("the end of an observer", SOON, || Ok(self.running.try_status()?.is_some()))?;
        // The thread that reads its pipe may not have seen its last lines when its end is known.
        Ok((self.file, self.running.wait()?.stderr))
    }
}
