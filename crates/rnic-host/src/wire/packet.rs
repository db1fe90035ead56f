//! RoCEv2 frames over AF_PACKET, and trains of them where the kernel knows them.

use super::frames::{Ethernet, MIN_FRAME, pad};
use super::reopening::Reopening;
use super::{
    Link, LinkCounters, MAX_BURST, MAX_RESERVED, Membership, OUTSIDE, is_link_local, max_datagram,
    split, train_len,
};
use rnic_core::ports::{ArenaId, RxTrain, TxIpId, TxSlot, TxTrain, WireCaps};
use rnic_net::{Change, HopTable, Incarnation};
use roce_wire::ROCE_PORT;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use xdp_io::TxRefusal;
use xdp_io::packet::{self, PacketConfig, PacketPort};
use xdp_io::udp::SteerBy;

/// See the [module](self).
pub(super) struct PacketWire {
    port: PacketPort,
    ethernet: Ethernet,
    addresses: Vec<IpAddr>,
    groups: BTreeMap<IpAddr, Membership>,
    max_datagram: u32,
    frames: Vec<packet::RxTrain>,
    reserved: Vec<(xdp_io::TxSlot, u32)>,
    backlog: bool,
    /// Frames to addresses that are not ours: the socket does not filter them.
    not_ours: u64,
    reopening: Reopening,
}

impl PacketWire {
    /// Opens `interface`, with or without trains; with `steer` only for the first shard.
    ///
    /// # Errors
    /// As [`PacketPort::open`].
    pub(super) fn new(
        interface: &str,
        trains: bool,
        (now, steer): (&Change, Option<SteerBy>),
        hops: HopTable,
    ) -> xdp_io::Result<Self> {
        let mut config = PacketConfig::new(interface, ROCE_PORT);
        config.steer = steer;
        config.trains = trains;
        config.addresses.clone_from(&now.addresses);
        Ok(Self {
            port: PacketPort::open(&config)?,
            ethernet: Ethernet::new(hops),
            addresses: now.addresses.clone(),
            groups: BTreeMap::new(),
            max_datagram: max_datagram(now.mtu, &now.addresses),
            frames: vec![packet::RxTrain::default(); MAX_BURST],
            reserved: Vec::with_capacity(MAX_RESERVED),
            backlog: false,
            not_ours: 0,
            reopening: Reopening::new(now.interface),
        })
    }

    /// Has the socket use the interface that was made anew.
    fn reopen(&mut self, interface: Incarnation) {
        let moved = self.port.move_to(interface.index);
        self.reopening.note(interface, (&self.ethernet, "af-packet"), moved);
        // Link-local addresses are others now.
        self.addresses.retain(|own| !is_link_local(*own));
    }
}

impl Link for PacketWire {
    fn caps(&self) -> WireCaps {
        let caps = self.port.caps();
        WireCaps {
            max_datagram: self.max_datagram,
            max_segments: caps.max_segments as u32,
            max_train: caps.max_bytes as u32,
            tx_ip_id: TxIpId::Ours,
        }
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.port.as_fd()]
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let room = (trains.capacity() - trains.len()).min(self.frames.len());
        let count = self.port.receive(&mut self.frames[..room]);
        let arena = self.port.rx_arena();
        // Where the port knows no trains, the kernel does not tell what it joined.
        let unmarked = self.port.caps().max_segments == 1;
        for frame in &self.frames[..count] {
            let Some(mut train) = self.ethernet.strip(arena, frame.offset, frame.len) else {
                continue;
            };
            let dst = train.flow.dst;
            if !self.addresses.contains(&dst) && !self.groups.contains_key(&dst) {
                self.not_ours += 1;
                continue;
            }
            if frame.gso_size > 0 {
                train.segment_len = frame.gso_size as u32;
            } else if unmarked {
                split::take_apart(&mut train, arena);
            }
            trains.push(train);
        }
    }

    fn rx(&self, _: ArenaId) -> &[u8] {
        self.port.rx_arena()
    }

    fn release(&mut self) {
        self.port.release_rx();
    }

    fn reserve(&mut self, train: &TxTrain) -> Result<TxSlot, TxRefusal> {
        let header = self.ethernet.header(train)?;
        let len = train_len(train).ok_or(TxRefusal::Length)? as usize;
        let gso = match train.segments {
            1 => 0,
            _ => u16::try_from(train.segment_len).map_err(|_| TxRefusal::Length)?,
        };
        let slot = self.port.reserve((header.len() + len).max(MIN_FRAME), gso)?;
        let frame = &mut self.port.tx_arena_mut()[slot.range()];
        pad(frame, header.len() + len);
        let offset = (slot.offset + header.emit(train.ip_id, len, frame)) as u32;
        self.reserved.push((slot, offset));
        Ok(TxSlot { arena: OUTSIDE, offset, stride: train.segment_len, is_internal: false })
    }

    fn cancel(&mut self, slot: &TxSlot) {
        if let Some(index) = self.reserved.iter().rposition(|(_, at)| *at == slot.offset) {
            self.port.truncate(&self.reserved.swap_remove(index).0, 0);
        }
    }

    fn tx(&mut self) -> &mut [u8] {
        self.port.tx_arena_mut()
    }

    fn submit(&mut self) {
        if self.reserved.is_empty() && !self.backlog {
            return;
        }
        self.reserved.clear();
        self.backlog = self.port.submit().queued > 0;
    }

    fn has_backlog(&self) -> bool {
        self.backlog
    }

    fn follow(&mut self, change: &Change) -> bool {
        if self.reopening.is_due(change) {
            self.reopen(change.interface);
        }
        let Change { addresses, mtu, .. } = change;
        for gone in self.addresses.iter().filter(|old| !addresses.contains(old)) {
            if let Some(guard) = self.port.guard() {
                guard.remove_address(*gone);
            }
        }
        for new in addresses.iter().filter(|new| !self.addresses.contains(new)) {
            if let Some(guard) = self.port.guard()
                && let Err(error) = guard.add_address(*new)
            {
                tracing::warn!("cannot hold UDP port {ROCE_PORT} on {new}: {error}");
            }
        }
        self.addresses = addresses.to_vec();
        self.max_datagram = max_datagram(*mtu, addresses);
        self.reopening.works()
    }

    fn join(&mut self, group: IpAddr, membership: Membership) {
        self.groups.insert(group, membership);
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.remove(&group);
    }

    fn counters(&mut self) -> LinkCounters {
        let stats = self.port.stats();
        vec![
            ("link_rx_trains", stats.rx_trains),
            ("link_rx_bytes", stats.rx_bytes),
            ("link_rx_malformed", stats.rx_malformed + self.ethernet.refused.malformed),
            ("link_rx_foreign_mac", self.ethernet.refused.foreign),
            ("link_rx_foreign_vlan", self.ethernet.refused.vlan),
            ("link_rx_foreign_ip", self.not_ours),
            ("link_rx_errors", stats.rx_errors),
            ("link_rx_no_buffer", stats.rx_kernel_drops),
            ("link_tx_trains", stats.tx_trains),
            ("link_tx_backpressure", stats.tx_backpressure),
            ("link_tx_errors", stats.tx_errors.total()),
            ("link_reopen_failed", self.reopening.failed),
        ]
    }
}
