//! Shared receive queues.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use rnic_abi::control::{QueuePlace, Reply, Request};
use verbs_abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQT_BASIC, IBV_SRQT_XRC, Zeroed, ibv_context, ibv_cq, ibv_pd, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd,
};

use crate::{
    context::Context,
    cq::Cq,
    error::{Errno, Result, code, pointer},
    objects::wait_for_acks,
    queue::{Role, WorkQueue},
    xrc,
};

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    ibv: UnsafeCell<ibv_srq>,
    pub(crate) context: *const Context,
    pub(crate) handle: u32,
    pub(crate) queue: WorkQueue,
    pub(crate) max_sge: u32,
    srqn: u32,
    /// XRC: where its receives complete, else null.
    cq: *mut ibv_cq,
    /// Async events that the program was given.
    pub(crate) events_given: AtomicU32,
}

// SAFETY: the public part is changed by programs under their own rules; the rest is atomics and
// locks.
unsafe impl Sync for Srq {}

impl Srq {
    /// # Safety
    /// `pd` is valid, and so is what `attr` points to where its mask says that it counts.
    unsafe fn create(
        context: &Context,
        pd: *mut ibv_pd,
        attr: &mut ibv_srq_init_attr_ex,
        xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
    ) -> Result<*mut ibv_srq> {
        let cq = xrc.map_or(ptr::null_mut(), |(_, cq)| cq);
        let request = Request::CreateSrq {
            // SAFETY: by contract.
            pd: unsafe { (*pd).handle },
            max_wr: attr.attr.max_wr,
            max_sge: attr.attr.max_sge,
            limit: 0,
            // SAFETY: both are valid by contract.
            xrc: xrc.map(|(xrcd, cq)| unsafe { (xrc::handle_of(xrcd), (*cq).handle) }),
        };
        let _records = context.objects.keep_records();
        let mut objects = context.objects.lock();
        let (handle, place, words, max_wr, max_sge, srqn) =
            context.session.call(&request, |reply, mut arrived| {
                let Reply::Srq { srq, queue, max_wr, max_sge, srqn } = reply else { return None };
                let words = arrived.ring(&queue.ring)?;
                Some((srq, QueuePlace { ..queue }, words, max_wr, max_sge, srqn))
            })?;
        let queue =
            WorkQueue::new(words, &place, max_wr, Role::Shared).ok_or(Errno(libc::EPROTO))?;
        (attr.attr.max_wr, attr.attr.max_sge) = (max_wr, max_sge);
        let mut ibv = ibv_srq::zeroed();
        ibv.context = context.as_ibv();
        ibv.srq_context = attr.srq_context;
        ibv.pd = pd;
        ibv.handle = handle;
        let ibv = UnsafeCell::new(ibv);
        let events_given = AtomicU32::new(0);
        let srq = Box::new(Self { ibv, context, handle, queue, max_sge, srqn, cq, events_given });
        let srq = Box::into_raw(srq);
        // SAFETY: made above, and from here on only shared.
        context.records.set(place.record.value(), unsafe { &(*srq).queue });
        objects.srqs.insert(handle, srq);
        Ok(srq.cast())
    }

    /// The domain that it was made with.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        // SAFETY: set at creation.
        unsafe { (*self.ibv.get()).pd }
    }

    pub(crate) fn events_acked(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of a live object that the library only accesses atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.ibv.get()).events_completed) }
    }

    fn destroy(&self) -> Result<()> {
        let context = self.context();
        if context.session.is_forked_child() {
            return Ok(());
        }
        let records = context.objects.keep_records();
        let mut objects = context.objects.lock();
        context.session.dispose(&Request::DestroySrq { srq: self.handle()? })?;
        objects.srqs.remove(&self.handle);
        drop(objects);
        if !self.cq.is_null() {
            // SAFETY: a CQ outlives the shared receive queues that use it.
            unsafe { Cq::of(self.cq) }.forget_srq(self.queue.record.value());
        }
        context.records.clear(self.queue.record.value(), &self.queue);
        drop(records);
        let given = self.events_given.load(Ordering::Acquire);
        wait_for_acks(|| self.events_acked().load(Ordering::Acquire), given);
        Ok(())
    }
}

