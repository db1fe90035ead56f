//! The requester of an unreliable connection: complete when sent, and SQE after a bad request.

use crate::uc::uc;
use crate::{fetch_add, ok, read, send, statuses};
use rnic_abi::verbs::{AsyncEventType, AttrMask, QpAttr, QpState, QpType, SendFlags, WcStatus};
use rnic_core::command::Errno;
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN, Say};
use rnic_sim::host::SPACE;
use rnic_sim::memory::PageAccess;
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Connection, Remote, SendWr};
use roce_wire::Opcode;

const REMOTE: Remote = Remote { addr: 0x5000, rkey: 0x99 };

#[test]
fn a_send_is_complete_when_its_last_packet_left() {
    let mut d = uc();
    let data = d.fill(0, 601, 1);
    d.post(&SendWr::write(1, &[d.nic.mr.sge(0, 601)], REMOTE).with_imm(7));
    d.post(&send(&d, 2, 0).flags(SendFlags::SOLICITED));
    d.post(&send(&d, 3, 10).unsignaled());
    let burst = d.hear_burst();
    let heard: Vec<_> = burst.iter().map(|h| (h.opcode(), h.psn())).collect();
    let expected = [
        (Opcode::UcWriteFirst, d.our_psn(0)),
        (Opcode::UcWriteMiddle, d.our_psn(1)),
        (Opcode::UcWriteLastImm, d.our_psn(2)),
        (Opcode::UcSendOnly, d.our_psn(3)),
        (Opcode::UcSendOnly, d.our_psn(4)),
    ];
    assert_eq!(heard, expected);
    assert_eq!(burst[..3].iter().flat_map(|h| h.payload.clone()).collect::<Vec<u8>>(), data);
    assert!(burst.iter().all(|h| !h.headers.bth.ack_req && h.headers.aeth.is_none()));
    assert!(burst[3].headers.bth.solicited);
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
    assert_eq!(d.world.hosts()[0].engine.pending_timers(), 0);
    d.expect_silence_for(10_000_000_000);
}

#[test]
fn a_long_message_leaves_without_any_answer() {
    let mut d = uc();
    d.post(&send(&d, 1, 1_000_000));
    let burst = d.hear_burst();
    assert_eq!(burst.len(), 1_000_000_usize.div_ceil(256));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn a_queue_may_be_filled_again_and_again() {
    let mut d = uc();
    for round in 0..10 {
        let sends: Vec<SendWr> = (0..64).map(|k| send(&d, round * 64 + k, 300)).collect();
        d.post_all(&sends);
        assert_eq!(statuses(&d.sent()), ok(round * 64..(round + 1) * 64));
    }
    assert_eq!(d.hear_burst().len(), 1280);
}

/// The state that follows a bad request: it fails like this, and what is behind it is flushed.
#[track_caller]
fn stops(d: &mut Dialogue, wr: &SendWr, status: WcStatus) {
    let behind = send(d, 8, 8).unsignaled();
    d.post_all(&[send(d, 6, 8), wr.clone(), behind.clone()]);
    d.expect(Opcode::UcSendOnly, d.our_psn(0));
    d.expect_silence();
    let expected = [(6, WcStatus::Success), (wr.wr_id, status), (8, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
    assert_eq!(d.state(), QpState::Sqe);
    // What is posted now is flushed too.
    d.post(&SendWr { wr_id: 9, ..behind });
    d.expect_silence();
    assert_eq!(statuses(&d.sent()), [(9, WcStatus::WrFlushErr)]);
}

/// SQE -> RTS, after which sends leave again, with this PSN.
#[track_caller]
fn resumes(d: &mut Dialogue, offset: u32) {
    let qp = d.nic.qp;
    d.world.host(0).set_state(qp, QpState::Rts);
    d.post(&send(d, 10, 8));
    d.expect(Opcode::UcSendOnly, d.our_psn(offset));
    assert_eq!(statuses(&d.sent()), ok([10]));
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn operations_that_need_an_answer_fail() {
    let d = uc();
    for wr in [read(&d, 7, 0, 8), fetch_add(&d, 7, 0)] {
        let mut d = uc();
        stops(&mut d, &wr, WcStatus::LocQpOpErr);
        resumes(&mut d, 1);
    }
}

#[test]
fn a_bad_request_stops_sends_and_not_receives() {
    let mut d = uc();
    let bad = SendWr::send(7, &[rnic_abi::wqe::Sge { lkey: 1, ..d.nic.mr.sge(0, 8) }]);
    stops(&mut d, &bad, WcStatus::LocProtErr);
    d.recv(1, &[d.nic.mr.sge(0, 100)]);
    d.say(&Say::new(Opcode::UcSendOnly, d.peer_psn(0)).payload(&[1; 8]));
    assert_eq!(statuses(&d.received()), ok([1]));
    assert_eq!(d.events(), []);
    resumes(&mut d, 1);
}

#[test]
fn a_message_that_is_cut_off_leaves_a_gap() {
    let mut d = uc();
    let at = d.nic.mr.addr;
    d.world.host(0).memory.protect(SPACE, at + 8192, 1, PageAccess::Hole);
    d.post(&SendWr::send(1, &[d.nic.mr.sge(0, 16_384)]));
    let sent = d.hear_burst().len();
    assert!((1..64).contains(&sent), "{sent}");
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::LocProtErr)]);
    assert_eq!(d.state(), QpState::Sqe);
    resumes(&mut d, 64);
}

#[test]
fn a_full_queue_is_flushed_before_it_resumes() {
    let mut d = uc();
    let qp = d.nic.qp;
    let mut sends = vec![read(&d, 0, 0, 8)];
    sends.extend((1..64).map(|wr_id| send(&d, wr_id, 8)));
    d.post_all(&sends);
    // The request fails in a turn, and the queue is resumed before the next one.
    while d.world.host(0).state(qp) != QpState::Sqe {
        assert!(d.world.step());
    }
    d.world.host(0).set_state(qp, QpState::Rts);
    let statuses: Vec<WcStatus> = d.sent().iter().map(|cqe| cqe.status).collect();
    assert_eq!(statuses[0], WcStatus::LocQpOpErr);
    assert_eq!(statuses[1..], [WcStatus::WrFlushErr; 63]);
    d.expect_silence();
    d.post(&send(&d, 100, 8));
    d.hear();
    assert_eq!(crate::statuses(&d.sent()), ok([100]));
}

#[test]
fn sqe_may_end_in_err_or_reset() {
    for end in [QpState::Err, QpState::Reset] {
        let mut d = uc();
        d.post_all(&[read(&d, 1, 0, 8), send(&d, 2, 8)]);
        let expected = [(1, WcStatus::LocQpOpErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&d.sent()), expected);
        d.recv(1, &[]);
        let qp = d.nic.qp;
        d.world.host(0).set_state(qp, end);
        assert_eq!(d.state(), end);
        assert_eq!(d.sent().len(), 0);
        let flushed = if end == QpState::Err { vec![(1, WcStatus::WrFlushErr)] } else { vec![] };
        assert_eq!(statuses(&d.received()), flushed);
    }
}

#[test]
fn sqd_finishes_the_message_under_way_and_holds_the_rest() {
    let mut d = uc();
    d.post_all(&[send(&d, 1, 200_000), send(&d, 2, 8)]);
    while d.world.hosts()[0].engine.counters().tx_packets == 0 {
        assert!(d.world.step());
    }
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let qp = d.nic.qp;
    d.world.host(0).modify(qp, mask, attr, None).unwrap();
    assert!(d.world.host(0).query_qp(qp).sq_draining, "it is longer than a visit");
    assert_eq!(d.hear_burst().len(), 200_000_usize.div_ceil(256));
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.events(), [AsyncEventType::SqDrained]);
    d.world.host(0).set_state(qp, QpState::Rts);
    d.hear();
    assert_eq!(statuses(&d.sent()), ok([2]));
}

