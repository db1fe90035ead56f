//! Where the control socket is.
//!
//! | user | socket |
//! |---|---|
//! | any user with `RNIC_SOCKET` set | there, and nowhere else; several paths are separated by `:` |
//! | root | `/run/rnicd/rnicd.sock` |
//! | another user, or root where `/run/rnicd` cannot be made | `rnicd.sock` in the user's own folder |
//!
//! A user's own folder is `$XDG_RUNTIME_DIR`, when it belongs to the user and only the user can
//! write to it; else `/tmp/rnicd-UID`, or `/tmp/rnicd-UID.1` to `.7` when another user took that
//! name: every user may make folders in `/tmp`. The root of a user namespace has the number of the
//! host's root, whose folders there are another user's.
//!
//! A program that is not root's looks at its own user's places first and then at root's daemons:
//! the one at `/run/rnicd/rnicd.sock` and those at further sockets in that folder, as a service for
//! each of several interfaces has them.

use super::invalid;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The path on which a daemon listens unless told otherwise, its directory made when missing.
///
/// # Errors
/// As [`own_directory`].
pub fn default_socket_path() -> io::Result<PathBuf> {
    let user = User::current();
    if let Some(path) = user.named.into_iter().next() {
        return Ok(path);
    }
    let system = Path::new(SYSTEM_DIRECTORY);
    if user.uid == 0 && make_directory(system, 0o755).is_ok() && check_own(system, 0).is_ok() {
        return Ok(system.join(FILE));
    }
    Ok(own_directory()?.join(FILE))
}

/// The paths that a program tries, in this order. Nothing is created, and a path need not exist.
pub fn candidate_socket_paths() -> Vec<PathBuf> {
    User::current().candidates()
}

/// What `RNIC_SOCKET` names; empty when it is not set.
pub fn named_socket_paths() -> Vec<PathBuf> {
    User::current().named
}

/// The folders that are this user's own, the best first. Nothing is created.
pub fn own_directories() -> Vec<PathBuf> {
    User::current().directories()
}

/// The best of [`own_directories`], made when there is none.
///
/// # Errors
/// When every possible place belongs to another user, is open to others, or cannot be written to;
/// the text has each.
pub fn own_directory() -> io::Result<PathBuf> {
    User::current().directory()
}

/// The folder beside a daemon's socket in which it shows its device as Linux does in `/sys/class`.
#[must_use]
pub fn files_beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".files");
    PathBuf::from(path)
}

struct User {
    /// Effective user.
    uid: u32,
    /// From `RNIC_SOCKET`.
    named: Vec<PathBuf>,
    /// From `XDG_RUNTIME_DIR`.
    runtime: Option<PathBuf>,
    /// Where folders are made when neither of the two is usable.
    temporary: PathBuf,
    /// The folder of root's daemons.
    system: PathBuf,
}

impl User {
    fn current() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        // SAFETY: only asks about this process and touches no memory. rustix does not tell it.
        let secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
        // A setuid program must not be led to a socket of its caller's choice.
        let variable = |name| if secure { None } else { env::var_os(name) };
        Self::new(uid, variable("RNIC_SOCKET"), variable("XDG_RUNTIME_DIR"))
    }

    fn new(uid: u32, named: Option<OsString>, runtime: Option<OsString>) -> Self {
        let named = env::split_paths(&named.unwrap_or_default())
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
        let (temporary, system) = ("/tmp".into(), SYSTEM_DIRECTORY.into());
        Self { uid, named, runtime, temporary, system }
    }

    fn candidates(self) -> Vec<PathBuf> {
        if !self.named.is_empty() {
            return self.named;
        }
        let own = self.directories().into_iter().map(|directory| directory.join(FILE));
        let system = self.system_sockets();
        if self.uid == 0 {
            system.into_iter().chain(own).collect()
        } else {
            own.chain(system).collect()
        }
    }

    fn system_sockets(&self) -> Vec<PathBuf> {
        let first = self.system.join(FILE);
        let found = fs::read_dir(&self.system).into_iter().flatten().flatten();
        let mut further: Vec<_> = found
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "sock") && *path != first)
            .collect();
        further.sort();
        std::iter::once(first).chain(further).collect()
    }

    fn temporaries(&self) -> impl Iterator<Item = PathBuf> {
        let first = format!("rnicd-{}", self.uid);
        let further = (1..TEMPORARIES).map(|n| format!("rnicd-{}.{n}", self.uid));
        let parent = self.temporary.clone();
        std::iter::once(first).chain(further).map(move |name| parent.join(name))
    }

    fn directories(&self) -> Vec<PathBuf> {
        let all = self.runtime.iter().cloned().chain(self.temporaries());
        all.filter(|directory| check_own(directory, self.uid).is_ok()).collect()
    }

    fn directory(&self) -> io::Result<PathBuf> {
        if let Some(directory) = self.directories().into_iter().next() {
            return Ok(directory);
        }
        let mut reasons = Vec::new();
        if let Some(runtime) = &self.runtime
            && let Err(error) = check_own(runtime, self.uid)
        {
            reasons.push(format!("XDG_RUNTIME_DIR {error}"));
        }
        for (n, directory) in self.temporaries().enumerate() {
            let made = make_directory(&directory, 0o700);
            match made.and_then(|()| check_own(&directory, self.uid)) {
                Ok(()) => return Ok(directory),
                Err(error) if n == 0 => reasons.push(error.to_string()),
                Err(_) => {}
            }
        }
        Err(invalid(format!(
            "no folder is user {}'s own: {}, and {} further names are no better; set \
             XDG_RUNTIME_DIR to a folder of yours",
            self.uid,
            reasons.join("; "),
            TEMPORARIES - 1
        )))
    }
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

