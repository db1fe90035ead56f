//! Queue pairs of identifiers.

use std::{
    ffi::{c_int, c_void},
    mem, ptr,
};

use verbs_abi::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND,
    RDMA_UDP_QKEY, Zeroed, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type, rdma_cm_id,
};

use crate::{
    error::{Errno, Result, code},
    id::{self, Id},
    session::extension,
    verbs,
};

/// # Safety
/// `id` is one, `pd` null or a domain, `attr` attributes.
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno(libc::EINVAL))?;
        let pd = if pd.is_null() { id.public.pd } else { pd };
        if attr.srq.is_null() {
            attr.srq = id.public.srq;
        }
        // SAFETY: by contract.
        unsafe { check_domain(id, pd) }?;
        let wanted = (attr.qp_type, attr.cap.max_send_wr, attr.cap.max_recv_wr);
        prepare(id, wanted, (&mut attr.send_cq, &mut attr.recv_cq))?;
        if attr.qp_type == IBV_QPT_XRC_RECV {
            let mut extended = ibv_qp_init_attr_ex::zeroed();
            (extended.qp_context, extended.qp_type) = (attr.qp_context, attr.qp_type);
            extended.cap = attr.cap;
            // SAFETY: by contract.
            return unsafe { create_extended(id, &mut extended, pd) };
        }
        // SAFETY: by contract.
        id.public.qp = unsafe { verbs::ibv_create_qp(pd, attr) };
        finish(id, pd)
    }))
}

/// # Safety
/// `id` is one, `attr` attributes.
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno(libc::EINVAL))?;
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = id.public.pd;
        }
        if attr.srq.is_null() {
            attr.srq = id.public.srq;
        }
        let pd = attr.pd;
        // SAFETY: by contract.
        unsafe { check_domain(id, pd) }?;
        let wanted = (attr.qp_type, attr.cap.max_send_wr, attr.cap.max_recv_wr);
        prepare(id, wanted, (&mut attr.send_cq, &mut attr.recv_cq))?;
        // SAFETY: by contract.
        unsafe { create_extended(id, attr, pd) }
    }))
}

/// # Errors
/// EINVAL when a domain is of another device than the identifier.
///
/// # Safety
/// `pd` is null or a domain.
pub(crate) unsafe fn check_domain(id: &Id, pd: *mut ibv_pd) -> Result<()> {
    // SAFETY: by contract.
    match unsafe { pd.as_ref() } {
        Some(pd) if pd.context != id.public.verbs => Err(Errno(libc::EINVAL)),
        _ => Ok(()),
    }
}

