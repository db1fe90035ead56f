//! The eventfd by which an application wakes a sleeping engine.

use super::{check, check_len};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A wake-up: any number of [`wake`](Self::wake) calls make it readable once.
///
/// The other side shares the open file description, so it can drain it and can change its status
/// flags. Neither makes a call here block.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes one.
    ///
    /// # Errors
    /// What the kernel says, e.g. too many open files.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a descriptor that the kernel returns is ours alone.
        unsafe {
            let fd = check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Makes it readable.
    ///
    /// # Errors
    /// None in practice: a full counter is readable already, which is all that is asked for.
    pub fn wake(&self) -> io::Result<()> {
        let one = 1_u64;
        // SAFETY: the kernel reads eight bytes from a live variable.
        let written =
            unsafe { libc::write(self.0.as_raw_fd(), std::ptr::from_ref(&one).cast(), 8) };
        match check_len(written) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result.map(drop),
        }
    }

    /// Makes it unreadable; true when it was readable. Never blocks, even when the other side
    /// cleared `O_NONBLOCK` and drained it first.
    ///
    /// # Errors
    /// What the kernel says, when the descriptor is not an eventfd.
    pub fn drain(&self) -> io::Result<bool> {
        let mut count = 0_u64;
        let iov = libc::iovec { iov_base: std::ptr::from_mut(&mut count).cast(), iov_len: 8 };
        // SAFETY: the kernel writes eight bytes to a live variable.
        let read = unsafe { libc::preadv2(self.0.as_raw_fd(), &raw const iov, 1, -1, NOWAIT) };
        match check_len(read) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

const NOWAIT: libc::c_int = libc::RWF_NOWAIT;

impl From<OwnedFd> for EventFd {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
