//! Device memory: memory of the daemon that the program maps too, so that it copies without asking.

use std::{
    ffi::{c_int, c_uint, c_void},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process,
    ptr::{self, NonNull},
    sync::Arc,
};

use rnic_abi::{
    control::{Reply, Request},
    os::memory,
};
use verbs_abi::{IBV_DM_MASK_HANDLE, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::{
    context::Context,
    error::{Errno, Result, code, pointer},
    lkey_table::Region,
    mr::{Mr, access_flags, keys_of},
};

/// Work requests address it from 0 on: no alignment beyond that of a page means anything.
const MAX_LOG_ALIGN: u32 = 12;
/// Bytes of which offsets and lengths of copies are multiples.
const UNIT: u64 = 4;

/// Device memory. Programs hold the address of the `ibv_dm` inside.
#[repr(C)]
struct Dm {
    ibv: ibv_dm,
    map: Arc<Map>,
    /// The process that made it.
    pid: u32,
}

/// A mapping of a memory file.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is of the process, and its bytes are only copied, as peers copy them too.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file of the daemon that can hold no fewer bytes than these.
    fn new(file: &OwnedFd, len: usize) -> Result<Self> {
        memory::check_sealed(file.as_fd(), len as u64)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, flags) = (file.as_raw_fd(), libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, fd, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, len }),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// Where a range begins that may be copied: in units of four bytes, as cards have it.
    fn copied(&self, offset: u64, length: usize) -> Result<*mut u8> {
        if !offset.is_multiple_of(UNIT) || !(length as u64).is_multiple_of(UNIT) {
            return Err(Errno(libc::EINVAL));
        }
        self.locate(offset, length)
    }

    /// Where a range begins that is all inside.
    fn locate(&self, offset: u64, length: usize) -> Result<*mut u8> {
        let offset = usize::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
        if offset > self.len || length > self.len - offset {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: within the mapping.
        Ok(unsafe { self.start.as_ptr().add(offset) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made in `new`; the program has freed it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Makes device memory, zeroed. NULL and errno on failure.
///
/// # Safety
/// `ibv_context` is open, `attr` valid.
pub(crate) unsafe extern "C" fn alloc_dm(
    ibv_context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: by contract.
    let (context, attr) = unsafe { (Context::of(ibv_context), attr.read()) };
    pointer(allocate(context, &attr).map(|(handle, map)| {
        let map = Arc::new(map);
        // The handles of a forked child are of another session.
        if !context.session.is_forked_child() {
            context.shared.known().dms.insert(handle, Arc::clone(&map));
        }
        named(ibv_context, handle, map)
    }))
}

/// The device memory with this handle.
pub(crate) fn named(context: *mut ibv_context, handle: u32, map: Arc<Map>) -> *mut ibv_dm {
    let ibv = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle,
    };
    Box::into_raw(Box::new(Dm { ibv, map, pid: process::id() })).cast()
}

/// Frees device memory without giving back what its handle names.
///
/// # Safety
/// `dm` is from [`named`], and not used any more.
pub(crate) unsafe fn forget(dm: *mut ibv_dm) {
    // SAFETY: made by Box::into_raw in `named`.
    drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
}

fn allocate(context: &Context, attr: &ibv_alloc_dm_attr) -> Result<(u32, Map)> {
    if attr.length == 0 || attr.comp_mask != 0 || attr.log_align_req > MAX_LOG_ALIGN {
        return Err(Errno(libc::EINVAL));
    }
    let request = Request::AllocDm { length: attr.length as u64 };
    let session = context.session_here()?;
    let (handle, [file]) = session.call(&request, |reply, arrived| match reply {
        Reply::Handle(handle) => Some((handle, arrived.descriptors::<1>()?)),
        _ => None,
    })?;
    match Map::new(&file, attr.length) {
        Ok(map) => Ok((handle, map)),
        Err(error) => {
            session.dispose(&Request::FreeDm { dm: handle })?;
            Err(error)
        }
    }
}

/// Gives device memory back. EBUSY while regions are registered in it.
///
/// # Safety
/// `dm` is from [`alloc_dm`].
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: by contract.
    let (context, handle, pid) =
        unsafe { (Context::of((*dm).context), (*dm).handle, (*dm.cast::<Dm>()).pid) };
    // A forked child frees its copy of what its parent made.
    let result = if pid == process::id() { give_back(context, handle) } else { Ok(()) };
    if result.is_ok() {
        // SAFETY: by contract.
        unsafe { forget(dm) };
    }
    code(result)
}

fn give_back(context: &Context, handle: u32) -> Result<()> {
    let request = Request::FreeDm { dm: handle };
    if context.session.is_forked_child() {
        return context.session_here()?.dispose(&request);
    }
    context.shared.dispose(&context.session, &request, handle, |known| &mut known.dms)
}

/// # Safety
/// `dm` is from [`alloc_dm`]; `from` is readable for `length` bytes.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: by contract.
    let map = unsafe { &(*dm.cast::<Dm>()).map };
    // SAFETY: as many bytes on both sides; peers may write to it meanwhile, as to all such memory.
    code(map.copied(offset, length).map(|to| unsafe { ptr::copy(from.cast(), to, length) }))
}

/// # Safety
/// `dm` is from [`alloc_dm`]; `to` is writable for `length` bytes.
unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: by contract.
    let map = unsafe { &(*dm.cast::<Dm>()).map };
    // SAFETY: as above.
    code(map.copied(offset, length).map(|from| unsafe { ptr::copy(from, to.cast(), length) }))
}

/// Registers a part of device memory, which work requests address from 0 on. NULL and errno on
/// failure.
///
/// # Safety
/// `pd` and `dm` are objects of one context.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: by contract.
    let (ibv_context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: by contract.
    let (context, object) = unsafe { (Context::of(ibv_context), &*dm.cast::<Dm>()) };
    let register = || {
        let access = access_flags(access)?;
        let address = object.map.locate(offset, length)?.addr() as u64;
        let (dm, length) = (object.ibv.handle, length as u64);
        let request = Request::RegDmMr { pd: pd_handle, dm, offset, length, access };
        let (handle, lkey, rkey) = context.session.call(&request, keys_of)?;
        context.mrs.insert(lkey, Region { iova: 0, length, address });
        Ok((handle, lkey, rkey))
    };
    pointer(register().map(|(handle, lkey, rkey)| {
        let addr = ptr::null_mut();
        let ibv = ibv_mr { context: ibv_context, pd, addr, length, handle, lkey, rkey };
        Mr::leak(context, ibv, pd_handle, 0, None)
    }))
}
