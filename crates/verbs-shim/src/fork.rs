//! fork(): pages of a registration need no protection, since the NIC reads them through the process, not pinned.

use std::ffi::{c_int, c_uint};

/// `IBV_FORK_UNNEEDED`: registered memory survives fork without being asked to.
const FORK_UNNEEDED: c_uint = 2;

/// Accepts the wish to fork.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Says that `ibv_fork_init` need not be called.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_uint {
    FORK_UNNEEDED
}
