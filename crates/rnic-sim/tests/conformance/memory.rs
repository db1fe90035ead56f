//! Memory that goes away: keys deregistered in flight, pages that are not mapped.

use crate::{
    ACCESS, ACK, INVALID, OPERATIONAL, dialogue, ok, read, read_request, request, send, send_only,
    small_mtu, statuses, write_only,
};
use rnic_abi::verbs::{AsyncEventType, QpState, WcStatus};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::host::SPACE;
use rnic_sim::memory::{PAGE, PageAccess};
use rnic_sim::pair::{End, Pair, pattern};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{SendWr, full_access};
use roce_wire::{ImmDt, NakCode, Opcode};

fn protect(d: &mut Dialogue, offset: u64, access: PageAccess) {
    let addr = d.nic.mr.addr + offset;
    d.world.host(0).memory.protect(SPACE, addr, 1, access);
}

fn dereg(d: &mut Dialogue) {
    let mr = d.nic.mr;
    d.world.host(0).dereg_mr(&mr);
}

#[test]
fn a_key_deregistered_between_the_packets_of_a_write_ends_it() {
    let mut d = dialogue();
    d.say(&request(&d, Opcode::RcWriteFirst, 0, (0, 600)).payload(&[1; 256]).ack_req());
    d.expect_aeth(d.peer_psn(0), ACK, 0);
    dereg(&mut d);
    d.say(&Say::new(Opcode::RcWriteMiddle, d.peer_psn(1)).payload(&[2; 256]));
    d.expect_aeth(d.peer_psn(1), ACCESS, 0);
    assert_eq!(d.events(), [AsyncEventType::QpAccessErr]);
    assert_eq!(d.memory(256, 8), [0; 8]);
}

#[test]
fn a_key_deregistered_between_the_responses_of_a_read_ends_them() {
    let slow = PortConfig { tx_burst: 1, ..PortConfig::frames() };
    let mut d = Dialogue::with(small_mtu(), slow, |_| {});
    d.say(&read_request(&d, 0, 0, 100_000));
    d.expect(Opcode::RcReadRespFirst, d.peer_psn(0));
    dereg(&mut d);
    let rest = d.hear_burst();
    let last = rest.last().expect("the responder says that it ended");
    assert!(rest.len() < 100, "{} packets", rest.len());
    assert_eq!((last.opcode(), last.aeth().0), (Opcode::RcAck, ACCESS));
    assert_eq!(d.state(), QpState::Err);
}

#[test]
fn a_key_deregistered_before_a_retransmission_fails_the_send() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 100), send(&d, 2, 100)]);
    d.hear_burst();
    dereg(&mut d);
    d.expect_silence_for(4 * d.connection.ack_timeout());
    let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

#[test]
fn a_key_deregistered_before_the_response_fails_the_read() {
    let mut d = dialogue();
    d.post_all(&[read(&d, 1, 0, 16), send(&d, 2, 16)]);
    d.hear_burst();
    dereg(&mut d);
    d.say(&Say::new(Opcode::RcReadRespOnly, d.our_psn(0)).syndrome(ACK, 1).payload(&[1; 16]));
    let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

#[test]
fn requests_with_bad_local_keys_fail_and_flush_what_follows() {
    let spoil = |spoil: fn(&mut SendWr)| {
        let mut d = dialogue();
        let mut wr = send(&d, 2, 100);
        spoil(&mut wr);
        d.post_all(&[send(&d, 1, 10), wr.unsignaled(), send(&d, 3, 10)]);
        d.expect(Opcode::RcSendOnly, d.our_psn(0));
        d.say(&Say::ack(d.our_psn(0), 1));
        let expected =
            [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&d.sent()), expected);
        d.expect_silence_for(1_000_000_000);
    };
    spoil(|wr| wr.sges[0].lkey ^= 0x100);
    spoil(|wr| wr.sges[0].addr -= 1);
    spoil(|wr| wr.sges[0].length = u32::MAX / 4);
    spoil(|wr| wr.sges[0].addr = u64::MAX - 10);
}

