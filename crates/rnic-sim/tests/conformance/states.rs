//! Queue pair states: what runs, what is held, what is flushed, in which order.

use crate::{
    ACCESS, ACK, OPERATIONAL, dialogue, fetch_add, ok, read, read_request, request, send,
    send_only, small_mtu, statuses, write_only,
};
use rnic_abi::verbs::{AsyncEventType, AttrMask, QpAttr, QpState, WcStatus};
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN, Say};
use rnic_sim::pair::End;
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::Connection;
use roce_wire::{NakCode, Opcode, Position};

fn flushed(wr_ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    wr_ids.into_iter().map(|wr_id| (wr_id, WcStatus::WrFlushErr)).collect()
}

fn set_state(d: &mut Dialogue, state: QpState) {
    let qp = d.nic.qp;
    d.world.host(0).set_state(qp, state);
}

#[test]
fn err_flushes_both_queues_in_order_even_unsignaled_requests() {
    let mut d = dialogue();
    d.post_all(&[
        send(&d, 1, 10),
        read(&d, 2, 0, 16).unsignaled(),
        fetch_add(&d, 3, 0),
        send(&d, 4, 600).unsignaled(),
    ]);
    for wr_id in 11..14 {
        d.recv(wr_id, &[d.nic.mr.sge(0, 100)]);
    }
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    set_state(&mut d, QpState::Err);
    assert_eq!(statuses(&d.sent()), flushed(2..5));
    assert_eq!(statuses(&d.received()), flushed(11..14));
    d.expect_silence_for(1_000_000_000);
}

#[test]
fn what_is_posted_in_err_is_flushed_and_the_marker_is_last() {
    let mut d = dialogue();
    set_state(&mut d, QpState::Err);
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    d.recv(11, &[]);
    assert_eq!(statuses(&d.sent()), flushed([1, 2]));
    assert_eq!(statuses(&d.received()), flushed([11]));
    d.post(&send(&d, 3, 10));
    d.recv(12, &[]);
    assert_eq!(statuses(&d.sent()), flushed([3]));
    assert_eq!(statuses(&d.received()), flushed([12]));
}

/// The peer's mistake ends the queue pair while both queues are empty: no completion says so.
#[test]
fn a_receive_posted_after_an_error_that_nothing_told_of_is_flushed() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]).with(|h| h.reth.as_mut().unwrap().rkey.0 ^= 1));
    d.expect_aeth(d.peer_psn(0), ACCESS, 0);
    for wr_id in 11..14 {
        d.recv(wr_id, &[]);
        assert_eq!(statuses(&d.received()), flushed([wr_id]));
    }
    // After RESET receives are published without a doorbell again.
    set_state(&mut d, QpState::Reset);
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
    let doorbells = d.world.hosts()[0].engine.counters().doorbells;
    d.recv(14, &[]);
    d.say(&send_only(&d, 0, &[]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    assert_eq!(statuses(&d.received()), ok([14]));
    assert_eq!(d.world.hosts()[0].engine.counters().doorbells, doorbells);
}

#[test]
fn a_receive_in_use_is_flushed_first() {
    let mut d = dialogue();
    d.recv(1, &[d.nic.mr.sge(0, 1000)]);
    d.recv(2, &[d.nic.mr.sge(0, 1000)]);
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&[1; 256]));
    d.expect_silence();
    set_state(&mut d, QpState::Err);
    assert_eq!(statuses(&d.received()), flushed([1, 2]));
}

#[test]
fn long_queues_are_flushed_completely() {
    let mut d = dialogue();
    for wr_id in 0..64 {
        d.recv(wr_id, &[]);
    }
    let sends: Vec<_> = (100..164).map(|wr_id| send(&d, wr_id, 1000)).collect();
    d.post_all(&sends);
    d.hear();
    set_state(&mut d, QpState::Err);
    assert_eq!(statuses(&d.sent()), flushed(100..164));
    assert_eq!(statuses(&d.received()), flushed(0..64));
}

#[test]
fn packets_in_err_are_dropped_silently() {
    let mut d = dialogue();
    set_state(&mut d, QpState::Err);
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.say(&Say::ack(d.our_psn(0), 1));
    d.expect_silence();
    assert_eq!(d.memory(0, 8), [0; 8]);
    assert_eq!(d.world.hosts()[0].engine.counters().rx_bad_state, 2);
}

