//! The `ibv_wr_*` calls: requests are built call by call between `wr_start` and `wr_complete`,
//! under the send queue's lock.
//!
//! `wr_complete` reports the first error of the calls before it, and then posts nothing.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use rnic_abi::{
    verbs::{SendFlags, WrOpcode},
    wqe::{MAX_SGE, SendControl, Sge},
};
use verbs_abi::{be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

use crate::{
    cpu_sharing,
    error::{Errno, Result, code},
    post::{push, sge, write_bind},
    qp::Qp,
    wqe_builder::SendWqeBuilder,
};

/// A batch being built.
pub(crate) struct Builder {
    wqe: SendWqeBuilder,
    /// `wqe` holds a request that is not in the ring yet.
    pending: bool,
    /// Producer index when the batch began.
    start: u32,
    /// The first error, as an errno value; 0 for none.
    error: c_int,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { wqe: SendWqeBuilder::new(), pending: false, start: 0, error: 0 }
    }

    /// The queue was reset: the batch is discarded.
    pub(crate) fn forget(&mut self) {
        self.pending = false;
        self.start = 0;
        self.fail(libc::EINVAL);
    }

    fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }
}

/// The `IBV_QP_EX_WITH_*` operations that a queue pair supports.
pub(crate) fn supported_ops(opcodes: u32) -> u64 {
    use WrOpcode::{
        AtomicWrite, BindMw, CmpSwap, FetchAdd, Flush, LocalInv, Read, Send, SendImm, SendInv,
        Write, WriteImm,
    };
    let ops = [
        (Write, verbs_abi::IBV_QP_EX_WITH_RDMA_WRITE),
        (WriteImm, verbs_abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM),
        (Send, verbs_abi::IBV_QP_EX_WITH_SEND),
        (SendImm, verbs_abi::IBV_QP_EX_WITH_SEND_WITH_IMM),
        (SendInv, verbs_abi::IBV_QP_EX_WITH_SEND_WITH_INV),
        (Read, verbs_abi::IBV_QP_EX_WITH_RDMA_READ),
        (CmpSwap, verbs_abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
        (FetchAdd, verbs_abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
        (LocalInv, verbs_abi::IBV_QP_EX_WITH_LOCAL_INV),
        (BindMw, verbs_abi::IBV_QP_EX_WITH_BIND_MW),
        (Flush, verbs_abi::IBV_QP_EX_WITH_FLUSH),
        (AtomicWrite, verbs_abi::IBV_QP_EX_WITH_ATOMIC_WRITE),
    ];
    ops.iter()
        .filter(|(opcode, _)| opcodes & 1 << opcode.number() != 0)
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// Fills in the functions. Those that the program did not ask for at creation fail when called.
pub(crate) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// Runs `step` on the batch of an extended queue pair. Does nothing when there is no batch.
///
/// # Safety
/// This thread is between `wr_start` and `wr_complete` or `wr_abort` of `qp`.
#[inline]
unsafe fn with(qp: *mut ibv_qp_ex, step: impl FnOnce(&Qp, &mut Builder)) {
    // SAFETY: an extended queue pair of this library.
    let qp = unsafe { Qp::of(qp.cast()) };
    if let Some(builder) = &qp.builder {
        // SAFETY: wr_start left the lock held.
        step(qp, unsafe { builder.kept() });
    }
}

/// Moves the request in the wqe to the ring. The caller holds the batch.
fn flush(qp: &Qp, builder: &mut Builder) {
    let Some(sq) = &qp.sq else { return };
    if std::mem::take(&mut builder.pending) && builder.error == 0 {
        // SAFETY: wr_start left the lock held.
        let producer = unsafe { sq.producer.kept() };
        if !sq.has_send_room(producer) {
            return builder.fail(libc::ENOMEM);
        }
        if let Err(Errno(errno)) = push(qp.context(), producer, &mut builder.wqe) {
            builder.fail(errno);
        }
    }
}

/// Starts a request.
///
/// # Safety
/// As [`with`].
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: WrOpcode, set: impl FnOnce(&mut SendControl)) {
    // SAFETY: programs set these before each call.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let flags = SendFlags::from_bits_truncate(flags as u8) - SendFlags::INLINE;
    let start = |qp: &Qp, builder: &mut Builder| {
        flush(qp, builder);
        if qp.rules.opcodes & 1 << opcode.number() == 0 {
            return builder.fail(libc::EINVAL);
        }
        let mut control = SendControl::new(opcode, flags, wr_id);
        set(&mut control);
        builder.wqe.begin(control);
        builder.pending = true;
    };
    // SAFETY: by contract.
    unsafe { with(qp, start) };
}

/// Changes the request that was started last.
///
/// # Safety
/// As [`with`].
#[inline]
unsafe fn amend(qp: *mut ibv_qp_ex, set: impl FnOnce(&Qp, &mut SendWqeBuilder) -> Result<()>) {
    let amend = |qp: &Qp, builder: &mut Builder| {
        if builder.pending
            && let Err(Errno(errno)) = set(qp, &mut builder.wqe)
        {
            builder.fail(errno);
        }
    };
    // SAFETY: by contract.
    unsafe { with(qp, amend) };
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: an extended queue pair of this library.
    let qp = unsafe { Qp::of(qp.cast()) };
    let (Some(builder), Some(sq)) = (&qp.builder, &qp.sq) else { return };
    let producer = sq.producer.lock();
    let mut builder = builder.lock();
    builder.start = producer.producer();
    builder.pending = false;
    builder.error = if qp.accepts_sends() { 0 } else { libc::EINVAL };
    builder.keep();
    producer.keep();
}

/// Ends the batch and posts it when `post` is set and there was no error.
///
/// # Safety
/// This thread called `wr_start`.
unsafe fn finish(qp: *mut ibv_qp_ex, post: bool) -> c_int {
    // SAFETY: an extended queue pair of this library.
    let qp = unsafe { Qp::of(qp.cast()) };
    let (Some(builder), Some(sq)) = (&qp.builder, &qp.sq) else {
        return code(Err(Errno(libc::EINVAL)));
    };
    // SAFETY: wr_start left both locks held.
    let (mut producer, builder) = unsafe { (sq.producer.take_back(), builder.take_back()) };
    if !post || builder.error != 0 {
        producer.rewind(builder.start);
        return if builder.error == 0 { 0 } else { code(Err(Errno(builder.error))) };
    }
    let posted = producer.producer().wrapping_sub(builder.start);
    if posted != 0 {
        qp.context().ring(sq, &producer);
        drop((builder, producer));
        cpu_sharing::after_post(qp.context(), posted);
    }
    0
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: by the interface's contract.
    unsafe {
        with(qp, flush);
        finish(qp, true)
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: by the interface's contract.
    unsafe { finish(qp, false) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: by the interface's contract, here and below.
    unsafe { begin(qp, WrOpcode::Send, |_| {}) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: be32) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, WrOpcode::SendImm, |control| control.imm_or_key = imm_data) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, WrOpcode::SendInv, |control| control.imm_or_key = rkey) };
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, WrOpcode::LocalInv, |control| control.imm_or_key = rkey) };
}

