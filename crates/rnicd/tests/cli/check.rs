//! `rnicd --check` of the options that the host need not fit.

use super::{Daemon, Folder};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn check(args: &[&str]) -> (Output, String) {
    let mut rnicd = Command::new(env!("CARGO_BIN_EXE_rnicd"));
    let output = rnicd.args(["--check", "--io", "loopback"]).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

#[test]
fn what_keeps_the_daemon_from_starting_is_found() {
    let folder = Folder::new("check");
    let (socket, metrics) = (folder.0.join("socket"), folder.0.join("metrics"));
    let metrics = format!("unix:{}", metrics.display());
    let good = ["--socket", socket.to_str().unwrap(), "--metrics", &metrics, "--group", "0"];
    let (output, said) = check(&good);
    assert!(output.status.success() && said.contains("rnicd can start here."), "{said}");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "a check leaves something");
    for (args, words) in [
        (&["--socket", "/nonexistent/socket"][..], &["control socket", "--socket"][..]),
        (&["--group", "no such group"], &["control socket", "getent group"]),
        (&["--metrics", "unix:/nonexistent/metrics"], &["metrics", "--metrics"]),
        (&["--metrics", "203.0.113.9:9879"], &["metrics", "--metrics"]),
        (&["--log", "a=b=c"], &["log filter", "rnic_net=debug"]),
    ] {
        let others = if args[0] == "--socket" { &[][..] } else { &good[..2] };
        let (output, said) = check(&[others, args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        let bad = said.lines().find(|line| line.starts_with("FAILED")).unwrap_or_default();
        assert!(words.iter().all(|word| bad.contains(word)), "{args:?}: {said}");
    }
}

#[test]
fn a_daemon_that_runs_is_not_disturbed_by_a_check() {
    let daemon = Daemon::start("checked");
    let (socket, served) = (daemon.socket(), daemon.folder.0.join("metrics"));
    let started = Instant::now();
    // Behind the control socket.
    while UnixStream::connect(&served).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "no metrics");
    }
    let metrics = format!("unix:{}", served.display());
    let (output, said) = check(&["--socket", socket.to_str().unwrap(), "--metrics", &metrics]);
    assert!(!output.status.success(), "{said}");
    let bad: Vec<_> = said.lines().filter(|line| line.starts_with("FAILED")).collect();
    assert_eq!(bad.len(), 2, "{said}");
    assert!(bad.iter().all(|line| line.contains("listens at")), "{said}");
    daemon.shown(&["status"]);
    assert!(daemon.metrics(b"GET /metrics HTTP/1.0\r\n\r\n").contains("# EOF"));
}
