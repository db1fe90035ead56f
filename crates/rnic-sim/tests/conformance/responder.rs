//! The responder: PSNs, acknowledgements, READ responses, resources.

use crate::{
    ACK, INVALID, SEQUENCE, dialogue, ok, read_request, request, send_only, small_mtu, statuses,
    write_only,
};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpState};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::pair::pattern;
use rnic_sim::verbs::Connection;
use roce_wire::{Opcode, Syndrome};

#[test]
fn a_request_is_acknowledged_with_its_psn_and_the_message_count() {
    let mut d = dialogue();
    for k in 0..3 {
        d.say(&write_only(&d, k, 0, &[1; 8]));
        d.expect_aeth(d.peer_psn(k), ACK, k + 1);
    }
}

#[test]
fn requests_of_one_burst_share_an_ack() {
    let mut d = dialogue();
    let burst: Vec<Say> = (0..5).map(|k| write_only(&d, k, 0, &[1; 8])).collect();
    d.say_all(&burst);
    d.expect_aeth(d.peer_psn(4), ACK, 5);
    d.expect_silence();
}

#[test]
fn a_request_without_ackreq_is_not_acknowledged() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]).with(|h| h.bth.ack_req = false));
    d.expect_silence();
    assert_eq!(d.memory(0, 8), [1; 8]);
    d.say(&write_only(&d, 1, 0, &[2; 8]));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
}

#[test]
fn ackreq_in_the_middle_of_a_message_is_answered_without_counting_the_message() {
    let mut d = dialogue();
    let first = request(&d, Opcode::RcWriteFirst, 0, (0, 300)).payload(&[1; 256]).ack_req();
    d.say(&first);
    d.expect_aeth(d.peer_psn(0), ACK, 0);
    d.say(&Say::new(Opcode::RcWriteLast, d.peer_psn(1)).payload(&[2; 44]).ack_req());
    d.expect_aeth(d.peer_psn(1), ACK, 1);
}

#[test]
fn a_gap_is_answered_by_one_nak_with_the_expected_psn() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    for k in [2, 3, 4] {
        d.say(&write_only(&d, k, 64, &[9; 8]));
    }
    d.expect_aeth(d.peer_psn(1), SEQUENCE, 1);
    d.say(&write_only(&d, 5, 64, &[9; 8]));
    d.expect_silence();
    assert_eq!(d.memory(64, 8), [0; 8], "nothing beyond the gap is executed");
    d.say(&write_only(&d, 1, 0, &[2; 8]));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    // The next gap is a new one.
    d.say(&write_only(&d, 3, 64, &[9; 8]));
    d.expect_aeth(d.peer_psn(2), SEQUENCE, 2);
}

#[test]
fn a_nak_that_waits_asks_for_what_was_dropped_behind_the_late_packet() {
    let mut d = dialogue();
    d.say_all(&[write_only(&d, 1, 0, &[1; 8]), write_only(&d, 0, 0, &[2; 8])]);
    d.expect_aeth(d.peer_psn(1), SEQUENCE, 1);
    d.say(&write_only(&d, 1, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
}

#[test]
fn a_nak_that_waits_asks_for_what_was_dropped_behind_a_late_read() {
    let answers = [
        (Opcode::RcReadRequest, Opcode::RcReadRespOnly),
        (Opcode::RcFetchAdd, Opcode::RcAtomicAck),
    ];
    for (late, answer) in answers {
        let mut d = dialogue();
        d.say_all(&[write_only(&d, 1, 0, &[1; 8]), request(&d, late, 0, (0, 8))]);
        d.expect(answer, d.peer_psn(0));
        d.expect_aeth(d.peer_psn(1), SEQUENCE, 1);
        d.say(&write_only(&d, 1, 0, &[1; 8]));
        d.expect_aeth(d.peer_psn(1), ACK, 2);
    }
}

#[test]
fn packets_repaired_in_the_same_burst_take_the_nak_back() {
    let mut d = dialogue();
    let psns = [1, 0, 1];
    d.say_all(&psns.map(|psn| write_only(&d, psn, 0, &[1; 8])));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    d.expect_silence();
}

#[test]
fn a_psn_half_way_around_is_a_gap_and_beyond_it_a_duplicate() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0x7f_ffff, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), SEQUENCE, 0);
    d.say(&write_only(&d, 0x80_0000, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0xff_ffff), ACK, 0);
    assert_eq!(d.memory(0, 8), [0; 8]);
}

