//! The devices that the connection manager knows.

use std::{ffi::c_int, ptr};

use verbs_abi::ibv_context;

use crate::{
    error::{Errno, pointer},
    session,
};

/// Lists the devices, of which there is one. Programs use the number without checking the list, so
/// it is written on failure too.
///
/// # Safety
/// `num_devices` is null or writable.
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let list = session::device().and_then(|device| {
        // SAFETY: room for as many pointers as are written.
        unsafe {
            let list = libc::calloc(2, size_of::<*mut ibv_context>()).cast::<*mut ibv_context>();
            if list.is_null() {
                return Err(Errno(libc::ENOMEM));
            }
            *list = device.context;
            *list.add(1) = ptr::null_mut();
            Ok(list)
        }
    });
    // SAFETY: by contract.
    if let Some(number) = unsafe { num_devices.as_mut() } {
        *number = c_int::from(list.is_ok());
    }
    pointer(list)
}

/// # Safety
/// `list` is null or came from [`rdma_get_devices`].
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: by contract.
    unsafe { libc::free(list.cast()) };
}
