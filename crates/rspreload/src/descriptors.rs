//! Calls about descriptors of any kind.

use std::ffi::{c_int, c_long, c_ulong, c_void};

use libc::stat;

use crate::{
    fork,
    real::{inside, real, rfcntl, set_errno},
    table,
};

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // First, so that the connection does not become an rsocket between the two.
    fork::forget(fd);
    if table::find(fd).is_some() {
        table::forget(fd);
    }
    // SAFETY: no pointers.
    unsafe { real!(close: fn(c_int) -> c_int)(fd) }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    let new = unsafe { real!(dup: fn(c_int) -> c_int)(fd) };
    if new >= 0 {
        duplicated(fd, new);
    }
    new
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    let call = || {
        // SAFETY: no pointers.
        unsafe { real!(dup2: fn(c_int, c_int) -> c_int)(fd, to) }
    };
    duplicate(fd, to, call)
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    let call = || {
        // SAFETY: no pointers.
        unsafe { real!(dup3: fn(c_int, c_int, c_int) -> c_int)(fd, to, flags) }
    };
    duplicate(fd, to, call)
}

fn duplicate(fd: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let new = call();
    if new >= 0 && fd != to {
        if table::find(to).filter(|before| Some(*before) != table::find(fd)).is_some() {
            table::forget(to);
        }
        duplicated(fd, to);
    }
    new
}

/// A descriptor of the program is another one of what `fd` is.
fn duplicated(fd: c_int, new: c_int) {
    // First, so that the connection does not become an rsocket between the two.
    fork::also(new, fd);
    if let Some(socket) = table::find(fd) {
        table::also(new, socket);
    }
}

/// The argument is there only where the command has one.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let copies = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    let Some(socket) = table::find(fd).filter(|_| !copies) else {
        let call = real!(fcntl: fn(c_int, c_int, c_long) -> c_int);
        // SAFETY: by contract.
        let result = unsafe { call(fd, command, argument) };
        if copies && result >= 0 {
            duplicated(fd, result);
        }
        return result;
    };
    match command {
        libc::F_GETFL | libc::F_SETFL => {
            // SAFETY: no pointers.
            inside(|| unsafe { rfcntl(socket, command, argument) })
        }
        libc::F_GETFD | libc::F_SETFD => {
            // SAFETY: no pointers.
            unsafe { real!(fcntl: fn(c_int, c_int, c_long) -> c_int)(fd, command, argument) }
        }
        _ => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: by contract; both are the same where pointers have 64 bits.
    unsafe { fcntl(fd, command, argument) }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(socket) = table::find(fd) else {
        let call = real!(ioctl: fn(c_int, c_ulong, *mut c_void) -> c_int);
        // SAFETY: by contract.
        return unsafe { call(fd, request, argument) };
    };
    if request != libc::FIONBIO {
        set_errno(libc::ENOTTY);
        return -1;
    }
    // SAFETY: by contract.
    let on = unsafe { argument.cast::<c_int>().read_unaligned() } != 0;
    let flags = if on { libc::O_NONBLOCK } else { 0 };
    // SAFETY: no pointers.
    inside(|| unsafe { rfcntl(socket, libc::F_SETFL, flags.into()) })
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fstat(fd: c_int, about: *mut stat) -> c_int {
    // SAFETY: by contract.
    let result = unsafe { libc::syscall(libc::SYS_fstat, fd, about) };
    if result == 0 && table::find(fd).is_some() {
        // SAFETY: by contract, and just filled in.
        unsafe { (*about).st_mode = (*about).st_mode & !libc::S_IFMT | libc::S_IFSOCK };
    }
    if result == 0 { 0 } else { -1 }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fstat64(fd: c_int, about: *mut stat) -> c_int {
    // SAFETY: by contract; both are the same where pointers have 64 bits.
    unsafe { fstat(fd, about) }
}
