//! Another host, reached with the ordinary `ssh` program.
//!
//! One master connection carries all commands. It never prompts (`BatchMode`), so logging in must
//! work without a password.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::paths::Scratch;
use crate::place::Job;
use crate::process::{Cmd, Output, Running, shell_code, wait_until};

/// How long logging in may take.
const LOGIN: Duration = Duration::from_secs(20);
/// How long a short command may take.
const COMMAND: Duration = Duration::from_secs(30);
/// How long the end of a remote command may be delayed beyond its limit.
const GRACE: Duration = Duration::from_secs(10);

/// The host to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `[USER@]HOST` as ssh takes it.
    pub host: String,
    /// The port, unless ssh's own configuration is to choose.
    pub port: Option<u16>,
    /// Further options of ssh.
    pub options: Vec<String>,
    /// The namespace that ssh runs in.
    pub netns: Option<String>,
}

impl Target {
    /// Reads `ssh://[USER@]HOST[:PORT]`; an IPv6 address is in brackets.
    ///
    /// # Errors
    /// When it is not of that form.
    pub fn parse(url: &str) -> Result<Self> {
        let form = || format!("{url:?} is no peer: give ssh://[USER@]HOST[:PORT]");
        let rest = url.strip_prefix("ssh://").with_context(form)?.trim_end_matches('/');
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (format!("{user}@"), place),
            None => (String::new(), rest),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(inside) => {
                let (host, port) = inside.split_once(']').with_context(form)?;
                (host, port.strip_prefix(':'))
            }
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = port.map(str::parse).transpose().with_context(form)?;
        ensure!(!host.is_empty() && !rest.starts_with('-') && !host.starts_with('-'), form());
        Ok(Self { host: user + host, port, options: Vec::new(), netns: None })
    }

    fn ssh(&self, socket: &Path) -> Cmd {
        let port = self.port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]);
        Cmd::new("ssh")
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "LogLevel=ERROR"])
            .arg("-S")
            .arg(socket)
            .args(port)
            .args(&self.options)
            .in_netns(self.netns.as_deref())
    }
}

/// A login; the connection ends on drop.
pub struct Session {
    /// `ssh` over the master connection; the command is to be added.
    ssh: Cmd,
    name: String,
    _master: Running,
    _scratch: Scratch,
}

impl Session {
    /// Logs in.
    ///
    /// # Errors
    /// When the host does not let us in; the error shows what ssh says.
    pub fn open(target: &Target) -> Result<Self> {
        let scratch = Scratch::new("ssh")?;
        let socket = scratch.join("master");
        let ssh = target.ssh(&socket);
        let mut master =
            ssh.clone().args(["-M", "-N", &target.host]).limit(Duration::MAX).start()?;
        let host = &target.host;
        wait_until("login", LOGIN, || {
            if let Some(status) = master.try_status()? {
                std::thread::sleep(Duration::from_millis(100));
                let why = master.stderr();
                bail!(
                    "ssh to {host} ended with {}: {}\nIt must work without a password: try \
                     `ssh -o BatchMode=yes {host} true`",
                    shell_code(status),
                    why.trim()
                );
            }
            Ok(socket.exists())
        })?;
        let ssh = ssh.args(["-o", "ControlMaster=no", &target.host, "--"]);
        Ok(Self { ssh, name: target.host.clone(), _master: master, _scratch: scratch })
    }

    /// The host's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a script of the POSIX shell there and returns what happened.
    ///
    /// # Errors
    /// When ssh cannot be started or does not end.
    pub fn run(&self, script: &str) -> Result<Output> {
        self.ssh.clone().arg(in_shell(script)).limit(COMMAND).run()
    }

    /// Runs a script and returns what it printed.
    ///
    /// # Errors
    /// As [`Session::run`], and when its exit status is not zero.
    pub fn check(&self, script: &str) -> Result<String> {
        let output = self.run(script)?;
        ensure!(output.success(), "on {}: {output}", self.name);
        Ok(output.stdout)
    }

