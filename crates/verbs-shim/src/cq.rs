//! Completion queues: making, resizing, arming and destroying them. Polling is in `poll`.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use rnic_abi::{
    control::{Reply, Request, RingPlace},
    cq::{ArmKind, CqArm, CqConsumer, MAX_CQE},
    cqe::Cqe,
    verbs::WcOpcode,
};
use verbs_abi::{Zeroed, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_pd};

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
    /// Programs read it. A plain CQ has the extended part too.
    pub(crate) ibv: UnsafeCell<ibv_cq_ex>,
    pub(crate) context: *const Context,
    pub(crate) handle: u32,
    pub(crate) state: SpinLock<CqState>,
    /// Completion events delivered to the program.
    pub(crate) events_given: AtomicU32,
    /// Async events delivered to the program.
    pub(crate) async_events_given: AtomicU32,
    /// Arms the CQ. Not in `state`: a program may arm it while one of its threads walks the
    /// completions.
    arm: SpinLock<CqArm>,
    /// The program armed the CQ and has not read an event since.
    waits: AtomicBool,
    /// The parent domain that it was made with, or null.
    pub(crate) parent_domain: *mut ibv_pd,
    /// Sleeping threads that wait for a completion, see [`crate::cpu_sharing`].
    pub(crate) sleepers: AtomicU32,
}

/// What a poll changes, under its lock.
pub(crate) struct CqState {
    pub(crate) ring: CqConsumer,
    /// Completions of other QPs, taken out of the ring when those of a destroyed QP were removed.
    /// They are older than those in the ring.
    pub(crate) stash: VecDeque<Cqe>,
    /// The completion that the readers of an extended CQ read from.
    pub(crate) current: Cqe,
    /// Consecutive polls that found nothing.
    pub(crate) empty_polls: u32,
}

impl CqState {
    /// Takes all completions out of the ring.
    fn stash_all(&mut self) {
        while let Some(cqe) = self.ring.poll() {
            self.stash.push_back(cqe);
        }
    }
}

// SAFETY: the public part is changed by programs under their own rules; the rest is atomics and
// locks.
unsafe impl Sync for Cq {}

/// How to make a CQ.
pub(crate) struct CqInit {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) parent_domain: *mut ibv_pd,
}

impl Cq {
    /// Makes a completion queue.
    ///
    /// # Safety
    /// The channel is null or one of the context's.
    pub(crate) unsafe fn create(context: &Context, wish: &CqInit) -> Result<*mut Self> {
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
        // Held until the handle is in the table, so that an early event of this CQ is not dropped
        // as a left-over.
        let mut objects = context.objects.lock();
        let (handle, ring, cqe) = context.session.call(&request, ring_of)?;
        let mut ibv = ibv_cq_ex::zeroed();
        ibv.context = context.as_ibv();
        ibv.channel = wish.channel;
        ibv.cq_context = wish.cq_context;
        ibv.handle = handle;
        ibv.cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
        let arm = SpinLock::new(ring.arm());
        let cq = Box::into_raw(Box::new(Self {
            ibv: UnsafeCell::new(ibv),
            context,
            handle,
            state: SpinLock::new(CqState {
                ring,
                stash: VecDeque::new(),
                current: Cqe::new(0, 0, WcOpcode::Send),
                empty_polls: 0,
            }),
            events_given: AtomicU32::new(0),
            async_events_given: AtomicU32::new(0),
            arm,
            waits: AtomicBool::new(false),
            parent_domain: wish.parent_domain,
            sleepers: AtomicU32::new(0),
        }));
        objects.cqs.insert(handle, cq);
        if let Some(channel) = channel {
            channel.hold();
        }
        Ok(cq)
    }

    /// Writes the public fields: programs read how many events they acknowledged and the depth of
    /// the queue.
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

    /// Counts an event as delivered.
    pub(crate) fn note_event_given(&self) {
        self.waits.store(false, Ordering::Release);
        self.events_given.fetch_add(1, Ordering::AcqRel);
    }

