//! Where the control socket is.
//!
//! | who | where |
//! |---|---|
//! | anybody with `RNIC_SOCKET` set | there, and nowhere else; several paths are separated by `:` |
//! | root | `/run/rnicd/rnicd.sock` |
//! | another user with a session | `$XDG_RUNTIME_DIR/rnicd.sock` |
//! | another user without one | `/tmp/rnicd-UID/rnicd.sock`, the directory private to that user |
//!
//! A program that is not root's looks at its own user's places first and then at root's daemon.

use super::invalid;
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SYSTEM: &str = "/run/rnicd/rnicd.sock";
const FILE: &str = "rnicd.sock";

/// The path on which a daemon listens unless told otherwise, its directory made when missing.
///
/// # Errors
/// When the directory cannot be made, or the one in `/tmp` belongs to somebody else or is open to
/// others.
pub fn default_socket_path() -> io::Result<PathBuf> {
    if let Some(path) = from_environment().into_iter().next() {
        return Ok(path);
    }
    if effective_uid() == 0 {
        make_directory(Path::new("/run/rnicd"), 0o755)?;
        return Ok(PathBuf::from(SYSTEM));
    }
    if let Some(directory) = runtime_directory() {
        return Ok(directory.join(FILE));
    }
    let directory = temporary_directory();
    make_directory(&directory, 0o700)?;
    check_private(&directory)?;
    Ok(directory.join(FILE))
}

/// The paths that a program tries, in this order. Nothing is created, and a path need not exist.
pub fn candidate_socket_paths() -> Vec<PathBuf> {
    let named = from_environment();
    if !named.is_empty() {
        return named;
    }
    let mut paths = Vec::new();
    if effective_uid() != 0 {
        paths.extend(runtime_directory().map(|directory| directory.join(FILE)));
        let temporary = temporary_directory();
        // Anybody may have made a directory of that name: only the user's own is trusted.
        if check_private(&temporary).is_ok() {
            paths.push(temporary.join(FILE));
        }
    }
    paths.push(PathBuf::from(SYSTEM));
    paths
}

fn from_environment() -> Vec<PathBuf> {
    let value = trusted_variable("RNIC_SOCKET").unwrap_or_default();
    env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
}

fn runtime_directory() -> Option<PathBuf> {
    trusted_variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// A setuid program must not be led to a socket of its caller's choice.
fn trusted_variable(name: &str) -> Option<std::ffi::OsString> {
    // SAFETY: reads the process's own auxiliary vector.
    let secure_execution = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure_execution { None } else { env::var_os(name) }
}

fn temporary_directory() -> PathBuf {
    PathBuf::from(format!("/tmp/rnicd-{}", effective_uid()))
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            Err(io::Error::new(error.kind(), format!("cannot make {}: {error}", path.display())))
        }
        Ok(()) => Ok(()),
    }
}

fn check_private(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let private = metadata.permissions().mode() & 0o077 == 0;
    if metadata.is_dir() && metadata.uid() == effective_uid() && private {
        return Ok(());
    }
    Err(invalid(format!(
        "{} is not a directory that only its owner, user {}, can enter: remove it, or choose \
         another socket with RNIC_SOCKET",
        path.display(),
        effective_uid()
    )))
}

fn effective_uid() -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}
