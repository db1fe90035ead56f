//! Sessions of programs, and what a user may ask for.

use super::known::Answer;
use super::ways::key_of;
use super::{Connections, Rights, State};
use rnic_abi::control::{
    CmNotice, CmOffer, CmRequest, CmService, CmTarget, MAX_CM_EVENT, Reply, encode,
};
use rnic_core::cm::{CmError, Connect, Offer, Owner, PrivateData, Route};
use rnic_core::qpn::shard_of;
use rnic_host::refusal::{Refused, refuse, refused_by_kernel};
use rnic_host::server::ConnectionSession;
use rnic_host::shard::monotonic;
use roce_wire::cm::{PortSpace, TransportType};
use roce_wire::{Gid, QKey, Qpn};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// One session's part. Dropped, all that it has made ends.
pub(super) struct CmSession {
    manager: Arc<Connections>,
    rights: Rights,
    number: u32,
    next_channel: u32,
}

impl CmSession {
    pub(super) fn new(manager: Arc<Connections>, rights: Rights, number: u32) -> Self {
        Self { manager, rights, number, next_channel: 0 }
    }

    fn owner(&self, channel: u32) -> Owner {
        let place = u64::from(self.number) << 32 | u64::from(channel);
        Owner { user: self.rights.user, place }
    }

    /// All channels of this session.
    fn owners(&self) -> RangeInclusive<Owner> {
        self.owner(0)..=self.owner(u32::MAX)
    }

    fn open_channel(&mut self, state: &mut State) -> Result<(Reply, Option<OwnedFd>), Refused> {
        let channel = self.next_channel;
        self.next_channel = channel.wrapping_add(1);
        let theirs = state
            .events
            .open(self.owner(channel), self.rights.max_channels)
            .map_err(refused_by_kernel("no event channel"))?;
        Ok((Reply::Handle(channel), Some(theirs)))
    }

    /// The program has destroyed its identifiers. Those that are left are of requests that it has
    /// not read: their peers would wait until they give up, and the program's user would run out
    /// of identifiers.
    fn close_channel(&self, state: &mut State, channel: u32) -> Result<Reply, Refused> {
        let owner = self.channel(state, channel)?;
        self.release_all(state, owner..=owner);
        state.events.close(owner);
        Ok(Reply::Done)
    }

    fn release_all(&self, state: &mut State, of: RangeInclusive<Owner>) {
        let ids: Vec<u32> = state.cm.owned(of).collect();
        for id in ids {
            state.askers.remove(id);
            // Fails only for one that is not there.
            let _ = state.cm.release(monotonic(), id);
            self.manager.flush(state);
        }
    }

    /// What peers ask an identifier for, and its program has not decided.
    fn undecided(&self, state: &State, id: u32) -> Result<Reply, Refused> {
        let listener = self.own(state, id)?;
        let all = state.cm.owned(self.owners());
        Ok(Reply::Handles(all.filter(|id| state.cm.is_undecided(*id, listener)).collect()))
    }

    /// Tells the program what it asks to be told.
    fn post(&self, state: &mut State, notice: &CmNotice) -> Result<Reply, Refused> {
        let id = self.own(state, notice.id)?;
        let owner = state.cm.owner_of(id).unwrap_or(self.owner(0));
        if encode(notice).map_or(true, |bytes| bytes.len() > MAX_CM_EVENT) {
            return Err(refuse(libc::EINVAL, "the event is longer than events are"));
        }
        match state.events.send(owner, notice) {
            true => Ok(Reply::Done),
            false => Err(does_not_read()),
        }
    }

    /// The owner that a channel of this session stands for.
    fn channel(&self, state: &State, channel: u32) -> Result<Owner, Refused> {
        let owner = self.owner(channel);
        match state.events.has(owner) {
            true => Ok(owner),
            false => Err(refuse(libc::EINVAL, "there is no such event channel")),
        }
    }

    /// Checks that an identifier is of this session.
    fn own(&self, state: &State, id: u32) -> Result<u32, Refused> {
        let owner = state.cm.owner_of(id).filter(|owner| self.owners().contains(owner));
        owner.map(|_| id).ok_or_else(|| refuse(libc::EINVAL, "there is no such identifier"))
    }

