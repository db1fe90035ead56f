//! The connection manager: how two programs find each other's queue pairs.
//!
//! A [`Cm`] speaks the messages of QP1 ([`roce_wire::cm`]) for all programs of a device. It does no
//! I/O and reads no clock: received datagrams, commands of programs and the time come as
//! arguments; what leaves and what programs hear is taken from [`next_mad`](Cm::next_mad) and
//! [`next_event`](Cm::next_event). It changes no queue pair: programs do, when they hear of
//! something.
//!
//! An identifier is one end of a connection, a listener, or the search for a datagram service.
//! What a program lets go of ends by itself: an open connection asks the peer to disconnect, and
//! is kept while packets of it may be on the way.
//!
//! * `types`: what goes in and out. `id`: what is kept. `ports`: which client
//!   has which port.
//! * `commands`: what programs ask for. `receive`, `request`, `answers`, `datagrams`: what peers
//!   say.

mod answers;
mod commands;
mod datagrams;
mod id;
mod messages;
mod ports;
mod receive;
mod request;
mod types;

pub use types::{
    CmCounters, CmError, CmEvent, Connect, Happening, Lookup, Offer, Outgoing, Owner, PrivateData,
    Request, Response, Route,
};

use crate::secret::{Purpose, Secret, low32};
use crate::slab::Slab;
use crate::time::Instant;
use id::{Id, Link, State, time_of};
use ports::Ports;
use roce_wire::cm::{CmMad, CmMessage, CmaHeader, Rej, Rep, Req, SidrRep, SidrReq};
use roce_wire::{Psn, Qpn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Private data that a program may add to a REQ.
pub const MAX_REQ_PRIVATE: usize = Req::PRIVATE_DATA_LEN - CmaHeader::LEN;
/// To a REP.
pub const MAX_REP_PRIVATE: usize = Rep::PRIVATE_DATA_LEN;
/// To a REJ.
pub const MAX_REJ_PRIVATE: usize = Rej::PRIVATE_DATA_LEN;
/// To a SIDR_REQ.
pub const MAX_SIDR_REQ_PRIVATE: usize = SidrReq::PRIVATE_DATA_LEN - CmaHeader::LEN;
/// To a SIDR_REP.
pub const MAX_SIDR_REP_PRIVATE: usize = SidrRep::PRIVATE_DATA_LEN;

/// Parameters of a connection manager.
#[derive(Clone, Copy, Debug)]
pub struct CmConfig {
    /// Makes identifiers and PSNs unpredictable.
    pub secret: Secret,
    /// EUI-64 of the device.
    pub guid: u64,
    /// Most identifiers.
    pub max_ids: usize,
    /// Most of one user.
    pub max_of_user: usize,
    /// Largest path MTU code that the link allows.
    pub mtu_code: u8,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    ids: Slab<Id>,
    /// How many each user has.
    used: BTreeMap<u8, usize>,
    /// Those that programs have.
    by_owner: BTreeSet<(Owner, u32)>,
    ports: Ports,
    deadlines: BTreeSet<(Instant, u32)>,
    /// Identifiers by the own communication identifier.
    by_comm: BTreeMap<u32, u32>,
    /// By what the peer's message is known by: its address, the kind, its own identifier.
    by_remote: BTreeMap<(IpAddr, Kind, u32), u32>,
    /// By the queue pairs of both ends, while they belong to the connection.
    by_local_qpn: BTreeMap<Qpn, u32>,
    by_remote_qpn: BTreeMap<(IpAddr, Qpn), u32>,
    out: VecDeque<Outgoing>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
    /// Identifiers that listen.
    listeners: usize,
    drawn: u64,
}

/// What a peer's identifier names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Connection,
    Lookup,
}

impl Cm {
    /// Without identifiers.
    pub fn new(config: CmConfig) -> Self {
        Self {
            config,
            ids: Slab::new(config.max_ids),
            used: BTreeMap::new(),
            by_owner: BTreeSet::new(),
            ports: Ports::default(),
            deadlines: BTreeSet::new(),
            by_comm: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            by_local_qpn: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
            listeners: 0,
            drawn: 0,
        }
    }

    /// The link allows this path MTU code from now on.
    pub fn set_mtu(&mut self, code: u8) {
        self.config.mtu_code = code;
    }

