//! What the MSN of an answer may be.

use super::{Judge, Record};
use rnic_core::event::{Event, PacketInfo};
use rnic_core::time::Instant;
use roce_wire::{Operation, Psn, Syndrome};
use std::collections::VecDeque;

/// The MSN counts every message up to the PSN it comes with and none that was never sent.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Messages sent so far.
    count: u32,
    /// PSN of the packet that ends each of the latest, and its number from 1 on. A READ counts when
    /// its request is accepted.
    ends: VecDeque<(Psn, u32)>,
}

/// More messages than any queue pair has in flight.
const REMEMBERED: usize = 1024;

impl Messages {
    /// The PSNs of earlier messages mean nothing any more.
    pub(super) fn leapt(&mut self) {
        self.ends.clear();
    }

    fn sent(&mut self, packet: &PacketInfo) {
        let info = packet.opcode.info();
        if !info.is_request || !info.position.is_end() {
            return;
        }
        self.count += 1;
        if self.ends.len() == REMEMBERED {
            self.ends.pop_front();
        }
        self.ends.push_back((packet.psn, self.count));
    }

    fn received(&self, packet: &PacketInfo) -> Result<(), String> {
        let Some((syndrome, msn)) = packet.aeth else { return Ok(()) };
        if !matches!(Syndrome::from_u8(syndrome), Syndrome::Ack { .. }) {
            return Ok(());
        }
        let ended = self.ends.iter().rev().find(|(psn, _)| packet.psn.distance_from(*psn) >= 0);
        let least = ended.map_or(0, |(_, number)| *number);
        if (least..=self.count).contains(&msn) {
            return Ok(());
        }
        let operation = match packet.opcode.info().operation {
            Operation::Ack => "an ACK",
            _ => "a response",
        };
        let (psn, most) = (packet.psn.value(), self.count);
        Err(format!("{operation} of PSN {psn:#x} has MSN {msn}, not one of {least}..={most}"))
    }
}

impl Judge for Messages {
    fn saw(&mut self, _now: Instant, event: &Event, _record: &Record) -> Result<(), String> {
        match event {
            Event::Sent { packet, retransmit: false, .. } => self.sent(packet),
            Event::Received { packet, .. } => return self.received(packet),
            _ => {}
        }
        Ok(())
    }
}