fn set_remote(control: &mut SendControl, rkey: u32, remote_addr: u64) {
    (control.rkey, control.remote_addr) = (rkey, remote_addr);
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, WrOpcode::Read, |control| set_remote(control, rkey, remote_addr)) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: see wr_send.
    unsafe { begin(qp, WrOpcode::Write, |control| set_remote(control, rkey, remote_addr)) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: be32,
) {
    let set = |control: &mut SendControl| {
        set_remote(control, rkey, remote_addr);
        control.imm_or_key = imm_data;
    };
    // SAFETY: see wr_send.
    unsafe { begin(qp, WrOpcode::WriteImm, set) };
}

/// # Safety
/// As [`with`].
unsafe fn atomic(qp: *mut ibv_qp_ex, opcode: WrOpcode, remote: (u32, u64), operands: (u64, u64)) {
    let set = |control: &mut SendControl| {
        set_remote(control, remote.0, remote.1);
        (control.compare_add, control.swap) = operands;
    };
    // SAFETY: by contract.
    unsafe { begin(qp, opcode, set) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: see wr_send.
    unsafe { atomic(qp, WrOpcode::CmpSwap, (rkey, remote_addr), (compare, swap)) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    // SAFETY: see wr_send.
    unsafe { atomic(qp, WrOpcode::FetchAdd, (rkey, remote_addr), (add, 0)) };
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: see wr_send; `atomic_wr` points to the eight bytes.
    unsafe {
        atomic(qp, WrOpcode::AtomicWrite, (rkey, remote_addr), (0, 0));
        amend(qp, |_, wqe| wqe.set_inline(8, std::iter::once((atomic_wr.cast(), 8))));
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    let operands = (length as u64, u64::from(placement) | u64::from(level) << 8);
    // SAFETY: see wr_send.
    unsafe { atomic(qp, WrOpcode::Flush, (rkey, remote_addr), operands) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // The new rkey names the window: all but its low byte is the window's own.
    let _ = mw;
    let set = |control: &mut SendControl| {
        control.rkey = rkey;
        // SAFETY: valid by the interface's contract.
        unsafe { write_bind(control, &*bind_info) };
    };
    // SAFETY: see wr_send.
    unsafe { begin(qp, WrOpcode::BindMw, set) };
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: null or valid by the interface's contract.
    let ah = unsafe { ah.as_ref() }.map(|ah| ah.handle);
    let set = |_: &Qp, wqe: &mut SendWqeBuilder| {
        wqe.control.ah = ah.ok_or(Errno(libc::EINVAL))?;
        (wqe.control.remote_qpn, wqe.control.qkey) = (remote_qpn, remote_qkey);
        Ok(())
    };
    // SAFETY: see wr_send.
    unsafe { amend(qp, set) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    let set = |_: &Qp, wqe: &mut SendWqeBuilder| {
        wqe.control.srqn = remote_srqn;
        Ok(())
    };
    // SAFETY: see wr_send.
    unsafe { amend(qp, set) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let entry = Sge { addr, length, lkey };
    // SAFETY: see wr_send.
    unsafe { amend(qp, |qp, wqe| wqe.set_sges(&qp.rules, std::iter::once(entry))) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    let set = |qp: &Qp, wqe: &mut SendWqeBuilder| {
        if num_sge == 0 || num_sge > MAX_SGE {
            return if num_sge == 0 { Ok(()) } else { Err(Errno(libc::EINVAL)) };
        }
        // SAFETY: as many entries, by the interface's contract.
        let list = unsafe { slice::from_raw_parts(sg_list, num_sge) };
        wqe.set_sges(&qp.rules, list.iter().map(sge))
    };
    // SAFETY: see wr_send.
    unsafe { amend(qp, set) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let set = |qp: &Qp, wqe: &mut SendWqeBuilder| {
        let piece = (addr.cast_const().cast(), length);
        // SAFETY: readable by the interface's contract.
        unsafe { wqe.set_inline(qp.rules.max_inline, std::iter::once(piece)) }
    };
    // SAFETY: see wr_send.
    unsafe { amend(qp, set) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    let set = |qp: &Qp, wqe: &mut SendWqeBuilder| {
        let list = match num_buf {
            0 => &[],
            // SAFETY: as many entries, by the interface's contract.
            _ => unsafe { slice::from_raw_parts(buf_list, num_buf) },
        };
        let pieces = list.iter().map(|piece| (piece.addr.cast_const().cast(), piece.length));
        // SAFETY: readable by the interface's contract.
        unsafe { wqe.set_inline(qp.rules.max_inline, pieces) }
    };
    // SAFETY: see wr_send.
    unsafe { amend(qp, set) };
}
