//! The responder: in which order it answers, what it forgets, what a receive completion says.

use crate::{
    ACCESS, ACK, INVALID, SEQUENCE, dialogue, ok, read_request, request, send_only, small_mtu,
    statuses, write_only,
};
use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::{AsyncEventType, WcOpcode, WcStatus};
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN, Say};
use rnic_sim::pair::End;
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::Connection;
use roce_wire::{ImmDt, Opcode, Qpn, Syndrome};

fn psns(d: &mut Dialogue) -> Vec<u32> {
    let base = d.connection.rq_psn;
    d.hear_burst().iter().map(|heard| heard.psn().wrapping_sub(base) & 0xff_ffff).collect()
}

#[test]
fn a_response_replaces_the_ack_of_what_is_before_it() {
    let mut d = dialogue();
    d.say_all(&[write_only(&d, 0, 0, &[1; 8]), read_request(&d, 1, 0, 8)]);
    assert_eq!(psns(&mut d), [1], "PSNs of answers never go back");
    d.say_all(&[write_only(&d, 2, 0, &[1; 8]), request(&d, Opcode::RcFetchAdd, 3, (0, 8))]);
    assert_eq!(psns(&mut d), [3]);
}

#[test]
fn a_duplicate_read_restarts_its_answer_and_leaves_the_others() {
    let mut d = dialogue();
    d.say_all(&[
        read_request(&d, 0, 0, 600),
        read_request(&d, 3, 1000, 8),
        read_request(&d, 0, 0, 600),
    ]);
    assert_eq!(psns(&mut d), [0, 1, 2, 3], "each once, in order");
    // The requester went back: it asks for all of them again.
    d.say_all(&[read_request(&d, 1, 256, 344), read_request(&d, 3, 1000, 8)]);
    assert_eq!(psns(&mut d), [1, 2, 3]);
}

/// A network that delivers a request twice may do so late, when later ones wait for their answer.
#[test]
fn a_late_copy_of_an_answered_request_takes_nothing_from_later_ones() {
    for rq_psn in [0x00ff_ffff, 0x007f_fffe, 5] {
        let slow = PortConfig { tx_burst: 1, ..PortConfig::frames() };
        let connection = Connection { rq_psn, ..small_mtu() };
        let mut d = Dialogue::with(connection, slow, |_| {});
        let atomic = request(&d, Opcode::RcFetchAdd, 1, (4096, 8));
        d.say_all(&[read_request(&d, 0, 0, 16), atomic.clone()]);
        assert_eq!(psns(&mut d), [0, 1]);
        let ten = read_request(&d, 2, 0, 2560);
        d.say_all(&[ten.clone(), read_request(&d, 0, 0, 16), atomic]);
        let expected: Vec<u32> = (0..12).collect();
        assert_eq!(psns(&mut d), expected);
        // Nor from an answer of the same request, which goes on where the copy ends.
        d.say(&ten);
        d.expect(Opcode::RcReadRespFirst, d.peer_psn(2));
        d.say(&read_request(&d, 5, 768, 1792));
        let rest = psns(&mut d);
        assert_eq!(rest.iter().filter(|psn| **psn == 11).count(), 1, "{rest:?}");
        assert!((3..12).all(|psn| rest.contains(&psn)), "{rest:?}");
    }
}

/// Both arrive together, the copy first, and only one answer fits beside those of other requests.
#[test]
fn a_late_copy_leaves_room_for_the_answer_to_a_repetition() {
    for depth in [1, 2] {
        let connection = Connection { max_dest_rd_atomic: depth, ..small_mtu() };
        let mut d = Dialogue::new(connection);
        let ten = read_request(&d, 0, 0, 2560);
        d.say(&ten);
        assert_eq!(d.hear_burst().len(), 10);
        let mut together = vec![ten, read_request(&d, 7, 1792, 768)];
        if depth == 2 {
            together.push(read_request(&d, 10, 0, 16));
        }
        d.say_all(&together);
        let heard = psns(&mut d);
        assert!(heard.ends_with(&[7, 8, 9]) || heard.ends_with(&[7, 8, 9, 10]), "{heard:?}");
    }
}

#[test]
fn a_late_copy_of_an_answered_request_takes_no_ack() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    assert_eq!(psns(&mut d), [0]);
    d.say(&read_request(&d, 1, 0, 16));
    assert_eq!(psns(&mut d), [1]);
    d.say_all(&[write_only(&d, 2, 0, &[1; 8]), read_request(&d, 1, 0, 16)]);
    assert_eq!(psns(&mut d), [1, 2]);
    d.say_all(&[write_only(&d, 3, 0, &[1; 8]), write_only(&d, 0, 0, &[1; 8])]);
    assert_eq!(psns(&mut d), [3], "beyond the READ the copy alone would not be acknowledged");
    let atomic = request(&d, Opcode::RcFetchAdd, 4, (0, 8));
    d.say(&atomic);
    assert_eq!(psns(&mut d), [4]);
    d.say_all(&[write_only(&d, 5, 0, &[1; 8]), atomic]);
    assert_eq!(psns(&mut d), [4, 5]);
    // A requester that went back gets the ACK before the response, not after it.
    d.say_all(&[write_only(&d, 3, 0, &[1; 8]), read_request(&d, 1, 0, 16)]);
    assert_eq!(psns(&mut d), [1, 3]);
    d.say_all(&[read_request(&d, 6, 0, 16), write_only(&d, 5, 0, &[1; 8])]);
    assert_eq!(psns(&mut d), [6], "the response acknowledges what is before it");
}

