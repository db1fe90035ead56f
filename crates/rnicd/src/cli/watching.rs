//! What a daemon tells a command that watches it, until the user interrupts.

use super::client::Client;
use anyhow::{Context, Result, anyhow, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use rnic_host::observe::{self, Observation, Wants};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// See the [module](self).
pub(super) struct Watching {
    _client: Client,
    from: Receiver<io::Result<Observation>>,
    interrupted: Arc<AtomicBool>,
    /// When it was.
    since: Option<Instant>,
}

impl Watching {
    /// Begins to watch.
    pub(super) fn begin(client: Client, wants: Wants) -> Result<Self> {
        let (read, write) = io::pipe().context("cannot make a pipe")?;
        // What comes while this command writes waits here, as far as the user may have it.
        let _ = rustix::pipe::fcntl_setpipe_size(&read, PIPE);
        client.observe(wants, write.as_fd())?;
        drop(write);
        let interrupted = interruption()?;
        let (to, from) = bounded(OBSERVATIONS);
        std::thread::spawn(move || {
            let mut reader = BufReader::with_capacity(1 << 16, read);
            while let Some(next) = observe::read(&mut reader).transpose() {
                let is_last = next.is_err();
                if to.send(next).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Self { _client: client, from, interrupted, since: None })
    }

    /// The next observation; `Ok(None)` at the end of the daemon, or when the user has interrupted
    /// and has everything from before.
    pub(super) fn next(&mut self) -> Result<Option<Observation>> {
        loop {
            if self.since.is_none() && self.interrupted.load(Ordering::Relaxed) {
                self.since = Some(Instant::now());
            }
            if self.since.is_some_and(|since| since.elapsed() > FAREWELL) {
                return Ok(None);
            }
            let patience = if self.since.is_some() { SILENCE } else { LOOK_UP };
            match self.from.recv_timeout(patience) {
                Ok(next) => return Ok(Some(next.context("reading what the daemon tells")?)),
                Err(RecvTimeoutError::Timeout) if self.since.is_none() => {}
                Err(_) => return Ok(None),
            }
        }
    }

    /// What comes within a time.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub(super) fn within(&self, patience: Duration) -> Result<Option<Observation>> {
        match self.from.recv_timeout(patience) {
            Ok(next) => Ok(Some(next.context("reading what the daemon tells")?)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the daemon went away"),
        }
    }

    /// The user has interrupted.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// Time of day (UTC) of nanoseconds since 1970, to the microsecond.
pub(super) fn time_of_day(ns: u64) -> String {
    let (seconds, micros) = (ns / 1_000_000_000 % 86_400, ns / 1000 % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{micros:06}")
}

/// Becomes true when the user interrupts this command, or closes its terminal.
pub(super) fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    // With `nohup` it is to go on without a terminal.
    let hang_up = Some(SIGHUP).filter(|signal| !is_ignored(*signal));
    for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Whether this process has been started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Where what is seen is written; `-` is standard output.
pub(super) fn create(path: &Path) -> Result<Box<dyn Write>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdout()));
    }
    let file = File::create(path).map_err(|error| {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let advice = if is_missing { advice(path) } else { "" };
        anyhow!("cannot write {}: {error}{advice}", path.display())
    })?;
    Ok(Box::new(file))
}

/// What to do about a path at which the kernel finds nothing to make a file in.
fn advice(path: &Path) -> &'static str {
    if path.as_os_str().is_empty() {
        "; give the name of a file, or - for standard output"
    } else if path.is_symlink() {
        "; it is a link into a folder that does not exist"
    } else {
        "; make its folder first"
    }
}

/// Bytes that wait in the pipe.
const PIPE: usize = 1 << 20;
/// Observations that wait behind it.
const OBSERVATIONS: usize = 4096;
/// How soon an interruption is noticed.
const LOOK_UP: Duration = Duration::from_millis(50);
/// After an interruption: what the daemon has not told so long it does not have.
const SILENCE: Duration = Duration::from_millis(250);
/// How long it may tell after an interruption.
const FAREWELL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_made_is_explained() {
        let link = std::env::temp_dir().join(format!("rnic-link-{}", std::process::id()));
        std::os::unix::fs::symlink("/nonexistent/file", &link).unwrap();
        for (path, advice) in [
            (Path::new(""), "give the name of a file"),
            (&link, "a link into a folder that does not exist"),
            (Path::new("/nonexistent/file"), "make its folder first"),
        ] {
            let error = create(path).err().unwrap().to_string();
            assert!(error.contains(advice), "{error}");
        }
        std::fs::remove_file(&link).unwrap();
    }

    #[test]
    fn a_time_of_day_has_microseconds() {
        assert_eq!(time_of_day(86_400_000_000_000 + 3_661_000_007_000), "01:01:01.000007");
    }
}
