//! Links whose units carry their own Ethernet, IP and UDP headers: AF_PACKET and AF_XDP.

use anyhow::{Context, Result};
use roce_wire::{Frame, FrameHeader, MacAddr, ROCE_PORT};
use xdp_io::netdev;
use xdp_io::packet::{self, PacketConfig, PacketPort};
use xdp_io::xsk::{RxFrame, XdpMode, XskConfig, XskPort};

use super::{INTERFACE, Link, Piece, flow};
use crate::pair::Side;

const BATCH: usize = 64;

/// The headers that this side sends.
fn header(side: &Side<'_>) -> Result<FrameHeader> {
    let own = netdev::mac(INTERFACE)?;
    let other = side.exchange_macs(own)?;
    Ok(FrameHeader {
        dst_mac: MacAddr(other),
        src_mac: MacAddr(own),
        vlan: None,
        flow: flow(side.index),
    })
}

/// The datagrams in a frame or train, when it is one of ours.
fn piece(frame: &[u8], offset: usize, segment: usize) -> Option<Piece> {
    let range = Frame::parse(frame).ok()?.payload_range();
    let segment = if segment == 0 { range.len() } else { segment };
    Some(Piece { offset: offset + range.start, len: range.len(), segment })
}

pub(super) struct Packet {
    port: PacketPort,
    header: FrameHeader,
    received: [packet::RxTrain; BATCH],
}

impl Packet {
    pub(super) fn open(side: &Side<'_>) -> Result<Self> {
        let config = PacketConfig {
            addresses: vec![flow(side.index).src],
            ..PacketConfig::new(INTERFACE, ROCE_PORT)
        };
        let port = PacketPort::open(&config).context("af-packet")?;
        Ok(Self { port, header: header(side)?, received: [packet::RxTrain::default(); BATCH] })
    }
}

impl Link for Packet {
    fn has_trains(&self) -> bool {
        true
    }

    fn reserve(&mut self, count: usize, len: usize) -> Option<usize> {
        let segment = if count > 1 { len as u16 } else { 0 };
        let slot = self.port.reserve(self.header.len() + count * len, segment).ok()?;
        let at = &mut self.port.tx_arena_mut()[slot.range()];
        Some(slot.offset + self.header.emit(0, count * len, at))
    }

    fn tx(&mut self) -> &mut [u8] {
        self.port.tx_arena_mut()
    }

    fn submit(&mut self) {
        self.port.submit();
    }

    fn receive(&mut self, pieces: &mut Vec<Piece>) {
        let count = self.port.receive(&mut self.received);
        let arena = self.port.rx_arena();
        pieces.extend(self.received[..count].iter().filter_map(|train| {
            piece(&arena[train.offset..train.offset + train.len], train.offset, train.gso_size)
        }));
    }

    fn rx(&self) -> &[u8] {
        self.port.rx_arena()
    }

    fn release(&mut self) {
        self.port.release_rx();
    }
}

pub(super) struct Xdp {
    port: XskPort,
    header: FrameHeader,
    received: [RxFrame; BATCH],
}

impl Xdp {
    pub(super) fn open(side: &Side<'_>, mode: XdpMode) -> Result<Self> {
        let addresses = vec![flow(side.index).src];
        let config = XskConfig { addresses, mode, ..XskConfig::new(INTERFACE, ROCE_PORT) };
        let port = XskPort::open(&config).context("af-xdp")?;
        Ok(Self { port, header: header(side)?, received: [RxFrame::default(); BATCH] })
    }
}

impl Link for Xdp {
    fn has_trains(&self) -> bool {
        false
    }

    fn reserve(&mut self, count: usize, len: usize) -> Option<usize> {
        debug_assert_eq!(count, 1, "AF_XDP has no trains");
        let slot = self.port.reserve(self.header.len() + len).ok()?;
        let at = &mut self.port.tx_arena_mut()[slot.range()];
        Some(slot.offset + self.header.emit(0, len, at))
    }

    fn tx(&mut self) -> &mut [u8] {
        self.port.tx_arena_mut()
    }

    fn submit(&mut self) {
        self.port.submit();
    }

    fn receive(&mut self, pieces: &mut Vec<Piece>) {
        let count = self.port.receive(&mut self.received);
        let arena = self.port.rx_arena();
        pieces.extend(self.received[..count].iter().filter_map(|frame| {
            piece(&arena[frame.offset..frame.offset + frame.len], frame.offset, 0)
        }));
    }

    fn rx(&self) -> &[u8] {
        self.port.rx_arena()
    }

    fn release(&mut self) {
        self.port.release_rx();
    }
}
