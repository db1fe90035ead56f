//! What datagrams do at their receiver: each stands alone, and any peer that knows the Q_Key may
//! send.

use crate::{ok, statuses};
use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::{AccessFlags, AttrMask, QpAttr, QpState, QpType, WcStatus};
use rnic_core::command::Errno;
use rnic_core::{DropReason, Event};
use rnic_sim::dialogue::{Dialogue, PEER_QPN, Say};
use rnic_sim::host::SPACE;
use rnic_sim::memory::PageAccess;
use rnic_sim::port::{Packet, PortConfig};
use rnic_sim::verbs::{Connection, Mr, QpSetup};
use roce_wire::{Flow, HeaderRepr, Opcode, Qpn};
use std::net::{IpAddr, Ipv4Addr};

pub(crate) const QKEY: u32 = 0x0123_4567;
/// Bytes in front of the payload of a receive.
const AREA: u32 = 40;

/// A queue pair that sends and receives datagrams.
pub(crate) fn ud() -> Dialogue {
    on(PortConfig::frames())
}

/// The same on another kind of wire.
pub(crate) fn on(port: PortConfig) -> Dialogue {
    let mut d = Dialogue::in_reset(Connection::default(), port, |qp| {
        qp.qp_type = QpType::Ud;
    });
    let (qp, psn) = (d.nic.qp, d.connection.sq_psn);
    let host = d.world.host(0);
    host.open_for_datagrams(qp, QKEY, psn);
    host.trace.keep_all();
    d
}

/// A datagram of the peer with a PSN that says nothing.
fn datagram(psn: u32, payload: &[u8]) -> Say {
    Say::new(Opcode::UdSendOnly, psn).qkey(QKEY).payload(payload)
}

/// Memory that no peer can reach: a completion may carry what is for it.
fn private(d: &mut Dialogue) -> Mr {
    let pd = d.nic.pd;
    d.world.host(0).new_mr(pd, 8192, AccessFlags::LOCAL_WRITE)
}

/// Why packets were dropped.
fn drops(d: &mut Dialogue) -> Vec<DropReason> {
    let events = d.world.host(0).trace.take();
    let reason = |event: &Event| match event {
        Event::Dropped { reason, .. } => Some(*reason),
        _ => None,
    };
    events.iter().filter_map(|(_, event)| reason(event)).collect()
}

