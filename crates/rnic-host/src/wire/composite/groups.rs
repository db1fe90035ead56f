//! Trains to multicast groups, of which members on this host get a copy.
//!
//! Through sockets the kernel sees to that. A link of frames does not: its trains are copied to the
//! loopback, when they leave, if this engine has members.

use super::super::{Joiner, LOCAL, OUTSIDE, train_len};
use super::Composite;
use rnic_core::ports::{TxSlot, TxTrain};
use roce_wire::datagram::ICRC_LEN;
use roce_wire::icrc;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What a [`Composite`] keeps of groups.
pub(super) struct Groups {
    joiner: Joiner,
    pub(super) joined: BTreeSet<IpAddr>,
    /// Reserved since the last submit, and not finished.
    pub(super) trains: Vec<(TxSlot, TxTrain)>,
    /// Trains that the loopback had no room for.
    pub(super) lost: u64,
}

impl Groups {
    pub(super) fn new(joiner: Joiner) -> Self {
        Self { joiner, joined: BTreeSet::new(), trains: Vec::new(), lost: 0 }
    }

    /// These reservations are given up.
    pub(super) fn cancel(&mut self, slots: &[TxSlot]) {
        self.trains.retain(|(slot, _)| !slots.contains(slot));
    }
}

impl Composite {
    #[inline(never)]
    pub(super) fn reserve_for_group(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let (slot, finish) = match (&self.local, &self.outside) {
            (Some(_), _) => (self.reserve_local(train)?, LOCAL),
            (None, Some(_)) => (self.reserve_outside(train)?, OUTSIDE),
            (None, None) => return self.loopback.reserve(train),
        };
        let is_copied = matches!(self.groups.joiner, Joiner::Frames { .. })
            && self.groups.joined.contains(&train.flow.dst);
        if slot.arena == finish && (is_copied || finish == LOCAL) {
            self.groups.trains.push((slot, *train));
        }
        Some(slot)
    }

    /// Before the links submit.
    #[inline(never)]
    pub(super) fn finish_group_trains(&mut self) {
        let mut trains = std::mem::take(&mut self.groups.trains);
        for (slot, train) in trains.drain(..) {
            match slot.arena {
                LOCAL => self.seal_for_sockets(&slot, &train),
                _ => self.copy_to_members(&slot, &train),
            }
        }
        self.groups.trains = trains;
    }

    /// The engine has sealed them for frames, whose IPv4 identification is its own choice. What
    /// other shards of this host receive through sockets is never looked at so closely, but this
    /// leaves the host, too.
    fn seal_for_sockets(&mut self, slot: &TxSlot, train: &TxTrain) {
        let bytes = self.local.as_mut().map(|link| link.tx());
        let Some(bytes) = bytes.and_then(|arena| part_mut(arena, slot, train)) else { return };
        let step = (train.segment_len as usize).max(1);
        for (k, datagram) in (0u16..).zip(bytes.chunks_mut(step)) {
            if datagram.len() >= ICRC_LEN {
                icrc::seal(&train.flow, k, datagram);
            }
        }
    }

    fn copy_to_members(&mut self, slot: &TxSlot, train: &TxTrain) {
        let Some(copy) = self.loopback.reserve(train) else {
            self.groups.lost += 1;
            return;
        };
        let from = self.outside.as_mut().map(|link| link.tx());
        let from = from.and_then(|arena| part_mut(arena, slot, train));
        let to = part_mut(self.loopback.tx(), &copy, train);
        match (from, to) {
            (Some(from), Some(to)) => to.copy_from_slice(from),
            _ => self.loopback.cancel_last(),
        }
    }
}

/// The datagrams of a train, which lie one behind the other.
fn part_mut<'a>(arena: &'a mut [u8], slot: &TxSlot, train: &TxTrain) -> Option<&'a mut [u8]> {
    let (start, len) = (slot.offset as usize, train_len(train)? as usize);
    arena.get_mut(start..start.checked_add(len)?)
}