    fn bind(&self, state: &mut State, request: &CmRequest) -> Result<Reply, Refused> {
        let CmRequest::Bind { channel, space, address, port, shared } = *request else {
            return Err(unexpected());
        };
        let owner = self.channel(state, channel)?;
        let space = PortSpace::from_u16(space)
            .ok_or_else(|| refuse(libc::EPROTONOSUPPORT, "there is no such port space"))?;
        if port != 0 && port < self.rights.first_port {
            let text = format!("port {port} is for programs of root");
            return Err(refuse(libc::EACCES, text));
        }
        let address = address.map(|gid| Gid(gid).to_ip());
        if let Some(address) = address.filter(|address| !address.is_unspecified()) {
            self.manager.check_own(address)?;
        }
        let bound = state.cm.bind(owner, space, address, port, shared);
        bound.map(|(id, port)| Reply::Bound { id, port }).map_err(refused)
    }

    fn route(&self, to: &CmTarget) -> Result<Route, Refused> {
        let way = self.way(to)?;
        match way.remote.is_multicast() {
            false => Ok(way),
            true => Err(refuse(libc::EINVAL, format!("no peer is at {}", way.remote))),
        }
    }

    /// To a peer or a group.
    fn way(&self, to: &CmTarget) -> Result<Route, Refused> {
        let (local, remote) = (Gid(to.local).to_ip(), Gid(to.remote).to_ip());
        self.manager.check_own(local)?;
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(refuse(libc::EINVAL, format!("no way leads from {local} to {remote}")));
        }
        let CmTarget { traffic_class, flow_label, .. } = *to;
        Ok(Route { local, remote, traffic_class, flow_label, qpn: Qpn::GSI })
    }

    /// Answered by an event, at once where the way is known.
    fn resolve(&self, state: &mut State, request: &CmRequest) -> Result<Reply, Refused> {
        let CmRequest::Resolve { id, to, limit_ms } = request else {
            return Err(unexpected());
        };
        let id = self.own(state, *id)?;
        let key = key_of(&self.way(to)?);
        let until = monotonic().after(Duration::from_millis((*limit_ms).into()));
        state.askers.add(id, key, until);
        let user = self.rights.user;
        match self.manager.ways.ask(key, user) {
            Answer::Known => {
                state.askers.remove(id);
                if !state.resolved(id, 0) {
                    return Err(does_not_read());
                }
            }
            Answer::Sought | Answer::Seek => {}
            Answer::Busy => state.askers.delay(id, user),
        }
        Ok(Reply::Done)
    }

    fn connect(&self, state: &mut State, request: &CmRequest) -> Result<Reply, Refused> {
        let CmRequest::Connect {
            id,
            to,
            service,
            offer,
            retry_count,
            mtu_code,
            ack_timeout,
            private,
        } = request
        else {
            return Err(unexpected());
        };
        let connect = Connect {
            route: self.route(to)?,
            port: to.port,
            transport: transport(*service),
            offer: self.offer(offer)?,
            retry_count: *retry_count,
            mtu_code: *mtu_code,
            ack_timeout: *ack_timeout,
            private: private_data(private)?,
        };
        let id = self.own(state, *id)?;
        let psn = state.cm.connect(monotonic(), id, &connect).map_err(refused)?;
        Ok(Reply::Handle(psn.value()))
    }

    /// A queue pair that programs of the user may have; 0 is none.
    fn own_qpn(&self, qpn: u32) -> Result<Qpn, Refused> {
        let qpn = Qpn::new(u32::min(qpn, 0x00ff_ffff));
        match qpn.value() == 0 || self.rights.engines & 1 << shard_of(qpn) != 0 {
            true => Ok(qpn),
            false => Err(refuse(libc::EPERM, "the queue pair is another user's")),
        }
    }

    fn offer(&self, offer: &CmOffer) -> Result<Offer, Refused> {
        Ok(Offer {
            qpn: self.own_qpn(offer.qpn)?,
            srq: offer.srq,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            flow_control: offer.flow_control,
            rnr_retry_count: offer.rnr_retry_count,
        })
    }

    fn command(&self, state: &mut State, request: CmRequest) -> Result<Reply, Refused> {
        let now = monotonic();
        let done = match request {
            CmRequest::Listen { id, backlog } => {
                let id = self.own(state, id)?;
                state.cm.listen(id, backlog)
            }
            CmRequest::StopListening { id } => {
                let id = self.own(state, id)?;
                state.cm.stop_listening(id)
            }
            CmRequest::LookUp { id, to, private } => {
                let (id, route) = (self.own(state, id)?, self.route(&to)?);
                state.cm.look_up(now, id, route, to.port, &private_data(&private)?)
            }
            CmRequest::Accept { id, offer, private } => {
                let (id, offer) = (self.own(state, id)?, self.offer(&offer)?);
                state.cm.accept(now, id, &offer, &private_data(&private)?)
            }
            CmRequest::Answer { id, qpn, qkey, private } => {
                let (id, target) = (self.own(state, id)?, (self.own_qpn(qpn)?, QKey(qkey)));
                state.cm.answer(now, id, target, &private_data(&private)?)
            }
            CmRequest::Reject { id, private } => {
                let id = self.own(state, id)?;
                state.cm.reject(now, id, &private_data(&private)?)
            }
            CmRequest::Establish { id } => {
                let id = self.own(state, id)?;
                state.cm.establish(id)
            }
            CmRequest::Disconnect { id } => {
                let id = self.own(state, id)?;
                state.cm.disconnect(now, id)
            }
            CmRequest::Release { id } => {
                let id = self.own(state, id)?;
                state.askers.remove(id);
                state.cm.release(now, id)
            }
            CmRequest::Move { id, channel } => {
                let (id, owner) = (self.own(state, id)?, self.channel(state, channel)?);
                state.cm.set_owner(id, owner)
            }
            _ => return Err(unexpected()),
        };
        done.map(|()| Reply::Done).map_err(refused)
    }
}

