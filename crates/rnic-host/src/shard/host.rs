//! Completion and async events on their way to applications.
//!
//! Events are datagrams on socket pairs; our end never waits. What a full socket does not take is
//! kept here and follows when it has room again.

use super::message::Mad;
use super::tokens::Token;
use crate::wire::ShardRx;
use crossbeam_channel::Sender;
use rnic_abi::control::{AsyncEvent, CompletionEvent};
use rnic_abi::os::{Inode, futex};
use rnic_abi::verbs::AsyncEventType;
use rnic_abi::words::AtomicU64;
use rnic_core::command::{ChannelId, ClientId};
use rnic_core::ports::{Host, RxTrain};
use rnic_core::qpn::MAX_SHARDS;
use roce_wire::mad::MAD_LEN;
use roce_wire::{Flow, Qpn};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// Our end of a socket pair that carries events.
#[derive(Debug)]
pub struct EventSocket {
    socket: OwnedFd,
    pending: VecDeque<[u8; 8]>,
    /// It is among those for which events were kept.
    is_kept: bool,
    lost: u64,
    /// That of the client's end.
    inode: u64,
}

impl EventSocket {
    /// A pair: our end, and the client's.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        let inode = Inode::of(theirs.as_raw_fd())?.number;
        let (pending, is_kept, lost) = (VecDeque::new(), false, 0);
        Ok((Self { socket: ours, pending, is_kept, lost, inode }, theirs))
    }

    /// Sends now, if it may and can, or keeps. True when something is kept.
    fn send(&mut self, event: [u8; 8], may: bool) -> bool {
        if may && self.pending.is_empty() && self.try_send(&event) {
            return false;
        }
        if self.pending.len() == MAX_PENDING {
            self.lost += 1;
        } else {
            self.pending.push_back(event);
        }
        true
    }

    /// True when it is sent, or never can be.
    fn try_send(&self, event: &[u8; 8]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&self.socket, event, flags) {
            Err(Errno::AGAIN | Errno::NOBUFS) => false,
            // Also when the other end is closed: no thread waits for it then.
            _ => true,
        }
    }

    /// Sends what was kept. True when nothing is left.
    fn flush(&mut self) -> bool {
        while let Some(event) = self.pending.front() {
            if !self.try_send(event) {
                return false;
            }
            self.pending.pop_front();
        }
        true
    }
}

/// The clients of one shard.
pub(super) struct ClientEvents {
    epoll: Arc<OwnedFd>,
    clients: HashMap<ClientId, Sockets>,
    /// The sockets that epoll watches until they have room again.
    full: HashSet<Token>,
    /// Events are kept: the calling thread does not have the sockets.
    keeps: bool,
    /// The sockets for which some were.
    kept: Vec<Token>,
    /// The ways to further shards, by their number.
    receivers: Vec<Option<ShardRx>>,
    /// The further shards that have members of a group, as bits.
    members: BTreeMap<IpAddr, u128>,
    /// Something was handed over since the last flush.
    handed_over: bool,
    /// Datagrams lost on the way to shards that have ended.
    lost_before: u64,
    /// Datagrams for shards that there are not, or that hear for themselves.
    misled: u64,
    /// Where management datagrams go.
    manager: Option<Sender<Mad>>,
    /// Some went there since this was asked last.
    passed_on: bool,
}

struct Sockets {
    events: EventSocket,
    channels: HashMap<ChannelId, EventSocket>,
}

impl ClientEvents {
    pub(super) fn new(epoll: Arc<OwnedFd>) -> Self {
        Self {
            epoll,
            clients: HashMap::new(),
            full: HashSet::new(),
            keeps: false,
            kept: Vec::new(),
            receivers: Vec::new(),
            members: BTreeMap::new(),
            handed_over: false,
            lost_before: 0,
            misled: 0,
            manager: None,
            passed_on: false,
        }
    }

    pub(super) fn add_receiver(&mut self, shard: u8, receiver: ShardRx) {
        let at = usize::from(shard);
        if at >= self.receivers.len() {
            self.receivers.resize_with(at + 1, || None);
        }
        self.lost_before += self.receivers[at].replace(receiver).map_or(0, |old| old.lost());
    }

