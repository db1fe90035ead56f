//! The private daemon that `rnic run` starts when there is none.
//!
//! All `rnic run` of one user in one network namespace share it: a server and its client must find
//! the same device. A lock file keeps two commands from starting two daemons. A daemon in another
//! pid namespace cannot reach our processes' memory, so pid namespaces that share the user's folder
//! get a daemon each.

use super::client::Client;
use anyhow::{Context, Result, bail};
use rnic_abi::os::{own_directories, own_directory};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where private daemons that this process can use may listen.
pub(super) fn sockets() -> Vec<PathBuf> {
    own_directories().iter().flat_map(|directory| sockets_in(directory)).collect()
}

/// The one for all processes that its daemon can see, and the one for this pid namespace.
fn sockets_in(directory: &Path) -> [PathBuf; 2] {
    let (net, pid) = (namespace("net"), namespace("pid"));
    [format!("{PREFIX}{net}.sock"), format!("{PREFIX}{net}-{pid}.sock")]
        .map(|name| directory.join(name))
}

/// Whether a private daemon listens at a path.
pub(super) fn is_one(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(PREFIX))
}

/// The control socket of the private daemon, which is started with `executable` if need be.
pub(super) fn daemon(executable: &Path) -> Result<PathBuf> {
    let directory = own_directory().context("no place for a private daemon")?;
    let lock_path = directory.join(format!("{PREFIX}{}.start", namespace("net")));
    let lock =
        open(&lock_path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .with_context(|| format!("cannot open {}", lock_path.display()))?;
    flock(&lock, FlockOperation::LockExclusive)
        .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    let mut refusals = Vec::new();
    for path in sockets() {
        match Client::at(&path) {
            Ok(client) => return Ok(client.path),
            Err(why) if why.there => refusals.push((path, why)),
            Err(_) => {}
        }
    }
    let taken = |path: &PathBuf| refusals.iter().any(|(other, _)| other == path);
    let Some(socket) = sockets_in(&directory).into_iter().find(|path| !taken(path)) else {
        let (path, why) = &refusals[0];
        bail!("cannot use the private daemon at {}: {why}", path.display());
    };
    let log = socket.with_extension("log");
    let usual = start(executable, &[], &socket, &log);
    let Err(error) = usual else { return Ok(socket) };
    // Another daemon may have the port on 127.0.0.1: there are 16 million others.
    let elsewhere = (0..ADDRESSES_TRIED).find(|attempt| {
        let address = own_address(*attempt).to_string();
        start(executable, &["--address", &address], &socket, &log).is_ok()
    });
    elsewhere.map(|_| socket).ok_or(error)
}

/// A loopback address that other users' daemons are unlikely to have.
fn own_address(attempt: u8) -> Ipv4Addr {
    let [a, b, c, d] = rustix::process::geteuid().as_raw().to_be_bytes();
    Ipv4Addr::new(127, 64 | (a ^ b ^ attempt) & 63, c, d.max(2))
}

/// Starts the daemon and waits until it answers.
fn start(executable: &Path, place: &[&str], socket: &Path, log: &Path) -> Result<()> {
    let mut child = spawn(executable, place, socket, log)?;
    let started = Instant::now();
    loop {
        if Client::at(socket).is_ok() {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!("the private daemon ended with {status}: {}", said(log));
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            bail!("the private daemon does not answer: {}", said(log));
        }
        std::thread::sleep(POLL);
    }
}

fn spawn(executable: &Path, place: &[&str], socket: &Path, log: &Path) -> Result<Child> {
    let output =
        std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    Command::new(executable)
        .args(["--io", "udp", "--exit-with-last-client", "--mode", "0600"])
        .args(place)
        .arg("--socket")
        .arg(socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output)
        // A Ctrl-C for the program is none for the daemon that others may share.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", executable.display()))
}

fn said(log: &Path) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(log).and_then(|mut file| file.read_to_string(&mut text));
    match read {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => format!("it wrote nothing to {}", log.display()),
    }
}

/// Tells namespaces apart: each network namespace has a loopback of its own.
fn namespace(kind: &str) -> u64 {
    std::fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |found| found.ino())
}

/// How the names of a private daemon's files begin.
const PREFIX: &str = "rnic-run-";
/// Addresses to try when the port is taken on 127.0.0.1.
const ADDRESSES_TRIED: u8 = 8;
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);