#[test]
fn a_hole_under_a_send_fails_it_after_those_before() {
    let mut d = dialogue();
    protect(&mut d, 4 * PAGE, PageAccess::Hole);
    let wr = SendWr::send(2, &[d.nic.mr.sge(4 * PAGE - 512, 1024)]);
    d.post_all(&[send(&d, 1, 10), wr, send(&d, 3, 10)]);
    let burst = d.hear_burst();
    assert!(burst.len() <= 3, "nothing of the hole is sent: {}", burst.len());
    d.say(&Say::ack(d.our_psn(0), 1));
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

/// The memory of a receive is missing, and this comes before and behind what is for it, in one
/// burst. Returns how the sends of the queue pair complete: a SEND and a READ.
fn around_a_failing_receive(before: &[Say], behind: &[Say]) -> Vec<(u64, WcStatus)> {
    let mut d = dialogue();
    protect(&mut d, PAGE, PageAccess::Hole);
    d.recv(11, &[d.nic.mr.sge(PAGE, 200)]);
    d.post_all(&[send(&d, 1, 10), read(&d, 2, 0, 16)]);
    d.hear_burst();
    let fails = send_only(&d, 0, &[2; 200]);
    d.say_all(&[before, &[fails], behind].concat());
    assert_eq!(statuses(&d.received()), [(11, WcStatus::LocProtErr)]);
    d.expect_aeth(d.peer_psn(0), OPERATIONAL, 0);
    statuses(&d.sent())
}

#[test]
fn what_was_acknowledged_when_a_receive_faults_is_complete() {
    let first = dialogue().our_psn(0);
    let ack = [Say::ack(first, 1)];
    let expected = [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)];
    assert_eq!(around_a_failing_receive(&ack, &[]), expected);
    assert_eq!(around_a_failing_receive(&[], &ack), expected);
}

#[test]
fn a_read_is_complete_only_when_its_data_was_stored_before_a_receive_faulted() {
    let answer = Say::new(Opcode::RcReadRespOnly, dialogue().our_psn(1));
    let answer = [answer.syndrome(ACK, 2).payload(&[7; 16])];
    assert_eq!(around_a_failing_receive(&answer, &[]), ok([1, 2]));
    let expected = [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)];
    assert_eq!(around_a_failing_receive(&[], &answer), expected);
}

#[test]
fn a_hole_under_a_read_sink_fails_the_read() {
    for access in [PageAccess::Hole, PageAccess::ReadOnly] {
        let mut d = dialogue();
        protect(&mut d, PAGE, access);
        d.post_all(&[read(&d, 1, PAGE, 16), send(&d, 2, 10)]);
        d.hear_burst();
        d.say(&Say::new(Opcode::RcReadRespOnly, d.our_psn(0)).syndrome(ACK, 1).payload(&[1; 16]));
        let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&d.sent()), expected);
    }
}

/// Eight packets of a WRITE arrive as one burst; the memory of the sixth is missing.
#[test]
fn a_fault_in_the_middle_of_a_burst_leaves_the_rest_unaccepted() {
    let mut d = dialogue();
    let data = pattern(8 * 256, 5);
    let at = PAGE - 5 * 256;
    protect(&mut d, PAGE, PageAccess::ReadOnly);
    let mut burst = vec![request(&d, Opcode::RcWriteFirst, 0, (at, 8 * 256)).payload(&data[..256])];
    for k in 1..7_usize {
        let psn = d.peer_psn(u32::try_from(k).unwrap());
        burst.push(Say::new(Opcode::RcWriteMiddle, psn).payload(&data[k * 256..(k + 1) * 256]));
    }
    burst.push(Say::new(Opcode::RcWriteLast, d.peer_psn(7)).payload(&data[7 * 256..]).ack_req());
    d.say_all(&burst);
    let heard = d.hear();
    assert_eq!(heard.psn(), d.peer_psn(5), "the packet that could not be placed");
    assert_eq!(heard.aeth(), (OPERATIONAL, 0));
    assert_eq!(d.memory(at, 5 * 256), data[..5 * 256]);
    assert_eq!(d.memory(PAGE, 3 * 256), [0; 3 * 256]);
    assert_eq!(d.state(), QpState::Err);
    assert_eq!(d.events(), [AsyncEventType::QpFatal]);
    d.expect_silence();
}