#[test]
fn a_duplicate_takes_no_rnr_nak() {
    let copies = |d: &Dialogue| {
        [
            write_only(d, 0, 0, &[1; 8]),
            read_request(d, 1, 0, 600),
            request(d, Opcode::RcFetchAdd, 4, (0, 8)),
        ]
    };
    for which in 0..3 {
        let mut d = Dialogue::new(Connection { rq_psn: 0x00ff_fffe, ..small_mtu() });
        d.say_all(&copies(&d));
        d.hear_burst();
        let copy = copies(&d)[which].clone();
        d.say_all(&[send_only(&d, 5, &[1; 8]), copy, send_only(&d, 6, &[2; 8])]);
        let heard = d.hear_burst();
        let (last, before) = heard.split_last().unwrap();
        assert_eq!(last.psn(), d.peer_psn(5));
        assert!(matches!(last.aeth().0, Syndrome::RnrNak { .. }), "{last:?}");
        assert!(before.iter().all(|h| h.opcode() != Opcode::RcAck), "no other NAK: {before:?}");
        assert_eq!(d.world.hosts()[0].engine.counters().out_of_buffer, 1);
    }
}

#[test]
fn a_duplicate_takes_no_nak() {
    let mut d = dialogue();
    d.say_all(&[write_only(&d, 0, 0, &[1; 8]), read_request(&d, 1, 0, 16)]);
    d.hear_burst();
    for copy in [write_only(&d, 0, 0, &[1; 8]), read_request(&d, 1, 0, 16)] {
        d.say_all(&[write_only(&d, 3, 0, &[1; 8]), copy, write_only(&d, 4, 0, &[1; 8])]);
        let last = d.hear_burst().pop().unwrap();
        assert_eq!((last.psn(), last.aeth()), (d.peer_psn(2), (SEQUENCE, 2)));
        // It is sent: a loss behind the next repetition is refused anew.
        d.say_all(&[write_only(&d, 0, 0, &[1; 8]), read_request(&d, 1, 0, 16)]);
        assert_eq!(psns(&mut d), [1]);
    }
    assert_eq!(d.world.hosts()[0].engine.counters().sent_seq_err, 2);
}

#[test]
fn a_loss_behind_a_duplicate_is_refused_anew() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.say(&write_only(&d, 2, 16, &[3; 8]));
    d.expect_aeth(d.peer_psn(1), SEQUENCE, 1);
    // The requester went back further than to the gap, and lost the same packet again.
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.say(&write_only(&d, 2, 16, &[3; 8]));
    d.expect_aeth(d.peer_psn(1), SEQUENCE, 1);
}

/// What was sent behind the gap is on its way, and the copy says nothing about it.
#[test]
fn a_late_copy_ends_no_gap() {
    let mut d = dialogue();
    let writes: Vec<_> = (0..12).map(|psn| write_only(&d, psn, 0, &[1; 8])).collect();
    d.say_all(&[writes[0].clone(), writes[1].clone(), read_request(&d, 2, 0, 600)]);
    d.hear_burst();
    d.say(&writes[6]);
    d.expect_aeth(d.peer_psn(5), SEQUENCE, 3);
    for late in [writes[0].clone(), writes[1].clone(), read_request(&d, 3, 256, 8)] {
        d.say_all(&[late, writes[7].clone()]);
        let heard = d.hear_burst();
        let mut acks = heard.iter().filter(|heard| heard.opcode() == Opcode::RcAck);
        assert!(acks.all(|ack| ack.aeth() == (ACK, 3)), "nothing is refused again");
    }
    // The requester went back, and the same packet was lost again.
    for repetition in [read_request(&d, 2, 0, 600), read_request(&d, 4, 512, 88)] {
        d.say_all(&[repetition, writes[6].clone()]);
        let last = d.hear_burst().pop().unwrap();
        assert_eq!((last.psn(), last.aeth()), (d.peer_psn(5), (SEQUENCE, 3)));
    }
}

#[test]
fn the_ack_of_a_duplicate_does_not_reach_a_later_read() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.say(&read_request(&d, 1, 0, 8));
    d.expect(Opcode::RcReadRespOnly, d.peer_psn(1));
    d.say(&write_only(&d, 2, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(2), ACK, 3);
    // Beyond the READ it would tell a requester that went back that its response was lost.
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 3);
}

