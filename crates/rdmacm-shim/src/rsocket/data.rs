//! The calls that send and receive.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use libc::{iovec, msghdr, off_t, sockaddr, socklen_t, ssize_t};

use super::{
    calls::{ROOM, address, stream, tell},
    number,
    table::{self, Socket},
    transfer::Piece,
};
use crate::error::{Errno, Result, code};

/// # Safety
/// As `recv`.
pub(crate) unsafe extern "C-unwind" fn rrecv(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by contract.
    unsafe { rrecvfrom(fd, data, len, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// # Safety
/// As `recvfrom`.
pub(crate) unsafe extern "C-unwind" fn rrecvfrom(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: by contract.
    let received = unsafe { receive(fd, &[Piece { at: data.cast(), len }], flags, from, from_len) };
    number(received.map(|(len, _)| len), -1)
}

/// How many bytes, and whether the rest of a datagram is lost.
///
/// # Safety
/// The pieces are writable; the rest as `recvfrom`.
unsafe fn receive(
    fd: c_int,
    pieces: &[Piece],
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> Result<(i64, bool)> {
    let (len, is_cut, source, is_v6) = match table::of(fd)? {
        Socket::Stream(stream) => {
            // SAFETY: by contract.
            let len = unsafe { stream.receive(pieces, flags) }?;
            let asks = len > 0 && !from.is_null();
            let source = if asks { stream.remote() } else { None };
            (len, false, source, asks && stream.core().options.is_v6)
        }
        Socket::Datagram(datagram) => {
            // SAFETY: by contract.
            let (len, is_cut, source) = unsafe { datagram.receive(pieces, flags) }?;
            (len, is_cut, source, datagram.is_v6)
        }
    };
    if let Some(source) = source.filter(|_| !from.is_null()) {
        // SAFETY: by contract.
        unsafe { tell(source, is_v6, from, from_len) };
    }
    let len = i64::try_from(len).map_err(|_| Errno(libc::EOVERFLOW))?;
    Ok((len, is_cut))
}

/// # Safety
/// As `recvmsg`.
pub(crate) unsafe extern "C-unwind" fn rrecvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by contract.
    let Some(message) = (unsafe { message.as_mut() }) else {
        return number(Err(Errno(libc::EFAULT)), -1);
    };
    // No control messages ever come.
    message.msg_controllen = 0;
    message.msg_flags = 0;
    // SAFETY: by contract.
    let received = unsafe { pieces(message.msg_iov, message.msg_iovlen) }.and_then(|pieces| {
        let name = message.msg_name.cast();
        // SAFETY: by contract.
        unsafe { receive(fd, &pieces, flags, name, &raw mut message.msg_namelen) }
    });
    let received = received.map(|(len, is_cut)| {
        message.msg_flags = if is_cut { libc::MSG_TRUNC } else { 0 };
        len
    });
    number(received, -1)
}

/// # Safety
/// As `send`.
pub(crate) unsafe extern "C-unwind" fn rsend(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by contract.
    unsafe { rsendto(fd, data, len, flags, std::ptr::null(), 0) }
}

/// # Safety
/// As `sendto`.
pub(crate) unsafe extern "C-unwind" fn rsendto(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let piece = Piece { at: data.cast_mut().cast(), len };
    // SAFETY: by contract.
    number(unsafe { send(fd, &[piece], flags, to, to_len) }, -1)
}

/// # Safety
/// The pieces are readable; the rest as `sendto`.
unsafe fn send(
    fd: c_int,
    pieces: &[Piece],
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Result<i64> {
    let sent = match table::of(fd)? {
        // As with TCP, the address of a connection is not looked at.
        // SAFETY: by contract.
        Socket::Stream(stream) => unsafe { stream.send(pieces, flags) }?,
        Socket::Datagram(datagram) => {
            // SAFETY: by contract.
            let to = (!to.is_null()).then(|| unsafe { address(to, to_len) }).transpose()?;
            match pieces {
                // SAFETY: by contract.
                [piece] => unsafe { datagram.send((piece.at, piece.len), to, flags) }?,
                pieces => {
                    // SAFETY: by contract.
                    let whole = unsafe { gather(pieces) };
                    // SAFETY: the vector is as long as is said.
                    unsafe { datagram.send((whole.as_ptr(), whole.len()), to, flags) }?
                }
            }
        }
    };
    i64::try_from(sent).map_err(|_| Errno(libc::EOVERFLOW))
}

/// # Safety
/// The pieces are readable.
unsafe fn gather(pieces: &[Piece]) -> Vec<u8> {
    let mut whole = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.len > 0) {
        // SAFETY: by contract.
        whole.extend_from_slice(unsafe { slice::from_raw_parts(piece.at, piece.len) });
    }
    whole
}

/// # Safety
/// As `sendmsg`.
pub(crate) unsafe extern "C-unwind" fn rsendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by contract.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return number(Err(Errno(libc::EFAULT)), -1);
    };
    if message.msg_controllen > 0 {
        return number(Err(Errno(libc::EOPNOTSUPP)), -1);
    }
    // The kernel cuts those of messages, unless they are negative.
    let name_len = match c_int::try_from(message.msg_namelen) {
        Ok(_) => message.msg_namelen.min(ROOM),
        Err(_) => message.msg_namelen,
    };
    // SAFETY: by contract.
    let sent = unsafe { pieces(message.msg_iov, message.msg_iovlen) }.and_then(|pieces| {
        // SAFETY: by contract.
        unsafe { send(fd, &pieces, flags, message.msg_name.cast(), name_len) }
    });
    number(sent, -1)
}

/// # Safety
/// `iov` has `count` entries.
unsafe fn pieces(iov: *const iovec, count: usize) -> Result<Vec<Piece>> {
    if iov.is_null() || count == 0 {
        return Ok(Vec::new());
    }
    if count > MOST_PIECES {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: by contract.
    let entries = unsafe { slice::from_raw_parts(iov, count) };
    let piece = |entry: &iovec| Piece { at: entry.iov_base.cast(), len: entry.iov_len };
    Ok(entries.iter().map(piece).collect())
}

/// # Safety
/// As `read`.
pub(crate) unsafe extern "C-unwind" fn rread(fd: c_int, data: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: by contract.
    unsafe { rrecv(fd, data, len, 0) }
}

/// # Safety
/// As `write`.
pub(crate) unsafe extern "C-unwind" fn rwrite(
    fd: c_int,
    data: *const c_void,
    len: usize,
) -> ssize_t {
    // SAFETY: by contract.
    unsafe { rsend(fd, data, len, 0) }
}

/// # Safety
/// As `readv`.
pub(crate) unsafe extern "C-unwind" fn rreadv(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> ssize_t {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let none = std::ptr::null_mut;
    // SAFETY: by contract.
    let received = unsafe { pieces(iov, count) }.and_then(|pieces| {
        // SAFETY: by contract.
        unsafe { receive(fd, &pieces, 0, none(), none().cast()) }
    });
    number(received.map(|(len, _)| len), -1)
}

/// # Safety
/// As `writev`.
pub(crate) unsafe extern "C-unwind" fn rwritev(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> ssize_t {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: by contract.
    let sent = unsafe { pieces(iov, count) }.and_then(|pieces| {
        // SAFETY: by contract.
        unsafe { send(fd, &pieces, 0, std::ptr::null(), 0) }
    });
    number(sent, -1)
}

/// Maps a buffer: the other end can write to it with `riowrite`.
///
/// # Safety
/// The buffer stays until it is unmapped.
pub(crate) unsafe extern "C-unwind" fn riomap(
    fd: c_int,
    data: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    number(stream(fd).and_then(|stream| stream.map(data, len, prot, offset)), -1)
}

pub(crate) extern "C-unwind" fn riounmap(fd: c_int, data: *mut c_void, len: usize) -> c_int {
    code(stream(fd).and_then(|stream| stream.unmap(data, len)))
}

/// # Safety
/// `data` has `len` bytes.
pub(crate) unsafe extern "C-unwind" fn riowrite(
    fd: c_int,
    data: *const c_void,
    len: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let written = stream(fd).and_then(|stream| {
        // SAFETY: by contract.
        let written = unsafe { stream.write_mapped(data.cast(), len, offset, flags) }?;
        i64::try_from(written).map_err(|_| Errno(libc::EOVERFLOW))
    });
    number(written, usize::MAX)
}

/// As many pieces as the kernel takes.
const MOST_PIECES: usize = 1024;
