//! The wire of a shard: the device's own, or the way through the shard that has it.

use crate::inspect::Counts;
use crate::observe::Watcher;
use crate::wire::{
    Branch, BrokenCq, DeviceWire, Fault, FaultChange, LinkCounters, Membership, NoChange, ShardWire,
};
use rnic_core::ports::{ArenaId, RxTrain, TxSlot, TxTrain, Wire, WireCaps};
use rnic_net::Change;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use xdp_io::udp::{ReceiverSockets, UdpPort};

/// See the [module](self).
pub enum ShardPort {
    /// That of the first shard, and of one with sockets of its own.
    Device(Box<DeviceWire>),
    /// That of a further shard, whose frames are handed over.
    Shard(Box<ShardWire>),
}

impl ShardPort {
    /// Descriptors that are readable while frames wait.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Device(wire) => wire.fds(),
            Self::Shard(wire) => vec![wire.fd()],
        }
    }

    /// Frames wait that no descriptor tells about.
    pub(super) fn has_backlog(&self) -> bool {
        match self {
            Self::Device(wire) => wire.has_backlog(),
            Self::Shard(wire) => wire.has_backlog(),
        }
    }

    /// More may follow at once what arrived last: it came from another host.
    pub(super) fn expects_more(&self) -> bool {
        match self {
            Self::Device(wire) => wire.heard_outside(),
            Self::Shard(_) => true,
        }
    }

    /// Says to those at the other end that this side is about to sleep. False when it must not.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        match self {
            Self::Device(wire) => wire.prepare_sleep(),
            Self::Shard(wire) => wire.prepare_sleep(),
        }
    }

    /// It does not sleep any more, or does not begin to; whether the wire may have something that
    /// was not looked for.
    pub(super) fn awake(&mut self, by_wire: bool) {
        match self {
            Self::Device(wire) => wire.awake(by_wire),
            Self::Shard(wire) => wire.awake(),
        }
    }

    /// Follows a change of the interface; a further shard's wire does so by itself. False when
    /// there is no way outside any more.
    pub(super) fn follow(&mut self, change: &Change) -> bool {
        match self {
            Self::Device(wire) => wire.follow(change),
            Self::Shard(_) => true,
        }
    }

    /// Uses a socket of the daemon.
    pub(super) fn add_sockets(&mut self, address: IpAddr, sockets: ReceiverSockets) {
        if let Self::Device(wire) = self {
            wire.add_sockets(address, sockets);
        }
    }

    /// The UDP port, if all packets go through it.
    pub(super) fn udp_port(&mut self) -> Option<&mut UdpPort> {
        match self {
            Self::Device(wire) => wire.udp_port(),
            Self::Shard(_) => None,
        }
    }

    /// Receives what is sent to a group; a further shard is given it.
    pub(super) fn join(&mut self, group: IpAddr, membership: Membership) {
        if let Self::Device(wire) = self {
            wire.join(group, membership);
        }
    }

    /// Receives it no more.
    pub(super) fn leave(&mut self, group: IpAddr) {
        if let Self::Device(wire) = self {
            wire.leave(group);
        }
    }

    /// Disturbs what arrives, as [`DeviceWire::change_faults`].
    pub(super) fn change_faults(&mut self, change: FaultChange) -> Result<Vec<Fault>, NoChange> {
        match self {
            Self::Device(wire) => wire.change_faults(change),
            Self::Shard(_) => Err(NoChange::NoWire),
        }
    }

    /// As [`DeviceWire::take_broken_cq`].
    pub(super) fn take_broken_cq(&mut self) -> Option<BrokenCq> {
        match self {
            Self::Device(wire) => wire.take_broken_cq(),
            Self::Shard(_) => None,
        }
    }

    /// Shows what is sent and received to one more watcher.
    pub(super) fn observe(&mut self, watcher: &Watcher) {
        if let Self::Device(wire) = self {
            wire.observe(watcher);
        }
    }

    /// Takes what one more shard sends.
    pub(super) fn add_shard(&mut self, branch: Branch) {
        if let Self::Device(wire) = self {
            wire.add_shard(branch);
        }
    }

    /// That shard has ended.
    pub(super) fn end_shard(&mut self, serial: u64) {
        if let Self::Device(wire) = self {
            wire.end_shard(serial);
        }
    }
}

impl Counts for ShardPort {
    /// Which only their owner has.
    fn counters(&mut self) -> LinkCounters {
        match self {
            Self::Device(wire) => wire.counters(),
            Self::Shard(_) => Vec::new(),
        }
    }

    fn fault_counts(&self) -> Vec<(u32, [u64; 2])> {
        match self {
            Self::Device(wire) => wire.fault_counts(),
            Self::Shard(_) => Vec::new(),
        }
    }
}

/// The same for both.
macro_rules! either {
    ($self:expr, $wire:ident => $do:expr) => {
        match $self {
            ShardPort::Device($wire) => $do,
            ShardPort::Shard($wire) => $do,
        }
    };
}

impl Wire for ShardPort {
    fn caps(&self) -> WireCaps {
        either!(self, wire => wire.caps())
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        either!(self, wire => wire.receive(trains));
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        either!(self, wire => wire.rx(arena))
    }

    fn release(&mut self) {
        either!(self, wire => wire.release());
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        either!(self, wire => wire.reserve(train))
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        either!(self, wire => wire.cancel_from(slot));
    }

    fn tx(&mut self, arena: ArenaId) -> &mut [u8] {
        either!(self, wire => wire.tx(arena))
    }

    fn submit(&mut self) {
        either!(self, wire => wire.submit());
    }
}
