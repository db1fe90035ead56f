//! The devices that the connection manager knows.

use std::{ffi::c_int, ptr};

use verbs_abi::ibv_context;

use crate::stubs;

/// Lists the devices: none, while there is no connection manager. Programs use the number without
/// checking the list, so it is written on failure too.
///
/// # Safety
/// `num_devices` is null or writable.
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: by contract.
    if let Some(number) = unsafe { num_devices.as_mut() } {
        *number = 0;
    }
    stubs::no_device();
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_devices_is_written_although_there_is_no_list() {
        let mut number = 17;
        // SAFETY: a local variable, or nothing.
        unsafe {
            assert!(rdma_get_devices(&raw mut number).is_null());
            assert!(rdma_get_devices(ptr::null_mut()).is_null());
        }
        assert_eq!(number, 0);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    }
}
