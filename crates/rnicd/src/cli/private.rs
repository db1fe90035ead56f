//! The private daemon that `rnic run` starts when there is none.
//!
//! All `rnic run` of one user in one network namespace share it: a server and its client must find
//! the same device. A lock file keeps two of them from starting two.

use super::client::Client;
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::fs::DirBuilder;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The control socket of the private daemon, which is started with `executable` if need be.
pub(super) fn daemon(executable: &Path) -> Result<PathBuf> {
    let directory = directory()?;
    let name = format!("private-{}", network_namespace());
    let socket = directory.join(format!("{name}.sock"));
    let lock_path = directory.join(format!("{name}.start"));
    let lock =
        open(&lock_path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .with_context(|| format!("cannot open {}", lock_path.display()))?;
    flock(&lock, FlockOperation::LockExclusive).context("cannot lock")?;
    if Client::at(&socket).is_ok() {
        return Ok(socket);
    }
    let log = directory.join(format!("{name}.log"));
    let usual = start(executable, &[], &socket, &log);
    let Err(error) = usual else { return Ok(socket) };
    // Another private daemon may have the port on 127.0.0.1: there are 16 million others.
    let elsewhere = (0..ADDRESSES_TRIED).find(|attempt| {
        let address = own_address(*attempt).to_string();
        start(executable, &["--address", &address], &socket, &log).is_ok()
    });
    elsewhere.map(|_| socket).ok_or(error)
}

/// Loopback addresses that hardly anybody else takes.
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
        .args(["--io", "udp", "--exit-with-last-client"])
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
        _ => format!("it said nothing in {}", log.display()),
    }
}

/// A directory of this user alone.
fn directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let parent = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir())
        .unwrap_or_else(|| PathBuf::from("/tmp"));
    let directory = parent.join(format!("rnic-run-{uid}"));
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", directory.display()));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&directory)?;
    if !found.is_dir() || found.uid() != uid || found.permissions().mode() & 0o077 != 0 {
        bail!(
            "{} is not a private directory of this user; remove it, or set XDG_RUNTIME_DIR",
            directory.display()
        );
    }
    Ok(directory)
}

/// Tells network namespaces apart: each has a loopback of its own.
fn network_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino())
}

/// Addresses to try when the port is taken on 127.0.0.1.
const ADDRESSES_TRIED: u8 = 8;
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);
