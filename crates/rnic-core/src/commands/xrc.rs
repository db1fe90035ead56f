//! Commands about domains of XRC and their targets.

use super::{CommandResult, NO_CLIENT};
use crate::command::{ClientId, Outcome, XrcOpen, invalid, no_such};
use crate::engine::Engine;
use crate::qp::{Qp, Target};
use crate::srq::XrcSrq;
use crate::time::Instant;
use roce_wire::Qpn;
use std::collections::BTreeSet;

impl Engine {
    pub(super) fn open_xrcd(&mut self, client: ClientId, how: XrcOpen) -> CommandResult {
        self.shared.clients.slot_of(client).ok_or(NO_CLIENT)?;
        self.shared.xrc.open(client, how).map(Outcome::Handle)
    }

    pub(super) fn close_xrcd(&mut self, client: ClientId, xrcd: u32) -> CommandResult {
        self.shared.xrc.close(client, xrcd).map(|()| Outcome::Done)
    }

    pub(super) fn create_target(&mut self, client: ClientId, xrcd: u32) -> CommandResult {
        let domain = self.shared.xrc.domain_of(client, xrcd)?;
        let identity = self.next_identity(client)?;
        let reference = self.shared.xrc.refer(client, xrcd, identity.handle)?;
        let target = Target { domain, refs: BTreeSet::from([reference]) };
        let qp = Qp::new_target(identity, target).ok_or(invalid("an impossible queue"))?;
        self.add_qp(qp)?;
        self.shared.xrc.add_target(domain, identity.handle);
        Ok(Outcome::Qp { qp: reference, qpn: identity.qpn.value() })
    }

    pub(super) fn open_qp(&mut self, client: ClientId, xrcd: u32, qpn: u32) -> CommandResult {
        let domain = self.shared.xrc.domain_of(client, xrcd)?;
        let slot = self.codec.decode(Qpn::new(qpn)).slot;
        let found = self.qps.by_slot_mut(slot as usize).filter(|qp| qp.qpn.value() == qpn);
        let found = found.and_then(|qp| Some((qp.handle, qp.target.as_deref_mut()?)));
        // Rule: OpenedInDomain
        let found = found.filter(|(_, target)| target.domain == domain);
        let Some((handle, target)) = found else {
            return Err(invalid("the domain has no such XRC target"));
        };
        let reference = self.shared.xrc.refer(client, xrcd, handle)?;
        target.refs.insert(reference);
        Ok(Outcome::Qp { qp: reference, qpn })
    }

    /// Gives a reference up; the target goes with the last one.
    pub(super) fn close_reference(&mut self, now: Instant, reference: u32) -> CommandResult {
        let gone = self.shared.xrc.unrefer(reference).ok_or(no_such("no such queue pair"))?;
        let left = self.qps.get_mut(gone.qp).and_then(|qp| {
            let refs = &mut qp.target.as_deref_mut()?.refs;
            refs.remove(&reference);
            refs.first().copied()
        });
        // Rule: TargetLastsWhileReferred
        match left {
            None => self.remove_qp(now, gone.qp),
            Some(other) => self.hand_target_on(gone.qp, other),
        }
        Ok(Outcome::QpGone { async_events: gone.async_events })
    }

    /// A target takes its turns as one of the client that has this reference.
    fn hand_target_on(&mut self, handle: u32, reference: u32) {
        let Some(heir) = self.shared.xrc.reference_mut(reference).map(|found| found.client) else {
            return;
        };
        let Some(slot) = self.shared.clients.slot_of(heir) else { return };
        let Some(qp) = self.qps.get_mut(handle) else { return };
        if qp.client_slot == slot {
            return;
        }
        let active = &mut self.shared.active;
        active.remove(qp.client_slot, qp.slot);
        active.add(slot);
        if qp.is_active {
            active.push_back(slot, qp.slot);
        }
        (qp.client_id, qp.client_slot) = (heir, slot);
    }

    /// A shared receive queue of a domain is gone: no message may name it any more.
    pub(super) fn forget_xrc_srq(&mut self, gone: &XrcSrq) {
        self.shared.xrc.release(gone.opening);
        if let Some(cq) = self.shared.cqs.get_mut(gone.cq) {
            cq.remove_srq(gone.handle);
        }
        for handle in self.shared.xrc.targets_of(gone.domain) {
            if let Some(qp) = self.qps.get_mut(handle) {
                qp.forget_srq(gone.handle);
            }
        }
    }
}
