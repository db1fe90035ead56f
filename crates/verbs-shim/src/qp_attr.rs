//! Modifying and querying queue pairs.

use std::{ffi::c_int, sync::atomic::Ordering};

use rnic_abi::{
    control::{Reply, Request},
    verbs::{AccessFlags, AttrMask, QpAttr, QpCaps, QpState},
};
use verbs_abi::{
    IBV_MIG_MIGRATED, IBV_QPS_RESET, IBV_QPS_RTS, Zeroed, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_rate_limit_attr,
};

use crate::{
    ah,
    error::{Errno, Result, code},
    qp::{Qp, cap_of},
    qp_ex::Builder,
    queue::WorkQueue,
};

const INVALID: Errno = Errno(libc::EINVAL);

fn state_of(state: u32) -> Result<QpState> {
    u8::try_from(state).ok().and_then(QpState::from_number).ok_or(INVALID)
}

/// The attributes that `mask` names. The program may not have initialised the others, so they are
/// not read.
fn to_daemon(attr: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr> {
    let mut wire = QpAttr::default();
    /// Copies fields whose bit is set.
    macro_rules! copy {
        ($($bit:ident: $to:ident = $value:expr;)*) => {
            $(if mask.contains(AttrMask::$bit) {
                wire.$to = $value;
            })*
        };
    }
    copy! {
        STATE: state = state_of(attr.qp_state)?;
        CUR_STATE: cur_state = state_of(attr.cur_qp_state)?;
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify = attr.en_sqd_async_notify != 0;
        ACCESS_FLAGS: access = AccessFlags::from_bits_truncate(attr.qp_access_flags);
        PKEY_INDEX: pkey_index = attr.pkey_index;
        PORT: port_num = attr.port_num;
        QKEY: qkey = attr.qkey;
        AV: ah = ah::to_daemon(&attr.ah_attr);
        PATH_MTU: path_mtu = u8::try_from(attr.path_mtu).map_err(|_| INVALID)?;
        TIMEOUT: timeout = attr.timeout;
        RETRY_CNT: retry_cnt = attr.retry_cnt;
        RNR_RETRY: rnr_retry = attr.rnr_retry;
        RQ_PSN: rq_psn = attr.rq_psn & 0xff_ffff;
        MAX_QP_RD_ATOMIC: max_rd_atomic = attr.max_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer = attr.min_rnr_timer;
        SQ_PSN: sq_psn = attr.sq_psn & 0xff_ffff;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic = attr.max_dest_rd_atomic;
        DEST_QPN: dest_qpn = attr.dest_qp_num;
    }
    Ok(wire)
}

fn from_daemon(wire: &QpAttr, caps: &QpCaps) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = wire.state.number().into();
    attr.cur_qp_state = wire.state.number().into();
    attr.path_mtu = wire.path_mtu.into();
    attr.path_mig_state = IBV_MIG_MIGRATED;
    attr.qkey = wire.qkey;
    attr.rq_psn = wire.rq_psn;
    attr.sq_psn = wire.sq_psn;
    attr.dest_qp_num = wire.dest_qpn;
    attr.qp_access_flags = wire.access.bits();
    attr.cap = cap_of(caps);
    attr.ah_attr = ah::from_daemon(&wire.ah);
    attr.pkey_index = wire.pkey_index;
    attr.en_sqd_async_notify = wire.en_sqd_async_notify.into();
    attr.sq_draining = wire.sq_draining.into();
    attr.max_rd_atomic = wire.max_rd_atomic;
    attr.max_dest_rd_atomic = wire.max_dest_rd_atomic;
    attr.min_rnr_timer = wire.min_rnr_timer;
    attr.port_num = wire.port_num;
    attr.timeout = wire.timeout;
    attr.retry_cnt = wire.retry_cnt;
    attr.rnr_retry = wire.rnr_retry;
    attr
}

