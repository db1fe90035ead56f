//! The device's wire: where the engine's frames go and come from.
//!
//! A [`DeviceWire`] is, from the engine outwards: [`fault`] injection, [`capture`](mod@capture), a
//! [`composite`] of the internal [`loopback`] (queue pairs of one engine), at most one way outside
//! ([`udp`], [`xdp`] or [`packet`], opened by [`auto`]) and, beside a way of frames, sockets that
//! lead to engine processes of this host. A train's [`HopId`](rnic_core::ports::HopId) says which
//! of them it takes.

mod auto;
mod capture;
mod composite;
mod cross_shard;
mod fault;
mod frames;
mod groups;
mod loopback;
mod packet;
mod reopening;
mod split;
mod udp;
mod unserved;
mod xdp;

use crate::observe::Watcher;
use rnic_core::ports::{ArenaId, RxTrain, TxSlot, TxTrain, Wire, WireCaps};
use rnic_net::{Change, HopTable, Incarnation};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
pub use udp::STEER;
use udp::UdpWire;
pub use unserved::Unserved;
use xdp_io::TxRefusal;
use xdp_io::udp::{ReceiverSockets, SteeredPort, UdpPort};

pub use auto::{WireConfig, open};
use capture::CaptureWire;
use composite::Composite;
use cross_shard::Shards;
pub use cross_shard::{
    Attachment, Branch, BranchStats, Misuse, NewBranch, ShardRx, ShardWire, branch,
};
use fault::FaultWire;
pub use fault::{BrokenCq, Fault, FaultChange, MAX_FAULTS, NoChange};
pub use groups::{Joiner, Membership};

/// A way outside.
trait Link: Send {
    /// What it can do now.
    fn caps(&self) -> WireCaps;
    /// Readable while frames wait.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
    /// As [`Wire::receive`].
    fn receive(&mut self, trains: &mut Vec<RxTrain>);
    /// As [`Wire::rx`].
    fn rx(&self, arena: ArenaId) -> &[u8];
    /// As [`Wire::release`].
    fn release(&mut self);
    /// As [`Wire::reserve`], with the reason of a refusal.
    fn reserve(&mut self, train: &TxTrain) -> Result<TxSlot, TxRefusal>;
    /// Gives up a reservation of this turn.
    fn cancel(&mut self, slot: &TxSlot);
    /// As [`Wire::tx`].
    fn tx(&mut self) -> &mut [u8];
    /// As [`Wire::submit`].
    fn submit(&mut self);
    /// Frames wait that the link could not take yet.
    fn has_backlog(&self) -> bool;
    /// The thread has slept on its [descriptors](Self::fds), and one was readable.
    fn awake(&mut self) {}
    /// Follows a change of the interface: its addresses, its MTU, and another one in its place.
    /// False when the link could not be opened on that one.
    fn follow(&mut self, change: &Change) -> bool;
    /// Uses a socket of the daemon for one more address, where it is made of such.
    fn add_sockets(&mut self, _: IpAddr, _: ReceiverSockets) {}
    /// The port of sockets that it is, if so.
    fn udp_port(&mut self) -> Option<&mut UdpPort> {
        None
    }
    /// Receives what is sent to a group, which the device is a member of.
    fn join(&mut self, group: IpAddr, membership: Membership);
    /// Receives it no more.
    fn leave(&mut self, group: IpAddr);
    /// What it counts.
    fn counters(&mut self) -> LinkCounters;
}

/// The ways of a device, which has loopback at least.
#[derive(Default)]
struct Links {
    /// How groups are joined on them.
    joiner: Joiner,
    /// To other hosts.
    outside: Option<Box<dyn Link>>,
    /// To engines of other processes on this host, if that is another one.
    local: Option<Box<dyn Link>>,
    /// Where those have sockets of their own.
    shared: Option<Arc<SteeredPort>>,
}

