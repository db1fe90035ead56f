//! Multicast groups: each member gets a copy of its own, as if it were alone.

use crate::ud::QKEY;
use crate::{ok, statuses};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{QpState, QpType};
use rnic_core::command::{ClientCommand, ClientId, Command, CommandError, Errno};
use rnic_core::{DropReason, Event};
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN};
use rnic_sim::port::{Packet, PortConfig};
use rnic_sim::verbs::{Connection, CqId, Mr, QpId, QpSetup};
use roce_wire::headers::{Bth, Deth};
use roce_wire::{Flow, Gid, HeaderRepr, Opcode, Psn, QKey, Qpn};
use std::net::IpAddr;

/// Bytes in front of the payload of a receive.
const AREA: u32 = 40;

fn group(last: u8) -> IpAddr {
    [239, 1, 2, last].into()
}

/// A queue pair with a completion queue and receives of its own.
struct Member {
    qp: QpId,
    cq: CqId,
    mr: Mr,
}

fn member(d: &mut Dialogue, qp_type: QpType, qkey: u32) -> Member {
    let (pd, mr) = (d.nic.pd, d.nic.mr);
    let host = d.world.host(0);
    let cq = host.create_cq(64);
    let qp = host.create_qp(QpSetup { qp_type, ..QpSetup::new(pd, cq) });
    if qp_type == QpType::Ud {
        host.open_for_datagrams(qp, qkey, 0);
    }
    Member { qp, cq, mr }
}

fn nobody() -> Dialogue {
    let d = Dialogue::in_reset(Connection::default(), PortConfig::frames(), |_| {});
    let mut d = d;
    d.world.host(0).trace.keep_all();
    d
}

impl Member {
    fn recv(&self, d: &mut Dialogue, wr_id: u64, at: u64) {
        d.world.host(0).post_recv(self.qp, wr_id, &[self.mr.sge(at, 256)]).unwrap();
    }

    fn received(&self, d: &mut Dialogue) -> Vec<Cqe> {
        d.world.host(0).drain(self.cq)
    }
}

/// From the peer to this address and queue pair number.
fn say(d: &mut Dialogue, to: IpAddr, qpn: Qpn, opcode: Opcode, payload: &[u8]) {
    let flow = Flow::new(PEER, to, 0xc123);
    let mut headers = HeaderRepr::new(Bth::new(opcode, qpn, Psn::ZERO));
    if opcode == Opcode::UdSendOnly {
        headers.deth = Some(Deth::new(QKey(QKEY), Qpn::new(PEER_QPN)));
    }
    let headers = headers.with_payload_len(payload.len());
    let mut bytes = vec![0; headers.datagram_len(payload.len())];
    let at = headers.emit(&mut bytes);
    bytes[at..at + payload.len()].copy_from_slice(payload);
    headers.write_pad_and_icrc(&flow, 0, &mut bytes);
    d.world.inject(0, Packet { flow, ip_id: 0, bytes: bytes.into() });
    d.world.run_for(1_000_000);
}

fn tell(d: &mut Dialogue, last: u8, payload: &[u8]) {
    say(d, group(last), Qpn::MULTICAST, Opcode::UdSendOnly, payload);
}

fn drops(d: &mut Dialogue) -> Vec<DropReason> {
    let events = d.world.host(0).trace.take();
    let reason = |event: &Event| match event {
        Event::Dropped { reason, .. } => Some(*reason),
        _ => None,
    };
    events.iter().filter_map(|(_, event)| reason(event)).collect()
}

fn errno<T>(result: Result<T, CommandError>) -> Option<Errno> {
    result.err().map(|error| error.errno)
}

