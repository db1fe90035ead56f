//! The devices that the connection manager knows.

use std::{ffi::c_int, ptr};

use verbs_abi::ibv_context;

use crate::{
    error::{Errno, Result, pointer},
    session,
};

/// Lists the devices that can be opened. Programs use the number without checking the list, so it
/// is written on failure too.
///
/// # Safety
/// `num_devices` is null or writable.
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let all = open_all();
    // SAFETY: by contract.
    if let Some(number) = unsafe { num_devices.as_mut() } {
        let count = all.as_ref().map_or(0, Vec::len);
        *number = c_int::try_from(count).unwrap_or(c_int::MAX);
    }
    pointer(all.and_then(|all| {
        // SAFETY: room for as many pointers as are written, and one that ends the list.
        unsafe {
            let size = size_of::<*mut ibv_context>();
            let list = libc::calloc(all.len() + 1, size).cast::<*mut ibv_context>();
            if list.is_null() {
                return Err(Errno(libc::ENOMEM));
            }
            ptr::copy_nonoverlapping(all.as_ptr(), list, all.len());
            Ok(list)
        }
    }))
}

fn open_all() -> Result<Vec<*mut ibv_context>> {
    let opened = session::devices()?.iter().map(|device| Ok(device.opened()?.context));
    let (all, failed): (Vec<_>, Vec<_>) = opened.partition(Result::is_ok);
    match failed.into_iter().next() {
        Some(first) if all.is_empty() => first.map(|context| vec![context]),
        _ => all.into_iter().collect(),
    }
}

/// # Safety
/// `list` is null or came from [`rdma_get_devices`].
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: by contract.
    unsafe { libc::free(list.cast()) };
}
