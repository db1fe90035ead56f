//! Names to addresses.

use std::{
    ffi::{c_char, c_int},
    ptr,
};

use libc::{addrinfo, sa_family_t, sockaddr};
use verbs_abi::{
    IBV_QPT_RC, IBV_QPT_UD, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_TCP, RDMA_PS_UDP,
    Zeroed, rdma_addrinfo,
};

use crate::{
    error::{Errno, Result, code},
    stubs::set_errno,
};

/// # Safety
/// `node` and `service` are null or C strings, `hints` null or a structure, `result` writable.
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: by contract.
    let hints = unsafe { hints.as_ref() };
    let mut wanted: addrinfo = {
        // SAFETY: integers and pointers, which may be zero.
        unsafe { std::mem::zeroed() }
    };
    let (mut flags, mut qp_type, mut space) = (0, 0, 0);
    if let Some(hints) = hints {
        (flags, qp_type, space) = (hints.ai_flags, hints.ai_qp_type, hints.ai_port_space);
        if flags & RAI_PASSIVE != 0 {
            wanted.ai_flags |= libc::AI_PASSIVE;
        }
        if flags & RAI_NUMERICHOST != 0 {
            wanted.ai_flags |= libc::AI_NUMERICHOST;
        }
        if flags & RAI_FAMILY != 0 {
            wanted.ai_family = hints.ai_family;
        }
    }
    let is_datagram = space == RDMA_PS_UDP as c_int || qp_type == IBV_QPT_UD as c_int;
    if node.is_null() && service.is_null() {
        // SAFETY: by contract.
        let made = unsafe { complete(hints, is_datagram) };
        return code(made.map(|made| {
            // SAFETY: by contract.
            unsafe { *result = made };
        }));
    }
    wanted.ai_socktype = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let mut found = ptr::null_mut();
    // SAFETY: by contract, and the rest are local variables.
    let failed = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut found) };
    if failed != 0 {
        if failed != libc::EAI_SYSTEM {
            set_errno(libc::EADDRNOTAVAIL);
        }
        return failed;
    }
    // SAFETY: getaddrinfo gives at least one.
    let made = unsafe { describe(&*found, (flags, is_datagram), hints) };
    // SAFETY: came from getaddrinfo, and everything was copied.
    unsafe { libc::freeaddrinfo(found) };
    code(made.map(|made| {
        // SAFETY: by contract.
        unsafe { *result = made };
    }))
}

/// What the hints say, without a name to look up.
///
/// # Safety
/// Lengths in the hints belong to their addresses.
unsafe fn complete(hints: Option<&rdma_addrinfo>, is_datagram: bool) -> Result<*mut rdma_addrinfo> {
    let hints = hints.ok_or(Errno(libc::EINVAL))?;
    let [src, dst] = [(hints.ai_src_addr, hints.ai_src_len), (hints.ai_dst_addr, hints.ai_dst_len)]
        .map(|(address, len)| {
            (!address.is_null() && len > 0).then_some((address.cast_const(), len))
        });
    let some = dst.or(src).ok_or(Errno(libc::EINVAL))?;
    if some.1 < size_of::<sa_family_t>() as u32 {
        return Err(Errno(libc::EINVAL));
    }
    let mut info = blank(hints.ai_flags, is_datagram, Some(hints));
    // SAFETY: by contract, and it has a family.
    unsafe {
        info.ai_family = (*some.0).sa_family.into();
        if let Some(src) = src {
            (info.ai_src_addr, info.ai_src_len) = (copy(src)?, src.1);
        }
        if let Some(dst) = dst {
            (info.ai_dst_addr, info.ai_dst_len) = (copy(dst)?, dst.1);
        }
    }
    Ok(Box::into_raw(Box::new(info)))
}

/// Without addresses.
fn blank(flags: c_int, is_datagram: bool, hints: Option<&rdma_addrinfo>) -> rdma_addrinfo {
    let mut info = rdma_addrinfo::zeroed();
    info.ai_flags = flags;
    let (space, qp_type) =
        if is_datagram { (RDMA_PS_UDP, IBV_QPT_UD) } else { (RDMA_PS_TCP, IBV_QPT_RC) };
    let or = |hint, default| if hint == 0 { default } else { hint };
    info.ai_port_space = or(hints.map_or(0, |hints| hints.ai_port_space), space as c_int);
    info.ai_qp_type = or(hints.map_or(0, |hints| hints.ai_qp_type), qp_type as c_int);
    info
}

/// # Safety
/// `found` came from getaddrinfo.
unsafe fn describe(
    found: &addrinfo,
    (flags, is_datagram): (c_int, bool),
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo> {
    let mut info = blank(flags, is_datagram, hints);
    info.ai_family = found.ai_family;
    let address = (found.ai_addr.cast_const(), found.ai_addrlen);
    // SAFETY: lengths belong to their addresses.
    unsafe {
        if flags & RAI_PASSIVE != 0 {
            info.ai_src_len = address.1;
            info.ai_src_addr = copy(address)?;
        } else {
            info.ai_dst_len = address.1;
            info.ai_dst_addr = copy(address)?;
            if let Some(hints) = hints.filter(|hints| !hints.ai_src_addr.is_null()) {
                info.ai_src_len = hints.ai_src_len;
                info.ai_src_addr = copy((hints.ai_src_addr, hints.ai_src_len))?;
            }
        }
    }
    Ok(Box::into_raw(Box::new(info)))
}

/// # Safety
/// The address has so many bytes.
unsafe fn copy((address, len): (*const sockaddr, u32)) -> Result<*mut sockaddr> {
    // SAFETY: by contract, and as much room as is copied.
    unsafe {
        let to = libc::malloc(len as usize).cast::<sockaddr>();
        if to.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        ptr::copy_nonoverlapping(address.cast::<u8>(), to.cast::<u8>(), len as usize);
        Ok(to)
    }
}

/// # Safety
/// `info` is null or came from [`rdma_getaddrinfo`].
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    if info.is_null() {
        return;
    }
    // SAFETY: by contract; the addresses came from malloc, or are null.
    unsafe {
        let info = Box::from_raw(info);
        libc::free(info.ai_src_addr.cast());
        libc::free(info.ai_dst_addr.cast());
    }
}