    /// Copies a file there. Its folder must exist.
    ///
    /// # Errors
    /// When it cannot be read here or not be written there.
    pub fn put(&self, from: &Path, to: &str) -> Result<()> {
        let command = in_shell(&format!("cat > {}", quoted(to)));
        let output = self.ssh.clone().arg(command).input(from).limit(COMMAND).run()?;
        ensure!(output.success(), "copying {} to {}: {output}", from.display(), self.name);
        Ok(())
    }

    /// Starts a program with a limit that the host enforces.
    ///
    /// # Errors
    /// When ssh cannot be started.
    pub fn start(&self, command: &str, limit: Duration) -> Result<RemoteJob> {
        let seconds = limit.as_secs().max(1);
        let script = format!("echo $$; exec timeout -s KILL {seconds} {command}");
        let running = self.ssh.clone().arg(in_shell(&script)).limit(limit + GRACE).start()?;
        Ok(RemoteJob { ssh: self.ssh.clone(), running: Some(running), began: Instant::now() })
    }
}

/// A program that runs on another host; killed there on drop.
pub struct RemoteJob {
    ssh: Cmd,
    running: Option<Running>,
    began: Instant,
}

impl RemoteJob {
    fn running(&mut self) -> Result<&mut Running> {
        self.running.as_mut().context("a remote program was waited for already")
    }
}

impl Job for RemoteJob {
    fn exit_code(&mut self) -> Result<Option<i32>> {
        Ok(self.running()?.try_status()?.map(shell_code))
    }

    fn said(&self) -> String {
        let said = |running: &Running| program_output(&running.stdout()).1 + &running.stderr();
        self.running.as_ref().map(said).unwrap_or_default()
    }

    fn wait(mut self: Box<Self>) -> Result<Output> {
        let running = self.running.take().context("a remote program was waited for already")?;
        let output = running.wait()?;
        let stdout = program_output(&output.stdout).1;
        Ok(Output { stdout, elapsed: self.began.elapsed(), ..output })
    }
}

impl Drop for RemoteJob {
    fn drop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        if matches!(running.try_status(), Ok(Some(_))) {
            return;
        }
        if let Some(pid) = program_output(&running.stdout()).0 {
            // `timeout` leads a process group, except busybox's.
            let kill = format!("kill -KILL -{pid} 2>/dev/null || kill -KILL {pid}");
            let ssh = self.ssh.clone().arg(in_shell(&kill));
            let _ = ssh.for_cleanup().limit(Duration::from_secs(5)).run();
        }
    }
}

/// The process id of the first line, and what the program printed.
fn program_output(stdout: &str) -> (Option<u32>, String) {
    let (first, rest) = stdout.split_once('\n').unwrap_or((stdout, ""));
    (first.trim().parse().ok(), rest.to_owned())
}

/// A script as one word for a login shell of any kind.
fn in_shell(script: &str) -> String {
    format!("exec sh -c {}", quoted(script))
}

/// A word that a shell takes as it is.
#[must_use]
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (String, Option<u16>) {
        let target = Target::parse(url).unwrap();
        (target.host, target.port)
    }

    #[test]
    fn user_and_port_are_optional() {
        assert_eq!(parsed("ssh://node7"), ("node7".into(), None));
        assert_eq!(parsed("ssh://root@10.0.0.2:2222"), ("root@10.0.0.2".into(), Some(2222)));
        assert_eq!(parsed("ssh://me@[fd00::1]:22/"), ("me@fd00::1".into(), Some(22)));
        assert_eq!(parsed("ssh://[fd00::1]"), ("fd00::1".into(), None));
        for bad in ["node7", "ssh://", "ssh://a:b", "ssh://[fd00::1", "ssh://-oProxyCommand=x"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_line_is_the_process_id() {
        assert_eq!(program_output("17\nout\nmore\n"), (Some(17), "out\nmore\n".into()));
        assert_eq!(program_output(""), (None, String::new()));
    }

    #[test]
    fn quotes_survive_the_shell() {
        let echo = format!("printf %s {}", quoted("it's $HOME"));
        let said = Cmd::new("sh").args(["-c", &in_shell(&echo)]).check().unwrap();
        assert_eq!(said, "it's $HOME");
    }
}