#[test]
fn init_receives_nothing_but_takes_receives() {
    let mut d = Dialogue::in_reset(small_mtu(), PortConfig::frames(), |_| {});
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).to_init(qp, &connection);
    d.recv(1, &[d.nic.mr.sge(0, 8)]);
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_silence();
    d.world.host(0).to_rtr(qp, &connection, PEER, PEER_QPN);
    assert_eq!(d.events(), []);
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    assert_eq!(statuses(&d.received()), ok([1]));
    assert_eq!(d.events(), [AsyncEventType::CommEst]);
    d.say(&write_only(&d, 1, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    assert_eq!(d.events(), [], "once");
}

#[test]
fn a_packet_that_is_refused_or_dropped_establishes_nothing() {
    let mut d = Dialogue::in_reset(small_mtu(), PortConfig::frames(), |_| {});
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).to_init(qp, &connection);
    d.world.host(0).to_rtr(qp, &connection, PEER, PEER_QPN);
    d.say(&write_only(&d, 0, 0, &[1; 8]).with(|h| h.bth.pkey.0 = 0x8001));
    d.expect_silence();
    assert_eq!(d.events(), []);
}

#[test]
fn rtr_answers_but_does_not_send() {
    let mut d = Dialogue::in_reset(small_mtu(), PortConfig::frames(), |_| {});
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).to_init(qp, &connection);
    d.world.host(0).to_rtr(qp, &connection, PEER, PEER_QPN);
    d.post(&send(&d, 1, 10));
    d.expect_silence();
    d.world.host(0).to_rts(qp, &connection);
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
}

#[test]
fn sqd_finishes_what_was_started_and_holds_the_rest() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 600), read(&d, 2, 0, 16)]);
    assert_eq!(d.hear_burst().len(), 4);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let qp = d.nic.qp;
    d.world.host(0).modify(qp, mask, attr, None).unwrap();
    d.post(&send(&d, 3, 10));
    d.expect_silence();
    assert!(d.world.host(0).query_qp(qp).sq_draining);
    assert_eq!(d.events(), []);
    // The responder stays alive, and what is in flight is sent again when it is lost.
    d.say(&write_only(&d, 0, 64, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    d.expect(Opcode::RcSendFirst, d.our_psn(0));
    d.hear_burst();
    d.say(&Say::new(Opcode::RcReadRespOnly, d.our_psn(3)).syndrome(ACK, 2).payload(&[1; 16]));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
    assert_eq!(d.events(), [AsyncEventType::SqDrained]);
    assert!(!d.world.host(0).query_qp(qp).sq_draining);
    d.expect_silence();
    set_state(&mut d, QpState::Rts);
    d.expect(Opcode::RcSendOnly, d.our_psn(4));
    d.say(&Say::ack(d.our_psn(4), 3));
    assert_eq!(statuses(&d.sent()), ok([3]));
}

/// To SQD, with SQ_DRAINED asked for.
fn drain(d: &mut Dialogue) {
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let qp = d.nic.qp;
    d.world.host(0).modify(qp, mask, attr, None).unwrap();
}

#[test]
fn a_queue_is_not_drained_between_the_pieces_of_a_read() {
    let mut d = Dialogue::new(Connection { max_rd_atomic: 1, ..small_mtu() });
    d.post(&read(&d, 1, 0, 512 * 1024));
    let mut answered = 0;
    for piece in [256 * 1024, 256 * 1024] {
        let request = d.expect(Opcode::RcReadRequest, d.our_psn(answered));
        assert_eq!(request.headers.reth.unwrap().dma_len, piece);
        if answered == 0 {
            drain(&mut d);
        }
        assert_eq!(d.events(), []);
        let packets = piece / 256;
        for k in 0..packets {
            let opcode = Opcode::rc_read_response(Position::new(k == 0, k + 1 == packets));
            d.say(&Say::new(opcode, d.our_psn(answered + k)).payload(&[7; 256]));
        }
        answered += packets;
    }
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.events(), [AsyncEventType::SqDrained]);
}

#[test]
fn a_queue_is_not_drained_in_the_middle_of_a_message() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 1_000_000));
    let mut events = Vec::new();
    while let Some(last) = d.hear_burst().last() {
        if events.is_empty() {
            drain(&mut d);
        }
        events.push(d.events());
        // All that was sent is acknowledged: for a moment nothing is outstanding.
        d.say(&Say::ack(last.psn(), 0));
    }
    assert!(events.len() > 1 && events.iter().all(Vec::is_empty), "{events:?}");
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.events(), [AsyncEventType::SqDrained]);
}

