//! A socket's file: whose it is, who may connect, and whether a program still listens.

use super::address::connect;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, chmod, chownat, fstat, open};
use rustix::net::SocketFlags;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// A socket that was found at a path. What is changed is this one, also when another user, who can
/// write to its folder, puts a link to a file of root in its place.
#[derive(Debug)]
pub struct SocketFile(OwnedFd);

impl SocketFile {
    /// The socket at `path`; a link there is not followed.
    ///
    /// # Errors
    /// `AlreadyExists` when something other than a socket is there; else what the kernel says.
    pub fn at(path: &Path) -> io::Result<Self> {
        let found = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&found)?.st_mode) {
            FileType::Socket => Ok(Self(found)),
            _ => Err(no_socket(path)),
        }
    }

    /// Gives it the permission bits `mode`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        // A descriptor that only names a file has no other way before Linux 6.6.
        let name = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        Ok(chmod(name, Mode::from_bits_truncate(mode))?)
    }

    /// Gives it to a group.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_group(&self, gid: u32) -> io::Result<()> {
        Ok(chownat(&self.0, "", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?)
    }
}

/// Removes a socket that a program which has ended left at `path`. It may have been of any type.
///
/// # Errors
/// `AddrInUse` when a program has it; `AlreadyExists` when something other than a socket is there.
pub fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => return Err(no_socket(path)),
        Ok(_) => {}
    }
    match connect(path, SocketFlags::NONBLOCK) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A program listens, with room in its queue or without, or with another type of socket.
        _ => {
            let message = format!("a program listens at {} already", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
    }
}

fn no_socket(path: &Path) -> io::Error {
    let message = format!("{} exists and is not a socket", path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}
