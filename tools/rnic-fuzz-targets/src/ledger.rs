//! The sums of all events of an engine, which must agree with its counters.

use rnic_core::Counters;
use rnic_core::event::{DropReason, Event, NakReason, PacketInfo, Tap};
use rnic_core::time::Instant;
use roce_wire::Qpn;

/// The sums.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Datagrams that a QP accepted for checking.
    received: u64,
    /// Datagrams dropped before that.
    unsorted: u64,
    /// Drops of all kinds, duplicates and refused requests apart.
    dropped: u64,
    duplicates: u64,
    /// Requests refused, with a NAK or without.
    refused: u64,
    /// Messages that begin where others are lost.
    lost: u64,
    /// Completions written.
    completed: u64,
    /// Events of any kind.
    pub(crate) events: u64,
    /// The datagram accepted last, until another event follows.
    last: Option<PacketInfo>,
    /// QPs that must have no event.
    pub(crate) bystanders: Vec<Qpn>,
}

impl Ledger {
    /// A turn begins: the datagram accepted before it is done with.
    pub(crate) fn begin(&mut self) {
        self.last = None;
    }

    /// Every received datagram was accepted, dropped for a reason, or handed to another shard; and
    /// the counters tell the same story.
    pub(crate) fn check(&self, counters: &Counters, handed_over: u64) {
        let accounted = self.received + self.unsorted + handed_over;
        assert_eq!(counters.rx_packets, accounted, "received datagrams got lost: {self:?}");
        let drops = [
            counters.rx_malformed,
            counters.rx_icrc_encapsulated,
            counters.rx_no_qp,
            counters.rx_no_member,
            counters.rx_bad_transport,
            counters.rx_bad_state,
            counters.bad_pkey_violations,
            counters.rx_bad_address,
            counters.qkey_violations,
            counters.out_of_sequence,
            counters.rx_ghost_response,
            counters.rx_after_fault,
            counters.rx_discarded,
            counters.shard_queue_full,
            counters.rx_lent_gone,
        ];
        let dropped = self.dropped + self.lost;
        assert_eq!(drops.iter().sum::<u64>(), dropped, "drops and counters disagree");
        let refusals = [
            counters.resp_remote_access_errors,
            counters.resp_remote_invalid_request,
            counters.resp_local_errors,
            counters.resp_local_length_error,
        ];
        assert_eq!(refusals.iter().sum::<u64>(), self.refused, "refusals and counters disagree");
        assert!(counters.duplicate_request >= self.duplicates);
        // No events are recorded during commands, and a command that stops a QP may complete its
        // current receive.
        assert!(counters.completions >= self.completed, "completions were not counted");
    }

    fn note(&mut self, event: &Event) {
        match *event {
            Event::Received { packet, .. } => {
                self.received += 1;
                self.last = Some(packet);
                return;
            }
            Event::Dropped { reason, packet } => self.note_drop(reason, packet),
            Event::Completed { .. } => self.completed += 1,
            Event::Lost { .. } => self.lost += 1,
            Event::Nak { reason, .. } if reason != NakReason::Sequence => self.refused += 1,
            _ => {}
        }
        self.last = None;
    }

    fn note_drop(&mut self, reason: DropReason, packet: Option<PacketInfo>) {
        let was_accepted = match reason {
            DropReason::OutOfSequence
            | DropReason::Duplicate
            | DropReason::GhostResponse
            | DropReason::ReservedSyndrome
            | DropReason::Refused(_)
            | DropReason::NoReceive
            | DropReason::TooLong
            | DropReason::AfterFault => true,
            // Both the door and the completer (responses in RTR) say this.
            DropReason::QpState => self.last.is_some() && self.last == packet,
            _ => false,
        };
        if !was_accepted {
            self.unsorted += 1;
        }
        match reason {
            DropReason::Duplicate => self.duplicates += 1,
            DropReason::Refused(_) => self.refused += 1,
            _ => self.dropped += 1,
        }
    }
}

impl Tap for Ledger {
    fn on(&mut self, _now: Instant, event: impl FnOnce() -> Event) {
        let event = event();
        self.events += 1;
        if let Some(qpn) = event.qpn() {
            assert!(!self.bystanders.contains(&qpn), "a bystander was touched: {event:?}");
        }
        self.note(&event);
    }
}
