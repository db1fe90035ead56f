//! What the counters of an engine must say.

use rnic_core::counters::Counters;
use rnic_core::event::{Event, PacketInfo, RewindCause};
use roce_wire::{NakCode, Syndrome};

/// What happened in an engine, counted from its events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    sent: u64,
    sent_again: u64,
    sequence_naks: u64,
    rnr_naks: u64,
    timeouts: u64,
}

/// What was seen outside of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Datagrams that its port took.
    pub(crate) taken: u64,
    /// Datagrams that its port gave.
    pub(crate) given: u64,
    /// Completions that were polled.
    pub(crate) completions: u64,
}

impl Tally {
    pub(super) fn saw(&mut self, event: &Event) {
        match event {
            Event::Sent { packet, retransmit, .. } => self.left(packet, *retransmit),
            Event::Rewound { cause: RewindCause::Timeout, .. } => self.timeouts += 1,
            _ => {}
        }
    }

    fn left(&mut self, packet: &PacketInfo, again: bool) {
        self.sent += 1;
        self.sent_again += u64::from(again);
        match packet.aeth.map(|(syndrome, _)| Syndrome::from_u8(syndrome)) {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => self.sequence_naks += 1,
            Some(Syndrome::RnrNak { .. }) => self.rnr_naks += 1,
            _ => {}
        }
    }

    /// Compares with what the engine counted, and with what was seen outside of it.
    ///
    /// # Errors
    /// The counters that are wrong.
    pub(crate) fn check(&self, counters: &Counters, seen: &Seen) -> Result<(), String> {
        let exactly = |happened: u64| happened..=happened;
        // The last timeout of a connection ends it instead.
        let timeouts = self.timeouts..=self.timeouts + counters.req_retry_exceeded;
        let rows = [
            ("tx_packets", counters.tx_packets, exactly(self.sent)),
            ("tx_packets", counters.tx_packets, exactly(seen.taken)),
            ("rx_packets", counters.rx_packets, exactly(seen.given)),
            ("retransmitted_packets", counters.retransmitted_packets, exactly(self.sent_again)),
            ("sent_seq_err", counters.sent_seq_err, exactly(self.sequence_naks)),
            ("out_of_buffer", counters.out_of_buffer, exactly(self.rnr_naks)),
            ("completions", counters.completions, exactly(seen.completions)),
            ("local_ack_timeout_err", counters.local_ack_timeout_err, timeouts),
        ];
        let wrong = rows.iter().filter(|(_, counted, happened)| !happened.contains(counted));
        let wrong: Vec<String> = wrong
            .map(|(name, counted, happened)| format!("{name} is {counted}, not {happened:?}"))
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
    }
}
