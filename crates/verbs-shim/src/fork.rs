//! fork(): pages of a registration need no protection, since the NIC reads them through the
//! process, not pinned.

use std::ffi::c_int;

use verbs_abi::{IBV_FORK_UNNEEDED, ibv_fork_status};

/// Accepts the wish to fork.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Says that registered memory survives fork without `ibv_fork_init`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}