#[test]
fn each_member_gets_a_copy_with_a_receive_of_its_own() {
    let mut d = nobody();
    let members = [(); 3].map(|()| member(&mut d, QpType::Ud, QKEY));
    let stranger = member(&mut d, QpType::Ud, QKEY);
    for (nth, member) in (0..).zip(&members) {
        member.recv(&mut d, nth, nth * 256);
        d.world.host(0).attach(member.qp, group(1)).unwrap();
    }
    stranger.recv(&mut d, 9, 1024);
    tell(&mut d, 1, b"to all of you");
    for (nth, member) in (0..).zip(&members) {
        let received = member.received(&mut d);
        assert_eq!(statuses(&received), ok([nth]));
        assert_eq!((received[0].src_qp, received[0].byte_len), (PEER_QPN, 13 + AREA));
        let copy = d.memory(nth * 256, 53);
        assert_eq!(copy[40..], *b"to all of you");
        // The header that it came with names the group.
        assert_eq!(copy[32..40], [10, 0, 0, 2, 239, 1, 2, 1]);
    }
    assert_eq!(stranger.received(&mut d), []);
    assert_eq!(drops(&mut d), []);
}

#[test]
fn a_group_is_told_apart_from_others() {
    let mut d = nobody();
    let [one, other] = [(); 2].map(|()| member(&mut d, QpType::Ud, QKEY));
    d.world.host(0).attach(one.qp, group(1)).unwrap();
    d.world.host(0).attach(other.qp, group(2)).unwrap();
    one.recv(&mut d, 1, 0);
    other.recv(&mut d, 2, 256);
    tell(&mut d, 2, b"x");
    assert_eq!(one.received(&mut d), []);
    assert_eq!(statuses(&other.received(&mut d)), ok([2]));
    tell(&mut d, 3, b"x");
    assert_eq!(drops(&mut d), [DropReason::NoMember]);
    assert_eq!(d.world.hosts()[0].engine.counters().rx_no_member, 1);
}

#[test]
fn what_is_refused_for_one_member_reaches_the_others() {
    let mut d = nobody();
    let keys = [QKEY + 1, QKEY, QKEY, QKEY, QKEY];
    let members = keys.map(|qkey| member(&mut d, QpType::Ud, qkey));
    for member in &members {
        d.world.host(0).attach(member.qp, group(1)).unwrap();
    }
    // Another Q_Key; no receive; a receive that is too short; none that receives; a good one.
    members[0].recv(&mut d, 0, 0);
    let short = [members[2].mr.sge(512, 41)];
    d.world.host(0).post_recv(members[2].qp, 2, &short).unwrap();
    members[3].recv(&mut d, 3, 768);
    d.world.host(0).set_state(members[3].qp, QpState::Err);
    members[4].recv(&mut d, 4, 1024);
    let _ = members[3].received(&mut d);
    tell(&mut d, 1, b"hello");
    use DropReason as R;
    assert_eq!(drops(&mut d), [R::QKey, R::NoReceive, R::TooLong, R::QpState]);
    assert_eq!(statuses(&members[4].received(&mut d)), ok([4]));
    assert_eq!(d.memory(1024 + 40, 5), b"hello");
}

#[test]
fn the_number_of_groups_is_for_addresses_of_groups_and_for_datagrams() {
    let mut d = nobody();
    let one = member(&mut d, QpType::Ud, QKEY);
    d.world.host(0).attach(one.qp, group(1)).unwrap();
    one.recv(&mut d, 1, 0);
    let own = d.world.hosts()[0].ip;
    say(&mut d, own, Qpn::MULTICAST, Opcode::UdSendOnly, b"x");
    let qpn = Qpn::new(d.world.host(0).qpn(one.qp));
    say(&mut d, group(1), qpn, Opcode::UdSendOnly, b"x");
    say(&mut d, group(1), Qpn::MULTICAST, Opcode::RcSendOnly, b"x");
    use DropReason as R;
    assert_eq!(drops(&mut d), [R::Address, R::Address, R::Transport]);
    assert_eq!(one.received(&mut d), []);
    tell(&mut d, 1, b"x");
    assert_eq!(statuses(&one.received(&mut d)), ok([1]));
}

