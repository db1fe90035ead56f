//! The GID and P_Key tables.

use std::ffi::c_int;

use rnic_abi::control::{GidEntry, Reply, Request};
use verbs_abi::{
    IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2, be16,
    ibv_context, ibv_gid, ibv_gid_entry, ibv_gid_type_sysfs,
};

use crate::{
    context::Context,
    error::{Errno, Result, code, zero_or_minus_one},
    query::port_info,
};

const PORT: u32 = 1;
/// The one P_Key of a RoCE port.
const DEFAULT_PKEY: u16 = 0xffff;

fn used_from(context: &Context, start: u32) -> Result<Vec<GidEntry>> {
    context.session.call(&Request::QueryGids { start }, |reply, _| match reply {
        Reply::Gids(entries) => Some(entries),
        _ => None,
    })
}

/// All used entries.
fn used(context: &Context) -> Result<Vec<GidEntry>> {
    let mut all: Vec<GidEntry> = Vec::new();
    loop {
        let start = match all.last() {
            None => 0,
            Some(last) => last.index.checked_add(1).ok_or(Errno(libc::EPROTO))?,
        };
        let more = used_from(context, start)?;
        if more.is_empty() {
            return Ok(all);
        }
        if more[0].index < start || !more.is_sorted_by_key(|entry| entry.index) {
            return Err(Errno(libc::EPROTO));
        }
        all.extend(more);
    }
}

/// One entry: ENODATA when it is not used, EINVAL when there is none of that number.
fn entry(context: &Context, port: u32, index: u32) -> Result<GidEntry> {
    if port != PORT {
        return Err(Errno(libc::EINVAL));
    }
    match used_from(context, index)?.first() {
        Some(entry) if entry.index == index => Ok(*entry),
        _ if index < port_info(context)?.gid_table_len => Err(Errno(libc::ENODATA)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Index of one of our GIDs.
pub(crate) fn index_of(context: &Context, gid: &[u8; 16]) -> Result<u8> {
    let found = used(context)?.into_iter().find(|entry| entry.gid == *gid);
    let index = found.ok_or(Errno(libc::EADDRNOTAVAIL))?.index;
    u8::try_from(index).map_err(|_| Errno(libc::EADDRNOTAVAIL))
}

fn described(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid },
        gid_index: entry.index,
        port_num: PORT,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.ifindex,
    }
}

/// Writes as many bytes of an entry as the caller's structure has, and zeroes the part that we do
/// not know.
///
/// # Safety
/// `to` has `size` writable bytes.
unsafe fn write_entry(to: *mut u8, size: usize, entry: &ibv_gid_entry) {
    let known = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: by contract.
    unsafe {
        to.write_bytes(0, size);
        to.copy_from_nonoverlapping(std::ptr::from_ref(entry).cast(), known);
    }
}

/// Reads a GID; all zero where the table has none. -1 and errno on failure.
///
/// # Safety
/// `context` is open and `gid` is writable.
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    // SAFETY: by contract.
    let found = match entry(unsafe { Context::of(context) }, port_num.into(), index) {
        Ok(entry) => Ok(ibv_gid { raw: entry.gid }),
        Err(Errno(libc::ENODATA)) => Ok(ibv_gid::default()),
        Err(error) => Err(error),
    };
    // SAFETY: writable by contract.
    zero_or_minus_one(found.map(|found| unsafe { gid.write(found) }))
}

/// Reads a GID's type in the numbering of attribute files. -1 and errno on failure.
///
/// # Safety
/// `context` is open and `gid_type` is writable.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    gid_type: *mut ibv_gid_type_sysfs,
) -> c_int {
    // SAFETY: by contract.
    let found = match entry(unsafe { Context::of(context) }, port_num.into(), index) {
        Ok(_) => Ok(IBV_GID_TYPE_SYSFS_ROCE_V2),
        Err(Errno(libc::ENODATA)) => Ok(IBV_GID_TYPE_SYSFS_IB_ROCE_V1),
        Err(error) => Err(error),
    };
    // SAFETY: writable by contract.
    zero_or_minus_one(found.map(|found| unsafe { gid_type.write(found) }))
}

/// Reads a GID table entry; ENODATA when it is not used.
///
/// # Safety
/// `context` is open and `to` has `entry_size` writable bytes.
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    if flags != 0 {
        return code(Err(Errno(libc::EOPNOTSUPP)));
    }
    // SAFETY: by contract.
    let found = entry(unsafe { Context::of(context) }, port_num, gid_index);
    // SAFETY: by contract.
    code(found.map(|entry| unsafe { write_entry(to.cast(), entry_size, &described(&entry)) }))
}

/// Reads all used entries. Returns their number or a negative errno value; EINVAL when they do not
/// fit.
///
/// # Safety
/// `context` is open and `entries` has room for `max_entries` of `entry_size` bytes.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let negative = |errno: c_int| -(errno as isize);
    if flags != 0 {
        return negative(libc::EOPNOTSUPP);
    }
    // SAFETY: by contract.
    let found = match used(unsafe { Context::of(context) }) {
        Ok(found) if found.len() <= max_entries => found,
        Ok(_) => return negative(libc::EINVAL),
        Err(Errno(errno)) => return negative(errno),
    };
    for (at, entry) in found.iter().enumerate() {
        // SAFETY: `at` is below `max_entries`.
        unsafe {
            let to = entries.cast::<u8>().add(at * entry_size);
            write_entry(to, entry_size, &described(entry));
        }
    }
    found.len().cast_signed()
}

/// Reads a P_Key in network byte order. -1 and errno on failure.
///
/// # Safety
/// `context` is open and `pkey` is writable.
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut be16,
) -> c_int {
    let found = if u32::from(port_num) == PORT && index == 0 {
        Ok(DEFAULT_PKEY.to_be())
    } else {
        Err(Errno(libc::EINVAL))
    };
    // SAFETY: writable by contract.
    zero_or_minus_one(found.map(|found| unsafe { pkey.write(found) }))
}

/// Index of a P_Key given in network byte order, or -1.
pub(crate) extern "C" fn ibv_get_pkey_index(
    _context: *mut ibv_context,
    port_num: u8,
    pkey: be16,
) -> c_int {
    if u32::from(port_num) == PORT && pkey == DEFAULT_PKEY.to_be() { 0 } else { -1 }
}
