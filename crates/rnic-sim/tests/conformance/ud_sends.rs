//! How datagrams are sent: to an address handle of the program's own, complete when they left.

use crate::ud::{self, QKEY, ud};
use crate::{ok, statuses};
use rnic_abi::verbs::{AhAttr, QpState, SendFlags, WcStatus};
use rnic_core::command::{ClientCommand, ClientId, Command, CommandError, Errno, PortState};
use rnic_core::qpn::SHARD_SHIFT;
use rnic_sim::datagrams::To;
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Remote, SendWr};
use roce_wire::{Gid, Opcode, Qpn};

/// The scripted peer, by a handle that is made for it.
fn peer(d: &mut Dialogue) -> To {
    let pd = d.nic.pd;
    To { ah: d.world.host(0).create_ah(pd, PEER), qpn: PEER_QPN, qkey: 0x7777 }
}

fn send(d: &Dialogue, wr_id: u64, len: u32, to: To) -> SendWr {
    SendWr::send(wr_id, &[d.nic.mr.sge(0, len)]).to(to)
}

fn errno<T>(result: Result<T, CommandError>) -> Option<Errno> {
    result.err().map(|error| error.errno)
}

#[test]
fn a_datagram_names_sender_receiver_and_key_and_is_complete_when_it_left() {
    let mut d = ud();
    let to = peer(&mut d);
    let data = d.fill(0, 1000, 1);
    d.post(&send(&d, 1, 1000, to).with_imm(0x0403_0201).flags(SendFlags::SOLICITED));
    d.post(&send(&d, 2, 0, to));
    d.post(&SendWr::send(3, &[]).inline(&data[..100]).to(to));
    d.post(&send(&d, 4, 30, to).carried());
    let burst = d.hear_burst();
    let heard: Vec<_> = burst.iter().map(|h| (h.opcode(), h.psn(), h.payload.len())).collect();
    let expected = [
        (Opcode::UdSendOnlyImm, d.our_psn(0), 1000),
        (Opcode::UdSendOnly, d.our_psn(1), 0),
        (Opcode::UdSendOnly, d.our_psn(2), 100),
        (Opcode::UdSendOnly, d.our_psn(3), 30),
    ];
    assert_eq!(heard, expected);
    let own = Qpn::new(d.world.host(0).qpn(d.nic.qp));
    for heard in &burst {
        let deth = heard.headers.deth.expect("a DETH");
        assert_eq!((deth.src_qp, deth.qkey.0), (own, 0x7777));
        assert!(!heard.headers.bth.ack_req);
        assert!(data.starts_with(&heard.payload));
    }
    assert_eq!(burst[0].headers.imm.map(|imm| imm.0), Some([1, 2, 3, 4]));
    assert!(burst[0].headers.bth.solicited && !burst[1].headers.bth.solicited);
    assert_eq!(statuses(&d.sent()), ok(1..5));
    assert_eq!(d.world.hosts()[0].engine.pending_timers(), 0);
    d.expect_silence_for(10_000_000_000);
}

#[test]
fn a_train_of_datagrams_is_for_one_engine() {
    let mut d = ud::on(PortConfig::trains());
    let to = peer(&mut d);
    for (shards, trains) in [([1; 4], 1), ([1, 1, 2, 2], 2), ([1, 2, 1, 2], 4), ([0, 1, 1, 0], 3)] {
        let before = d.world.host(0).port.trains_sent();
        let send = |shard: u32| send(&d, 1, 8, To { qpn: shard << SHARD_SHIFT | PEER_QPN, ..to });
        let all = shards.map(send);
        d.post_all(&all);
        assert_eq!(statuses(&d.sent()), ok([1; 4]));
        assert_eq!(d.world.host(0).port.trains_sent() - before, trains, "{shards:?}");
        let dests = d.world.take_strays().into_iter().map(|(_, packet)| {
            packet.parse().map(|datagram| datagram.headers().bth.dest_qp.value() >> SHARD_SHIFT)
        });
        assert!(dests.eq(shards.map(Some)));
    }
}

#[test]
fn the_high_bit_of_a_q_key_stands_for_that_of_the_queue_pair() {
    let mut d = ud();
    let to = peer(&mut d);
    for (qkey, shown) in [(0x7fff_ffff, 0x7fff_ffff), (1 << 31, QKEY), (u32::MAX, QKEY), (0, 0)] {
        d.post(&send(&d, 1, 8, To { qkey, ..to }));
        let heard = d.hear();
        assert_eq!(heard.headers.deth.map(|deth| deth.qkey.0), Some(shown), "{qkey:#x}");
    }
}

#[test]
fn an_address_handle_keeps_its_traffic_class_hop_limit_and_flow_label() {
    let mut d = ud();
    let attr = AhAttr {
        dgid: Gid::from_ip(PEER).0,
        flow_label: 0x5_ba59,
        hop_limit: 9,
        traffic_class: 0x68,
        is_global: true,
        port_num: 1,
        ..AhAttr::default()
    };
    let (pd, qpn) = (d.nic.pd, PEER_QPN);
    let ah = d.world.host(0).try_create_ah(pd, PEER, attr).unwrap();
    let plain = peer(&mut d);
    d.post(&send(&d, 1, 8, To { ah, qpn, qkey: 0 }));
    let flow = d.hear().flow;
    assert_eq!((flow.tos, flow.hop_limit, flow.sport), (0x68, 9, 0xfa4f));
    d.post(&send(&d, 2, 8, plain));
    let flow = d.hear().flow;
    assert_eq!((flow.tos, flow.hop_limit, flow.sport), (0, 64, 0xc000));
    let attrs = [
        AhAttr { is_global: false, ..attr },
        AhAttr { dgid: [0; 16], ..attr },
        AhAttr { flow_label: 1 << 20, ..attr },
        AhAttr { port_num: 2, ..attr },
    ];
    for attr in attrs {
        let refused = d.world.host(0).try_create_ah(pd, PEER, attr);
        assert_eq!(errno(refused), Some(Errno::Invalid), "{attr:?}");
    }
}