/// Whatever happened: the queue pair is as good as new, and this is its next receive.
#[track_caller]
fn goes_on(d: &mut Dialogue, wr_id: u64) {
    d.say(&datagram(0, &[9; 33]));
    d.expect_silence();
    let received = d.received();
    assert_eq!(statuses(&received), ok([wr_id]));
    assert_eq!(received[0].byte_len, 33 + AREA);
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn each_datagram_stands_alone_whatever_its_psn() {
    let mut d = ud();
    for wr_id in 0..5 {
        d.recv(wr_id, &[d.nic.mr.sge(wr_id * 4096, 4096)]);
    }
    for psn in [7, 7, 3, 0xff_ffff, 0] {
        d.say(&datagram(psn, &[1; 100]).ack_req());
    }
    d.expect_silence();
    assert_eq!(statuses(&d.received()), ok(0..5));
    assert_eq!(drops(&mut d), []);
    assert_eq!(d.world.hosts()[0].engine.counters().out_of_sequence, 0);
}

#[test]
fn a_completion_tells_the_sender_and_the_header_of_the_packet() {
    let mut d = ud();
    let (own, other) = (d.nic.mr, private(&mut d));
    for (mr, len) in [(own, 0), (own, 24), (own, 25), (own, 4096), (other, 24), (other, 300)] {
        d.recv(1, &[mr.sge(0, 30), mr.sge(30, 0), mr.sge(30, 5000)]);
        let payload: Vec<u8> = (0..=255).cycle().take(len).collect();
        let say = Say::new(Opcode::UdSendOnlyImm, 1).qkey(QKEY).payload(&payload);
        d.say(&say.with(|h| h.imm = Some(roce_wire::headers::ImmDt([1, 2, 3, 4]))));
        let received = d.received();
        assert_eq!(statuses(&received), ok([1]));
        let cqe = received[0];
        assert_eq!(cqe.flags, CqeFlags::RECV | CqeFlags::GRH | CqeFlags::IMM);
        assert_eq!((cqe.src_qp, cqe.byte_len), (PEER_QPN, len as u32 + AREA));
        assert_eq!(cqe.sl, 2, "IPv4");
        assert_eq!(cqe.imm_or_key.to_ne_bytes(), [1, 2, 3, 4]);
        let host = d.world.host(0);
        let buffer = host.bytes(mr.addr, len as u64 + u64::from(AREA)).to_vec();
        assert_eq!(buffer[..20], [0; 20]);
        // The IPv4 header: version, total length, protocol, addresses, and a good checksum.
        let header = &buffer[20..40];
        let total = 20 + 8 + 24 + len.next_multiple_of(4) + 4;
        assert_eq!((header[0], header[9]), (0x45, 17));
        assert_eq!(usize::from(u16::from_be_bytes([header[2], header[3]])), total);
        assert_eq!(header[12..], [10, 0, 0, 2, 10, 0, 0, 1]);
        let words = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        assert_eq!(words.sum::<u32>() % 0xffff, 0);
        assert_eq!(buffer[40..], payload);
    }
}

#[test]
fn a_wrong_q_key_is_dropped_and_counted() {
    let mut d = ud();
    d.recv(1, &[d.nic.mr.sge(0, 4096)]);
    for qkey in [0, QKEY + 1, QKEY | 1 << 31] {
        d.say(&datagram(0, &[1; 8]).qkey(qkey));
    }
    d.expect_silence();
    assert_eq!(drops(&mut d), [DropReason::QKey; 3]);
    assert_eq!(d.world.hosts()[0].engine.counters().qkey_violations, 3);
    goes_on(&mut d, 1);
}

#[test]
fn a_datagram_longer_than_its_receive_is_dropped_and_the_receive_left_to_the_next() {
    let mut d = ud();
    d.recv(1, &[d.nic.mr.sge(0, 40), d.nic.mr.sge(4096, 60)]);
    d.recv(2, &[d.nic.mr.sge(8192, 20)]);
    d.say(&datagram(0, &[1; 61]));
    d.expect_silence();
    assert_eq!(drops(&mut d), [DropReason::TooLong]);
    assert_eq!(d.world.hosts()[0].engine.counters().rx_discarded, 1);
    assert_eq!(d.memory(0, 40), [0; 40]);
    assert_eq!(d.memory(4096, 61), [0; 61]);
    d.say(&datagram(0, &[2; 60]));
    assert_eq!(statuses(&d.received()), ok([1]));
    assert_eq!(d.memory(4096, 61), [vec![2; 60], vec![0]].concat());
    // Not even the area fits.
    d.say(&datagram(0, &[]));
    d.expect_silence();
    assert_eq!(drops(&mut d), [DropReason::TooLong]);
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn a_datagram_without_receive_is_dropped() {
    let mut d = ud();
    d.say(&datagram(0, &[1; 8]));
    d.expect_silence();
    assert_eq!(drops(&mut d), [DropReason::NoReceive]);
    d.recv(1, &[d.nic.mr.sge(0, 4096)]);
    goes_on(&mut d, 1);
}

#[test]
fn a_datagram_to_a_group_is_not_for_a_queue_pair_by_its_number() {
    let mut d = ud();
    d.recv(1, &[d.nic.mr.sge(0, 4096)]);
    let peer = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    let flow = Flow::new(peer, IpAddr::V4(Ipv4Addr::new(224, 1, 2, 3)), 0xc123);
    let qpn = Qpn::new(d.world.host(0).qpn(d.nic.qp));
    let bth = roce_wire::headers::Bth::new(Opcode::UdSendOnly, qpn, roce_wire::Psn::ZERO);
    let mut headers = HeaderRepr::new(bth);
    let source = Qpn::new(PEER_QPN);
    headers.deth = Some(roce_wire::headers::Deth::new(roce_wire::QKey(QKEY), source));
    let mut bytes = vec![0; headers.datagram_len(0)];
    headers.emit(&mut bytes);
    headers.write_pad_and_icrc(&flow, 0, &mut bytes);
    d.world.inject(0, Packet { flow, ip_id: 0, bytes: bytes.into() });
    d.expect_silence();
    assert_eq!(drops(&mut d), [DropReason::Address]);
    goes_on(&mut d, 1);
}

#[test]
fn opcodes_of_other_transports_mean_nothing() {
    let mut d = ud();
    d.recv(1, &[d.nic.mr.sge(0, 4096)]);
    let others = [Opcode::RcSendOnly, Opcode::UcSendOnly, Opcode::RcAck, Opcode::RcReadRequest];
    for opcode in others {
        d.say(&Say::new(opcode, 0));
    }
    d.expect_silence();
    assert_eq!(drops(&mut d), [DropReason::Transport; 4]);
    goes_on(&mut d, 1);
}

#[test]
fn a_receive_that_its_program_may_not_write_ends_the_queue_pair() {
    for at in [0, 1] {
        let mut d = ud();
        let good = d.nic.mr.sge(0, 40);
        let pd = d.nic.pd;
        let read_only = d.world.host(0).new_mr(pd, 4096, AccessFlags::empty());
        let mut sges = [good, good];
        sges[at] = read_only.sge(0, 40);
        d.recv(1, &sges);
        d.recv(2, &[good]);
        d.say(&datagram(0, &[1; 8]));
        d.expect_silence();
        let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&d.received()), expected);
        assert_eq!(d.state(), QpState::Err);
        assert_eq!(d.memory(0, 40), [0; 40]);
    }
}

