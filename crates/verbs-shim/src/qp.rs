//! Queue pairs: making and destroying them.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use rnic_abi::{
    control::{CreateQp, QueuePlace, Reply, Request},
    verbs::{QpCaps, QpType, WrOpcode},
    words::Words,
};
use verbs_abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT,
    IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPS_INIT,
    IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPT_DRIVER, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_RECV, Zeroed,
    ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_srq,
};

use crate::{
    context::Context,
    cq::Cq,
    error::{Errno, Result, code, pointer},
    lock::SpinLock,
    objects::{Kind, wait_for_acks},
    qp_ex::{self, Builder},
    queue::{Role, WorkQueue},
    session::Arrived,
    xrc,
};

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    /// Programs read it. A plain QP has the extended part too.
    pub(crate) ibv: UnsafeCell<ibv_qp_ex>,
    pub(crate) context: *const Context,
    pub(crate) handle: u32,
    pub(crate) qpn: u32,
    pub(crate) sq: Option<WorkQueue>,
    pub(crate) rq: Option<WorkQueue>,
    /// What posting checks against.
    pub(crate) rules: SendRules,
    pub(crate) max_recv_sge: u32,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    /// Async events delivered to the program.
    pub(crate) events_given: AtomicU32,
    /// What the program set with `ibv_modify_qp_rate_limit`, in kilobits a second; 0 for none.
    pub(crate) rate_limit: AtomicU32,
    /// Threads that take it to RESET.
    pub(crate) resets: AtomicU32,
    /// The batch of the `ibv_wr_*` calls, for QPs made with them.
    pub(crate) builder: Option<SpinLock<Builder>>,
}

// SAFETY: the public part is changed by programs under their own rules; the rest is atomics and
// locks.
unsafe impl Sync for Qp {}

/// Which send work requests are accepted.
#[derive(Clone, Copy)]
pub(crate) struct SendRules {
    /// Bit n: opcode n.
    pub(crate) opcodes: u32,
    /// Requests carry an address handle.
    pub(crate) datagram: bool,
    /// Requests carry the number of a shared receive queue (XRC).
    pub(crate) names_srq: bool,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
}

/// The opcodes that both the transport and the device support.
fn opcodes_of(context: &Context, qp_type: QpType) -> u32 {
    use WrOpcode::{
        AtomicWrite, BindMw, CmpSwap, FetchAdd, Flush, LocalInv, Read, Send, SendImm, SendInv,
        Write, WriteImm,
    };
    let bits =
        |opcodes: &[WrOpcode]| opcodes.iter().fold(0, |bits, opcode| bits | 1 << opcode.number());
    let unreliable = bits(&[Send, SendImm, Write, WriteImm, LocalInv, BindMw]);
    let transport = match qp_type {
        QpType::Ud => bits(&[Send, SendImm]),
        QpType::Uc => unreliable,
        QpType::Rc | QpType::XrcSend => {
            unreliable | bits(&[SendInv, Read, CmpSwap, FetchAdd, AtomicWrite, Flush])
        }
        QpType::XrcRecv => 0,
    };
    transport & context.info.limits.send_opcodes
}

/// What the daemon made.
struct Made {
    handle: u32,
    qpn: u32,
    caps: QpCaps,
    sq: Option<(QueuePlace, Words)>,
    rq: Option<(QueuePlace, Words)>,
}

fn made(reply: Reply, mut arrived: Arrived<'_>) -> Option<Made> {
    let Reply::Qp { qp: handle, qpn, caps, sq, rq } = reply else { return None };
    let mut place = |queue: Option<QueuePlace>| match queue {
        Some(queue) => arrived.ring(&queue.ring).map(|words| Some((queue, words))),
        None => Some(None),
    };
    let sq = place(sq)?;
    let rq = place(rq)?;
    Some(Made { handle, qpn, caps, sq, rq })
}

