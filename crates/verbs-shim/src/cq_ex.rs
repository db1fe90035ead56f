//! Extended completion queues: walked one completion at a time under the lock, read field by field.

use std::{ffi::c_int, ptr};

use rnic_abi::cqe::Cqe;
use verbs_abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_pd, ibv_poll_cq_attr,
};

use crate::{
    context::Context,
    cpu_sharing,
    cq::{Cq, CqInit, CqState},
    error::{Errno, Result, code, pointer},
    pd,
    poll::wc_flags,
};

/// Makes an extended completion queue. NULL and errno on failure.
///
/// # Safety
/// `context` is open and `attr` is a valid description.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: by contract.
    let (context, attr) = unsafe { (Context::of(context), &*attr) };
    // SAFETY: by contract.
    pointer(unsafe { check(attr).and_then(|()| create(context, attr)) })
}

/// The parent domain that counts, or null.
fn parent_domain_of(attr: &ibv_cq_init_attr_ex) -> *mut ibv_pd {
    let given = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0;
    if given { attr.parent_domain } else { ptr::null_mut() }
}

/// # Safety
/// The parent domain is valid where it counts.
unsafe fn check(attr: &ibv_cq_init_attr_ex) -> Result<()> {
    let known = IBV_WC_STANDARD_FLAGS
        | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
        | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    // A CQ that ignores overruns is only useful to a program that never polls it.
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    let known_flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    if attr.wc_flags & !known != 0
        || attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || flags & !known_flags != 0
    {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let names_one = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0;
    // SAFETY: by contract.
    if names_one && !unsafe { pd::is_parent_domain(attr.parent_domain) } {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

/// # Safety
/// As [`create_cq_ex`].
unsafe fn create(context: &Context, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex> {
    let wish = CqInit {
        cqe: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector,
        parent_domain: parent_domain_of(attr),
    };
    // SAFETY: by contract.
    let cq = unsafe { Cq::create(context, &wish)? };
    // SAFETY: made above; no other thread has it yet.
    let ibv = unsafe { (*cq).ibv.get_mut() };
    ibv.start_poll = Some(start_poll);
    ibv.next_poll = Some(next_poll);
    ibv.end_poll = Some(end_poll);
    ibv.read_opcode = Some(read_opcode);
    ibv.read_vendor_err = Some(read_vendor_err);
    ibv.read_byte_len = Some(read_byte_len);
    ibv.read_imm_data = Some(read_imm_data);
    ibv.read_qp_num = Some(read_qp_num);
    ibv.read_src_qp = Some(read_src_qp);
    ibv.read_wc_flags = Some(read_wc_flags);
    ibv.read_slid = Some(read_slid);
    ibv.read_sl = Some(read_sl);
    ibv.read_dlid_path_bits = Some(read_dlid_path_bits);
    ibv.read_completion_ts = Some(read_completion_ts);
    ibv.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    Ok(cq.cast())
}

/// # Safety
/// `cq` is an extended completion queue of this library.
unsafe fn of<'a>(cq: *mut ibv_cq_ex) -> &'a Cq {
    // SAFETY: an `ibv_cq_ex` starts as an `ibv_cq` does.
    unsafe { Cq::of(cq.cast()) }
}

/// Makes a completion the current one, which the readers read.
fn set_current(cq: &Cq, state: &mut CqState, cqe: &Cqe) {
    state.current = *cqe;
    // SAFETY: fields that only the polling thread touches, which this is.
    unsafe {
        (*cq.ibv.get()).status = cqe.status.number().into();
        (*cq.ibv.get()).wr_id = cqe.wr_id;
    }
}

/// Takes the first completion and keeps the lock; ENOENT when there is none.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: both by the interface's contract.
    let (cq, attr) = unsafe { (of(cq), attr.as_ref()) };
    if attr.is_some_and(|attr| attr.comp_mask != 0) {
        return code(Err(Errno(libc::EINVAL)));
    }
    let (mut state, first) = cq.first(cq.state.lock());
    let cqe = match first {
        Some(cqe) => {
            state.empty_polls = 0;
            cpu_sharing::after_full_poll(cq.context());
            Some(cqe)
        }
        None => cq.after_empty(&mut state),
    };
    let Some(cqe) = cqe else {
        drop(state);
        cpu_sharing::after_empty_poll(cq);
        return libc::ENOENT;
    };
    set_current(cq, &mut state, &cqe);
    state.keep();
    0
}

/// Takes the next completion; ENOENT when there is none, and even then the program calls
/// `end_poll`.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by the interface's contract.
    let cq = unsafe { of(cq) };
    // SAFETY: between start_poll and end_poll this thread holds the lock.
    let state = unsafe { cq.state.kept() };
    let Some(cqe) = cq.next(state) else { return libc::ENOENT };
    set_current(cq, state, &cqe);
    0
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: by the interface's contract; start_poll left the lock held.
    drop(unsafe { of(cq).state.take_back() });
}

/// # Safety
/// This thread is between `start_poll` and `end_poll` of `cq`.
#[inline]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Cqe {
    // SAFETY: this thread holds the lock.
    unsafe { &of(cq).state.kept().current }
}

/// Defines functions that read one field of the current completion.
macro_rules! readers {
    ($($name:ident: $type:ty = |$cqe:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: programs read between start_poll and end_poll only.
            let $cqe = unsafe { current(cq) };
            $value
        })*
    };
}

readers! {
    read_opcode: u32 = |cqe| cqe.opcode.number().into();
    read_vendor_err: u32 = |cqe| cqe.vendor_err;
    read_byte_len: u32 = |cqe| cqe.byte_len;
    read_imm_data: u32 = |cqe| cqe.imm_or_key;
    read_qp_num: u32 = |cqe| cqe.qpn;
    read_src_qp: u32 = |cqe| cqe.src_qp;
    read_wc_flags: u32 = |cqe| wc_flags(cqe);
    read_slid: u32 = |_cqe| 0;
    read_sl: u8 = |cqe| cqe.sl;
    read_dlid_path_bits: u8 = |_cqe| 0;
    read_completion_ts: u64 = |cqe| cqe.timestamp;
    // The clock of the wall may have been set since: it tells the time that it would have told.
    read_completion_wallclock_ns: u64 = |cqe| {
        let age = nanos_of(libc::CLOCK_MONOTONIC).saturating_sub(cqe.timestamp);
        nanos_of(libc::CLOCK_REALTIME).saturating_sub(age)
    };
}

fn nanos_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a live timespec.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
