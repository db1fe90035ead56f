//! Loopback and the device's packet I/O as one wire.

mod groups;

use super::loopback::Loopback;
use super::{
    DISCARD, LOCAL, LOOPBACK, Link, LinkCounters, Links, MAX_DATAGRAM, MAX_RESERVED, Membership,
    OUTSIDE, train_len,
};
use groups::Groups;
use rnic_core::ports::{ArenaId, HopId, RxTrain, TxIpId, TxSlot, TxTrain, Wire, WireCaps};
use rnic_net::Change;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use xdp_io::TxRefusal;
use xdp_io::udp::{ReceiverSockets, UdpPort};

/// Loopback and the device's packet I/O.
pub(super) struct Composite {
    loopback: Loopback,
    outside: Option<Box<dyn Link>>,
    /// To shards of this host, if that is another way.
    local: Option<Box<dyn Link>>,
    /// Counts to the next look at it.
    looks: u32,
    /// Shards have sockets of their own: the kernel carries what is for another one.
    is_shared: bool,
    /// Where trains go that can never be sent: the transport's retries decide what follows.
    discard: Vec<u8>,
    discarded: u64,
    /// Reservations since the last submit, in order.
    reserved: Vec<TxSlot>,
    groups: Groups,
    /// Loopback had packets, and the device was not polled.
    outside_waits: bool,
    /// What was received last came from outside.
    heard_outside: bool,
}

impl Composite {
    /// A device with `outside`, or with loopback only.
    pub(super) fn new(links: Links) -> Self {
        let is_shared = links.shared.is_some();
        Self { is_shared, ..Self::of_shard(links) }
    }

    /// Of a shard with sockets of its own.
    pub(super) fn of_shard(links: Links) -> Self {
        let Links { outside, local, joiner, .. } = links;
        let caps = outside.as_ref().map_or(LOOPBACK_CAPS, |link| link.caps());
        Self {
            loopback: Loopback::new(LOOPBACK, caps.tx_ip_id),
            outside,
            local,
            looks: 0,
            is_shared: true,
            discard: vec![0; DISCARD_LEN],
            discarded: 0,
            reserved: Vec::with_capacity(MAX_RESERVED),
            groups: Groups::new(joiner),
            outside_waits: false,
            heard_outside: false,
        }
    }

    /// Descriptors that are readable while frames wait.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.links().flat_map(|link| link.fds()).collect()
    }

    /// Frames wait that no descriptor tells about: what was looped back, or what the link could
    /// not take yet.
    pub(super) fn has_backlog(&self) -> bool {
        self.loopback.has_backlog() || self.links().any(|link| link.has_backlog())
    }

    /// Whether what was received last came from outside, where more may follow without a turn of
    /// this engine.
    pub(super) fn heard_outside(&self) -> bool {
        self.heard_outside
    }

    fn links(&self) -> impl Iterator<Item = &Box<dyn Link>> {
        self.outside.iter().chain(&self.local)
    }

    fn links_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Link>> {
        self.outside.iter_mut().chain(&mut self.local)
    }

    /// Follows a change of the interface. False when the way outside is lost.
    pub(super) fn follow(&mut self, change: &Change) -> bool {
        if let Some(local) = &mut self.local {
            // Sockets are never lost.
            local.follow(change);
        }
        self.outside.as_mut().is_none_or(|link| link.follow(change))
    }

    /// The thread has slept, and something is there.
    pub(super) fn awake(&mut self) {
        // It may be the local link that has something.
        self.looks = LOOK_EVERY - 1;
        self.links_mut().for_each(|link| link.awake());
    }

    /// Uses a socket of the daemon for one more address.
    pub(super) fn add_sockets(&mut self, address: IpAddr, sockets: ReceiverSockets) {
        if let Some(link) = &mut self.outside {
            link.add_sockets(address, sockets);
        }
    }

    /// The UDP port, if all packets go through it.
    pub(super) fn udp_port(&mut self) -> Option<&mut UdpPort> {
        match (&mut self.outside, &self.local) {
            (Some(link), None) => link.udp_port(),
            _ => None,
        }
    }

    /// Receives what is sent to a group.
    pub(super) fn join(&mut self, group: IpAddr, membership: Membership) {
        self.groups.joined.insert(group);
        if let Some(link) = self.local.as_mut().or(self.outside.as_mut()) {
            link.join(group, membership);
        }
    }

    /// Receives it no more.
    pub(super) fn leave(&mut self, group: IpAddr) {
        self.groups.joined.remove(&group);
        if let Some(link) = self.local.as_mut().or(self.outside.as_mut()) {
            link.leave(group);
        }
    }

    /// Counters of the link.
    pub(super) fn counters(&mut self) -> LinkCounters {
        let mut counters = self.loopback.counters();
        counters.push(("link_tx_no_route", self.discarded));
        counters.push(("loopback_group_lost", self.groups.lost));
        if let Some(link) = &mut self.outside {
            counters.extend(link.counters());
        }
        if let Some(link) = &mut self.local {
            let own = |(name, count)| Some((local_name(name)?, count));
            counters.extend(link.counters().into_iter().filter_map(own));
        }
        counters
    }

    /// Whether captures or faults see from now on what is looped back.
    pub(super) fn set_open(&mut self, open: bool) {
        self.loopback.set_open(open);
    }

    /// To a shard of another process on this host.
    fn reserve_local(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let Some(local) = &mut self.local else { return self.reserve_outside(train) };
        match local.reserve(train) {
            Ok(slot) => Some(TxSlot { arena: LOCAL, ..slot }),
            Err(TxRefusal::Full) => None,
            Err(_) => self.discard(train),
        }
    }

    /// Now and then: to look takes a system call, and little comes this way.
    fn receive_local(&mut self, trains: &mut Vec<RxTrain>) {
        let Some(local) = &mut self.local else { return };
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(LOOK_EVERY) {
            return;
        }
        let before = trains.len();
        local.receive(trains);
        for train in trains.iter_mut().skip(before) {
            train.arena = LOCAL;
        }
    }

    fn reserve_outside(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let refusal = match &mut self.outside {
            Some(link) => match link.reserve(train) {
                Ok(slot) => return Some(slot),
                Err(refusal) => refusal,
            },
            None => TxRefusal::NoSource,
        };
        if refusal == TxRefusal::Full {
            return None;
        }
        self.discard(train)
    }

    /// Somewhere, to be forgotten.
    fn discard(&mut self, train: &TxTrain) -> Option<TxSlot> {
        self.discarded += u64::from(train.segments);
        // Slots differ, so that each can be cancelled.
        let offset = self.reserved.len() as u32 * 4;
        let end = offset.checked_add(train_len(train)?)?;
        let slot = TxSlot { arena: DISCARD, offset, stride: train.segment_len, is_internal: false };
        (end as usize <= self.discard.len()).then_some(slot)
    }
}