impl Qp {
    /// # Safety
    /// Every pointer in `attr` is null or an object of `context`.
    unsafe fn create(
        context: &Context,
        pd: *mut ibv_pd,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Result<*mut Self> {
        let qp_type = qp_type_of(attr.qp_type)?;
        // SAFETY: by contract.
        let request = Request::CreateQp(unsafe { Self::wish(pd, attr, qp_type)? });
        let send_ops = send_ops_of(attr, opcodes_of(context, qp_type))?;
        let qp = Self::made_by(context, &request, pd, attr, qp_type)?;
        if send_ops {
            // SAFETY: made above, and no other thread has it.
            qp_ex::fill(unsafe { &mut *(*qp).ibv.get() });
        }
        Ok(qp)
    }

    /// What is asked of the daemon.
    ///
    /// # Safety
    /// As [`create`](Self::create).
    unsafe fn wish(
        pd: *mut ibv_pd,
        attr: &ibv_qp_init_attr_ex,
        qp_type: QpType,
    ) -> Result<CreateQp> {
        let is_target = qp_type == QpType::XrcRecv;
        let has_receives = !matches!(qp_type, QpType::XrcRecv | QpType::XrcSend);
        let given = attr.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !attr.xrcd.is_null();
        let complete = match is_target {
            true => given,
            false => !pd.is_null() && !attr.send_cq.is_null(),
        };
        if !complete || (has_receives && attr.recv_cq.is_null()) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: null or valid, by contract.
        let (pd, send_cq) = unsafe { (pd.as_ref(), attr.send_cq.as_ref()) };
        // SAFETY: as above.
        let (recv_cq, srq) = unsafe { (attr.recv_cq.as_ref(), attr.srq.as_ref()) };
        Ok(CreateQp {
            pd: pd.map_or(0, |pd| pd.handle),
            qp_type,
            send_cq: send_cq.filter(|_| !is_target).map(|cq| cq.handle),
            recv_cq: recv_cq.filter(|_| has_receives).map(|cq| cq.handle),
            srq: srq.filter(|_| has_receives).map(|srq| srq.handle),
            // SAFETY: as above.
            xrcd: is_target.then(|| unsafe { xrc::handle_of(attr.xrcd) }),
            caps: caps_of(&attr.cap),
            sq_sig_all: attr.sq_sig_all != 0,
        })
    }

    /// Has the daemon make a queue pair, or open one, and enters it into the tables.
    fn made_by(
        context: &Context,
        request: &Request,
        pd: *mut ibv_pd,
        attr: &mut ibv_qp_init_attr_ex,
        qp_type: QpType,
    ) -> Result<*mut Self> {
        // Held until the handle is in the table, so that an early event of this QP is not dropped
        // as a left-over.
        let _records = context.objects.keep_records();
        let mut objects = context.objects.lock();
        let made = context.session.call(request, made)?;
        attr.cap = cap_of(&made.caps);
        let qp = Box::into_raw(Self::assemble(context, pd, attr, qp_type, made)?);
        // SAFETY: made above, and from here on only shared.
        let shared = unsafe { &*qp };
        for queue in shared.sq.iter().chain(&shared.rq) {
            context.records.set(queue.record.value(), queue);
        }
        objects.qps.insert(shared.handle, qp);
        drop(objects);
        Ok(qp)
    }

    fn assemble(
        context: &Context,
        pd: *mut ibv_pd,
        attr: &ibv_qp_init_attr_ex,
        qp_type: QpType,
        made: Made,
    ) -> Result<Box<Self>> {
        let Made { handle, qpn, caps, sq, rq } = made;
        let queue = |place: Option<(QueuePlace, Words)>, limit, role| match place {
            Some((place, words)) => {
                WorkQueue::new(words, &place, limit, role).map(Some).ok_or(Errno(libc::EPROTO))
            }
            None => Ok(None),
        };
        let all_signaled = attr.sq_sig_all != 0;
        let sq = queue(sq, caps.max_send_wr, Role::Send { qpn, all_signaled })?;
        let rq = queue(rq, caps.max_recv_wr, Role::Receive { qpn })?;
        let mut ibv = ibv_qp_ex::zeroed();
        ibv.qp_base.context = context.as_ibv();
        ibv.qp_base.qp_context = attr.qp_context;
        ibv.qp_base.pd = pd;
        ibv.qp_base.send_cq = attr.send_cq;
        ibv.qp_base.recv_cq = attr.recv_cq;
        ibv.qp_base.srq = attr.srq;
        ibv.qp_base.handle = handle;
        ibv.qp_base.qp_num = qpn;
        ibv.qp_base.state = IBV_QPS_RESET;
        ibv.qp_base.qp_type = attr.qp_type;
        let extended = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let has_receives = !matches!(qp_type, QpType::XrcSend | QpType::XrcRecv);
        Ok(Box::new(Self {
            ibv: UnsafeCell::new(ibv),
            context,
            handle,
            qpn,
            sq,
            rq,
            rules: SendRules {
                opcodes: opcodes_of(context, qp_type),
                datagram: qp_type == QpType::Ud,
                names_srq: qp_type == QpType::XrcSend,
                max_sge: caps.max_send_sge,
                max_inline: caps.max_inline_data,
            },
            max_recv_sge: caps.max_recv_sge,
            // Those that the daemon counts it at: others may be destroyed first.
            send_cq: if qp_type == QpType::XrcRecv { ptr::null_mut() } else { attr.send_cq },
            recv_cq: if has_receives { attr.recv_cq } else { ptr::null_mut() },
            srq: attr.srq,
            events_given: AtomicU32::new(0),
            rate_limit: AtomicU32::new(0),
            resets: AtomicU32::new(0),
            builder: extended.then(|| SpinLock::new(Builder::new())),
        }))
    }

    /// The state as programs see it, which only modify and query change.
    pub(crate) fn state(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of a live object that the library only accesses atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.ibv.get()).qp_base.state) }
    }

    /// Sends are accepted from RTS on; also in the error states, to be flushed.
    #[inline]
    pub(crate) fn accepts_sends(&self) -> bool {
        !matches!(self.state().load(Ordering::Relaxed), IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR)
    }

    /// Receives are accepted from INIT on.
    #[inline]
    pub(crate) fn accepts_receives(&self) -> bool {
        self.state().load(Ordering::Relaxed) != IBV_QPS_RESET
    }

    /// The domain that it was made with.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        // SAFETY: set at creation.
        unsafe { (*self.ibv.get()).qp_base.pd }
    }

    pub(crate) fn events_acked(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.ibv.get()).qp_base.events_completed) }
    }

    /// The queues whose completions go to a CQ.
    pub(crate) fn queues_completing_to(&self, cq: &Cq) -> impl Iterator<Item = &WorkQueue> {
        let cq = cq.as_ibv();
        let sends = self.sq.iter().filter(move |_| self.send_cq == cq);
        sends.chain(self.rq.iter().filter(move |_| self.recv_cq == cq))
    }

    /// Removes its completions from its CQs.
    pub(crate) fn forget_completions(&self) {
        for cq in [self.send_cq, self.recv_cq] {
            // SAFETY: a CQ outlives the QPs that use it.
            if let Some(cq) = (!cq.is_null()).then(|| unsafe { Cq::of(cq) }) {
                cq.forget_qp(self.qpn);
            }
            if self.send_cq == self.recv_cq {
                break;
            }
        }
    }

    fn destroy(&self) -> Result<()> {
        let context = self.context();
        if context.session.is_forked_child() {
            return Ok(());
        }
        let request = Request::DestroyQp { qp: self.handle()? };
        let records = context.objects.keep_records();
        let mut objects = context.objects.lock();
        let sent = context.session.destroy(&request, |reply| match reply {
            Reply::QpGone { async_events } => Some(async_events),
            _ => None,
        })?;
        objects.qps.remove(&self.handle);
        let given = self.events_given.load(Ordering::Acquire);
        if let Some(sent) = sent {
            objects.add_stale(Kind::Qp, self.handle, sent, given);
        }
        drop(objects);
        self.forget_completions();
        for queue in self.sq.iter().chain(&self.rq) {
            context.records.clear(queue.record.value(), queue);
        }
        drop(records);
        wait_for_acks(|| self.events_acked().load(Ordering::Acquire), given);
        Ok(())
    }
}

