//! The private daemon that `rnic run` starts when there is none.
//!
//! All `rnic run` of one user in one network namespace share it: a server and its client must find
//! the same device. A lock file keeps two commands from starting two daemons. A daemon in another
//! pid namespace cannot reach our processes' memory, so pid namespaces that share the user's folder
//! get a daemon each.
//!
//! The process that becomes the user's program does not start the daemon itself: a program that
//! waits for all of its children, and has its device open, would wait for ever. A command of `rnic`
//! starts it and ends, which leaves the daemon to init.

use super::client::Client;
use anyhow::{Context, Result, bail, ensure};
use rnic_abi::os::{own_directories, own_directory};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
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

/// The control socket of the private daemon, which `rnic` starts if need be.
pub(super) fn daemon(rnic: &Path) -> Result<PathBuf> {
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
    start_elsewhere(rnic, &socket)?;
    Ok(socket)
}

/// Has another process of `rnic` start the daemon. Connects to it, so that it knows this process as
/// a client, which it waits for.
fn start_elsewhere(rnic: &Path, socket: &Path) -> Result<()> {
    let starting = Command::new(rnic)
        .arg(START)
        .arg(socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut starting = starting.context("cannot start a private daemon")?;
    let mut said = String::new();
    if let Some(mut stderr) = starting.stderr.take() {
        stderr.read_to_string(&mut said).context("cannot start a private daemon")?;
    }
    // What it did is seen below: there is no status where this process ignores SIGCHLD.
    let _ = starting.wait();
    if let Err(why) = Client::at(socket) {
        let said = said.trim().trim_start_matches("rnic: ");
        ensure!(said.is_empty(), "{said}");
        bail!("cannot use the private daemon at {}: {why}", socket.display());
    }
    Ok(())
}

/// Starts the daemon, and ends with the daemon running: the process of [`START`].
///
/// # Errors
/// What the daemon said.
pub(super) fn start(socket: &Path) -> Result<()> {
    let what = "cannot start a private daemon";
    // Others may share the daemon: a Ctrl-C or the end of a terminal is for the program alone.
    rustix::process::setsid().context(what)?;
    close_on_exec().context(what)?;
    let own = std::env::current_exe().context("cannot find my own executable")?;
    let executable = own.with_file_name("rnicd");
    let log = socket.with_extension("log");
    let usual = try_at(&executable, &[], socket, &log);
    let Err(error) = usual else { return Ok(()) };
    // Another daemon may have the port on 127.0.0.1: there are 16 million others.
    let mut elsewhere = (0..ADDRESSES_TRIED).map(|attempt| own_address(attempt).to_string());
    let found = elsewhere
        .any(|address| try_at(&executable, &["--address", &address], socket, &log).is_ok());
    if found { Ok(()) } else { Err(error) }
}

/// What the user's shell has open is not for the daemon: a pipe, for one, would have no end as long
/// as the daemon lives.
#[allow(unsafe_code, reason = "descriptors of which only the numbers are known")]
fn close_on_exec() -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(fd) = number.filter(|fd| *fd > libc::STDERR_FILENO) else { continue };
        // SAFETY: the folder names open descriptors, and this process, which has one thread, has
        // closed none since.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    }
    Ok(())
}

/// A loopback address that other users' daemons are unlikely to have.
fn own_address(attempt: u8) -> Ipv4Addr {
    let [a, b, c, d] = rustix::process::geteuid().as_raw().to_be_bytes();
    Ipv4Addr::new(127, 64 | (a ^ b ^ attempt) & 63, c, d.max(2))
}

/// Starts the daemon and waits until it answers.
fn try_at(executable: &Path, place: &[&str], socket: &Path, log: &Path) -> Result<()> {
    let mut child = spawn(executable, place, socket, log)?;
    let started = Instant::now();
    loop {
        if Client::at(socket).is_ok() {
            return Ok(());
        }
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => bail!("the private daemon ended with {status}: {}", said(log)),
            // Its status is lost where SIGCHLD is ignored.
            Err(_) => bail!("the private daemon ended: {}", said(log)),
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
        // It keeps no file system of the user's busy.
        .current_dir("/")
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

/// The command of `rnic` that starts the daemon.
pub(super) const START: &str = "start-private";
/// How the names of a private daemon's files begin.
const PREFIX: &str = "rnic-run-";
/// Addresses to try when the port is taken on 127.0.0.1.
const ADDRESSES_TRIED: u8 = 8;
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);
