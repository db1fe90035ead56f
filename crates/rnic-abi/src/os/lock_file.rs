//! The locked file beside a listening socket: one daemon at a time deals with the socket's path.

use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The lock; the file is removed with it.
#[derive(Debug)]
pub(super) struct LockFile {
    _file: File,
    path: PathBuf,
}

impl LockFile {
    /// Locks the file beside `socket_path`, making it when it is missing.
    pub(super) fn take(socket_path: &Path) -> io::Result<Self> {
        let mut path = socket_path.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
                .open(&path)
                .map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display()))
                })?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)
                .map_err(|_| in_use(socket_path))?;
            // The daemon that had it may have removed it between our open and our lock.
            let inode = file.metadata()?.ino();
            if fs::metadata(&path).is_ok_and(|found| found.ino() == inode) {
                return Ok(Self { _file: file, path });
            }
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Removed while locked; a process that opened it meanwhile sees that it has gone. Closing
        // the file unlocks it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The error that says that another daemon has the socket.
pub(super) fn in_use(path: &Path) -> io::Error {
    let message =
        format!("a daemon listens at {} already: stop it, or use another --socket", path.display());
    io::Error::new(io::ErrorKind::AddrInUse, message)
}
