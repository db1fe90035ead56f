//! How commands that go on until an interruption end.

use super::Daemon;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A command with a pipe for standard error, killed if it is still there at the end.
struct Running(Child);

impl Running {
    fn start(program: &str, args: &[&str], daemon: &Daemon) -> Self {
        let mut command = Command::new(program);
        command.args(args).env("RNIC_SOCKET", daemon.socket());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn rnic(args: &[&str], daemon: &Daemon) -> Self {
        Self::start(env!("CARGO_BIN_EXE_rnic"), args, daemon)
    }

    /// Runs a scenario; the reader of what it tells is gone already.
    fn scenario(text: &str, daemon: &Daemon) -> Self {
        let mut run = Self::rnic(&["fault", "run", "-"], daemon);
        drop(run.0.stderr.take());
        run.0.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        run
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        let waited = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(waited.elapsed() < Duration::from_secs(20), "it does not end");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(20));
    }
}

fn faults(daemon: &Daemon) -> usize {
    match daemon.json(&["fault", "list", "--json"]) {
        Value::Array(faults) => faults.len(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_scenario_takes_its_faults_away_however_it_ends() {
    let daemon = Daemon::start("scenario");
    let two = "[[fault]]\nfault = \"drop\"\n[[fault]]\nfault = \"corrupt\"\n";
    for signal in [Signal::HUP, Signal::TERM] {
        let mut run = Running::scenario(two, &daemon);
        until("the faults do not start", || faults(&daemon) == 2);
        run.signal(signal);
        assert!(run.end().success());
        assert_eq!(faults(&daemon), 0, "{signal:?}");
    }
    // One that another command has removed does not keep the others.
    let mut run = Running::scenario(two, &daemon);
    until("the faults do not start", || faults(&daemon) == 2);
    let list = daemon.json(&["fault", "list", "--json"]);
    daemon.shown(&["fault", "remove", &list[0]["fault"].to_string()]);
    run.signal(Signal::INT);
    assert!(run.end().success());
    assert_eq!(faults(&daemon), 0);
}

#[test]
fn commands_end_well_when_the_reader_of_what_they_tell_has_gone() {
    let daemon = Daemon::start("reader");
    for command in ["capture", "trace"] {
        let file = daemon.folder.0.join(command);
        let mut run = Running::rnic(&[command, "-w", file.to_str().unwrap()], &daemon);
        drop(run.0.stderr.take());
        until("it does not begin", || length(&file) > 0);
        run.signal(Signal::INT);
        assert_eq!(run.end().code(), Some(0), "{command}");
    }
}

fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |found| found.len())
}

#[test]
fn a_capture_is_written_when_the_terminal_is_closed() {
    let daemon = Daemon::start("terminal");
    let file = daemon.folder.0.join("capture");
    let args = ["capture", "--last", "30s", "-w", file.to_str().unwrap()];
    let mut run = Running::rnic(&args, &daemon);
    until("it does not begin", || length(&file) > 0);
    let begun = length(&file);
    run.signal(Signal::HUP);
    assert!(run.end().success());
    assert!(length(&file) > begun, "the statistics are missing");
    // As with nohup.
    std::fs::remove_file(&file).unwrap();
    let script = "trap '' HUP; exec \"$@\"";
    let rnic = ["-c", script, "sh", env!("CARGO_BIN_EXE_rnic")];
    let mut run = Running::start("sh", &[&rnic[..], &args[..]].concat(), &daemon);
    until("it does not begin", || length(&file) > 0);
    run.signal(Signal::HUP);
    sleep(Duration::from_secs(1));
    assert!(run.0.try_wait().unwrap().is_none(), "it ends with the terminal");
    run.signal(Signal::INT);
    assert!(run.end().success());
}
