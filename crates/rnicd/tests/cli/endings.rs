//! How commands that go on until an interruption end.

use super::{Daemon, Folder};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{Answer, DeviceInfo, Refusal, Reply, Request, encode};
use rnic_abi::os::Listener;
use rnic_core::config::default_limits;
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

/// A daemon that does not let a user watch.
fn refuse(listener: &Listener) -> std::io::Result<()> {
    loop {
        let connection = listener.accept()?;
        while let Some((request, _)) = connection.recv_message::<Request>()? {
            let answer: Answer = match request {
                Request::Hello { .. } => Ok(Reply::Hello { abi: ABI_VERSION, server: "x".into() }),
                Request::ListDevices => Ok(Reply::Devices(vec![DeviceInfo {
                    name: "rnic0".into(),
                    netdev: None,
                    node_guid: [0; 8],
                    fw_version: "x".into(),
                    limits: default_limits(),
                }])),
                _ => Err(Refusal { errno: libc::EPERM, message: "only root may".into() }),
            };
            connection.send(&encode(&answer).unwrap(), &[])?;
        }
    }
}

#[test]
fn a_user_who_may_not_watch_loses_no_earlier_capture() {
    let folder = Folder::new("refused");
    let (socket, file) = (folder.0.join("socket"), folder.0.join("file"));
    let listener = Listener::bind(&socket, 0o600).unwrap();
    std::thread::spawn(move || refuse(&listener));
    std::fs::write(&file, "precious").unwrap();
    for command in ["capture", "trace"] {
        let mut rnic = Command::new(env!("CARGO_BIN_EXE_rnic"));
        rnic.args([command, "-w"]).arg(&file).env("RNIC_SOCKET", &socket);
        let output = rnic.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("only root may"), "{said}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious", "{command}");
    }
}