/// Counters by the names that `rnic counters` shows.
pub type LinkCounters = Vec<(&'static str, u64)>;

/// Everything a device sends and receives through. See the [module](self).
pub struct DeviceWire {
    mode: String,
    inner: FaultWire<Composite>,
    joiner: Joiner,
    shards: Shards,
    /// There was no room for a train of this engine.
    was_refused: bool,
    /// So the last room was not for further shards.
    was_ours: bool,
    shared: Option<Arc<SteeredPort>>,
}

impl DeviceWire {
    fn new(mode: String, links: Links, hops: HopTable) -> Self {
        let (shared, joiner) = (links.shared.clone(), links.joiner);
        Self::of(mode, around(Composite::new(links), hops), joiner, shared)
    }

    fn of(
        mode: String,
        inner: FaultWire<Composite>,
        joiner: Joiner,
        shared: Option<Arc<SteeredPort>>,
    ) -> Self {
        let (shards, was_refused, was_ours) = (Shards::default(), false, false);
        Self { mode, inner, joiner, shards, was_refused, was_ours, shared }
    }

    /// That of a further shard with sockets of its own, which the daemon
    /// [gives](Self::add_sockets). `scope_id` is the interface of link-local addresses.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn of_shard(scope_id: u32, mtu: u32) -> xdp_io::Result<Self> {
        let link: Box<dyn Link> = Box::new(UdpWire::of_shard(scope_id, mtu)?);
        let interface = Incarnation { index: scope_id, ..Incarnation::default() };
        let joiner = Joiner::Sockets { interface };
        let links = Links { joiner, outside: Some(link), local: None, shared: None };
        let inner = around(Composite::of_shard(links), HopTable::default());
        Ok(Self::of("udp".to_owned(), inner, joiner, None))
    }

    /// Where further shards have sockets of their own; without, frames are handed over to them.
    pub fn shared_port(&self) -> Option<Arc<SteeredPort>> {
        self.shared.clone()
    }

    /// A socket of the daemon's [shared port](Self::shared_port) for one more address.
    pub fn add_sockets(&mut self, address: IpAddr, sockets: ReceiverSockets) {
        self.inner.get_mut().get_mut().add_sockets(address, sockets);
    }

    /// The UDP port, if all packets go through it.
    pub fn udp_port(&mut self) -> Option<&mut UdpPort> {
        self.inner.get_mut().get_mut().udp_port()
    }

    /// How the device joins groups.
    pub fn joiner(&self) -> Joiner {
        self.joiner
    }

    /// Receives what is sent to a group from now on.
    pub fn join(&mut self, group: IpAddr, membership: Membership) {
        self.inner.get_mut().get_mut().join(group, membership);
    }

    /// Receives it no more.
    pub fn leave(&mut self, group: IpAddr) {
        self.inner.get_mut().get_mut().leave(group);
    }

    /// The packet I/O in use, e.g. `udp` or `af-xdp native`.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// Descriptors that are readable while frames wait.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.get().get().fds().into_iter().chain(self.shards.fds()).collect()
    }

    /// Takes what a further shard sends from now on.
    pub fn add_shard(&mut self, branch: Branch) {
        self.shards.add(branch);
    }

    /// The further shard of this serial number has ended.
    pub fn end_shard(&mut self, serial: u64) {
        self.shards.end(serial);
    }

    /// Frames wait that no descriptor tells about: what was looped back, what the link could not
    /// take yet, or what an injected fault holds back.
    pub fn has_backlog(&self) -> bool {
        let shards = self.shards.has_backlog();
        shards || self.inner.has_backlog() || self.inner.get().get().has_backlog()
    }

    /// Says to further shards that this one is about to sleep. False when it must not.
    pub fn prepare_sleep(&mut self) -> bool {
        self.shards.prepare_sleep()
    }

    /// It does not sleep any more, or does not begin to. One of the [descriptors](Self::fds) was
    /// readable if it is `by_wire`: only then all are looked at, which takes a system call each.
    pub fn awake(&mut self, by_wire: bool) {
        if by_wire {
            self.inner.get_mut().get_mut().awake();
        }
        self.shards.awake();
    }

    /// Whether what arrived last came from outside, where more may follow at any moment.
    pub fn heard_outside(&self) -> bool {
        self.inner.get().get().heard_outside()
    }

    /// Follows a change of the interface. False when there is no way outside any more.
    pub fn follow(&mut self, change: &Change) -> bool {
        self.shards.follow(&change.addresses);
        self.inner.get_mut().get_mut().follow(change)
    }

    /// Counters of the links and of injected faults.
    pub fn counters(&mut self) -> LinkCounters {
        let mut counters = self.inner.get_mut().get_mut().counters();
        counters.extend(self.inner.counters());
        counters.extend(self.shards.counters());
        counters
    }

    /// Shows what is sent and received, and the faults that strike it, to one more watcher.
    pub fn observe(&mut self, watcher: &Watcher) {
        if watcher.wants().events {
            self.inner.add_watcher(watcher.clone());
        }
        if watcher.wants().frames {
            self.inner.get_mut().add_watcher(watcher.clone());
        }
        self.open();
    }

    /// What is looked at or disturbed is made as for outside.
    fn open(&mut self) {
        let open = self.inner.disturbs() || self.inner.get().is_watched();
        self.inner.get_mut().get_mut().set_open(open);
    }

    /// Changes the faults that are injected into what arrives and is sent from now on. Returns
    /// those in force. Equal seeds treat equal packets alike.
    ///
    /// # Errors
    /// When nothing is changed.
    pub fn change_faults(&mut self, change: FaultChange) -> Result<Vec<Fault>, NoChange> {
        let changed = self.inner.change(change);
        self.open();
        changed
    }

    /// How many packets matched each fault, and how many it struck, by the number of the fault.
    pub fn fault_counts(&self) -> Vec<(u32, [u64; 2])> {
        self.inner.fault_counts()
    }

    /// A completion queue that a fault breaks now.
    pub fn take_broken_cq(&mut self) -> Option<BrokenCq> {
        self.inner.take_broken()
    }
}

