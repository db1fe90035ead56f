use super::{Terms, Witness};
use rnic_abi::verbs::WrOpcode;
use rnic_core::event::{Event, NakReason, PacketInfo, RewindCause};
use rnic_core::time::Instant;
use roce_wire::{Opcode, Psn, Qpn};

const QPN: Qpn = Qpn::new(7);

fn packet(opcode: Opcode, psn: u32, aeth: Option<(u8, u32)>) -> PacketInfo {
    let psn = Psn::new(psn);
    PacketInfo { opcode, dest_qpn: QPN, psn, ack_req: false, payload: 0, aeth }
}

/// A witness that saw a WRITE of two packets and a READ.
fn witness() -> Witness {
    let mut witness = Witness::default();
    let terms = Terms { timeout: Some(1000), round_trip: 100, visit: 10_000 };
    witness.connected(QPN.value(), terms);
    for (psn, opcode) in
        [(10, Opcode::RcWriteFirst), (11, Opcode::RcWriteLast), (12, Opcode::RcReadRequest)]
    {
        let packet = PacketInfo { ack_req: true, ..packet(opcode, psn, None) };
        witness.saw(
            Instant::ZERO,
            &Event::Sent { qpn: QPN, packet, message: None, retransmit: false },
        );
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
    // A late copy of one that was waited for says nothing.
    for (psn, nanos, fine) in [(11, 639_999, false), (11, 640_000, true), (9, 639_999, true)] {
        let mut witness = witness();
        let psns = (Psn::new(10), Psn::new(12));
        let fetched = fetched(psns);
        witness.saw(Instant::ZERO, &fetched);
        let sent = packet(Opcode::RcSendMiddle, 11, None);
        let sent = Event::Sent { qpn: QPN, packet: sent, message: None, retransmit: true };
        witness.saw(Instant::ZERO, &sent);
        let packet = packet(Opcode::RcAck, psn, Some((0x20 | 12, 0)));
        witness.saw(Instant::ZERO, &Event::Received { qpn: QPN, packet });
        let rewound = Event::Rewound { qpn: QPN, psn: Psn::new(11), cause: RewindCause::Rnr };
        witness.saw(Instant::ZERO.after_nanos(nanos), &rewound);
        assert_eq!(witness.verdicts().is_empty(), fine, "{nanos}");
    }
}

#[test]
fn a_timeout_takes_its_time() {
    for (nanos, fine) in [(999, false), (1000, true)] {
        let mut witness = witness();
        let to = Psn::new(10);
        let rewound = Event::Rewound { qpn: QPN, psn: to, cause: RewindCause::Timeout };
        witness.saw(Instant::ZERO.after_nanos(nanos), &rewound);
        assert_eq!(witness.verdicts().is_empty(), fine, "{nanos}");
    }
}

#[test]
fn the_end_of_a_message_asks_for_an_ack() {
    let mut witness = witness();
    let packet = packet(Opcode::RcSendOnly, 20, None);
    witness.saw(Instant::ZERO, &Event::Sent { qpn: QPN, packet, message: None, retransmit: true });
    assert!(!witness.verdicts().is_empty());
}

#[test]
fn a_gap_is_told_of_once_unless_something_reaches_it_again() {
    let nak = || {
        let reason = NakReason::Sequence;
        Event::Nak { qpn: QPN, psn: Psn::new(50), reason }
    };
    for (psn, fine) in [(48, false), (49, true), (50, true), (51, false)] {
        let mut witness = witness();
        let packet = packet(Opcode::RcWriteOnly, psn, None);
        for event in [nak(), Event::Received { qpn: QPN, packet }, nak()] {
            witness.saw(Instant::ZERO, &event);
        }
        assert_eq!(witness.verdicts().is_empty(), fine, "{psn}");
    }
}

const SEQUENCE_NAK: u8 = 0x60;

/// Has the witness of [`witness`] see all of these, some time after it saw the first requests.
fn verdict_of(events: &[(u64, Event)]) -> bool {
    let mut witness = witness();
    let psns = (Psn::new(10), Psn::new(13));
    let fetched = fetched(psns);
    witness.saw(Instant::ZERO, &fetched);
    for (nanos, event) in events {
        witness.saw(Instant::ZERO.after_nanos(*nanos), event);
    }
    witness.verdicts().is_empty()
}

fn fetched((first_psn, last_psn): (Psn, Psn)) -> Event {
    let (operation, peer_qpn) = (WrOpcode::Write, None);
    Event::WqeFetched {
        qpn: QPN,
        message: 0,
        operation,
        wr_id: 0,
        length: 0,
        first_psn,
        last_psn,
        peer_qpn,
    }
}

fn sent(psn: u32, opcode: Opcode, aeth: Option<(u8, u32)>) -> Event {
    let packet = PacketInfo { ack_req: true, ..packet(opcode, psn, aeth) };
    Event::Sent { qpn: QPN, packet, message: None, retransmit: true }
}

fn received(psn: u32, syndrome: u8) -> Event {
    let packet = packet(Opcode::RcAck, psn, Some((syndrome, 0)));
    Event::Received { qpn: QPN, packet }
}

#[test]
fn one_loss_costs_one_retry() {
    let rewound = Event::Rewound { qpn: QPN, psn: Psn::new(10), cause: RewindCause::SequenceNak };
    let again = sent(10, Opcode::RcWriteFirst, None);
    assert!(verdict_of(&[(1, rewound), (2, again), (3, rewound)]));
    assert!(!verdict_of(&[(1, rewound), (3, rewound)]));
}

#[test]
fn a_sequence_nak_of_what_was_sent_again_is_heeded() {
    let rnr = Event::Rewound { qpn: QPN, psn: Psn::new(10), cause: RewindCause::Rnr };
    let rewound = Event::Rewound { qpn: QPN, psn: Psn::new(10), cause: RewindCause::SequenceNak };
    let again = sent(10, Opcode::RcWriteFirst, None);
    let (nak, other) = (received(10, SEQUENCE_NAK), received(10, 0x1f));
    let late = 1000;
    assert!(verdict_of(&[(1, rnr), (2, again), (late, nak), (late, rewound), (late, other)]));
    assert!(!verdict_of(&[(1, rnr), (2, again), (late, nak), (late, other)]));
    // So early it may be about what was sent before.
    assert!(verdict_of(&[(1, rnr), (2, again), (50, nak), (60, other)]));
}

#[test]
fn an_rnr_nak_leaves() {
    let refused = Event::RnrNak { qpn: QPN, psn: Psn::new(50), timer: 1 };
    let leaves = sent(50, Opcode::RcAck, Some((0x21, 0)));
    let instead = sent(49, Opcode::RcAck, Some((0x1f, 0)));
    let later = received(10, 0x1f);
    assert!(verdict_of(&[(1, refused), (2, instead), (2, leaves), (3, later)]));
    assert!(!verdict_of(&[(1, refused), (2, instead), (3, later)]));
}

#[test]
fn a_request_does_not_wait_while_answers_leave() {
    let acked = Event::Acked { qpn: QPN, psn: Psn::new(13) };
    let answer = Event::Sent {
        message: None,
        qpn: QPN,
        packet: PacketInfo { payload: 4096, ..packet(Opcode::RcReadRespMiddle, 7, None) },
        retransmit: false,
    };
    for (posted, fine) in [(1, true), (2, false)] {
        let mut witness = witness();
        witness.posted(QPN.value(), posted);
        let psns = (Psn::new(10), Psn::new(13));
        let fetched = fetched(psns);
        let doorbell = Event::Doorbell { qpn: QPN, wqes: 0, message: None };
        for event in [fetched, doorbell, acked].iter().chain([&answer; 12]) {
            witness.saw(Instant::ZERO, event);
        }
        assert_eq!(witness.verdicts().is_empty(), fine, "{posted} posted, one fetched");
    }
}

#[test]
fn a_queue_is_drained_between_messages() {
    let mut witness = Witness::default();
    let terms = Terms { timeout: None, round_trip: 100, visit: 1 };
    witness.connected(QPN.value(), terms);
    assert!(witness.is_drained(QPN.value()), "nothing was started");
    let psns = (Psn::new(10), Psn::new(12));
    witness.saw(Instant::ZERO, &fetched(psns));
    for (psn, opcode) in [(10, Opcode::RcSendFirst), (11, Opcode::RcSendMiddle)] {
        witness.saw(Instant::ZERO, &sent(psn, opcode, None));
    }
    witness.saw(Instant::ZERO, &Event::Acked { qpn: QPN, psn: Psn::new(11) });
    assert!(!witness.is_drained(QPN.value()) && !witness.is_acknowledged(QPN.value(), 0));
    witness.saw(Instant::ZERO, &sent(12, Opcode::RcSendLast, None));
    witness.saw(Instant::ZERO, &Event::Acked { qpn: QPN, psn: Psn::new(12) });
    assert!(witness.is_drained(QPN.value()) && witness.is_acknowledged(QPN.value(), 0));
}

#[test]
fn counters_say_what_was_seen() {
    let mut witness = Witness::default();
    witness.saw(Instant::ZERO, &sent(9, Opcode::RcAck, Some((SEQUENCE_NAK, 0))));
    let seen = super::Seen { taken: 1, given: 2, completions: 3 };
    let mut counters = rnic_core::counters::Counters {
        tx_packets: 1,
        rx_packets: 2,
        completions: 3,
        retransmitted_packets: 1,
        sent_seq_err: 1,
        ..Default::default()
    };
    assert_eq!(witness.tally().check(&counters, &seen), Ok(()));
    counters.sent_seq_err = 2;
    assert!(witness.tally().check(&counters, &seen).is_err());
}