#[test]
fn a_fault_fails_the_receive_it_hits_and_flushes_those_of_the_burst_behind_it() {
    let mut d = dialogue();
    protect(&mut d, PAGE, PageAccess::Hole);
    let big = 200;
    for (wr_id, at) in [(1, 0), (2, PAGE), (3, 2 * PAGE)] {
        d.recv(wr_id, &[d.nic.mr.sge(at, big)]);
    }
    let burst: Vec<Say> = (0..3).map(|k| send_only(&d, k, &[7; 200])).collect();
    d.say_all(&burst);
    d.expect_aeth(d.peer_psn(1), OPERATIONAL, 1);
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
    assert_eq!(d.memory(0, 200), [7; 200]);
    assert_eq!(d.memory(2 * PAGE, 200), [0; 200]);
}

/// Receives that the burst had filled behind the fault are neither delivered nor lost.
#[test]
fn a_fault_of_a_read_sink_flushes_the_receives_of_the_burst_behind_it() {
    let mut d = dialogue();
    protect(&mut d, PAGE, PageAccess::Hole);
    for wr_id in 11..16 {
        d.recv(wr_id, &[d.nic.mr.sge(2 * PAGE, 600)]);
    }
    d.post_all(&[read(&d, 1, PAGE, 200), send(&d, 2, 10)]);
    d.hear_burst();
    d.say_all(&[
        send_only(&d, 0, &[2; 200]),
        Say::new(Opcode::RcReadRespOnly, d.our_psn(0)).syndrome(ACK, 1).payload(&[1; 200]),
        send_only(&d, 1, &[2; 200]),
        send_only(&d, 2, &[]),
        Say::new(Opcode::RcSendFirst, d.peer_psn(3)).payload(&[3; 256]),
    ]);
    let mut expected = vec![(11, WcStatus::Success)];
    expected.extend((12..16).map(|wr_id| (wr_id, WcStatus::WrFlushErr)));
    assert_eq!(statuses(&d.received()), expected);
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    d.expect_silence();
}

/// It is the program's all the same: without a completion its slot would never be free.
#[test]
fn a_receive_that_is_invalid_is_flushed_when_a_fault_of_the_burst_is_before_it() {
    let mut d = dialogue();
    protect(&mut d, PAGE, PageAccess::Hole);
    let qp = d.nic.qp;
    d.world.host(0).post_invalid_recv(qp, 1);
    d.say_all(&[write_only(&d, 0, PAGE, &[1; 8]), send_only(&d, 1, &[2; 8])]);
    d.expect_aeth(d.peer_psn(0), OPERATIONAL, 0);
    assert_eq!(statuses(&d.received()), [(1, WcStatus::WrFlushErr)]);
}

#[test]
fn a_receive_that_a_write_into_missing_memory_took_fails_with_a_local_access_error() {
    let mut d = dialogue();
    protect(&mut d, PAGE, PageAccess::Hole);
    for wr_id in 1..4 {
        d.recv(wr_id, &[]);
    }
    let with_imm = |say: Say| {
        say.with(|h| (h.bth.opcode, h.imm) = (Opcode::RcWriteOnlyImm, Some(ImmDt([7; 4]))))
    };
    d.say_all(&[
        with_imm(write_only(&d, 0, 0, &[1; 8])),
        with_imm(write_only(&d, 1, PAGE, &[1; 8])),
        with_imm(write_only(&d, 2, 0, &[1; 8])),
    ]);
    d.expect_aeth(d.peer_psn(1), OPERATIONAL, 1);
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocAccessErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
    assert_eq!(d.events(), [], "the completion says it");
}

#[test]
fn a_fault_of_one_qp_does_not_touch_another() {
    let mut pair = Pair::new(1, small_mtu());
    let (a, b) = (pair.a, pair.b);
    let [c, d] = [0, 1].map(|host| End::new(&mut pair.world, host, |_| {}));
    pair.world.connect((0, c.qp), (1, d.qp), &small_mtu());
    let hole = b.mr.addr + PAGE;
    pair.world.host(1).memory.protect(SPACE, hole, 1, PageAccess::Hole);
    let data = pair.fill(c, 0, 3000, 1);
    for _ in 0..3 {
        pair.post(a, &SendWr::write(1, &[a.mr.sge(0, 3000)], b.mr.remote(PAGE - 700)));
        pair.post(c, &SendWr::write(2, &[c.mr.sge(0, 3000)], d.mr.remote(PAGE - 700)));
    }
    assert_eq!(pair.sent(a).status, WcStatus::RemOpErr);
    for _ in 0..3 {
        assert_eq!(pair.sent(c).status, WcStatus::Success);
    }
    assert_eq!(pair.memory(d, PAGE - 700, 3000), data);
}

