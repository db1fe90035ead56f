//! The entrypoint of the image for containers, on the loopback interface.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where the image has the daemon's socket, gone at the end with the daemon.
struct Container {
    folder: PathBuf,
    address: &'static str,
}

impl Container {
    /// With the socket of a daemon that was killed, as when a container is restarted.
    fn restarted(name: &str, address: &'static str) -> Self {
        let folder = std::env::temp_dir().join(format!("rnic-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let this = Self { folder, address };
        drop(UnixListener::bind(this.socket()).unwrap());
        assert!(this.socket().exists());
        this
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("rnicd.sock")
    }

    fn run(&self, netdev: &str, command: &[&str]) -> Output {
        let programs = Path::new(env!("CARGO_BIN_EXE_rnicd")).parent().unwrap().to_owned();
        let path = std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect::<Vec<_>>();
        let path = std::env::join_paths(std::iter::once(programs).chain(path)).unwrap();
        Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/container-entrypoint"))
            .args(command)
            .env("PATH", path)
            .env("RNIC_SOCKET", self.socket())
            .env("RNIC_NETDEV", netdev)
            .env("RNICD_OPTIONS", format!("--address {}", self.address))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Not a pipe, which the daemon would keep open.
            .stderr(fs::File::create(self.folder.join("log")).unwrap())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap()
    }

    fn daemon(&self) -> Option<Pid> {
        let said = self.run("lo", &["rnic", "status", "--json"]);
        let status: Value = serde_json::from_slice(&said.stdout).ok()?;
        Pid::from_raw(i32::try_from(status["pid"].as_i64()?).ok()?)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if self.address != NO_DAEMON
            && let Some(daemon) = self.daemon()
        {
            let _ = kill_process(daemon, Signal::TERM);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_restarted_container_has_a_daemon_again() {
    let container = Container::restarted("restarted", "127.91.7.1");
    let daemon = container.daemon().expect("a daemon");
    assert_eq!(container.daemon(), Some(daemon), "one that answers is used");
}

#[test]
fn the_command_has_no_children_that_it_did_not_start() {
    let container = Container::restarted("children", "127.91.7.2");
    let shown = container.run("lo", &["sh", "-c", "echo $$"]);
    let command = String::from_utf8(shown.stdout).unwrap();
    let daemon = container.daemon().expect("a daemon").as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    assert_ne!(parent.trim(), command.trim());
}

#[test]
fn the_command_does_not_run_without_a_daemon() {
    let container = Container::restarted("without", NO_DAEMON);
    let said = container.run("nosuch0", &["echo", "it runs"]);
    assert!(!said.status.success() && said.stdout.is_empty(), "{said:?}");
    let log = fs::read_to_string(container.folder.join("log")).unwrap();
    assert!(log.contains("nosuch0"), "{log}");
}

const NO_DAEMON: &str = "127.91.7.3";