    /// After the daemon died: whether the program still waits for an event, the only one that it
    /// will get.
    ///
    /// The daemon may have died after it disarmed the CQ and before it sent the event; or an event
    /// that was sent before may have been read after the CQ was armed. Either word tells.
    pub(crate) fn take_orphan_arm(&self) -> bool {
        let unanswered = self.arm.lock().take();
        self.waits.swap(false, Ordering::AcqRel) || unanswered
    }

    fn request_event(&self, kind: ArmKind) -> Result<()> {
        self.handle()?;
        self.waits.store(true, Ordering::Release);
        self.context().before_event();
        self.arm.lock().set(kind);
        Ok(())
    }

    /// Removes the completions of a QP that was destroyed or reset.
    pub(crate) fn forget_qp(&self, qpn: u32) {
        self.forget(|cqe| cqe.qpn == qpn);
    }

    /// Removes the completions of a shared receive queue that was destroyed.
    pub(crate) fn forget_srq(&self, record: u32) {
        self.forget(|cqe| cqe.record == record);
    }

    fn forget(&self, is_gone: impl Fn(&Cqe) -> bool) {
        self.state.visit(|state| {
            state.stash_all();
            state.stash.retain(|cqe| !is_gone(cqe) || self.give_up(cqe));
        });
    }

    /// Copies what completions carry that were not polled yet to where it belongs. False while
    /// another thread has the queue.
    pub(crate) fn settle(&self) -> bool {
        let settled = self.state.try_visit(|state| {
            state.stash_all();
            for cqe in state.stash.iter_mut().filter(|cqe| cqe.carried_len() > 0) {
                // SAFETY: as in `give_up`.
                let queue = unsafe { self.context().records.get(cqe.record).as_ref() };
                if let Some(queue) = queue.filter(|queue| queue.owns(cqe)) {
                    queue.place_carried(self.context(), cqe);
                    cqe.drop_carried();
                }
            }
        });
        settled.is_some()
    }

    /// Frees the slot of a completion that the program will not see. Always false.
    fn give_up(&self, cqe: &Cqe) -> bool {
        // SAFETY: a queue in the table is alive as long as this CQ, which its completions go to, is
        // locked.
        if let Some(queue) = unsafe { self.context().records.get(cqe.record).as_ref() }
            && matches!(queue.role, Role::Shared)
        {
            queue.note_polled(cqe.wqe_index);
        }
        false
    }

    fn resize(&self, cqe: c_int) -> Result<()> {
        let cqe = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        if cqe == 0 || cqe > MAX_CQE {
            return Err(Errno(libc::EINVAL));
        }
        self.state.visit(|state| {
            if state.stash.len() > cqe as usize {
                return Err(Errno(libc::EINVAL));
            }
            // The daemon moves the unpolled completions and the arm word to the new ring, so
            // another thread must not arm the CQ meanwhile.
            let mut arm = self.arm.lock();
            let request = Request::ResizeCq { cq: self.handle()?, cqe };
            let (_, ring, cqe) = self.context().session.call(&request, ring_of)?;
            *arm = ring.arm();
            state.ring = ring;
            drop(arm);
            // SAFETY: a word of a live object that only this changes, under the lock.
            unsafe { (*self.ibv.get()).cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX) };
            Ok(())
        })
    }

    /// Destroys it in the daemon and waits for the program's acknowledgements.
    fn destroy(&self) -> Result<()> {
        let context = self.context();
        if context.session.is_forked_child() {
            self.release_channel();
            return Ok(());
        }
        let request = Request::DestroyCq { cq: self.handle()? };
        let mut objects = context.objects.lock();
        let sent = context.session.destroy(&request, |reply| match reply {
            Reply::CqGone { completion_events, async_events } => {
                Some((completion_events, async_events))
            }
            _ => None,
        })?;
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
        self.release_channel();
        Ok(())
    }

    fn release_channel(&self) {
        if let Some(channel) = self.channel() {
            channel.release();
        }
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
    let parent_domain = ptr::null_mut();
    let wish = CqInit { cqe, cq_context, channel, comp_vector, parent_domain };
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
/// `cq` is a completion queue of this library, and no thread uses it after this call starts.
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
    let kind = if solicited_only == 0 { ArmKind::Any } else { ArmKind::Solicited };
    // SAFETY: by contract.
    code(unsafe { Cq::of(cq) }.request_event(kind))
}
