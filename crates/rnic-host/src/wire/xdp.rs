//! RoCEv2 frames over AF_XDP.

use super::frames::{Ethernet, MIN_FRAME, pad};
use super::reopening::Reopening;
use super::{
    Link, LinkCounters, MAX_BURST, MAX_RESERVED, Membership, OUTSIDE, QUEUES, max_datagram, split,
};
use rnic_core::ports::{ArenaId, RxTrain, TxIpId, TxSlot, TxTrain, WireCaps};
use rnic_net::{Change, HopTable};
use roce_wire::{FrameHeader, ROCE_PORT};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use xdp_io::TxRefusal;
use xdp_io::program::AttachMode;
use xdp_io::udp::SteerBy;
use xdp_io::xsk::{RxFrame, XdpMode, XskCaps, XskConfig, XskPort};

/// See the [module](self).
pub(super) struct XdpWire {
    /// One per receive queue; the first one sends. None while there is no interface to use.
    ports: Vec<XskPort>,
    /// With which they were opened.
    config: XskConfig,
    /// The longest frame of those that were opened last.
    max_frame: usize,
    /// What those that were closed had counted.
    past: Counts,
    reopening: Reopening,
    /// Which queue is asked first.
    turn: usize,
    ethernet: Ethernet,
    addresses: Vec<IpAddr>,
    groups: BTreeMap<IpAddr, Membership>,
    max_datagram: u32,
    frames: Vec<RxFrame>,
    reserved: Vec<(xdp_io::TxSlot, u32)>,
    backlog: bool,
}

impl XdpWire {
    /// Opens all queues of `interface`; with `steer` only for the first shard.
    ///
    /// # Errors
    /// As [`XskPort::open`].
    pub(super) fn new(
        interface: &str,
        mode: XdpMode,
        (now, steer): (&Change, Option<SteerBy>),
        hops: HopTable,
    ) -> xdp_io::Result<Self> {
        let mut config = XskConfig::new(interface, ROCE_PORT);
        config.index = Some(now.interface.index);
        config.steer = steer;
        config.addresses.clone_from(&now.addresses);
        config.mode = mode;
        let ports = open(&config)?;
        let mut wire = Self {
            max_frame: ports[0].caps().max_frame,
            ports,
            config,
            past: Counts::default(),
            reopening: Reopening::new(now.interface),
            turn: 0,
            ethernet: Ethernet::new(hops),
            addresses: now.addresses.clone(),
            groups: BTreeMap::new(),
            max_datagram: 0,
            frames: vec![RxFrame::default(); MAX_BURST],
            reserved: Vec::with_capacity(MAX_RESERVED),
            backlog: false,
        };
        wire.set_mtu(now.mtu);
        Ok(wire)
    }

    /// Opens the interface that was made anew. The ports of the one before are closed: both would
    /// pin memory, which is limited.
    fn reopen(&mut self, change: &Change) {
        let opened = xdp_io::netdev::name(change.interface.index).and_then(|interface| {
            self.config.interface = interface;
            self.config.index = Some(change.interface.index);
            self.config.addresses = change.addresses.clone();
            self.config.addresses.extend(self.groups.keys());
            open(&self.config)
        });
        self.addresses.clone_from(&change.addresses);
        let opened = opened.map(|ports| {
            self.max_frame = ports[0].caps().max_frame;
            self.ports = ports;
        });
        self.reopening.note(change.interface, (&self.ethernet, &self.describe()), opened);
    }

    /// Gives the ports up, which are dead. What waits in them is lost.
    fn close(&mut self) {
        self.past = self.counted();
        self.ports.clear();
        self.reserved.clear();
        self.backlog = false;
    }

    /// What all ports have counted ever.
    fn counted(&self) -> Counts {
        let mut sum = self.past;
        for port in &self.ports {
            sum.iter_mut().zip(counts_of(port)).for_each(|(sum, one)| *sum += one);
        }
        sum
    }

    /// Takes what waits on one queue.
    fn receive_from(&mut self, queue: usize, trains: &mut Vec<RxTrain>) {
        let Some(port) = self.ports.get_mut(queue) else { return };
        let room = (trains.capacity() - trains.len()).min(self.frames.len());
        let count = port.receive(&mut self.frames[..room]);
        let bytes = port.rx_arena();
        let joined = port.caps().mode == AttachMode::Generic;
        for frame in &self.frames[..count] {
            let Some(mut train) = self.ethernet.strip(bytes, frame.offset, frame.len) else {
                continue;
            };
            train.arena = arena_of(queue);
            if joined {
                split::take_apart(&mut train, bytes);
            }
            trains.push(train);
        }
    }

