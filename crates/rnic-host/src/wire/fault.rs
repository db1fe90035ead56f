//! Faults injected into what arrives and what is sent: a wire around a wire.
//!
//! Without faults it costs one branch a burst.

mod active;
mod departures;
mod hold;
mod spec;

use super::LinkCounters;
use super::capture::CaptureWire;
use crate::observe::Watcher;
use active::Active;
pub use active::MAX_FAULTS;
use departures::{Departures, Leaving};
use hold::{Hold, Until};
use rnic_core::ports::{ArenaId, Range, RxIpId, RxTrain, TxSlot, TxTrain, Wire, WireCaps};
use roce_wire::{Ecn, Flow, Opcode, Qpn, datagram, icrc};
use serde::{Deserialize, Serialize};
use spec::SYNDROME;
use std::time::{Duration, Instant};

pub use spec::Fault;
pub(crate) use spec::FaultKind;

/// A change to the faults in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FaultChange {
    /// None.
    Keep,
    /// Further ones, which strike what those before have left, and a seed to begin anew with.
    Add(Vec<Fault>, Option<u64>),
    /// Those of these numbers are not left.
    Remove(Vec<u32>),
    /// None are left.
    Clear,
}

/// Why faults are not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoChange {
    /// There would be more than [`MAX_FAULTS`].
    TooMany,
    /// None has this number.
    NoSuch(u32),
    /// The engine has no wire of its own.
    NoWire,
}

/// A completion queue that a fault breaks: that of the receive or the send side of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokenCq {
    /// The queue pair.
    pub qpn: Qpn,
    /// Of its receive side.
    pub receive: bool,
}

/// See the [module](self).
pub(super) struct FaultWire<W> {
    inner: CaptureWire<W>,
    arena: ArenaId,
    active: Active,
    hold: Hold,
    departures: Departures,
    /// What the inner wire delivered, before faults.
    arrived: Vec<RxTrain>,
    broken: Vec<BrokenCq>,
    counts: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    dropped: u64,
    duplicated: u64,
    reordered: u64,
    delayed: u64,
    corrupted: u64,
    marked: u64,
    refused: u64,
    cq_errors: u64,
    /// Left alone, or lost, because too many are held back already.
    no_room: u64,
}

/// One datagram of a received train.
#[derive(Clone, Copy)]
struct Item {
    train: RxTrain,
    /// Its position in the train that arrived.
    at: u32,
    range: Range,
}

impl Item {
    /// The datagram as a train of its own.
    fn alone(&self) -> RxTrain {
        let ip_id = self.train.ip_id.alone(self.at as u16);
        RxTrain { range: self.range, segment_len: self.range.len, ip_id, ..self.train }
    }
}

