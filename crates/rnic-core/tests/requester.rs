//! The requester half as a dialogue: the engine sends, a hand-written peer answers.

mod common;

use common::requester::{
    ACK, Dialogue, FIRST_PSN, MTU, NAK_SEQUENCE, PEER, PEER_QPN, RNR, TIMEOUT, relative,
};
use common::{BASE, Node, Options, START, attrs, pattern, send_control};
use rnic_abi::verbs::{AsyncEventType, AttrMask, QpAttr, QpState, SendFlags, WcStatus, WrOpcode};
use rnic_abi::wqe::Sge;
use roce_wire::{Flow, Opcode};

use Opcode::{RcReadRequest, RcSendOnly, RcWriteFirst, RcWriteLast, RcWriteMiddle, RcWriteOnly};
use WcStatus::{Success, WrFlushErr};

#[test]
fn headers_of_a_segmented_write() {
    let mut d = Dialogue::new();
    d.node.memory(0x1000, 2 * MTU + 5).copy_from_slice(&pattern(1, 2 * MTU + 5));
    d.post(WrOpcode::Write, 1, 2 * MTU + 5);
    let packets = d.sent_packets();
    let shape: Vec<_> = packets.iter().map(|p| (p.opcode(), relative(p))).collect();
    assert_eq!(shape, [(RcWriteFirst, 0), (RcWriteMiddle, 1), (RcWriteLast, 2)]);
    let reth = packets[0].view().reth().unwrap();
    assert_eq!((reth.va, reth.rkey.0, reth.dma_len), (BASE, 0x1234_5678, 2 * MTU as u32 + 5));
    assert!(!packets[0].view().bth().ack_req || relative(&packets[0]) == 2);
    assert!(packets[2].view().bth().ack_req);
    assert_eq!(packets[2].view().pad_bytes(), [0; 3]);
    let payload: Vec<u8> =
        packets.iter().flat_map(|packet| packet.view().payload().to_vec()).collect();
    assert!(payload == pattern(1, 2 * MTU + 5));
    assert_eq!(d.node.dma.reads, 1);
}

#[test]
fn one_ack_completes_several_requests_in_order_and_unsignaled_ones_silently() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    d.post_flags(WrOpcode::Write, 2, 4, SendFlags::empty());
    d.post(WrOpcode::Send, 3, 4);
    assert_eq!(d.sent(), [(RcWriteOnly, 0), (RcWriteOnly, 1), (RcSendOnly, 2)]);
    d.ack(2, ACK);
    assert_eq!(d.statuses(), [(1, Success), (3, Success)]);
    assert_eq!(d.node.sq.in_use(), 0);
}

#[test]
fn an_ack_in_the_middle_of_a_message_completes_nothing() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 3 * MTU);
    d.sent();
    d.ack(1, ACK);
    assert_eq!(d.statuses(), []);
    // Going back starts behind what was acknowledged.
    d.wait(4 * TIMEOUT);
    assert_eq!(d.sent(), [(RcWriteLast, 2)]);
    d.ack(2, ACK);
    assert_eq!(d.statuses(), [(1, Success)]);
}

#[test]
fn answers_outside_the_window_mean_nothing() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    d.sent();
    d.ack(1, ACK);
    d.ack(-1, ACK);
    d.ack(0, 0x45);
    assert_eq!(d.statuses(), []);
    assert_eq!(d.node.engine.counters().rx_ghost_response, 3);
}

#[test]
fn a_sequence_nak_acknowledges_what_is_before_it_and_resends_the_rest() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    d.post(WrOpcode::Write, 2, 2 * MTU);
    d.sent();
    d.ack(2, NAK_SEQUENCE);
    assert_eq!(d.sent(), [(RcWriteLast, 2)]);
    d.ack(2, ACK);
    assert_eq!(d.statuses(), [(1, Success), (2, Success)]);
}

#[test]
fn the_timeout_fires_between_one_and_four_times_its_value() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    d.sent();
    d.wait(TIMEOUT - 1);
    assert_eq!(d.sent(), []);
    d.wait(3 * TIMEOUT);
    assert_eq!(d.sent(), [(RcWriteOnly, 0)]);
    d.ack(0, ACK);
    assert_eq!(d.statuses(), [(1, Success)]);
    d.wait(100 * TIMEOUT);
    assert_eq!(d.sent(), []);
}