    /// Whether frames that a sender's kernel left joined are too long to be received.
    pub(super) fn loses_trains(&self) -> bool {
        let caps = self.ports.first().map(XskPort::caps);
        caps.is_some_and(|caps| caps.mode == AttachMode::Generic && !caps.multi_buffer)
    }

    /// e.g. `af-xdp native`.
    pub(super) fn describe(&self) -> String {
        self.ports.first().map_or_else(|| "af-xdp".into(), |port| describe(port.caps()))
    }

    fn set_mtu(&mut self, mtu: u32) {
        let frame_room = (self.max_frame - FrameHeader::MAX_LEN) as u32;
        self.max_datagram = max_datagram(mtu, &self.addresses).min(frame_room);
    }
}

impl Link for XdpWire {
    fn caps(&self) -> WireCaps {
        WireCaps {
            max_datagram: self.max_datagram,
            max_segments: 1,
            max_train: self.max_datagram,
            tx_ip_id: TxIpId::Ours,
        }
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.ports.iter().map(AsFd::as_fd).collect()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let queues = self.ports.len();
        self.turn = self.turn.wrapping_add(1);
        for step in 0..queues {
            self.receive_from(self.turn.wrapping_add(step) % queues, trains);
        }
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        self.ports.get(queue_of(arena)).map_or(&[], |port| port.rx_arena())
    }

    fn release(&mut self) {
        self.ports.iter_mut().for_each(XskPort::release_rx);
    }

    fn reserve(&mut self, train: &TxTrain) -> Result<TxSlot, TxRefusal> {
        if train.segments != 1 {
            return Err(TxRefusal::Length);
        }
        let header = self.ethernet.header(train)?;
        let len = train.last_len as usize;
        let port = self.ports.first_mut().ok_or(TxRefusal::NoSource)?;
        let slot = port.reserve((header.len() + len).max(MIN_FRAME))?;
        let frame = &mut port.tx_arena_mut()[slot.range()];
        pad(frame, header.len() + len);
        let offset = (slot.offset + header.emit(train.ip_id, len, frame)) as u32;
        self.reserved.push((slot, offset));
        Ok(TxSlot { arena: OUTSIDE, offset, stride: train.segment_len, is_internal: false })
    }

    fn cancel(&mut self, slot: &TxSlot) {
        if let Some(index) = self.reserved.iter().rposition(|(_, at)| *at == slot.offset) {
            let slot = self.reserved.swap_remove(index).0;
            self.ports.iter_mut().take(1).for_each(|port| port.truncate(&slot, 0));
        }
    }

    fn tx(&mut self) -> &mut [u8] {
        self.ports.first_mut().map_or(&mut [], XskPort::tx_arena_mut)
    }

    fn submit(&mut self) {
        if self.reserved.is_empty() && !self.backlog {
            return;
        }
        self.reserved.clear();
        self.backlog = self.ports.first_mut().is_some_and(|port| port.submit().queued > 0);
    }

    fn has_backlog(&self) -> bool {
        self.backlog
    }

    fn follow(&mut self, change: &Change) -> bool {
        if !self.reopening.uses(change) {
            // They are dead. An interface that was in another network namespace still has their
            // program, and takes no other one beside it.
            self.close();
        }
        if self.reopening.is_due(change) {
            self.reopen(change);
        }
        let Change { addresses, mtu, .. } = change;
        for gone in self.addresses.iter().filter(|old| !addresses.contains(old)) {
            if let Some(Err(error)) = self.ports.first().map(|port| port.remove_address(*gone)) {
                tracing::warn!("cannot give {gone} back to the kernel: {error}");
            }
        }
        for new in addresses.iter().filter(|new| !self.addresses.contains(new)) {
            if let Some(Err(error)) = self.ports.first().map(|port| port.add_address(*new)) {
                tracing::warn!("cannot serve {new}: {error}");
            }
        }
        self.addresses.clone_from(addresses);
        self.set_mtu(*mtu);
        self.reopening.works()
    }

    fn join(&mut self, group: IpAddr, membership: Membership) {
        if let Some(Err(error)) = self.ports.first().map(|port| port.add_address(group)) {
            tracing::warn!("cannot serve the multicast group {group}: {error}");
        }
        self.groups.insert(group, membership);
    }

    fn leave(&mut self, group: IpAddr) {
        if let Some(Err(error)) = self.ports.first().map(|port| port.remove_address(group)) {
            tracing::warn!("cannot give the multicast group {group} back to the kernel: {error}");
        }
        self.groups.remove(&group);
    }

