//! What both halves of a queue pair get of the wire.

use super::{Judge, Record};
use rnic_core::event::Event;
use rnic_core::time::Instant;

/// The halves of a queue pair are independent: while answers to the peer's READs leave, a request
/// that nothing else holds back leaves too.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Bytes of the answers that left since a request could.
    bytes: u64,
}

/// Visits of the queue pair after which a request must have had its turn.
const PATIENCE: u64 = 4;
/// Bytes of an answer without data.
const HEADERS: u64 = 20;

impl Judge for Share {
    fn saw(&mut self, _now: Instant, event: &Event, record: &Record) -> Result<(), String> {
        let Event::Sent { packet, .. } = event else { return Ok(()) };
        if packet.opcode.info().is_request || !record.may_send() {
            self.bytes = 0;
            return Ok(());
        }
        self.bytes += HEADERS + u64::from(packet.payload);
        if self.bytes > PATIENCE * record.terms.visit {
            let bytes = std::mem::take(&mut self.bytes);
            return Err(format!("a request waits while {bytes} bytes of answers leave"));
        }
        Ok(())
    }
}
