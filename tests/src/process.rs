//! One command: its namespace, user, CPU and time limit, and what it printed.
//!
//! A [`Cmd`] is a description and can be used again. [`Cmd::start`] gives a [`Running`] process
//! that leads a process group of its own and is killed and reaped on drop with all of that group.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::interrupt;

const POLL: Duration = Duration::from_millis(5);
/// How long output is still collected after the end: a grandchild may hold the pipe open, and a
/// reader may have to wait for a CPU.
const DRAIN: Duration = Duration::from_secs(3);

/// Names the user of [`User::of_tests`]. Only root can run tests with it.
pub const USER_ENV: &str = "RNIC_TEST_USER";

/// The user that a command runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id; supplementary groups are dropped.
    pub gid: u32,
}

impl User {
    /// `nobody`, the same numbers on every Debian.
    pub const NOBODY: Self = Self { uid: 65534, gid: 65534 };

    /// The user that programs run as where a test does not say otherwise: `RNIC_TEST_USER`, else
    /// the one that runs the test.
    ///
    /// # Panics
    /// When the variable is no number.
    #[must_use]
    pub fn of_tests() -> Option<Self> {
        let id = std::env::var(USER_ENV).ok()?;
        let id = id.parse().expect("RNIC_TEST_USER is the number of a user");
        Some(Self { uid: id, gid: id })
    }
}

/// A command to run. Nothing happens before [`Cmd::run`], [`Cmd::check`] or [`Cmd::start`].
#[derive(Clone, Debug)]
pub struct Cmd {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    dir: Option<PathBuf>,
    input: Option<PathBuf>,
    netns: Option<String>,
    user: Option<User>,
    cpu: Option<usize>,
    through: Vec<OsString>,
    limit: Duration,
    inherit: bool,
    cleanup: bool,
}

impl Cmd {
    /// A command with a limit of 60 seconds whose output is captured.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
            input: None,
            netns: None,
            user: None,
            cpu: None,
            through: Vec::new(),
            limit: Duration::from_secs(60),
            inherit: false,
            cleanup: false,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the command's environment.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Takes a variable out of the command's environment.
    #[must_use]
    pub fn without_env(mut self, key: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), None));
        self
    }

    /// Runs it in another working folder.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Gives it a file as standard input; without this it has `/dev/null`.
    #[must_use]
    pub fn input(mut self, file: impl Into<PathBuf>) -> Self {
        self.input = Some(file.into());
        self
    }

    /// Runs it in a named network namespace (root only).
    #[must_use]
    pub fn in_netns(mut self, name: Option<&str>) -> Self {
        self.netns = name.map(str::to_owned);
        self
    }

    /// Runs it as another user (root only).
    #[must_use]
    pub fn as_user(mut self, user: Option<User>) -> Self {
        self.user = user;
        self
    }

    /// Starts it through a program that becomes it, such as `prlimit --nofile=100`.
    #[must_use]
    pub fn through(mut self, words: &[String]) -> Self {
        self.through = words.iter().map(OsString::from).collect();
        self
    }

    /// Pins it to one CPU.
    #[must_use]
    pub fn on_cpu(mut self, cpu: Option<usize>) -> Self {
        self.cpu = cpu;
        self
    }

    /// Kills it when it runs longer than this.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Lets it write to our own standard output and error instead of capturing.
    #[must_use]
    pub fn inherit_output(mut self) -> Self {
        self.inherit = true;
        self
    }

    /// Runs it even after an interrupt: it belongs to cleaning up.
    #[must_use]
    pub fn for_cleanup(mut self) -> Self {
        self.cleanup = true;
        self
    }

    /// Runs to the end and returns what happened, whatever the exit status.
    ///
    /// # Errors
    /// When it cannot be started, runs out of time or an interrupt arrives.
    pub fn run(&self) -> Result<Output> {
        self.start()?.wait()
    }

    /// Runs to the end and returns standard output; any failure is an error that shows both.
    ///
    /// # Errors
    /// As [`Cmd::run`], and when the exit status is not zero.
    pub fn check(&self) -> Result<String> {
        let output = self.run()?;
        ensure!(output.success(), "{output}");
        Ok(output.stdout)
    }

    /// Starts it in the background.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self) -> Result<Running> {
        if !self.cleanup {
            interrupt::check()?;
        }
        let argv = self.argv();
        let mut command = Command::new(&argv[0]);
        let input = match &self.input {
            Some(path) => {
                File::open(path).with_context(|| format!("cannot read {}", path.display()))?.into()
            }
            None => Stdio::null(),
        };
        command.args(&argv[1..]).stdin(input).process_group(0);
        for (key, value) in &self.env {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        if !self.inherit {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {self}"))?;
        let stdout = child.stdout.take().map(Collector::start);
        let stderr = child.stderr.take().map(Collector::start);
        Ok(Running {
            child,
            stdout,
            stderr,
            title: self.to_string(),
            began: Instant::now(),
            limit: self.limit,
            cleanup: self.cleanup,
            status: None,
        })
    }

    /// The whole argument vector. Every wrapper replaces itself by exec, so the process id stays.
    fn argv(&self) -> Vec<OsString> {
        let mut argv: Vec<OsString> = Vec::new();
        if let Some(netns) = &self.netns {
            argv.extend(["ip", "netns", "exec", netns].map(OsString::from));
        }
        if let Some(cpu) = self.cpu {
            argv.extend(["taskset", "-c", &cpu.to_string()].map(OsString::from));
        }
        if let Some(User { uid, gid }) = self.user {
            let ids = [format!("--reuid={uid}"), format!("--regid={gid}")];
            argv.push("setpriv".into());
            argv.extend(ids.map(OsString::from));
            argv.push("--clear-groups".into());
        }
        argv.extend(self.through.iter().cloned());
        argv.push(self.program.clone());
        argv.extend(self.args.iter().cloned());
        argv
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.argv().iter().map(|w| w.to_string_lossy().into_owned()).collect();
        f.write_str(&words.join(" "))
    }
}

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
}

