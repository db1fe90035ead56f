//! What programs ask for.

use super::id::{Id, Link, Port, State, time_of};
use super::types::{CmError, Connect, Happening, Offer, Owner, PrivateData, Route};
use super::{
    Cm, DECISION, Kind, MAX_REJ_PRIVATE, MAX_REP_PRIVATE, MAX_REQ_PRIVATE, MAX_SIDR_REP_PRIVATE,
    MAX_SIDR_REQ_PRIVATE, SIDR_LINGER, messages, remove_own, req_patience,
};
use crate::time::Instant;
use roce_wire::cm::{AboutMessage, CmMessage, PortSpace, RejectReason, SidrStatus, TransportType};
use roce_wire::{Psn, QKey, Qpn};
use std::net::IpAddr;
use std::time::Duration;

impl Cm {
    /// A new identifier, which has a port of `space`: at one address, at all of a family (its
    /// unspecified address) or at all there are, `number` or, with 0, any. Others of the user may
    /// have the same if both are `shared`. Returns the identifier and the port.
    ///
    /// # Errors
    /// [`CmError::AddressInUse`], [`CmError::Full`].
    pub fn bind(
        &mut self,
        owner: Owner,
        space: PortSpace,
        address: Option<IpAddr>,
        number: u16,
        shared: bool,
    ) -> Result<(u32, u16), CmError> {
        let start = self.draw();
        let handle = self.insert(Id::new(owner, State::Idle)).ok_or(CmError::Full)?;
        let sharers = shared.then_some(owner.user);
        match self.ports.take(Port { space, number, address, sharers }, handle, start) {
            Ok(port) => {
                if let Some(id) = self.ids.get_mut(handle) {
                    id.port = Some(port);
                }
                Ok((handle, port.number))
            }
            Err(error) => {
                self.remove(handle);
                Err(error)
            }
        }
    }

    /// Peers may connect to the port. So many of them may wait for the program to decide.
    ///
    /// # Errors
    /// [`CmError::NoSuchId`], [`CmError::State`]; [`CmError::AddressInUse`] when one that shares
    /// the port listens.
    pub fn listen(&mut self, handle: u32, backlog: u32) -> Result<(), CmError> {
        let id = self.ids.get(handle).ok_or(CmError::NoSuchId)?;
        let port = id.port.ok_or(CmError::State)?;
        if id.state != State::Idle {
            return Err(CmError::State);
        }
        let is_taken =
            self.ports.overlapping(&port).any(|other| other != handle && self.listens(other));
        if is_taken {
            return Err(CmError::AddressInUse);
        }
        let state = State::Listening { backlog: backlog.clamp(1, MAX_BACKLOG), pending: 0 };
        self.enter(handle, state);
        Ok(())
    }

    /// Peers may not connect to the port any more. What they have asked for stays undecided.
    ///
    /// # Errors
    /// [`CmError::NoSuchId`], [`CmError::State`].
    pub fn stop_listening(&mut self, handle: u32) -> Result<(), CmError> {
        if !self.ids.get(handle).ok_or(CmError::NoSuchId)?.state.listens() {
            return Err(CmError::State);
        }
        self.enter(handle, State::Idle);
        Ok(())
    }

    pub(super) fn listens(&self, handle: u32) -> bool {
        self.ids.get(handle).is_some_and(|id| id.state.listens())
    }

    /// Events go there from now on.
    ///
    /// # Errors
    /// [`CmError::NoSuchId`].
    pub fn set_owner(&mut self, handle: u32, owner: Owner) -> Result<(), CmError> {
        let id = self.ids.get_mut(handle).ok_or(CmError::NoSuchId)?;
        if let Some(old) = id.owner.replace(owner) {
            self.by_owner.remove(&(old, handle));
        }
        self.by_owner.insert((owner, handle));
        Ok(())
    }

    /// Asks a peer for a connection. Returns the first PSN that the own queue pair has to expect.
    ///
    /// # Errors
    /// [`CmError`].
    pub fn connect(
        &mut self,
        now: Instant,
        handle: u32,
        connect: &Connect,
    ) -> Result<Psn, CmError> {
        let port = self.idle_port(handle)?;
        check_connect(connect)?;
        self.check_qpn(connect.offer.qpn)?;
        let comm = self.new_comm();
        let psn = self.new_psn();
        let link = Link {
            local_qpn: connect.offer.qpn,
            psn,
            timewait: time_of(connect.ack_timeout),
            is_xrc: connect.transport == TransportType::Extended,
            ..self.new_link(connect.route, comm)
        };
        let request = messages::req(self.config.guid, port, connect, comm, psn);
        let request = request.ok_or(CmError::Invalid)?;
        self.attach(handle, link, State::ReqSent);
        self.by_local_qpn.insert(connect.offer.qpn, handle);
        self.send_until_answered(now, handle, u64::from(comm), CmMessage::Req(request));
        Ok(psn)
    }

