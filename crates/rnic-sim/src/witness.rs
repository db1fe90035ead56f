//! A judge of what two engines say to each other, whatever the links do to it.
//!
//! [`Witness`] hears the events of one engine, and knows for each connected queue pair what its
//! peer's answers must say: the MSN counts every message up to the PSN it comes with and none that
//! was never sent. It knows when the engine may go back: not before an RNR NAK's time is over, and
//! not for a timeout before that has passed. And the end of every SEND and WRITE asks for an ACK.

use rnic_core::event::{Event, PacketInfo, RewindCause};
use rnic_core::time::Instant;
use roce_wire::headers::rnr_timer_ns;
use roce_wire::{Operation, Psn, Syndrome};
use std::collections::{BTreeMap, VecDeque};

/// The judge of one engine.
#[derive(Debug, Default)]
pub struct Witness {
    connections: BTreeMap<u32, Connection>,
    verdicts: Vec<String>,
}

/// What is known about one queue pair.
#[derive(Debug, Default)]
struct Connection {
    /// Messages sent so far.
    messages: u32,
    /// PSN of the packet that ends each of the latest, and its number from 1 on. A READ counts when
    /// its request is accepted.
    ends: VecDeque<(Psn, u32)>,
    /// Shortest ACK timeout, nanoseconds.
    timeout: u64,
    /// Last PSN that any request will use.
    last: Option<Psn>,
    /// The timer runs since then, unless the engine went back meanwhile.
    waiting: Option<Instant>,
    /// When the first RNR NAK since the last wait came, and its timer in nanoseconds.
    refused: Option<(Instant, u64)>,
}

/// More messages than any queue pair has in flight.
const REMEMBERED: usize = 1024;

impl Witness {
    /// A queue pair is connected to another engine, with fresh PSNs and an ACK timeout of at least
    /// so many nanoseconds.
    pub fn connected(&mut self, qpn: u32, timeout: u64) {
        self.connections.insert(qpn, Connection { timeout, ..Connection::default() });
    }

    /// What was said that must not be.
    pub fn verdicts(&self) -> &[String] {
        &self.verdicts
    }

    /// Something happened in the engine.
    pub(crate) fn saw(&mut self, now: Instant, event: &Event) {
        let (Event::Sent { qpn, .. }
        | Event::Received { qpn, .. }
        | Event::Rewound { qpn, .. }
        | Event::Acked { qpn, .. }
        | Event::WqeFetched { qpn, .. }) = event
        else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&qpn.value()) else { return };
        let judged = match event {
            Event::Sent { packet, retransmit, .. } => connection.sent(now, packet, *retransmit),
            Event::Received { packet, .. } => connection.received(now, packet),
            Event::Rewound { cause, .. } => connection.rewound(now, *cause),
            Event::Acked { psn, .. } => {
                connection.acked(now, *psn);
                Ok(())
            }
            Event::WqeFetched { psns, .. } => {
                connection.last = Some(psns.1);
                Ok(())
            }
            _ => Ok(()),
        };
        self.verdicts.extend(judged.err());
    }
}

impl Connection {
    fn sent(&mut self, now: Instant, packet: &PacketInfo, again: bool) -> Result<(), String> {
        let info = packet.opcode.info();
        if !info.is_request {
            return Ok(());
        }
        self.waiting.get_or_insert(now);
        if !info.position.is_end() {
            return Ok(());
        }
        if !again {
            self.messages += 1;
            if self.ends.len() == REMEMBERED {
                self.ends.pop_front();
            }
            self.ends.push_back((packet.psn, self.messages));
        }
        // Responses to the others come unasked.
        let asks = packet.ack_req || !matches!(info.operation, Operation::Send | Operation::Write);
        if asks { Ok(()) } else { Err(format!("the end of a message asks for no ACK: {packet:?}")) }
    }

    fn acked(&mut self, now: Instant, psn: Psn) {
        let is_last = self.last.is_some_and(|last| psn.distance_from(last) >= 0);
        self.waiting = if is_last { None } else { Some(now) };
    }

    fn rewound(&mut self, now: Instant, cause: RewindCause) -> Result<(), String> {
        let waiting = self.waiting.take();
        match (cause, waiting) {
            (RewindCause::Rnr, _) => self.waited(now),
            (RewindCause::Timeout, Some(since)) if now < since.after_nanos(self.timeout) => {
                let waited = now.since(since).as_nanos();
                Err(format!("a timeout of {} ns after only {waited} ns", self.timeout))
            }
            _ => Ok(()),
        }
    }

