//! Importing: a second name for a context, or for an object of it, in the same process.
//!
//! A program finds a context by a duplicate of its `cmd_fd`, and an object by its handle. Another
//! process to which it sends the descriptor can import nothing: the daemon reaches the memory of
//! the process that connected, and no other.

use std::{
    collections::HashMap,
    ffi::c_int,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use rnic_abi::{
    control::Request,
    os::{Descriptor, Inode, OfProcess},
};
use verbs_abi::{ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::{
    context::Context,
    device_memory::{self, Map},
    error::{Errno, Result, pointer},
    mr::Mr,
    pd,
    session::Session,
};

/// What is known of a region by its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownMr {
    /// Handle of its protection domain.
    pub(crate) pd: u32,
    pub(crate) iova: u64,
    pub(crate) length: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// What can be imported from a context, by handle.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) pds: HashMap<u32, ()>,
    pub(crate) mrs: HashMap<u32, KnownMr>,
    pub(crate) dms: HashMap<u32, Arc<Map>>,
}

/// The part of a context that importing needs.
pub(crate) struct Shared {
    known: Mutex<Known>,
    /// Times that it was opened or imported, and not closed yet.
    holders: AtomicU32,
    /// Duplicates of its descriptor that importing took.
    taken: Mutex<Vec<Descriptor<OwnedFd>>>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self { known: Mutex::default(), holders: AtomicU32::new(1), taken: Mutex::default() }
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for importing. A forked child can use no object of its parent, whose other threads
    /// may have held the lock during the fork.
    fn importable(&self, session: &Session) -> Option<MutexGuard<'_, Known>> {
        (!session.is_forked_child()).then(|| self.known())
    }

    /// Has the daemon destroy what this handle of a table names. It is forgotten before the daemon
    /// can give the handle to another object, and known again when the daemon refuses.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub(crate) fn dispose<T>(
        &self,
        session: &Session,
        request: &Request,
        handle: u32,
        table: fn(&mut Known) -> &mut HashMap<u32, T>,
    ) -> Result<()> {
        let known = table(&mut self.known()).remove(&handle);
        let result = session.dispose(request);
        if let (Err(_), Some(known)) = (result, known) {
            table(&mut self.known()).insert(handle, known);
        }
        result
    }

    /// One holder closes it: true for the last one.
    fn leave(&self) -> bool {
        self.holders.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A context that is open.
pub(crate) struct Open {
    socket: Inode,
    /// Its `cmd_fd`. The session knows it too, behind a lock that it holds during calls.
    number: RawFd,
    context: *const Context,
}

// SAFETY: the pointer is only followed under the mutex, from which closing removes it first.
unsafe impl Send for Open {}

/// What is open in this process. A forked child begins with nothing, and may free what it inherits.
pub(crate) static OPEN: OfProcess<Vec<Open>> = OfProcess::new();

/// A context was opened.
pub(crate) fn note_opened(context: &Context) {
    let (number, socket) = context.session.socket();
    OPEN.lock().push(Open { socket, number, context });
}

/// A program closes a context: true when nothing else holds it, so that it goes.
pub(crate) fn note_closed(context: &Context) -> bool {
    // Another thread of the parent may have held the lock of what it imported during the fork.
    if context.session.is_forked_child() {
        return context.shared.leave();
    }
    let mut open = OPEN.lock();
    let is_last = context.shared.leave();
    if is_last {
        open.retain(|other| !ptr::eq(other.context, context));
    } else {
        let taken = &context.shared.taken;
        drop(taken.lock().unwrap_or_else(PoisonError::into_inner).pop());
    }
    is_last
}

fn import(cmd_fd: c_int) -> Result<*mut ibv_context> {
    let socket = Inode::of(cmd_fd)?;
    let open = OPEN.lock();
    let found = open.iter().find(|open| open.socket == socket).ok_or(Errno(libc::EOPNOTSUPP))?;
    if found.number == cmd_fd {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: open in this process, and it cannot be closed meanwhile.
    let context = unsafe { &*found.context };
    // SAFETY: an open descriptor, as its inode shows, which the program gives away.
    let taken = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
    let taken = Descriptor::new(taken)?;
    context.shared.taken.lock().unwrap_or_else(PoisonError::into_inner).push(taken);
    context.shared.holders.fetch_add(1, Ordering::AcqRel);
    Ok(context.as_ibv())
}

/// Gives the context whose `cmd_fd` was duplicated, for one more `ibv_close_device`, and takes the
/// duplicate. NULL and errno on failure: EOPNOTSUPP when this process has no such context open,
/// EINVAL for the descriptor of the context itself.
pub(crate) extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(import(cmd_fd))
}

const UNKNOWN: Errno = Errno(libc::ENOENT);

/// Looks for what can be imported.
///
/// # Safety
/// `context` is open.
unsafe fn find<T>(context: *mut ibv_context, look: impl FnOnce(&Known) -> Option<T>) -> Option<T> {
    // SAFETY: by contract.
    let context = unsafe { Context::of(context) };
    look(&*context.shared.importable(&context.session)?)
}

/// Gives another name to a protection domain. NULL and errno on failure: ENOENT when the context
/// has no such handle.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    pd_handle: u32,
) -> *mut ibv_pd {
    // SAFETY: by contract.
    let is_known = unsafe { find(context, |known| known.pds.get(&pd_handle).copied()) };
    pointer(is_known.map(|()| pd::named(context, pd_handle)).ok_or(UNKNOWN))
}

/// Forgets such a name: the protection domain stays.
///
/// # Safety
/// `pd` is from [`ibv_import_pd`], and not used any more.
pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: by contract.
    unsafe { pd::forget(pd) };
}

/// Gives another name to a region of this protection domain, without its address. NULL and errno
/// on failure: ENOENT when there is no such handle, EINVAL when its domain is another.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd` or [`ibv_import_pd`].
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    // SAFETY: by contract.
    let (context, domain) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: by contract.
    let found = unsafe { find(context, |known| known.mrs.get(&mr_handle).copied()) };
    let of_domain = |mr: KnownMr| (mr.pd == domain).then_some(mr).ok_or(Errno(libc::EINVAL));
    pointer(found.ok_or(UNKNOWN).and_then(of_domain).map(|known| {
        let KnownMr { iova, length, lkey, rkey, .. } = known;
        let addr = ptr::null_mut();
        let ibv = ibv_mr { context, pd, addr, length, handle: mr_handle, lkey, rkey };
        Mr::named(ibv, domain, iova, None)
    }))
}

/// Forgets such a name: the region stays.
///
/// # Safety
/// `mr` is from [`ibv_import_mr`], and not used any more.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: made by Box::into_raw in `Mr::named`.
    drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
}

/// Gives another name to device memory. NULL and errno on failure: ENOENT when the context has no
/// such handle.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> *mut ibv_dm {
    // SAFETY: by contract.
    let map = unsafe { find(context, |known| known.dms.get(&dm_handle).cloned()) };
    pointer(map.map(|map| device_memory::named(context, dm_handle, map)).ok_or(UNKNOWN))
}

/// Forgets such a name: the device memory stays.
///
/// # Safety
/// `dm` is from [`ibv_import_dm`], and not used any more.
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: by contract.
    unsafe { device_memory::forget(dm) };
}