#[test]
fn seven_retries_are_seven() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    d.post(WrOpcode::Write, 2, 4);
    d.sent();
    for retry in 0..7 {
        d.wait(4 * TIMEOUT);
        assert_eq!(d.sent(), [(RcWriteOnly, 0), (RcWriteOnly, 1)], "retry {retry}");
    }
    d.wait(4 * TIMEOUT);
    assert_eq!(d.sent(), []);
    assert_eq!(d.statuses(), [(1, WcStatus::RetryExcErr), (2, WrFlushErr)]);
    assert_eq!(d.node.state(), QpState::Err);
    assert_eq!(d.async_events(), []);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut d = Dialogue::with(QpAttr { retry_cnt: 1, ..attrs() });
    d.post(WrOpcode::Write, 1, 8 * MTU);
    d.sent();
    for nth in 0..7 {
        d.wait(4 * TIMEOUT);
        assert_eq!(d.sent().len(), 8 - nth as usize);
        d.ack(nth, ACK);
        assert_eq!(d.statuses(), []);
    }
    d.ack(7, ACK);
    assert_eq!(d.statuses(), [(1, Success)]);
}

#[test]
fn an_rnr_nak_waits_its_time_and_blocks_new_requests() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    d.post(WrOpcode::Send, 2, 4);
    d.sent();
    // Code 14 is 1.28 ms.
    d.ack(1, RNR | 14);
    assert_eq!(d.statuses(), [(1, Success)]);
    d.post(WrOpcode::Write, 3, 4);
    // What some peers send behind it does not end the wait.
    d.ack(1, NAK_SEQUENCE);
    d.wait(1_279_999);
    assert_eq!(d.sent(), []);
    d.wait(20_000);
    assert_eq!(d.sent(), [(RcSendOnly, 1), (RcWriteOnly, 2)]);
    d.ack(2, ACK);
    assert_eq!(d.statuses(), [(2, Success), (3, Success)]);
}

#[test]
fn the_sequence_nak_behind_an_rnr_nak_costs_no_retry_when_it_is_late() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Send, 1, 3 * MTU);
    d.sent();
    for _ in 0..20 {
        // Code 1 is 10 us: what follows the RNR NAK comes when the wait is over.
        d.ack(0, RNR | 1);
        assert_eq!(d.sent(), []);
        d.wait(20_000);
        assert_eq!(d.sent().len(), 3);
        // It may as well be about a packet that was sent since then and lost.
        d.ack(0, NAK_SEQUENCE);
        assert_eq!(d.sent().len(), 3);
    }
    // The next one is a loss.
    d.ack(1, NAK_SEQUENCE);
    assert_eq!(d.sent().len(), 2);
    d.ack(2, ACK);
    assert_eq!(d.statuses(), [(1, Success)]);
}

#[test]
fn rnr_retries_are_counted_and_seven_is_for_ever() {
    for (rnr_retry, allowed) in [(0, 0), (2, 2), (7, 20)] {
        let mut d = Dialogue::with(QpAttr { rnr_retry, ..attrs() });
        d.post(WrOpcode::Send, 1, 4);
        for _ in 0..allowed {
            assert_eq!(d.sent(), [(RcSendOnly, 0)]);
            d.ack(0, RNR | 1);
            assert_eq!(d.sent(), []);
            d.wait(30_000);
        }
        assert_eq!(d.sent(), [(RcSendOnly, 0)]);
        if rnr_retry < 7 {
            d.ack(0, RNR | 1);
            assert_eq!(d.statuses(), [(1, WcStatus::RnrRetryExcErr)]);
        }
    }
}

#[test]
fn fatal_naks_complete_the_request_they_name() {
    let cases = [
        (0x61, WcStatus::RemInvReqErr),
        (0x62, WcStatus::RemAccessErr),
        (0x63, WcStatus::RemOpErr),
    ];
    for (syndrome, status) in cases {
        let mut d = Dialogue::new();
        for wr_id in 1..4 {
            d.post_flags(WrOpcode::Write, wr_id, 4, SendFlags::empty());
        }
        d.sent();
        d.ack(1, syndrome);
        assert_eq!(d.statuses(), [(2, status), (3, WrFlushErr)]);
        assert_eq!(d.node.state(), QpState::Err);
        d.post(WrOpcode::Send, 5, 4);
        d.node.post_recv(6, &[]);
        assert_eq!(d.statuses(), [(5, WrFlushErr), (6, WrFlushErr)]);
    }
}