/// Makes a shared receive queue and writes back what was granted. NULL and errno on failure.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`; `attr` is a valid description.
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: by contract.
    let (context, attr) = unsafe { (Context::of((*pd).context), &mut *attr) };
    let mut extended = ibv_srq_init_attr_ex::zeroed();
    extended.srq_context = attr.srq_context;
    extended.attr = attr.attr;
    // SAFETY: by contract.
    let srq = unsafe { Srq::create(context, pd, &mut extended, None) };
    attr.attr = extended.attr;
    pointer(srq)
}

/// As [`ibv_create_srq`], for XRC too.
///
/// # Safety
/// `context` is open and what `attr` points to are objects of it.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: by contract.
    let (context, attr) = unsafe { (Context::of(context), &mut *attr) };
    let given = |bit| attr.comp_mask & bit != 0;
    let known = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    if attr.comp_mask & !known != 0 {
        return pointer(Err(Errno(libc::EOPNOTSUPP)));
    }
    if !given(IBV_SRQ_INIT_ATTR_PD) || attr.pd.is_null() {
        return pointer(Err(Errno(libc::EINVAL)));
    }
    let kind = if given(IBV_SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { IBV_SRQT_BASIC };
    let xrc = match kind {
        IBV_SRQT_BASIC => None,
        IBV_SRQT_XRC => {
            let complete = given(IBV_SRQ_INIT_ATTR_XRCD) && given(IBV_SRQ_INIT_ATTR_CQ);
            if !complete || attr.xrcd.is_null() || attr.cq.is_null() {
                return pointer(Err(Errno(libc::EINVAL)));
            }
            Some((attr.xrcd, attr.cq))
        }
        _ => return pointer(Err(Errno(libc::EOPNOTSUPP))),
    };
    // SAFETY: by contract.
    pointer(unsafe { Srq::create(context, attr.pd, attr, xrc) })
}

/// Number of an XRC shared receive queue; EINVAL for any other.
///
/// # Safety
/// `srq` is a shared receive queue of this library; `srq_num` is writable.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: by contract.
    let srqn = unsafe { Srq::of(srq) }.srqn;
    if srqn == 0 {
        return code(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: writable by contract.
    unsafe { srq_num.write(srqn) };
    0
}

/// Arms the limit event. The size cannot be changed.
///
/// # Safety
/// `srq` is a shared receive queue of this library; `attr` is valid.
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    if mask & !IBV_SRQ_LIMIT != 0 {
        return code(Err(Errno(libc::EOPNOTSUPP)));
    }
    if mask == 0 {
        return 0;
    }
    // SAFETY: by contract.
    let (srq, limit) = unsafe { (Srq::of(srq), (*attr).srq_limit) };
    let request = |srq| Request::SetSrqLimit { srq, limit };
    code(srq.handle().and_then(|handle| srq.context().session.done(&request(handle))))
}

/// Reads size and armed limit.
///
/// # Safety
/// `srq` is a shared receive queue of this library; `attr` is writable.
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: by contract.
    let srq = unsafe { Srq::of(srq) };
    let read = |srq_handle| {
        let request = Request::QuerySrq { srq: srq_handle };
        srq.context().session.call(&request, |reply, _| match reply {
            Reply::SrqState { max_wr, max_sge, limit } => {
                Some(ibv_srq_attr { max_wr, max_sge, srq_limit: limit })
            }
            _ => None,
        })
    };
    let state = srq.handle().and_then(read);
    // SAFETY: writable by contract.
    code(state.map(|state| unsafe { attr.write(state) }))
}

/// Destroys a shared receive queue; EBUSY while queue pairs use it.
///
/// # Safety
/// `srq` is a shared receive queue of this library, and no thread uses it after this call starts.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: by contract.
    let result = unsafe { Srq::of(srq) }.destroy();
    if result.is_ok() {
        // SAFETY: made by Box::into_raw, and gone from every table.
        drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
    }
    code(result)
}