#[test]
fn the_number_of_a_destroyed_queue_pair_does_not_reach_its_successor() {
    let mut d = dialogue();
    let old = Qpn::new(d.world.hosts()[0].qpn(d.nic.qp));
    let (gone, connection) = (d.nic.qp, d.connection);
    d.world.host(0).destroy_qp(gone);
    d.nic = End::new(&mut d.world, 0, |_| {});
    let qp = d.nic.qp;
    d.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
    assert_ne!(d.world.hosts()[0].qpn(qp), old.value());
    d.say(&write_only(&d, 0, 0, &[9; 8]).with(|h| h.bth.dest_qp = old));
    d.expect_silence();
    assert_eq!(d.memory(0, 8), [0; 8]);
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
}

#[test]
fn a_receive_that_a_refused_write_took_fails_with_a_local_access_error() {
    let mut d = dialogue();
    d.recv(1, &[]);
    d.say(&write_only(&d, 0, 0, &[1; 8]).with(|h| h.bth.opcode = Opcode::RcWriteOnlyImm).with(
        |h| {
            h.imm = Some(ImmDt([0; 4]));
            h.reth.as_mut().unwrap().rkey.0 ^= 0x100;
        },
    ));
    d.expect_aeth(d.peer_psn(0), ACCESS, 0);
    assert_eq!(statuses(&d.received()), [(1, WcStatus::LocAccessErr)]);
}

fn in_rtr() -> Dialogue {
    let mut d = Dialogue::in_reset(small_mtu(), PortConfig::frames(), |_| {});
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).to_init(qp, &connection);
    d.world.host(0).to_rtr(qp, &connection, PEER, PEER_QPN);
    d
}

#[test]
fn only_an_accepted_packet_establishes_communication() {
    let mut d = in_rtr();
    d.say(&Say::new(Opcode::RcSendMiddle, d.peer_psn(0)).payload(&[1; 256]));
    d.expect_aeth(d.peer_psn(0), INVALID, 0);
    assert_eq!(d.events(), [AsyncEventType::QpReqErr]);
    let mut d = in_rtr();
    d.say(&send_only(&d, 0, &[1; 8]));
    d.hear_burst();
    assert_eq!(d.events(), [], "no receive was posted");
    for opcode in [Opcode::RcFetchAdd, Opcode::RcReadRequest, Opcode::RcWriteOnly] {
        let mut d = in_rtr();
        let say = request(&d, opcode, 0, (0, 8));
        d.say(&if opcode == Opcode::RcWriteOnly { say.payload(&[1; 8]) } else { say });
        assert_eq!(d.events(), [AsyncEventType::CommEst], "{opcode}");
    }
}

#[test]
fn a_receive_completion_says_what_came() {
    let mut d = dialogue();
    let imm = ImmDt([1, 2, 3, 4]);
    for wr_id in 0..3 {
        d.recv(wr_id, &[d.nic.mr.sge(0, 100)]);
    }
    let write = write_only(&d, 1, 64, &[1; 8]);
    d.say_all(&[
        send_only(&d, 0, &[1; 5]),
        write.with(|h| (h.bth.opcode, h.imm) = (Opcode::RcWriteOnlyImm, Some(imm))),
        Say::new(Opcode::RcSendOnlyImm, d.peer_psn(2))
            .payload(&[1; 7])
            .with(|h| (h.bth.solicited, h.imm) = (true, Some(imm))),
    ]);
    let received = d.received();
    assert_eq!(statuses(&received), ok(0..3));
    let opcodes: Vec<WcOpcode> = received.iter().map(|cqe| cqe.opcode).collect();
    assert_eq!(opcodes, [WcOpcode::Recv, WcOpcode::RecvWriteImm, WcOpcode::Recv]);
    let lengths: Vec<u32> = received.iter().map(|cqe| cqe.byte_len).collect();
    assert_eq!(lengths, [5, 8, 7]);
    let flags: Vec<CqeFlags> =
        received.iter().map(|cqe| cqe.flags & (CqeFlags::IMM | CqeFlags::SOLICITED)).collect();
    let expected = [CqeFlags::empty(), CqeFlags::IMM, CqeFlags::IMM | CqeFlags::SOLICITED];
    assert_eq!(flags, expected);
    for cqe in &received[1..] {
        assert_eq!(cqe.imm_or_key.to_ne_bytes(), imm.0, "as it was on the wire");
    }
}

#[test]
fn atomics_count_as_messages() {
    let mut d = dialogue();
    for k in 0..2 {
        d.say(&request(&d, Opcode::RcFetchAdd, k, (0, 8)));
        assert_eq!(d.expect(Opcode::RcAtomicAck, d.peer_psn(k)).aeth(), (ACK, k + 1));
    }
}
