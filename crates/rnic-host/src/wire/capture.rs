//! Copies of what is sent and received, as Ethernet frames, for captures.
//!
//! A wire around the links, within the injected faults: it shows what was on the wire. Where a link
//! has no Ethernet header, or does not show it, one is made up. What the device sends to itself
//! shows once. Without watchers it costs one branch a call.

mod remote;

pub use remote::{export, import};

use super::LOOPBACK;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rnic_core::ports::{ArenaId, RxTrain, TxIpId, TxSlot, TxTrain, Wire, WireCaps};
use rnic_net::{Hop, HopTable};
use roce_wire::icrc::{self, IpIdHint};
use roce_wire::{Flow, FrameHeader, MacAddr};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// A frame that was sent or received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Captured {
    /// When.
    pub at: SystemTime,
    /// By this device.
    pub sent: bool,
    /// From the Ethernet header to the ICRC.
    pub frame: Vec<u8>,
}

/// Where captured frames go; what the watcher does not take in time is counted and lost.
#[derive(Clone)]
pub struct CaptureTap {
    queue: Sender<Captured>,
    lost: Arc<AtomicU64>,
    /// Gone with the feed.
    watched: Weak<()>,
}

impl CaptureTap {
    /// The watcher is gone.
    pub fn is_over(&self) -> bool {
        self.watched.strong_count() == 0
    }

    fn show(&self, captured: Captured) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(captured) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The watcher's end. Capture ends when it is dropped.
pub struct CaptureFeed {
    /// Frames, in order.
    pub frames: Receiver<Captured>,
    lost: Arc<AtomicU64>,
    _watches: Arc<()>,
}

impl CaptureFeed {
    /// Frames lost so far because they were not taken in time.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A tap and its feed.
pub fn capture() -> (CaptureTap, CaptureFeed) {
    let (queue, frames) = bounded(FRAMES);
    let lost = Arc::new(AtomicU64::new(0));
    let watches = Arc::new(());
    let tap = CaptureTap { queue, lost: Arc::clone(&lost), watched: Arc::downgrade(&watches) };
    (tap, CaptureFeed { frames, lost, _watches: watches })
}

/// See the [module](self).
pub(super) struct CaptureWire<W> {
    inner: W,
    hops: HopTable,
    taps: Vec<CaptureTap>,
    /// Reserved since the last submit, while a capture runs.
    reserved: Vec<(TxTrain, TxSlot)>,
}

impl<W: Wire> CaptureWire<W> {
    pub(super) fn new(inner: W, hops: HopTable) -> Self {
        Self { inner, hops, taps: Vec::new(), reserved: Vec::new() }
    }

    pub(super) fn get(&self) -> &W {
        &self.inner
    }

    pub(super) fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// A capture runs.
    pub(super) fn is_watched(&self) -> bool {
        !self.taps.is_empty()
    }

    /// One more watcher.
    pub(super) fn add_tap(&mut self, tap: CaptureTap) {
        self.taps.push(tap);
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
            let macs = (MacAddr::default(), own);
            let frame = frame(macs, &flow, id, datagram);
            tell(&mut self.taps, &Captured { at: SystemTime::now(), sent: false, frame });
        }
    }

    fn copy_sent(&mut self) {
        let rule = self.inner.caps().tx_ip_id;
        for (train, slot) in self.reserved.drain(..) {
            let macs = match self.hops.get(train.hop) {
                Some(Hop { src_mac, dst_mac, .. }) => (src_mac, dst_mac),
                None => (self.hops.own(), MacAddr::default()),
            };
            let arena = self.inner.tx(slot.arena);
            for k in 0..train.segments {
                let is_last = k + 1 == train.segments;
                let len = if is_last { train.last_len } else { train.segment_len } as usize;
                let start = (slot.offset + k * slot.stride) as usize;
                let Some(datagram) = arena.get(start..start + len) else { break };
                let id = match rule {
                    TxIpId::Ours => train.ip_id.wrapping_add(k as u16),
                    TxIpId::SegmentIndex => k as u16,
                };
                let frame = frame(macs, &train.flow, id, datagram);
                tell(&mut self.taps, &Captured { at: SystemTime::now(), sent: true, frame });
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

/// Tells every watcher, and forgets those that are gone.
fn tell(taps: &mut Vec<CaptureTap>, captured: &Captured) {
    taps.retain(|tap| {
        tap.show(captured.clone());
        !tap.is_over()
    });
}

impl<W: Wire> Wire for CaptureWire<W> {
    fn caps(&self) -> WireCaps {
        self.inner.caps()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let before = trains.len();
        self.inner.receive(trains);
        if !self.taps.is_empty() {
            for train in trains[before..].iter().filter(|train| train.arena != LOOPBACK) {
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
        if !self.taps.is_empty() {
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

/// Frames that wait for a watcher.
const FRAMES: usize = 16 * 1024;