    /// Asks a peer for the queue pair behind a datagram service.
    ///
    /// # Errors
    /// [`CmError`].
    pub fn look_up(
        &mut self,
        now: Instant,
        handle: u32,
        route: Route,
        remote_port: u16,
        private: &PrivateData,
    ) -> Result<(), CmError> {
        let port = self.idle_port(handle)?;
        if private.as_slice().len() > MAX_SIDR_REQ_PRIVATE {
            return Err(CmError::Invalid);
        }
        let comm = self.new_comm();
        let link =
            Link { patience: time_of(super::RESPONSE_TIMEOUT), ..self.new_link(route, comm) };
        let request = messages::sidr_req(port, &route, remote_port, comm, private);
        let request = request.ok_or(CmError::Invalid)?;
        self.attach(handle, link, State::SidrSent);
        self.send_until_answered(now, handle, u64::from(comm), CmMessage::SidrReq(request));
        Ok(())
    }

    /// What a link of the active side begins with.
    fn new_link(&self, route: Route, comm: u32) -> Link {
        Link {
            route,
            listener: None,
            local_comm: comm,
            remote_comm: 0,
            transaction: u64::from(comm),
            local_qpn: Qpn::SMI,
            remote_qpn: Qpn::SMI,
            psn: Psn::ZERO,
            last: None,
            patience: req_patience(),
            tries: 0,
            was_put_off: false,
            timewait: Duration::ZERO,
            is_xrc: false,
        }
    }

    fn idle_port(&self, handle: u32) -> Result<Port, CmError> {
        let id = self.ids.get(handle).ok_or(CmError::NoSuchId)?;
        match (id.state, id.port) {
            (State::Idle, Some(port)) => Ok(port),
            _ => Err(CmError::State),
        }
    }

    /// A queue pair that may be used, and has no connection.
    fn check_qpn(&self, qpn: Qpn) -> Result<(), CmError> {
        if !is_usable(qpn) {
            return Err(CmError::Invalid);
        }
        // Rule: OneConnectionPerQp
        let in_use = self.by_local_qpn.contains_key(&qpn);
        if in_use { Err(CmError::QpInUse) } else { Ok(()) }
    }

    pub(super) fn attach(&mut self, handle: u32, link: Link, state: State) {
        self.by_comm.insert(link.local_comm, handle);
        if let Some(id) = self.ids.get_mut(handle) {
            id.link = Some(link);
            id.state = state;
        }
    }

    /// Accepts the connection that a peer asks for. The own queue pair should be ready.
    ///
    /// # Errors
    /// [`CmError`].
    pub fn accept(
        &mut self,
        now: Instant,
        handle: u32,
        offer: &Offer,
        private: &PrivateData,
    ) -> Result<(), CmError> {
        if self.ids.get(handle).ok_or(CmError::NoSuchId)?.state != State::ReqReceived {
            return Err(CmError::State);
        }
        if private.as_slice().len() > MAX_REP_PRIVATE || offer.rnr_retry_count > 7 {
            return Err(CmError::Invalid);
        }
        self.check_qpn(offer.qpn)?;
        let guid = self.config.guid;
        let link = self.ids.get_mut(handle).and_then(|id| id.link.as_mut());
        let link = link.ok_or(CmError::State)?;
        link.local_qpn = offer.qpn;
        let (transaction, reply) = (link.transaction, messages::rep(guid, link, offer, private));
        let reply = reply.ok_or(CmError::Invalid)?;
        self.by_local_qpn.insert(offer.qpn, handle);
        self.enter(handle, State::RepSent);
        self.send_until_answered(now, handle, transaction, CmMessage::Rep(reply));
        Ok(())
    }

    /// Tells a peer that looked for a datagram service which queue pair it is.
    ///
    /// # Errors
    /// [`CmError`].
    pub fn answer(
        &mut self,
        now: Instant,
        handle: u32,
        (qpn, qkey): (Qpn, QKey),
        private: &PrivateData,
    ) -> Result<(), CmError> {
        if !is_usable(qpn) {
            return Err(CmError::Invalid);
        }
        self.answer_lookup(now, handle, SidrStatus::VALID, (qpn, qkey), private)
    }

