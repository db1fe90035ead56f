//! Enhanced connection establishment: vendors' options of a connection. This device has none.

use std::ffi::c_int;

use verbs_abi::{ibv_ece, ibv_qp};

use crate::error::{Errno, code};

/// Tells a queue pair the options of its peer. Only "none" can be obeyed.
///
/// # Safety
/// `ece` is valid.
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: by contract.
    let ece = unsafe { &*ece };
    if ece.comp_mask != 0 {
        return code(Err(Errno(libc::EINVAL)));
    }
    let is_none = ece.vendor_id == 0 && ece.options == 0;
    code(if is_none { Ok(()) } else { Err(Errno(libc::EOPNOTSUPP)) })
}

/// Reads the options of a queue pair: none.
///
/// # Safety
/// `ece` is writable.
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: by contract.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}