/// Gives an XRC target the domain that its program leaves to us.
///
/// # Safety
/// What the attributes name are objects of the program.
unsafe fn create_extended(
    id: &mut Id,
    attr: &mut ibv_qp_init_attr_ex,
    pd: *mut ibv_pd,
) -> Result<()> {
    let has_domain = attr.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !attr.xrcd.is_null();
    if attr.qp_type == IBV_QPT_XRC_RECV && !has_domain {
        attr.xrcd = id.place()?.device.xrcd()?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    // SAFETY: the identifier is on a device.
    let create = unsafe { extension(id.public.verbs) }.create_qp_ex;
    let create = create.ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: by contract.
    id.public.qp = unsafe { create(id.public.verbs, attr) };
    finish(id, pd)
}

/// Checks, and makes the completion queues that the program leaves to us.
fn prepare(
    id: &mut Id,
    (qp_type, sends, receives): (ibv_qp_type, u32, u32),
    (send_cq, recv_cq): (&mut *mut ibv_cq, &mut *mut ibv_cq),
) -> Result<()> {
    let fits = match qp_type {
        IBV_QPT_UD => {
            id.public.ps == verbs_abi::RDMA_PS_UDP || id.public.ps == verbs_abi::RDMA_PS_IB
        }
        IBV_QPT_RC | IBV_QPT_UC => id.public.ps != verbs_abi::RDMA_PS_UDP,
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => id.public.ps == verbs_abi::RDMA_PS_IB,
        _ => false,
    };
    if !fits || id.public.verbs.is_null() || !id.public.qp.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    id.public.qp_type = qp_type;
    let makes_send_cq = send_cq.is_null() && qp_type != IBV_QPT_XRC_RECV;
    if makes_send_cq {
        let made = make_cq_of(id, sends)?;
        (id.public.send_cq_channel, id.public.send_cq) = made;
        *send_cq = made.1;
    }
    // Receives of XRC complete where the shared receive queue says.
    if recv_cq.is_null() && !matches!(qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) {
        provide_recv_cq(id, receives).inspect_err(|_| {
            // The program may try again, and would lose the first one.
            destroy_cqs(id);
            if makes_send_cq {
                *send_cq = ptr::null_mut();
            }
        })?;
        *recv_cq = id.public.recv_cq;
    }
    Ok(())
}

/// The completion queue of an identifier's receives.
pub(crate) fn provide_recv_cq(id: &mut Id, depth: u32) -> Result<()> {
    if id.public.recv_cq.is_null() {
        (id.public.recv_cq_channel, id.public.recv_cq) = make_cq_of(id, depth)?;
    }
    Ok(())
}

fn make_cq_of(id: &mut Id, depth: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
    let of = (&raw mut id.public).cast();
    // SAFETY: the context is open.
    unsafe { make_cq(id.public.verbs, of, depth) }
}

/// A completion queue with a channel of its own, whose events name `of`.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn make_cq(
    context: *mut ibv_context,
    of: *mut c_void,
    depth: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
    let depth = c_int::try_from(depth.max(1)).unwrap_or(c_int::MAX);
    // SAFETY: by contract.
    unsafe {
        let channel = verbs::ibv_create_comp_channel(context);
        if channel.is_null() {
            return Err(Errno::last());
        }
        let cq = verbs::ibv_create_cq(context, depth, of, channel, 0);
        if cq.is_null() {
            let error = Errno::last();
            verbs::ibv_destroy_comp_channel(channel);
            return Err(error);
        }
        Ok((channel, cq))
    }
}

/// The queue pair is made, or was not; it may take receives from now on.
fn finish(id: &mut Id, pd: *mut ibv_pd) -> Result<()> {
    let made = match id.public.qp.is_null() {
        true => Err(Errno::last()),
        false => initialize(id),
    };
    if made.is_err() {
        destroy(id);
    } else {
        id.public.pd = pd;
    }
    made
}

fn initialize(id: &Id) -> Result<()> {
    let states: &[ibv_qp_state] = match id.is_datagram() {
        true => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS],
        false => &[IBV_QPS_INIT],
    };
    for state in states {
        let (attr, mask) = attributes(id, *state)?;
        modify(id, attr, mask)?;
    }
    Ok(())
}

/// What peers may do.
fn access(id: &Id) -> u32 {
    let write = verbs_abi::IBV_ACCESS_REMOTE_WRITE;
    let read = verbs_abi::IBV_ACCESS_REMOTE_READ | verbs_abi::IBV_ACCESS_REMOTE_ATOMIC;
    let answers = matches!(id.public.qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV);
    match answers && id.inner().terms.responder_resources > 0 {
        true => write | read,
        false => write,
    }
}

