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
        // SAFETY: by contract.
        unsafe {
            provide_domain(id, attr)?;
            create_extended(id, attr)
        }
    }))
}

/// The protection domain that a program leaves to us is the identifier's.
///
/// # Errors
/// EINVAL where the program does not say which type it wants, or names a domain of another device.
///
/// # Safety
/// What the attributes name are objects of the program.
unsafe fn provide_domain(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno(libc::EINVAL));
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        attr.pd = id.public.pd;
    }
    // SAFETY: by contract.
    unsafe { qp::check_domain(id, attr.pd) }
}

/// Adds to one of XRC what its program leaves to us: the domain, and where receives complete.
///
/// # Safety
/// What the attributes name are objects of the program.
unsafe fn create_extended(id: &mut Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    let lacks = |attr: &ibv_srq_init_attr_ex, bit| attr.comp_mask & bit == 0;
    if attr.srq_type == IBV_SRQT_XRC {
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

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_abi::{IBV_SRQT_BASIC, RDMA_PS_TCP, ibv_context};

    #[test]
    fn a_shared_receive_queue_is_in_a_domain_of_its_device() {
        let contexts = [1_usize, 2].map(ptr::without_provenance_mut::<ibv_context>);
        let mut domains = contexts.map(|context| ibv_pd { context, ..ibv_pd::zeroed() });
        let [own, other] = domains.each_mut().map(ptr::from_mut);
        let id = Id::new(ptr::null_mut(), ptr::null_mut(), RDMA_PS_TCP);
        // SAFETY: just made, and used no more after the test.
        let mut id = unsafe { Box::from_raw(id) };
        (id.public.verbs, id.public.pd) = (contexts[0], own);
        let provided = |comp_mask, pd| {
            let srq_type = IBV_SRQT_BASIC;
            let mut attr = ibv_srq_init_attr_ex { comp_mask, srq_type, pd, ..Zeroed::zeroed() };
            // SAFETY: the domains are alive.
            let result = unsafe { provide_domain(&id, &mut attr) };
            result.map(|()| (attr.pd, attr.comp_mask))
        };
        let both = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        let is_own = Ok((own, both));
        assert_eq!(provided(IBV_SRQ_INIT_ATTR_TYPE, other), is_own, "it is not named");
        assert_eq!(provided(both, ptr::null_mut()), is_own);
        assert_eq!(provided(both, own), is_own);
        assert_eq!(provided(both, other), Err(Errno(libc::EINVAL)));
        assert_eq!(provided(IBV_SRQ_INIT_ATTR_PD, own), Err(Errno(libc::EINVAL)));
    }
}
