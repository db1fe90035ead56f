//! Enhanced connection establishment: vendors' options of a connection. This device has none.

use std::ffi::{c_int, c_void};

use verbs_abi::{Zeroed, ibv_ece, rdma_cm_id};

use crate::{
    connect::rdma_reject,
    error::{Errno, Result, code},
    id,
};

/// Wants options for the next connection. None is all that can be wanted.
///
/// # Safety
/// `id` and `ece` are null or valid.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { check(id, ece) }.and_then(|ece| match (ece.vendor_id, ece.comp_mask) {
        // What `ibv_query_ece` tells of a queue pair of ours.
        (0, 0) => Ok(()),
        (_, 0) => Err(Errno(libc::EOPNOTSUPP)),
        _ => Err(Errno(libc::EINVAL)),
    }))
}

/// Reads the options that the peer wants: none are taken from what it says.
///
/// # Safety
/// `id` and `ece` are null or valid.
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { check(id, ece) }.map(|ece| *ece = ibv_ece::zeroed()))
}

/// # Safety
/// As the two above.
unsafe fn check<'a>(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> Result<&'a mut ibv_ece> {
    // SAFETY: by contract.
    let (id, ece) = unsafe { (id::of(id)?, ece.as_mut()) };
    ece.filter(|_| id.public.qp.is_null()).ok_or(Errno(libc::EINVAL))
}

/// Refuses a connection because of its options. The peer hears that the program refused it.
///
/// # Safety
/// As `rdma_reject`.
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: by contract.
    unsafe { rdma_reject(id, data, len) }
}
