//! How verbs fail: an errno value, returned or set.

use std::{ffi::c_int, io, ptr};

use crate::stubs::set_errno;

/// A positive errno value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        let made_up = match error.kind() {
            io::ErrorKind::InvalidData => libc::EPROTO,
            _ => libc::EIO,
        };
        Self(error.raw_os_error().unwrap_or(made_up))
    }
}

/// For calls that return 0 or an errno value. Programs print either: errno is set too.
pub(crate) fn code(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(errno)) => {
            set_errno(errno);
            errno
        }
    }
}

/// For calls that return a pointer, NULL and errno on failure.
pub(crate) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|Errno(errno)| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// For calls that return 0, or -1 and errno.
pub(crate) fn zero_or_minus_one(result: Result<()>) -> c_int {
    value_or_minus_one(result.map(|()| 0))
}

/// For calls that return a value, or -1 and errno.
pub(crate) fn value_or_minus_one(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|Errno(errno)| {
        set_errno(errno);
        -1
    })
}