#[test]
fn a_read_that_lost_a_response_restarts_in_the_middle() {
    let mut d = Dialogue::new();
    let data = pattern(4, 3 * MTU);
    d.post(WrOpcode::Read, 1, 3 * MTU);
    d.post(WrOpcode::Write, 2, 4);
    assert_eq!(d.sent(), [(RcReadRequest, 0), (RcWriteOnly, 3)]);
    d.put(Opcode::RcReadRespFirst, 0, Some(ACK), &data[..MTU]);
    d.put(Opcode::RcReadRespLast, 2, Some(ACK), &data[2 * MTU..]);
    // The WRITE's acknowledgement says the same once more, which must not count twice.
    d.ack(3, ACK);
    let again = d.sent_packets();
    assert_eq!(again.len(), 2);
    let reth = again[0].view().reth().unwrap();
    assert_eq!((relative(&again[0]), reth.va, reth.dma_len), (1, BASE + 1024, 2 * MTU as u32));
    assert_eq!(d.node.engine.counters().implied_nak_seq_err, 1);
    d.put(Opcode::RcReadRespFirst, 1, Some(ACK), &data[MTU..2 * MTU]);
    d.put(Opcode::RcReadRespLast, 2, Some(ACK), &data[2 * MTU..]);
    d.ack(3, ACK);
    assert_eq!(d.statuses(), [(1, Success), (2, Success)]);
    assert!(d.node.memory(0x1000, 3 * MTU) == data);
}

#[test]
fn wrong_responses_fail_the_read() {
    type Put = fn(&mut Dialogue);
    let cases: [(Put, WcStatus); 5] = [
        (|d| d.put(Opcode::RcReadRespMiddle, 0, None, &[0; MTU]), WcStatus::BadRespErr),
        (|d| d.put(Opcode::RcReadRespOnly, 0, Some(ACK), &[0; MTU]), WcStatus::BadRespErr),
        (|d| d.put(Opcode::RcAtomicAck, 0, Some(ACK), &[]), WcStatus::BadRespErr),
        (|d| d.put(Opcode::RcReadRespFirst, 0, Some(ACK), &[0; 100]), WcStatus::LocLenErr),
        (
            |d| {
                d.put(Opcode::RcReadRespFirst, 0, Some(ACK), &[0; MTU]);
                d.put(Opcode::RcReadRespLast, 1, Some(ACK), &[0; 5]);
            },
            WcStatus::LocLenErr,
        ),
    ];
    for (i, (put, status)) in cases.into_iter().enumerate() {
        let mut d = Dialogue::new();
        d.post(WrOpcode::Read, 1, MTU + 4);
        d.sent();
        put(&mut d);
        assert_eq!(d.statuses(), [(1, status)], "case {i}");
    }
}

#[test]
fn reads_wait_for_resources_and_fences_for_reads() {
    let mut d = Dialogue::with(QpAttr { max_rd_atomic: 2, ..attrs() });
    for wr_id in 1..4 {
        d.post(WrOpcode::Read, wr_id, 8);
    }
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    d.post_flags(WrOpcode::Write, 4, 8, fenced);
    d.post(WrOpcode::Write, 5, 8);
    assert_eq!(d.sent(), [(RcReadRequest, 0), (RcReadRequest, 1)]);
    d.put(Opcode::RcReadRespOnly, 0, Some(ACK), &[1; 8]);
    assert_eq!(d.sent(), [(RcReadRequest, 2)]);
    d.put(Opcode::RcReadRespOnly, 1, Some(ACK), &[2; 8]);
    assert_eq!(d.sent(), []);
    d.put(Opcode::RcReadRespOnly, 2, Some(ACK), &[3; 8]);
    assert_eq!(d.sent(), [(RcWriteOnly, 3), (RcWriteOnly, 4)]);
}

