//! RoCEv2 frames over AF_XDP.

use super::frames::{Ethernet, MIN_FRAME, pad};
use super::{Link, LinkCounters, MAX_BURST, MAX_RESERVED, OUTSIDE, max_datagram, split};
use crate::net::HopTable;
use rnic_core::ports::{RxIpId, RxTrain, TxIpId, TxSlot, TxTrain, WireCaps};
use roce_wire::{FrameHeader, ROCE_PORT};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use xdp_io::TxRefusal;
use xdp_io::program::AttachMode;
use xdp_io::xsk::{RxFrame, XdpMode, XskConfig, XskPort};

/// See the [module](self).
pub(crate) struct XdpWire {
    port: XskPort,
    ethernet: Ethernet,
    addresses: Vec<IpAddr>,
    max_datagram: u32,
    frames: Vec<RxFrame>,
    reserved: Vec<(xdp_io::TxSlot, u32)>,
    backlog: bool,
}

impl XdpWire {
    /// Opens queue 0 of `interface`.
    ///
    /// # Errors
    /// As [`XskPort::open`].
    pub(crate) fn new(
        interface: &str,
        mode: XdpMode,
        addresses: &[IpAddr],
        mtu: u32,
        hops: HopTable,
    ) -> xdp_io::Result<Self> {
        let mut config = XskConfig::new(interface, ROCE_PORT);
        config.addresses = addresses.to_vec();
        config.mode = mode;
        let port = XskPort::open(&config)?;
        let mut wire = Self {
            port,
            ethernet: Ethernet::new(hops),
            addresses: addresses.to_vec(),
            max_datagram: 0,
            frames: vec![RxFrame::default(); MAX_BURST],
            reserved: Vec::with_capacity(MAX_RESERVED),
            backlog: false,
        };
        wire.set_mtu(mtu);
        Ok(wire)
    }

    /// e.g. `af-xdp native`.
    pub(crate) fn describe(&self) -> String {
        let caps = self.port.caps();
        if caps.zero_copy { "af-xdp zero-copy".into() } else { format!("af-xdp {}", caps.mode) }
    }

    fn set_mtu(&mut self, mtu: u32) {
        let frame_room = (self.port.caps().max_frame - FrameHeader::MAX_LEN) as u32;
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

    fn fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let room = (trains.capacity() - trains.len()).min(self.frames.len());
        let count = self.port.receive(&mut self.frames[..room]);
        let arena = self.port.rx_arena();
        let joined = self.port.caps().mode == AttachMode::Generic;
        for frame in &self.frames[..count] {
            let Some(mut train) = self.ethernet.strip(arena, frame.offset, frame.len) else {
                continue;
            };
            if let (true, RxIpId::Seen(id)) = (joined, train.ip_id) {
                let start = train.range.offset as usize;
                let bytes = &arena[start..start + train.range.len as usize];
                train.segment_len = split::segment_len(&train.flow, id, bytes) as u32;
            }
            trains.push(train);
        }
    }

    fn rx(&self) -> &[u8] {
        self.port.rx_arena()
    }

    fn release(&mut self) {
        self.port.release_rx();
    }

    fn reserve(&mut self, train: &TxTrain) -> Result<TxSlot, TxRefusal> {
        if train.segments != 1 {
            return Err(TxRefusal::Length);
        }
        let header = self.ethernet.header(train)?;
        let len = train.last_len as usize;
        let slot = self.port.reserve((header.len() + len).max(MIN_FRAME))?;
        let frame = &mut self.port.tx_arena_mut()[slot.range()];
        pad(frame, header.len() + len);
        let offset = (slot.offset + header.emit(train.ip_id, len, frame)) as u32;
        self.reserved.push((slot, offset));
        Ok(TxSlot { arena: OUTSIDE, offset, stride: train.segment_len })
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

    fn follow(&mut self, addresses: &[IpAddr], mtu: u32) {
        for gone in self.addresses.iter().filter(|old| !addresses.contains(old)) {
            if let Err(error) = self.port.remove_address(*gone) {
                tracing::warn!("cannot give {gone} back to the kernel: {error}");
            }
        }
        for new in addresses.iter().filter(|new| !self.addresses.contains(new)) {
            if let Err(error) = self.port.add_address(*new) {
                tracing::warn!("cannot serve {new}: {error}");
            }
        }
        self.addresses = addresses.to_vec();
        self.set_mtu(mtu);
    }

    fn counters(&mut self) -> LinkCounters {
        let stats = self.port.stats();
        let lost = stats.rx_dropped + stats.rx_oversized + stats.rx_bad_descriptors;
        vec![
            ("link_rx_frames", stats.rx_frames),
            ("link_rx_malformed", self.ethernet.refused.malformed),
            ("link_rx_foreign_mac", self.ethernet.refused.foreign),
            ("link_rx_dropped", lost),
            ("link_rx_no_buffer", stats.rx_ring_full + stats.fill_empty),
            ("link_tx_frames", stats.tx_frames),
            ("link_tx_backpressure", stats.tx_backpressure),
            ("link_tx_errors", stats.tx_errors.total() + stats.tx_invalid),
        ]
    }
}