impl<W: Wire> FaultWire<W> {
    /// A wire that does not fail yet; `arena` is not one of `inner`'s.
    pub(super) fn new(inner: CaptureWire<W>, arena: ArenaId) -> Self {
        Self {
            inner,
            arena,
            active: Active::new(),
            hold: Hold::new(),
            departures: Departures::default(),
            arrived: Vec::new(),
            broken: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn get(&self) -> &CaptureWire<W> {
        &self.inner
    }

    pub(super) fn get_mut(&mut self) -> &mut CaptureWire<W> {
        &mut self.inner
    }

    /// See [`super::DeviceWire::change_faults`].
    pub(super) fn change(&mut self, change: FaultChange) -> Result<Vec<Fault>, NoChange> {
        self.active.change(change)
    }

    /// See [`super::DeviceWire::fault_counts`].
    pub(super) fn fault_counts(&self) -> Vec<(u32, [u64; 2])> {
        self.active.counts()
    }

    /// A completion queue that breaks now.
    pub(super) fn take_broken(&mut self) -> Option<BrokenCq> {
        self.broken.pop()
    }

    /// Something is disturbed, or was and has yet to leave.
    pub(super) fn disturbs(&self) -> bool {
        !self.active.is_empty() || !self.departures.is_empty()
    }

    /// One more is told which packets are disturbed.
    pub(super) fn add_watcher(&mut self, watcher: Watcher) {
        self.active.watchers.add(watcher);
    }

    /// Something is held back.
    pub(super) fn has_backlog(&self) -> bool {
        !self.hold.is_empty() || self.departures.has_backlog()
    }

    pub(super) fn counters(&self) -> LinkCounters {
        let counts = &self.counts;
        vec![
            ("fault_dropped", counts.dropped),
            ("fault_duplicated", counts.duplicated),
            ("fault_reordered", counts.reordered),
            ("fault_delayed", counts.delayed),
            ("fault_corrupted", counts.corrupted),
            ("fault_marked", counts.marked),
            ("fault_refused", counts.refused),
            ("fault_cq_errors", counts.cq_errors),
            ("fault_no_room", counts.no_room),
        ]
    }

    fn receive_with_faults(&mut self, trains: &mut Vec<RxTrain>) {
        let now = Instant::now();
        self.deliver_held(now, trains, true);
        // One train can become three per datagram; what does not fit is held until next time.
        let room = (trains.capacity() - trains.len()) / 2;
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.clear();
        arrived.shrink_to(room);
        arrived.reserve_exact(room);
        if room > 0 {
            self.inner.receive(&mut arrived);
        }
        for train in &arrived {
            if train.is_internal {
                // Sent before there were faults, and without an ICRC that would show them.
                self.push(now, *train, trains);
                continue;
            }
            let mut start = 0;
            let mut at = 0;
            while start < train.range.len {
                let len = train.segment_len.max(1).min(train.range.len - start);
                let range = Range { offset: train.range.offset + start, len };
                self.decide(now, Item { train: *train, at, range }, trains);
                start += len;
                at += 1;
            }
        }
        self.arrived = arrived;
        if trains.is_empty() {
            // The engine gives back what it has seen.
            self.inner.release();
        }
    }

    /// Delivers what is held back and due. What was not only changed is told.
    fn deliver_held(&mut self, now: Instant, trains: &mut Vec<RxTrain>, is_told: bool) {
        let before = trains.len();
        self.hold.deliver(now, self.arena, trains);
        for train in trains.iter().skip(before).filter(|_| is_told) {
            self.active.released(slice(self.hold.bytes(), train.range), false);
        }
    }

    /// Decides what becomes of a datagram that arrived.
    fn decide(&mut self, now: Instant, item: Item, trains: &mut Vec<RxTrain>) {
        let bytes = slice(self.inner.rx(item.train.arena), item.range);
        let Some(kind) = self.active.strike(bytes, false) else {
            return self.pass(now, &item, trains);
        };
        let alone = item.alone();
        match kind {
            FaultKind::Drop => self.counts.dropped += 1,
            FaultKind::Duplicate => {
                self.counts.duplicated += 1;
                self.active.released(bytes, false);
                self.pass(now, &item, trains);
                self.push(now, alone, trains);
            }
            FaultKind::Mark => {
                self.counts.marked += 1;
                let mut marked = alone;
                marked.flow.tos |= Ecn::Ce as u8;
                self.push(now, marked, trains);
            }
            FaultKind::Corrupt => {
                let bit = self.active.random.u64(..);
                if self.keep(&item, Until::Now, |bytes| flip(bytes, bit), trains) {
                    self.counts.corrupted += 1;
                }
                self.deliver_held(now, trains, false);
            }
            FaultKind::Delay(time) => {
                if self.keep(&item, Until::Time(now + time), |_| {}, trains) {
                    self.counts.delayed += 1;
                }
            }
            FaultKind::Reorder => {
                let overtakers = 1 + self.active.random.u32(..MOST_OVERTAKERS);
                let until = Until::Overtaken(overtakers, now + LONGEST_REORDER);
                if self.keep(&item, until, |_| {}, trains) {
                    self.counts.reordered += 1;
                }
            }
            FaultKind::Rnr(_) | FaultKind::Nak(_) => {
                self.refuse(now, item, kind.syndrome().unwrap_or(0), trains);
            }
            FaultKind::CqError => {
                self.counts.cq_errors += 1;
                self.broken.extend(receiver(bytes));
                self.pass(now, &item, trains);
            }
        }
    }

    /// An acknowledgement arrives as a refusal: the requester knows no difference to one that its
    /// peer sent.
    fn refuse(&mut self, now: Instant, item: Item, syndrome: u8, trains: &mut Vec<RxTrain>) {
        let alone = item.alone();
        let bytes = slice(self.inner.rx(alone.arena), alone.range);
        let hint = alone.ip_id.hint(0);
        let check = icrc::verify(&alone.flow, hint, bytes);
        let (flow, ip_id) = (check.flow(alone.flow), check.ip_id(hint));
        let train = RxTrain { flow, ip_id: RxIpId::Seen(ip_id), ..alone };
        let item = Item { train, at: 0, range: alone.range };
        let change = |bytes: &mut [u8]| say(bytes, syndrome, &flow, ip_id);
        if self.keep(&item, Until::Now, change, trains) {
            self.counts.refused += 1;
        }
        self.deliver_held(now, trains, false);
    }

    /// Decides what becomes of a datagram that is to be sent.
    fn decide_departure(&mut self, now: Instant, mut leaving: Leaving) {
        let Some(kind) = self.active.strike(&leaving.bytes, true) else {
            return self.departures.push(leaving);
        };
        let Leaving { train, bytes, until } = &mut leaving;
        match kind {
            FaultKind::Drop => {
                self.counts.dropped += 1;
                self.inner.show_unsent(train, bytes);
                return;
            }
            FaultKind::Duplicate => {
                self.counts.duplicated += 1;
                self.active.released(bytes, true);
                let (train, bytes, until) = (*train, bytes.clone(), Until::Now);
                self.departures.push(Leaving { train, bytes, until });
            }
            FaultKind::Mark => {
                self.counts.marked += 1;
                train.flow.tos |= Ecn::Ce as u8;
            }
            FaultKind::Corrupt => {
                self.counts.corrupted += 1;
                flip(bytes, self.active.random.u64(..));
            }
            FaultKind::Delay(time) => {
                self.counts.delayed += 1;
                *until = Until::Time(now + time);
            }
            FaultKind::Reorder => {
                self.counts.reordered += 1;
                let overtakers = 1 + self.active.random.u32(..MOST_OVERTAKERS);
                *until = Until::Overtaken(overtakers, now + LONGEST_REORDER);
            }
            FaultKind::Rnr(_) | FaultKind::Nak(_) => {
                self.counts.refused += 1;
                say(bytes, kind.syndrome().unwrap_or(0), &train.flow, train.ip_id);
            }
            FaultKind::CqError => {}
        }
        self.departures.push(leaving);
    }

    /// What the engine filled leaves, as far as faults and the wire let it.
    fn submit_with_faults(&mut self) {
        let now = Instant::now();
        for leaving in self.departures.take_filled(self.inner.caps().tx_ip_id) {
            self.decide_departure(now, leaving);
        }
        for bytes in self.departures.pump(now, &mut self.inner) {
            self.active.released(&bytes, true);
        }
    }

    /// Delivers a datagram as it is, joined to its train where that is possible.
    fn pass(&mut self, now: Instant, item: &Item, trains: &mut Vec<RxTrain>) {
        let alone = item.alone();
        match trains.last_mut() {
            Some(last) if continues(last, &alone, item.train.segment_len) => {
                last.range.len += alone.range.len;
            }
            _ => self.push(now, alone, trains),
        }
        let before = trains.len();
        self.hold.overtake(now, self.arena, trains);
        for train in trains.iter().skip(before) {
            self.active.released(slice(self.hold.bytes(), train.range), false);
        }
    }

    /// Delivers a train now, or next time when there is no room.
    fn push(&mut self, now: Instant, train: RxTrain, trains: &mut Vec<RxTrain>) {
        if trains.len() < trains.capacity() {
            trains.push(train);
            return;
        }
        let bytes = slice(self.inner.rx(train.arena), train.range);
        if !self.hold.keep(train, bytes, Until::Time(now), |_| {}) {
            // As if a queue had been full.
            self.counts.dropped += 1;
            self.counts.no_room += 1;
        }
    }

    /// Copies a datagram to be delivered later; passes it when there is no room for that.
    fn keep(
        &mut self,
        item: &Item,
        until: Until,
        change: impl FnOnce(&mut [u8]),
        trains: &mut Vec<RxTrain>,
    ) -> bool {
        let bytes = slice(self.inner.rx(item.train.arena), item.range);
        if self.hold.keep(item.alone(), bytes, until, change) {
            return true;
        }
        self.counts.no_room += 1;
        self.push(Instant::now(), item.alone(), trains);
        false
    }
}

/// Has an acknowledgement say something else.
fn say(bytes: &mut [u8], syndrome: u8, flow: &Flow, ip_id: u16) {
    if let Some(byte) = bytes.get_mut(SYNDROME) {
        *byte = syndrome;
        icrc::seal(flow, ip_id, bytes);
    }
}

/// The side of a queue pair that a datagram is for.
fn receiver(bytes: &[u8]) -> Option<BrokenCq> {
    let (opcode, qpn, _) = datagram::peek(bytes)?;
    Some(BrokenCq { qpn, receive: Opcode::from_u8(opcode)?.info().is_request })
}

/// Flips a bit that the ICRC covers.
fn flip(bytes: &mut [u8], bit: u64) {
    let at = match (bit >> 3) as usize % bytes.len().max(1) {
        NOT_COVERED => NOT_COVERED + 1,
        at => at,
    };
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << (bit & 7);
    }
}

/// `next` goes on where `last` ends, in the same train.
fn continues(last: &RxTrain, next: &RxTrain, segment_len: u32) -> bool {
    let datagrams = last.range.len / segment_len.max(1);
    last.arena == next.arena
        && last.flow == next.flow
        && last.segment_len == segment_len
        && last.range.len.is_multiple_of(segment_len)
        && last.range.offset + last.range.len == next.range.offset
        && last.ip_id.likely(datagrams as u16) == next.ip_id.likely(0)
}

fn slice(arena: &[u8], range: Range) -> &[u8] {
    let start = range.offset as usize;
    arena.get(start..start + range.len as usize).unwrap_or_default()
}

impl<W: Wire> Wire for FaultWire<W> {
    fn caps(&self) -> WireCaps {
        self.inner.caps()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        if self.active.is_empty() && self.hold.is_empty() {
            self.inner.receive(trains);
        } else {
            self.receive_with_faults(trains);
        }
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        if arena == self.arena { self.hold.bytes() } else { self.inner.rx(arena) }
    }

    fn release(&mut self) {
        self.hold.release();
        self.inner.release();
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        if self.active.has_outgoing() || !self.departures.is_empty() {
            return self.departures.reserve(train);
        }
        self.inner.reserve(train)
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        if !self.departures.cancel_from(slot) {
            self.inner.cancel_from(slot);
        }
    }

    fn tx(&mut self, arena: ArenaId) -> &mut [u8] {
        if arena == self.arena { self.departures.tx() } else { self.inner.tx(arena) }
    }

    fn submit(&mut self) {
        if !self.departures.is_empty() {
            self.submit_with_faults();
        }
        self.inner.submit();
    }
}

/// Byte of the base transport header that switches may change: FECN, BECN and reserved bits.
const NOT_COVERED: usize = 4;
/// Most datagrams that overtake a reordered one.
const MOST_OVERTAKERS: u32 = 4;
/// How long a reordered datagram waits for others.
const LONGEST_REORDER: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
