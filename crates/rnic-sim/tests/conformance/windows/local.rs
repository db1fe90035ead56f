//! Binds and invalidations in their send queue: when their turn comes, and how they complete.

use super::{AT, LEN, Stage, remote};
use crate::{ACCESS, ACK, ok, send, small_mtu, statuses};
use rnic_abi::verbs::{QpState, SendFlags, WcStatus};
use rnic_core::command::WindowType;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{QpSetup, SendWr};
use roce_wire::Opcode;

#[test]
fn local_work_is_done_when_all_before_it_has_left() {
    let slow = PortConfig { tx_burst: 1, ..PortConfig::frames() };
    let mut stage = Stage::on(Dialogue::with(small_mtu(), slow, |_| {}), WindowType::Two);
    stage.bind(remote());
    let key = stage.mw.rkey;
    stage.d.post_all(&[
        send(&stage.d, 1, 64 * 256),
        SendWr::local_inv(2, key),
        send(&stage.d, 3, 8),
    ]);
    stage.d.expect(Opcode::RcSendFirst, stage.d.our_psn(0));
    let say = stage.request(Opcode::RcWriteOnly, stage.start(), 8);
    stage.d.say(&say);
    let mut heard = Vec::new();
    while heard.last().is_none_or(|opcode| *opcode != Opcode::RcSendOnly) {
        let next = stage.d.hear();
        if next.opcode() == Opcode::RcAck {
            assert_eq!(next.aeth().0, ACK, "it came before the invalidation");
        }
        heard.push(next.opcode());
    }
    let end = stage.d.our_psn(64);
    assert_eq!(stage.write_at(0), ACCESS, "the SEND behind the invalidation has left");
    stage.d.say(&Say::ack(end, 2));
    assert_eq!(stage.d.received(), []);
}

#[test]
fn local_work_completes_in_order_and_is_done_once() {
    let mut stage = Stage::new(WindowType::Two);
    let key = stage.mw.next_key();
    let bind = SendWr::bind(2, key, (&stage.mr, AT, LEN), remote());
    stage.d.post_all(&[send(&stage.d, 1, 8), bind, send(&stage.d, 3, 8)]);
    for _ in 0..2 {
        // The first transmission, and the one after a timeout.
        stage.d.expect(Opcode::RcSendOnly, stage.d.our_psn(0));
        stage.d.expect(Opcode::RcSendOnly, stage.d.our_psn(1));
        assert_eq!(stage.d.sent(), []);
    }
    stage.d.say(&Say::ack(stage.d.our_psn(0), 1));
    assert_eq!(statuses(&stage.d.sent()), ok([1, 2]));
    stage.d.say(&Say::ack(stage.d.our_psn(1), 2));
    assert_eq!(statuses(&stage.d.sent()), ok([3]));
    stage.mw.rkey = key;
    assert_eq!(stage.write_at(0), ACK);
}

#[test]
fn local_work_between_reads_does_not_confuse_their_responses() {
    let mut stage = Stage::bound(WindowType::Two, remote());
    let inv = SendWr::local_inv(2, stage.mw.rkey);
    let key = stage.mw.next_key();
    let bind = SendWr::bind(3, key, (&stage.mr, AT, LEN), remote());
    let read = |stage: &Stage, wr_id| crate::read(&stage.d, wr_id, 4096, 8);
    stage.d.post_all(&[read(&stage, 1), inv, bind, read(&stage, 4)]);
    stage.d.expect(Opcode::RcReadRequest, stage.d.our_psn(0));
    stage.d.expect(Opcode::RcReadRequest, stage.d.our_psn(1));
    for k in 0..2 {
        let response = Say::new(Opcode::RcReadRespOnly, stage.d.our_psn(k));
        stage.d.say(&response.syndrome(ACK, k + 1).payload(&[1; 8]));
    }
    assert_eq!(statuses(&stage.d.sent()), ok([1, 2, 3, 4]));
}

/// Nothing of it leaves, but it takes time from the other queue pairs all the same.
#[test]
fn a_queue_full_of_local_work_does_not_hold_the_engine() {
    let port = PortConfig::frames();
    let many = |setup: &mut QpSetup| setup.caps.max_send_wr = 4096;
    let mut stage = Stage::on(Dialogue::with(small_mtu(), port, many), WindowType::One);
    let key = stage.mw.next_key();
    let bind = SendWr::bind(0, key, (&stage.mr, AT, LEN), remote());
    let mut all = vec![bind.clone().unsignaled(); 2999];
    all.push(bind);
    stage.d.post_all(&all);
    let done = |stage: &mut Stage| stage.d.world.host(0).engine.counters().send_wqes;
    let mut before = done(&mut stage);
    while stage.d.world.step() {
        let now = done(&mut stage);
        // A lone queue pair has several visits in a turn.
        assert!(now - before <= 512, "{} in one turn", now - before);
        before = now;
    }
    assert_eq!(statuses(&stage.d.sent()), ok([0]));
}

#[test]
fn fenced_local_work_waits_for_reads() {
    for fenced in [false, true] {
        let mut stage = Stage::bound(WindowType::Two, remote());
        let flags = if fenced { SendFlags::FENCE } else { SendFlags::empty() };
        let inv = SendWr::local_inv(2, stage.mw.rkey).flags(flags);
        stage.d.post_all(&[crate::read(&stage.d, 1, 4096, 8), inv]);
        stage.d.expect(Opcode::RcReadRequest, stage.d.our_psn(0));
        assert_eq!(stage.write_at(0), if fenced { ACK } else { ACCESS });
        if fenced {
            let response = Say::new(Opcode::RcReadRespOnly, stage.d.our_psn(0));
            stage.d.say(&response.syndrome(ACK, 1).payload(&[1; 8]));
            assert_eq!(statuses(&stage.d.sent()), ok([1, 2]));
            assert_eq!(stage.write_at(0), ACCESS);
        }
    }
}

#[test]
fn local_work_with_data_is_malformed() {
    for wr in [SendWr::local_inv(1, 5), SendWr::unbind(1, 5)] {
        let mut d = Dialogue::new(small_mtu());
        let sges = vec![d.nic.mr.sge(0, 8)];
        d.post(&SendWr { sges, ..wr });
        assert_eq!(statuses(&d.sent()), [(1, WcStatus::LocQpOpErr)]);
    }
}

#[test]
fn a_drained_queue_holds_local_work() {
    let mut stage = Stage::bound(WindowType::Two, remote());
    let wait = crate::read(&stage.d, 1, 4096, 8);
    let inv = SendWr::local_inv(2, stage.mw.rkey).flags(SendFlags::FENCE);
    stage.d.post_all(&[wait, inv]);
    stage.d.expect(Opcode::RcReadRequest, stage.d.our_psn(0));
    let qp = stage.d.nic.qp;
    stage.d.world.host(0).set_state(qp, QpState::Sqd);
    let response = Say::new(Opcode::RcReadRespOnly, stage.d.our_psn(0));
    stage.d.say(&response.syndrome(ACK, 1).payload(&[1; 8]));
    assert_eq!(statuses(&stage.d.sent()), ok([1]));
    assert_eq!(stage.write_at(0), ACK);
}
