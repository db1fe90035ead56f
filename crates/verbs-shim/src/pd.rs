//! Protection domains, thread domains, and parent domains, which name one of each.
//!
//! A parent domain has the handle of its protection domain, so that every verb takes either. Queues
//! live in memory that the daemon makes: an allocator that a program gives is never needed.

use std::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use rnic_abi::control::Request;
use verbs_abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};

use crate::{
    context::Context,
    error::{Errno, Result, code, pointer},
};

/// A protection domain or a parent domain.
#[repr(C)]
struct Pd {
    ibv: ibv_pd,
    /// What a parent domain names; null for a protection domain.
    of: *mut Pd,
    /// The thread domain that a parent domain names, or null.
    td: *mut Td,
    /// Parent domains that name it.
    parents: AtomicU32,
}

/// A thread domain: a promise that no two threads use its queues at the same time. Ours need none.
#[repr(C)]
struct Td {
    ibv: ibv_td,
    /// Parent domains that name it.
    parents: AtomicU32,
}

const BUSY: Errno = Errno(libc::EBUSY);
const INVALID: Errno = Errno(libc::EINVAL);

/// Makes a protection domain. NULL and errno on failure.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: by contract.
    let open = unsafe { Context::of(context) };
    pointer(open.session.handle(&Request::AllocPd).map(|handle| {
        open.shared.known().pds.insert(handle, ());
        named(context, handle)
    }))
}

/// The protection domain with this handle.
pub(crate) fn named(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    new(context, handle, (ptr::null_mut(), ptr::null_mut()))
}

/// Frees a protection domain without destroying what its handle names.
///
/// # Safety
/// `pd` is from [`named`], and not used any more.
pub(crate) unsafe fn forget(pd: *mut ibv_pd) {
    // SAFETY: made by Box::into_raw in `new`.
    drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
}

fn new(context: *mut ibv_context, handle: u32, (of, td): (*mut Pd, *mut Td)) -> *mut ibv_pd {
    let ibv = ibv_pd { context, handle };
    Box::into_raw(Box::new(Pd { ibv, of, td, parents: AtomicU32::new(0) })).cast()
}

/// Destroys a protection domain or a parent domain; EBUSY while something belongs to it.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd` or [`alloc_parent_domain`].
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: by contract.
    let (context, pd) = unsafe { (Context::of((*pd).context), pd.cast::<Pd>()) };
    // SAFETY: by contract.
    let result = unsafe { dispose(context, &*pd) };
    if result.is_ok() {
        // SAFETY: made by Box::into_raw above.
        drop(unsafe { Box::from_raw(pd) });
    }
    code(result)
}

/// # Safety
/// What a parent domain names is alive, as its count of parent domains sees to.
unsafe fn dispose(context: &Context, pd: &Pd) -> Result<()> {
    if pd.parents.load(Ordering::Acquire) > 0 {
        return Err(BUSY);
    }
    // SAFETY: by contract.
    let Some(of) = (unsafe { pd.of.as_ref() }) else {
        let handle = pd.ibv.handle;
        if context.session.is_forked_child() {
            return Ok(());
        }
        let request = Request::DeallocPd { pd: handle };
        return context.shared.dispose(&context.session, &request, handle, |known| &mut known.pds);
    };
    // Queues hold its address, which programs may follow. A forked child has its parent's copies of
    // both, and maybe a lock that no thread releases.
    let is_child = context.session.is_forked_child();
    if !is_child && context.objects.lock().has_queue_of(&raw const pd.ibv) {
        return Err(BUSY);
    }
    of.parents.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: by contract.
    if let Some(td) = unsafe { pd.td.as_ref() } {
        td.parents.fetch_sub(1, Ordering::AcqRel);
    }
    Ok(())
}

/// Whether this is a parent domain.
///
/// # Safety
/// `pd` is null, or from `ibv_alloc_pd` or [`alloc_parent_domain`].
pub(crate) unsafe fn is_parent_domain(pd: *mut ibv_pd) -> bool {
    // SAFETY: by contract.
    unsafe { pd.cast::<Pd>().as_ref() }.is_some_and(|pd| !pd.of.is_null())
}

/// Makes a parent domain. NULL and errno on failure.
///
/// # Safety
/// `context` is open, and what `attr` names belongs to it.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // SAFETY: by contract.
    let attr = unsafe { &*attr };
    let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
    let half = allocators && (attr.alloc.is_none() || attr.free.is_none());
    // SAFETY: by contract.
    if attr.comp_mask & !known != 0 || half || unsafe { is_parent_domain(attr.pd) } {
        return pointer(Err(INVALID));
    }
    let (pd, td) = (attr.pd.cast::<Pd>(), attr.td.cast::<Td>());
    // SAFETY: by contract.
    let (Some(of), thread) = (unsafe { (pd.as_ref(), td.as_ref()) }) else {
        return pointer(Err(INVALID));
    };
    of.parents.fetch_add(1, Ordering::AcqRel);
    if let Some(thread) = thread {
        thread.parents.fetch_add(1, Ordering::AcqRel);
    }
    new(context, of.ibv.handle, (pd, td))
}

/// Makes a thread domain. NULL and errno on failure.
///
/// # Safety
/// `context` is open and `attr` a valid description.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: by contract.
    if unsafe { (*attr).comp_mask } != 0 {
        return pointer(Err(INVALID));
    }
    let td = Td { ibv: ibv_td { context }, parents: AtomicU32::new(0) };
    Box::into_raw(Box::new(td)).cast()
}

/// Destroys a thread domain; EBUSY while a parent domain names it.
///
/// # Safety
/// `td` is from [`alloc_td`].
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let td = td.cast::<Td>();
    // SAFETY: by contract.
    if unsafe { (*td).parents.load(Ordering::Acquire) } > 0 {
        return code(Err(BUSY));
    }
    // SAFETY: made by Box::into_raw in `alloc_td`.
    drop(unsafe { Box::from_raw(td) });
    0
}