/// In a folder of another user, that user's socket would receive whatever the program sends: the
/// folder must belong to this user, be closed to others, and be writable.
fn check_own(path: &Path, uid: u32) -> io::Result<()> {
    let wrong = |what: String| Err(invalid(format!("{} {what}", path.display())));
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) => return wrong(format!("cannot be used: {error}")),
    };
    let mode = found.permissions().mode() & 0o7777;
    if !found.is_dir() {
        return wrong("is not a folder".into());
    }
    if found.uid() != uid {
        return wrong(format!("belongs to user {}, not to user {uid}", found.uid()));
    }
    if mode & 0o022 != 0 {
        return wrong(format!("can be written to by others (mode {mode:04o})"));
    }
    accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .or_else(|error| wrong(format!("cannot be written to: {error}")))
}

const SYSTEM_DIRECTORY: &str = "/run/rnicd";
const FILE: &str = "rnicd.sock";
/// Names to try in `/tmp`.
const TEMPORARIES: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of the test's own, gone at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("rnic-abi-{name}-{}", std::process::id()));
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }

        fn uid(&self) -> u32 {
            fs::metadata(&self.0).unwrap().uid()
        }

        fn set_mode(&self, mode: u32) {
            fs::set_permissions(&self.0, fs::Permissions::from_mode(mode)).unwrap();
        }

        /// A user whose temporary folders are made in this one.
        fn user(&self, uid: u32, runtime: Option<&Path>) -> User {
            let user = User::new(uid, None, runtime.map(OsString::from));
            User { temporary: self.0.clone(), system: self.0.join("system"), ..user }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn paths(expected: &[&str]) -> Vec<PathBuf> {
        expected.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn users_try_their_own_folder_first_and_root_the_system_path() {
        let (place, home) = (Folder::new("place"), Folder::new("home"));
        let uid = home.uid();
        let own = home.0.join(FILE);
        let looked_at = |uid, runtime| place.user(uid, runtime).candidates();
        let system = place.0.join("system/rnicd.sock");
        let expected = if uid == 0 { [system.clone(), own.clone()] } else { [own, system.clone()] };
        assert_eq!(looked_at(uid, Some(&home.0)), expected);
        let only_system = std::slice::from_ref(&system);
        assert_eq!(looked_at(uid, None), only_system);
        assert_eq!(looked_at(uid, Some(Path::new("relative"))), only_system);
        // As `sudo` may leave it: another user's.
        assert_eq!(looked_at(uid + 1, Some(&home.0)), [system]);
    }

    #[test]
    fn each_of_roots_daemons_is_found() {
        let place = Folder::new("several");
        let system = place.0.join("system");
        fs::create_dir(&system).unwrap();
        for name in ["eth2.sock", "eth1.sock", "rnicd.sock", "eth1.sock.files"] {
            fs::write(system.join(name), "").unwrap();
        }
        let found = place.user(place.uid(), None).candidates();
        let expected = ["rnicd.sock", "eth1.sock", "eth2.sock"].map(|name| system.join(name));
        assert_eq!(found, expected);
    }

    #[test]
    fn rnic_socket_replaces_all_other_paths() {
        let named = |uid, named: &str| {
            User::new(uid, Some(named.into()), Some("/run/user/7".into())).candidates()
        };
        assert_eq!(named(7, "/a:/b"), paths(&["/a", "/b"]));
        assert_eq!(named(0, "/a"), paths(&["/a"]));
        assert!(User::new(7, Some("".into()), None).named.is_empty());
    }

    #[test]
    fn only_a_folder_that_the_user_alone_can_write_to_is_trusted() {
        let folder = Folder::new("own");
        let uid = folder.uid();
        assert!(check_own(&folder.0, uid).is_ok());
        let text = |uid| check_own(&folder.0, uid).unwrap_err().to_string();
        assert!(text(uid + 1).contains(&format!("belongs to user {uid}, not to user {}", uid + 1)));
        folder.set_mode(0o770);
        assert!(text(uid).contains("can be written to by others (mode 0770)"));
        folder.set_mode(0o755);
        assert!(check_own(&folder.0, uid).is_ok());
        let missing = check_own(&folder.0.join("missing"), uid).unwrap_err().to_string();
        assert!(missing.contains("missing cannot be used: No such file"), "{missing}");
    }

    #[test]
    fn a_runtime_folder_that_is_of_no_use_is_replaced() {
        let (place, home) = (Folder::new("fallback"), Folder::new("open"));
        home.set_mode(0o777);
        let user = place.user(home.uid(), Some(&home.0));
        let chosen = user.directory().unwrap();
        assert_eq!(chosen, place.0.join(format!("rnicd-{}", home.uid())));
        assert_eq!(fs::metadata(&chosen).unwrap().permissions().mode() & 0o777, 0o700);
        // It is in place before it can be found.
        assert_eq!(user.directories(), [chosen]);
        home.set_mode(0o700);
        assert_eq!(user.directory().unwrap(), home.0);
    }

    #[test]
    fn a_taken_folder_name_is_skipped() {
        let place = Folder::new("taken");
        let user = place.user(place.uid(), None);
        let names: Vec<PathBuf> = user.temporaries().collect();
        // Not a folder, as good as another user's: only root can make one of those.
        fs::write(&names[0], "").unwrap();
        assert_eq!(user.directory().unwrap(), names[1]);
        // The name became free, but a daemon may listen in the other one.
        fs::remove_file(&names[0]).unwrap();
        assert_eq!(user.directory().unwrap(), names[1]);
        fs::remove_dir(&names[1]).unwrap();
        names.iter().for_each(|name| fs::write(name, "").unwrap());
        let error = user.directory().unwrap_err().to_string();
        assert!(error.contains("rnicd-") && error.contains("XDG_RUNTIME_DIR"), "{error}");
    }
}