#[test]
fn expected_psns_wrap() {
    let mut d = Dialogue::new(Connection { rq_psn: 0xff_fffe, ..small_mtu() });
    for k in 0..4 {
        d.say(&write_only(&d, k, 0, &[1; 8]));
        d.expect_aeth(d.peer_psn(k), ACK, k + 1);
    }
    assert_eq!(d.peer_psn(3), 1);
    d.fill(0, 2000, 1);
    let mut d = Dialogue::new(Connection { rq_psn: 0xff_fffe, ..small_mtu() });
    d.say(&read_request(&d, 0, 0, 1000));
    let psns: Vec<u32> = d.hear_burst().iter().map(|heard| heard.psn()).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1]);
    d.say(&write_only(&d, 4, 0, &[1; 8]));
    d.expect_aeth(2, ACK, 2);
}

#[test]
fn a_read_is_answered_with_its_psns() {
    let mut d = dialogue();
    let data = d.fill(100, 600, 1);
    d.say(&read_request(&d, 0, 100, 600));
    let burst = d.hear_burst();
    let heard: Vec<_> = burst.iter().map(|h| (h.opcode(), h.psn())).collect();
    let expected = [
        (Opcode::RcReadRespFirst, d.peer_psn(0)),
        (Opcode::RcReadRespMiddle, d.peer_psn(1)),
        (Opcode::RcReadRespLast, d.peer_psn(2)),
    ];
    assert_eq!(heard, expected);
    assert_eq!((burst[0].aeth(), burst[2].aeth()), ((ACK, 1), (ACK, 1)));
    assert_eq!(burst.iter().flat_map(|h| h.payload.clone()).collect::<Vec<u8>>(), data);
    assert!(burst.iter().all(|h| !h.headers.bth.ack_req && !h.headers.bth.solicited));
}

#[test]
fn an_ack_waits_behind_the_responses_of_earlier_reads() {
    let mut d = dialogue();
    d.say_all(&[read_request(&d, 0, 0, 600), write_only(&d, 3, 2000, &[1; 8])]);
    let psns: Vec<u32> = d.hear_burst().iter().map(|heard| heard.psn()).collect();
    let expected: Vec<u32> = (0..4).map(|k| d.peer_psn(k)).collect();
    assert_eq!(psns, expected, "ascending, the ACK last");
}

#[test]
fn a_nak_waits_behind_the_responses_of_earlier_reads() {
    let mut d = dialogue();
    d.say_all(&[read_request(&d, 0, 0, 600), write_only(&d, 5, 2000, &[1; 8])]);
    let burst = d.hear_burst();
    assert_eq!(burst.len(), 4);
    assert_eq!((burst[3].psn(), burst[3].aeth()), (d.peer_psn(3), (SEQUENCE, 1)));
}

#[test]
fn several_reads_are_answered_in_order() {
    let mut d = dialogue();
    let data = d.fill(0, 2000, 3);
    d.say_all(&[
        read_request(&d, 0, 0, 300),
        read_request(&d, 2, 300, 10),
        read_request(&d, 3, 310, 600),
    ]);
    let burst = d.hear_burst();
    let bytes: Vec<u8> = burst.iter().flat_map(|heard| heard.payload.clone()).collect();
    assert_eq!(bytes, data[..910]);
    let psns: Vec<u32> = burst.iter().map(|heard| heard.psn()).collect();
    assert_eq!(psns, (0..6).map(|k| d.peer_psn(k)).collect::<Vec<_>>());
}

#[test]
fn more_reads_than_max_dest_rd_atomic_are_refused() {
    let mut d = Dialogue::new(Connection { max_dest_rd_atomic: 2, ..small_mtu() });
    let reads: Vec<Say> = (0..3).map(|k| read_request(&d, k, 0, 8)).collect();
    d.say_all(&reads);
    d.expect(Opcode::RcReadRespOnly, d.peer_psn(0));
    d.expect(Opcode::RcReadRespOnly, d.peer_psn(1));
    d.expect_aeth(d.peer_psn(2), INVALID, 2);
    assert_eq!(d.state(), QpState::Err);
    assert_eq!(d.events(), [AsyncEventType::QpReqErr]);
}

#[test]
fn a_requester_may_round_the_depth_up_to_a_power_of_two() {
    let mut d = Dialogue::new(Connection { max_dest_rd_atomic: 3, ..small_mtu() });
    let reads: Vec<Say> = (0..4).map(|k| read_request(&d, k, 0, 8)).collect();
    d.say_all(&reads);
    for k in 0..4 {
        d.expect(Opcode::RcReadRespOnly, d.peer_psn(k));
    }
    d.expect_silence();
}

#[test]
fn without_read_resources_reads_and_atomics_are_refused() {
    for opcode in [Opcode::RcReadRequest, Opcode::RcFetchAdd, Opcode::RcCmpSwap] {
        let mut d = Dialogue::new(Connection { max_dest_rd_atomic: 0, ..small_mtu() });
        d.say(&request(&d, opcode, 0, (0, 8)));
        d.expect_aeth(d.peer_psn(0), INVALID, 0);
    }
}

