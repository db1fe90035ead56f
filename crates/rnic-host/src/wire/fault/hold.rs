//! Datagrams held back, in memory of their own.

use rnic_core::ports::{ArenaId, Range, RxTrain};
use std::time::Instant;

/// When a datagram is let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Until {
    /// With the next delivery.
    Now,
    /// From then on.
    Time(Instant),
    /// When so many others have passed, or at the latest then.
    Overtaken(u32, Instant),
}

struct Held {
    slot: usize,
    train: RxTrain,
    until: Until,
}

/// See the [module](self).
pub(super) struct Hold {
    /// Empty until the first datagram is held.
    bytes: Vec<u8>,
    free: Vec<usize>,
    held: Vec<Held>,
    /// Slots that the engine reads from until it releases them.
    in_use: Vec<usize>,
}

/// Longest datagram: path MTU 4096 with every header there is.
const SLOT: usize = 4096 + 128;
const SLOTS: usize = 1024;

impl Hold {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), free: Vec::new(), held: Vec::new(), in_use: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies a datagram; false when there is no room.
    pub(super) fn keep(
        &mut self,
        train: RxTrain,
        bytes: &[u8],
        until: Until,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.bytes.is_empty() {
            self.bytes = vec![0; SLOT * SLOTS];
            self.free = (0..SLOTS).collect();
        }
        if bytes.len() > SLOT {
            return false;
        }
        let Some(slot) = self.free.pop() else { return false };
        let copy = &mut self.bytes[slot * SLOT..][..bytes.len()];
        copy.copy_from_slice(bytes);
        change(copy);
        self.held.push(Held { slot, train, until });
        true
    }

    /// Delivers what is due, as far as there is room.
    pub(super) fn deliver(&mut self, now: Instant, arena: ArenaId, trains: &mut Vec<RxTrain>) {
        let mut at = 0;
        while at < self.held.len() && trains.len() < trains.capacity() {
            let due = match self.held[at].until {
                Until::Now | Until::Overtaken(0, _) => true,
                Until::Time(time) | Until::Overtaken(_, time) => time <= now,
            };
            if !due {
                at += 1;
                continue;
            }
            let Held { slot, train, .. } = self.held.remove(at);
            let range = Range { offset: (slot * SLOT) as u32, len: train.range.len };
            trains.push(RxTrain { arena, range, ..train });
            self.in_use.push(slot);
        }
    }

    /// A datagram passed: those that waited for it may go.
    pub(super) fn overtake(&mut self, now: Instant, arena: ArenaId, trains: &mut Vec<RxTrain>) {
        if self.held.is_empty() {
            return;
        }
        for held in &mut self.held {
            if let Until::Overtaken(others, _) = &mut held.until {
                *others = others.saturating_sub(1);
            }
        }
        self.deliver(now, arena, trains);
    }

    /// The engine has seen what was delivered.
    pub(super) fn release(&mut self) {
        self.free.append(&mut self.in_use);
    }
}