#[test]
fn a_bad_key_fails_its_request_after_the_earlier_ones_are_complete() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    let bad = Sge { lkey: d.node.key ^ 0x100, ..d.node.sge(0, 4) };
    d.node.post_send(send_control(WrOpcode::Write, 2), &[bad]);
    d.post(WrOpcode::Write, 3, 4);
    assert_eq!(d.sent(), [(RcWriteOnly, 0)]);
    assert_eq!(d.statuses(), []);
    d.ack(0, ACK);
    assert_eq!(d.statuses(), [(1, Success), (2, WcStatus::LocProtErr), (3, WrFlushErr)]);
}

#[test]
fn unreadable_memory_leaves_no_packet_behind() {
    let mut d = Dialogue::new();
    d.node.dma.unmapped = BASE + 0x2000 + 3 * MTU as u64..BASE + 0x2000 + 4 * MTU as u64;
    d.post(WrOpcode::Write, 1, 4);
    d.post(WrOpcode::Write, 2, 8 * MTU);
    let sent = d.sent();
    // Whole trains before the fault may have left, nothing of the unreadable one.
    assert!(sent.iter().all(|(_, nth)| *nth < 1 + 3), "{sent:?}");
    d.ack(0, ACK);
    assert_eq!(d.statuses(), [(1, Success), (2, WcStatus::LocProtErr)]);
    assert_eq!(d.node.state(), QpState::Err);
}

#[test]
fn malformed_requests_are_operation_errors() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::BindMw, 1, 4);
    assert_eq!(d.statuses(), [(1, WcStatus::LocQpOpErr)]);
    let mut d = Dialogue::new();
    let five: Vec<Sge> = (0..5).map(|_| d.node.sge(0, 1)).collect();
    d.node.post_send(send_control(WrOpcode::Send, 2), &five);
    assert_eq!(d.statuses(), [(2, WcStatus::LocQpOpErr)]);
    let mut d = Dialogue::with(QpAttr { max_rd_atomic: 0, ..attrs() });
    d.post(WrOpcode::Read, 3, 4);
    assert_eq!(d.statuses(), [(3, WcStatus::LocQpOpErr)]);
    let mut d = Dialogue::new();
    d.post(WrOpcode::FetchAdd, 4, 4);
    assert_eq!(d.statuses(), [(4, WcStatus::LocLenErr)]);
}

#[test]
fn sqd_finishes_what_was_started_and_tells_when_it_has() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 4);
    d.sent();
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    d.node.modify(d.now, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY, attr, None);
    d.post(WrOpcode::Write, 2, 4);
    assert_eq!(d.sent(), []);
    assert!(d.node.engine.qp(d.node.qp).unwrap().attr.sq_draining);
    d.ack(0, ACK);
    assert_eq!(d.statuses(), [(1, Success)]);
    assert_eq!(d.async_events(), [AsyncEventType::SqDrained]);
    assert!(!d.node.engine.qp(d.node.qp).unwrap().attr.sq_draining);
    assert_eq!(d.sent(), []);
    d.node.change_state(d.now, QpState::Rts);
    assert_eq!(d.sent(), [(RcWriteOnly, 1)]);
}

#[test]
fn err_flushes_everything_and_reset_forgets_everything() {
    let mut d = Dialogue::new();
    for wr_id in 1..4 {
        d.post_flags(WrOpcode::Write, wr_id, 4, SendFlags::empty());
    }
    d.node.post_recv(9, &[]);
    d.sent();
    d.node.change_state(d.now, QpState::Err);
    let flushed = [(1, WrFlushErr), (2, WrFlushErr), (3, WrFlushErr), (9, WrFlushErr)];
    assert_eq!(d.statuses(), flushed);
    d.wait(100 * TIMEOUT);
    assert_eq!(d.sent(), []);
    d.node.change_state(d.now, QpState::Reset);
    d.node.sq.reset();
    d.node.rq.reset();
    let attr = QpAttr { sq_psn: FIRST_PSN, ..attrs() };
    d.node.connect(PEER, PEER_QPN, attr, QpState::Rts);
    d.post(WrOpcode::Write, 4, 4);
    assert_eq!(d.sent(), [(RcWriteOnly, 0)]);
    d.ack(0, ACK);
    assert_eq!(d.statuses(), [(4, Success)]);
}

