//! Faults injected into what arrives: a wire around a wire.
//!
//! Without faults it costs one branch a burst.

mod hold;
mod spec;

use super::LinkCounters;
use fastrand::Rng;
use hold::{Hold, Until};
use rnic_core::ports::{ArenaId, Range, RxTrain, TxSlot, TxTrain, Wire, WireCaps};
use roce_wire::Ecn;
use serde::{Deserialize, Serialize};
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
    /// None are left.
    Clear,
}

/// See the [module](self).
pub(super) struct FaultWire<W> {
    inner: W,
    arena: ArenaId,
    faults: Vec<Fault>,
    random: Rng,
    hold: Hold,
    /// What the inner wire delivered, before faults.
    arrived: Vec<RxTrain>,
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
    /// Left alone because too many are held back already.
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
    pub(super) fn new(inner: W, arena: ArenaId) -> Self {
        Self {
            inner,
            arena,
            faults: Vec::new(),
            random: Rng::with_seed(FIRST_SEED),
            hold: Hold::new(),
            arrived: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn get(&self) -> &W {
        &self.inner
    }

    pub(super) fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// See [`super::DeviceWire::change_faults`].
    pub(super) fn change(&mut self, change: FaultChange) -> Option<Vec<Fault>> {
        match change {
            FaultChange::Keep => {}
            FaultChange::Add(more, _) if self.faults.len() + more.len() > MAX_FAULTS => {
                return None;
            }
            FaultChange::Add(more, seed) => {
                // The same commands disturb alike, also in a daemon that was disturbed before.
                if let Some(seed) = seed.or(self.faults.is_empty().then_some(FIRST_SEED)) {
                    self.random = Rng::with_seed(seed);
                }
                self.faults.extend(more);
            }
            FaultChange::Clear => self.faults.clear(),
        }
        Some(self.faults.clone())
    }

    /// Some of what arrives is disturbed.
    pub(super) fn disturbs(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Something is held back.
    pub(super) fn has_backlog(&self) -> bool {
        !self.hold.is_empty()
    }

    pub(super) fn counters(&self) -> LinkCounters {
        let Counts { dropped, duplicated, reordered, delayed, corrupted, marked, no_room } =
            self.counts;
        vec![
            ("fault_dropped", dropped),
            ("fault_duplicated", duplicated),
            ("fault_reordered", reordered),
            ("fault_delayed", delayed),
            ("fault_corrupted", corrupted),
            ("fault_marked", marked),
            ("fault_no_room", no_room),
        ]
    }

    fn receive_with_faults(&mut self, trains: &mut Vec<RxTrain>) {
        let now = Instant::now();
        self.hold.deliver(now, self.arena, trains);
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

    /// Decides what becomes of a datagram.
    fn decide(&mut self, now: Instant, item: Item, trains: &mut Vec<RxTrain>) {
        let bytes = slice(self.inner.rx(item.train.arena), item.range);
        let mut kind = None;
        for fault in &mut self.faults {
            if fault.matches(bytes) && fault.strikes(self.random.u64(..)) {
                kind = Some(fault.kind);
                break;
            }
        }
        let alone = item.alone();
        match kind {
            None => self.pass(now, &item, trains),
            Some(FaultKind::Drop) => self.counts.dropped += 1,
            Some(FaultKind::Duplicate) => {
                self.counts.duplicated += 1;
                self.pass(now, &item, trains);
                self.push(now, alone, trains);
            }
            Some(FaultKind::Mark) => {
                self.counts.marked += 1;
                let mut marked = alone;
                marked.flow.tos |= Ecn::Ce as u8;
                self.push(now, marked, trains);
            }
            Some(FaultKind::Corrupt) => {
                let bit = self.random.u64(..);
                if self.keep(&item, Until::Now, |bytes| flip(bytes, bit), trains) {
                    self.counts.corrupted += 1;
                }
                self.hold.deliver(now, self.arena, trains);
            }
            Some(FaultKind::Delay(time)) => {
                if self.keep(&item, Until::Time(now + time), |_| {}, trains) {
                    self.counts.delayed += 1;
                }
            }
            Some(FaultKind::Reorder) => {
                let overtakers = 1 + self.random.u32(..MOST_OVERTAKERS);
                let until = Until::Overtaken(overtakers, now + LONGEST_REORDER);
                if self.keep(&item, until, |_| {}, trains) {
                    self.counts.reordered += 1;
                }
            }
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
        self.hold.overtake(now, self.arena, trains);
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
        if self.faults.is_empty() && self.hold.is_empty() {
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
        self.inner.reserve(train)
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

/// Each datagram is compared with all of them.
pub const MAX_FAULTS: usize = 64;
const FIRST_SEED: u64 = 1;
/// Byte of the base transport header that switches may change: FECN, BECN and reserved bits.
const NOT_COVERED: usize = 4;
/// Most datagrams that overtake a reordered one.
const MOST_OVERTAKERS: u32 = 4;
/// How long a reordered datagram waits for others.
const LONGEST_REORDER: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