    /// The shard of this serial number has ended; another one may have its number already.
    pub(super) fn remove_receiver(&mut self, serial: u64) {
        for receiver in &mut self.receivers {
            if let Some(old) = receiver.take_if(|receiver| receiver.serial() == serial) {
                self.lost_before += old.lost();
            }
        }
    }

    /// The further shards that have members of a group, as bits.
    pub(super) fn set_members(&mut self, group: IpAddr, shards: u128) {
        match shards {
            0 => self.members.remove(&group),
            shards => self.members.insert(group, shards),
        };
    }

    /// Shows further shards what was handed over to them.
    #[inline]
    pub(super) fn flush_hand_overs(&mut self) {
        if self.handed_over {
            self.handed_over = false;
            self.receivers.iter_mut().flatten().for_each(ShardRx::flush);
        }
    }

    /// Datagrams for other shards that are lost: those did not keep up, or are not there.
    pub(super) fn counters(&self) -> [(&'static str, u64); 2] {
        let lost = self.receivers.iter().flatten().map(ShardRx::lost).sum::<u64>();
        [("shard_rx_lost", self.lost_before + lost), ("shard_rx_misled", self.misled)]
    }

    pub(super) fn set_manager(&mut self, manager: Sender<Mad>) {
        self.manager = Some(manager);
    }

    /// Whether the thread of the connection manager was given something.
    pub(super) fn take_passed_on(&mut self) -> bool {
        std::mem::take(&mut self.passed_on)
    }

    pub(super) fn add_client(&mut self, client: ClientId, events: EventSocket) {
        self.clients.insert(client, Sockets { events, channels: HashMap::new() });
    }

    pub(super) fn remove_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
        self.full.retain(|token| token.client() != Some(client));
        self.kept.retain(|token| token.client() != Some(client));
    }

    /// Some socket took no more events when it was last tried.
    #[inline]
    pub(super) fn any_full(&self) -> bool {
        !self.full.is_empty()
    }

    pub(super) fn add_channel(
        &mut self,
        client: ClientId,
        channel: ChannelId,
        socket: EventSocket,
    ) {
        if let Some(sockets) = self.clients.get_mut(&client) {
            sockets.channels.insert(channel, socket);
        }
    }

    pub(super) fn remove_channel(&mut self, client: ClientId, channel: ChannelId) {
        if let Some(sockets) = self.clients.get_mut(&client) {
            sockets.channels.remove(&channel);
            self.full.remove(&Token::Channel(client, channel));
            // The next one may get its number.
            self.kept.retain(|token| *token != Token::Channel(client, channel));
        }
    }

    /// A CQ is gone: drops what its channel did not take yet and says how many events those were.
    pub(super) fn forget_cq(&mut self, client: ClientId, cq: u32) -> u64 {
        let event = CompletionEvent { cq }.encode();
        let Some(sockets) = self.clients.get_mut(&client) else { return 0 };
        let mut dropped = 0;
        for socket in sockets.channels.values_mut() {
            let before = socket.pending.len();
            socket.pending.retain(|pending| *pending != event);
            dropped += before - socket.pending.len();
        }
        dropped as u64
    }