#[test]
fn a_full_cq_is_fatal_for_its_queue_pair() {
    let mut node = Node::new(1, &Options { cqe: 2, ..Options::default() });
    node.connect(PEER, PEER_QPN, QpAttr { sq_psn: FIRST_PSN, ..attrs() }, QpState::Rts);
    let flow = Flow::new(PEER, node.ip, 0xc123);
    let mut d = Dialogue { node, flow, now: START };
    for wr_id in 1..4 {
        d.post(WrOpcode::Write, wr_id, 4);
    }
    d.sent();
    d.ack(2, ACK);
    assert_eq!(d.statuses(), [(1, Success), (2, Success)]);
    assert_eq!(d.async_events(), [AsyncEventType::CqErr, AsyncEventType::QpFatal]);
    assert_eq!(d.node.state(), QpState::Err);
    assert!(d.node.engine.cqs().next().unwrap().broken);
}

#[test]
fn the_window_closes_and_asks_for_acknowledgements_on_the_way() {
    let mut d = Dialogue::new();
    d.post(WrOpcode::Write, 1, 2 << 20);
    let packets = d.sent_packets();
    let window = packets.len();
    assert_eq!(window, 512);
    let asked = packets.iter().filter(|p| p.view().bth().ack_req).count();
    assert_eq!(asked, 512 / 32);
    d.ack(127, ACK);
    assert_eq!(d.sent().len(), 128);
}

#[test]
fn completion_events_come_once_per_arming() {
    use rnic_abi::cq::ArmKind;
    let mut d = Dialogue::new();
    d.node.arm(ArmKind::Any);
    for wr_id in 1..4 {
        d.post(WrOpcode::Write, wr_id, 4);
    }
    d.sent();
    for nth in 0..3 {
        d.ack(nth, ACK);
        d.statuses();
    }
    assert_eq!(d.node.host.completion_events, [d.node.cq_handle]);
    d.node.arm(ArmKind::Solicited);
    d.post(WrOpcode::Write, 4, 4);
    d.sent();
    d.ack(3, ACK);
    d.statuses();
    assert_eq!(d.node.host.completion_events.len(), 1);
    d.node.change_state(d.now, QpState::Err);
    d.node.post_recv(5, &[]);
    assert_eq!(d.statuses(), [(5, WrFlushErr)]);
    assert_eq!(d.node.host.completion_events.len(), 2);
}

#[test]
fn a_long_read_is_asked_for_in_pieces_that_fit_the_window() {
    let mut d = Dialogue::with(QpAttr { max_rd_atomic: 1, ..attrs() });
    let data = pattern(4, 600 * MTU);
    d.post(WrOpcode::Read, 1, data.len());
    let mut sent = d.sent_packets();
    let mut at = 0;
    for piece in [256, 256, 88] {
        assert_eq!(sent.len(), 1);
        let reth = sent[0].view().reth().unwrap();
        assert_eq!((reth.va, reth.dma_len as usize), (BASE + (at * MTU) as u64, piece * MTU));
        for k in 0..piece {
            let (opcode, syndrome) = match k {
                0 => (Opcode::RcReadRespFirst, Some(ACK)),
                k if k + 1 == piece => (Opcode::RcReadRespLast, Some(ACK)),
                _ => (Opcode::RcReadRespMiddle, None),
            };
            d.put(opcode, (at + k) as i32, syndrome, &data[(at + k) * MTU..(at + k + 1) * MTU]);
        }
        at += piece;
        sent = d.sent_packets();
    }
    assert_eq!(d.statuses(), [(1, Success)]);
    assert!(d.node.memory(0x1000, data.len()) == data);
}

#[test]
fn a_producer_index_that_cannot_be_is_fatal() {
    let mut d = Dialogue::new();
    let record = rnic_abi::doorbell::RecordIndex::new(0).unwrap();
    let _ = d.node.bell.ring(record, 65);
    d.sent();
    assert_eq!(d.node.state(), QpState::Err);
    assert_eq!(d.async_events(), [AsyncEventType::QpFatal]);
}
