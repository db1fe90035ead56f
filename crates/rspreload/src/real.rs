//! libc's functions behind those of the same names here, and librdmacm's.

use std::{
    cell::Cell,
    ffi::{c_int, c_long, c_void},
    sync::atomic::{AtomicUsize, Ordering},
};

use libc::{msghdr, nfds_t, pollfd, sockaddr, socklen_t, ssize_t};

/// libc's function of this name. Threads may be cancelled in it, which unwinds their stacks.
macro_rules! real {
    ($name:ident: fn($($arg:ty),*) -> $result:ty) => {{
        // A function of its own, outside of the caller's unsafe block.
        fn find() -> unsafe extern "C-unwind" fn($($arg),*) -> $result {
            static AT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            let at = $crate::real::look_up(&AT, concat!(stringify!($name), "\0"));
            // SAFETY: libc's function has this signature; every libc that this runs on has it.
            unsafe { std::mem::transmute(at) }
        }
        find()
    }};
}
pub(crate) use real;

/// Address of libc's function of this name, which ends with a zero byte.
pub(crate) fn look_up(known: &AtomicUsize, name: &'static str) -> usize {
    match known.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: a C string.
            let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) }.addr();
            known.store(at, Ordering::Relaxed);
            at
        }
        at => at,
    }
}

#[rustfmt::skip]
unsafe extern "C-unwind" {
    pub(crate) fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    pub(crate) fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn rlisten(fd: c_int, backlog: c_int) -> c_int;
    pub(crate) fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn rshutdown(fd: c_int, how: c_int) -> c_int;
    pub(crate) fn rclose(fd: c_int) -> c_int;
    pub(crate) fn rrecvfrom(fd: c_int, data: *mut c_void, len: usize, flags: c_int,
        from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    pub(crate) fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    pub(crate) fn rsendto(fd: c_int, data: *const c_void, len: usize, flags: c_int,
        to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    pub(crate) fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    pub(crate) fn rreadv(fd: c_int, iov: *const libc::iovec, count: c_int) -> ssize_t;
    pub(crate) fn rwritev(fd: c_int, iov: *const libc::iovec, count: c_int) -> ssize_t;
    pub(crate) fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    pub(crate) fn rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void,
        len: socklen_t) -> c_int;
    pub(crate) fn rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        len: *mut socklen_t) -> c_int;
    pub(crate) fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static APART: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a call of librdmacm, whose own sockets are the kernel's.
pub(crate) fn is_inside() -> bool {
    INSIDE.with(Cell::get)
}

/// Whether this thread has a table of descriptors of its own.
pub(crate) fn is_apart() -> bool {
    APART.with(Cell::get)
}

/// The threads of an engine in the program call this first: what has the number of an rsocket of
/// the program in their table of descriptors is none.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn rnic_preload_thread_is_apart() {
    APART.with(|apart| apart.set(true));
}

/// Calls librdmacm.
pub(crate) fn inside<T>(call: impl FnOnce() -> T) -> T {
    let _before = Before(INSIDE.with(|inside| inside.replace(true)));
    call()
}

/// Whether this thread was inside before. A thread that is cancelled inside comes out of it, too:
/// the program's handlers may call anything.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.0));
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the calling thread's.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's.
    unsafe { *libc::__errno_location() = errno };
}
