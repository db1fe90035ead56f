//! Completion channels: a socket on which the daemon sends one small datagram per event.

use std::{
    cell::UnsafeCell,
    collections::HashMap,
    ffi::{c_int, c_uint, c_void},
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicI32, Ordering},
    sync::{Mutex, PoisonError},
};

use rnic_abi::{
    control::{CompletionEvent, Reply, Request},
    os::{Descriptor, blocking},
};
use verbs_abi::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::{
    context::Context,
    cq::Cq,
    driving::Rested,
    error::{Errno, Result, code, pointer, zero_or_minus_one},
};

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    ibv: UnsafeCell<ibv_comp_channel>,
    context: *const Context,
    pub(crate) handle: u32,
    socket: Descriptor<OwnedFd>,
    /// Unread events of destroyed CQs in the socket, by CQ handle.
    stale: Mutex<HashMap<u32, u64>>,
}

// SAFETY: programs read the public part; the rest is locked.
unsafe impl Sync for Channel {}

impl Channel {
    /// # Safety
    /// `channel` was made by this library and is alive.
    pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Self {
        // SAFETY: the public structure is the first member of a repr(C) structure.
        unsafe { &*channel.cast::<Self>() }
    }

    fn context(&self) -> &Context {
        // SAFETY: a context outlives what is made of it.
        unsafe { &*self.context }
    }

    fn users(&self) -> &AtomicI32 {
        // SAFETY: an aligned word of a live object that the library only accesses atomically.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.ibv.get()).refcnt) }
    }

    /// A CQ was made with this channel.
    pub(crate) fn hold(&self) {
        self.users().fetch_add(1, Ordering::Relaxed);
    }

    /// A CQ of this channel was destroyed.
    pub(crate) fn release(&self) {
        self.users().fetch_sub(1, Ordering::Release);
    }

    /// A CQ was destroyed whose events were `sent`, but only `given` of them read: the others are
    /// dropped when they are read.
    pub(crate) fn add_stale(&self, cq: u32, sent: u64, given: u32) {
        let left = sent.saturating_sub(given.into());
        if left > 0 {
            *self.stale().entry(cq).or_default() += left;
        }
    }

    fn stale(&self) -> std::sync::MutexGuard<'_, HashMap<u32, u64>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_stale(&self, cq: u32) -> bool {
        let mut stale = self.stale();
        let Some(left) = stale.get_mut(&cq) else { return false };
        *left -= 1;
        if *left == 0 {
            stale.remove(&cq);
        }
        true
    }

    /// Reads the next event, waiting as the descriptor's O_NONBLOCK says.
    fn next_event(&self) -> Result<(*mut ibv_cq, *mut c_void)> {
        loop {
            let Some(event) = self.next_datagram()? else {
                self.context().session.set_gone();
                self.context().release();
                return self.next_orphan();
            };
            let handle = CompletionEvent::decode(event).cq;
            let objects = self.context().objects.lock();
            if self.take_stale(handle) {
                continue;
            }
            // SAFETY: what is in the table is alive while it is locked.
            if let Some(cq) = objects.cqs.get(&handle).map(|cq| unsafe { &**cq }) {
                return Ok(given(cq));
            }
        }
    }

    /// What the next event came as; `None` when the connection is closed.
    fn next_datagram(&self) -> Result<Option<[u8; CompletionEvent::LEN]>> {
        let context = self.context();
        if !context.counts_waits() {
            return receive(&self.socket, 0);
        }
        let mut rested = context.rest(&self.socket)?;
        loop {
            if let Rested::Event(event) = rested {
                return Ok(Some(event));
            }
            let found = receive(&self.socket, libc::MSG_DONTWAIT);
            if !matches!(found, Err(Errno(libc::EAGAIN))) {
                context.note_event_found();
                return found;
            }
            rested = match rested {
                Rested::Again => context.rest(&self.socket)?,
                _ => context.begin_to_rest(&self.socket)?,
            };
            if let Rested::No = rested {
                break;
            }
        }
        context.before_sleep(self.socket.number());
        receive(&self.socket, 0)
    }

    /// After the daemon died, delivers one event for each armed CQ, so that the program polls its
    /// flushed completions.
    fn next_orphan(&self) -> Result<(*mut ibv_cq, *mut c_void)> {
        let objects = self.context().objects.lock();
        let waiting = objects.cqs.values().find_map(|cq| {
            // SAFETY: what is in the table is alive while it is locked.
            let cq = unsafe { &**cq };
            let here = cq.channel().is_some_and(|channel| std::ptr::eq(channel, self));
            (here && cq.take_orphan_arm()).then_some(cq)
        });
        waiting.map(given).ok_or(Errno(libc::EIO))
    }
}

