//! Memory windows.

use std::{ffi::c_int, ptr};

use rnic_abi::control::{Reply, Request};
use verbs_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_MW_TYPE_1, IBV_WR_BIND_MW, Zeroed, ibv_mw, ibv_mw_bind,
    ibv_mw_bind_info, ibv_pd, ibv_qp, ibv_send_wr, ibv_send_wr_bind_mw,
};

use crate::{
    context::Context,
    error::{Errno, Result, code, pointer},
    mr::Mr,
    post::post_send,
};

/// A memory window.
#[repr(C)]
struct Mw {
    ibv: ibv_mw,
    /// Handle of its protection domain. The public part may name a parent domain that is gone.
    pd: u32,
}

/// Makes a memory window. NULL and errno on failure.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: u32) -> *mut ibv_mw {
    let kind = match u8::try_from(type_) {
        Ok(kind @ (1 | 2)) => kind,
        _ => return pointer(Err(Errno(libc::EINVAL))),
    };
    // SAFETY: by contract.
    let (ibv_context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: by contract.
    let session = unsafe { &Context::of(ibv_context).session };
    let made = session.call(&Request::AllocMw { pd: pd_handle, kind }, |reply, _| match reply {
        Reply::Mw { mw, rkey } => Some((mw, rkey)),
        _ => None,
    });
    pointer(made.map(|(handle, rkey)| {
        let ibv = ibv_mw { context: ibv_context, pd, rkey, handle, type_ };
        Box::into_raw(Box::new(Mw { ibv, pd: pd_handle })).cast()
    }))
}

/// Destroys a memory window.
///
/// # Safety
/// `mw` is from [`alloc_mw`].
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: by contract.
    let (context, handle) = unsafe { (Context::of((*mw).context), (*mw).handle) };
    let result = context.session.dispose(&Request::DeallocMw { mw: handle });
    if result.is_ok() {
        // SAFETY: made by Box::into_raw above.
        drop(unsafe { Box::from_raw(mw.cast::<Mw>()) });
    }
    code(result)
}

/// Binds a type 1 window by a request on `qp`'s send queue; the window gets a new rkey.
///
/// # Safety
/// All are objects of one context, and `bind` is valid.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: by contract.
    let (Mw { ibv: window, pd }, bind) = unsafe { (&mut *mw.cast::<Mw>(), &*bind) };
    // An XRC target has no domain.
    // SAFETY: by contract; a domain outlives its queue pairs.
    let is_same = unsafe { (*qp).pd.as_ref() }.is_some_and(|own| own.handle == *pd);
    // SAFETY: by contract.
    let may_bind = unsafe { check_bind(window.type_, *pd, &bind.bind_info) };
    let may_bind = may_bind.and(if is_same { Ok(()) } else { Err(Errno(libc::EPERM)) });
    if may_bind.is_err() {
        return code(may_bind);
    }
    // The low byte is the consumer's part of the key, IBTA 10.6.7.2 and `ibv_inc_rkey`.
    let rkey = window.rkey & !0xff | window.rkey.wrapping_add(1) & 0xff;
    let mut wr = ibv_send_wr::zeroed();
    wr.wr_id = bind.wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = bind.send_flags;
    wr.local.bind_mw = ibv_send_wr_bind_mw { mw, rkey, bind_info: bind.bind_info };
    let mut bad_wr = ptr::null_mut();
    // SAFETY: a valid list of one request.
    let result = unsafe { post_send(qp, &raw mut wr, &raw mut bad_wr) };
    if result == 0 {
        window.rkey = rkey;
    }
    result
}

/// Refuses a bind that can never succeed. A request that fails later takes its queue pair to ERR;
/// this one costs the program nothing.
///
/// # Errors
/// EINVAL for a window of type 2, memory without a region, or rights that no window of type 1 has.
/// EPERM where the region is not of the window's protection domain, `pd`.
///
/// # Safety
/// The region is null or valid.
unsafe fn check_bind(kind: u32, pd: u32, info: &ibv_mw_bind_info) -> Result<()> {
    const REMOTE: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    // Programs name the last one as well; it means nothing for a window.
    const RIGHTS: u32 = REMOTE | IBV_ACCESS_LOCAL_WRITE;
    // A window of type 1 is never zero-based.
    if kind != IBV_MW_TYPE_1 || info.mw_access_flags & !RIGHTS != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if info.mr.is_null() {
        // No region and no memory: the window is unbound.
        let is_nothing = info.addr == 0 && info.length == 0;
        return if is_nothing { Ok(()) } else { Err(Errno(libc::EINVAL)) };
    }
    // SAFETY: by contract.
    let is_of_domain = unsafe { Mr::domain_of(info.mr) } == pd;
    if is_of_domain { Ok(()) } else { Err(Errno(libc::EPERM)) }
}
