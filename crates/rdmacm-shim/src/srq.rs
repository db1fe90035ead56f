//! Shared receive queues of identifiers.

use std::{ffi::c_int, mem, ptr};

use verbs_abi::{
    IBV_SRQ_INIT_ATTR_PD, ibv_pd, ibv_srq, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
    verbs_context,
};

use crate::{
    error::{Errno, Result, code},
    id::{self, Id},
    verbs,
};

/// # Safety
/// `id` is one, `pd` null or a domain, `attr` attributes.
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        check(id, attr.is_null())?;
        let pd = if pd.is_null() { id.public.pd } else { pd };
        // SAFETY: by contract.
        finish(id, unsafe { verbs::ibv_create_srq(pd, attr) })
    }))
}

/// # Safety
/// `id` is one, `attr` attributes.
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        check(id, attr.is_null())?;
        // SAFETY: by contract, and not null.
        let attr = unsafe { &mut *attr };
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            attr.pd = id.public.pd;
        }
        let at = mem::offset_of!(verbs_context, context);
        // SAFETY: every context of our libibverbs is the last member of a verbs_context.
        let create = unsafe {
            let around = id.public.verbs.cast::<u8>().sub(at).cast::<verbs_context>();
            (*around).create_srq_ex
        };
        let create = create.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: by contract.
        finish(id, unsafe { create(id.public.verbs, attr) })
    }))
}

/// It is on the device, and has none yet.
fn check(id: &Id, is_void: bool) -> Result<()> {
    match is_void || id.public.verbs.is_null() || !id.public.srq.is_null() {
        true => Err(Errno(libc::EINVAL)),
        false => Ok(()),
    }
}

fn finish(id: &mut Id, srq: *mut ibv_srq) -> Result<()> {
    if srq.is_null() {
        return Err(Errno::last());
    }
    id.public.srq = srq;
    Ok(())
}

/// # Safety
/// `id` is one; its shared receive queue is not used any more.
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: by contract.
    let Ok(id) = (unsafe { id::of(id) }) else { return };
    let srq = mem::replace(&mut id.public.srq, ptr::null_mut());
    if !srq.is_null() {
        // SAFETY: the identifier's own, taken once.
        unsafe { verbs::ibv_destroy_srq(srq) };
    }
}
