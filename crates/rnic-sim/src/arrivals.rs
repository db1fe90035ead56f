//! What is on its way to a host.

use crate::port::Packet;
use rnic_core::time::Instant;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Packets by the time of their arrival; those of the same time in the order of their sending.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    heap: BinaryHeap<Reverse<Arrival>>,
    sent: u64,
}

#[derive(Debug)]
struct Arrival {
    at: Instant,
    number: u64,
    packet: Packet,
}

impl Arrivals {
    pub(crate) fn push(&mut self, at: Instant, packet: Packet) {
        let number = self.sent;
        self.sent += 1;
        self.heap.push(Reverse(Arrival { at, number, packet }));
    }

    /// When the next one arrives.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(arrival)| arrival.at)
    }

    /// The next one, if it is there.
    pub(crate) fn pop_until(&mut self, now: Instant) -> Option<Packet> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(arrival)| arrival.packet)
    }

    /// Something is on its way to this queue pair.
    pub(crate) fn any_for(&self, qpn: u32) -> bool {
        self.heap.iter().any(|Reverse(arrival)| arrival.packet.is_for(qpn))
    }
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Arrival {}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