    fn answer_lookup(
        &mut self,
        now: Instant,
        handle: u32,
        status: SidrStatus,
        target: (Qpn, QKey),
        private: &PrivateData,
    ) -> Result<(), CmError> {
        let id = self.ids.get_mut(handle).ok_or(CmError::NoSuchId)?;
        let State::SidrReceived = id.state else { return Err(CmError::State) };
        let link = id.link.as_mut().ok_or(CmError::State)?;
        if private.as_slice().len() > MAX_SIDR_REP_PRIVATE {
            return Err(CmError::Invalid);
        }
        let reply = messages::sidr_rep(link.remote_comm, status, target, private);
        let reply = CmMessage::SidrRep(reply.ok_or(CmError::Invalid)?);
        let (route, transaction) = (link.route, link.transaction);
        link.last = Some(roce_wire::cm::CmMad::new(transaction, reply).to_bytes());
        self.enter(handle, State::SidrAnswered);
        self.send(route, transaction, reply);
        self.set_deadline(handle, Some(now.after(SIDR_LINGER)));
        Ok(())
    }

    /// Refuses what a peer asks for.
    ///
    /// # Errors
    /// [`CmError`].
    pub fn reject(
        &mut self,
        now: Instant,
        handle: u32,
        private: &PrivateData,
    ) -> Result<(), CmError> {
        let state = self.ids.get(handle).ok_or(CmError::NoSuchId)?.state;
        match state {
            State::SidrReceived => {
                let none = (Qpn::SMI, QKey(0));
                self.answer_lookup(now, handle, SidrStatus::REJECTED, none, private)
            }
            State::ReqReceived | State::RepReceived => {
                if private.as_slice().len() > MAX_REJ_PRIVATE {
                    return Err(CmError::Invalid);
                }
                self.refuse_link(handle, RejectReason::CONSUMER_DEFINED, private);
                self.end(handle);
                Ok(())
            }
            _ => Err(CmError::State),
        }
    }

    /// The own queue pair is ready for what the peer sends: says so to a peer that has accepted. On
    /// the passive side: data has come, so that the peer must be ready.
    ///
    /// # Errors
    /// [`CmError`].
    pub fn establish(&mut self, handle: u32) -> Result<(), CmError> {
        let id = self.ids.get_mut(handle).ok_or(CmError::NoSuchId)?;
        let link = id.link.as_mut().ok_or(CmError::State)?;
        match id.state {
            State::RepReceived => {
                let rtu = messages::rtu(link);
                let (route, transaction) = (link.route, link.transaction);
                let mad = roce_wire::cm::CmMad::new(transaction, rtu).to_bytes();
                link.last = Some(mad);
                self.enter(handle, State::Established);
                self.set_deadline(handle, None);
                self.send(route, transaction, rtu);
                Ok(())
            }
            State::RepSent => {
                self.established(handle);
                Ok(())
            }
            State::Established => Ok(()),
            _ => Err(CmError::State),
        }
    }

    /// The passive side knows that the peer is ready.
    pub(super) fn established(&mut self, handle: u32) {
        self.enter(handle, State::Established);
        self.set_deadline(handle, None);
        self.tell(handle, Happening::Established, PrivateData::NONE);
    }

    /// Ends a connection. One that is over stays so, however long it has been.
    ///
    /// # Errors
    /// [`CmError`].
    pub fn disconnect(&mut self, now: Instant, handle: u32) -> Result<(), CmError> {
        let id = self.ids.get(handle).ok_or(CmError::NoSuchId)?;
        match id.state {
            State::Established | State::RepSent => {
                self.ask_to_disconnect(now, handle);
                Ok(())
            }
            State::DreqSent | State::Timewait => Ok(()),
            State::Idle if id.was_connected => Ok(()),
            _ => Err(CmError::State),
        }
    }

    pub(super) fn ask_to_disconnect(&mut self, now: Instant, handle: u32) {
        let transaction = u64::from(self.draw());
        let link = self.ids.get(handle).and_then(|id| id.link.as_ref());
        let Some(request) = link.map(messages::dreq) else { return };
        self.enter(handle, State::DreqSent);
        self.send_until_answered(now, handle, transaction, request);
    }

