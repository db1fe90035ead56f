//! The calls in which a program's threads sleep inside the libraries.
//!
//! A program may cancel a thread that sleeps (`pthread_cancel`). The C library then unwinds the
//! thread's stack from within the call. The libc crate declares its functions as ones that never
//! unwind: the unwinding would end the whole process at the first caller that has something to
//! drop. Declared as here, callers are unwound, and give their locks back. What lies between a
//! program and these calls has to be `extern "C-unwind"`, too.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null;

use libc::{epoll_event, nfds_t, pollfd, sigset_t, ssize_t, timespec};

mod c {
    use super::{c_int, c_void, epoll_event, nfds_t, pollfd, sigset_t, ssize_t, timespec};

    unsafe extern "C-unwind" {
        pub(super) fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> ssize_t;
        pub(super) fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
        pub(super) fn ppoll(
            fds: *mut pollfd,
            count: nfds_t,
            timeout: *const timespec,
            mask: *const sigset_t,
        ) -> c_int;
        pub(super) fn epoll_wait(
            fd: c_int,
            events: *mut epoll_event,
            most: c_int,
            timeout: c_int,
        ) -> c_int;
    }
}

/// As `recv`: how many bytes, or -1 and errno.
pub fn recv(fd: RawFd, buffer: &mut [u8], flags: c_int) -> ssize_t {
    // SAFETY: the buffer has that length.
    unsafe { c::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) }
}

/// As `poll`; a negative timeout is none.
pub fn poll(fds: &mut [pollfd], timeout: c_int) -> c_int {
    // SAFETY: so many descriptors.
    unsafe { c::poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) }
}

/// As `ppoll`; without a time, for ever, and without signals to block, with those that the thread
/// blocks.
pub fn ppoll(fds: &mut [pollfd], timeout: Option<&timespec>, blocked: Option<u64>) -> c_int {
    let timeout = timeout.map_or(null(), std::ptr::from_ref);
    // SAFETY: all zeroes are a valid value, whose beginning is what the kernel reads.
    let blocked = blocked.map(|blocked| unsafe {
        let mut set = MaybeUninit::<sigset_t>::zeroed();
        set.as_mut_ptr().cast::<u64>().write(blocked);
        set.assume_init()
    });
    let mask = blocked.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: so many descriptors, and a time and a set that live, or none.
    unsafe { c::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout, mask) }
}

/// As `epoll_wait` for one event; a negative timeout is none.
pub fn epoll_wait(fd: RawFd, event: &mut epoll_event, timeout: c_int) -> c_int {
    // SAFETY: room for one event.
    unsafe { c::epoll_wait(fd, event, 1, timeout) }
}
