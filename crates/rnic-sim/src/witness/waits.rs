//! How long a requester waits before it goes back.

use super::{Judge, Record};
use rnic_core::event::{Event, PacketInfo, RewindCause};
use rnic_core::time::Instant;
use roce_wire::headers::rnr_timer_ns;
use roce_wire::{Psn, Syndrome};

/// A timeout fires not before its time, and never where it is off. An RNR NAK is waited for as long
/// as it says.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The timer runs since then, unless the engine went back meanwhile.
    waiting: Option<Instant>,
    /// When the first RNR NAK since the last wait came, its PSN, and its timer in nanoseconds.
    refused: Option<(Instant, Psn, u64)>,
}

impl Waits {
    fn acked(&mut self, now: Instant, psn: Psn, record: &Record) {
        let is_last = record.last().is_some_and(|last| psn.distance_from(last) >= 0);
        self.waiting = if is_last { None } else { Some(now) };
    }

    fn received(&mut self, now: Instant, packet: &PacketInfo, record: &Record) {
        let Some((syndrome, _)) = packet.aeth else { return };
        if let Syndrome::RnrNak { timer } = Syndrome::from_u8(syndrome)
            && record.is_outstanding(packet.psn)
        {
            self.refused.get_or_insert((now, packet.psn, rnr_timer_ns(timer)));
        }
    }

    fn timed_out(&mut self, now: Instant, record: &Record) -> Result<(), String> {
        let waiting = self.waiting.take();
        let Some(timeout) = record.terms.timeout else {
            return Err("a timeout although the timer is off".into());
        };
        match waiting {
            Some(since) if now < since.after_nanos(timeout) => {
                let waited = now.since(since).as_nanos();
                Err(format!("a timeout of {timeout} ns after only {waited} ns"))
            }
            _ => Ok(()),
        }
    }

    /// A wait ends, and it goes back to `to`: to what was refused, unless something before it was
    /// lost as well.
    fn waited(&mut self, now: Instant, to: Psn) -> Result<(), String> {
        let Some((since, psn, nanos)) = self.refused.take() else { return Ok(()) };
        if now >= since.after_nanos(nanos) || to != psn {
            return Ok(());
        }
        let waited = now.since(since).as_nanos();
        Err(format!("an RNR NAK of {nanos} ns was waited for only {waited} ns"))
    }
}

impl Judge for Waits {
    fn saw(&mut self, now: Instant, event: &Event, record: &Record) -> Result<(), String> {
        match event {
            Event::Sent { packet, .. } if packet.opcode.info().is_request => {
                self.waiting.get_or_insert(now);
                // An RNR NAK beyond a missing answer begins no wait: both are asked for again.
                self.refused = self.refused.filter(|(_, psn, _)| *psn != packet.psn);
            }
            Event::Acked { psn, .. } => self.acked(now, *psn, record),
            Event::Received { packet, .. } => self.received(now, packet, record),
            Event::Rewound { cause: RewindCause::Timeout, .. } => {
                return self.timed_out(now, record);
            }
            Event::Rewound { cause: RewindCause::Rnr, psn: to, .. } => {
                self.waiting = None;
                return self.waited(now, *to);
            }
            Event::Rewound { .. } => self.waiting = None,
            _ => {}
        }
        Ok(())
    }
}
