//! The process at the other end of a control connection.

use super::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Linux 6.5; not in `libc` for every target.
const SO_PEERPIDFD: libc::c_int = 77;

/// The process that connected, as the kernel noted it then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Process, in the pid namespace of the caller.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

fn found(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let none = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    option(socket, libc::SO_PEERCRED, none)
}

pub(super) fn user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(found(socket)?.uid)
}

pub(super) fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let found = found(socket)?;
    let pid = u32::try_from(found.pid).unwrap_or(0);
    if pid == 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the client is in a pid namespace that the daemon cannot see: run the daemon on the \
             host or in the same namespace",
        ));
    }
    Ok(Credentials { pid, uid: found.uid, gid: found.gid })
}

pub(super) fn pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match option(socket, SO_PEERPIDFD, -1) {
        // SAFETY: a descriptor that the kernel returns is ours alone.
        Ok(fd) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => open_by_pid(socket),
        Err(error) => Err(error),
    }
}

/// Before Linux 6.5 only the number of the process is known, and the process may be gone and its
/// number reused. The pidfd pins the process that has the number now; it is accepted when that
/// process runs as the user who connected. The kernel checks the rights of every access to its
/// memory against that same user, so a process that slips through is one the client could have
/// named anyway.
fn open_by_pid(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let peer = credentials(socket)?;
    let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let status = std::fs::read_to_string(process::folder(peer.pid)?.join("status"))?;
    let uid = effective_uid_in(&status);
    // Read before the process is seen alive: what was read was about the process of the pidfd.
    if uid == Some(peer.uid) && !has_exited(&pidfd)? {
        return Ok(pidfd);
    }
    Err(io::Error::new(io::ErrorKind::NotConnected, "the client that connected is gone"))
}

/// The second number of the line `Uid: real effective saved filesystem`.
fn effective_uid_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn has_exited(pidfd: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))? > 0)
}

/// A socket option by its C name. rustix has no `SO_PEERPIDFD`, and its `SO_PEERCRED` cannot hold
/// the process number 0, which stands for a process that this pid namespace does not see.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, initial: T) -> io::Result<T> {
    let mut value = initial;
    let mut len = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let at = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes to a live variable of a plain C type whose
    // every bit pattern is valid.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, at, &raw mut len) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn both_ways_to_a_pidfd_name_the_peer() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let found = open_by_pid(socket.as_fd()).unwrap();
        assert!(!has_exited(&found).unwrap());
        assert!(!has_exited(&pidfd(socket.as_fd()).unwrap()).unwrap());
        let known = credentials(socket.as_fd()).unwrap();
        assert_eq!(known.pid, std::process::id());
        assert_eq!(user(socket.as_fd()).unwrap(), known.uid);
    }

    #[test]
    fn the_effective_user_is_the_second_one() {
        assert_eq!(effective_uid_in("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\n"), Some(2));
        assert_eq!(effective_uid_in("Name:\tUid:\n"), None);
    }
}