/// Counts an event as delivered to the program.
fn given(cq: &Cq) -> (*mut ibv_cq, *mut c_void) {
    cq.note_event_given();
    (cq.as_ibv(), cq.cq_context())
}

/// Reads one datagram of `N` bytes as `recv` would with these flags; `None` when the daemon closed
/// the connection, because it ended or because the program had closed its own end.
pub(crate) fn receive<const N: usize>(
    socket: &Descriptor<OwnedFd>,
    flags: c_int,
) -> Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    loop {
        let Some(socket) = socket.get() else { return Ok(None) };
        let length = blocking::recv(socket.as_raw_fd(), &mut bytes, flags);
        match usize::try_from(length) {
            Ok(0) => return Ok(None),
            Ok(length) if length == N => return Ok(Some(bytes)),
            // Events of this protocol version have another length.
            Ok(_) => {}
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::ConnectionReset {
                    return Ok(None);
                }
                return Err(error.into());
            }
        }
    }
}

/// Makes a completion channel. NULL and errno on failure.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: by contract.
    let context = unsafe { Context::of(context) };
    let made = context.session.call(&Request::CreateChannel, |reply, arrived| match reply {
        Reply::Handle(handle) => Some((handle, arrived.descriptors::<1>()?)),
        _ => None,
    });
    pointer(made.and_then(|(handle, [socket])| {
        let socket = Descriptor::new(socket)?;
        let ibv = ibv_comp_channel { context: context.as_ibv(), fd: socket.number(), refcnt: 0 };
        let stale = Mutex::new(HashMap::new());
        let ibv = UnsafeCell::new(ibv);
        Ok(Box::into_raw(Box::new(Channel { ibv, context, handle, socket, stale })).cast())
    }))
}

/// Destroys a completion channel; EBUSY while a CQ uses it.
///
/// # Safety
/// `channel` is a channel of this library, and no thread reads it after this call starts.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: by contract.
    let object = unsafe { Channel::of(channel) };
    if object.users().load(Ordering::Acquire) > 0 {
        return code(Err(Errno(libc::EBUSY)));
    }
    let request = Request::DestroyChannel { channel: object.handle };
    let result = object.context().session.dispose(&request);
    if result.is_ok() {
        // SAFETY: made by Box::into_raw; no other reference is left.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
    }
    code(result)
}

/// Waits for an event. -1 and errno on failure: EAGAIN when the descriptor does not block, EINTR
/// after a signal, EIO when the daemon died and no CQ of the channel waits for an event.
///
/// # Safety
/// `channel` is a channel of this library; `cq` and `cq_context` are writable.
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: by contract.
    let event = unsafe { Channel::of(channel) }.next_event();
    zero_or_minus_one(event.map(|(found, found_context)| {
        // SAFETY: writable by contract.
        unsafe {
            cq.write(found);
            cq_context.write(found_context);
        }
    }))
}

/// Acknowledges events. `ibv_destroy_cq` waits until all are acknowledged.
///
/// # Safety
/// `cq` is a completion queue of this library.
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: by contract.
    unsafe { Cq::of(cq) }.comp_events_acked().fetch_add(nevents, Ordering::AcqRel);
}
