//! Protection domains.

use std::ffi::c_int;

use rnic_abi::control::Request;
use verbs_abi::{ibv_context, ibv_pd};

use crate::{
    context::Context,
    error::{code, pointer},
};

/// Makes a protection domain. NULL and errno on failure.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: by contract.
    let session = unsafe { &Context::of(context).session };
    let handle = session.handle(&Request::AllocPd);
    pointer(handle.map(|handle| Box::into_raw(Box::new(ibv_pd { context, handle }))))
}

/// Destroys a protection domain; EBUSY while something belongs to it.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: by contract.
    let (context, handle) = unsafe { (Context::of((*pd).context), (*pd).handle) };
    let result = context.session.dispose(&Request::DeallocPd { pd: handle });
    if result.is_ok() {
        // SAFETY: made by Box::into_raw above.
        drop(unsafe { Box::from_raw(pd) });
    }
    code(result)
}
