//! Shared receive queues of identifiers.

use std::{ffi::c_int, mem, ptr};

use verbs_abi::{
    IBV_QPT_XRC_RECV, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_XRC, Zeroed, ibv_pd, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_cm_id,
};

use crate::{
    error::{Errno, Result, code},
    id::{self, Id},
    qp,
    session::extension,
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
        unsafe { qp::check_domain(id, pd) }?;
        if id.public.qp_type == IBV_QPT_XRC_RECV {
            // SAFETY: by contract, and not null.
            let attr = unsafe { &mut *attr };
            let mut extended = ibv_srq_init_attr_ex::zeroed();
            (extended.srq_context, extended.attr) = (attr.srq_context, attr.attr);
            (extended.srq_type, extended.pd) = (IBV_SRQT_XRC, pd);
            extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
            // SAFETY: by contract.
            unsafe { create_extended(id, &mut extended)? };
            attr.attr = extended.attr;
            return Ok(());
        }
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
        // SAFETY: by contract.
        unsafe { create_extended(id, attr) }
    }))
}

/// Adds to one of XRC what its program leaves to us: the domain, and where receives complete.
///
/// # Safety
/// What the attributes name are objects of the program.
unsafe fn create_extended(id: &mut Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    let lacks = |attr: &ibv_srq_init_attr_ex, bit| attr.comp_mask & bit == 0;
    let has_type = !lacks(attr, IBV_SRQ_INIT_ATTR_TYPE);
    if has_type && attr.srq_type == IBV_SRQT_XRC {
        if lacks(attr, IBV_SRQ_INIT_ATTR_XRCD) || attr.xrcd.is_null() {
            attr.xrcd = id.place()?.device.xrcd()?;
        }
        if lacks(attr, IBV_SRQ_INIT_ATTR_CQ) || attr.cq.is_null() {
            qp::provide_recv_cq(id, attr.attr.max_wr)?;
            attr.cq = id.public.recv_cq;
        }
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    // SAFETY: the identifier is on a device.
    let create = unsafe { extension(id.public.verbs) }.create_srq_ex;
    let create = create.ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: by contract.
    finish(id, unsafe { create(id.public.verbs, attr) })
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
    if id.public.qp_type == IBV_QPT_XRC_RECV {
        // The queue pair, if there is one, has no use for them.
        qp::destroy_cqs(id);
    }
}
