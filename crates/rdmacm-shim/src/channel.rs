//! Event channels, and the identifiers that have one of their own.

use std::{
    ffi::{c_int, c_void},
    os::fd::IntoRawFd,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use rnic_abi::control::CmRequest;
use verbs_abi::{
    RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_cm_id, rdma_event_channel,
    rdma_port_space,
};

use crate::{
    error::{Errno, Result, code, pointer},
    events,
    id::{self, Id},
};

/// An event channel; programs have a pointer to its first member.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) public: rdma_event_channel,
    pub(crate) handle: u32,
    /// Threads that wait for an event.
    pub(crate) waiting: AtomicU32,
}

impl Channel {
    fn open() -> Result<*mut Self> {
        let (handle, fd) = id::device()?.open_channel()?;
        let public = rdma_event_channel { fd: fd.into_raw_fd() };
        Ok(Box::into_raw(Box::new(Self { public, handle, waiting: AtomicU32::new(0) })))
    }

    /// # Safety
    /// It is not used any more, but for threads that wait for an event. Those wait on, as with
    /// rdma-core: programs end with such a thread, and take an error of its call for a failure.
    unsafe fn close(channel: *mut Self) {
        // SAFETY: by contract.
        let (fd, waiting) = unsafe { ((*channel).public.fd, &(*channel).waiting) };
        // SAFETY: the channel's own descriptor.
        unsafe { libc::close(fd) };
        if waiting.load(Ordering::Acquire) > 0 {
            return;
        }
        // SAFETY: by contract; made by `open`.
        let channel = unsafe { Box::from_raw(channel) };
        if let Ok(device) = id::device() {
            let _ = device.done(CmRequest::CloseChannel { channel: channel.handle });
        }
    }
}

/// A channel for events of identifiers.
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Channel::open().map(<*mut Channel>::cast))
}

/// # Safety
/// `channel` has no identifiers any more.
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: by contract.
        unsafe { Channel::close(channel.cast()) };
    }
}

/// # Safety
/// `channel` is null or a channel, `result` writable.
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    result: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    code(create(channel.cast(), context, ps).map(|id| {
        // SAFETY: by contract.
        unsafe { *result = id.cast() };
    }))
}

/// A new identifier, with a channel of its own where none is given.
pub(crate) fn create(
    channel: *mut Channel,
    context: *mut c_void,
    ps: rdma_port_space,
) -> Result<*mut Id> {
    if ![RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB].contains(&ps) {
        return Err(Errno(libc::EINVAL));
    }
    let is_sync = channel.is_null();
    let channel = if is_sync { Channel::open()? } else { channel };
    let id = Id::new(channel, context, ps);
    // SAFETY: just made.
    unsafe { (*id).inner().is_sync = is_sync };
    Ok(id)
}

/// # Safety
/// `id` has no queue pair, and is not used any more.
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|_| {
        // SAFETY: by contract; it was made by `Id::new`.
        let mut id = unsafe { Box::from_raw(id.cast::<Id>()) };
        if !id.public.event.is_null() {
            // SAFETY: it is the identifier's own.
            unsafe { events::rdma_ack_cm_event(id.public.event) };
        }
        let handle = id.inner().handle;
        let released = handle.map_or(Ok(()), |handle| {
            id::forget(&raw mut *id, handle);
            id::device()?.done(CmRequest::Release { id: handle })
        });
        if id.inner().is_sync {
            // SAFETY: no other identifier has it.
            unsafe { Channel::close(id.public.channel.cast()) };
        }
        released
    }))
}

/// # Safety
/// `id` is one, `channel` null or a channel.
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let is_sync = channel.is_null();
        let channel = if is_sync { Channel::open()? } else { channel.cast() };
        let handle = id.inner().handle;
        if let Some(handle) = handle {
            // SAFETY: a channel, by contract.
            let channel = unsafe { (*channel).handle };
            id::device()?.done(CmRequest::Move { id: handle, channel })?;
        }
        let old = std::mem::replace(&mut id.public.channel, channel.cast());
        let was_sync = std::mem::replace(&mut id.inner().is_sync, is_sync);
        if was_sync {
            // SAFETY: it was the identifier's own.
            unsafe { Channel::close(old.cast()) };
        }
        Ok(())
    }))
}

/// Waits for the next event of an identifier that has a channel of its own, which keeps it.
pub(crate) fn complete(id: &mut Id) -> Result<()> {
    if !id.inner().is_sync {
        return Ok(());
    }
    if !id.public.event.is_null() {
        // SAFETY: it is the identifier's own.
        unsafe {
            events::rdma_ack_cm_event(std::mem::replace(&mut id.public.event, ptr::null_mut()))
        };
    }
    let event = events::next(id.public.channel.cast())?;
    id.public.event = event;
    // SAFETY: just made.
    match unsafe { (*event).status } {
        0 => Ok(()),
        status if status < 0 => Err(Errno(-status)),
        _ => Err(Errno(libc::ECONNREFUSED)),
    }
}