#[test]
fn a_send_without_receive_is_refused_for_now_and_what_follows_dropped_silently() {
    let mut d = Dialogue::new(Connection { min_rnr_timer: 13, ..small_mtu() });
    d.say_all(&[send_only(&d, 0, &[1; 8]), send_only(&d, 1, &[2; 8]), send_only(&d, 2, &[3; 8])]);
    d.expect_aeth(d.peer_psn(0), Syndrome::RnrNak { timer: 13 }, 0);
    d.expect_silence();
    for k in 0..3 {
        d.recv(k, &[d.nic.mr.sge(k * 8, 8)]);
    }
    d.say_all(&[send_only(&d, 0, &[1; 8]), send_only(&d, 1, &[2; 8]), send_only(&d, 2, &[3; 8])]);
    d.expect_aeth(d.peer_psn(2), ACK, 3);
    assert_eq!(statuses(&d.received()), ok(0..3));
    assert_eq!(d.memory(0, 24), [[1; 8], [2; 8], [3; 8]].concat());
}

#[test]
fn only_the_first_packet_of_a_send_takes_a_receive() {
    let mut d = dialogue();
    d.recv(1, &[d.nic.mr.sge(0, 1000)]);
    let data = pattern(600, 1);
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&data[..256]));
    d.say(&Say::new(Opcode::RcSendMiddle, d.peer_psn(1)).payload(&data[256..512]));
    d.say(&Say::new(Opcode::RcSendLast, d.peer_psn(2)).payload(&data[512..]).ack_req());
    d.expect_aeth(d.peer_psn(2), ACK, 1);
    let received = d.received();
    assert_eq!((statuses(&received), received[0].byte_len), (ok([1]), 600));
    assert_eq!(d.memory(0, 600), data);
}

#[test]
fn only_the_last_packet_of_a_write_with_immediate_needs_a_receive() {
    let mut d = dialogue();
    let data = pattern(300, 1);
    let last = Say::new(Opcode::RcWriteLastImm, d.peer_psn(1)).payload(&data[256..]).ack_req();
    d.say(&request(&d, Opcode::RcWriteFirst, 0, (0, 300)).payload(&data[..256]));
    d.say(&last);
    d.expect_aeth(d.peer_psn(1), Syndrome::RnrNak { timer: 1 }, 0);
    assert_eq!(d.memory(0, 256), data[..256], "earlier packets are placed");
    d.recv(7, &[]);
    d.say(&last);
    d.expect_aeth(d.peer_psn(1), ACK, 1);
    let received = d.received();
    assert_eq!((statuses(&received), received[0].byte_len), (ok([7]), 300));
    assert_eq!(d.memory(0, 300), data);
}

#[test]
fn zero_length_everything() {
    let mut d = dialogue();
    d.recv(1, &[]);
    d.recv(2, &[d.nic.mr.sge(0, 100)]);
    d.recv(3, &[]);
    d.say(&send_only(&d, 0, &[]));
    d.say(&Say::new(Opcode::RcSendOnlyImm, d.peer_psn(1)));
    d.say(&Say::new(Opcode::RcWriteOnly, d.peer_psn(2)).reth(1, 2, 0));
    d.say(&Say::new(Opcode::RcWriteOnlyImm, d.peer_psn(3)).reth(1, 2, 0));
    d.say(&Say::new(Opcode::RcReadRequest, d.peer_psn(4)).reth(1, 2, 0));
    let response = d.expect(Opcode::RcReadRespOnly, d.peer_psn(4));
    assert_eq!((response.payload.len(), response.aeth()), (0, (ACK, 5)));
    let received = d.received();
    assert_eq!(statuses(&received), ok(1..4));
    assert!(received.iter().all(|cqe| cqe.byte_len == 0));
}

/// The peer could change the buffer between delivery and completion.
#[test]
fn small_receives_travel_in_the_completion_only_where_no_peer_can_reach_the_buffer() {
    let mut d = dialogue();
    let pd = d.nic.pd;
    let private = d.world.host(0).new_mr(pd, 4096, AccessFlags::LOCAL_WRITE);
    d.recv(1, &[private.sge(0, 4096)]);
    d.recv(2, &[d.nic.mr.sge(0, 64)]);
    d.say_all(&[send_only(&d, 0, &[5; 64]), send_only(&d, 1, &[6; 64])]);
    let received = d.received();
    assert_eq!(statuses(&received), ok([1, 2]));
    let carried: Vec<usize> = received.iter().map(|cqe| cqe.carried_len()).collect();
    assert_eq!(carried, [64, 0]);
    assert_eq!(received[0].carried()[..64], [5; 64]);
    assert_eq!(d.memory(0, 64), [6; 64]);
}
