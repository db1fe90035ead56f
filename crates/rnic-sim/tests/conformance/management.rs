//! QP1: what reaches the connection manager, and how its datagrams leave.

use crate::dialogue;
use rnic_abi::verbs::AhAttr;
use rnic_core::command::Path;
use rnic_core::ports::HopId;
use rnic_core::{DropReason, Event, OutgoingMad};
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN, Say};
use rnic_sim::host::MAX_MADS;
use roce_wire::mad::MAD_LEN;
use roce_wire::{Flow, Opcode, PKey, QKey, Qpn};

fn listening() -> Dialogue {
    let mut d = dialogue();
    d.world.host(0).trace.keep_all();
    d
}

/// A management datagram of the peer.
fn mad() -> Say {
    let to_qp1 = |say: Say| say.with(|headers| headers.bth.dest_qp = Qpn::GSI);
    to_qp1(Say::new(Opcode::UdSendOnly, 77).qkey(QKey::GSI.0).payload(&[9; MAD_LEN]))
}

#[track_caller]
fn refused(d: &mut Dialogue, say: &Say, reason: DropReason) {
    d.say(say);
    d.expect_silence();
    assert_eq!(d.world.host(0).take_mads().len(), 0);
    let events = d.world.host(0).trace.take();
    let dropped =
        |event: &Event| matches!(event, Event::Dropped { reason: why, .. } if *why == reason);
    assert!(events.iter().any(|(_, event)| dropped(event)), "{events:?}");
}

#[test]
fn a_management_datagram_reaches_the_manager_with_its_sender() {
    let mut d = listening();
    d.say(&mad());
    d.say(&mad().ack_req());
    d.expect_silence();
    let mads = d.world.host(0).take_mads();
    assert_eq!(mads.len(), 2);
    for (flow, sender, content) in mads {
        assert_eq!((flow.src, sender.value(), content), (PEER, PEER_QPN, [9; MAD_LEN]));
    }
    assert_eq!(d.world.hosts()[0].engine.counters().rx_mads, 2);
}

#[test]
fn only_datagrams_reach_the_manager() {
    let mut d = listening();
    let write = Say::new(Opcode::RcSendOnly, 0).payload(&[9; MAD_LEN]);
    let write = write.with(|headers| headers.bth.dest_qp = Qpn::GSI);
    refused(&mut d, &write, DropReason::Transport);
    let immediate = Say::new(Opcode::UdSendOnlyImm, 0).qkey(QKey::GSI.0).payload(&[9; MAD_LEN]);
    let immediate = immediate.with(|headers| headers.bth.dest_qp = Qpn::GSI);
    refused(&mut d, &immediate, DropReason::Transport);
}

#[test]
fn a_management_datagram_of_another_partition_is_dropped() {
    let mut d = listening();
    let say = mad().with(|headers| headers.bth.pkey = PKey(0x8001));
    refused(&mut d, &say, DropReason::PKey);
}

#[test]
fn a_management_datagram_with_another_q_key_is_dropped() {
    let mut d = listening();
    refused(&mut d, &mad().qkey(QKey::RDMA_UDP.0), DropReason::QKey);
    assert_eq!(d.world.hosts()[0].engine.counters().qkey_violations, 1);
}

#[test]
fn a_management_datagram_has_256_bytes() {
    let mut d = listening();
    for len in [0, MAD_LEN - 1, MAD_LEN + 1, 1024] {
        refused(&mut d, &mad().payload(&vec![9; len]), DropReason::TooLong);
    }
}

#[test]
fn what_the_manager_has_no_room_for_is_dropped() {
    let mut d = listening();
    for _ in 0..MAX_MADS + 3 {
        d.say(&mad());
    }
    d.expect_silence();
    assert_eq!(d.world.host(0).take_mads().len(), MAX_MADS);
    assert_eq!(d.world.hosts()[0].engine.counters().rx_discarded, 3);
}

#[test]
fn management_datagrams_leave_with_the_key_and_number_of_qp1() {
    let mut d = listening();
    let ip = d.world.hosts()[0].ip;
    let flow = Flow { sport: 0, ..Flow::new(ip, PEER, 0) };
    let path = Path { attr: AhAttr::default(), flow, hop: HopId(0) };
    for byte in 0..3 {
        let outgoing = OutgoingMad { path, dest: Qpn::new(PEER_QPN), mad: [byte; MAD_LEN] };
        d.world.host(0).send_mad(outgoing).expect("room");
    }
    for byte in 0..3 {
        let heard = d.expect(Opcode::UdSendOnly, u32::from(byte));
        let deth = heard.headers.deth.expect("a datagram");
        assert_eq!((deth.qkey, deth.src_qp), (QKey::GSI, Qpn::GSI));
        assert_eq!(heard.payload, [byte; MAD_LEN]);
        assert_eq!(heard.flow.sport, 0xc000, "as datagrams without a flow label");
    }
    assert_eq!(d.world.hosts()[0].engine.counters().tx_mads, 3);
}

#[test]
fn more_management_datagrams_than_the_wire_takes_are_refused() {
    let mut d = listening();
    let ip = d.world.hosts()[0].ip;
    let path = Path { attr: AhAttr::default(), flow: Flow::new(ip, PEER, 4791), hop: HopId(0) };
    let outgoing = OutgoingMad { path, dest: Qpn::new(PEER_QPN), mad: [1; MAD_LEN] };
    let sent = (0..).take_while(|_| d.world.host(0).send_mad(outgoing).is_ok()).count();
    assert_eq!(sent, 1024);
    let heard: Vec<_> = std::iter::from_fn(|| Some(d.hear_burst())).take(100).flatten().collect();
    assert_eq!(heard.len(), sent);
}
