//! The eventfd by which an application wakes a sleeping engine.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2, write};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    ///
    /// # Errors
    /// None in practice: a full counter is readable already, which is all that is asked for.
    pub fn wake(&self) -> io::Result<()> {
        match write(&self.0, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes it unreadable; true when it was readable. Never blocks, even when the other side
    /// cleared `O_NONBLOCK` and drained it first.
    ///
    /// # Errors
    /// What the kernel says, when the descriptor is not an eventfd.
    pub fn drain(&self) -> io::Result<bool> {
        let mut count = [0; size_of::<u64>()];
        let into = &mut [IoSliceMut::new(&mut count)];
        match preadv2(&self.0, into, NO_OFFSET, ReadWriteFlags::NOWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads as `read` does: an eventfd has no offsets.
const NO_OFFSET: u64 = u64::MAX;

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
