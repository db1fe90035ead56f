//! Completion events: arming, solicited completions, one event per arming.

use crate::connection;
use rnic_abi::cq::ArmKind;
use rnic_abi::verbs::{AsyncEventType, QpState, SendFlags};
use rnic_sim::pair::Pair;
use rnic_sim::verbs::{CqId, SendWr};

fn events(pair: &mut Pair) -> Vec<CqId> {
    pair.world.run_to_silence(rnic_sim::pair::PATIENCE);
    pair.world.host(1).take_completion_events()
}

fn send(pair: &mut Pair, flags: SendFlags) {
    let (a, b) = (pair.a, pair.b);
    pair.recv(b, 1, &[b.mr.sge(0, 64)]);
    pair.run(a, &SendWr::send(1, &[a.mr.sge(0, 64)]).flags(flags));
}

#[test]
fn an_unarmed_cq_makes_no_event() {
    let mut pair = Pair::new(1, connection(3));
    send(&mut pair, SendFlags::SOLICITED);
    assert_eq!(events(&mut pair), []);
}

#[test]
fn an_arming_makes_one_event() {
    let mut pair = Pair::new(2, connection(3));
    let cq = pair.b.recv_cq;
    pair.world.host(1).arm(cq, ArmKind::Any);
    send(&mut pair, SendFlags::empty());
    send(&mut pair, SendFlags::empty());
    assert_eq!(events(&mut pair), [cq]);
    pair.world.host(1).arm(cq, ArmKind::Any);
    send(&mut pair, SendFlags::empty());
    assert_eq!(events(&mut pair), [cq]);
}

#[test]
fn a_solicited_arming_waits_for_a_solicited_completion() {
    let mut pair = Pair::new(3, connection(3));
    let cq = pair.b.recv_cq;
    pair.world.host(1).arm(cq, ArmKind::Solicited);
    send(&mut pair, SendFlags::empty());
    assert_eq!(events(&mut pair), []);
    send(&mut pair, SendFlags::SOLICITED);
    assert_eq!(events(&mut pair), [cq]);
}

#[test]
fn the_solicited_bit_of_a_write_with_immediate_counts_and_of_a_write_does_not() {
    let mut pair = Pair::new(4, connection(1));
    let (a, b) = (pair.a, pair.b);
    pair.world.host(1).arm(b.recv_cq, ArmKind::Solicited);
    let write = SendWr::write(1, &[a.mr.sge(0, 2000)], b.mr.remote(0)).flags(SendFlags::SOLICITED);
    pair.run(a, &write);
    assert_eq!(events(&mut pair), []);
    pair.recv(b, 1, &[]);
    pair.run(a, &write.with_imm(1));
    assert_eq!(events(&mut pair), [b.recv_cq]);
}

#[test]
fn an_error_completion_counts_as_solicited() {
    let mut pair = Pair::new(5, connection(1));
    let b = pair.b;
    pair.recv(b, 1, &[]);
    pair.world.host(1).arm(b.recv_cq, ArmKind::Solicited);
    pair.world.host(1).set_state(b.qp, QpState::Err);
    assert_eq!(events(&mut pair), [b.recv_cq]);
}

#[test]
fn the_first_packet_in_rtr_establishes_communication() {
    let mut pair = Pair::new(6, connection(1));
    let b = pair.b;
    // The peer is already in RTS: no event.
    send(&mut pair, SendFlags::empty());
    assert_eq!(pair.world.host(1).take_qp_events(b.qp), []);

    let connection = pair.connection;
    let (ip, qpn) = (pair.world.hosts()[0].ip, pair.world.hosts()[0].qpn(pair.a.qp));
    let host = pair.world.host(1);
    host.drain(b.recv_cq);
    host.set_state(b.qp, QpState::Err);
    host.set_state(b.qp, QpState::Reset);
    let resumed = rnic_sim::verbs::Connection {
        rq_psn: connection.sq_psn + 1,
        sq_psn: connection.rq_psn,
        ..connection
    };
    host.to_init(b.qp, &resumed);
    host.to_rtr(b.qp, &resumed, ip, qpn);
    let terms = pair.world.terms(&resumed);
    pair.world.host(0).trace.witness.connected(qpn, terms);
    send(&mut pair, SendFlags::empty());
    send(&mut pair, SendFlags::empty());
    assert_eq!(pair.world.host(1).take_qp_events(b.qp), [AsyncEventType::CommEst]);
}