    /// The program lets go of an identifier.
    ///
    /// # Errors
    /// [`CmError::NoSuchId`].
    pub fn release(&mut self, now: Instant, handle: u32) -> Result<(), CmError> {
        let id = self.ids.get_mut(handle).ok_or(CmError::NoSuchId)?;
        let owner = id.owner.take().ok_or(CmError::NoSuchId)?;
        let state = id.state;
        if let Some(link) = &id.link {
            // The program may destroy its queue pair now, and another one gets its number.
            // Rule: ReleasedQp
            remove_own(&mut self.by_local_qpn, &link.local_qpn, handle);
        }
        self.by_owner.remove(&(owner, handle));
        if let Some(port) = id.port.take() {
            self.ports.give(port, handle);
        }
        match state {
            State::Established => self.ask_to_disconnect(now, handle),
            State::DreqSent | State::Timewait | State::SidrAnswered => {}
            State::ReqSent => {
                self.tell_peer_of_timeout(handle, state);
                self.end(handle);
            }
            State::ReqReceived | State::RepReceived | State::RepSent => {
                let none = PrivateData::NONE;
                self.refuse_link(handle, RejectReason::CONSUMER_DEFINED, &none);
                self.end(handle);
            }
            State::SidrReceived => {
                let (none, nothing) = ((Qpn::SMI, QKey(0)), PrivateData::NONE);
                self.answer_lookup(now, handle, SidrStatus::REJECTED, none, &nothing)?;
            }
            State::Idle | State::Listening { .. } | State::SidrSent => self.end(handle),
        }
        Ok(())
    }

    /// Refuses the connection of an identifier.
    pub(super) fn refuse_link(&mut self, handle: u32, reason: RejectReason, private: &PrivateData) {
        let Some(id) = self.ids.get(handle) else { return };
        let Some(link) = &id.link else { return };
        let about = match id.state {
            State::ReqReceived | State::ReqSent => AboutMessage::Req,
            State::RepReceived => AboutMessage::Rep,
            _ => AboutMessage::Other,
        };
        let (route, transaction) = (link.route, link.transaction);
        let comms = (link.local_comm, link.remote_comm);
        if let Some(rej) = messages::rej(comms, about, reason, private) {
            self.counters.cm_refused += 1;
            self.send(route, transaction, CmMessage::Rej(rej));
        }
    }

    /// Tells a peer that its answer does not count any more. It may not know our identifier by
    /// another message than ours, so it finds the connection by our device.
    pub(super) fn tell_peer_of_timeout(&mut self, handle: u32, state: State) {
        let guid = self.config.guid;
        let Some(link) = self.ids.get(handle).and_then(|id| id.link.as_ref()) else { return };
        let (route, transaction) = (link.route, link.transaction);
        let about = match state {
            State::ReqSent | State::ReqReceived => AboutMessage::Req,
            State::RepReceived => AboutMessage::Rep,
            _ => AboutMessage::Other,
        };
        let comms = (link.local_comm, link.remote_comm);
        let none = PrivateData::NONE;
        let Some(mut rej) = messages::rej(comms, about, RejectReason::TIMEOUT, &none) else {
            return;
        };
        rej.info[..8].copy_from_slice(&guid.to_be_bytes());
        rej.info_len = 8;
        self.send(route, transaction, CmMessage::Rej(rej));
    }

    /// Files an identifier that a peer's message has made. `None` when there is no room.
    pub(super) fn file(
        &mut self,
        now: Instant,
        owner: Owner,
        (kind, state): (Kind, State),
        link: Link,
    ) -> Option<u32> {
        let listener = link.listener;
        let remote = (link.route.remote, kind, link.remote_comm);
        let handle = self.insert(Id::new(owner, state))?;
        self.by_remote.insert(remote, handle);
        if state.is_open() {
            self.by_remote_qpn.insert((link.route.remote, link.remote_qpn), handle);
        }
        self.attach(handle, link, state);
        let listening = listener.and_then(|listener| self.ids.get_mut(listener));
        if let Some(Id { state: State::Listening { pending, .. }, .. }) = listening {
            *pending += 1;
        }
        self.set_deadline(handle, Some(now.after(DECISION)));
        Some(handle)
    }
}

/// Numbers that messages can carry.
fn check_connect(connect: &Connect) -> Result<(), CmError> {
    let Connect { offer, retry_count, ack_timeout, private, transport, .. } = connect;
    let good = !matches!(transport, TransportType::Rd)
        && *retry_count <= 7
        && offer.rnr_retry_count <= 7
        && *ack_timeout <= 31
        && private.as_slice().len() <= MAX_REQ_PRIVATE;
    if good { Ok(()) } else { Err(CmError::Invalid) }
}

/// Not one of the reserved numbers.
pub(super) fn is_usable(qpn: Qpn) -> bool {
    ![Qpn::SMI, Qpn::GSI, Qpn::MULTICAST].contains(&qpn)
}

/// Most undecided requests of one listener, whatever it asks for.
const MAX_BACKLOG: u32 = 1024;
