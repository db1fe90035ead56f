//! Endpoints: identifiers that come with address, route and queue pair.

use std::{ffi::c_int, ptr};

use verbs_abi::{
    RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, ibv_pd, ibv_qp_init_attr, rdma_addrinfo,
    rdma_cm_id, rdma_port_space,
};

use crate::{
    channel::{self, Channel, rdma_destroy_id},
    connect::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route},
    error::{Errno, Result, code, done},
    events,
    id::{self, Id},
    migrate::rdma_migrate_id,
    qp::{rdma_create_qp, rdma_destroy_qp},
    srq::rdma_destroy_srq,
};

/// What the queue pairs of a listening endpoint's connections are made with.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pd: *mut ibv_pd,
    attr: ibv_qp_init_attr,
}

// SAFETY: it is only handed to libibverbs, whose objects may be used by any thread.
unsafe impl Send for Model {}

/// # Safety
/// `result` is writable, `info` came from `rdma_getaddrinfo`, `pd` and `attr` are null or valid.
pub(crate) unsafe extern "C-unwind" fn rdma_create_ep(
    result: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: by contract.
    let made = unsafe { info.as_ref() }.ok_or(Errno(libc::EINVAL)).and_then(|info| {
        let space = info.ai_port_space as rdma_port_space;
        let new = channel::create(ptr::null_mut(), ptr::null_mut(), space)?;
        // SAFETY: just made, and the rest by contract.
        let prepared = unsafe { prepare(new, info, pd, attr) };
        if prepared.is_err() {
            // SAFETY: just made.
            unsafe { rdma_destroy_id(new.cast()) };
        }
        prepared.map(|()| new)
    });
    code(made.map(|made| {
        // SAFETY: by contract.
        unsafe { *result = made.cast() };
    }))
}

/// # Safety
/// As [`rdma_create_ep`]; `new` is an identifier.
unsafe fn prepare(
    new: *mut Id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<()> {
    let id: *mut rdma_cm_id = new.cast();
    // SAFETY: by contract.
    unsafe {
        if info.ai_qp_type != 0 {
            (*new).public.qp_type = info.ai_qp_type as u32;
        }
        if info.ai_flags & RAI_PASSIVE != 0 {
            done(rdma_bind_addr(id, info.ai_src_addr))?;
            if let Some(attr) = attr.as_ref() {
                (*new).inner().model = Some(Model { pd, attr: *attr });
            }
            return Ok(());
        }
        done(rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, PATIENCE))?;
        done(rdma_resolve_route(id, PATIENCE))?;
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = info.ai_qp_type as u32;
            done(rdma_create_qp(id, pd, attr))?;
        }
    }
    Ok(())
}

/// # Safety
/// `id` came from [`rdma_create_ep`] or [`rdma_get_request`].
pub(crate) unsafe extern "C-unwind" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: by contract.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}

/// # Safety
/// `listener` listens and has a channel of its own, `result` is writable.
pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    result: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: by contract.
    let got = unsafe { id::of(listener) }.and_then(|listener| {
        if !listener.inner().is_sync {
            return Err(Errno(libc::EINVAL));
        }
        let event = events::next(listener.public.channel.cast::<Channel>())?;
        // SAFETY: just made.
        let (what, status, new) = unsafe { ((*event).event, (*event).status, (*event).id) };
        if what != RDMA_CM_EVENT_CONNECT_REQUEST || status != 0 {
            // SAFETY: not used any more.
            unsafe { events::rdma_ack_cm_event(event) };
            return Err(Errno(libc::EINVAL));
        }
        let model = listener.inner().model;
        // SAFETY: the event's identifier is new.
        let ready = unsafe { take_over(new, model) };
        // SAFETY: the identifier keeps its event.
        unsafe { (*new).event = event };
        if ready.is_err() {
            // SAFETY: the program does not know of it.
            unsafe { rdma_destroy_id(new) };
        }
        ready.map(|()| new)
    });
    code(got.map(|new| {
        // SAFETY: by contract.
        unsafe { *result = new };
    }))
}

/// # Safety
/// `new` is an identifier that came with an event.
unsafe fn take_over(new: *mut rdma_cm_id, model: Option<Model>) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        done(rdma_migrate_id(new, ptr::null_mut()))?;
        if let Some(Model { pd, mut attr }) = model {
            attr.qp_type = (*new).qp_type;
            done(rdma_create_qp(new, pd, &raw mut attr))?;
        }
    }
    Ok(())
}

/// Milliseconds.
const PATIENCE: c_int = 2000;
