//! A peer asks for a connection.

use super::commands::is_usable;
use super::id::{Link, State, time_of};
use super::receive::From;
use super::types::{Happening, Owner, PrivateData, Request};
use super::{Cm, Kind, messages};
use crate::time::Instant;
use roce_wire::cm::{
    AboutMessage, CmaHeader, PortSpace, RejectReason, Req, TransportType, service_id_parts,
};
use roce_wire::{Gid, Qpn};

/// A listener that something is for.
pub(super) struct Found {
    pub(super) listener: u32,
    pub(super) owner: Owner,
    pub(super) space: PortSpace,
    /// Own port and the peer's.
    pub(super) ports: (u16, u16),
}

/// XRC is only for listeners of the space that has queue pairs of all kinds.
fn is_misplaced(req: &Req, space: PortSpace) -> bool {
    req.transport == TransportType::Extended && space != PortSpace::Ib
}

impl Cm {
    pub(super) fn take_req(&mut self, from: &From, req: &Req) {
        // Rule: DuplicateReq
        if let Some(known) = self.known_remote(from, Kind::Connection, req.local_comm_id) {
            return self.take_duplicate_req(from, req, known);
        }
        if let Err(reason) = self.check_req(from, req) {
            return self.refuse_req(from, req, reason);
        }
        match self.find_listener(from, req.service_id, &req.private_data) {
            // Rule: XrcPortSpace
            Ok(found) if is_misplaced(req, found.space) => {
                self.refuse_req(from, req, RejectReason::INVALID_TRANSPORT);
            }
            Ok(found) => self.offer_to(from, req, &found),
            Err(reason) => self.refuse_req(from, req, reason),
        }
    }

    fn refuse_req(&mut self, from: &From, req: &Req, reason: RejectReason) {
        self.refuse(from, (0, req.local_comm_id), AboutMessage::Req, reason);
    }

    pub(super) fn known_remote(&self, from: &From, kind: Kind, remote: u32) -> Option<u32> {
        self.by_remote.get(&(from.route.remote, kind, remote)).copied()
    }

    /// What no listener could accept.
    fn check_req(&mut self, from: &From, req: &Req) -> Result<(), RejectReason> {
        if !messages::is_known(req) {
            return Err(RejectReason::INVALID_TRANSPORT);
        }
        // Rule: ReqQpn
        if !is_usable(req.local_qpn) {
            return Err(RejectReason::NO_QP);
        }
        // Rule: ReqGids
        let gids = (req.primary.local_gid, req.primary.remote_gid);
        if gids != (Gid::from_ip(from.route.remote), Gid::from_ip(from.route.local)) {
            return Err(RejectReason::INVALID_GID);
        }
        // Rule: ReqMtu
        let fits = req.path_mtu().is_some_and(|mtu| mtu.code() <= self.config.mtu_code);
        if !fits {
            return Err(RejectReason::INVALID_MTU);
        }
        self.check_stale(from, req.local_qpn)
    }

    /// A queue pair that the peer uses for something new has lost the connection that it had.
    pub(super) fn check_stale(&mut self, from: &From, remote: Qpn) -> Result<(), RejectReason> {
        // Rule: StaleConnection
        let old = self.by_remote_qpn.get(&(from.route.remote, remote)).copied();
        let Some(old) = old else { return Ok(()) };
        match self.state_of(old) {
            State::Established | State::RepSent => {
                self.tell(old, Happening::Disconnected, PrivateData::NONE);
                // The peer answers it, although it knows no connection.
                self.ask_to_disconnect(from.now, old);
                self.linger(from.now, old);
            }
            // Both want the old one to end, and the peer has ended it: only its answer is lost.
            // Rule: StaleDisconnect
            State::DreqSent => {
                self.is_over(from.now, old);
                return Ok(());
            }
            // The peer gave it up, and its message about that is lost.
            _ => {
                let reason = RejectReason::STALE_CONNECTION.0;
                self.tell(old, Happening::Rejected(reason), PrivateData::NONE);
                self.end(old);
            }
        }
        Err(RejectReason::STALE_CONNECTION)
    }

    /// The peer knows, too, that the connection has ended.
    pub(super) fn is_over(&mut self, now: Instant, handle: u32) {
        self.tell(handle, Happening::Disconnected, PrivateData::NONE);
        self.linger(now, handle);
    }

    pub(super) fn find_listener(
        &self,
        from: &From,
        service: u64,
        private: &[u8],
    ) -> Result<Found, RejectReason> {
        let none = RejectReason::INVALID_SERVICE_ID;
        let (space, port) = service_id_parts(service).ok_or(none)?;
        let mut candidates = self.ports.candidates(space, port, from.route.local);
        // Rule: NoListener
        let listener = candidates.find(|handle| self.listens(*handle)).ok_or(none)?;
        let header = CmaHeader::parse(private).ok_or(RejectReason::CONSUMER_DEFINED)?;
        // A program is told these addresses: they must be those that the answer goes to.
        // Rule: CmaAddresses
        if (header.src, header.dst) != (from.route.remote, from.route.local) {
            return Err(RejectReason::INVALID_GID);
        }
        let id = self.ids.get(listener).ok_or(none)?;
        let owner = id.owner.ok_or(none)?;
        match id.state {
            // Rule: Backlog
            State::Listening { backlog, pending } if pending < backlog => {}
            _ => return Err(RejectReason::NO_RESOURCES),
        }
        Ok(Found { listener, owner, space, ports: (port, header.src_port) })
    }

    fn offer_to(&mut self, from: &From, req: &Req, found: &Found) {
        let link = Link {
            route: from.route,
            listener: Some(found.listener),
            local_comm: self.new_comm(),
            remote_comm: req.local_comm_id,
            transaction: from.transaction,
            local_qpn: Qpn::SMI,
            remote_qpn: req.local_qpn,
            psn: self.new_psn(),
            last: None,
            patience: time_of(req.local_cm_response_timeout),
            tries: 0,
            was_put_off: false,
            timewait: time_of(req.primary.local_ack_timeout),
            is_xrc: req.transport == TransportType::Extended,
        };
        let psn = link.psn;
        let filed = (Kind::Connection, State::ReqReceived);
        let Some(handle) = self.file(from.now, found.owner, filed, link) else {
            return self.refuse_req(from, req, RejectReason::NO_RESOURCES);
        };
        let request = Request {
            listener: found.listener,
            route: super::Route { flow_label: req.primary.flow_label, ..from.route },
            space: found.space,
            ports: found.ports,
            transport: req.transport,
            offer: messages::offer_of_req(req),
            starting_psn: req.starting_psn,
            psn,
            retry_count: req.retry_count,
            mtu_code: req.path_mtu_code,
            ack_timeout: req.primary.local_ack_timeout,
        };
        let private = req.private_data.get(CmaHeader::LEN..).unwrap_or_default();
        self.tell(handle, Happening::Request(request), PrivateData::received(private));
    }

    /// The peer has not heard an answer yet.
    fn take_duplicate_req(&mut self, from: &From, req: &Req, handle: u32) {
        self.counters.cm_duplicates += 1;
        match self.state_of(handle) {
            State::ReqReceived => {
                let link = self.ids.get(handle).and_then(|id| id.link.as_ref());
                let Some(mra) = link.map(|link| messages::mra(link, AboutMessage::Req)) else {
                    return;
                };
                self.send(from.route, from.transaction, mra);
            }
            State::Timewait => {
                self.refuse_req(from, req, RejectReason::STALE_CONNECTION);
            }
            // A REP is on its way, and follows by its timer if it is lost.
            _ => {}
        }
    }
}
