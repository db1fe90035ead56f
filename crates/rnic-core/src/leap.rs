//! PSNs that leap, for simulations: a connection that sent gigabytes is made in no time.
//!
//! What a queue pair remembers of earlier requests must not be taken for something new when their
//! PSNs come round again. That takes 2^23 packets to see, unless they need not be sent.

use crate::engine::Engine;
use crate::qp::Qp;
use rnic_abi::verbs::QpState;

/// PSNs of a step: less than any rule of the engine counts in.
const STEP: u32 = 1 << 16;

impl Engine {
    /// A queue pair by its handle, or by that of a reference to it.
    fn by_any_handle(&self, handle: u32) -> u32 {
        self.shared.xrc.referred(handle).unwrap_or(handle)
    }

    /// The queue pair is in RTS, nothing is posted, under way, waited for, or owed to its
    /// peer.
    pub fn is_at_rest(&self, qp: u32) -> bool {
        self.qps.get(self.by_any_handle(qp)).is_some_and(|qp| {
            let clients = &self.shared.clients;
            let posted = qp.sq.record.map_or(0, |at| clients.producer(qp.client_slot, at));
            qp.attr.state == QpState::Rts
                && qp.sq.fetched() == posted
                && qp.sq.retired == posted
                && qp.requester.wait().is_none()
                && qp.responder.is_at_rest()
        })
    }

    /// As if the queue pair, which must be [at rest](Self::is_at_rest), had sent and received so
    /// many packets of WRITEs that were never posted.
    pub fn leap(&mut self, qp: u32, sent: u32, received: u32) {
        let qp = self.by_any_handle(qp);
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.leap(sent, received);
        }
    }
}

impl Qp {
    fn leap(&mut self, sent: u32, received: u32) {
        self.requester.leap(sent, &self.attr);
        let mut left = received;
        while left > 0 {
            let step = left.min(STEP);
            self.responder.accept(self.responder.epsn, step, false, false);
            left -= step;
        }
    }
}
