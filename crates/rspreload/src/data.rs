//! Calls that send and receive.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use libc::{iovec, msghdr, off_t, sockaddr, socklen_t, ssize_t};

use crate::{
    fork,
    real::{inside, real, rreadv, rrecvfrom, rrecvmsg, rsendmsg, rsendto, rwritev},
};

/// # Safety
/// As `recv`.
unsafe fn receive(socket: c_int, data: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: by contract.
    inside(|| unsafe { rrecvfrom(socket, data, len, flags, ptr::null_mut(), ptr::null_mut()) })
}

/// # Safety
/// As `send`.
unsafe fn transmit(socket: c_int, data: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: by contract.
    inside(|| unsafe { rsendto(socket, data, len, flags, ptr::null(), 0) })
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn read(fd: c_int, data: *mut c_void, len: usize) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => unsafe { receive(socket, data, len, 0) },
        // SAFETY: by contract.
        None => unsafe { real!(read: fn(c_int, *mut c_void, usize) -> ssize_t)(fd, data, len) },
    }
}

/// What compilers make of `read` where they know the size of the buffer.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    room: usize,
) -> ssize_t {
    match fork::for_data(fd).filter(|_| len <= room) {
        // SAFETY: by contract.
        Some(socket) => unsafe { receive(socket, data, len, 0) },
        None => {
            let read = real!(__read_chk: fn(c_int, *mut c_void, usize, usize) -> ssize_t);
            // SAFETY: by contract.
            unsafe { read(fd, data, len, room) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn recv(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => unsafe { receive(socket, data, len, flags) },
        None => {
            let recv = real!(recv: fn(c_int, *mut c_void, usize, c_int) -> ssize_t);
            // SAFETY: by contract.
            unsafe { recv(fd, data, len, flags) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
) -> ssize_t {
    match fork::for_data(fd).filter(|_| len <= room) {
        // SAFETY: by contract.
        Some(socket) => unsafe { receive(socket, data, len, flags) },
        None => {
            let recv = real!(__recv_chk: fn(c_int, *mut c_void, usize, usize, c_int) -> ssize_t);
            // SAFETY: by contract.
            unsafe { recv(fd, data, len, room, flags) }
        }
    }
}

type ReceiveFrom = unsafe extern "C-unwind" fn(
    c_int,
    *mut c_void,
    usize,
    c_int,
    *mut sockaddr,
    *mut socklen_t,
) -> ssize_t;

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rrecvfrom(socket, data, len, flags, from, from_len) }),
        None => {
            let recv: ReceiveFrom = real!(recvfrom: fn(
                c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t
            ) -> ssize_t);
            // SAFETY: by contract.
            unsafe { recv(fd, data, len, flags, from, from_len) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    match fork::for_data(fd).filter(|_| len <= room) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rrecvfrom(socket, data, len, flags, from, from_len) }),
        None => {
            let recv = real!(__recvfrom_chk: fn(
                c_int, *mut c_void, usize, usize, c_int, *mut sockaddr, *mut socklen_t
            ) -> ssize_t);
            // SAFETY: by contract.
            unsafe { recv(fd, data, len, room, flags, from, from_len) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rrecvmsg(socket, message, flags) }),
        None => {
            let recv = real!(recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t);
            // SAFETY: by contract.
            unsafe { recv(fd, message, flags) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rreadv(socket, iov, count) }),
        // SAFETY: by contract.
        None => unsafe { real!(readv: fn(c_int, *const iovec, c_int) -> ssize_t)(fd, iov, count) },
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn write(fd: c_int, data: *const c_void, len: usize) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => unsafe { transmit(socket, data, len, 0) },
        // SAFETY: by contract.
        None => unsafe { real!(write: fn(c_int, *const c_void, usize) -> ssize_t)(fd, data, len) },
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => unsafe { transmit(socket, data, len, flags) },
        None => {
            let send = real!(send: fn(c_int, *const c_void, usize, c_int) -> ssize_t);
            // SAFETY: by contract.
            unsafe { send(fd, data, len, flags) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rsendto(socket, data, len, flags, to, to_len) }),
        None => {
            let send = real!(sendto: fn(
                c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t
            ) -> ssize_t);
            // SAFETY: by contract.
            unsafe { send(fd, data, len, flags, to, to_len) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rsendmsg(socket, message, flags) }),
        None => {
            let send = real!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t);
            // SAFETY: by contract.
            unsafe { send(fd, message, flags) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    match fork::for_data(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rwritev(socket, iov, count) }),
        // SAFETY: by contract.
        None => unsafe { real!(writev: fn(c_int, *const iovec, c_int) -> ssize_t)(fd, iov, count) },
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    at: *mut off_t,
    count: usize,
) -> ssize_t {
    match fork::for_data(to) {
        // SAFETY: by contract.
        Some(socket) => unsafe { copy_file(socket, from, at, count) },
        None => {
            let send = real!(sendfile: fn(c_int, c_int, *mut off_t, usize) -> ssize_t);
            // SAFETY: by contract.
            unsafe { send(to, from, at, count) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    at: *mut off_t,
    count: usize,
) -> ssize_t {
    // SAFETY: by contract; offsets are the same where pointers have 64 bits.
    unsafe { sendfile(to, from, at, count) }
}

/// Sends a part of a file, from an offset of the program's or the file's own.
///
/// # Safety
/// `at` is null or valid.
unsafe fn copy_file(socket: c_int, from: c_int, at: *mut off_t, count: usize) -> ssize_t {
    // SAFETY: by contract.
    let begin = match unsafe { at.as_ref() } {
        Some(begin) => *begin,
        // SAFETY: no pointers.
        None => unsafe { libc::lseek(from, 0, libc::SEEK_CUR) },
    };
    if begin < 0 {
        return -1;
    }
    let mut buffer = vec![0_u8; count.min(BUFFER)];
    let (mut place, mut left) = (begin, count);
    let mut result = 0;
    while left > 0 {
        let room = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer is at least as long.
        let got = unsafe { libc::pread(from, room, left.min(BUFFER), place) };
        let Ok(len @ 1..) = usize::try_from(got) else {
            result = got;
            break;
        };
        // SAFETY: so many bytes were read.
        let sent = unsafe { transmit(socket, buffer.as_ptr().cast(), len, 0) };
        let Ok(taken) = usize::try_from(sent) else {
            result = sent;
            break;
        };
        place += sent as off_t;
        left -= taken;
        if taken < len {
            break;
        }
    }
    // SAFETY: by contract.
    match unsafe { at.as_mut() } {
        Some(at) => *at = place,
        None => {
            // SAFETY: no pointers.
            unsafe { libc::lseek(from, place, libc::SEEK_SET) };
        }
    }
    if place > begin { (place - begin) as ssize_t } else { result }
}

const BUFFER: usize = 65_536;
