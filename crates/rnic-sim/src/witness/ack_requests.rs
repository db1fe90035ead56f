//! Which requests ask for an ACK.

use super::{Judge, Record};
use rnic_core::event::Event;
use rnic_core::time::Instant;
use roce_wire::Operation;

/// The end of every SEND and WRITE asks for an ACK. Responses to the others come unasked.
#[derive(Debug)]
pub(super) struct AckRequests;

impl Judge for AckRequests {
    fn saw(&mut self, _now: Instant, event: &Event, _record: &Record) -> Result<(), String> {
        let Event::Sent { packet, .. } = event else { return Ok(()) };
        let info = packet.opcode.info();
        let sends = matches!(info.operation, Operation::Send | Operation::Write);
        if info.is_request && info.position.is_end() && sends && !packet.ack_req {
            return Err(format!("the end of a message asks for no ACK: {packet:?}"));
        }
        Ok(())
    }
}
