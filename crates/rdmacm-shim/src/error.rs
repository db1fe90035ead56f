//! How calls of librdmacm fail: -1 or null, and errno.

use std::{ffi::c_int, io, ptr};

/// A positive errno value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    /// That of the last call.
    pub(crate) fn last() -> Self {
        Self::from(io::Error::last_os_error())
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().filter(|errno| *errno > 0).unwrap_or(libc::EIO))
    }
}

/// For calls that return 0, or -1 with errno.
pub(crate) fn code(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(errno)) => {
            crate::stubs::set_errno(errno);
            -1
        }
    }
}

/// Reverses [`code`]: what a call of ours says.
pub(crate) fn done(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// For calls that return a pointer, or null with errno.
pub(crate) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|Errno(errno)| {
        crate::stubs::set_errno(errno);
        ptr::null_mut()
    })
}
