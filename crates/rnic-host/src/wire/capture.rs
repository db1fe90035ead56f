//! Copies of what is sent and received, as Ethernet frames, for captures.
//!
//! A wire around the links, within the injected faults: it shows what was on the wire. Where a link
//! has no Ethernet header, or does not show it, one is made up. What the device sends to itself
//! shows once, when it arrives, and what no link can send not at all. Without watchers it costs one
//! branch a call.

use super::{DISCARD, LOOPBACK, datagrams};
use crate::observe::{Captured, Watcher, Watchers, Way};
use rnic_core::ports::{ArenaId, RxTrain, TxIpId, TxSlot, TxTrain, Wire, WireCaps};
use rnic_net::{Hop, HopTable};
use roce_wire::icrc::{self, IpIdHint};
use roce_wire::{Flow, FrameHeader, MacAddr};
use std::time::SystemTime;

/// See the [module](self).
pub(super) struct CaptureWire<W> {
    inner: W,
    hops: HopTable,
    watchers: Watchers,
    /// Reserved since the last submit, while a capture runs.
    reserved: Vec<(TxTrain, TxSlot)>,
}

impl<W: Wire> CaptureWire<W> {
    pub(super) fn new(inner: W, hops: HopTable) -> Self {
        Self { inner, hops, watchers: Watchers::default(), reserved: Vec::new() }
    }

    pub(super) fn get(&self) -> &W {
        &self.inner
    }

    pub(super) fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// A capture runs.
    pub(super) fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// One more watcher.
    pub(super) fn add_watcher(&mut self, watcher: Watcher) {
        self.watchers.add(watcher);
    }

    /// Shows a datagram that a fault keeps from the wire.
    pub(super) fn show_unsent(&mut self, train: &TxTrain, datagram: &[u8]) {
        let macs = macs_of(&self.hops, train);
        let frame = frame(macs, &train.flow, train.ip_id, datagram);
        self.watchers.frame(&Captured { at: SystemTime::now(), way: Way::Unsent, frame });
    }

    fn copy_received(&mut self, train: &RxTrain) {
        let own = self.hops.own();
        let (start, len) = (train.range.offset as usize, train.range.len as usize);
        let bytes = self.inner.rx(train.arena).get(start..start + len).unwrap_or_default();
        for (k, datagram) in (0u16..).zip(bytes.chunks(train.segment_len.max(1) as usize)) {
            let (flow, id) = match train.ip_id.hint(k) {
                IpIdHint::Known(id) => (train.flow, id),
                hint @ IpIdHint::Predicted(_) => {
                    let check = icrc::verify(&train.flow, hint, datagram);
                    (check.flow(train.flow), check.ip_id(hint))
                }
            };
            let (macs, way) = match train.arena {
                LOOPBACK => ((own, own), Way::Looped),
                _ => ((MacAddr::default(), own), Way::Received),
            };
            let frame = frame(macs, &flow, id, datagram);
            self.watchers.frame(&Captured { at: SystemTime::now(), way, frame });
        }
    }

    fn copy_sent(&mut self) {
        let rule = self.inner.caps().tx_ip_id;
        for (train, slot) in self.reserved.drain(..) {
            // Shown when it arrives; and never on a wire, with trains that overlap in memory.
            if matches!(slot.arena, LOOPBACK | DISCARD) {
                continue;
            }
            let macs = macs_of(&self.hops, &train);
            for (k, datagram) in datagrams(&train, &slot, self.inner.tx(slot.arena)) {
                let id = match rule {
                    TxIpId::Ours => train.ip_id.wrapping_add(k as u16),
                    TxIpId::SegmentIndex => k as u16,
                };
                let frame = frame(macs, &train.flow, id, datagram);
                self.watchers.frame(&Captured { at: SystemTime::now(), way: Way::Sent, frame });
            }
        }
    }
}

/// The frame of a datagram, from (source, destination).
fn frame(
    (src_mac, dst_mac): (MacAddr, MacAddr),
    flow: &Flow,
    ip_id: u16,
    datagram: &[u8],
) -> Vec<u8> {
    let header = FrameHeader { dst_mac, src_mac, vlan: None, flow: *flow };
    let mut frame = vec![0; header.len() + datagram.len()];
    let at = header.emit(ip_id, datagram.len(), &mut frame);
    frame[at..].copy_from_slice(datagram);
    frame
}

/// (Source, destination) of what leaves.
fn macs_of(hops: &HopTable, train: &TxTrain) -> (MacAddr, MacAddr) {
    match hops.get(train.hop) {
        Some(Hop { src_mac, dst_mac, .. }) => (src_mac, dst_mac),
        None => (hops.own(), MacAddr::default()),
    }
}

impl<W: Wire> Wire for CaptureWire<W> {
    fn caps(&self) -> WireCaps {
        self.inner.caps()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let before = trains.len();
        self.inner.receive(trains);
        if !self.watchers.is_empty() {
            for train in trains[before..].iter().filter(|train| !train.is_internal) {
                self.copy_received(train);
            }
        }
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        self.inner.rx(arena)
    }

    fn release(&mut self) {
        self.inner.release();
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let slot = self.inner.reserve(train)?;
        if !self.watchers.is_empty() {
            self.reserved.push((*train, slot));
        }
        Some(slot)
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        self.inner.cancel_from(slot);
        if let Some(first) = self.reserved.iter().rposition(|(_, reserved)| reserved == slot) {
            self.reserved.truncate(first);
        }
    }

    fn tx(&mut self, arena: ArenaId) -> &mut [u8] {
        self.inner.tx(arena)
    }

    fn submit(&mut self) {
        if !self.reserved.is_empty() {
            self.copy_sent();
        }
        self.inner.submit();
    }
}
