//! XRC: requests that name the shared receive queue that they are for, and the queue pairs that
//! such requests come to.
//!
//! A target belongs to a domain, not to a client: it lasts as long as any client refers to it. It
//! has neither a protection domain nor completion queues. Each request is executed as one of a
//! queue pair that was made with the shared receive queue that it names (IBTA annex A14).

use super::Qp;
use super::packet::Packet;
use super::responder::OpenMessage;
use super::responder::rq::{NamedSrq, ReceiveSource};
use super::verdict::Verdict;
use crate::event::{DropReason, NakReason, Tap};
use crate::shared::Ctx;
use crate::slab::NO_HANDLE;
use crate::srq::Srq;
use rnic_abi::control::AsyncEvent;
use rnic_abi::verbs::AsyncEventType;
use std::collections::BTreeSet;

/// What an XRC target has besides.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) domain: u32,
    /// The references to it, by handle.
    pub(crate) refs: BTreeSet<u32>,
}

impl Qp {
    /// Looks at what only requests of XRC have: the shared receive queue that they name is the one
    /// that this queue pair works with from now on. In line it would cost all other requests.
    #[inline(never)]
    pub(crate) fn follow_name<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Result<(), Verdict> {
        let (Some(target), Some(xrceth)) = (&self.target, packet.datagram.xrceth()) else {
            // Rule: XrcInitiatorOnlySends
            return Err(Verdict::Drop(DropReason::Transport));
        };
        let domain = target.domain;
        // What is not the next request names nothing: it is executed already, or not at all.
        // Rule: XrcNameInSequence
        let is_next = packet.psn == self.responder.epsn;
        let is_same = self.receive_source.named().is_some_and(|named| named.number == xrceth.srq);
        if !is_next || is_same {
            return Ok(());
        }
        let is_open = self.responder.message != OpenMessage::None;
        // Rule: XrcOneNamePerMessage
        if is_open {
            return Err(Verdict::nak(NakReason::NoSrq));
        }
        let found = ctx.shared.xrc.slot_of(xrceth.srq).and_then(|slot| {
            let srq = ctx.shared.srqs.by_slot(slot)?;
            srq.xrc.filter(|xrc| xrc.number == xrceth.srq).map(|xrc| (srq, xrc))
        });
        // Rule: XrcSrqOfDomain
        let found = found.filter(|(_, xrc)| xrc.domain == domain);
        let Some((Srq { queue, pd, .. }, xrc)) = found else {
            return Err(Verdict::nak(NakReason::NoSrq));
        };
        let named = NamedSrq { number: xrc.number, srq: xrc.handle, record: queue.record };
        // Rule: XrcDomainOfSrq
        (self.pd, self.receive_pd) = (*pd, *pd);
        // Rule: XrcCompletesAtSrq
        self.recv_cq = xrc.cq;
        self.receive_source = ReceiveSource::Named(named);
        Ok(())
    }

    /// A shared receive queue of XRC goes away. The receive of it that a message was filling goes
    /// with it: the rest of that message is refused.
    pub(crate) fn forget_srq(&mut self, srq: u32) {
        let ReceiveSource::Named(named) = &mut self.receive_source else { return };
        if named.srq != srq {
            return;
        }
        // Rule: XrcSrqGone
        (named.number, named.srq) = (0, NO_HANDLE);
        (self.pd, self.receive_pd, self.recv_cq) = (NO_HANDLE, NO_HANDLE, NO_HANDLE);
        self.responder.recv = None;
    }

    /// Raises an async event about an XRC target: each reference gets one.
    #[cold]
    pub(super) fn raise_at_refs<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, event: AsyncEventType) {
        let refs = self.target.iter().flat_map(|target| target.refs.iter());
        for handle in refs {
            // Rule: XrcEventsToAll
            let Some(found) = ctx.shared.xrc.reference_mut(*handle) else { continue };
            found.async_events += 1;
            let event = AsyncEvent { event, element: *handle };
            ctx.shared.async_events.push((found.client, event));
            ctx.shared.counters.async_events += 1;
        }
    }
}