    /// Until told otherwise, events are kept for the thread that has the sockets.
    pub(super) fn keep(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// Sends them, in the thread that has the sockets.
    pub(super) fn send_kept(&mut self) {
        while let Some(token) = self.kept.pop() {
            let Some(socket) = socket_of(&mut self.clients, token) else { continue };
            socket.is_kept = false;
            if !socket.flush() {
                watch(&mut self.full, &self.epoll, socket, token);
            }
        }
    }

    /// Some were, for others than the channel whose client's end has this inode.
    pub(super) fn any_kept_but_for(&mut self, inode: u64) -> bool {
        let Self { kept, clients, .. } = self;
        kept.iter().any(|token| {
            let socket = socket_of(clients, *token);
            // Those of a CQ that is gone are dropped.
            socket.is_some_and(|socket| socket.inode != inode && !socket.pending.is_empty())
        })
    }

    /// An event that was kept for the channel whose client's end has this inode.
    pub(super) fn take_kept(&mut self, inode: u64) -> Option<[u8; 8]> {
        for at in 0..self.kept.len() {
            let Some(socket) = socket_of(&mut self.clients, self.kept[at]) else { continue };
            if socket.inode != inode {
                continue;
            }
            let event = socket.pending.pop_front();
            socket.is_kept = !socket.pending.is_empty();
            if !socket.is_kept {
                self.kept.swap_remove(at);
            }
            return event;
        }
        None
    }

    /// Sends an event, or keeps it.
    fn send(&mut self, token: Token, event: [u8; 8]) {
        let Some(socket) = socket_of(&mut self.clients, token) else { return };
        match socket.send(event, !self.keeps) {
            true if self.keeps && socket.is_kept => {}
            true if self.keeps => {
                socket.is_kept = true;
                self.kept.push(token);
            }
            true => watch(&mut self.full, &self.epoll, socket, token),
            false => {}
        }
    }

    /// A socket has room again.
    pub(super) fn writable(&mut self, token: Token) {
        if let Some(socket) = socket_of(&mut self.clients, token)
            && socket.flush()
        {
            self.full.remove(&token);
            // It was added by us; a failure leaves a spurious wake-up.
            let _ = epoll::delete(&*self.epoll, socket.socket.as_fd());
        }
    }
}

/// The socket that a token names.
fn socket_of(clients: &mut HashMap<ClientId, Sockets>, token: Token) -> Option<&mut EventSocket> {
    match token {
        Token::Events(client) => clients.get_mut(&client).map(|c| &mut c.events),
        Token::Channel(client, channel) => clients.get_mut(&client)?.channels.get_mut(&channel),
        Token::Messages | Token::Client(_) => None,
    }
}

/// `socket` keeps something: it is tried again when epoll says so.
fn watch(full: &mut HashSet<Token>, epoll: &OwnedFd, socket: &EventSocket, token: Token) {
    if !full.insert(token) {
        return;
    }
    let data = EventData::new_u64(token.encode());
    if let Err(error) = epoll::add(epoll, socket.socket.as_fd(), data, EventFlags::OUT) {
        tracing::warn!("events of a client are stuck: {error}");
    }
}

impl Host for ClientEvents {
    fn completion_event(&mut self, client: ClientId, channel: ChannelId, cq: u32) {
        self.send(Token::Channel(client, channel), CompletionEvent { cq }.encode());
    }

    fn wake(&mut self, word: &AtomicU64, at_most: u32) {
        // A sleep that is not ended ends by itself.
        let _ = futex::wake(word, at_most);
    }

    fn async_event(&mut self, client: ClientId, event: AsyncEvent) {
        if event.event == AsyncEventType::CqErr {
            // Once for each queue. Few programs read this event: what they see is a peer that gives
            // up, or a completion that never comes.
            tracing::warn!(
                "completion queue {} of client {} overflowed, and its queue pairs with it: make it \
                 as deep as all requests that may complete to it",
                event.element,
                client.0
            );
        }
        self.send(Token::Events(client), event.encode());
    }

    fn management(&mut self, flow: &Flow, sender: Qpn, mad: &[u8; MAD_LEN]) -> bool {
        let mad = Mad { flow: *flow, sender, mad: *mad };
        self.passed_on = true;
        self.manager.as_ref().is_some_and(|manager| manager.try_send(mad).is_ok())
    }

    fn hand_over(&mut self, shard: u8, train: &RxTrain, datagram: &[u8]) {
        // A QPN names a shard that does not exist only when it was never given out.
        // Or the kernel joined it with one for this shard, which came before it.
        let Some(Some(receiver)) = self.receivers.get_mut(usize::from(shard)) else {
            self.misled += 1;
            return;
        };
        self.handed_over = true;
        receiver.hand_over(train, datagram);
    }

    fn hand_over_to_members(&mut self, train: &RxTrain, datagram: &[u8]) -> bool {
        let shards = self.members.get(&train.flow.dst).copied().unwrap_or(0);
        let mut any = false;
        for (number, receiver) in self.receivers.iter_mut().enumerate().take(SHARDS) {
            let Some(receiver) = receiver.as_mut().filter(|_| shards & 1 << number != 0) else {
                continue;
            };
            receiver.hand_over(train, datagram);
            any = true;
        }
        self.handed_over |= any;
        any
    }
}

/// As many as there are bits of a word for.
const SHARDS: usize = MAX_SHARDS as usize;

/// Events kept for a client that does not read. One that has not read so many will not miss them.
const MAX_PENDING: usize = 1 << 17;

#[cfg(test)]
mod tests;