impl Qp {
    fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<()> {
        let mask = AttrMask::from_bits(mask.cast_unsigned()).ok_or(INVALID)?;
        // Queues keep the size they were made with.
        if mask.contains(AttrMask::CAP) {
            return Err(INVALID);
        }
        let attr = to_daemon(attr, mask)?;
        let request = Request::ModifyQp { qp: self.handle()?, mask, attr };
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            return self.reset(&request);
        }
        self.ask_state(&request).map(drop)
    }

    /// Makes a request whose reply contains the state, and stores that state; not beside a reset.
    fn ask_state(&self, request: &Request) -> Result<(QpAttr, QpCaps, bool)> {
        // Stored before the session serves another thread, so that an older reply never overwrites
        // the state of a newer one.
        self.context().session.call(request, |reply, _| match reply {
            Reply::QpState { attr, caps, sq_sig_all } => {
                self.store_state(attr.state.number().into());
                Some((attr, caps, sq_sig_all))
            }
            _ => None,
        })
    }

    /// A query that another thread asked before a reset must not let posts in again while the
    /// daemon empties the queues.
    fn store_state(&self, now: u32) {
        let unless_reset = |_| (self.resets.load(Ordering::Acquire) == 0).then_some(now);
        // Compares: a reset that begins after the look at the count has changed the state.
        let _ = self.state().fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_reset);
    }

    /// To RESET, where library and daemon restart their queues at index 0.
    fn reset(&self, request: &Request) -> Result<()> {
        self.resets.fetch_add(1, Ordering::AcqRel);
        let done = self.reset_alone(request);
        self.resets.fetch_sub(1, Ordering::AcqRel);
        done
    }

    fn reset_alone(&self, request: &Request) -> Result<()> {
        let queues = || self.sq.iter().chain(&self.rq);
        // First refuse further posts: what other threads are posting is then in the queues when the
        // daemon empties them, and the daemon cannot take an index from before the reset for one
        // after it.
        let before = self.state().swap(IBV_QPS_RESET, Ordering::AcqRel);
        queues().for_each(|queue| queue.producer.visit(|_| ()));
        self.ask_state(request).inspect_err(|_| self.state().store(before, Ordering::Release))?;
        if let Some(builder) = &self.builder {
            builder.visit(Builder::forget);
        }
        self.forget_completions();
        queues().for_each(WorkQueue::reset);
        Ok(())
    }
}

/// Changes attributes and state.
///
/// # Safety
/// `qp` is a queue pair of this library; `attr` is valid as far as `attr_mask` says.
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: by contract.
    let (qp, attr) = unsafe { (Qp::of(qp), &*attr) };
    code(qp.modify(attr, attr_mask))
}

/// Reads all attributes, whatever `attr_mask` says, and what the queue pair was made with.
///
/// # Safety
/// `qp` is a queue pair of this library; `attr` and `init_attr` are writable.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: by contract.
    let object = unsafe { Qp::of(qp) };
    let state = object.handle().and_then(|qp| object.ask_state(&Request::QueryQp { qp }));
    code(state.map(|(now, caps, sq_sig_all)| {
        // SAFETY: by contract; the public part of a queue pair is readable.
        unsafe {
            attr.write(from_daemon(&now, &caps));
            (*attr).rate_limit = object.rate_limit.load(Ordering::Relaxed);
            init_attr.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: cap_of(&caps),
                qp_type: (*qp).qp_type,
                sq_sig_all: sq_sig_all.into(),
            });
        }
    }))
}

/// Keeps a limit of the rate at which a queue pair sends, for `ibv_query_qp`. The engine does not
/// pace.
///
/// # Safety
/// `qp` is a queue pair of this library; `attr` is valid.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: by contract.
    let (qp, attr) = unsafe { (Qp::of(qp), &*attr) };
    if attr.comp_mask != 0 || qp.state().load(Ordering::Acquire) != IBV_QPS_RTS {
        return code(Err(Errno(libc::EINVAL)));
    }
    qp.rate_limit.store(attr.rate_limit, Ordering::Relaxed);
    0
}