impl Output {
    /// Whether it ended with exit status zero.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status.success()
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
            if !text.trim().is_empty() {
                write!(f, "\n--- {name}\n{}", tail(text, 40))?;
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

/// A process in the background.
pub struct Running {
    child: Child,
    stdout: Option<Collector>,
    stderr: Option<Collector>,
    title: String,
    began: Instant,
    limit: Duration,
    cleanup: bool,
    status: Option<ExitStatus>,
}

impl Running {
    /// Its process id, also when it was started through wrappers.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status when it has ended.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn try_status(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.as_ref().map(Collector::text).unwrap_or_default()
    }

    /// Standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.as_ref().map(Collector::text).unwrap_or_default()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When the limit passes or an interrupt arrives; the process is killed then.
    pub fn wait(mut self) -> Result<Output> {
        while self.try_status()?.is_none() {
            if !self.cleanup {
                interrupt::check()?;
            }
            if self.began.elapsed() > self.limit {
                let limit = self.limit;
                self.kill();
                let output = self.collect(ExitStatus::from_raw(Signal::KILL.as_raw()));
                bail!("killed after its limit of {limit:.0?}: {output}");
            }
            std::thread::sleep(POLL);
        }
        let status = self.status.context("a process ended without a status")?;
        Ok(self.collect(status))
    }

    /// Asks it to end with SIGTERM and waits at most `grace` before killing it.
    ///
    /// # Errors
    /// When it had to be killed.
    pub fn terminate(mut self, grace: Duration) -> Result<Output> {
        if self.try_status()?.is_none() {
            self.signal(Signal::TERM)?;
        }
        self.limit = self.began.elapsed() + grace;
        self.wait()
    }

    /// Sends a signal to the process alone, not to its group.
    ///
    /// # Errors
    /// When the process is no more.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.group(), signal).with_context(|| format!("cannot signal {}", self.title))
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn kill(&mut self) {
        // ESRCH is fine here: the process may have ended in between.
        let _ = kill_process_group(self.group(), Signal::KILL);
        let _ = self.child.kill();
        if let Ok(status) = self.child.wait() {
            self.status = Some(status);
        }
    }

    fn collect(&mut self, status: ExitStatus) -> Output {
        let elapsed = self.began.elapsed();
        let deadline = Instant::now() + DRAIN;
        for collector in [&self.stdout, &self.stderr].into_iter().flatten() {
            collector.drain_until(deadline);
        }
        let (stdout, stderr) = (self.stdout(), self.stderr());
        Output { title: self.title.clone(), status, stdout, stderr, elapsed }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill();
        }
    }
}

/// Reads a pipe to its end in a thread, so that no process blocks on a full pipe.
pub(crate) struct Collector {
    text: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Collector {
    pub(crate) fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let sink = Arc::clone(&text);
        let thread = std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(n @ 1..) = pipe.read(&mut chunk) {
                // Writing to a Vec does not fail.
                let _ = sink.lock().unwrap_or_else(PoisonError::into_inner).write_all(&chunk[..n]);
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

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Waits for the end of the pipe; says whether it came.
    pub(crate) fn wait_end(&self, limit: Duration) -> bool {
        self.drain_until(Instant::now() + limit);
        self.has_ended()
    }

    fn drain_until(&self, deadline: Instant) {
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits until `done` says so.
///
/// # Errors
/// When `limit` passes (the error names `what`), an interrupt arrives, or `done` fails.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !done()? {
        interrupt::check()?;
        ensure!(Instant::now() < deadline, "no {what} within {limit:.1?}");
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests;
