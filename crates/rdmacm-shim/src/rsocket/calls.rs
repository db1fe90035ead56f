//! The calls that make, connect and end rsockets, ask and tell.

use std::{
    ffi::{c_int, c_long},
    net::SocketAddr,
    slice,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use libc::{nfds_t, pollfd, sockaddr, socklen_t, timeval};
use rnic_abi::os::select::Sets;

use super::{
    datagram::Datagram,
    keep_alive, number,
    options::Value,
    poll,
    stream::Stream,
    table::{self, Socket},
    udp,
};
use crate::{
    error::{Errno, Result, code},
    id::read_address,
};

/// A new rsocket.
pub(crate) extern "C-unwind" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(make(domain, kind, protocol).map(i64::from), -1)
}

fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    let is_v6 = match domain {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    let descriptor_flags = if flags & libc::SOCK_CLOEXEC == 0 { 0 } else { libc::FD_CLOEXEC };
    let socket = match (kind & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            let stream = Stream::new(is_v6)?;
            stream.nonblocking.store(nonblocking, Ordering::Relaxed);
            stream.descriptor_flags.store(descriptor_flags, Ordering::Relaxed);
            Socket::Stream(Arc::new(stream))
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            let datagram = Datagram::new(is_v6)?;
            datagram.nonblocking.store(nonblocking, Ordering::Relaxed);
            datagram.descriptor_flags.store(descriptor_flags, Ordering::Relaxed);
            Socket::Datagram(Arc::new(datagram))
        }
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    insert(socket)
}

fn insert(socket: Socket) -> Result<c_int> {
    let fd = match &socket {
        Socket::Stream(stream) => stream.fd(),
        Socket::Datagram(datagram) => datagram.fd(),
    };
    table::add(fd, socket)?;
    Ok(fd)
}

/// No address is longer.
pub(super) const ROOM: socklen_t = size_of::<libc::sockaddr_storage>() as socklen_t;

/// An address that a program gives.
///
/// # Safety
/// `address` is null or has `len` bytes.
pub(super) unsafe fn address(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    // As in the kernel, which says so first.
    if len > ROOM {
        return Err(Errno(libc::EINVAL));
    }
    if address.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    if len < 2 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: by contract.
    let family = i32::from(unsafe { address.cast::<u16>().read_unaligned() });
    let needed = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        // The scope was added later.
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if (len as usize) < needed {
        return Err(Errno(libc::EINVAL));
    }
    read_address(address).ok_or(Errno(libc::EAFNOSUPPORT))
}

/// Gives a program an address, as much as fits.
///
/// # Safety
/// Both are null or writable, the address for as many bytes as the length says.
pub(super) unsafe fn tell(value: SocketAddr, is_v6: bool, to: *mut sockaddr, len: *mut socklen_t) {
    let (storage, whole) = udp::as_family(value, is_v6);
    // SAFETY: by contract.
    unsafe {
        if let Some(len) = len.as_mut() {
            let room = (*len).min(whole) as usize;
            if !to.is_null() {
                std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast(), room);
            }
            *len = whole;
        }
    }
}

/// # Safety
/// `addr` is null or has `len` bytes.
pub(crate) unsafe extern "C-unwind" fn rbind(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    code(table::of(fd).and_then(|socket| {
        // SAFETY: by contract.
        let address = unsafe { address(addr, len) }?;
        match socket {
            Socket::Stream(stream) => stream.bind(address),
            Socket::Datagram(datagram) => datagram.bind(address),
        }
    }))
}

pub(crate) extern "C-unwind" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    code(stream(fd).and_then(|stream| stream.listen(backlog)))
}

/// # Safety
/// Both are null or writable.
pub(crate) unsafe extern "C-unwind" fn raccept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let accepted = stream(fd).and_then(|listener| {
        let stream = listener.accept()?;
        let is_v6 = stream.core().options.is_v6;
        if let Some(remote) = stream.remote().filter(|_| !addr.is_null()) {
            // SAFETY: by contract.
            unsafe { tell(remote, is_v6, addr, len) };
        }
        if stream.core().options.keep_alive {
            keep_alive::watch(&stream);
        }
        insert(Socket::Stream(stream))
    });
    number(accepted.map(i64::from), -1)
}

/// # Safety
/// `addr` is null or has `len` bytes.
pub(crate) unsafe extern "C-unwind" fn rconnect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    code(table::of(fd).and_then(|socket| {
        // SAFETY: by contract.
        let address = unsafe { address(addr, len) }?;
        match socket {
            Socket::Stream(stream) => stream.connect(address),
            Socket::Datagram(datagram) => datagram.connect(address),
        }
    }))
}

pub(crate) extern "C-unwind" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    code(table::of(fd).and_then(|socket| {
        if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return Err(Errno(libc::EINVAL));
        }
        match socket {
            Socket::Stream(stream) => {
                if let Some(listener) = stream.listener.get() {
                    listener.stop();
                }
                stream.shutdown(how)
            }
            Socket::Datagram(datagram) => {
                datagram.shutdown(how);
                Ok(())
            }
        }
    }))
}

