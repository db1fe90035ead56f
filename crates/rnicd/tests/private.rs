//! The private daemon of `rnic run`, with the libraries of an installation replaced by empty files:
//! the programs here use none.

use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
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

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", &self.runtime).env_remove("RNIC_SOCKET");
        command
    }

    fn rnic(&self, args: &[&str]) -> Command {
        let mut command = self.command(self.bin("rnic"));
        command.args(args);
        command
    }

    /// `rnic` in the runtime folder.
    fn here(&self, args: &[&str]) -> Output {
        self.rnic(args).current_dir(&self.runtime).output().unwrap()
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
        let program = self.rnic(&[&["run", "--no-view", "--"], program].concat());
        self.start(program)
    }

    /// The same of a command line.
    fn start(&self, mut command: Command) -> (Running, u64) {
        let program = Running(command.spawn().unwrap());
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

/// What `/proc/PID/stat` has behind the name: state, parent, process group, session and so on.
fn stat(pid: u64) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let words = text.rsplit_once(") ").map_or("", |(_, words)| words);
    words.split_whitespace().map(str::to_owned).collect()
}

fn is_alive(pid: u64) -> bool {
    // The parent of a process that has ended may not have looked at it.
    stat(pid).first().is_some_and(|state| state != "Z")
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

/// A program that waits for its children does not wait for the daemon, which neither keeps open
/// what the program's user has open, nor stands in a folder, nor ends by the program's Ctrl-C.
#[test]
fn the_daemon_has_nothing_of_the_program() {
    let home = Home::new("apart");
    let script = "exec 7> \"$0\" && cd \"$1\" && exec \"$2\" run --no-view -- sleep 3600";
    let file = home.runtime.join("file");
    let mut shell = home.command("sh");
    shell.args(["-c", script]).arg(&file).arg(&home.installed).arg(home.bin("rnic"));
    let (program, daemon) = home.start(shell);
    let program_pid = u64::from(program.0.id());
    let (own, daemons) = (stat(program_pid), stat(daemon));
    let (parent, session) = (&daemons[1], &daemons[3]);
    assert_ne!(*parent, program_pid.to_string(), "the daemon is the program's child");
    assert_ne!(*session, own[3], "the daemon is in the program's session");
    let at = |what: &str| fs::read_link(format!("/proc/{daemon}/{what}")).unwrap();
    assert_eq!(at("cwd"), Path::new("/"));
    let open = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
    let open: Vec<_> = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).collect();
    assert!(!open.contains(&file), "{open:?}");
}

/// The daemon's errors reach the user though another process starts it.
#[test]
fn a_daemon_that_does_not_start_says_why() {
    let home = Home::new("why");
    let executable = home.bin("rnicd");
    fs::remove_file(&executable).unwrap();
    fs::write(&executable, "#!/bin/sh\necho 'rnicd: no wire today' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
    for ignored in ["", "trap '' CHLD;"] {
        let script = format!("{ignored} exec \"$0\" run --no-view -- true");
        let mut shell = home.command("sh");
        let said = shell.args(["-c", &script]).arg(home.bin("rnic")).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && text.contains("no wire today"), "{text}");
        assert_eq!(text.matches("rnic: ").count(), 1, "{text}");
    }
}

/// A program may have another folder, and looks for `:` between paths.
#[test]
fn the_program_is_told_of_a_socket_in_a_way_that_it_understands() {
    let home = Home::new("named");
    for (socket, told) in
        [("my.sock", Ok(home.runtime.join("my.sock"))), ("a:b", Err("RNIC_SOCKET"))]
    {
        let mut daemon = home.command(home.bin("rnicd"));
        daemon.args(["--io", "loopback", "--log", "error", "--socket", socket]);
        let _daemon = Running(daemon.current_dir(&home.runtime).spawn().unwrap());
        let started = Instant::now();
        while !home.here(&["status", "--socket", socket]).status.success() {
            assert!(started.elapsed() < SOON, "no daemon");
            std::thread::sleep(POLL);
        }
        let command = ["run", "--no-view", "--socket", socket, "--", "printenv", "RNIC_SOCKET"];
        let said = home.here(&command);
        let (shown, error) =
            (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        match told {
            Ok(path) => assert_eq!(Path::new(shown.trim()), path, "{error}"),
            Err(word) => assert!(!said.status.success() && error.contains(word), "{shown}{error}"),
        }
    }
}

const SOON: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// The daemon waits ten seconds for a first client.
const LONGER_THAN_ITS_PATIENCE: Duration = Duration::from_secs(12);
