//! What answers to a client have in common.

use crate::refusal::{Refused, refuse, refused_by_kernel};
use std::os::fd::{AsFd, OwnedFd};

/// What travels beside a reply.
pub(super) type Attached = Vec<OwnedFd>;

/// All CQs are served by one engine thread.
pub(super) const COMP_VECTORS: u32 = 1;

/// A copy of a descriptor, to be sent and closed.
pub(super) fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Refused> {
    fd.as_fd().try_clone_to_owned().map_err(refused_by_kernel("too many open files"))
}

/// The engine answered another question.
pub(super) fn unexpected_outcome() -> Refused {
    refuse(libc::EIO, "unexpected reply from the engine")
}

/// The engine's thread is over.
pub(super) fn engine_gone<T>(_: T) -> Refused {
    refuse(libc::EIO, "the engine has stopped")
}
