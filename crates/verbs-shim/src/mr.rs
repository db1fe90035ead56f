//! Memory regions.

use std::{
    ffi::{c_int, c_uint, c_void},
    os::fd::{AsFd, FromRawFd, OwnedFd},
    ptr,
    sync::Arc,
};

use rnic_abi::{
    control::{Reply, Request},
    os::Descriptor,
    verbs::AccessFlags,
};
use verbs_abi::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD,
    IBV_REREG_MR_ERR_INPUT, IBV_REREG_MR_FLAGS_SUPPORTED, ibv_mr, ibv_pd, own_verbs,
};

use crate::{
    context::Context,
    error::{Errno, Result, code, pointer},
    import::KnownMr,
    lkey_table::{LkeyTable, Region},
    session::{Arrived, Session},
    shared_memory::{Held, Memory},
    stubs::set_errno,
};

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    ibv: ibv_mr,
    /// Handle of its protection domain. The public part may name a parent domain that is gone.
    pd: u32,
    /// The address of its first byte in work requests.
    iova: u64,
    /// Must last as long as the daemon may access the memory.
    held: Option<Held>,
}

impl Mr {
    /// A new region in the protection domain `pd` that begins at `iova` in work requests; freed by
    /// [`ibv_dereg_mr`].
    pub(crate) fn leak(
        context: &Context,
        ibv: ibv_mr,
        pd: u32,
        iova: u64,
        held: Option<Held>,
    ) -> *mut ibv_mr {
        let region = Box::new(Self { ibv, pd, iova, held });
        region.tell(context);
        Box::into_raw(region).cast()
    }

    /// A region that is known already.
    pub(crate) fn named(ibv: ibv_mr, pd: u32, iova: u64, held: Option<Held>) -> *mut ibv_mr {
        Box::into_raw(Box::new(Self { ibv, pd, iova, held })).cast()
    }

    /// Notes what can be imported.
    fn tell(&self, context: &Context) {
        let Self { ibv: ibv_mr { length, handle, lkey, rkey, .. }, pd, iova, .. } = *self;
        context.shared.known().mrs.insert(handle, KnownMr { pd, iova, length, lkey, rkey });
    }

    /// Handle of the protection domain of a region.
    ///
    /// # Safety
    /// `mr` is from one of the registering calls.
    pub(crate) unsafe fn domain_of(mr: *const ibv_mr) -> u32 {
        // SAFETY: by contract.
        unsafe { (*mr.cast::<Self>()).pd }
    }
}

/// Converts the access flags. Unknown optional flags are ignored, other unknown flags are refused.
pub(crate) fn access_flags(access: c_uint) -> Result<AccessFlags> {
    let known = access & AccessFlags::all().bits();
    if access & !known & !IBV_ACCESS_OPTIONAL_RANGE != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(AccessFlags::from_bits_truncate(known))
}

pub(crate) fn keys_of(reply: Reply, _: Arrived<'_>) -> Option<(u32, u32, u32)> {
    match reply {
        Reply::Mr { mr, lkey, rkey } => Some((mr, lkey, rkey)),
        _ => None,
    }
}

/// Asks for a registration of `memory`, or, when the daemon does not accept its file, of what
/// `instead` returns.
fn request_keys(
    session: &Session,
    request: impl Fn(u64) -> Request,
    memory: Memory,
    instead: impl FnOnce() -> Memory,
) -> Result<((u32, u32, u32), Option<Held>)> {
    let memory = match memory {
        Memory::File { file, offset } => {
            // Found a moment ago: only another thread of the program can have closed it since.
            let file = file.get().ok_or(Errno(libc::EBADF))?;
            match session.call_with(&request(offset), &[file.as_fd()], keys_of) {
                Ok(keys) => return Ok((keys, None)),
                Err(_) if !session.is_gone() => instead(),
                Err(error) => return Err(error),
            }
        }
        ordinary @ Memory::Ordinary(_) => ordinary,
    };
    Ok((session.call(&request(0), keys_of)?, memory.into_held()))
}

/// # Safety
/// `pd` is from `ibv_alloc_pd`.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr> {
    let memory = Memory::of(addr.addr(), length, access_flags(access)?);
    let instead = || Memory::without_file(addr.addr(), length);
    // SAFETY: by contract.
    unsafe { register_as(pd, (addr, length, iova), access, memory, instead) }
}

/// Registers memory of which it is known what it is.
///
/// # Safety
/// As [`register`].
unsafe fn register_as(
    pd: *mut ibv_pd,
    (addr, length, iova): (*mut c_void, usize, u64),
    access: c_uint,
    memory: Memory,
    instead: impl FnOnce() -> Memory,
) -> Result<*mut ibv_mr> {
    // SAFETY: by contract.
    let (ibv_context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: by contract.
    let context = unsafe { Context::of(ibv_context) };
    let iova = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    let access = access_flags(access)?;
    let request = |fd_offset| Request::RegMr {
        pd: pd_handle,
        addr: addr.addr() as u64,
        length: length as u64,
        iova,
        access,
        fd_offset,
    };
    let ((handle, lkey, rkey), held) = request_keys(&context.session, request, memory, instead)?;
    let region = Region { iova, length: length as u64, address: addr.addr() as u64 };
    context.table_for(access).insert(lkey, region);
    let ibv = ibv_mr { context: ibv_context, pd, addr, length, handle, lkey, rkey };
    Ok(Mr::leak(context, ibv, pd_handle, iova, held))
}

/// Registers memory. NULL and errno on failure. `SIZE_MAX` bytes from address 0 on, on demand, are
/// the whole address space.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`. The memory need not exist: what is not there fails when it is used.
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: by contract.
    pointer(unsafe { register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) })
}

