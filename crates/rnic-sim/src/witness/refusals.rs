//! Whether a responder says what it decided to say.

use super::{Judge, Record};
use rnic_core::event::{Event, PacketInfo};
use rnic_core::time::Instant;
use roce_wire::{Operation, Psn, Syndrome};

/// An RNR NAK leaves with the next acknowledgement, unless the request comes again first: nothing
/// else tells the requester that its request was refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// PSN of an RNR NAK that did not leave yet.
    owed: Option<Psn>,
    /// When something else left instead.
    instead: Option<Instant>,
}

impl Refusals {
    fn sent(&mut self, now: Instant, packet: &PacketInfo) {
        let Some((syndrome, _)) = packet.aeth else { return };
        if matches!(Syndrome::from_u8(syndrome), Syndrome::RnrNak { .. }) {
            self.owed = None;
        } else if self.owed.is_some() && packet.opcode.info().operation == Operation::Ack {
            self.instead.get_or_insert(now);
        }
    }
}

impl Judge for Refusals {
    fn saw(&mut self, now: Instant, event: &Event, _record: &Record) -> Result<(), String> {
        if let Some(at) = self.instead
            && now > at
        {
            self.instead = None;
            if let Some(psn) = self.owed.take() {
                return Err(format!("the RNR NAK of {:#x} never leaves", psn.value()));
            }
        }
        match event {
            Event::RnrNak { psn, .. } => self.owed = Some(*psn),
            Event::Received { packet, .. } if self.owed == Some(packet.psn) => {
                let is_request = packet.opcode.info().is_request;
                self.owed = self.owed.filter(|_| !is_request);
            }
            Event::Sent { packet, .. } => self.sent(now, packet),
            Event::State { .. } => self.owed = None,
            _ => {}
        }
        Ok(())
    }
}