#[test]
fn who_is_attached_twice_gets_one_copy_and_leaves_at_once() {
    let mut d = nobody();
    let one = member(&mut d, QpType::Ud, QKEY);
    for wr_id in 0..3 {
        one.recv(&mut d, wr_id, wr_id * 256);
        assert_eq!(d.world.host(0).attach(one.qp, group(1)), Ok(()));
    }
    tell(&mut d, 1, b"x");
    assert_eq!(statuses(&one.received(&mut d)), ok([0]));
    assert_eq!(d.world.host(0).detach(one.qp, group(1)), Ok(()));
    tell(&mut d, 1, b"x");
    assert_eq!(drops(&mut d), [DropReason::NoMember]);
    assert_eq!(errno(d.world.host(0).detach(one.qp, group(1))), Some(Errno::Invalid));
}

#[test]
fn a_member_is_in_use_and_goes_with_its_client() {
    let mut d = nobody();
    let [one, other] = [(); 2].map(|()| member(&mut d, QpType::Ud, QKEY));
    let host = d.world.host(0);
    host.attach(one.qp, group(1)).unwrap();
    host.attach(one.qp, group(2)).unwrap();
    host.attach(other.qp, group(1)).unwrap();
    let qp = host.qp_handle(one.qp);
    let destroy = |d: &mut Dialogue| d.world.host(0).command(ClientCommand::DestroyQp { qp });
    assert_eq!(errno(destroy(&mut d)), Some(Errno::Busy));
    d.world.host(0).detach(one.qp, group(1)).unwrap();
    assert_eq!(errno(destroy(&mut d)), Some(Errno::Busy));
    d.world.host(0).detach(one.qp, group(2)).unwrap();
    assert!(destroy(&mut d).is_ok());
    let now = d.world.now();
    let gone = Command::RemoveClient { client: ClientId(1) };
    d.world.host(0).engine.execute(now, gone).unwrap();
    // A queue pair that has its place now is no member.
    tell(&mut d, 1, b"x");
    assert_eq!(drops(&mut d), [DropReason::NoMember]);
}

#[test]
fn members_are_datagram_queue_pairs_of_real_groups() {
    let mut d = nobody();
    let [ud, rc, uc] = [QpType::Ud, QpType::Rc, QpType::Uc].map(|t| member(&mut d, t, QKEY));
    for connected in [rc, uc] {
        let refused = d.world.host(0).attach(connected.qp, group(1));
        assert_eq!(errno(refused), Some(Errno::Invalid));
    }
    for address in ["10.0.0.1", "255.255.255.255", "fd00::1", "::"] {
        let refused = d.world.host(0).attach(ud.qp, address.parse().unwrap());
        assert_eq!(errno(refused), Some(Errno::Invalid), "{address}");
    }
    for address in ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"] {
        assert_eq!(d.world.host(0).attach(ud.qp, address.parse().unwrap()), Ok(()), "{address}");
    }
    // Another client names it in vain.
    let qp = d.world.host(0).qp_handle(ud.qp);
    let command = ClientCommand::Attach { qp, group: Gid::from_ip(group(1)) };
    let now = d.world.now();
    let foreign = d.world.host(0).engine.execute(now, Command::Client(ClientId(7), command));
    assert_eq!(errno(foreign), Some(Errno::NoEntry));
}

#[test]
fn groups_and_their_members_are_limited() {
    let mut d = nobody();
    let members: Vec<Member> = (0..65).map(|_| member(&mut d, QpType::Ud, QKEY)).collect();
    for (nth, member) in members.iter().enumerate() {
        let full = errno(d.world.host(0).attach(member.qp, group(0)));
        assert_eq!(full, (nth == 64).then_some(Errno::NoMem));
    }
    for nth in 1..=256u16 {
        let [high, low] = nth.to_be_bytes();
        let full = errno(d.world.host(0).attach(members[0].qp, [239, 7, high, low].into()));
        assert_eq!(full, (nth == 256).then_some(Errno::NoMem));
    }
}
