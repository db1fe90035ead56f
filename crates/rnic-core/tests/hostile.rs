//! What fuzzing taught, as stories.

mod common;

use common::wire::Packet;
use common::{BASE, Node, Options, START, attrs, send_control};
use rnic_abi::verbs::{QpAttr, QpState, WcStatus, WrOpcode};
use rnic_abi::wqe::SendControl;
use roce_wire::{Aeth, Bth, Datagram, Flow, HeaderRepr, Msn, Opcode, Qpn, Syndrome};
use std::net::{IpAddr, Ipv4Addr};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const PEER_QPN: u32 = 0x55;

fn connected(attr: QpAttr) -> Node {
    let mut node = Node::new(1, &Options::default());
    node.connect(PEER, PEER_QPN, attr, QpState::Rts);
    node
}

fn write(node: &mut Node, wr_id: u64) {
    let control =
        SendControl { remote_addr: BASE, rkey: 1, ..send_control(WrOpcode::Write, wr_id) };
    let sge = node.sge(0, 8);
    node.post_send(control, &[sge]);
}

#[test]
fn an_empty_datagram_is_counted() {
    let mut node = connected(attrs());
    let flow = Flow::new(PEER, node.ip, 0xc123);
    node.inject(Packet { flow, ip_id: 0, bytes: Vec::new() });
    node.settle(START);
    let counters = node.engine.counters();
    assert_eq!((counters.rx_packets, counters.rx_malformed), (1, 1));
}

#[test]
fn what_was_posted_before_a_reset_is_forgotten() {
    let mut node = connected(attrs());
    (1..=3).for_each(|wr_id| write(&mut node, wr_id));
    node.change_state(START, QpState::Err);
    node.settle(START);
    assert_eq!(node.poll().len(), 3);
    node.sent();
    node.change_state(START, QpState::Reset);
    node.sq.reset();
    node.connect(PEER, PEER_QPN, attrs(), QpState::Rts);
    node.settle(START);
    assert_eq!(node.sent().len(), 0, "an old WQE was executed");
    write(&mut node, 4);
    node.settle(START);
    assert_eq!(node.sent().len(), 1);
    node.change_state(START, QpState::Err);
    node.settle(START);
    let flushed: Vec<_> = node.poll().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    assert_eq!(flushed, [(4, WcStatus::WrFlushErr)]);
}

/// Every RNR wait overtakes the wheel's entry for the ACK timeout, which may be hours ahead.
#[test]
fn a_peer_that_is_never_ready_does_not_fill_the_timer_wheel() {
    let mut node = connected(QpAttr { timeout: 31, rnr_retry: 7, ..attrs() });
    let flow = Flow::new(PEER, node.ip, 0xc123);
    write(&mut node, 1);
    let mut now = START;
    for _ in 0..1_000 {
        node.settle(now);
        for sent in node.sent() {
            let psn = Datagram::parse(&sent.bytes).unwrap().bth().psn;
            let mut headers = HeaderRepr::new(Bth::new(Opcode::RcAck, Qpn::new(node.qpn), psn));
            let syndrome = Syndrome::RnrNak { timer: 1 };
            headers.aeth = Some(Aeth { syndrome, msn: Msn::new(0) });
            let mut bytes = vec![0; headers.datagram_len(0)];
            headers.emit(&mut bytes);
            headers.write_pad_and_icrc(&flow, 7, &mut bytes);
            node.inject(Packet { flow, ip_id: 7, bytes });
        }
        node.settle(now);
        assert!(node.engine.pending_timers() <= 2);
        now = node.engine.next_deadline().unwrap_or(now).max(now);
    }
    assert!(node.engine.counters().rcvd_rnr_err > 500);
}
