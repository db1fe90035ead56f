//! Completion queues: making, resizing, arming and destroying them. Polling is in `poll`.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::{c_int, c_void},
    sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering},
};

use rnic_abi::{
    control::{Reply, Request, RingPlace},
    cq::{ArmKind, CqArming, CqConsumer, MAX_CQE},
    cqe::Cqe,
    verbs::WcOpcode,
};
use verbs_abi::{Zeroed, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};

use crate::{
    channel::Channel,
    context::Context,
    error::{Errno, Result, code, pointer},
    lock::SpinLock,
    objects::{Kind, wait_for_acks},
    queue::Role,
    session::Arrived,
};

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    /// Read by programs; all of it is there for a plain CQ too.
    pub(crate) ibv: UnsafeCell<ibv_cq_ex>,
    pub(crate) context: *const Context,
    pub(crate) handle: u32,
    pub(crate) state: SpinLock<CqState>,
    /// The thread between `ibv_start_poll` and `ibv_end_poll`, which holds the lock of `state`.
    pub(crate) walker: AtomicUsize,
    /// Of the ring in `state`, for programs that arm while some thread polls.
    arming: SpinLock<CqArming>,
    /// Completion events that the program was given.
    pub(crate) events_given: AtomicU32,
    /// Async events that the program was given.
    pub(crate) async_events_given: AtomicU32,
    /// Asked for an event that was not read since: one of `NOT_ARMED` and so on. Not in `state`: it is changed
    /// while the objects' table is locked.
    armed: AtomicU8,
}

pub(crate) const NO_WALKER: usize = 0;

const NOT_ARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED_ANY: u8 = 2;

/// What polling changes.
pub(crate) struct CqState {
    pub(crate) ring: CqConsumer,
    /// Completions taken out of the ring while those of a destroyed QP were removed; older than the ring's.
    pub(crate) stash: VecDeque<Cqe>,
    /// What the readers of an extended CQ read.
    pub(crate) current: Cqe,
    /// Polls in a row that found nothing.
    pub(crate) empty_polls: u32,
}

// SAFETY: the public part is changed by programs under their own rules; the rest is atomics and locks.
unsafe impl Sync for Cq {}

/// What a CQ is made of.
pub(crate) struct CqWish {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
}

