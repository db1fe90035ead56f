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
use std::ffi::OsString;
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
    let user = User::current();
    if let Some(path) = user.named.into_iter().next() {
        return Ok(path);
    }
    if user.uid == 0 {
        make_directory(Path::new("/run/rnicd"), 0o755)?;
        return Ok(PathBuf::from(SYSTEM));
    }
    if let Some(directory) = user.runtime {
        return Ok(directory.join(FILE));
    }
    let directory = temporary_directory(user.uid);
    make_directory(&directory, 0o700)?;
    check_private(&directory, user.uid)?;
    Ok(directory.join(FILE))
}

/// The paths that a program tries, in this order. Nothing is created, and a path need not exist.
pub fn candidate_socket_paths() -> Vec<PathBuf> {
    User::current().candidates()
}

struct User {
    /// Effective user.
    uid: u32,
    /// From `RNIC_SOCKET`.
    named: Vec<PathBuf>,
    /// From `XDG_RUNTIME_DIR`.
    runtime: Option<PathBuf>,
}

impl User {
    fn current() -> Self {
        // SAFETY: both only ask about this process and touch no memory.
        let (uid, secure) = unsafe { (libc::geteuid(), libc::getauxval(libc::AT_SECURE) != 0) };
        // A setuid program must not be led to a socket of its caller's choice.
        let variable = |name| if secure { None } else { env::var_os(name) };
        Self::new(uid, variable("RNIC_SOCKET"), variable("XDG_RUNTIME_DIR"))
    }

    fn new(uid: u32, named: Option<OsString>, runtime: Option<OsString>) -> Self {
        let named = env::split_paths(&named.unwrap_or_default())
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
        Self { uid, named, runtime }
    }

    fn candidates(self) -> Vec<PathBuf> {
        if !self.named.is_empty() {
            return self.named;
        }
        let mut paths = Vec::new();
        if self.uid != 0 {
            paths.extend(self.runtime.map(|directory| directory.join(FILE)));
            let temporary = temporary_directory(self.uid);
            // Anybody may have made a directory of that name: only the user's own is trusted.
            if check_private(&temporary, self.uid).is_ok() {
                paths.push(temporary.join(FILE));
            }
        }
        paths.push(PathBuf::from(SYSTEM));
        paths
    }
}

fn temporary_directory(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/rnicd-{uid}"))
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

fn check_private(path: &Path, uid: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let private = metadata.permissions().mode() & 0o077 == 0;
    if metadata.is_dir() && metadata.uid() == uid && private {
        return Ok(());
    }
    Err(invalid(format!(
        "{} is not a directory that only its owner, user {uid}, can enter: remove it, or choose \
         another socket with RNIC_SOCKET",
        path.display(),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(uid: u32, named: Option<&str>, runtime: Option<&str>) -> Vec<PathBuf> {
        User::new(uid, named.map(OsString::from), runtime.map(OsString::from)).candidates()
    }

    fn paths(expected: &[&str]) -> Vec<PathBuf> {
        expected.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn a_user_looks_at_home_first_and_root_only_at_the_systems() {
        let own = "/run/user/7/rnicd.sock";
        assert_eq!(candidates(7, None, Some("/run/user/7")), paths(&[own, SYSTEM]));
        assert_eq!(candidates(7, None, None), paths(&[SYSTEM]));
        assert_eq!(candidates(7, None, Some("relative")), paths(&[SYSTEM]));
        assert_eq!(candidates(0, None, Some("/run/user/0")), paths(&[SYSTEM]));
    }

    #[test]
    fn what_is_named_is_all_there_is() {
        assert_eq!(candidates(7, Some("/a:/b"), Some("/run/user/7")), paths(&["/a", "/b"]));
        assert_eq!(candidates(0, Some(""), None), paths(&[SYSTEM]));
    }

    #[test]
    fn only_a_private_directory_of_the_user_is_trusted() {
        let directory = env::temp_dir().join(format!("rnic-abi-private-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).unwrap();
        let uid = fs::metadata(&directory).unwrap().uid();
        assert!(check_private(&directory, uid).is_ok());
        assert!(check_private(&directory, uid + 1).is_err());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(check_private(&directory, uid).is_err());
        fs::remove_dir(&directory).unwrap();
        assert!(check_private(&directory, uid).is_err());
    }
}
