//! A terminal with a program in it: what is typed there, and what its screen shows.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::mem;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::process::{read_on, wait_until};

/// A program that has a terminal of its own. It is killed when this is dropped.
pub struct Terminal {
    /// The side of the person.
    person: File,
    /// The side of the program.
    program: File,
    child: Child,
    before: Termios,
    screen: Arc<Mutex<Screen>>,
}

impl Terminal {
    /// Starts a program in a terminal of 80 columns and 24 rows.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(argv: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&person)?;
        unlockpt(&person)?;
        let name = ptsname(&person, Vec::new())?.into_string()?;
        let program = OpenOptions::new().read(true).write(true).open(&name).context(name)?;
        tcsetwinsize(&person, size(80, 24))?;
        let before = tcgetattr(&program)?;
        // It becomes the program, in a session whose terminal is this.
        let mut setsid = Command::new("setsid");
        setsid.arg("--ctty").args(argv).env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8");
        setsid.envs(env.iter().copied());
        let [stdin, stdout, stderr] =
            [program.try_clone()?, program.try_clone()?, program.try_clone()?];
        let child = setsid.stdin(stdin).stdout(stdout).stderr(stderr).spawn().context("setsid")?;
        let person = File::from(person);
        let screen = Arc::<Mutex<Screen>>::default();
        let (mut from, to) = (person.try_clone()?, Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let length @ 1.. = read_on(&mut from, &mut bytes) {
                lock(&to).take(&bytes[..length]);
            }
        });
        Ok(Self { person, program, child, before, screen })
    }

    /// Types letters.
    ///
    /// # Errors
    /// When the terminal takes none.
    pub fn types(&mut self, letters: &str) -> Result<()> {
        self.person.write_all(letters.as_bytes()).context("typing")
    }

    /// Has another size from now on, which the program is told.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        tcsetwinsize(&self.person, size(columns, rows)).context("the size of a terminal")
    }

    /// Sends the program a signal.
    ///
    /// # Errors
    /// When it has gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).context("signal")
    }

    /// The lines of the screen.
    pub fn screen(&self) -> Vec<String> {
        lock(&self.screen).lines()
    }

    /// Waits until the screen shows what is wanted.
    ///
    /// # Errors
    /// When it does not in this time: what it shows then.
    pub fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        is_it: impl Fn(&[String]) -> bool,
    ) -> Result<()> {
        wait_until(what, limit, || Ok(is_it(&self.screen())))
            .with_context(|| format!("the screen:\n{}", self.screen().join("\n")))
    }

    /// Waits for the end of the program, which must leave the terminal as it was.
    ///
    /// # Errors
    /// When it does not end soon, or leaves the terminal in another mode.
    pub fn end(mut self) -> Result<(ExitStatus, String)> {
        let mut status = None;
        wait_until("the end of a program in a terminal", Duration::from_secs(5), || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        let now = tcgetattr(&self.program)?;
        let modes = |all: &Termios| (all.input_modes, all.output_modes, all.local_modes);
        ensure!(modes(&now) == modes(&self.before), "the terminal is in another mode: {now:?}");
        wait_until("the last of its output", Duration::from_secs(5), || {
            let screen = lock(&self.screen);
            Ok(!screen.is_other && !screen.hides_cursor)
        })?;
        let said = self.screen().join("\n");
        Ok((status.context("no status")?, said))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(screen: &Mutex<Screen>) -> MutexGuard<'_, Screen> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// What a terminal shows, as far as programs of ours use it.
#[derive(Default)]
struct Screen {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// The screen of programs that fill it; else that of a shell.
    is_other: bool,
    hides_cursor: bool,
    /// The beginning of something whose end has not come.
    rest: Vec<u8>,
}

impl Screen {
    fn take(&mut self, bytes: &[u8]) {
        let mut all = mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let mut at = 0;
        while at < all.len() {
            match self.step(&all[at..]) {
                0 => break,
                length => at += length,
            }
        }
        self.rest = all.split_off(at);
    }

    /// Takes what is at the beginning, and returns its length; 0 when it is not complete.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match bytes[0] {
            b'\x1b' => self.escape(bytes),
            b'\r' => {
                self.column = 0;
                1
            }
            b'\n' => {
                self.row += 1;
                1
            }
            first if first.is_ascii() => {
                self.put(char::from(first));
                1
            }
            first => {
                let length = first.leading_ones() as usize;
                let Some(text) = bytes.get(..length) else { return 0 };
                self.put(String::from_utf8_lossy(text).chars().next().unwrap_or('?'));
                length.max(1)
            }
        }
    }

    fn escape(&mut self, bytes: &[u8]) -> usize {
        match bytes.get(1) {
            Some(b'[') => {}
            Some(_) => return 2,
            None => return 0,
        }
        let Some(end) = bytes[2..].iter().position(|byte| (0x40..0x7f).contains(byte)) else {
            return 0;
        };
        let arguments = String::from_utf8_lossy(&bytes[2..2 + end]).into_owned();
        let mut numbers = arguments.split(';').map(|text| text.parse().unwrap_or(1));
        match (bytes[2 + end], &*arguments) {
            (b'H', _) => {
                let mut next = || numbers.next().unwrap_or(1).max(1) - 1;
                (self.row, self.column) = (next(), next());
            }
            (b'J', _) => self.rows.clear(),
            (b'h' | b'l', "?1049") => {
                self.is_other = bytes[2 + end] == b'h';
                self.rows.clear();
            }
            (b'h' | b'l', "?25") => self.hides_cursor = bytes[2 + end] == b'l',
            _ => {}
        }
        end + 3
    }

    fn put(&mut self, letter: char) {
        let rows = self.rows.len().max(self.row + 1);
        self.rows.resize(rows, Vec::new());
        let row = &mut self.rows[self.row];
        row.resize(row.len().max(self.column + 1), ' ');
        row[self.column] = letter;
        self.column += 1;
    }

    fn lines(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_stand_where_the_cursor_was_moved_to() {
        let mut screen = Screen::default();
        for part in ["\x1b[?1049h\x1b[2;3Hab\x1b[1", "m\u{2500}\r\nc\x1b[", "?25lx"] {
            screen.take(part.as_bytes());
        }
        assert_eq!(screen.lines(), ["", "  ab\u{2500}", "cx"]);
        assert!(screen.is_other && screen.hides_cursor);
        screen.take(b"\x1b[?1049l\x1b[?25h");
        assert!(!screen.is_other && !screen.hides_cursor && screen.lines().is_empty());
    }
}