fn qp_type_of(qp_type: u32) -> Result<QpType> {
    match qp_type {
        IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => Err(Errno(libc::EOPNOTSUPP)),
        known => u8::try_from(known).ok().and_then(QpType::from_number).ok_or(Errno(libc::EINVAL)),
    }
}

fn caps_of(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) fn cap_of(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

/// Whether the program asks for the `ibv_wr_*` calls; an error when it asks for one that the
/// transport does not support.
fn send_ops_of(attr: &ibv_qp_init_attr_ex, opcodes: u32) -> Result<bool> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS == 0 {
        return Ok(false);
    }
    if attr.send_ops_flags & !qp_ex::supported_ops(opcodes) != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    Ok(true)
}

/// Makes a queue pair and writes back what was granted. NULL and errno on failure.
///
/// # Safety
/// `pd` and what `attr` points to are objects of one open context.
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: by contract.
    let (context, attr) = unsafe { (Context::of((*pd).context), &mut *attr) };
    let mut extended = ibv_qp_init_attr_ex::zeroed();
    extended.qp_context = attr.qp_context;
    extended.send_cq = attr.send_cq;
    extended.recv_cq = attr.recv_cq;
    extended.srq = attr.srq;
    extended.cap = attr.cap;
    extended.qp_type = attr.qp_type;
    extended.sq_sig_all = attr.sq_sig_all;
    // SAFETY: by contract.
    let qp = unsafe { Qp::create(context, pd, &mut extended) };
    attr.cap = extended.cap;
    pointer(qp.map(<*mut Qp>::cast))
}

