//! Polling: loads from shared memory, no system call.
//!
//! Where the program [drives](crate::driving) the engine of its function, a poll that finds nothing
//! makes a turn of the engine, with the system calls that this takes.

use std::ffi::{c_int, c_uint};

use rnic_abi::cqe::{Cqe, CqeFlags};
use verbs_abi::{IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_cq, ibv_wc};

use crate::{
    cpu_sharing,
    cq::{Cq, CqState},
};

/// Empty polls between two checks that the daemon is alive.
const LIVENESS_POLLS: u32 = 1024;

impl Cq {
    /// The next completion for the program. The caller holds the lock of `state`.
    #[inline]
    pub(crate) fn next(&self, state: &mut CqState) -> Option<Cqe> {
        loop {
            let cqe = match state.stash.pop_front() {
                Some(cqe) => cqe,
                None => state.ring.poll()?,
            };
            if self.accept(&cqe) {
                return Some(cqe);
            }
        }
    }

    /// Accounts for a completion; false when its queue was destroyed and the program must not see
    /// it.
    #[inline]
    fn accept(&self, cqe: &Cqe) -> bool {
        let context = self.context();
        // SAFETY: a queue leaves the table only after its completions were removed from this CQ,
        // under its lock.
        let Some(queue) = (unsafe { context.records.get(cqe.record).as_ref() }) else {
            return false;
        };
        if !queue.owns(cqe) {
            return false;
        }
        if cqe.carried_len() > 0 {
            queue.place_carried(context, cqe);
        }
        queue.note_polled(cqe.wqe_index);
        true
    }

    /// After a poll that found nothing.
    #[cold]
    pub(crate) fn after_empty(&self, state: &mut CqState) -> Option<Cqe> {
        let context = self.context();
        state.empty_polls = state.empty_polls.wrapping_add(1);
        if state.empty_polls.is_multiple_of(LIVENESS_POLLS) {
            context.check_daemon();
        }
        if context.session.daemon_is_gone() { self.next_orphan(state) } else { None }
    }

    /// The next flushed completion, when the ring is empty and the daemon is dead.
    fn next_orphan(&self, state: &mut CqState) -> Option<Cqe> {
        // The daemon may have written a last completion before it died.
        if let Some(cqe) = self.next(state) {
            return Some(cqe);
        }
        let objects = self.context().objects.lock();
        objects.qps.values().find_map(|qp| {
            // SAFETY: what is in the table is alive while it is locked.
            let qp = unsafe { &**qp };
            qp.queues_completing_to(self).find_map(|queue| queue.next_orphan())
        })
    }

    /// Takes up to `room` completions.
    #[inline]
    fn poll(&self, room: usize, mut take: impl FnMut(usize, &Cqe)) -> usize {
        if room == 0 {
            return 0;
        }
        let (mut state, mut next) = self.first(self.state.lock());
        let mut count = 0;
        while let Some(cqe) = next {
            take(count, &cqe);
            count += 1;
            next = if count < room { self.next(&mut state) } else { None };
        }
        if count > 0 {
            state.empty_polls = 0;
            cpu_sharing::after_full_poll(self.context());
            return count;
        }
        while count < room {
            let Some(cqe) = self.after_empty(&mut state) else { break };
            take(count, &cqe);
            count += 1;
        }
        drop(state);
        if count == 0 {
            cpu_sharing::after_empty_poll(self);
        }
        count
    }
}

/// `ibv_wc.wc_flags` of a completion.
#[inline]
pub(crate) fn wc_flags(cqe: &Cqe) -> c_uint {
    let mut flags = 0;
    if cqe.flags.contains(CqeFlags::GRH) {
        flags |= IBV_WC_GRH;
    }
    if cqe.flags.contains(CqeFlags::IMM) {
        flags |= IBV_WC_WITH_IMM;
    }
    if cqe.flags.contains(CqeFlags::INV) {
        flags |= IBV_WC_WITH_INV;
    }
    flags
}

#[inline]
fn work_completion(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status.number().into(),
        opcode: cqe.opcode.number().into(),
        vendor_err: cqe.vendor_err,
        byte_len: cqe.byte_len,
        imm_data: cqe.imm_or_key,
        qp_num: cqe.qpn,
        src_qp: cqe.src_qp,
        wc_flags: wc_flags(cqe),
        pkey_index: cqe.pkey_index,
        slid: 0,
        sl: cqe.sl,
        dlid_path_bits: 0,
    }
}

/// Takes up to `num_entries` completions; returns how many, or a negative errno value.
///
/// # Safety
/// `cq` is a completion queue of this library; `wc` has room for `num_entries`.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let Ok(room) = usize::try_from(num_entries) else { return -libc::EINVAL };
    // SAFETY: by contract.
    let cq = unsafe { Cq::of(cq) };
    // SAFETY: `at` is below `room`.
    let count = cq.poll(room, |at, cqe| unsafe { wc.add(at).write(work_completion(cqe)) });
    // It is at most `num_entries`.
    c_int::try_from(count).unwrap_or(num_entries)
}
