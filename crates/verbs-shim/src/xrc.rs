//! XRC domains.

use std::ffi::c_int;

use rnic_abi::control::Request;
use verbs_abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};

use crate::{
    context::Context,
    error::{Errno, code, pointer},
};

/// An XRC domain.
#[repr(C)]
struct Xrcd {
    ibv: ibv_xrcd,
    handle: u32,
}

/// The daemon's handle of a domain.
///
/// # Safety
/// `xrcd` is from [`open_xrcd`].
pub(crate) unsafe fn handle_of(xrcd: *mut ibv_xrcd) -> u32 {
    // SAFETY: by contract.
    unsafe { (*xrcd.cast::<Xrcd>()).handle }
}

/// Makes an XRC domain of this context. Sharing one through a file is not supported. NULL and errno
/// on failure.
///
/// # Safety
/// `context` is open; `attr` is a valid description.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: by contract.
    let (session, attr) = unsafe { (&Context::of(context).session, &*attr) };
    let complete = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask != complete {
        return pointer(Err(Errno(libc::EINVAL)));
    }
    if attr.fd != -1 {
        return pointer(Err(Errno(libc::EOPNOTSUPP)));
    }
    pointer(
        session.handle(&Request::OpenXrcd).map(|handle| {
            Box::into_raw(Box::new(Xrcd { ibv: ibv_xrcd { context }, handle })).cast()
        }),
    )
}

/// Destroys an XRC domain; EBUSY while something belongs to it.
///
/// # Safety
/// `xrcd` is from [`open_xrcd`].
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: by contract.
    let (context, handle) = unsafe { (Context::of((*xrcd).context), handle_of(xrcd)) };
    let result = context.session.dispose(&Request::CloseXrcd { xrcd: handle });
    if result.is_ok() {
        // SAFETY: made by Box::into_raw above.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
    }
    code(result)
}
