//! Datagrams on their way to the wire while faults disturb what is sent.
//!
//! The engine fills trains in memory of this module. At the end of its turn each datagram goes on
//! alone, is changed, held back, or goes nowhere.

use super::hold::Until;
use crate::wire::{FAULT, datagrams, train_len};
use rnic_core::ports::{TxIpId, TxSlot, TxTrain, Wire};
use roce_wire::icrc;
use std::collections::VecDeque;
use std::time::Instant;

/// One datagram.
pub(super) struct Leaving {
    /// It alone.
    pub(super) train: TxTrain,
    pub(super) bytes: Vec<u8>,
    pub(super) until: Until,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Departures {
    /// Empty until the first train is reserved.
    bytes: Vec<u8>,
    used: usize,
    /// Datagrams of these trains.
    segments: usize,
    staged: Vec<(TxTrain, TxSlot)>,
    leaving: VecDeque<Leaving>,
}

impl Departures {
    /// Nothing is filled or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.leaving.is_empty()
    }

    /// Something is held back.
    pub(super) fn has_backlog(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// As [`Wire::reserve`]. What waits makes the engine wait, as a full link does.
    pub(super) fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let len = train_len(train)? as usize;
        if self.bytes.is_empty() {
            self.bytes = vec![0; BYTES];
        }
        let end = self.used.checked_add(len)?;
        let segments = self.segments + train.segments as usize;
        let is_full = self.leaving.len() + segments > MOST_LEAVING;
        if end > self.bytes.len() || self.staged.len() == MAX_STAGED || is_full {
            return None;
        }
        let offset = u32::try_from(self.used).ok()?;
        let stride = train.segment_len;
        let slot = TxSlot { arena: FAULT, offset, stride, is_internal: false };
        (self.used, self.segments) = (end, segments);
        self.staged.push((*train, slot));
        Some(slot)
    }

    /// As [`Wire::cancel_from`]; false when the slot is not one of these.
    pub(super) fn cancel_from(&mut self, slot: &TxSlot) -> bool {
        if slot.arena != FAULT {
            return false;
        }
        if let Some(first) = self.staged.iter().rposition(|(_, staged)| staged == slot) {
            let cancelled = self.staged.drain(first..).map(|(train, _)| train.segments as usize);
            self.segments -= cancelled.sum::<usize>();
            self.used = slot.offset as usize;
        }
        true
    }

    /// The memory that trains are filled in.
    pub(super) fn tx(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Everything that was filled, datagram by datagram, sealed for the place that it has alone.
    pub(super) fn take_filled(&mut self, rule: TxIpId) -> Vec<Leaving> {
        (self.used, self.segments) = (0, 0);
        let mut all = Vec::new();
        for (train, slot) in self.staged.drain(..) {
            for (k, bytes) in datagrams(&train, &slot, &self.bytes) {
                let (len, mut bytes) = (bytes.len() as u32, bytes.to_vec());
                let ip_id = match rule {
                    TxIpId::Ours => train.ip_id.wrapping_add(k as u16),
                    TxIpId::SegmentIndex => 0,
                };
                if rule == TxIpId::SegmentIndex && k > 0 {
                    icrc::seal(&train.flow, 0, &mut bytes);
                }
                let train =
                    TxTrain { segments: 1, segment_len: len, last_len: len, ip_id, ..train };
                all.push(Leaving { train, bytes, until: Until::Now });
            }
        }
        all
    }

    /// Puts a datagram behind the others.
    pub(super) fn push(&mut self, leaving: Leaving) {
        self.leaving.push_back(leaving);
    }

    /// Gives the wire what is due, as far as it takes it. Returns the datagrams that were held
    /// back and leave now.
    pub(super) fn pump<W: Wire>(&mut self, now: Instant, wire: &mut W) -> Vec<Vec<u8>> {
        let mut released = Vec::new();
        let mut at = 0;
        while let Some(next) = self.leaving.get(at) {
            let (is_due, was_held) = match next.until {
                Until::Now => (true, false),
                Until::Overtaken(0, _) => (true, true),
                Until::Time(time) | Until::Overtaken(_, time) => (time <= now, true),
            };
            if !is_due {
                at += 1;
                continue;
            }
            let Some(slot) = wire.reserve(&next.train) else { break };
            let start = slot.offset as usize;
            if let Some(to) = wire.tx(slot.arena).get_mut(start..start + next.bytes.len()) {
                to.copy_from_slice(&next.bytes);
            }
            let left = self.leaving.remove(at);
            if was_held {
                released.extend(left.map(|left| left.bytes));
                continue;
            }
            // Those that wait to be overtaken are in front of it.
            for held in self.leaving.iter_mut().take(at) {
                if let Until::Overtaken(others, _) = &mut held.until {
                    *others = others.saturating_sub(1);
                }
            }
            if self.leaving.iter().take(at).any(|held| matches!(held.until, Until::Overtaken(0, _)))
            {
                at = 0;
            }
        }
        released
    }
}

/// Bytes of one turn.
const BYTES: usize = 1 << 20;
/// Trains of one turn.
const MAX_STAGED: usize = 512;
/// Datagrams that wait, before faults make two of some.
const MOST_LEAVING: usize = 2048;