/// The numbers of retries are those of a connection first, and others after the queue was drained.
/// A send that is refused then is sent again, or fails.
fn retries_change(
    first: Connection,
    (mask, then): (AttrMask, QpAttr),
    refusal: fn(&Dialogue) -> Say,
    fails: Option<WcStatus>,
) {
    let mut d = Dialogue::new(first);
    drain(&mut d);
    let (qp, attr) = (d.nic.qp, QpAttr { state: QpState::Sqd, ..then });
    d.world.host(0).modify(qp, AttrMask::STATE | mask, attr, None).unwrap();
    set_state(&mut d, QpState::Rts);
    d.post(&send(&d, 1, 10));
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
    d.say(&refusal(&d));
    if let Some(status) = fails {
        assert_eq!(statuses(&d.sent()), [(1, status)]);
        return;
    }
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn retries_that_are_changed_while_nothing_is_sent_count_at_once() {
    for (before, after) in [(0, 7), (7, 0)] {
        let fails = |status| (after == 0).then_some(status);
        let first = Connection { rnr_retry: before, ..small_mtu() };
        let then = (AttrMask::RNR_RETRY, QpAttr { rnr_retry: after, ..QpAttr::default() });
        let refusal = |d: &Dialogue| Say::rnr_nak(1, d.our_psn(0), 0);
        retries_change(first, then, refusal, fails(WcStatus::RnrRetryExcErr));
        let first = Connection { retry_cnt: before, ..small_mtu() };
        let then = (AttrMask::RETRY_CNT, QpAttr { retry_cnt: after, ..QpAttr::default() });
        let refusal = |d: &Dialogue| Say::nak(NakCode::PsnSequence, d.our_psn(0), 0);
        retries_change(first, then, refusal, fails(WcStatus::RetryExcErr));
    }
}

#[test]
fn reads_whose_resources_are_taken_away_fail() {
    let mut d = Dialogue::new(Connection { max_rd_atomic: 1, ..small_mtu() });
    d.post_all(&[read(&d, 1, 0, 16), read(&d, 2, 0, 16), send(&d, 3, 10)]);
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    drain(&mut d);
    let qp = d.nic.qp;
    let attr = QpAttr { state: QpState::Sqd, max_rd_atomic: 0, ..QpAttr::default() };
    d.world.host(0).modify(qp, AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC, attr, None).unwrap();
    // What was started goes on, also when it is lost.
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    d.say(&Say::new(Opcode::RcReadRespOnly, d.our_psn(0)).syndrome(ACK, 1).payload(&[1; 16]));
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.events(), [AsyncEventType::SqDrained], "what changes meanwhile keeps it");
    set_state(&mut d, QpState::Rts);
    let expected = [(2, WcStatus::LocQpOpErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
    assert_eq!(d.state(), QpState::Err);
}

#[test]
fn an_idle_queue_is_drained_at_once() {
    let mut d = dialogue();
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let qp = d.nic.qp;
    d.world.host(0).modify(qp, mask, attr, None).unwrap();
    assert_eq!(d.events(), [AsyncEventType::SqDrained]);
    set_state(&mut d, QpState::Rts);
    set_state(&mut d, QpState::Sqd);
    assert_eq!(d.events(), [], "only when it was asked for");
}

#[test]
fn reset_empties_both_queues_without_completions_and_starts_over() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), read(&d, 2, 0, 16)]);
    d.recv(11, &[]);
    d.hear_burst();
    set_state(&mut d, QpState::Reset);
    d.expect_silence_for(1_000_000_000);
    assert_eq!((d.sent(), d.received()), (vec![], vec![]));
    let connection = Connection { sq_psn: 5, rq_psn: 6, ..small_mtu() };
    d.connection = connection;
    let qp = d.nic.qp;
    d.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
    d.recv(12, &[d.nic.mr.sge(0, 8)]);
    d.post(&send(&d, 3, 10));
    d.expect(Opcode::RcSendOnly, 5);
    d.say(&Say::ack(5, 1));
    assert_eq!(statuses(&d.sent()), ok([3]));
    d.say(&send_only(&d, 0, &[4; 8]));
    d.expect_aeth(6, ACK, 1);
    assert_eq!(statuses(&d.received()), ok([12]));
}

#[test]
fn a_destroyed_qp_is_silent_and_its_number_means_nothing() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 10));
    d.hear_burst();
    let (qp, psn) = (d.nic.qp, d.our_psn(0));
    d.world.host(0).destroy_qp(qp);
    d.say(&Say::ack(psn, 1));
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_silence_for(1_000_000_000);
    assert_eq!(d.world.hosts()[0].engine.counters().rx_no_qp, 2);
    assert_eq!(d.memory(0, 8), [0; 8]);
}

