//! Queue pairs as they are made.

use super::Qp;
use super::requester::sq::SendQueue;
use super::requester::{Requester, Segmentation};
use super::responder::Responder;
use super::responder::rq::{NamedSrq, ReceiveSource};
use super::target::Target;
use crate::command::{ClientId, NewQp, NewReceives};
use crate::recv_queue::RecvQueue;
use crate::slab::{NO_HANDLE, Slab};
use crate::srq::Srq;
use crate::transport::TransportRules;
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::verbs::{QpAttr, QpCaps, QpType};
use rnic_abi::wqe::MAX_SGE;
use roce_wire::Qpn;

/// The names of a new QP, and its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpIdentity {
    pub(crate) handle: u32,
    pub(crate) slot: u32,
    pub(crate) qpn: Qpn,
    pub(crate) client_id: ClientId,
    pub(crate) client_slot: u32,
}

/// What a queue pair is made of.
struct Parts {
    qp_type: QpType,
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    caps: QpCaps,
    sq_sig_all: bool,
    sq: SendQueue,
    receives: Receives,
    target: Option<Box<Target>>,
}

/// Where receives come from, their domain, and the SGEs that there may be in one.
struct Receives {
    source: ReceiveSource,
    pd: u32,
    max_sges: usize,
}

impl Receives {
    /// `None` when there is no such shared receive queue.
    fn of(wanted: NewReceives, pd: u32, srqs: &Slab<Srq>) -> Option<Self> {
        Some(match wanted {
            NewReceives::Own(queue) => {
                let queue = RecvQueue::new(queue);
                let max_sges = queue.max_sges();
                Self { source: ReceiveSource::Own(queue), pd, max_sges }
            }
            NewReceives::Shared(srq) => {
                let Srq { queue, pd: own, .. } = srqs.get(srq)?;
                let source = ReceiveSource::Shared { srq, record: queue.record };
                // Rule: SrqKeysOfItsDomain
                Self { source, pd: *own, max_sges: queue.max_sges() }
            }
            NewReceives::None => Self { max_sges: 0, ..Self::named()? },
        })
    }

    /// Of the queue that a message will name.
    fn named() -> Option<Self> {
        let record = RecordIndex::new(0)?;
        let source = ReceiveSource::Named(NamedSrq { number: 0, srq: NO_HANDLE, record });
        // Room for the receives of any queue, so that no message has to wait for memory.
        Some(Self { source, pd: NO_HANDLE, max_sges: MAX_SGE })
    }
}

impl Qp {
    /// `None` when there is no such shared receive queue.
    pub(crate) fn new(identity: QpIdentity, new: NewQp, srqs: &Slab<Srq>) -> Option<Self> {
        let parts = Parts {
            qp_type: new.qp_type,
            pd: new.pd,
            send_cq: new.send_cq,
            recv_cq: new.recv_cq,
            caps: new.caps,
            sq_sig_all: new.sq_sig_all,
            sq: SendQueue::new(new.sq),
            receives: Receives::of(new.rq, new.pd, srqs)?,
            target: None,
        };
        Some(Self::assemble(identity, parts))
    }

    /// An XRC target: it has no queues, and learns from each message whose domain and completion
    /// queue count.
    pub(crate) fn new_target(identity: QpIdentity, target: Target) -> Option<Self> {
        let parts = Parts {
            qp_type: QpType::XrcRecv,
            pd: NO_HANDLE,
            send_cq: NO_HANDLE,
            recv_cq: NO_HANDLE,
            caps: QpCaps::default(),
            sq_sig_all: false,
            sq: SendQueue::none()?,
            receives: Receives::named()?,
            target: Some(Box::new(target)),
        };
        Some(Self::assemble(identity, parts))
    }

    fn assemble(identity: QpIdentity, parts: Parts) -> Self {
        let rules = TransportRules::of(parts.qp_type);
        Self {
            handle: identity.handle,
            slot: identity.slot,
            qpn: identity.qpn,
            client_id: identity.client_id,
            client_slot: identity.client_slot,
            qp_type: parts.qp_type,
            rules,
            pd: parts.pd,
            receive_pd: parts.receives.pd,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            sq_sig_all: parts.sq_sig_all,
            is_active: false,
            is_retiring: false,
            requests_due: false,
            caps: parts.caps,
            attr: QpAttr::default(),
            path: None,
            is_local: false,
            mtu: 0,
            segmentation: Segmentation::none(rules),
            sq: parts.sq,
            responder: Responder::new(parts.receives.max_sges),
            receive_source: parts.receives.source,
            requester: Requester::default(),
            deadline: None,
            wheel_at: None,
            wheel_later: None,
            counters: Default::default(),
            async_events: 0,
            groups: 0,
            target: parts.target,
        }
    }
}