    /// The next datagram to be sent. What one call causes has to be taken before the next.
    pub fn next_mad(&mut self) -> Option<Outgoing> {
        self.out.pop_front()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// When [`expire`](Self::expire) has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Counters.
    pub fn counters(&self) -> CmCounters {
        self.counters
    }

    /// Identifiers that listen.
    pub fn listeners(&self) -> usize {
        self.listeners
    }

    /// Identifiers there are, those that end by themselves too.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// A new identifier; `None` when its user has too many, or all together have.
    fn insert(&mut self, id: Id) -> Option<u32> {
        let used = self.used.get(&id.user).copied().unwrap_or(0);
        if used >= self.config.max_of_user {
            return None;
        }
        let (user, owner) = (id.user, id.owner);
        let handle = self.ids.insert(id).ok()?;
        self.used.insert(user, used + 1);
        self.by_owner.extend(owner.map(|owner| (owner, handle)));
        Some(handle)
    }

    /// Where the events of an identifier go, if a program has it.
    pub fn owner_of(&self, id: u32) -> Option<Owner> {
        self.ids.get(id)?.owner
    }

    /// Identifiers that programs have, of all owners from one to another one.
    pub fn owned(&self, of: RangeInclusive<Owner>) -> impl Iterator<Item = u32> {
        let all = (*of.start(), 0)..=(*of.end(), u32::MAX);
        self.by_owner.range(all).map(|(_, handle)| *handle)
    }

    /// Whether a peer asks this listener for it, and the program has not decided.
    pub fn is_undecided(&self, id: u32, listener: u32) -> bool {
        let pending = self.ids.get(id).filter(|id| id.state.is_pending());
        let link = pending.and_then(|id| id.link.as_ref());
        link.is_some_and(|link| link.listener == Some(listener))
    }

    /// The queue pairs of an open connection: the own and the peer's.
    pub fn open_qpns(&self, id: u32) -> Option<(Qpn, Qpn)> {
        let id = self.ids.get(id).filter(|id| id.state.is_open())?;
        id.link.as_ref().map(|link| (link.local_qpn, link.remote_qpn))
    }

    fn draw(&mut self) -> u32 {
        self.drawn = self.drawn.wrapping_add(1);
        low32(self.config.secret.draw(Purpose::Connections, self.drawn))
    }

    /// A communication identifier that no other has. 0 means none.
    fn new_comm(&mut self) -> u32 {
        loop {
            let comm = self.draw();
            if comm != 0 && !self.by_comm.contains_key(&comm) {
                return comm;
            }
        }
    }

    fn new_psn(&mut self) -> Psn {
        Psn::new(self.draw())
    }

    fn tell(&mut self, handle: u32, what: Happening, private: PrivateData) {
        let owner = self.ids.get(handle).and_then(|id| id.owner);
        if let Some(owner) = owner {
            self.events.push_back(CmEvent { owner, id: handle, what, private });
        }
    }

    /// Sends a message once.
    fn send(&mut self, route: Route, transaction: u64, message: CmMessage) {
        self.counters.cm_sent += 1;
        let mad = CmMad::new(transaction, message).to_bytes();
        self.out.push_back(Outgoing { route, mad, user: None });
    }

    /// Sends a message that is sent again until its answer comes.
    fn send_until_answered(
        &mut self,
        now: Instant,
        handle: u32,
        transaction: u64,
        message: CmMessage,
    ) {
        let mad = CmMad::new(transaction, message).to_bytes();
        let Some(id) = self.ids.get_mut(handle) else { return };
        let Some(link) = &mut id.link else { return };
        link.last = Some(mad);
        link.tries = MAX_RETRIES;
        let (route, until) = (link.route, now.after(link.patience));
        let is_first = matches!(message, CmMessage::Req(_) | CmMessage::SidrReq(_));
        let user = is_first.then_some(id.user);
        self.counters.cm_sent += 1;
        self.out.push_back(Outgoing { route, mad, user });
        self.set_deadline(handle, Some(until));
    }

    /// Sends the last message of an identifier once more.
    fn send_last(&mut self, handle: u32) {
        let Some(id) = self.ids.get(handle) else { return };
        let is_first = matches!(id.state, State::ReqSent | State::SidrSent);
        let user = is_first.then_some(id.user);
        let link = id.link.as_ref();
        if let Some((route, mad)) = link.and_then(|link| Some((link.route, link.last?))) {
            self.counters.cm_retransmitted += 1;
            self.out.push_back(Outgoing { route, mad, user });
        }
    }

    fn set_deadline(&mut self, handle: u32, deadline: Option<Instant>) {
        let Some(id) = self.ids.get_mut(handle) else { return };
        if let Some(old) = std::mem::replace(&mut id.deadline, deadline) {
            self.deadlines.remove(&(old, handle));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, handle));
        }
    }

    /// Moves an identifier to a state, with what follows from that for the tables.
    fn enter(&mut self, handle: u32, state: State) {
        let Some(id) = self.ids.get_mut(handle) else { return };
        let before = std::mem::replace(&mut id.state, state);
        id.was_connected |= matches!(state, State::Established | State::DreqSent | State::Timewait);
        if before.listens() {
            self.listeners = self.listeners.saturating_sub(1);
        }
        if state.listens() {
            self.listeners += 1;
        }
        let Some(link) = &id.link else { return };
        let (local, remote) = (link.local_qpn, (link.route.remote, link.remote_qpn));
        let listener = link.listener;
        if before.is_pending() && !state.is_pending() {
            self.decided(listener);
        }
        if before.is_open() && !state.is_open() {
            remove_own(&mut self.by_local_qpn, &local, handle);
            remove_own(&mut self.by_remote_qpn, &remote, handle);
        }
    }

    /// A request that a listener had is not undecided any more.
    fn decided(&mut self, listener: Option<u32>) {
        let listener = listener.and_then(|listener| self.ids.get_mut(listener));
        if let Some(Id { state: State::Listening { pending, .. }, .. }) = listener {
            *pending = pending.saturating_sub(1);
        }
    }

    /// The connection is over: its identifier is idle, or gone if no program has it.
    fn end(&mut self, handle: u32) {
        self.enter(handle, State::Idle);
        self.set_deadline(handle, None);
        let Some(id) = self.ids.get_mut(handle) else { return };
        let is_owned = id.owner.is_some();
        if let Some(link) = id.link.take() {
            self.forget_link(handle, &link);
        }
        if !is_owned {
            self.remove(handle);
        }
    }

    fn forget_link(&mut self, handle: u32, link: &Link) {
        remove_own(&mut self.by_comm, &link.local_comm, handle);
        for kind in [Kind::Connection, Kind::Lookup] {
            let key = (link.route.remote, kind, link.remote_comm);
            remove_own(&mut self.by_remote, &key, handle);
        }
    }

    fn remove(&mut self, handle: u32) {
        let Some(id) = self.ids.remove(handle) else { return };
        if let Some(owner) = id.owner {
            self.by_owner.remove(&(owner, handle));
        }
        if let Some(used) = self.used.get_mut(&id.user) {
            *used = used.saturating_sub(1);
        }
        if let Some(port) = id.port {
            self.ports.give(port, handle);
        }
    }

    /// Packets of the connection may be on the way for some time.
    fn linger(&mut self, now: Instant, handle: u32) {
        self.enter(handle, State::Timewait);
        let wait = self.ids.get(handle).and_then(|id| Some(id.link.as_ref()?.timewait));
        self.set_deadline(handle, wait.map(|wait| now.after(wait)));
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&(at, handle)) = self.deadlines.first() {
            if at > now {
                return;
            }
            self.set_deadline(handle, None);
            self.expired(now, handle);
        }
    }

    fn expired(&mut self, now: Instant, handle: u32) {
        let Some(id) = self.ids.get_mut(handle) else { return };
        match id.state {
            State::Timewait => {
                self.tell(handle, Happening::TimewaitExit, PrivateData::NONE);
                self.end(handle);
            }
            State::SidrAnswered => self.end(handle),
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrSent => {
                let Some(link) = &mut id.link else { return };
                if let Some(left) = link.tries.checked_sub(1) {
                    link.tries = left;
                    let until = now.after(link.patience);
                    self.send_last(handle);
                    self.set_deadline(handle, Some(until));
                } else {
                    self.give_up(now, handle);
                }
            }
            // The program has not decided for longer than any peer waits.
            State::RepReceived | State::ReqReceived | State::SidrReceived => {
                self.give_up(now, handle);
            }
            State::Idle | State::Listening { .. } | State::Established => {}
        }
    }

    /// The peer did not answer, or does not wait any more.
    fn give_up(&mut self, now: Instant, handle: u32) {
        let Some(state) = self.ids.get(handle).map(|id| id.state) else { return };
        self.counters.cm_timeouts += 1;
        if state == State::DreqSent {
            self.tell(handle, Happening::Disconnected, PrivateData::NONE);
            self.linger(now, handle);
            return;
        }
        self.tell(handle, Happening::Unreachable, PrivateData::NONE);
        if state.is_open() {
            self.tell_peer_of_timeout(handle, state);
        }
        self.end(handle);
    }
}

/// Removes an entry if it is still of this identifier.
fn remove_own<K: Ord>(table: &mut BTreeMap<K, u32>, key: &K, handle: u32) {
    if table.get(key) == Some(&handle) {
        table.remove(key);
    }
}

/// How often a message is sent again: what Linux writes into its REQs.
const MAX_RETRIES: u8 = 15;
/// Exponents of what Linux writes into its REQs: how long a peer may take to answer, and how long a
/// packet may be on the way.
const RESPONSE_TIMEOUT: u8 = 20;
const PACKET_LIFETIME: u8 = 16;
/// That of an MRA.
const MRA_TIMEOUT: u8 = 24;
/// How long a program may leave something undecided: any peer has given up by then.
const DECISION: std::time::Duration = std::time::Duration::from_secs(240);
/// How long the answer to a SIDR_REQ is kept for duplicates.
const SIDR_LINGER: std::time::Duration = std::time::Duration::from_secs(10);

/// How long the answer to a REQ may take.
fn req_patience() -> std::time::Duration {
    time_of(PACKET_LIFETIME) * 2 + time_of(RESPONSE_TIMEOUT)
}
