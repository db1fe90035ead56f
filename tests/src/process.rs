//! One command: its namespace, user, CPU and time limit, and what it printed.
//!
//! A [`Cmd`] is a description and can be used again. [`Cmd::start`] gives a [`Running`] process
//! that leads a process group of its own and is killed and reaped on drop with all of that group.

mod output;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

pub(crate) use output::{Collector, read_on};
pub use output::{Output, shell_code, tail};

use crate::interrupt;

const POLL: Duration = Duration::from_millis(5);
/// How long output is still collected after the end: a grandchild may hold the pipe open, and a
/// reader may have to wait for a CPU.
const DRAIN: Duration = Duration::from_secs(3);

/// Names the user of [`User::of_tests`]. Only root can run tests with it.
pub const USER_ENV: &str = "RNIC_TEST_USER";

/// With the value `program`, programs have engines of their own where their daemon can give them
/// sockets.
pub const ENGINE_ENV: &str = "RNIC_TEST_ENGINE";

/// Whether programs have engines of their own where a test does not say otherwise: see
/// [`ENGINE_ENV`].
#[must_use]
pub fn engine_in_program() -> bool {
    std::env::var_os(ENGINE_ENV).is_some_and(|value| value == "program")
}

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
    show: Show,
    cleanup: bool,
}

/// When our own output has that of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Show {
    Never,
    AsItComes,
    AtEnd,
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
            show: Show::Never,
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

    /// Copies what it writes to our own standard output and error, too, as it comes.
    #[must_use]
    pub fn show_output(mut self) -> Self {
        self.show = Show::AsItComes;
        self
    }

    /// The same, but all at once when it has ended.
    #[must_use]
    pub fn show_output_at_end(mut self) -> Self {
        self.show = Show::AtEnd;
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
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        for (key, value) in &self.env {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {self}"))?;
        let now = self.show == Show::AsItComes;
        let stdout = child.stdout.take().map(|pipe| Collector::start(pipe, now.then(io::stdout)));
        let stderr = child.stderr.take().map(|pipe| Collector::start(pipe, now.then(io::stderr)));
        Ok(Running {
            show: self.show,
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

/// A process in the background.
pub struct Running {
    child: Child,
    stdout: Option<Collector>,
    stderr: Option<Collector>,
    title: String,
    began: Instant,
    limit: Duration,
    cleanup: bool,
    show: Show,
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
        let title = self.title.clone();
        if self.show == Show::AtEnd {
            // In one piece: others write at the same time.
            print!("{title}\n{stdout}{stderr}");
        }
        let shown = self.show != Show::Never;
        Output { title, status, stdout, stderr, elapsed, shown }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill();
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