#[test]
fn memory_that_is_gone_fails_its_receive_and_flushes_what_is_behind() {
    for len in [8, 300] {
        let mut d = ud();
        let mr = d.nic.mr;
        d.recv(1, &[mr.sge(0, 4096)]);
        d.recv(2, &[mr.sge(4096, 4096)]);
        d.recv(3, &[mr.sge(8192, 4096)]);
        d.world.host(0).memory.protect(SPACE, mr.addr + 4096, 4096, PageAccess::Hole);
        d.say_all(&[datagram(0, &[1; 8]), datagram(0, &vec![2; len]), datagram(0, &[3; 8])]);
        d.expect_silence();
        let expected =
            [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&d.received()), expected);
        assert_eq!(d.state(), QpState::Err);
    }
}

#[test]
fn shared_receives_take_datagrams() {
    let mut d = Dialogue::in_reset(Connection::default(), PortConfig::frames(), |_| {});
    let (pd, cq, mr) = (d.nic.pd, d.nic.recv_cq, d.nic.mr);
    let host = d.world.host(0);
    let srq = host.create_srq(pd, 8, 2).unwrap();
    let setup = QpSetup { qp_type: QpType::Ud, srq: Some(srq), ..QpSetup::new(pd, cq) };
    let qp = host.create_qp(setup);
    host.open_for_datagrams(qp, QKEY, 0);
    host.post_srq_recv(srq, 1, &[mr.sge(0, 50)]).unwrap();
    let qpn = host.qpn(qp);
    let to_it = |say: Say| say.with(|h| h.bth.dest_qp = Qpn::new(qpn));
    d.say(&to_it(datagram(0, &[1; 11])));
    d.say(&to_it(datagram(0, &[2; 10])));
    d.expect_silence();
    let received = d.received();
    assert_eq!(statuses(&received), ok([1]));
    assert_eq!(d.memory(40, 11), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
}

#[test]
fn a_queue_pair_for_datagrams_needs_a_q_key_and_no_path() {
    let mut d = Dialogue::in_reset(Connection::default(), PortConfig::frames(), |qp| {
        qp.qp_type = QpType::Ud;
    });
    let qp = d.nic.qp;
    let init = QpAttr { state: QpState::Init, port_num: 1, qkey: QKEY, ..QpAttr::default() };
    let path = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
    let mut modify =
        |mask, attr| d.world.host(0).modify(qp, mask, attr, None).map_err(|error| error.errno);
    assert_eq!(modify(path | AttrMask::ACCESS_FLAGS, init), Err(Errno::Invalid));
    assert_eq!(modify(path, init), Err(Errno::Invalid));
    let controlled = QpAttr { qkey: 1 << 31, ..init };
    assert_eq!(modify(path | AttrMask::QKEY, controlled), Err(Errno::Perm));
    assert_eq!(modify(path | AttrMask::QKEY, init), Ok(()));
    let rtr = QpAttr { state: QpState::Rtr, ..QpAttr::default() };
    assert_eq!(modify(AttrMask::STATE | AttrMask::DEST_QPN, rtr), Err(Errno::Invalid));
    assert_eq!(modify(AttrMask::STATE, rtr), Ok(()));
    let rts = QpAttr { state: QpState::Rts, sq_psn: 0x12_3456, qkey: 5, ..QpAttr::default() };
    assert_eq!(modify(AttrMask::STATE, rts), Err(Errno::Invalid));
    let all = AttrMask::STATE | AttrMask::SQ_PSN | AttrMask::QKEY;
    assert_eq!(modify(all, rts), Ok(()));
    let now = d.world.host(0).query_qp(qp);
    assert_eq!((now.state, now.qkey, now.sq_psn), (QpState::Rts, 5, 0x12_3456));
    assert_eq!((now.port_num, now.path_mtu, now.dest_qpn), (1, 0, 0));
}