impl Wire for Composite {
    fn caps(&self) -> WireCaps {
        self.outside.as_ref().map_or(LOOPBACK_CAPS, |link| link.caps())
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        // In turns while both have something, so that neither starves the other. To look outside
        // takes a system call.
        if !self.outside_waits {
            self.loopback.receive(trains);
            if !trains.is_empty() {
                self.outside_waits = true;
                self.heard_outside = false;
                return;
            }
        }
        // First: what comes from outside may fill all the room in every call.
        self.receive_local(trains);
        let before = trains.len();
        if let Some(link) = &mut self.outside {
            link.receive(trains);
            if trains.len() == before {
                // The engine gives back what it has seen; what was refused it never sees.
                link.release();
            } else {
                self.heard_outside = true;
            }
        }
        if std::mem::take(&mut self.outside_waits) {
            self.heard_outside &= trains.len() > before;
            self.loopback.receive(trains);
        }
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        match (arena, &self.outside) {
            (LOOPBACK, _) => self.loopback.rx(),
            (LOCAL, _) => self.local.as_ref().map_or(&[], |link| link.rx(arena)),
            (_, Some(link)) => link.rx(arena),
            (_, None) => &[],
        }
    }

    fn release(&mut self) {
        self.loopback.release();
        self.links_mut().for_each(|link| link.release());
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        if self.reserved.len() == MAX_RESERVED {
            return None;
        }
        let slot = match train.hop {
            HopId::LOCAL if train.to_self || !self.is_shared => self.loopback.reserve(train),
            HopId::LOCAL => self.reserve_local(train),
            _ if train.flow.dst.is_multicast() => self.reserve_for_group(train),
            _ => self.reserve_outside(train),
        }?;
        self.reserved.push(slot);
        Some(slot)
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        let Some(first) = self.reserved.iter().rposition(|reserved| reserved == slot) else {
            return;
        };
        self.groups.cancel(self.reserved.get(first..).unwrap_or_default());
        for slot in self.reserved.drain(first..).rev() {
            match (slot.arena, &mut self.outside) {
                (LOOPBACK, _) => self.loopback.cancel_last(),
                (OUTSIDE, Some(link)) => link.cancel(&slot),
                (LOCAL, _) => self.local.iter_mut().for_each(|link| link.cancel(&slot)),
                _ => {}
            }
        }
    }

    fn tx(&mut self, arena: ArenaId) -> &mut [u8] {
        match (arena, &mut self.outside) {
            (LOOPBACK, _) => self.loopback.tx(),
            (OUTSIDE, Some(link)) => link.tx(),
            (LOCAL, _) => self.local.as_mut().map_or(&mut [], |link| link.tx()),
            (DISCARD, _) => &mut self.discard,
            _ => &mut [],
        }
    }

    fn submit(&mut self) {
        self.reserved.clear();
        if !self.groups.trains.is_empty() {
            self.finish_group_trains();
        }
        self.loopback.submit();
        self.links_mut().for_each(|link| link.submit());
    }
}

/// What a counter of the local link is called beside those of the way outside.
fn local_name(of_link: &str) -> Option<&'static str> {
    LOCAL_NAMES.iter().find(|(_, name)| *name == of_link).map(|(local, _)| *local)
}

const LOCAL_NAMES: [(&str, &str); 9] = [
    ("local_rx_trains", "link_rx_trains"),
    ("local_rx_bytes", "link_rx_bytes"),
    ("local_rx_malformed", "link_rx_malformed"),
    ("local_rx_errors", "link_rx_errors"),
    ("local_rx_no_buffer", "link_rx_no_buffer"),
    ("local_tx_trains", "link_tx_trains"),
    ("local_tx_backpressure", "link_tx_backpressure"),
    ("local_tx_errors", "link_tx_errors"),
    ("local_bind_failed", "link_bind_failed"),
];

/// How many calls look at the local link once.
const LOOK_EVERY: u32 = 32;

/// What the loopback can do when there is nothing else.
const LOOPBACK_CAPS: WireCaps = WireCaps {
    max_datagram: MAX_DATAGRAM,
    max_segments: 64,
    max_train: 64 * 1024,
    tx_ip_id: TxIpId::Ours,
};

/// The longest train, and a different start for each reservation.
const DISCARD_LEN: usize = 64 * 1024 + 4 * MAX_RESERVED;

#[cfg(test)]
mod tests;
