//! Asynchronous events: one datagram each on the context's `async_fd`.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering},
};

use rnic_abi::{control::AsyncEvent, verbs::AsyncEventType};
use verbs_abi::{IBV_EVENT_DEVICE_FATAL, ibv_async_event, ibv_async_event_element, ibv_context};

use crate::{
    channel::receive,
    context::Context,
    cq::Cq,
    error::{Errno, Result, zero_or_minus_one},
    objects::{Kind, Tables},
    qp::Qp,
    srq::Srq,
};

/// What an event is about.
fn kind_of(event: AsyncEventType) -> Option<Kind> {
    use AsyncEventType::{
        CommEst, CqErr, DeviceFatal, GidChange, PortActive, PortErr, QpAccessErr, QpFatal,
        QpLastWqeReached, QpReqErr, SqDrained, SrqErr, SrqLimitReached,
    };
    match event {
        CqErr => Some(Kind::Cq),
        QpFatal | QpReqErr | QpAccessErr | CommEst | SqDrained | QpLastWqeReached => Some(Kind::Qp),
        SrqErr | SrqLimitReached => Some(Kind::Srq),
        DeviceFatal | PortActive | PortErr | GidChange => None,
    }
}

/// Finds the object of an event and counts the event as delivered; `None` when the object was
/// destroyed.
fn element(tables: &Tables, kind: Kind, event: AsyncEvent) -> Option<ibv_async_event_element> {
    let count = |given: &AtomicU32| given.fetch_add(1, Ordering::AcqRel);
    // SAFETY, for each: what is in the tables is alive while they are locked.
    match kind {
        Kind::Qp => tables.qps.get(&event.element).map(|qp| {
            // SAFETY: as above.
            let qp = unsafe { &**qp };
            count(&qp.events_given);
            ibv_async_event_element { qp: qp.as_ibv() }
        }),
        Kind::Cq => tables.cqs.get(&event.element).map(|cq| {
            // SAFETY: as above.
            let cq = unsafe { &**cq };
            count(&cq.async_events_given);
            ibv_async_event_element { cq: cq.as_ibv() }
        }),
        Kind::Srq => tables.srqs.get(&event.element).map(|srq| {
            // SAFETY: as above.
            let srq = unsafe { &**srq };
            count(&srq.events_given);
            ibv_async_event_element { srq: srq.as_ibv() }
        }),
    }
}

impl Context {
    /// Reads the next event, waiting as the descriptor's O_NONBLOCK says.
    fn next_async_event(&self) -> Result<ibv_async_event> {
        loop {
            let Some(bytes) = receive::<{ AsyncEvent::LEN }>(&self.async_socket, 0)? else {
                return self.device_fatal();
            };
            let Some(event) = AsyncEvent::decode(bytes) else { continue };
            let event_type = event.event.number().into();
            let Some(kind) = kind_of(event.event) else {
                let port_num = c_int::try_from(event.element).unwrap_or(1);
                let element = ibv_async_event_element { port_num };
                return Ok(ibv_async_event { element, event_type });
            };
            let mut tables = self.objects.lock();
            if tables.take_stale(kind, event.element) {
                continue;
            }
            if let Some(element) = element(&tables, kind, event) {
                return Ok(ibv_async_event { element, event_type });
            }
        }
    }

    /// Reports the daemon's death: `IBV_EVENT_DEVICE_FATAL` once, EIO afterwards.
    fn device_fatal(&self) -> Result<ibv_async_event> {
        self.session.set_gone();
        self.release();
        if self.fatal_delivered.swap(true, Ordering::AcqRel) {
            return Err(Errno(libc::EIO));
        }
        let element = ibv_async_event_element { port_num: 0 };
        Ok(ibv_async_event { element, event_type: IBV_EVENT_DEVICE_FATAL })
    }
}

/// Waits for an asynchronous event. -1 and errno on failure: EAGAIN when the descriptor does not
/// block, EINTR after a signal, EIO after `IBV_EVENT_DEVICE_FATAL` was delivered.
///
/// # Safety
/// `context` is open and `event` is writable.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: by contract.
    let found = unsafe { Context::of(context) }.next_async_event();
    // SAFETY: writable by contract.
    zero_or_minus_one(found.map(|found| unsafe { event.write(found) }))
}

/// Acknowledges an event. Destroying its object waits until all its events are acknowledged.
///
/// # Safety
/// `event` is from `ibv_get_async_event`, and its object was not destroyed.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: by contract.
    let event = unsafe { &*event };
    let Some(kind) =
        u8::try_from(event.event_type).ok().and_then(AsyncEventType::from_number).and_then(kind_of)
    else {
        return;
    };
    // SAFETY: the type says which member of the union counts, and the object is alive by contract.
    let acked = unsafe {
        match kind {
            Kind::Qp => Qp::of(event.element.qp).events_acked(),
            Kind::Cq => Cq::of(event.element.cq).async_events_acked(),
            Kind::Srq => Srq::of(event.element.srq).events_acked(),
        }
    };
    acked.fetch_add(1, Ordering::AcqRel);
}
