//! Calls that make and connect sockets, ask and tell.

use std::{
    ffi::{c_int, c_void},
    mem::size_of,
    ptr, slice,
};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::{
    config,
    fork::{self, Stage},
    real::{
        errno, inside, is_apart, is_inside, raccept, rbind, rclose, rconnect, real, rfcntl,
        rgetpeername, rgetsockname, rgetsockopt, rlisten, rsetsockopt, rshutdown, rsocket,
        set_errno,
    },
    table,
};

/// Level of options of rsockets.
const SOL_RDMA: c_int = 0x10000;
/// No option that an rsocket takes is longer.
const MOST_BYTES: socklen_t = 64;

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if !is_inside() && !is_apart() && inside(|| config::wants(domain, kind, protocol)) {
        let is_stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
        // SAFETY: no pointers.
        let socket = inside(|| unsafe { rsocket(domain, kind, protocol) });
        if socket >= 0 && is_stream && inside(fork::is_wanted) {
            // SAFETY: no pointers.
            let fd = unsafe {
                inside(|| rclose(socket));
                real!(socket: fn(c_int, c_int, c_int) -> c_int)(domain, kind, protocol)
            };
            fork::begin(fd, Stage::New);
            return fd;
        }
        if socket >= 0 {
            for (option, value) in inside(config::sizes) {
                let len = size_of::<c_int>() as socklen_t;
                let at = ptr::from_ref(value).cast();
                // SAFETY: a number. What does not fit leaves the default.
                inside(|| unsafe { rsetsockopt(socket, SOL_RDMA, *option, at, len) });
            }
            return stand_for(socket, kind & libc::SOCK_CLOEXEC != 0);
        }
    }
    // SAFETY: no pointers.
    unsafe { real!(socket: fn(c_int, c_int, c_int) -> c_int)(domain, kind, protocol) }
}

/// A descriptor of the program for a new rsocket.
fn stand_for(socket: c_int, close_on_exec: bool) -> c_int {
    table::stand_for(socket, close_on_exec).unwrap_or_else(|| {
        // SAFETY: no pointers.
        inside(|| unsafe { rclose(socket) });
        set_errno(libc::EMFILE);
        -1
    })
}

