//! Posting: WQEs into the ring, one doorbell per call, no system call while the engine is awake.
//!
//! Where the program [drives](crate::driving) the engine of its function, a post behind many others
//! makes a turn.

use std::{ffi::c_int, slice};

use rnic_abi::{
    verbs::{SendFlags, WrOpcode},
    work_queue::WorkProducer,
    wqe::{MAX_SGE, RECV_CONTROL_WORDS, RecvControl, SGE_WORDS, SendControl, Sge},
};
use verbs_abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};

use crate::{
    context::Context,
    cpu_sharing,
    error::{Errno, Result, code},
    lock::Guard,
    qp::{Qp, SendRules},
    queue::{RECV_WORDS, WorkQueue},
    srq::Srq,
    wqe_builder::SendWqeBuilder,
};

impl Context {
    /// Publishes what was posted to a send queue. The caller holds the queue's lock.
    #[inline]
    pub(crate) fn ring(&self, queue: &WorkQueue, producer: &WorkProducer) {
        if self.bell.ring(queue.record, producer.producer()) {
            self.wake_engine();
        }
    }
}

/// Posts a list of sends. 0, or an errno value with `*bad_wr` the first request that was not
/// posted.
///
/// # Safety
/// `qp` is a queue pair of this library; the list and what it points to are valid; `bad_wr` is
/// writable.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by contract.
    let qp = unsafe { Qp::of(qp) };
    let context = qp.context();
    let queue = qp.sq.as_ref().map(|sq| (sq, sq.producer.lock()));
    let Some((sq, mut producer)) = queue.filter(|_| qp.accepts_sends()) else {
        // SAFETY: writable by contract.
        unsafe { bad_wr.write(wr) };
        return code(Err(Errno(libc::EINVAL)));
    };
    let mut wqe = SendWqeBuilder::new();
    let start = producer.producer();
    let mut result = Ok(());
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: a valid request by contract.
        let posted = unsafe { post_one(context, qp, sq, &mut producer, &mut wqe, next) };
        if posted.is_err() {
            result = posted;
            // SAFETY: writable by contract.
            unsafe { bad_wr.write(next) };
            break;
        }
        // SAFETY: a valid request by contract.
        next = unsafe { (*next).next };
    }
    let posts = producer.producer().wrapping_sub(start);
    if posts != 0 {
        context.ring(sq, &producer);
        drop(producer);
        cpu_sharing::after_post(context, posts);
    }
    code(result)
}

/// # Safety
/// As [`post_send`].
#[inline]
unsafe fn post_one(
    context: &Context,
    qp: &Qp,
    sq: &WorkQueue,
    producer: &mut WorkProducer,
    wqe: &mut SendWqeBuilder,
    wr: *const ibv_send_wr,
) -> Result<()> {
    if !sq.has_send_room(producer) {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: by contract.
    unsafe { write_request(&qp.rules, wqe, wr)? };
    push(context, producer, wqe)
}

/// Moves a finished request to the ring.
///
/// # Errors
/// EINVAL when it does not fit into a slot.
#[inline]
pub(crate) fn push(
    context: &Context,
    producer: &mut WorkProducer,
    wqe: &mut SendWqeBuilder,
) -> Result<()> {
    let stride = producer.stride();
    wqe.carry(&context.mrs, stride);
    let words = wqe.encoded();
    if words.len() > stride {
        return Err(Errno(libc::EINVAL));
    }
    producer.push(words);
    Ok(())
}

/// Translates a work request.
///
/// # Safety
/// As [`post_send`].
#[inline]
unsafe fn write_request(
    rules: &SendRules,
    wqe: &mut SendWqeBuilder,
    wr: *const ibv_send_wr,
) -> Result<()> {
    const INVALID: Errno = Errno(libc::EINVAL);
    // SAFETY: the fields that the opcode calls for are set, by contract.
    let (opcode, flags, wr_id) = unsafe { ((*wr).opcode, (*wr).send_flags, (*wr).wr_id) };
    let opcode = u8::try_from(opcode)
        .ok()
        .and_then(WrOpcode::from_number)
        .filter(|opcode| rules.opcodes & 1 << opcode.number() != 0)
        .ok_or(INVALID)?;
    let flags = SendFlags::from_bits_truncate(flags as u8);
    let inline = flags.contains(SendFlags::INLINE);
    wqe.begin(SendControl::new(opcode, flags, wr_id));
    // SAFETY: as above.
    unsafe { write_remote(rules, &mut wqe.control, wr)? };
    // SAFETY: as above.
    let sges = unsafe { sg_list((*wr).sg_list, (*wr).num_sge)? };
    if !inline {
        if matches!(opcode, WrOpcode::LocalInv | WrOpcode::BindMw) && !sges.is_empty() {
            return Err(INVALID);
        }
        return wqe.set_sges(rules, sges.iter().map(sge));
    }
    if !may_be_inline(opcode) {
        return Err(INVALID);
    }
    let pieces = sges.iter().map(|sge| (sge.addr as *const u8, sge.length as usize));
    // SAFETY: inline data is read during the call, so the program made sure that it is there.
    unsafe { wqe.set_inline(rules.max_inline, pieces) }
}

#[inline]
fn may_be_inline(opcode: WrOpcode) -> bool {
    use WrOpcode::{AtomicWrite, Send, SendImm, SendInv, Write, WriteImm};
    matches!(opcode, Send | SendImm | SendInv | Write | WriteImm | AtomicWrite)
}

/// Fills in the remote side of a request, or the window that it binds.
///
/// # Safety
/// The fields that the opcode calls for are set.
#[inline]
unsafe fn write_remote(
    rules: &SendRules,
    control: &mut SendControl,
    wr: *const ibv_send_wr,
) -> Result<()> {
    use WrOpcode::{
        AtomicWrite, BindMw, CmpSwap, FetchAdd, Flush, LocalInv, Read, SendImm, SendInv, Write,
        WriteImm,
    };
    const INVALID: Errno = Errno(libc::EINVAL);
    if matches!(control.opcode, SendImm | WriteImm | SendInv | LocalInv) {
        // SAFETY: by contract.
        control.imm_or_key = unsafe { (*wr).imm_data };
    }
    match control.opcode {
        Write | WriteImm | Read | AtomicWrite => {
            // SAFETY: by contract.
            let rdma = unsafe { (*wr).wr.rdma };
            (control.remote_addr, control.rkey) = (rdma.remote_addr, rdma.rkey);
        }
        CmpSwap | FetchAdd => {
            // SAFETY: by contract.
            let atomic = unsafe { (*wr).wr.atomic };
            (control.remote_addr, control.rkey) = (atomic.remote_addr, atomic.rkey);
            (control.compare_add, control.swap) = (atomic.compare_add, atomic.swap);
        }
        BindMw => {
            // SAFETY: by contract.
            let bind = unsafe { (*wr).local.bind_mw };
            control.rkey = bind.rkey;
            // SAFETY: by contract.
            unsafe { write_bind(control, &bind.bind_info) };
        }
        Flush => return Err(INVALID),
        _ if rules.datagram => {
            // SAFETY: by contract.
            let ud = unsafe { (*wr).wr.ud };
            // SAFETY: null or valid by contract.
            control.ah = unsafe { ud.ah.as_ref() }.ok_or(INVALID)?.handle;
            (control.remote_qpn, control.qkey) = (ud.remote_qpn, ud.remote_qkey);
        }
        _ => {}
    }
    if rules.names_srq {
        // SAFETY: by contract.
        control.srqn = unsafe { (*wr).qp_type.xrc.remote_srqn };
    }
    Ok(())
}

/// Fills in the memory that a window is bound to.
///
/// # Safety
/// The region is null or valid.
pub(crate) unsafe fn write_bind(control: &mut SendControl, info: &verbs_abi::ibv_mw_bind_info) {
    control.remote_addr = info.addr;
    // SAFETY: by contract.
    control.qkey = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    control.compare_add = info.length;
    control.swap = info.mw_access_flags.into();
}

#[inline]
pub(crate) fn sge(sge: &ibv_sge) -> Sge {
    Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }
}