/// As [`ibv_create_qp`], with extensions.
///
/// # Safety
/// `context` is open and what `attr` points to are objects of it.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: by contract.
    let (context, attr) = unsafe { (Context::of(context), &mut *attr) };
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let given = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !known != 0
        || (given(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0)
        || (given(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && attr.max_tso_header != 0)
    {
        return pointer(Err(Errno(libc::EOPNOTSUPP)));
    }
    let pd = if given(IBV_QP_INIT_ATTR_PD) { attr.pd } else { ptr::null_mut() };
    // SAFETY: by contract.
    pointer(unsafe { Qp::create(context, pd, attr) }.map(<*mut Qp>::cast))
}

/// Opens an XRC target that this process, or another process of its domain, has made. It lasts
/// until the last one that has it open destroys it.
///
/// # Safety
/// `context` is open; `attr` is a valid description.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: by contract.
    let (context, attr) = unsafe { (Context::of(context), &*attr) };
    let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let known = needed | IBV_QP_OPEN_ATTR_CONTEXT;
    if attr.comp_mask & !known != 0 {
        return pointer(Err(Errno(libc::EOPNOTSUPP)));
    }
    let complete = attr.comp_mask & needed == needed && !attr.xrcd.is_null();
    if !complete || attr.qp_type != IBV_QPT_XRC_RECV {
        return pointer(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: not null, so valid by contract.
    let xrcd = unsafe { xrc::handle_of(attr.xrcd) };
    let request = Request::OpenQp { xrcd, qpn: attr.qp_num };
    let mut description = ibv_qp_init_attr_ex::zeroed();
    description.qp_type = attr.qp_type;
    if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
        description.qp_context = attr.qp_context;
    }
    let (pd, qp_type) = (ptr::null_mut(), QpType::XrcRecv);
    let opened = Qp::made_by(context, &request, pd, &mut description, qp_type);
    pointer(opened.map(<*mut Qp>::cast))
}

/// Destroys a queue pair; waits until its events are acknowledged.
///
/// # Safety
/// `qp` is a queue pair of this library, and no thread uses it after this call starts.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: by contract.
    let result = unsafe { Qp::of(qp) }.destroy();
    if result.is_ok() {
        // SAFETY: made by Box::into_raw, and gone from every table.
        drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
    }
    code(result)
}

/// The extended form of a queue pair that was made with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`, else
/// NULL.
///
/// # Safety
/// `qp` is a queue pair of this library.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: by contract.
    match unsafe { Qp::of(qp) }.builder {
        Some(_) => qp.cast(),
        None => ptr::null_mut(),
    }
}
