//! Why the kernel did not start a program, and what to do about it.

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What a shell would exit with, and a message, about a program for which `execvp` failed. It looks
/// for a name without a slash in the folders of `path`.
pub(super) fn explain(program: &OsStr, path: &OsStr, error: &io::Error) -> (u8, String) {
    let is_name = !program.as_encoded_bytes().contains(&b'/');
    let found = if is_name { find(program, path) } else { Some(PathBuf::from(program)) };
    let Some(place) = found else {
        // A folder that may not be entered does not keep `execvp` from looking on.
        let of_those = match error.kind() {
            ErrorKind::PermissionDenied => ", of those that you may enter",
            _ => "",
        };
        let name = program.display();
        let text = format!("no folder of PATH has it{of_those}: install it, or give its path");
        return (NOT_FOUND, format!("cannot run {name}: {text}"));
    };
    let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    let advice = advice(&place, error).map_or(String::new(), |advice| format!("; {advice}"));
    (status, format!("cannot run {}: {error}{advice}", place.display()))
}

/// The file that `execvp` failed with: it goes on behind one that it may not execute.
fn find(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let places = std::env::split_paths(path).map(|folder| folder.join(name));
    let is_file = |place: &PathBuf| place.metadata().is_ok_and(|found| !found.is_dir());
    let found: Vec<_> = places.filter(is_file).collect();
    found.iter().find(|place| denial(place).is_some()).or(found.first()).cloned()
}

fn advice(place: &Path, error: &io::Error) -> Option<&'static str> {
    let exists = place.metadata();
    match (error.kind(), &exists) {
        (ErrorKind::NotFound, Ok(_)) => {
            Some("the interpreter that its first line or its ELF header names is missing")
        }
        (ErrorKind::NotFound, Err(_)) if place.is_symlink() => {
            Some("it is a link to a file that does not exist")
        }
        (ErrorKind::PermissionDenied, Err(_)) => Some("you may not enter the folder that it is in"),
        (ErrorKind::PermissionDenied, Ok(_)) => Some(denial(place).unwrap_or(
            "the interpreter that its first line or its ELF header names is missing, or you may \
             not execute it",
        )),
        _ => None,
    }
}

/// Why a file that exists may not be executed; `None` where it may.
fn denial(place: &Path) -> Option<&'static str> {
    let found = place.metadata().ok()?;
    let is_noexec = || statvfs(place).is_ok_and(|on| on.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if found.is_dir() {
        Some("it is a folder: give the path of a program")
    } else if !found.is_file() {
        Some("it is no regular file: give the path of a program")
    } else if is_noexec() {
        Some("nothing may be executed on its file system (noexec): copy it to another one")
    } else if found.permissions().mode() & 0o111 == 0 {
        Some("is it a program? `chmod +x` makes it one")
    } else if access(place, Access::EXEC_OK).is_err() {
        Some("its mode lets others execute it, and not you: `ls -l` shows it")
    } else {
        None
    }
}

/// What shells exit with where there is no program, and where it cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::symlink;
    use std::process::Command;

    /// Folders with files of each kind.
    struct Folders(PathBuf);

    impl Folders {
        fn new() -> Self {
            let root = std::env::temp_dir().join(format!("rnic-failure-{}", std::process::id()));
            fs::create_dir_all(root.join("first/folder")).unwrap();
            fs::create_dir_all(root.join("second")).unwrap();
            Self(root)
        }

        fn write(&self, name: &str, text: &str, mode: u32) {
            let file = self.0.join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Folders {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_advice_is_about_the_file_that_does_not_start() {
        let folders = Folders::new();
        let at = |name: &str| folders.0.join(name).display().to_string();
        let path = std::env::join_paths([at("none"), at("first"), at("second")]).unwrap();
        folders.write("first/text", "no program\n", 0o644);
        folders.write("first/script", "#!/nonexistent/interpreter\n", 0o755);
        folders.write("first/odd", "#!/proc/self/environ\n", 0o755);
        folders.write("first/later", "#!/nonexistent/interpreter\n", 0o755);
        folders.write("second/later", "no program\n", 0o644);
        folders.write("second/folder", "no program\n", 0o644);
        symlink("nowhere", folders.0.join("first/link")).unwrap();
        for (program, status, place, advice) in [
            ("none".into(), 127, "none".into(), "no folder of PATH has it: install it"),
            ("link".into(), 127, "link".into(), "no folder of PATH has it: install it"),
            ("text".into(), 126, at("first/text"), "`chmod +x` makes it one"),
            ("script".into(), 127, at("first/script"), "names is missing"),
            ("odd".into(), 126, at("first/odd"), "is missing, or you may not execute it"),
            // What may not be executed keeps `execvp` from calling it missing.
            ("later".into(), 126, at("second/later"), "`chmod +x` makes it one"),
            ("folder".into(), 126, at("second/folder"), "`chmod +x` makes it one"),
            (at("first/folder"), 126, at("first/folder"), "it is a folder"),
            (at("first/script"), 127, at("first/script"), "names is missing"),
            (at("first/link"), 127, at("first/link"), "a link to a file that does not exist"),
            (at("first/none"), 127, at("first/none"), "No such file or directory"),
            ("/dev/null".into(), 126, "/dev/null".into(), "it is no regular file"),
        ] {
            let error = Command::new(&program).env("PATH", &path).spawn().unwrap_err();
            let (said, message) = explain(program.as_ref(), &path, &error);
            assert_eq!(said, status, "{message}");
            assert!(message.starts_with(&format!("cannot run {place}: ")), "{message}");
            assert!(message.contains(advice), "{advice}: {message}");
        }
    }

    #[test]
    fn a_folder_that_may_not_be_entered_does_not_have_the_program() {
        let denied = io::Error::from(ErrorKind::PermissionDenied);
        let (status, message) = explain("none".as_ref(), "/nonexistent".as_ref(), &denied);
        assert_eq!(status, 127);
        assert!(message.contains("no folder of PATH has it, of those that you may enter"));
    }
}