/// # Safety
/// `list` has `count` entries when that is positive.
#[inline]
unsafe fn sg_list<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: by contract.
        Ok(count) if count <= MAX_SGE => Ok(unsafe { slice::from_raw_parts(list, count) }),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Posts a list of receives. 0, or an errno value with `*bad_wr` the first request that was not
/// posted.
///
/// # Safety
/// As [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by contract.
    let qp = unsafe { Qp::of(qp) };
    let queue = qp.rq.as_ref().map(|rq| (rq, rq.producer.lock()));
    let Some((rq, producer)) = queue.filter(|_| qp.accepts_receives()) else {
        // SAFETY: writable by contract.
        unsafe { bad_wr.write(wr) };
        return code(Err(Errno(libc::EINVAL)));
    };
    // SAFETY: by contract.
    code(unsafe { post_receives(qp.context(), rq, producer, qp.max_recv_sge, wr, bad_wr) })
}

/// Posts a list of receives to a shared receive queue; otherwise as [`post_recv`].
///
/// # Safety
/// As [`post_send`], with a shared receive queue.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by contract.
    let srq = unsafe { Srq::of(srq) };
    let producer = srq.queue.producer.lock();
    // SAFETY: by contract.
    code(unsafe { post_receives(srq.context(), &srq.queue, producer, srq.max_sge, wr, bad_wr) })
}

/// # Safety
/// As [`post_recv`].
unsafe fn post_receives(
    context: &Context,
    queue: &WorkQueue,
    mut producer: Guard<'_, WorkProducer>,
    max_sge: u32,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> Result<()> {
    let start = producer.producer();
    let mut result = Ok(());
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: a valid request by contract.
        let request = unsafe { next.read() };
        // SAFETY: as above.
        let posted = unsafe { post_receive(queue, &mut producer, max_sge, &request) };
        if posted.is_err() {
            result = posted;
            // SAFETY: writable by contract.
            unsafe { bad_wr.write(next) };
            break;
        }
        next = request.next;
    }
    if producer.producer() != start {
        context.bell.publish(queue.record, producer.producer());
        if producer.must_ring() {
            context.ring(queue, &producer);
        }
    }
    result
}

/// # Safety
/// As [`post_recv`].
#[inline]
unsafe fn post_receive(
    queue: &WorkQueue,
    producer: &mut WorkProducer,
    max_sge: u32,
    wr: &ibv_recv_wr,
) -> Result<()> {
    if !queue.has_receive_room(producer) {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: by contract.
    let sges = unsafe { sg_list(wr.sg_list, wr.num_sge)? };
    if sges.len() > max_sge as usize {
        return Err(Errno(libc::EINVAL));
    }
    let mut words = [0; RECV_WORDS];
    let mut at = RECV_CONTROL_WORDS;
    let mut num_sge = 0;
    for entry in sges.iter().filter(|entry| entry.length > 0) {
        words[at..at + SGE_WORDS].copy_from_slice(&sge(entry).encode());
        at += SGE_WORDS;
        num_sge += 1;
    }
    if at > producer.stride() {
        return Err(Errno(libc::EINVAL));
    }
    let control = RecvControl { num_sge, wr_id: wr.wr_id };
    words[..RECV_CONTROL_WORDS].copy_from_slice(&control.encode());
    queue.note_posting(producer);
    producer.push(&words[..at]);
    Ok(())
}