    fn received(&mut self, now: Instant, packet: &PacketInfo) -> Result<(), String> {
        let Some((syndrome, msn)) = packet.aeth else { return Ok(()) };
        match Syndrome::from_u8(syndrome) {
            Syndrome::Ack { .. } => {}
            Syndrome::RnrNak { timer } => {
                self.refused.get_or_insert((now, rnr_timer_ns(timer)));
                return Ok(());
            }
            _ => return Ok(()),
        }
        let ended = self.ends.iter().rev().find(|(psn, _)| packet.psn.distance_from(*psn) >= 0);
        let least = ended.map_or(0, |(_, number)| *number);
        if (least..=self.messages).contains(&msn) {
            return Ok(());
        }
        let operation = match packet.opcode.info().operation {
            Operation::Ack => "an ACK",
            _ => "a response",
        };
        let (psn, most) = (packet.psn.value(), self.messages);
        Err(format!("{operation} of PSN {psn:#x} has MSN {msn}, not one of {least}..={most}"))
    }

    fn waited(&mut self, now: Instant) -> Result<(), String> {
        let Some((since, nanos)) = self.refused.take() else { return Ok(()) };
        if now >= since.after_nanos(nanos) {
            return Ok(());
        }
        let waited = now.since(since).as_nanos();
        Err(format!("an RNR NAK of {nanos} ns was waited for only {waited} ns"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce_wire::{Opcode, Qpn};

    const QPN: Qpn = Qpn::new(7);

    fn packet(opcode: Opcode, psn: u32, aeth: Option<(u8, u32)>) -> PacketInfo {
        let psn = Psn::new(psn);
        PacketInfo { opcode, dest_qpn: QPN, psn, ack_req: false, payload: 0, aeth }
    }

    /// A witness that saw a WRITE of two packets and a READ.
    fn witness() -> Witness {
        let mut witness = Witness::default();
        witness.connected(QPN.value(), 1000);
        for (psn, opcode) in
            [(10, Opcode::RcWriteFirst), (11, Opcode::RcWriteLast), (12, Opcode::RcReadRequest)]
        {
            let packet = PacketInfo { ack_req: true, ..packet(opcode, psn, None) };
            witness.saw(Instant::ZERO, &Event::Sent { qpn: QPN, packet, retransmit: false });
        }
        witness
    }

    fn is_fine(psn: u32, msn: u32) -> bool {
        let mut witness = witness();
        let packet = packet(Opcode::RcAck, psn, Some((0x1f, msn)));
        witness.saw(Instant::ZERO, &Event::Received { qpn: QPN, packet });
        witness.verdicts().is_empty()
    }

    #[test]
    fn an_msn_counts_what_ended_and_not_what_was_never_sent() {
        assert!(is_fine(10, 0) && is_fine(11, 1) && is_fine(12, 2) && is_fine(10, 2));
        assert!(!is_fine(11, 0) && !is_fine(12, 1) && !is_fine(12, 3));
    }

    #[test]
    fn an_rnr_wait_is_as_long_as_it_must_be() {
        for (nanos, fine) in [(639_999, false), (640_000, true)] {
            let mut witness = witness();
            let packet = packet(Opcode::RcAck, 11, Some((0x20 | 12, 0)));
            witness.saw(Instant::ZERO, &Event::Received { qpn: QPN, packet });
            let rewound = Event::Rewound { qpn: QPN, to: Psn::new(11), cause: RewindCause::Rnr };
            witness.saw(Instant::ZERO.after_nanos(nanos), &rewound);
            assert_eq!(witness.verdicts().is_empty(), fine, "{nanos}");
        }
    }

    #[test]
    fn a_timeout_takes_its_time() {
        for (nanos, fine) in [(999, false), (1000, true)] {
            let mut witness = witness();
            let to = Psn::new(10);
            let rewound = Event::Rewound { qpn: QPN, to, cause: RewindCause::Timeout };
            witness.saw(Instant::ZERO.after_nanos(nanos), &rewound);
            assert_eq!(witness.verdicts().is_empty(), fine, "{nanos}");
        }
    }

    #[test]
    fn the_end_of_a_message_asks_for_an_ack() {
        let mut witness = witness();
        let packet = packet(Opcode::RcSendOnly, 20, None);
        witness.saw(Instant::ZERO, &Event::Sent { qpn: QPN, packet, retransmit: true });
        assert!(!witness.verdicts().is_empty());
    }
}
