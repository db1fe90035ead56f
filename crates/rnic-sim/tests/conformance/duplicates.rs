//! The responder and requests that it has executed already.

use crate::{
    ACK, SEQUENCE, dialogue, ok, read_request, request, send_only, small_mtu, statuses, write_only,
};
use rnic_abi::verbs::QpState;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::verbs::Connection;
use roce_wire::Opcode;

#[test]
fn a_duplicate_send_is_acknowledged_and_not_received_again() {
    let mut d = dialogue();
    d.recv(1, &[d.nic.mr.sge(0, 8)]);
    d.recv(2, &[d.nic.mr.sge(64, 8)]);
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.say(&send_only(&d, 0, &[9; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    assert_eq!(statuses(&d.received()), ok([1]));
    assert_eq!(d.memory(64, 8), [0; 8]);
    d.say(&send_only(&d, 1, &[2; 8]));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    assert_eq!(statuses(&d.received()), ok([2]));
}

#[test]
fn a_duplicate_write_is_acknowledged_with_everything_received_so_far_and_not_written_again() {
    let mut d = dialogue();
    d.say_all(&[write_only(&d, 0, 0, &[1; 8]), write_only(&d, 1, 8, &[2; 8])]);
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    d.fill(0, 8, 77);
    let after = d.memory(0, 16);
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    assert_eq!(d.memory(0, 16), after);
}

#[test]
fn a_duplicate_needs_neither_receive_nor_good_key() {
    let mut d = dialogue();
    d.recv(1, &[d.nic.mr.sge(0, 8)]);
    d.say_all(&[send_only(&d, 0, &[1; 8]), write_only(&d, 1, 0, &[1; 8])]);
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    let bad = write_only(&d, 1, 0, &[1; 8]).reth(0, 0xdead, 8);
    d.say(&bad);
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn a_duplicate_read_is_executed_again_on_the_memory_of_now() {
    let mut d = dialogue();
    d.fill(0, 600, 1);
    d.say(&read_request(&d, 0, 0, 600));
    assert_eq!(d.hear_burst().len(), 3);
    let newer = d.fill(0, 600, 2);
    d.say(&read_request(&d, 0, 0, 600));
    let burst = d.hear_burst();
    assert_eq!(burst[0].opcode(), Opcode::RcReadRespFirst);
    assert_eq!(burst[0].aeth(), (ACK, 1), "it does not count again");
    assert_eq!(burst.iter().flat_map(|h| h.payload.clone()).collect::<Vec<u8>>(), newer);
}

#[test]
fn a_restarted_read_is_answered_from_where_it_restarts() {
    let mut d = dialogue();
    let data = d.fill(0, 1000, 1);
    d.say(&read_request(&d, 0, 0, 1000));
    assert_eq!(d.hear_burst().len(), 4);
    d.say(&read_request(&d, 2, 512, 488));
    let burst = d.hear_burst();
    let heard: Vec<_> = burst.iter().map(|h| (h.opcode(), h.psn())).collect();
    let expected =
        [(Opcode::RcReadRespFirst, d.peer_psn(2)), (Opcode::RcReadRespLast, d.peer_psn(3))];
    assert_eq!(heard, expected);
    assert_eq!(burst.iter().flat_map(|h| h.payload.clone()).collect::<Vec<u8>>(), data[512..]);
}

#[test]
fn a_duplicate_read_outside_the_original_is_dropped() {
    let mut d = dialogue();
    d.say(&read_request(&d, 0, 0, 600));
    d.hear_burst();
    let other_key = read_request(&d, 0, 0, 600).with(|h| {
        if let Some(reth) = &mut h.reth {
            reth.rkey.0 ^= 0x100;
        }
    });
    d.say(&other_key);
    d.say(&read_request(&d, 0, 1, 600));
    d.say(&read_request(&d, 1, 256, 600));
    d.expect_silence();
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn a_duplicate_read_of_a_key_that_is_gone_is_dropped_silently() {
    let mut d = dialogue();
    d.say(&read_request(&d, 0, 0, 600));
    d.hear_burst();
    let (mr, pd) = (d.nic.mr, d.nic.pd);
    d.world.host(0).dereg_mr(&mr);
    d.say(&read_request(&d, 0, 0, 600));
    d.expect_silence();
    assert_eq!(d.state(), QpState::Rts);
    // It still works with another key.
    let other = d.world.host(0).new_mr(pd, 4096, rnic_sim::verbs::full_access());
    d.say(&Say::new(Opcode::RcReadRequest, d.peer_psn(3)).reth(other.addr, other.rkey, 8));
    d.expect(Opcode::RcReadRespOnly, d.peer_psn(3));
}

#[test]
fn a_duplicate_atomic_gets_the_saved_result() {
    let mut d = dialogue();
    for k in 0..3 {
        d.say(&request(&d, Opcode::RcFetchAdd, k, (0, 8)));
        let answer = d.expect(Opcode::RcAtomicAck, d.peer_psn(k));
        assert_eq!(answer.headers.atomic_ack.unwrap().original, u64::from(k));
    }
    for k in [0, 2, 1, 1] {
        d.say(&request(&d, Opcode::RcFetchAdd, k, (0, 8)));
        let answer = d.expect(Opcode::RcAtomicAck, d.peer_psn(k));
        assert_eq!(answer.headers.atomic_ack.unwrap().original, u64::from(k));
    }
    assert_eq!(d.memory(0, 8), 3_u64.to_ne_bytes());
}

#[test]
fn a_duplicate_atomic_that_is_forgotten_is_dropped() {
    let mut d = Dialogue::new(Connection { max_dest_rd_atomic: 2, ..small_mtu() });
    for k in 0..4 {
        d.say(&request(&d, Opcode::RcFetchAdd, k, (0, 8)));
        d.expect(Opcode::RcAtomicAck, d.peer_psn(k));
    }
    d.say(&request(&d, Opcode::RcFetchAdd, 0, (0, 8)));
    d.expect_silence();
    assert_eq!(d.memory(0, 8), 4_u64.to_ne_bytes());
}

#[test]
fn stale_duplicates_do_not_use_up_the_read_resources() {
    let mut d = Dialogue::new(Connection { max_dest_rd_atomic: 1, ..small_mtu() });
    d.say(&read_request(&d, 0, 0, 8));
    d.expect(Opcode::RcReadRespOnly, d.peer_psn(0));
    d.say_all(&[read_request(&d, 0, 0, 8), request(&d, Opcode::RcFetchAdd, 1, (8, 8))]);
    let burst = d.hear_burst();
    assert_eq!(burst.last().unwrap().opcode(), Opcode::RcAtomicAck);
    assert_eq!(d.state(), QpState::Rts);
}

/// When a READ is half of all PSNs behind, comparing takes it for one that is to come; when it is
/// all of them behind, its PSN is another request's.
#[test]
fn requests_far_behind_are_forgotten() {
    const HALF: u32 = 1 << 23;
    let mut d = dialogue();
    let atomic = request(&d, Opcode::RcFetchAdd, 1, (0, 8));
    d.say_all(&[read_request(&d, 0, 0, 16), atomic.clone()]);
    d.hear_burst();
    write_up_to(&mut d, 2, HALF - 10);
    d.say(&atomic);
    d.expect_silence();
    assert_eq!(d.memory(0, 8), 1_u64.to_ne_bytes());
    write_up_to(&mut d, HALF - 10, HALF + 10);
    let last = write_only(&d, HALF + 10, 64, &[1; 8]);
    d.say(&last);
    let answer = d.expect(Opcode::RcAck, d.peer_psn(HALF + 10));
    d.say(&last);
    assert_eq!(d.expect(Opcode::RcAck, answer.psn()).aeth(), answer.aeth());
}

/// The peer's WRITEs without data, from `from` on and before `to`. Now and then it is a SEND: a
/// world in which nothing completes counts as one that goes in circles.
fn write_up_to(d: &mut Dialogue, from: u32, to: u32) {
    for k in from..to {
        let completes = k.is_multiple_of(1 << 20);
        let opcode = if completes { Opcode::RcSendOnly } else { Opcode::RcWriteOnly };
        if completes {
            d.recv(1, &[]);
        }
        d.say(&request(d, opcode, k, (0, 0)));
        if k.is_multiple_of(64) {
            d.world.run_for(10_000);
        }
    }
    d.expect_silence();
}

#[test]
fn a_duplicate_between_a_gap_and_its_repair_changes_nothing() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.say(&write_only(&d, 2, 16, &[3; 8]));
    d.expect_aeth(d.peer_psn(1), SEQUENCE, 1);
    d.say(&write_only(&d, 0, 0, &[9; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.say_all(&[write_only(&d, 1, 8, &[2; 8]), write_only(&d, 2, 16, &[3; 8])]);
    d.expect_aeth(d.peer_psn(2), ACK, 3);
    assert_eq!(d.memory(0, 24), [[1; 8], [2; 8], [3; 8]].concat());
}

#[test]
fn a_peer_that_restarted_with_the_same_qpn_changes_nothing() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    // Its new PSNs are behind: duplicates. Or ahead: gaps. Either way nothing is executed.
    d.say(&write_only(&d, 0xff_f000, 8, &[9; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.say(&write_only(&d, 0x1000, 8, &[9; 8]));
    d.expect_aeth(d.peer_psn(1), SEQUENCE, 1);
    assert_eq!(d.memory(8, 8), [0; 8]);
    assert_eq!(d.state(), QpState::Rts);
}
