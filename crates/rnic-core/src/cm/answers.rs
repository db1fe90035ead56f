//! A peer answers, or speaks of a connection that there is.

use super::commands::is_usable;
use super::id::{State, time_of};
use super::receive::From;
use super::types::{Happening, PrivateData, Response};
use super::{Cm, DECISION, Kind, messages};
use roce_wire::cm::{AboutMessage, CmMessage, Drep, Dreq, Mra, Rej, RejectReason, Rep, Rtu};

impl Cm {
    pub(super) fn take_rep(&mut self, from: &From, rep: &Rep) {
        let Some(handle) = self.named(from, rep.remote_comm_id) else {
            // Rule: UnknownRep
            let comms = (rep.remote_comm_id, rep.local_comm_id);
            return self.refuse(from, comms, AboutMessage::Rep, RejectReason::INVALID_COMM_ID);
        };
        match self.state_of(handle) {
            State::ReqSent => self.take_first_rep(from, rep, handle),
            // Rule: RepAgain
            State::RepReceived | State::Established => self.take_duplicate_rep(from, rep, handle),
            _ => self.counters.cm_out_of_state += 1,
        }
    }

    fn take_first_rep(&mut self, from: &From, rep: &Rep, handle: u32) {
        let comms = (rep.remote_comm_id, rep.local_comm_id);
        let link = self.ids.get(handle).and_then(|id| id.link.as_ref());
        let Some(qpn) = link.map(|link| messages::qpn_of_rep(link, rep)) else { return };
        let fault = match is_usable(qpn) {
            false => Some(RejectReason::NO_QP),
            true => self.check_stale(from, qpn).err(),
        };
        if let Some(reason) = fault {
            self.refuse(from, comms, AboutMessage::Rep, reason);
            self.tell(handle, Happening::Rejected(reason.0), PrivateData::NONE);
            return self.end(handle);
        }
        let Some(link) = self.ids.get_mut(handle).and_then(|id| id.link.as_mut()) else { return };
        link.remote_comm = rep.local_comm_id;
        link.remote_qpn = qpn;
        let remote = (link.route.remote, qpn);
        self.by_remote_qpn.insert(remote, handle);
        self.enter(handle, State::RepReceived);
        self.set_deadline(handle, Some(from.now.after(DECISION)));
        let response = Response {
            offer: messages::offer_of_rep(rep, qpn),
            starting_psn: rep.starting_psn,
            ack_delay: rep.target_ack_delay,
        };
        let private = PrivateData::received(&rep.private_data);
        self.tell(handle, Happening::Response(response), private);
    }

    /// The peer has not heard that its REP has come.
    fn take_duplicate_rep(&mut self, from: &From, rep: &Rep, handle: u32) {
        let Some(id) = self.ids.get(handle) else { return };
        let Some(link) = &id.link else { return };
        let said = (rep.local_comm_id, messages::qpn_of_rep(link, rep));
        if (link.remote_comm, link.remote_qpn) != said {
            self.counters.cm_strangers += 1;
            return;
        }
        self.counters.cm_duplicates += 1;
        match id.state {
            State::RepReceived => {
                let mra = messages::mra(link, AboutMessage::Rep);
                self.send(from.route, from.transaction, mra);
            }
            _ => self.send_last(handle),
        }
    }

    pub(super) fn take_rtu(&mut self, from: &From, rtu: &Rtu) {
        let named = self.named_by_both(from, rtu.remote_comm_id, rtu.local_comm_id);
        let Some(handle) = named else { return };
        match self.state_of(handle) {
            State::RepSent => self.established(handle),
            State::Established => self.counters.cm_duplicates += 1,
            _ => self.counters.cm_out_of_state += 1,
        }
    }

    pub(super) fn take_mra(&mut self, from: &From, mra: &Mra) {
        let Some(handle) = self.named(from, mra.remote_comm_id) else { return };
        let Some(id) = self.ids.get_mut(handle) else { return };
        let fits = matches!(
            (id.state, mra.about),
            (State::ReqSent, AboutMessage::Req) | (State::RepSent, AboutMessage::Rep)
        );
        let link = id.link.as_mut().filter(|link| !link.was_put_off);
        // Rule: MraOnce
        let Some(link) = link.filter(|_| fits) else {
            self.counters.cm_out_of_state += 1;
            return;
        };
        link.was_put_off = true;
        let until = time_of(mra.service_timeout) + link.timewait;
        self.set_deadline(handle, Some(from.now.after(until)));
    }

    pub(super) fn take_rej(&mut self, from: &From, rej: &Rej) {
        let Some(handle) = self.rejected(from, rej) else { return };
        let private = PrivateData::received(&rej.private_data);
        let refused = Happening::Rejected(rej.reason.0);
        match self.state_of(handle) {
            State::ReqSent | State::ReqReceived | State::RepSent | State::RepReceived => {
                self.tell(handle, refused, private);
                self.end(handle);
            }
            State::Established | State::DreqSent => self.is_over(from.now, handle),
            _ => self.counters.cm_out_of_state += 1,
        }
    }

    /// The identifier that a REJ is about.
    fn rejected(&mut self, from: &From, rej: &Rej) -> Option<u32> {
        if rej.reason == RejectReason::TIMEOUT {
            // The peer may know no identifier but its own.
            // Rule: RejOfTimeout
            if let Some(handle) = self.known_remote(from, Kind::Connection, rej.local_comm_id) {
                return Some(handle);
            }
        }
        match rej.about {
            AboutMessage::Req => self.named(from, rej.remote_comm_id),
            _ => self.named_by_both(from, rej.remote_comm_id, rej.local_comm_id),
        }
    }

    pub(super) fn take_dreq(&mut self, from: &From, dreq: &Dreq) {
        if !self.by_comm.contains_key(&dreq.remote_comm_id) {
            // Rule: DreqAnswered
            self.counters.cm_strangers += 1;
            return self.send_drep(from, dreq);
        }
        let named = self.named_by_both(from, dreq.remote_comm_id, dreq.local_comm_id);
        let Some(handle) = named else { return };
        let Some(id) = self.ids.get(handle) else { return };
        // Rule: DreqQpn
        let is_meant = id.link.as_ref().is_some_and(|link| link.local_qpn == dreq.remote_qpn);
        if !is_meant {
            self.counters.cm_strangers += 1;
            return;
        }
        match id.state {
            State::Established | State::RepSent | State::RepReceived | State::DreqSent => {
                self.tell(handle, Happening::Disconnected, PrivateData::NONE);
                self.send_drep(from, dreq);
                self.linger(from.now, handle);
            }
            State::Timewait => {
                self.counters.cm_duplicates += 1;
                self.send_drep(from, dreq);
            }
            _ => self.counters.cm_out_of_state += 1,
        }
    }

    fn send_drep(&mut self, from: &From, dreq: &Dreq) {
        let drep = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; Drep::PRIVATE_DATA_LEN],
        };
        self.send(from.route, from.transaction, CmMessage::Drep(drep));
    }

    pub(super) fn take_drep(&mut self, from: &From, drep: &Drep) {
        let named = self.named_by_both(from, drep.remote_comm_id, drep.local_comm_id);
        let Some(handle) = named else { return };
        if self.state_of(handle) == State::DreqSent {
            self.is_over(from.now, handle);
        } else {
            self.counters.cm_out_of_state += 1;
        }
    }
}