#[test]
fn an_overflowing_cq_breaks_and_takes_its_qps_along() {
    let mut d = dialogue();
    let host = d.world.host(0);
    let small = host.create_cq(4);
    let [end, idle] =
        [0, 0].map(|host| End::new(&mut d.world, host, |setup| setup.recv_cq = small));
    let connection = small_mtu();
    for qp in [end.qp, idle.qp] {
        d.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
    }
    d.nic = end;
    for wr_id in 0..6 {
        d.recv(wr_id, &[]);
    }
    let burst: Vec<Say> = (0..6).map(|k| send_only(&d, k, &[])).collect();
    d.say_all(&burst);
    d.expect_aeth(d.peer_psn(4), OPERATIONAL, 4);
    d.expect_silence();
    let cq = d.world.hosts()[0].cq_handle(small);
    let qps = [end.qp, idle.qp].map(|qp| d.world.hosts()[0].qp_handle(qp));
    let events = d.world.host(0).take_async_events();
    let told: Vec<_> = events.iter().map(|told| (told.event, told.element)).collect();
    let fatal = qps.map(|qp| (AsyncEventType::QpFatal, qp));
    assert_eq!(told, [(AsyncEventType::CqErr, cq), fatal[0], fatal[1]]);
    assert_eq!(d.state(), QpState::Err);
    assert_eq!(d.world.host(0).state(idle.qp), QpState::Err);
    assert_eq!(statuses(&d.world.host(0).drain(small)), ok(0..4));
}

/// What the peer acknowledged in the burst that overflows the CQ was executed.
#[test]
fn an_overflow_takes_no_acknowledged_request_along() {
    let mut d = dialogue();
    let small = d.world.host(0).create_cq(1);
    d.nic = End::new(&mut d.world, 0, |setup| setup.recv_cq = small);
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
    for wr_id in 0..3 {
        d.recv(wr_id, &[]);
    }
    d.post_all(&[send(&d, 11, 10), read(&d, 12, 0, 16)]);
    d.hear_burst();
    d.say_all(&[
        Say::ack(d.our_psn(0), 1),
        read_request(&d, 0, 0, 16),
        send_only(&d, 1, &[]),
        send_only(&d, 2, &[]),
        read_request(&d, 3, 0, 16),
    ]);
    // Answers of what is before the lost message leave, those behind it do not.
    d.expect(Opcode::RcReadRespOnly, d.peer_psn(0));
    d.expect_aeth(d.peer_psn(2), OPERATIONAL, 2);
    d.expect_silence();
    assert_eq!(statuses(&d.sent()), [(11, WcStatus::Success), (12, WcStatus::WrFlushErr)]);
}

#[test]
fn sends_that_complete_into_a_full_cq_break_it_too() {
    let mut d = dialogue();
    let small = d.world.host(0).create_cq(4);
    d.nic = End::new(&mut d.world, 0, |setup| setup.send_cq = small);
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
    let sends: Vec<_> = (0..6).map(|wr_id| send(&d, wr_id, 10)).collect();
    d.post_all(&sends);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(5), 6));
    assert_eq!(statuses(&d.sent()), ok(0..4));
    assert_eq!(d.state(), QpState::Err);
    let told: Vec<_> = d.world.host(0).take_async_events().iter().map(|told| told.event).collect();
    assert_eq!(told, [AsyncEventType::CqErr, AsyncEventType::QpFatal]);
}

#[test]
fn requests_that_can_never_run_fail() {
    let mut d = Dialogue::new(Connection { max_rd_atomic: 0, ..small_mtu() });
    d.post_all(&[read(&d, 1, 0, 16), send(&d, 2, 10)]);
    let expected = [(1, WcStatus::LocQpOpErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

#[test]
fn a_send_queue_beyond_repair_takes_the_replies_along() {
    for opcode in [Opcode::RcFetchAdd, Opcode::RcReadRequest] {
        let mut d = dialogue();
        let qp = d.nic.qp;
        d.world.host(0).break_sends(qp);
        // The engine looks at the queue when it comes by to answer.
        d.say(&request(&d, opcode, 0, (0, 8)));
        d.expect_silence();
        assert_eq!(d.state(), QpState::Err);
        assert_eq!(d.events().last(), Some(&AsyncEventType::QpFatal));
    }
}
