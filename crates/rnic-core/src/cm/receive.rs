//! What peers say: from a datagram to the identifier that it is about.

use super::id::State;
use super::types::{PrivateData, Route};
use super::{Cm, messages};
use crate::time::Instant;
use roce_wire::cm::{AboutMessage, AlternatePath, CmMad, CmMessage, RejectReason};

impl Cm {
    /// A management datagram has arrived. `route` is the way back to its sender.
    pub fn receive(&mut self, now: Instant, route: &Route, mad: &[u8]) {
        let Ok(CmMad { header, message }) = CmMad::parse(mad) else {
            self.counters.cm_malformed += 1;
            return;
        };
        self.counters.cm_received += 1;
        let from = From { now, route: *route, transaction: header.transaction_id };
        match &message {
            CmMessage::Req(req) => self.take_req(&from, req),
            CmMessage::Mra(mra) => self.take_mra(&from, mra),
            CmMessage::Rej(rej) => self.take_rej(&from, rej),
            CmMessage::Rep(rep) => self.take_rep(&from, rep),
            CmMessage::Rtu(rtu) => self.take_rtu(&from, rtu),
            CmMessage::Dreq(dreq) => self.take_dreq(&from, dreq),
            CmMessage::Drep(drep) => self.take_drep(&from, drep),
            CmMessage::SidrReq(req) => self.take_sidr_req(&from, req),
            CmMessage::SidrRep(rep) => self.take_sidr_rep(&from, rep),
            CmMessage::Lap(lap) => self.take_lap(&from, lap),
            // Nothing that is sent asks for it.
            CmMessage::Apr(_) => self.counters.cm_out_of_state += 1,
        }
    }

    /// The identifier that a message names, if it comes from that identifier's peer.
    pub(super) fn named(&mut self, from: &From, local_comm: u32) -> Option<u32> {
        let found = self.by_comm.get(&local_comm).copied();
        let of_peer = |handle: &u32| {
            let link = self.ids.get(*handle).and_then(|id| id.link.as_ref());
            // Rule: CmPeerAddress
            link.is_some_and(|link| link.route.joins_same(&from.route))
        };
        let found = found.filter(of_peer);
        if found.is_none() {
            self.counters.cm_strangers += 1;
        }
        found
    }

    /// The same, if the message also has the peer's identifier.
    pub(super) fn named_by_both(
        &mut self,
        from: &From,
        local_comm: u32,
        remote_comm: u32,
    ) -> Option<u32> {
        let handle = self.named(from, local_comm)?;
        let link = self.ids.get(handle)?.link.as_ref()?;
        // Rule: CmBothIds
        let is_good = link.remote_comm == remote_comm;
        if !is_good {
            self.counters.cm_strangers += 1;
        }
        is_good.then_some(handle)
    }

    pub(super) fn state_of(&self, handle: u32) -> State {
        self.ids.get(handle).map_or(State::Idle, |id| id.state)
    }

    /// Refuses a message about which nothing is kept.
    pub(super) fn refuse(
        &mut self,
        from: &From,
        comms: (u32, u32),
        about: AboutMessage,
        reason: RejectReason,
    ) {
        self.counters.cm_refused += 1;
        if let Some(rej) = messages::rej(comms, about, reason, &PrivateData::NONE) {
            self.send(from.route, from.transaction, CmMessage::Rej(rej));
        }
    }

    /// RoCE has no alternate paths: what asks for one is refused, and the connection goes on.
    fn take_lap(&mut self, from: &From, lap: &AlternatePath) {
        let comms = (lap.remote_comm_id(), lap.local_comm_id());
        self.send(from.route, from.transaction, CmMessage::Apr(AlternatePath::refusal(comms)));
    }
}

/// Where and when a message came from.
pub(super) struct From {
    pub(super) now: Instant,
    pub(super) route: Route,
    pub(super) transaction: u64,
}
