//! When a requester goes back, and when it must.

use super::{Judge, Record};
use rnic_core::event::{Event, PacketInfo, RewindCause};
use rnic_core::time::Instant;
use roce_wire::{NakCode, Psn, Syndrome};

/// One loss costs one retry: what says that something was lost, while nothing was sent since the
/// requester went back last, says nothing new. A sequence NAK for the oldest packet, that must be
/// about what was sent since, is heeded.
#[derive(Debug, Default)]
pub(super) struct GoingBack {
    /// It went back, and nothing was sent since.
    is_back: bool,
    /// When the first request left since it went back.
    resumed: Option<Instant>,
    /// A sequence NAK of this PSN must make it go back.
    due: Option<Psn>,
}

impl GoingBack {
    fn rewound(&mut self, cause: RewindCause, to: Psn) -> Result<(), String> {
        let for_nothing =
            self.is_back && matches!(cause, RewindCause::SequenceNak | RewindCause::ImpliedNak);
        (self.is_back, self.resumed, self.due) = (true, None, None);
        if for_nothing {
            let psn = to.value();
            return Err(format!("it goes back to {psn:#x} twice, for {cause:?}, and sent nothing"));
        }
        Ok(())
    }

    fn received(&mut self, now: Instant, packet: &PacketInfo, record: &Record) {
        let Some((syndrome, _)) = packet.aeth else { return };
        let is_nak = Syndrome::from_u8(syndrome) == Syndrome::Nak(NakCode::PsnSequence);
        let is_new = self.resumed.is_some_and(|at| now > at.after_nanos(record.terms.round_trip));
        let names_oldest = record.is_oldest(packet.psn) && record.is_outstanding(packet.psn);
        if is_nak && is_new && names_oldest && !record.in_rnr_wait() {
            self.due = Some(packet.psn);
        }
    }

    /// The NAK was not heeded before anything else happened.
    fn overdue(&mut self) -> Result<(), String> {
        match self.due.take() {
            Some(psn) => Err(format!("a sequence NAK of {:#x} changes nothing", psn.value())),
            None => Ok(()),
        }
    }
}

impl Judge for GoingBack {
    fn saw(&mut self, now: Instant, event: &Event, record: &Record) -> Result<(), String> {
        match event {
            Event::Rewound { cause, psn: to, .. } => {
                let lost = matches!(cause, RewindCause::SequenceNak | RewindCause::ImpliedNak);
                let overdue = if lost { Ok(()) } else { self.overdue() };
                self.rewound(*cause, *to).and(overdue)
            }
            Event::Sent { packet, .. } if packet.opcode.info().is_request => {
                self.is_back = false;
                self.resumed.get_or_insert(now);
                self.overdue()
            }
            Event::Received { packet, .. } if !packet.opcode.info().is_request => {
                let overdue = self.overdue();
                self.received(now, packet, record);
                overdue
            }
            // It gave up, or made progress after all.
            Event::State { .. } | Event::Completed { receive: false, .. } | Event::Acked { .. } => {
                self.due = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