#[test]
fn a_datagram_goes_to_a_group_by_its_number() {
    let mut d = ud();
    let group = "239.1.2.3".parse().unwrap();
    let pd = d.nic.pd;
    let ah = d.world.host(0).create_ah(pd, group);
    d.post(&send(&d, 1, 8, To { ah, qpn: Qpn::MULTICAST.value(), qkey: 5 }));
    d.world.run_for(1_000_000);
    let left = d.world.take_strays();
    let [(_, packet)] = &left[..] else { panic!("{left:?}") };
    assert!(packet.flow.dst == group && packet.is_for(Qpn::MULTICAST.value()));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

/// The state that follows a bad request: it fails like this, what is behind it is flushed, and
/// receiving goes on.
#[track_caller]
fn stops(d: &mut Dialogue, good: To, wr: &SendWr, status: WcStatus) {
    d.post_all(&[send(d, 6, 8, good), wr.clone(), send(d, 8, 8, good)]);
    d.expect(Opcode::UdSendOnly, d.our_psn(0));
    d.expect_silence();
    let expected = [(6, WcStatus::Success), (wr.wr_id, status), (8, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
    assert_eq!(d.state(), QpState::Sqe);
    let qp = d.nic.qp;
    d.world.host(0).set_state(qp, QpState::Rts);
    d.post(&send(d, 9, 8, good));
    assert_eq!(d.hear_burst().len(), 1);
    assert_eq!(statuses(&d.sent()), ok([9]));
}

#[test]
fn a_datagram_is_at_most_what_the_link_takes_in_one_packet() {
    for (active_mtu, longest) in [(5, 4096), (3, 1024), (1, 256)] {
        let mut d = ud();
        let now = d.world.now();
        let port = PortState { active: true, active_mtu, gids_changed: false };
        d.world.host(0).engine.execute(now, Command::SetPort(port)).unwrap();
        let to = peer(&mut d);
        d.post(&send(&d, 1, longest, to));
        assert_eq!(d.hear().payload.len(), longest as usize);
        assert_eq!(statuses(&d.sent()), ok([1]));
        let mut d = ud();
        d.world.host(0).engine.execute(now, Command::SetPort(port)).unwrap();
        let to = peer(&mut d);
        let long = send(&d, 7, longest + 1, to);
        stops(&mut d, to, &long, WcStatus::LocLenErr);
    }
}

#[test]
fn only_sends_can_be_datagrams() {
    let remote = Remote { addr: 0x5000, rkey: 0x99 };
    let requests: [fn(&Dialogue, Remote) -> SendWr; 3] = [
        |d, remote| SendWr::write(7, &[d.nic.mr.sge(0, 8)], remote),
        |d, remote| SendWr::read(7, &[d.nic.mr.sge(0, 8)], remote),
        |d, remote| SendWr::fetch_add(7, d.nic.mr.sge(0, 8), remote, 1),
    ];
    for request in requests {
        let mut d = ud();
        let to = peer(&mut d);
        let wr = request(&d, remote).to(to);
        stops(&mut d, to, &wr, WcStatus::LocQpOpErr);
    }
}

#[test]
fn only_handles_of_the_queue_pairs_own_domain_lead_anywhere() {
    // One that never was, one that is gone, one of another domain.
    for case in 0..3 {
        let mut d = ud();
        let to = peer(&mut d);
        let host = d.world.host(0);
        let other_pd = host.alloc_pd();
        let ah = match case {
            0 => to.ah ^ 0x100,
            1 => {
                let gone = host.create_ah(other_pd, PEER);
                host.destroy_ah(gone).unwrap();
                gone
            }
            _ => host.create_ah(other_pd, PEER),
        };
        let bad = send(&d, 7, 8, To { ah, ..to });
        stops(&mut d, to, &bad, WcStatus::LocQpOpErr);
    }
}

/// A wire that is full keeps a datagram from leaving; its handle may be destroyed meanwhile.
#[test]
fn a_handle_that_goes_before_its_datagram_left_fails_it() {
    let mut d = ud();
    let to = peer(&mut d);
    let until = d.world.now().after_nanos(100_000);
    d.world.host(0).port.refuse_until(until);
    d.post_all(&[send(&d, 1, 8, to), send(&d, 2, 8, to)]);
    d.expect_silence();
    d.world.host(0).destroy_ah(to.ah).unwrap();
    d.expect_silence_for(1_000_000);
    let expected = [(1, WcStatus::LocQpOpErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

#[test]
fn handles_have_an_owner_and_keep_their_domain() {
    let mut d = ud();
    let ah = peer(&mut d).ah;
    let now = d.world.now();
    let foreign = Command::Client(ClientId(2), ClientCommand::DestroyAh { ah });
    assert_eq!(errno(d.world.host(0).engine.execute(now, foreign)), Some(Errno::NoEntry));
    assert_eq!(errno(d.world.host(0).destroy_ah(ah)), None, "it is still there");
    let host = d.world.host(0);
    let pd = host.alloc_pd();
    let ah = host.create_ah(pd, PEER);
    assert_eq!(errno(host.command(ClientCommand::DeallocPd { pd })), Some(Errno::Busy));
    assert_eq!(errno(host.destroy_ah(ah)), None);
    assert_eq!(errno(host.destroy_ah(ah)), Some(Errno::NoEntry));
    assert_eq!(errno(host.command(ClientCommand::DeallocPd { pd })), None);
}
