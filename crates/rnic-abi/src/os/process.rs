//! What `/proc` has about other processes.

use std::fs::read_link;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder of a process, whose number is that of this process's pid namespace.
///
/// # Errors
/// `Unsupported` where `/proc` is another namespace's: the number is another process's there.
pub fn folder(pid: u32) -> io::Result<PathBuf> {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    if *IS_OURS.get_or_init(|| knows_itself_as(std::process::id())) {
        return Ok(Path::new("/proc").join(pid.to_string()));
    }
    let text = "/proc is that of another pid namespace: mount one for this (unshare --mount-proc)";
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// Whether this process has that number in `/proc`.
fn knows_itself_as(number: u32) -> bool {
    read_link("/proc/self").is_ok_and(|found| found == Path::new(&number.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_itself_in_its_own_proc() {
        let own = std::process::id();
        assert!(folder(own).unwrap().join("maps").exists());
        assert!(knows_itself_as(own) && !knows_itself_as(own + 1));
    }
}
