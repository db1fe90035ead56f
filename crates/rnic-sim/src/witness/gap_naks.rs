//! How often a responder refuses what is behind a gap.

use super::{Judge, Record};
use rnic_core::event::{Event, NakReason, PacketInfo};
use rnic_core::time::Instant;
use roce_wire::{Operation, Psn};

/// One NAK tells of a gap. Another for the same PSN follows only when a request came again that
/// reaches the gap: what is behind it may have been on its way all the time.
#[derive(Debug, Default)]
pub(super) struct GapNaks {
    refused: Option<Psn>,
    is_reached: bool,
}

impl GapNaks {
    fn received(&mut self, packet: &PacketInfo) {
        let Some(gap) = self.refused.filter(|_| packet.opcode.info().is_request) else { return };
        let before = gap.distance_from(packet.psn);
        // How far a READ reaches is not known here.
        let is_read = packet.opcode.info().operation == Operation::ReadRequest;
        self.is_reached |= before == 0 || before == 1 || before > 0 && is_read;
    }
}

impl Judge for GapNaks {
    fn saw(&mut self, _now: Instant, event: &Event, _record: &Record) -> Result<(), String> {
        match event {
            Event::Received { packet, .. } => self.received(packet),
            Event::Nak { psn, reason: NakReason::Sequence, .. } => {
                let again = self.refused.replace(*psn) == Some(*psn);
                if again && !std::mem::take(&mut self.is_reached) {
                    return Err(format!("the gap at {:#x} is reported by two NAKs", psn.value()));
                }
                self.is_reached = false;
            }
            Event::State { .. } => *self = Self::default(),
            _ => {}
        }
        Ok(())
    }
}