    fn counters(&mut self) -> LinkCounters {
        let [rx_frames, rx_dropped, rx_no_buffer, tx_frames, tx_backpressure, tx_errors] =
            self.counted();
        vec![
            ("link_rx_frames", rx_frames),
            ("link_rx_malformed", self.ethernet.refused.malformed),
            ("link_rx_foreign_mac", self.ethernet.refused.foreign),
            ("link_rx_foreign_vlan", self.ethernet.refused.vlan),
            ("link_rx_dropped", rx_dropped),
            ("link_rx_no_buffer", rx_no_buffer),
            ("link_tx_frames", tx_frames),
            ("link_tx_backpressure", tx_backpressure),
            ("link_tx_errors", tx_errors),
            ("link_reopen_failed", self.reopening.failed),
        ]
    }
}

/// Received, dropped, dropped for want of room; sent, backpressure, errors.
type Counts = [u64; 6];

fn counts_of(port: &XskPort) -> Counts {
    let stats = port.stats();
    [
        stats.rx_frames,
        stats.rx_dropped + stats.rx_oversized + stats.rx_bad_descriptors,
        stats.rx_ring_full + stats.fill_empty,
        stats.tx_frames,
        stats.tx_backpressure,
        stats.tx_errors.total() + stats.tx_invalid,
    ]
}

fn describe(caps: XskCaps) -> String {
    if caps.zero_copy { "af-xdp zero-copy".into() } else { format!("af-xdp {}", caps.mode) }
}

/// Opens all queues of an interface, one at least.
fn open(config: &XskConfig) -> xdp_io::Result<Vec<XskPort>> {
    let mut ports = vec![XskPort::open(config)?];
    if let Some(error) = ports[0].passed_over() {
        let mode = describe(ports[0].caps());
        tracing::info!("packet I/O is {mode}, for a better mode failed: {error}");
    }
    open_further(&mut ports, config.clone())?;
    Ok(ports)
}

/// Opens the queues behind the first, as many as there are: receive side scaling may put frames on
/// any of them, and what no socket takes goes to the kernel.
fn open_further(ports: &mut Vec<XskPort>, mut config: XskConfig) -> xdp_io::Result<()> {
    config.rx_frames = FURTHER_RX_FRAMES;
    config.tx_frames = FURTHER_TX_FRAMES;
    let program = Arc::clone(ports[0].program());
    while ports.len() < MAX_QUEUES {
        config.queue = ports.len() as u32;
        match XskPort::open_queue(&config, Arc::clone(&program)) {
            Ok(port) => ports.push(port),
            // There is none, or the kernel refuses it with the same words.
            Err(xdp_io::Error::QueueMissing { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    let there = xdp_io::netdev::rx_queues(&config.interface);
    if let Some(text) = unserved(&config.interface, ports.len(), there) {
        tracing::warn!("{text}");
    }
    Ok(())
}

/// What to tell the user about queues that have no socket: RoCEv2 frames that the interface puts
/// there are lost. Where it is not known how many there are, only that there may be too many.
fn unserved(interface: &str, served: usize, there: Option<usize>) -> Option<String> {
    let there = match there {
        Some(there) if there > served => there.to_string(),
        None if served == MAX_QUEUES => format!("{MAX_QUEUES} or more"),
        _ => return None,
    };
    Some(format!(
        "only {served} of the {there} receive queues of {interface} take part: RoCEv2 packets that \
         arrive on the others are lost; use `ethtool -L {interface} combined {served}`"
    ))
}

fn arena_of(queue: usize) -> ArenaId {
    if queue == 0 { OUTSIDE } else { ArenaId(QUEUES.0 + queue as u8) }
}

fn queue_of(arena: ArenaId) -> usize {
    if arena == OUTSIDE { 0 } else { usize::from(arena.0.saturating_sub(QUEUES.0)) }
}

/// Most receive queues of one interface.
const MAX_QUEUES: usize = 64;
/// Memory of a queue behind the first, which does not send.
const FURTHER_RX_FRAMES: usize = 2048;
const FURTHER_TX_FRAMES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_without_a_socket_are_named() {
        let text = unserved("eth9", 4, Some(8)).unwrap();
        assert!(text.starts_with("only 4 of the 8 receive queues of eth9"), "{text}");
        assert!(text.ends_with("`ethtool -L eth9 combined 4`"), "{text}");
        let text = unserved("eth9", MAX_QUEUES, None).unwrap();
        assert!(text.contains("only 64 of the 64 or more"), "{text}");
        for (served, there) in [(4, Some(4)), (MAX_QUEUES, Some(MAX_QUEUES)), (4, None)] {
            assert_eq!(unserved("eth9", served, there), None);
        }
    }
}
