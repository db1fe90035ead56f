//! What a command printed.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a finished command left.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command line.
    pub title: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// From start to end.
    pub elapsed: Duration,
    /// Whether the reader has seen it all already.
    pub(crate) shown: bool,
}

impl Output {
    /// Whether it ended with exit status zero.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// All that it said: standard output, then standard error.
    #[must_use]
    pub fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// The exit status as a shell gives it: 128 + N for signal N.
    #[must_use]
    pub fn code(&self) -> i32 {
        shell_code(self.status)
    }
}

/// An exit status as a shell gives it: 128 + N for signal N.
#[must_use]
pub fn shell_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { title, stdout, stderr, .. } = self;
        write!(f, "`{title}` ended with {} after {:.1?}", self.code(), self.elapsed)?;
        for (name, text) in [("stdout", stdout), ("stderr", stderr)] {
            let text = if self.shown { complaints(text) } else { tail(text, 40) };
            if !text.trim().is_empty() {
                write!(f, "\n--- {name}\n{text}")?;
            }
        }
        Ok(())
    }
}

/// The last lines of a text.
#[must_use]
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The errors and panics of failed tests in what their program printed, and the lines behind each.
fn complaints(text: &str) -> String {
    const LINES: usize = 12;
    let is_complaint = |line: &str| {
        line.starts_with("Error: ") || line.starts_with("error") || line.contains("panicked at")
    };
    let mut left = 0;
    let mut chosen = Vec::new();
    for line in text.lines() {
        if is_complaint(line) {
            left = LINES;
        } else if line.starts_with("test ") || line.starts_with("failures:") {
            left = 0;
        }
        if left > 0 {
            chosen.push(line);
            left -= 1;
        }
    }
    tail(&chosen.join("\n"), 40)
}

/// How many bytes came; 0 at the end, and where nothing can be read. A signal of the test's process
/// is no end.
pub(crate) fn read_on(from: &mut impl Read, bytes: &mut [u8]) -> usize {
    loop {
        match from.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read.unwrap_or(0),
        }
    }
}

/// Reads a pipe to its end in a thread, so that no process blocks on a full pipe.
pub(crate) struct Collector {
    text: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Collector {
    /// Everything is copied to `shown`, too.
    pub(crate) fn start(
        mut pipe: impl Read + Send + 'static,
        mut shown: Option<impl Write + Send + 'static>,
    ) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let sink = Arc::clone(&text);
        let thread = std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let n @ 1.. = read_on(&mut pipe, &mut chunk) {
                // Writing to a Vec does not fail.
                let _ = sink.lock().unwrap_or_else(PoisonError::into_inner).write_all(&chunk[..n]);
                if let Some(shown) = &mut shown {
                    // A reader that has gone away does not end the command.
                    let _ = shown.write_all(&chunk[..n]).and_then(|()| shown.flush());
                }
            }
        });
        Self { text, thread }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Waits for the end of the pipe; says whether it came.
    pub(crate) fn wait_end(&self, limit: Duration) -> bool {
        self.drain_until(Instant::now() + limit);
        self.has_ended()
    }

    pub(super) fn drain_until(&self, deadline: Instant) {
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_signal_does_not_end_what_is_collected() {
        /// What a read returns, one after the other.
        struct Pipe(Vec<Result<&'static [u8], ErrorKind>>);
        impl Read for Pipe {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let mut next = self.0.pop().unwrap_or(Ok(b""))?;
                next.read(buffer)
            }
        }
        let pipe = Pipe(vec![Ok(b"more"), Err(ErrorKind::Interrupted), Ok(b"some ")]);
        let collector = Collector::start(pipe, None::<Vec<u8>>);
        assert!(collector.wait_end(Duration::from_secs(20)));
        assert_eq!(collector.text(), "some more");
    }

    #[test]
    fn what_was_shown_is_told_again_only_where_it_complains() {
        let text = "test a ... ok\nError: no rate\n1: because\ntest b ... FAILED\n\
                    thread 'b' panicked at x\nwhy\ntest result: FAILED\n";
        assert_eq!(complaints(text), "Error: no rate\n1: because\nthread 'b' panicked at x\nwhy");
    }
}
