//! What is behind exported names that are not supported.
//!
//! The function takes no arguments, whatever the caller passes; the calling conventions allow that.

use std::{
    env,
    ffi::c_int,
    io::{self, Write},
    sync::Once,
};

/// For calls that return -1 and set errno.
pub(crate) extern "C" fn err_minus1() -> isize {
    explain();
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Prints once per process why nothing works, when the user asked for details: from an errno value
/// alone, users would look for a missing device.
fn explain() {
    static SAID: Once = Once::new();
    SAID.call_once(|| debug(WHY));
}

/// Prints a text for users who asked for details.
pub(crate) fn debug(text: &str) {
    let wanted = |name| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    if ["RNIC_DEBUG", "IBV_SHOW_WARNINGS"].into_iter().any(wanted) {
        say(text);
    }
}

/// Prints a text for the user.
pub(crate) fn say(text: &str) {
    // An unwritable stderr must not fail the program.
    drop(writeln!(io::stderr(), "librdmacm (soft-rnic): {text}"));
}

const WHY: &str = "this call is of a newer rdma-core, and not supported";

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: __errno_location returns the valid address of the calling thread's errno.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_supported_says_so() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert_eq!((err_minus1(), errno()), (-1, Some(libc::EOPNOTSUPP)));
    }
}
