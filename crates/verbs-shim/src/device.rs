//! The device list.

use std::{ffi::c_int, ptr};

use verbs_abi::ibv_device;

/// Returns an array of devices that ends in NULL, to be given to `ibv_free_device_list`; NULL and
/// errno on failure.
///
/// # Safety
/// `num_devices` is null or points to an int.
pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut ibv_device {
    if !num_devices.is_null() {
        // SAFETY: not null, and an int by contract.
        unsafe { num_devices.write(0) };
    }
    Box::into_raw(Box::new(ptr::null_mut()))
}

/// Frees what `ibv_get_device_list` returned.
///
/// # Safety
/// `list` is null or a list from `ibv_get_device_list` that was not freed yet.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: the list is the box made above, by contract.
        drop(unsafe { Box::from_raw(list) });
    }
}