/// Registers memory that is a mapping of a file, for our librdmacm: what is written there is copied
/// by the daemon without system calls, whatever the user has asked for.
///
/// # Safety
/// As [`ibv_reg_mr`]; `file` is the caller's no more.
unsafe extern "C" fn reg_file_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    file: c_int,
) -> *mut ibv_mr {
    // SAFETY: by contract.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let made = Descriptor::new(file).map_err(Errno::from).and_then(|file| {
        let memory = Memory::File { file: Arc::new(file), offset: 0 };
        let instead = || Memory::Ordinary(Memory::hold(addr.addr(), length));
        let range = (addr, length, addr.addr() as u64);
        // SAFETY: by contract.
        unsafe { register_as(pd, range, access.cast_unsigned(), memory, instead) }
    });
    pointer(made)
}

/// What our librdmacm finds here.
pub(crate) static OWN: own_verbs = own_verbs { reg_file_mr };

/// Registers every address for local use: reads give zeros, and what is written vanishes. NULL and
/// errno on failure.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: by contract.
    let (context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: by contract.
    let open = unsafe { Context::of(context) };
    let made = open.session.call(&Request::RegNullMr { pd: pd_handle }, keys_of);
    pointer(made.map(|(handle, lkey, rkey)| {
        let (addr, length) = (ptr::null_mut(), usize::MAX);
        let ibv = ibv_mr { context, pd, addr, length, handle, lkey, rkey };
        Mr::leak(open, ibv, pd_handle, 0, None)
    }))
}

/// Registers memory that work requests address from `iova` on. NULL and errno on failure.
///
/// # Safety
/// As [`ibv_reg_mr`].
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: by contract.
    pointer(unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
}

/// As [`ibv_reg_mr_iova`], also called by the macro `ibv_reg_mr` when optional rights are asked
/// for.
///
/// # Safety
/// As [`ibv_reg_mr`].
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: by contract.
    pointer(unsafe { register(pd, addr, length, iova, access) })
}

/// Takes a region out of its table before the engine changes it, so that another thread's post does
/// not copy from memory that is registered no more. What has arrived for it is there then.
fn hide(context: &Context, lkey: u32) -> (&LkeyTable, Option<Region>) {
    let table = context.table_of(lkey);
    // Regions without memory are in no table.
    let known = table.find_settled(lkey);
    if known.is_some() {
        context.settle_completions();
    }
    table.remove(lkey);
    (table, known)
}

/// Ends a registration: after it returns, the daemon does not access the memory any more.
///
/// # Safety
/// `mr` is from one of the registering calls.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: by contract.
    let (context, handle, lkey) = unsafe { (Context::of((*mr).context), (*mr).handle, (*mr).lkey) };
    if context.session.is_forked_child() {
        // SAFETY: made by Box::into_raw in `register`.
        drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        return 0;
    }
    let (table, known) = hide(context, lkey);
    let request = Request::DeregMr { mr: handle };
    let result = context.shared.dispose(&context.session, &request, handle, |known| &mut known.mrs);
    match (result, known) {
        (Ok(()), _) => {
            // SAFETY: made by Box::into_raw in `leak` or `named`.
            drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        }
        (Err(_), Some(region)) => table.insert(lkey, region),
        (Err(_), None) => {}
    }
    code(result)
}

/// Changes a registration. 0, or one of `IBV_REREG_MR_ERR_*`, with errno.
///
/// # Safety
/// `mr` is from one of the registering calls; `pd` is valid when it counts.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let changes_pd = flags & IBV_REREG_MR_CHANGE_PD != 0;
    let changes_access = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || flags == 0
        || (moves && (addr.is_null() || length == 0))
        || (changes_pd && pd.is_null())
        || (!changes_access && access != 0)
    {
        set_errno(libc::EINVAL);
        return IBV_REREG_MR_ERR_INPUT;
    }
    let Ok(new_access) = access_flags(access.cast_unsigned()) else {
        set_errno(libc::EOPNOTSUPP);
        return IBV_REREG_MR_ERR_INPUT;
    };
    // SAFETY: by contract; no other thread uses the region while it is changed.
    let object = unsafe { &mut *mr.cast::<Mr>() };
    let start = addr.addr() as u64;
    // SAFETY: not null when it counts, and valid by contract.
    let pd_handle = changes_pd.then(|| unsafe { (*pd).handle });
    let request = Request::ReregMr {
        mr: object.ibv.handle,
        pd: pd_handle,
        range: moves.then_some((start, length as u64, start)),
        access: changes_access.then_some(new_access),
    };
    // SAFETY: by contract.
    let context = unsafe { Context::of(object.ibv.context) };
    let (old, known) = hide(context, object.ibv.lkey);
    let held = if moves { Memory::hold(addr.addr(), length) } else { None };
    let result = context.session.call(&request, keys_of);
    if let Ok((handle, lkey, rkey)) = result {
        (object.ibv.handle, object.ibv.lkey, object.ibv.rkey) = (handle, lkey, rkey);
        if let Some(handle) = pd_handle {
            (object.ibv.pd, object.pd) = (pd, handle);
        }
        if moves {
            (object.ibv.addr, object.ibv.length, object.iova) = (addr, length, start);
            object.held = held;
        }
        object.tell(context);
    }
    let table = match result {
        Ok(_) if changes_access => context.table_for(new_access),
        _ => old,
    };
    let moved = Region { iova: start, length: length as u64, address: start };
    if let Some(region) = known {
        let is = if moves && result.is_ok() { moved } else { region };
        table.insert(object.ibv.lkey, is);
    }
    match result {
        Ok(_) => 0,
        Err(Errno(errno)) => {
            set_errno(errno);
            IBV_REREG_MR_ERR_CMD
        }
    }
}
