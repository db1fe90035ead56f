//! The private daemon of `rnic run`, with the libraries of an installation replaced by empty files:
//! the programs here use none.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A user's own installation and runtime folder, gone at the end with the daemon in it.
struct Home {
    /// On the file system of the programs, which are linked to here.
    installed: PathBuf,
    /// Where paths are short enough for sockets.
    runtime: PathBuf,
}

impl Home {
    fn new(name: &str) -> Self {
        let name = format!("rnic-private-{name}-{}", std::process::id());
        let this = Self {
            installed: Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name),
            runtime: std::env::temp_dir().join(&name),
        };
        fs::DirBuilder::new().mode(0o700).create(&this.runtime).unwrap();
        for folder in ["bin", "lib"] {
            fs::create_dir_all(this.installed.join(folder)).unwrap();
        }
        fs::hard_link(env!("CARGO_BIN_EXE_rnic"), this.bin("rnic")).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_rnicd"), this.bin("rnicd")).unwrap();
        fs::write(this.installed.join("lib/libibverbs.so.1"), "").unwrap();
        this
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.installed.join("bin").join(name)
    }

    fn rnic(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.bin("rnic"));
        command.args(args).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", &self.runtime).env_remove("RNIC_SOCKET");
        command
    }

    /// What `rnic status` says of the daemon.
    fn status(&self) -> Option<Value> {
        let said = self.rnic(&["status", "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&said.stdout).ok()?;
        // Not the daemon of the machine that the tests run on.
        (Path::new(status["socket"].as_str()?).parent() == Some(&self.runtime)).then_some(status)
    }

    /// A program under `rnic run`, and the process of its daemon.
    fn run(&self, program: &[&str]) -> (Running, u64) {
        let program = self.rnic(&[&["run", "--no-view", "--"], program].concat()).spawn().unwrap();
        let program = Running(program);
        let started = Instant::now();
        loop {
            if let Some(status) = self.status() {
                return (program, status["pid"].as_u64().unwrap());
            }
            assert!(started.elapsed() < SOON, "no daemon");
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(pid) = self.status().and_then(|status| status["pid"].as_i64()) {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let _ = rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::TERM);
        }
        let _ = fs::remove_dir_all(&self.installed);
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_alive(pid: u64) -> bool {
    // The parent of a process that has ended may not have looked at it.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// A program may take any time before it opens the device.
#[test]
fn the_daemon_lives_as_long_as_the_program() {
    let home = Home::new("lives");
    let (program, daemon) = home.run(&["sleep", "3600"]);
    let started = Instant::now();
    while started.elapsed() < LONGER_THAN_ITS_PATIENCE {
        assert!(is_alive(daemon), "the daemon ended after {:?}", started.elapsed());
        std::thread::sleep(POLL);
    }
    drop(program);
    let ended = Instant::now();
    while is_alive(daemon) {
        assert!(ended.elapsed() < SOON, "the daemon does not end");
        std::thread::sleep(POLL);
    }
}

const SOON: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// The daemon waits ten seconds for a first client.
const LONGER_THAN_ITS_PATIENCE: Duration = Duration::from_secs(12);