impl Cq {
    /// Makes a completion queue.
    ///
    /// # Safety
    /// The channel is null or one of the context's.
    pub(crate) unsafe fn create(context: &Context, wish: &CqWish) -> Result<*mut Self> {
        let no_such_vector = wish.comp_vector >= context.num_comp_vectors();
        if wish.cqe == 0 || wish.cqe > MAX_CQE || no_such_vector {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: by contract.
        let channel = unsafe { wish.channel.as_ref() }
            // SAFETY: by contract.
            .map(|channel| unsafe { Channel::of(std::ptr::from_ref(channel).cast_mut()) });
        let request = Request::CreateCq {
            cqe: wish.cqe,
            channel: channel.map(|channel| channel.handle),
            comp_vector: wish.comp_vector,
        };
        // Held until the handle is in the table: no event about it may be taken for a left-over.
        let mut objects = context.objects.lock();
        let (handle, ring, cqe) = context.session.call(&request, ring_of)?;
        let mut ibv = ibv_cq_ex::zeroed();
        ibv.context = context.as_ibv();
        ibv.channel = wish.channel;
        ibv.cq_context = wish.cq_context;
        ibv.handle = handle;
        ibv.cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
        let cq = Box::into_raw(Box::new(Self {
            ibv: UnsafeCell::new(ibv),
            context,
            handle,
            walker: AtomicUsize::new(NO_WALKER),
            arming: SpinLock::new(ring.arming()),
            state: SpinLock::new(CqState {
                ring,
                stash: VecDeque::new(),
                current: Cqe::new(0, 0, WcOpcode::Send),
                empty_polls: 0,
            }),
            events_given: AtomicU32::new(0),
            async_events_given: AtomicU32::new(0),
            armed: AtomicU8::new(NOT_ARMED),
        }));
        objects.cqs.insert(handle, cq);
        if let Some(channel) = channel {
            channel.hold();
        }
        Ok(cq)
    }

    /// Programs read how many events they acknowledged, and how deep the queue is.
    pub(crate) fn comp_events_acked(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of a live object that the library only accesses atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.ibv.get()).comp_events_completed) }
    }

    pub(crate) fn async_events_acked(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.ibv.get()).async_events_completed) }
    }

    /// The channel it was made with, if any.
    pub(crate) fn channel(&self) -> Option<&Channel> {
        // SAFETY: set at creation; a channel outlives its CQs.
        let channel = unsafe { (*self.ibv.get()).channel };
        // SAFETY: as above.
        (!channel.is_null()).then(|| unsafe { Channel::of(channel) })
    }

    pub(crate) fn cq_context(&self) -> *mut c_void {
        // SAFETY: set at creation; a program may change it as it likes.
        unsafe { (*self.ibv.get()).cq_context }
    }

    /// Whether the program waits for an event.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire) != NOT_ARMED
    }

    /// Counts an event that the program is given.
    pub(crate) fn note_event_given(&self) {
        self.armed.store(NOT_ARMED, Ordering::Release);
        self.events_given.fetch_add(1, Ordering::AcqRel);
    }

    /// Does something to the state under its lock, which this thread may already hold: a program may
    /// destroy, reset or resize while it walks the completions.
    fn with_state<R>(&self, act: impl FnOnce(&mut CqState) -> R) -> R {
        if self.walker.load(Ordering::Relaxed) == this_thread() {
            // SAFETY: only this thread can have stored its own number, and it still walks.
            return act(unsafe { self.state.kept() });
        }
        act(&mut self.state.lock())
    }

    /// Removes the completions of a QP that was destroyed or reset.
    pub(crate) fn forget_qp(&self, qpn: u32) {
        self.with_state(|state| self.forget_in(state, qpn));
    }

    fn forget_in(&self, state: &mut CqState, qpn: u32) {
        while let Some(cqe) = state.ring.poll() {
            state.stash.push_back(cqe);
        }
        state.ring.publish();
        state.stash.retain(|cqe| {
            if cqe.qpn != qpn {
                return true;
            }
            // SAFETY: a queue in the table is alive as long as this CQ, which its completions go to, is locked.
            if let Some(queue) = unsafe { self.context().records.get(cqe.record).as_ref() }
                && matches!(queue.role, Role::Shared)
            {
                queue.note_polled(cqe.wqe_index);
            }
            false
        });
    }

    fn resize(&self, cqe: c_int) -> Result<()> {
        let cqe = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        if cqe == 0 || cqe > MAX_CQE {
            return Err(Errno(libc::EINVAL));
        }
        self.check_handle()?;
        self.with_state(|state| self.resize_in(state, cqe))
    }

    fn resize_in(&self, state: &mut CqState, cqe: u32) -> Result<()> {
        // The daemon moves along what is not polled yet.
        state.ring.publish();
        let request = Request::ResizeCq { cq: self.handle, cqe };
        let (_, ring, cqe) = self.context().session.call(&request, ring_of)?;
        let mut arming = self.arming.lock();
        *arming = ring.arming();
        state.ring = ring;
        match self.armed.load(Ordering::Acquire) {
            ARMED_SOLICITED => arming.arm(ArmKind::Solicited),
            ARMED_ANY => arming.arm(ArmKind::Any),
            _ => {}
        }
        // SAFETY: a word of a live object that only this changes, under the lock.
        unsafe { (*self.ibv.get()).cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX) };
        Ok(())
    }

    /// ENOENT when the program has overwritten the public handle: the kernel would find no such
    /// object, and none of this library's may be taken for it.
    fn check_handle(&self) -> Result<()> {
        // SAFETY: readable by contract of every verb.
        let public = unsafe { (*self.ibv.get()).handle };
        if public == self.handle { Ok(()) } else { Err(Errno(libc::ENOENT)) }
    }

    /// Destroys it in the daemon and waits for the program's acknowledgements.
    fn destroy(&self) -> Result<()> {
        let context = self.context();
        if context.session.is_forked_child() {
            return Ok(());
        }
        self.check_handle()?;
        let mut objects = context.objects.lock();
        let sent =
            context.session.destroy(
                &Request::DestroyCq { cq: self.handle },
                |reply| match reply {
                    Reply::CqGone { completion_events, async_events } => {
                        Some((completion_events, async_events))
                    }
                    _ => None,
                },
            )?;
        objects.cqs.remove(&self.handle);
        let given = self.events_given.load(Ordering::Acquire);
        let async_given = self.async_events_given.load(Ordering::Acquire);
        if let Some((completion_events, async_events)) = sent {
            objects.add_stale(Kind::Cq, self.handle, async_events, async_given);
            if let Some(channel) = self.channel() {
                channel.add_stale(self.handle, completion_events, given);
            }
        }
        drop(objects);
        wait_for_acks(|| self.comp_events_acked().load(Ordering::Acquire), given);
        wait_for_acks(|| self.async_events_acked().load(Ordering::Acquire), async_given);
        if let Some(channel) = self.channel() {
            channel.release();
        }
        Ok(())
    }
}

fn ring_of(reply: Reply, mut arrived: Arrived<'_>) -> Option<(u32, CqConsumer, u32)> {
    let Reply::Cq { cq, ring, cqe } = reply else { return None };
    let words = arrived.ring(&RingPlace { ..ring })?;
    Some((cq, CqConsumer::new(words, cqe)?, cqe))
}

/// Makes a completion queue. NULL and errno on failure.
///
/// # Safety
/// `context` is open; `channel` is null or one of its channels.
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return pointer(Err(Errno(libc::EINVAL)));
    };
    let wish = CqWish { cqe, cq_context, channel, comp_vector };
    // SAFETY: by contract.
    pointer(unsafe { Cq::create(Context::of(context), &wish) }.map(<*mut Cq>::cast))
}

/// Changes the number of completions that fit.
///
/// # Safety
/// `cq` is a completion queue of this library.
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: by contract.
    code(unsafe { Cq::of(cq) }.resize(cqe))
}

/// Destroys a completion queue; waits until its events are acknowledged.
///
/// # Safety
/// `cq` is a completion queue of this library that nobody uses any more.
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: by contract.
    let result = unsafe { Cq::of(cq) }.destroy();
    if result.is_ok() {
        // SAFETY: made by Box::into_raw, and gone from every table.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
    }
    code(result)
}

/// Asks for one event on the CQ's channel.
///
/// # Safety
/// `cq` is a completion queue of this library.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let (kind, armed) = match solicited_only {
        0 => (ArmKind::Any, ARMED_ANY),
        _ => (ArmKind::Solicited, ARMED_SOLICITED),
    };
    // SAFETY: by contract.
    let cq = unsafe { Cq::of(cq) };
    if let Err(error) = cq.check_handle() {
        return code(Err(error));
    }
    cq.armed.fetch_max(armed, Ordering::AcqRel);
    cq.arming.lock().arm(kind);
    0
}

/// A number that no other thread has at the same time.
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}
