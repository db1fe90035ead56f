//! The sets of `select`.
//!
//! They become an array for `poll`: the number of an rsocket may be larger than sets have room for.

use std::ffi::c_int;

use libc::{fd_set, pollfd};
use rnic_abi::os::select::Sets;

use crate::{real::set_errno, table};

/// The sets of a call, of which some descriptor stands for an rsocket; `None` when there is none.
///
/// # Safety
/// As [`Sets::new`].
pub(crate) unsafe fn with_rsockets(count: c_int, given: [*mut fd_set; 3]) -> Option<Sets> {
    // SAFETY: by contract.
    let sets = unsafe { Sets::new(count, given) };
    sets.polled().iter().any(|polled| table::find(polled.fd).is_some()).then_some(sets)
}

/// Has them polled, and says which are ready: how many, or -1 and errno.
pub(crate) fn fill(mut sets: Sets, poll: impl FnOnce(&mut [pollfd]) -> c_int) -> c_int {
    if poll(sets.polled_mut()) < 0 {
        return -1;
    }
    sets.write().unwrap_or_else(|| {
        set_errno(libc::EBADF);
        -1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_rsocket_may_be_larger_than_sets() {
        let fd = 900;
        table::also(fd, 2000);
        // SAFETY: a set of bits.
        unsafe {
            let mut read: fd_set = std::mem::zeroed();
            let given = [&raw mut read, std::ptr::null_mut(), std::ptr::null_mut()];
            assert!(with_rsockets(fd + 1, given).is_none(), "it is not asked for");
            libc::FD_SET(fd, &raw mut read);
            assert!(with_rsockets(fd, given).is_none(), "it is not asked for");
            assert!(with_rsockets(fd + 1, given).is_some());
        }
        table::also(fd, -1);
    }

    #[test]
    fn descriptors_that_are_not_open_are_refused() {
        // SAFETY: a set of bits.
        let mut read: fd_set = unsafe { std::mem::zeroed() };
        let given = [&raw mut read, std::ptr::null_mut(), std::ptr::null_mut()];
        // SAFETY: a set of bits.
        let sets = unsafe {
            libc::FD_SET(3, &raw mut read);
            Sets::new(8, given)
        };
        let closed = fill(sets, |fds| {
            fds[0].revents = libc::POLLNVAL;
            1
        });
        assert_eq!((closed, crate::real::errno()), (-1, libc::EBADF));
    }
}