/// Makes an ordinary socket of one that cannot be an rsocket where the program wants to use it,
/// with its options, and bound as it is, to this port. False when that does not work either.
fn become_ordinary(socket: c_int, port: [u8; 2]) -> bool {
    let domain = option(socket, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(libc::AF_INET);
    // SAFETY: no pointers.
    let flags = inside(|| unsafe { rfcntl(socket, libc::F_GETFL, 0) });
    let kind = libc::SOCK_STREAM | flags.max(0) & libc::O_NONBLOCK;
    // SAFETY: no pointers.
    let new = unsafe { real!(socket: fn(c_int, c_int, c_int) -> c_int)(domain, kind, 0) };
    if new < 0 {
        return false;
    }
    let given = table::given(socket);
    for (level, name, value) in &given.options {
        let set = real!(setsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int);
        // SAFETY: a value of that length. What TCP does not know it does without.
        unsafe { set(new, *level, *name, value.as_ptr().cast(), value.len() as socklen_t) };
    }
    if !bind_again(new, given.address.as_deref(), port) {
        // SAFETY: just made.
        unsafe { real!(close: fn(c_int) -> c_int)(new) };
        return false;
    }
    table::replace(socket, new);
    true
}

/// Binds a socket to the address that the program gave another one, if it did.
fn bind_again(new: c_int, address: Option<&[u8]>, port: [u8; 2]) -> bool {
    let Some(mut address) = address.map(<[u8]>::to_vec) else { return true };
    // Behind the family, in both of them. The program may have asked which one it got.
    if let Some(at) = address.get_mut(2..4) {
        at.copy_from_slice(&port);
    }
    let bind = real!(bind: fn(c_int, *const sockaddr, socklen_t) -> c_int);
    // SAFETY: an address of that length.
    unsafe { bind(new, address.as_ptr().cast(), address.len() as socklen_t) == 0 }
}

/// The port of an rsocket, as addresses have it.
fn port_of(socket: c_int) -> [u8; 2] {
    let mut storage = [0_u8; size_of::<sockaddr_storage>()];
    let mut len = storage.len() as socklen_t;
    let at = storage.as_mut_ptr().cast();
    // SAFETY: local variables.
    inside(|| unsafe { rgetsockname(socket, at, &raw mut len) });
    [storage[2], storage[3]]
}

/// Whether it is a stream, which TCP can be instead.
fn is_stream(socket: c_int) -> bool {
    option(socket, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// An option of an rsocket that is a number.
fn option(socket: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, socklen_t) = (0, size_of::<c_int>() as socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: local variables.
    let got = inside(|| unsafe { rgetsockopt(socket, level, name, at, &raw mut len) });
    (got == 0).then_some(value)
}

/// A copy.
///
/// # Safety
/// There are so many bytes.
unsafe fn bytes(at: *const u8, len: socklen_t) -> Vec<u8> {
    // SAFETY: by contract.
    unsafe { slice::from_raw_parts(at, len as usize) }.to_vec()
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if let Some(socket) = table::find(fd) {
        // SAFETY: by contract.
        let bound = inside(|| unsafe { rbind(socket, addr, len) });
        if bound == 0 {
            // SAFETY: by contract: it was read just now.
            let address = unsafe { bytes(addr.cast(), len) };
            table::note(socket, |given| given.address = Some(address));
            return bound;
        }
        let error = errno();
        // An address that the device does not have may be one of the host.
        let elsewhere = matches!(error, libc::EADDRNOTAVAIL | libc::ENODEV);
        if !elsewhere || !is_stream(socket) || !become_ordinary(socket, [0; 2]) {
            set_errno(error);
            return bound;
        }
    }
    // SAFETY: by contract.
    unsafe { real!(bind: fn(c_int, *const sockaddr, socklen_t) -> c_int)(fd, addr, len) }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match table::find(fd) {
        // SAFETY: no pointers.
        Some(socket) => inside(|| unsafe { rlisten(socket, backlog) }),
        None => {
            if fork::is_at(fd, Stage::New) {
                fork::go_on(fd, Stage::Listening);
            }
            // SAFETY: no pointers.
            unsafe { real!(listen: fn(c_int, c_int) -> c_int)(fd, backlog) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match table::find(fd) {
        // SAFETY: by contract.
        Some(socket) => unsafe { take(socket, addr, len, 0) },
        None => {
            let accept = real!(accept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int);
            // SAFETY: by contract.
            handed_on(fd, unsafe { accept(fd, addr, len) })
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    match table::find(fd) {
        // SAFETY: by contract.
        Some(socket) => unsafe { take(socket, addr, len, flags) },
        None => {
            let accept = real!(accept4: fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int);
            // SAFETY: by contract.
            handed_on(fd, unsafe { accept(fd, addr, len, flags) })
        }
    }
}

/// A connection of TCP that may become an rsocket in a child.
fn handed_on(listener: c_int, new: c_int) -> c_int {
    if fork::is_at(listener, Stage::Listening) {
        fork::begin(new, Stage::Accepted);
    }
    new
}

/// # Safety
/// As `accept`.
unsafe fn take(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: by contract.
    let new = inside(|| unsafe { raccept(socket, addr, len) });
    if new < 0 {
        return new;
    }
    if flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: no pointers.
        inside(|| unsafe { rfcntl(new, libc::F_SETFL, libc::O_NONBLOCK.into()) });
    }
    stand_for(new, flags & libc::SOCK_CLOEXEC != 0)
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if let Some(socket) = table::find(fd) {
        // Connecting gives it one, too.
        let port = port_of(socket);
        // SAFETY: by contract.
        let connected = inside(|| unsafe { rconnect(socket, addr, len) });
        let error = errno();
        let goes_on = [
            libc::EINPROGRESS,
            libc::EALREADY,
            libc::EISCONN,
            libc::EINTR,
            libc::EFAULT,
            libc::EINVAL,
        ];
        let is_left = connected == 0 || goes_on.contains(&error) || !is_stream(socket);
        // Where no rsocket answers there may be a TCP server.
        if is_left || !become_ordinary(socket, port) {
            set_errno(error);
            return connected;
        }
    }
    if fork::is_at(fd, Stage::New) {
        fork::go_on(fd, Stage::Connected);
    }
    // SAFETY: by contract.
    unsafe { real!(connect: fn(c_int, *const sockaddr, socklen_t) -> c_int)(fd, addr, len) }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match table::find(fd) {
        // SAFETY: no pointers.
        Some(socket) => inside(|| unsafe { rshutdown(socket, how) }),
        // SAFETY: no pointers.
        None => unsafe { real!(shutdown: fn(c_int, c_int) -> c_int)(fd, how) },
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    match table::find(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rgetpeername(socket, addr, len) }),
        None => {
            let get = real!(getpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int);
            // SAFETY: by contract.
            unsafe { get(fd, addr, len) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    match table::find(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rgetsockname(socket, addr, len) }),
        None => {
            let get = real!(getsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int);
            // SAFETY: by contract.
            unsafe { get(fd, addr, len) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    match table::find(fd) {
        Some(socket) => {
            // SAFETY: by contract.
            let result = inside(|| unsafe { rsetsockopt(socket, level, name, value, len) });
            if result == 0 && level != SOL_RDMA && len <= MOST_BYTES {
                // SAFETY: by contract: it was read just now.
                let value = unsafe { bytes(value.cast(), len) };
                table::note(socket, |given| {
                    given.options.retain(|option| (option.0, option.1) != (level, name));
                    given.options.push((level, name, value));
                });
            }
            result
        }
        None => {
            let set = real!(setsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int);
            // SAFETY: by contract.
            unsafe { set(fd, level, name, value, len) }
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    match table::find(fd) {
        // SAFETY: by contract.
        Some(socket) => inside(|| unsafe { rgetsockopt(socket, level, name, value, len) }),
        None => {
            let get =
                real!(getsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int);
            // SAFETY: by contract.
            unsafe { get(fd, level, name, value, len) }
        }
    }
}
