//! The checker program: built from C against the public verbs header, run against any device.
//!
//! Its source says what it checks. It is compiled where that has changed and added to the toolbox,
//! so that a [`Dialogue`](crate::programs::Dialogue) can name it like any other program.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::native;
use crate::place::{Node, Place};
use crate::process::{Running, wait_until};
use crate::programs::next_port;

/// The program's name.
pub const PROGRAM: &str = "checker";

/// Compiles the checker and returns the folder it is in.
///
/// # Errors
/// As [`native::build`].
pub fn build() -> Result<PathBuf> {
    native::build(PROGRAM, &["checker"])
}

/// How long a pause at the end of a measurement is waited for.
const UNFINISHED: Duration = Duration::from_secs(2);

/// A checker that works between two nodes while a test measures its rate. Its start is not part of
/// any measurement.
pub struct Stream {
    server: Running,
    client: Running,
}

impl Stream {
    /// Starts both ends; what they check is `args`.
    ///
    /// # Errors
    /// When either end fails.
    pub fn start(server: &Node, client: &Node, args: &[&str]) -> Result<Self> {
        Self::start_beside(server, client, args, || Ok(Vec::new()))
    }

    /// The same on one CPU with these processes, which serve both ends. Time that other programs
    /// had on that CPU is then not in [`Pause::own`].
    ///
    /// # Errors
    /// When either end fails, or `engines` does.
    pub fn start_beside(
        server: &Node,
        client: &Node,
        args: &[&str],
        engines: impl FnOnce() -> Result<Vec<u32>>,
    ) -> Result<Self> {
        let port = next_port();
        let service = port.to_string();
        let end = |node: &Node| -> Result<_> {
            let gid = node.gid_index().to_string();
            let place =
                ["-d", node.device(), "-g", &gid, "-p", &service, "-t", "1000000", "-i", "0.05"];
            Ok(node.cmd(PROGRAM)?.args(place).args(args).limit(Duration::from_secs(3600)))
        };
        let serving = end(server)?.start()?;
        wait_until("a checker that listens", Duration::from_secs(10), || server.listens(port))
            .with_context(|| serving.stderr())?;
        let mut helpers = engines()?;
        if !helpers.is_empty() {
            helpers.push(serving.pid());
        }
        let with = helpers.iter().flat_map(|pid| ["-w".to_owned(), pid.to_string()]);
        let calling = end(client)?.args(with).arg(server.address().to_string()).start()?;
        let stream = Self { server: serving, client: calling };
        wait_until("a checker at work", Duration::from_secs(20), || Ok(stream.moved()?.is_some()))
            .with_context(|| stream.said())?;
        Ok(stream)
    }

    fn said(&self) -> String {
        format!("server: {}\nclient: {}", self.server.stderr(), self.client.stderr())
    }

    /// Seconds since the start and megabytes moved until then.
    fn moved(&self) -> Result<Option<(f64, f64)>> {
        let printed = self.client.stdout();
        let last = printed.rsplit_once('\n').and_then(|(lines, _)| lines.lines().last());
        Ok(last.map(progress).transpose()?.map(|Progress { at, moved, .. }| (at, moved)))
    }

    /// The longest time without progress since so many seconds after the start.
    fn longest_pause(&self, since: f64) -> Result<Pause> {
        let printed = self.client.stdout();
        let lines = printed.rsplit_once('\n').map_or("", |(lines, _)| lines).lines();
        let all: Vec<_> = lines.map(progress).collect::<Result<_>>()?;
        let pauses = all.iter().filter(|line| line.at > since).map(|line| line.pause);
        Ok(pauses.fold(Pause::default(), Pause::longer))
    }

    /// Lets it work for so many seconds.
    ///
    /// # Errors
    /// When an end failed.
    pub fn work(&mut self, seconds: f64) -> Result<()> {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            for end in [&mut self.server, &mut self.client] {
                ensure!(end.try_status()?.is_none(), "a checker failed: {}", end.stderr());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The rate in MB/s, both directions together, of the `seconds` that begin now.
    ///
    /// # Errors
    /// When an end failed.
    pub fn rate(&mut self, seconds: f64) -> Result<f64> {
        self.watch(seconds).map(|(rate, _)| rate)
    }

    /// The same, and the longest time without progress in these seconds.
    ///
    /// # Errors
    /// When an end failed.
    pub fn watch(&mut self, seconds: f64) -> Result<(f64, Pause)> {
        let began = self.moved()?.context("no progress yet")?;
        self.work(seconds)?;
        let ended = self.moved()?.context("no progress any more")?;
        // A checker that prints no progress moves nothing.
        let rate = (ended.1 - began.1) / (ended.0 - began.0).max(seconds / 2.0);
        // What it prints at the end of a pause tells how long that was.
        let (asked, mut pause) = (Instant::now(), Pause::default());
        while self.moved()?.context("no progress any more")?.0 < began.0 + seconds {
            if asked.elapsed() > UNFINISHED {
                let all = asked.elapsed().as_secs_f64();
                pause = Pause { all, own: all };
                break;
            }
            self.work(0.02)?;
        }
        Ok((rate, self.longest_pause(began.0)?.longer(pause)))
    }

    /// Lets both ends finish and compare what they have.
    ///
    /// # Errors
    /// When either found a mistake.
    pub fn end(self) -> Result<()> {
        for end in [&self.server, &self.client] {
            end.signal(rustix::process::Signal::TERM)?;
        }
        for end in [self.client, self.server] {
            let output = end.terminate(Duration::from_secs(30))?;
            ensure!(output.success() && output.stdout.contains("checker: ok"), "{output}");
        }
        Ok(())
    }
}

/// What a checker at work prints.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Progress {
    /// Seconds since the start.
    at: f64,
    /// Megabytes until then.
    moved: f64,
    /// The longest time without progress since the line before.
    pause: Pause,
}

/// A time without progress, seconds.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Pause {
    /// All of it.
    pub all: f64,
    /// What foreign programs on the same CPU do not explain. It is not more than all; with less, an
    /// engine may still have been at fault.
    pub own: f64,
}

impl Pause {
    /// Of each the longer one.
    #[must_use]
    pub fn longer(self, other: Self) -> Self {
        Self { all: self.all.max(other.all), own: self.own.max(other.own) }
    }
}

/// `checker: after 1.500 s 20.000 MB pause 0.002 s own 0.001 s`.
fn progress(line: &str) -> Result<Progress> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["checker:", "after", at, "s", moved, "MB", "pause", all, "s", "own", own, "s"] => {
            let pause = Pause { all: all.parse()?, own: own.parse()? };
            Ok(Progress { at: at.parse()?, moved: moved.parse()?, pause })
        }
        _ => anyhow::bail!("not what a checker at work prints: {line:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_has_time_and_amount() {
        let line = "checker: after 1.500 s 20.250 MB pause 0.125 s own 0.100 s";
        let pause = Pause { all: 0.125, own: 0.1 };
        let expected = Progress { at: 1.5, moved: 20.25, pause };
        assert_eq!(progress(line).unwrap(), expected);
        assert!(progress("checker: no progress").is_err());
    }
}
