//! Implementations of exported names that are not supported: each fails as its kind of call fails.
//!
//! All functions but one take no arguments, whatever the caller passes; the calling conventions
//! allow that.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use libc::EOPNOTSUPP;

/// For calls that return 0 or an errno value, which is in errno too.
pub(crate) extern "C" fn err_int() -> c_int {
    set_errno(EOPNOTSUPP);
    EOPNOTSUPP
}

/// For calls that return -1 and set errno.
pub(crate) extern "C" fn err_minus1() -> isize {
    set_errno(EOPNOTSUPP);
    -1
}

/// For calls that return a pointer, NULL and errno on failure.
pub(crate) extern "C" fn err_ptr() -> *mut c_void {
    set_errno(EOPNOTSUPP);
    ptr::null_mut()
}

/// For calls that return a list and write its length. NULL, errno and length 0 on failure: programs
/// check the length.
///
/// # Safety
/// `length` is null or writable.
pub(crate) unsafe extern "C" fn err_list(length: *mut c_int) -> *mut c_void {
    // SAFETY: by contract.
    if let Some(length) = unsafe { length.as_mut() } {
        *length = 0;
    }
    err_ptr()
}

/// For calls without a result, and for those that may truthfully return 0: nothing to do, or an
/// empty answer.
pub(crate) extern "C" fn nop() -> usize {
    0
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: __errno_location returns the valid address of the calling thread's errno.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_fails_in_its_own_way() {
        for call in [|| err_int() == EOPNOTSUPP, || err_minus1() == -1, || err_ptr().is_null()] {
            set_errno(0);
            assert!(call());
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(EOPNOTSUPP));
        }
        assert_eq!(nop(), 0);
    }
}