/// The witness of `memory` fails the world when the order is not asked for.
#[test]
fn the_end_of_every_write_of_a_burst_is_stored_last() {
    let mut d = dialogue();
    let addr = d.nic.mr.addr;
    for end in [8, 16, 600] {
        d.world.host(0).memory.poll_last_byte(SPACE, addr + end);
    }
    d.say_all(&[
        write_only(&d, 0, 0, &[1; 8]),
        write_only(&d, 1, 8, &[2; 8]),
        request(&d, Opcode::RcWriteFirst, 2, (300, 300)).payload(&[3; 256]),
        Say::new(Opcode::RcWriteLast, d.peer_psn(3)).payload(&[3; 44]),
        write_only(&d, 4, 1000, &[4; 8]),
    ]);
    d.expect_aeth(d.peer_psn(4), ACK, 4);
    assert_eq!(d.memory(0, 16), [[1; 8], [2; 8]].concat());
    assert_eq!(d.memory(300, 300), [3; 300]);
}

/// What leaves before a request that cannot be read is complete, whatever is wrong with that one.
#[test]
fn a_key_that_vanishes_takes_nothing_from_what_leaves_before_it() {
    let mut d = dialogue();
    let pd = d.nic.pd;
    let other = d.world.host(0).new_mr(pd, PAGE, full_access());
    let data = d.fill(0, 600, 1);
    let lost = SendWr::send(2, &[other.sge(0, 200)]);
    d.post_all(&[send(&d, 1, 600), lost]);
    assert_eq!(d.hear_burst().len(), 4);
    d.world.host(0).dereg_mr(&other);
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
    let again: Vec<u8> = d.hear_burst().into_iter().flat_map(|heard| heard.payload).collect();
    assert_eq!(again, data);
    d.say(&Say::ack(d.our_psn(2), 1));
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]);
}

#[test]
fn a_hole_under_a_read_response_is_refused() {
    let mut d = dialogue();
    protect(&mut d, PAGE, PageAccess::Hole);
    d.say(&read_request(&d, 0, PAGE - 512, 1024));
    let burst = d.hear_burst();
    let last = burst.last().unwrap();
    assert_eq!((last.opcode(), last.psn()), (Opcode::RcAck, d.peer_psn(2)));
    assert_eq!(last.aeth().0, OPERATIONAL);
    assert_eq!(burst.len(), 3, "the two packets before it are sent");
    assert_eq!(d.state(), QpState::Err);
}

#[test]
fn a_hole_under_an_atomic_is_refused() {
    let mut d = dialogue();
    protect(&mut d, PAGE, PageAccess::ReadOnly);
    d.say_all(&[
        write_only(&d, 0, 0, &[3; 8]),
        request(&d, Opcode::RcFetchAdd, 1, (PAGE, 8)),
        write_only(&d, 2, 8, &[4; 8]),
    ]);
    d.expect_aeth(d.peer_psn(1), OPERATIONAL, 1);
    assert_eq!((d.memory(0, 8), d.memory(8, 8)), (vec![3; 8], vec![0; 8]));
    assert_eq!(d.state(), QpState::Err);
}

#[test]
fn a_message_longer_than_the_limit_is_a_local_length_error() {
    let mut d = dialogue();
    let sges = vec![d.nic.mr.sge(0, 1 << 30); 3];
    d.post(&SendWr::send(1, &sges));
    let status = d.sent()[0].status;
    assert!(matches!(status, WcStatus::LocLenErr | WcStatus::LocProtErr), "{status:?}");
    assert_ne!(d.state(), QpState::Rts);
}

#[test]
fn refusals_do_not_depend_on_ackreq() {
    let mut d = dialogue();
    let say = Say::new(Opcode::RcSendLast, d.peer_psn(0)).payload(&[1; 8]);
    d.say(&say);
    d.expect_aeth(d.peer_psn(0), INVALID, 0);
    assert_eq!(statuses(&d.received()), ok([]));
}
