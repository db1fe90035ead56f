//! Objects of an engine, for display.

use crate::command::ClientId;
use crate::counters::QpCounters;
use crate::cq::Cq;
use crate::qp::Qp;
use crate::qp::requester::Wait;
use crate::shared::Shared;
use crate::time::Instant;
use rnic_abi::verbs::{QpAttr, QpCaps, QpType};

/// A queue pair, for display.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QpView {
    /// Handle.
    pub qp: u32,
    /// Number.
    pub qpn: u32,
    /// Owner.
    pub client: ClientId,
    /// Transport.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: u32,
    /// Completion queues of send and receive queue.
    pub cqs: (u32, u32),
    /// Attributes.
    pub attr: QpAttr,
    /// Capabilities.
    pub caps: QpCaps,
    /// Send WQEs fetched and not complete.
    pub outstanding: u32,
    /// Send WQEs posted and not fetched.
    pub posted: u32,
    /// Where its receives come from; absent for a transport without them, and of an XRC target
    /// until a message names a queue.
    pub receives: Option<Receives>,
    /// Requests sent and not acknowledged, as PSNs: oldest, next to be sent.
    pub in_flight: (u32, u32),
    /// One past the highest PSN sent so far.
    pub sent_end: u32,
    /// First PSN of the next WQE to be fetched.
    pub free_psn: u32,
    /// Next PSN expected from the peer.
    pub expected_psn: u32,
    /// READ responses and atomic results owed to the peer.
    pub replies: u32,
    /// What it waits for, and until when.
    pub timer: Option<(TimerReason, Instant)>,
    /// Retries left until progress: of the transport, and after RNR NAKs.
    pub retries_left: (u8, u8),
    /// Counters.
    pub counters: QpCounters,
}

/// Why the timer of a queue pair runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {
    /// What it sent is sent again if no acknowledgement comes until then.
    AckTimeout,
    /// An RNR NAK forbids to send before then.
    RnrWait,
    /// What it sent may be on its way still: it is sent again then.
    Pause,
}

/// A queue of receive WQEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receives {
    /// WQEs that are posted and not used.
    pub posted: u32,
    /// WQEs that it holds.
    pub capacity: u32,
    /// Handle of the shared receive queue; absent where the queue is the queue pair's own.
    pub srq: Option<u32>,
}

/// A completion queue, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqView {
    /// Handle.
    pub cq: u32,
    /// Owner.
    pub client: ClientId,
    /// CQEs it holds.
    pub capacity: u32,
    /// Completions written.
    pub written: u64,
    /// Completions that the application says it polled.
    pub polled: u64,
    /// Work queues that complete there.
    pub users: u32,
    /// It overflowed and is unusable.
    pub broken: bool,
}

/// Of a queue pair.
pub(crate) fn of_qp(qp: &Qp, shared: &Shared) -> QpView {
    QpView {
        qp: qp.handle,
        qpn: qp.qpn.value(),
        client: qp.client_id,
        qp_type: qp.qp_type,
        pd: qp.pd,
        cqs: (qp.send_cq, qp.recv_cq),
        attr: qp.attr,
        caps: qp.caps,
        outstanding: qp.sq.fetched().wrapping_sub(qp.sq.retired),
        posted: qp.sq.posted(&shared.clients, qp.client_slot),
        receives: receives(qp, shared),
        in_flight: (qp.requester.una().value(), qp.requester.cursor().psn.value()),
        sent_end: qp.requester.sent_end().value(),
        free_psn: qp.requester.next_psn().value(),
        expected_psn: qp.responder.epsn.value(),
        replies: qp.responder.replies.len(),
        timer: qp.deadline.map(|deadline| (reason(qp.requester.wait()), deadline)),
        retries_left: qp.requester.retries_left(),
        counters: qp.counters,
    }
}

fn receives(qp: &Qp, shared: &Shared) -> Option<Receives> {
    if let Some(own) = qp.receive_source.own() {
        let posted = own.posted(&shared.clients, qp.client_slot);
        return Some(Receives { posted, capacity: qp.caps.max_recv_wr, srq: None });
    }
    let named = || qp.receive_source.named().map(|named| named.srq);
    let handle = qp.receive_source.shared().or_else(named)?;
    let srq = shared.srqs.get(handle)?;
    let posted = srq.queue.posted(&shared.clients, srq.client_slot);
    Some(Receives { posted, capacity: srq.max_wr, srq: Some(handle) })
}

fn reason(wait: Option<Wait>) -> TimerReason {
    match wait {
        None => TimerReason::AckTimeout,
        Some(Wait::Rnr) => TimerReason::RnrWait,
        Some(Wait::Pause) => TimerReason::Pause,
    }
}

/// Of a completion queue.
pub(crate) fn of_cq(handle: u32, cq: &Cq) -> CqView {
    CqView {
        cq: handle,
        client: cq.client,
        capacity: cq.capacity,
        written: cq.written(),
        polled: cq.polled(),
        users: cq.users,
        broken: cq.broken,
    }
}