impl Wire for DeviceWire {
    fn caps(&self) -> WireCaps {
        self.inner.caps()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        self.open();
        self.inner.receive(trains);
        // By turns while the wire is full.
        self.was_ours = std::mem::take(&mut self.was_refused) && !self.was_ours;
        if !self.was_ours {
            self.shards.collect(&mut self.inner);
        }
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        self.inner.rx(arena)
    }

    fn release(&mut self) {
        self.inner.release();
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let slot = self.inner.reserve(train);
        self.was_refused |= slot.is_none();
        slot
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        self.inner.cancel_from(slot);
    }

    fn tx(&mut self, arena: ArenaId) -> &mut [u8] {
        self.inner.tx(arena)
    }

    fn submit(&mut self) {
        self.inner.submit();
    }
}

/// With what disturbs and what shows.
fn around(composite: Composite, hops: HopTable) -> FaultWire<Composite> {
    FaultWire::new(CaptureWire::new(composite, hops), FAULT)
}

/// UDP payload that an interface of this MTU carries, in the family with the longer header when
/// IPv6 is among `addresses`.
fn max_datagram(mtu: u32, addresses: &[IpAddr]) -> u32 {
    let headers = if addresses.iter().any(IpAddr::is_ipv6) { IPV6_UDP } else { IPV4_UDP };
    mtu.saturating_sub(headers).min(MAX_DATAGRAM)
}

/// Whether it takes an interface to tell which address this is.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The datagrams of a train, with their indexes, in the memory that was reserved for it.
fn datagrams<'a>(
    train: &TxTrain,
    slot: &TxSlot,
    memory: &'a [u8],
) -> impl Iterator<Item = (u32, &'a [u8])> {
    (0..train.segments).map_while(move |k| {
        let is_last = k + 1 == train.segments;
        let len = if is_last { train.last_len } else { train.segment_len } as usize;
        let start = (slot.offset + k * slot.stride) as usize;
        Some((k, memory.get(start..start + len)?))
    })
}

/// Bytes of all datagrams of a train; `None` for one without datagrams.
fn train_len(train: &TxTrain) -> Option<u32> {
    let before_last = train.segments.checked_sub(1)?.checked_mul(train.segment_len)?;
    before_last.checked_add(train.last_len)
}

const LOOPBACK: ArenaId = ArenaId(0);
const OUTSIDE: ArenaId = ArenaId(1);
const DISCARD: ArenaId = ArenaId(2);
const FAULT: ArenaId = ArenaId(3);
const LOCAL: ArenaId = ArenaId(4);
/// Receive queue n of an interface, where n is not 0: this plus n.
const QUEUES: ArenaId = ArenaId(5);
/// The longest datagram of RoCEv2: path MTU 4096 and every header there is.
const MAX_DATAGRAM: u32 = 4096 + 96;
const IPV4_UDP: u32 = 28;
const IPV6_UDP: u32 = 48;
/// Most reservations of one turn.
const MAX_RESERVED: usize = 1024;
/// Most trains that a link takes from the kernel at once.
const MAX_BURST: usize = 64;

#[cfg(test)]
pub(crate) mod tests;