fn modify(id: &Id, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<()> {
    // SAFETY: the identifier has a queue pair, and the attributes are a local variable.
    match unsafe { verbs::ibv_modify_qp(id.public.qp, &raw mut attr, mask) } {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// Makes the queue pair ready: the peer's is known.
pub(crate) fn start(id: &Id) -> Result<()> {
    let (mut attr, mask) = attributes(id, IBV_QPS_RTR)?;
    // What peers may do is known only now. One call less for each connection counts where there are
    // many.
    attr.qp_access_flags = access(id);
    if modify(id, attr, mask | IBV_QP_ACCESS_FLAGS).is_err() {
        // The program may have reset it.
        for state in [IBV_QPS_INIT, IBV_QPS_RTR] {
            let (attr, mask) = attributes(id, state)?;
            modify(id, attr, mask)?;
        }
    }
    let (attr, mask) = attributes(id, IBV_QPS_RTS)?;
    modify(id, attr, mask)
}

/// What a queue pair is modified with to come to a state.
fn attributes(id: &Id, state: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask)> {
    let terms = id.inner().terms;
    let qp_type = id.public.qp_type;
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = state;
    let mut mask = IBV_QP_STATE;
    match state {
        IBV_QPS_INIT if id.is_datagram() => {
            attr.port_num = 1;
            attr.qkey = RDMA_UDP_QKEY;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        }
        IBV_QPS_INIT => {
            attr.port_num = 1;
            attr.qp_access_flags = access(id);
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        }
        IBV_QPS_RTR if id.is_datagram() => {}
        IBV_QPS_RTR => {
            attr.path_mtu = terms.mtu_code.into();
            attr.dest_qp_num = terms.peer.qpn;
            attr.rq_psn = terms.psn;
            attr.ah_attr = id.address_vector();
            attr.max_dest_rd_atomic = terms.responder_resources;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV) {
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        IBV_QPS_RTS => {
            attr.sq_psn = terms.peer_psn;
            attr.timeout = terms.ack_timeout;
            attr.retry_cnt = terms.retry_count;
            attr.rnr_retry = terms.rnr_retry_count;
            attr.max_rd_atomic = terms.initiator_depth;
            mask |= IBV_QP_SQ_PSN;
            if !matches!(qp_type, IBV_QPT_UC | IBV_QPT_UD) {
                mask |= IBV_QP_TIMEOUT;
            }
            if matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
                mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        _ => return Err(Errno(libc::EINVAL)),
    }
    Ok((attr, mask))
}

/// For programs that modify queue pairs themselves: the state is what they put into `attr`.
///
/// # Safety
/// `id` is one, `attr` and `mask` are writable.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let (attr, mask) = unsafe { (attr.as_mut(), mask.as_mut()) };
        let (attr, mask) = attr.zip(mask).ok_or(Errno(libc::EINVAL))?;
        if id.public.verbs.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let found = attributes(id, attr.qp_state)?;
        *attr = found.0;
        *mask = c_int::try_from(found.1).map_err(|_| Errno(libc::EINVAL))?;
        Ok(())
    }))
}

/// The connection is over: what is posted is flushed.
pub(crate) fn stop(id: &Id) {
    if id.public.qp.is_null() || id.is_datagram() {
        return;
    }
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_ERR;
    // Fails only for a queue pair whose device is gone.
    let _ = modify(id, attr, IBV_QP_STATE);
}

/// # Safety
/// `id` is one; its queue pair is not used any more.
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: by contract.
    if let Ok(id) = unsafe { id::of(id) } {
        destroy(id);
    }
}

fn destroy(id: &mut Id) {
    let public = &mut id.public;
    // SAFETY: all are the identifier's own, each is taken once, the queue pair first.
    unsafe {
        let qp = mem::replace(&mut public.qp, ptr::null_mut());
        if !qp.is_null() {
            verbs::ibv_destroy_qp(qp);
        }
    }
    // The shared receive queue of an XRC target still uses them.
    if public.qp_type != IBV_QPT_XRC_RECV || public.srq.is_null() {
        destroy_cqs(id);
    }
}

pub(crate) fn destroy_cqs(id: &mut Id) {
    let public = &mut id.public;
    // SAFETY: as above; nothing uses them any more.
    unsafe {
        for cq in [&mut public.send_cq, &mut public.recv_cq] {
            let cq = mem::replace(cq, ptr::null_mut());
            if !cq.is_null() {
                verbs::ibv_destroy_cq(cq);
            }
        }
        for channel in [&mut public.send_cq_channel, &mut public.recv_cq_channel] {
            let channel = mem::replace(channel, ptr::null_mut());
            if !channel.is_null() {
                verbs::ibv_destroy_comp_channel(channel);
            }
        }
    }
}