impl ConnectionSession for CmSession {
    fn execute(&mut self, request: CmRequest) -> Result<(Reply, Option<OwnedFd>), Refused> {
        let manager = Arc::clone(&self.manager);
        let mut state = manager.state();
        let reply = match &request {
            CmRequest::OpenChannel => return self.open_channel(&mut state),
            CmRequest::CloseChannel { channel } => self.close_channel(&mut state, *channel),
            CmRequest::Bind { .. } => self.bind(&mut state, &request),
            CmRequest::Resolve { .. } => self.resolve(&mut state, &request),
            CmRequest::Connect { .. } => self.connect(&mut state, &request),
            CmRequest::Undecided { id } => self.undecided(&state, *id),
            CmRequest::Post(notice) => self.post(&mut state, notice),
            _ => self.command(&mut state, request),
        };
        manager.flush(&mut state);
        drop(state);
        manager.look_at_timers();
        reply.map(|reply| (reply, None))
    }
}

impl Drop for CmSession {
    fn drop(&mut self) {
        let mut state = self.manager.state();
        self.release_all(&mut state, self.owners());
        state.events.close_all(self.owners());
        drop(state);
        self.manager.look_at_timers();
    }
}

fn transport(service: CmService) -> TransportType {
    match service {
        CmService::Reliable => TransportType::Rc,
        CmService::Unreliable => TransportType::Uc,
        CmService::Extended => TransportType::Extended,
    }
}

fn private_data(data: &[u8]) -> Result<PrivateData, Refused> {
    PrivateData::new(data).ok_or_else(|| refused(CmError::Invalid))
}

fn refused(error: CmError) -> Refused {
    let (errno, text) = match error {
        CmError::NoSuchId => (libc::EINVAL, "there is no such identifier"),
        CmError::State => (libc::EINVAL, "the identifier is not in a state for that"),
        CmError::AddressInUse => (libc::EADDRINUSE, "another identifier has the port"),
        CmError::Full => (libc::ENOMEM, "there are too many identifiers"),
        CmError::Invalid => (libc::EINVAL, "a number that no message can carry, or too much data"),
        CmError::QpInUse => (libc::EBUSY, "the queue pair has a connection already"),
    };
    refuse(errno, text)
}

fn does_not_read() -> Refused {
    refuse(libc::ENOMEM, "the program does not read its events")
}

fn unexpected() -> Refused {
    refuse(libc::EIO, "unexpected request")
}
