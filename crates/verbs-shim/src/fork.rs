//! fork(): registered pages need no protection from copy-on-write, because they are not pinned: the
//! NIC accesses them through the process's page tables.

use std::ffi::c_int;

use verbs_abi::{IBV_FORK_UNNEEDED, ibv_fork_status};

/// Succeeds: fork is always supported.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Says that registered memory survives fork without `ibv_fork_init`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}
