//! The search for the queue pair behind a datagram service (SIDR).

use super::commands::is_usable;
use super::id::{Link, State};
use super::receive::From;
use super::types::{Happening, Lookup, PrivateData};
use super::{Cm, Kind, messages};
use roce_wire::cm::{CmMessage, CmaHeader, RejectReason, SidrRep, SidrReq, SidrStatus};
use roce_wire::{Psn, QKey, Qpn};
use std::time::Duration;

impl Cm {
    pub(super) fn take_sidr_req(&mut self, from: &From, req: &SidrReq) {
        if let Some(known) = self.known_remote(from, Kind::Lookup, req.request_id) {
            self.counters.cm_duplicates += 1;
            // Rule: SidrAgain
            if self.state_of(known) == State::SidrAnswered {
                self.send_last(known);
            }
            return;
        }
        let found = match self.find_listener(from, req.service_id, &req.private_data) {
            Ok(found) => found,
            Err(RejectReason::INVALID_SERVICE_ID) => {
                return self.refuse_sidr(from, req, SidrStatus::UNSUPPORTED_SERVICE);
            }
            Err(_) => return self.refuse_sidr(from, req, SidrStatus::REJECTED),
        };
        let link = Link {
            route: from.route,
            listener: Some(found.listener),
            local_comm: self.new_comm(),
            remote_comm: req.request_id,
            transaction: from.transaction,
            local_qpn: Qpn::SMI,
            remote_qpn: Qpn::SMI,
            psn: Psn::ZERO,
            last: None,
            patience: Duration::ZERO,
            tries: 0,
            was_put_off: false,
            timewait: Duration::ZERO,
            is_xrc: false,
        };
        let filed = (Kind::Lookup, State::SidrReceived);
        let Some(handle) = self.file(from.now, found.owner, filed, link) else {
            return self.refuse_sidr(from, req, SidrStatus::REJECTED);
        };
        let lookup = Lookup {
            listener: found.listener,
            route: from.route,
            space: found.space,
            ports: found.ports,
        };
        let private = req.private_data.get(CmaHeader::LEN..).unwrap_or_default();
        self.tell(handle, Happening::Lookup(lookup), PrivateData::received(private));
    }

    fn refuse_sidr(&mut self, from: &From, req: &SidrReq, status: SidrStatus) {
        self.counters.cm_refused += 1;
        let nothing = (Qpn::SMI, QKey(0));
        let reply = messages::sidr_rep(req.request_id, status, nothing, &PrivateData::NONE);
        if let Some(reply) = reply {
            self.send(from.route, from.transaction, CmMessage::SidrRep(reply));
        }
    }

    pub(super) fn take_sidr_rep(&mut self, from: &From, rep: &SidrRep) {
        let Some(handle) = self.named(from, rep.request_id) else { return };
        if self.state_of(handle) != State::SidrSent {
            self.counters.cm_out_of_state += 1;
            return;
        }
        let what = match rep.status {
            SidrStatus::VALID if is_usable(rep.qpn) => {
                Happening::Found { qpn: rep.qpn, qkey: rep.qkey }
            }
            SidrStatus::VALID => Happening::Rejected(SidrStatus::NO_QP.0.into()),
            SidrStatus(status) => Happening::Rejected(status.into()),
        };
        self.tell(handle, what, PrivateData::received(&rep.private_data));
        self.end(handle);
    }
}