pub(crate) extern "C-unwind" fn rclose(fd: c_int) -> c_int {
    code(table::remove(fd).ok_or(Errno(libc::EBADF)).map(|socket| match socket {
        // Its parent goes on with it: only the number is free here.
        inherited if inherited.is_inherited() => {
            std::mem::forget(inherited);
            // SAFETY: no pointers, and this process has no other use of the descriptor.
            unsafe { libc::close(fd) };
        }
        Socket::Stream(stream) => {
            if let Some(listener) = stream.listener.get() {
                listener.stop();
            }
            stream.close();
        }
        Socket::Datagram(datagram) => datagram.shutdown(libc::SHUT_RDWR),
    }))
}

pub(super) fn stream(fd: c_int) -> Result<Arc<Stream>> {
    match table::of(fd)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// # Safety
/// Both are null or writable.
pub(crate) unsafe extern "C-unwind" fn rgetpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    code(table::of(fd).and_then(|socket| {
        let (remote, is_v6) = match socket {
            Socket::Stream(stream) => {
                let is_v6 = stream.core().options.is_v6;
                (stream.remote().ok_or(Errno(libc::ENOTCONN))?, is_v6)
            }
            Socket::Datagram(datagram) => (udp::remote(&datagram.udp)?, datagram.is_v6),
        };
        // SAFETY: by contract.
        unsafe { tell(remote, is_v6, addr, len) };
        Ok(())
    }))
}

/// # Safety
/// Both are null or writable.
pub(crate) unsafe extern "C-unwind" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    code(table::of(fd).and_then(|socket| {
        let (local, is_v6) = match socket {
            Socket::Stream(stream) => (stream.local(), stream.core().options.is_v6),
            Socket::Datagram(datagram) => (udp::local(&datagram.udp)?, datagram.is_v6),
        };
        // SAFETY: by contract.
        unsafe { tell(local, is_v6, addr, len) };
        Ok(())
    }))
}

/// # Safety
/// `value` is null or has `len` bytes.
pub(crate) unsafe extern "C-unwind" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const std::ffi::c_void,
    len: socklen_t,
) -> c_int {
    code(table::of(fd).and_then(|socket| {
        if value.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: by contract.
        let value = unsafe { slice::from_raw_parts(value.cast(), len as usize) };
        socket.set_option(level, name, Value(value))
    }))
}

/// # Safety
/// Both are null or writable, the value for as many bytes as the length says.
pub(crate) unsafe extern "C-unwind" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut std::ffi::c_void,
    len: *mut socklen_t,
) -> c_int {
    code(table::of(fd).and_then(|socket| {
        // SAFETY: by contract.
        let len = unsafe { len.as_mut() }.filter(|_| !value.is_null());
        let len = len.ok_or(Errno(libc::EFAULT))?;
        let option = socket.option(level, name)?;
        let room = option.len().min(*len as usize);
        // SAFETY: by contract.
        unsafe { std::ptr::copy_nonoverlapping(option.as_ptr(), value.cast(), room) };
        *len = room as socklen_t;
        Ok(())
    }))
}

/// The argument is there only where the command has one.
pub(crate) extern "C-unwind" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let done = table::of(fd).and_then(|socket| {
        let (nonblocking, descriptor) = match &socket {
            Socket::Stream(stream) => (&stream.nonblocking, &stream.descriptor_flags),
            Socket::Datagram(datagram) => (&datagram.nonblocking, &datagram.descriptor_flags),
        };
        match command {
            libc::F_GETFL => {
                let nonblocking = nonblocking.load(Ordering::Relaxed);
                Ok(libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 })
            }
            libc::F_SETFL => {
                let wanted = argument & c_long::from(libc::O_NONBLOCK) != 0;
                nonblocking.store(wanted, Ordering::Relaxed);
                Ok(0)
            }
            libc::F_GETFD => Ok(descriptor.load(Ordering::Relaxed)),
            libc::F_SETFD => {
                descriptor.store(argument as c_int, Ordering::Relaxed);
                Ok(0)
            }
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    });
    number(done.map(i64::from), -1)
}

/// # Safety
/// `fds` has `count` entries.
pub(crate) unsafe extern "C-unwind" fn rpoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    let fds = match fds.is_null() || count == 0 {
        true => &mut [],
        // SAFETY: by contract.
        false => unsafe { slice::from_raw_parts_mut(fds, count) },
    };
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    number(poll::poll(fds, timeout).map(i64::from), -1)
}

/// # Safety
/// The sets are as [`Sets::new`] wants them; the time is null or valid.
pub(crate) unsafe extern "C-unwind" fn rselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: by contract.
    let timeout = unsafe { timeout.as_ref() }.map(|time| {
        let part = |value: i64| u64::try_from(value).unwrap_or(0);
        Duration::from_secs(part(time.tv_sec)) + Duration::from_micros(part(time.tv_usec))
    });
    // SAFETY: by contract.
    let sets = unsafe { Sets::new(count, [read, write, except]) };
    number(poll::select(sets, timeout).map(i64::from), -1)
}