/// A queue pair in INIT, and what may be given on the way from there.
fn in_init() -> Dialogue {
    let connection = Connection { path_mtu: 1, ..Connection::default() };
    let mut d =
        Dialogue::in_reset(connection, PortConfig::frames(), |setup| setup.qp_type = QpType::Uc);
    let qp = d.nic.qp;
    d.world.host(0).to_init(qp, &connection);
    d
}

fn modify(d: &mut Dialogue, state: QpState, mask: AttrMask) -> Result<(), Errno> {
    let (qp, host) = (d.nic.qp, d.world.host(0));
    let good = rnic_abi::verbs::AhAttr {
        dgid: roce_wire::Gid::from_ip(PEER).0,
        is_global: true,
        port_num: 1,
        ..Default::default()
    };
    let attr = QpAttr { state, ah: good, path_mtu: 1, dest_qpn: PEER_QPN, ..QpAttr::default() };
    host.modify(qp, mask | AttrMask::STATE, attr, Some(PEER)).map_err(|error| error.errno)
}

#[test]
fn attributes_of_reliable_connections_are_refused() {
    let rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    for missing in rtr.iter() {
        assert_eq!(modify(&mut in_init(), QpState::Rtr, rtr - missing), Err(Errno::Invalid));
    }
    for extra in [AttrMask::MAX_DEST_RD_ATOMIC, AttrMask::MIN_RNR_TIMER, AttrMask::SQ_PSN] {
        assert_eq!(modify(&mut in_init(), QpState::Rtr, rtr | extra), Err(Errno::Invalid));
    }
    let mut d = in_init();
    assert_eq!(modify(&mut d, QpState::Rtr, rtr), Ok(()));
    let (timeout, retries) = (AttrMask::TIMEOUT, AttrMask::RETRY_CNT);
    for extra in [timeout, retries, AttrMask::RNR_RETRY, AttrMask::MAX_QP_RD_ATOMIC] {
        let refused = modify(&mut d, QpState::Rts, AttrMask::SQ_PSN | extra);
        assert_eq!(refused, Err(Errno::Invalid), "{extra:?}");
    }
    assert_eq!(modify(&mut d, QpState::Rts, AttrMask::empty()), Err(Errno::Invalid));
    assert_eq!(modify(&mut d, QpState::Rts, AttrMask::SQ_PSN), Ok(()));
}
