//! Datagrams between engines: every size, many peers of one queue pair, and links that lose, repeat
//! and reorder.

mod bad_links;
mod groups;

use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{AccessFlags, QpType, WcOpcode, WcStatus};
use rnic_sim::datagrams::To;
use rnic_sim::pair::{End, PATIENCE, pattern};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Mr, SendWr};
use rnic_sim::world::{HostId, World, WorldConfig};
use roce_wire::Gid;
use roce_wire::grh::{GRH_LEN, GrhArea};

/// Bytes in front of the payload of a receive.
const AREA: u32 = GRH_LEN as u32;
const QKEY: u32 = 0x1234_5678;

/// Queue pairs that send each other datagrams, one on each host unless said otherwise.
struct Party {
    world: World,
    ends: Vec<End>,
}

impl Party {
    fn new(config: &WorldConfig, hosts: &[HostId]) -> Self {
        let mut world = World::new(config);
        let open = |host: &HostId| {
            let end = End::new(&mut world, *host, |setup| setup.qp_type = QpType::Ud);
            world.host(*host).open_for_datagrams(end.qp, QKEY, 0xff_fff0);
            end
        };
        let ends = hosts.iter().map(open).collect();
        Self { world, ends }
    }

    /// How `from` names `to`.
    fn way(&mut self, from: usize, to: usize) -> To {
        let (from, to) = (self.ends[from], self.ends[to]);
        let peer = self.world.host(to.host);
        let (ip, qpn) = (peer.ip, peer.qpn(to.qp));
        let ah = self.world.host(from.host).create_ah(from.pd, ip);
        To { ah, qpn, qkey: QKEY }
    }

    fn post(&mut self, end: usize, wr: &SendWr) {
        let end = self.ends[end];
        self.world.host(end.host).post_send(end.qp, wr).expect("room in the queue");
    }

    fn recv(&mut self, end: usize, wr_id: u64, mr: Mr, at: u64, len: u32) {
        let end = self.ends[end];
        let sges = [mr.sge(at, 7), mr.sge(at + 7, len - 7)];
        self.world.host(end.host).post_recv(end.qp, wr_id, &sges).expect("room in the queue");
    }

    /// Everything that is on its way arrives: send and receive completions of `end`.
    fn completions(&mut self, end: usize) -> (Vec<Cqe>, Vec<Cqe>) {
        self.world.run_to_silence(PATIENCE);
        self.world.check();
        let end = self.ends[end];
        let host = self.world.host(end.host);
        (host.drain(end.send_cq), host.drain(end.recv_cq))
    }
}

/// Worlds with good links, simple ones and odd ones.
fn worlds() -> impl Iterator<Item = WorldConfig> {
    (0..20).map(WorldConfig::random_pair).chain([WorldConfig::pair(0)])
}

#[test]
fn datagrams_of_every_size_arrive_behind_the_header_that_they_came_with() {
    for (config, is_private) in
        worlds().flat_map(|config| [(config.clone(), true), (config, false)])
    {
        let mut party = Party::new(&config, &[0, 1]);
        let (a, b) = (party.ends[0], party.ends[1]);
        let to = party.way(0, 1);
        let host = party.world.host(b.host);
        let mr = if is_private { host.new_mr(b.pd, 8192, AccessFlags::LOCAL_WRITE) } else { b.mr };
        for (wr_id, len) in (10..).zip([0, 1, 3, 24, 25, 64, 1023, 1024, 4096]) {
            let data = pattern(len.into(), wr_id);
            party.world.host(a.host).write_bytes(a.mr.addr, &data);
            party.recv(1, wr_id, mr, 0, len + AREA);
            let wr = SendWr::send(wr_id, &[a.mr.sge(0, len)]).with_imm(0x0403_0201).to(to);
            party.post(0, &wr);
            let (_, received) = party.completions(1);
            let [cqe] = received[..] else { panic!("{len} bytes: {received:?}") };
            assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success));
            assert_eq!((cqe.opcode, cqe.byte_len), (WcOpcode::Recv, len + AREA));
            let flags = CqeFlags::IMM | CqeFlags::GRH | CqeFlags::RECV;
            assert_eq!((cqe.flags, cqe.imm_or_key), (flags, 0x0403_0201));
            assert_eq!(cqe.src_qp, party.world.hosts()[0].qpn(a.qp));
            let ips = [0, 1].map(|host| Gid::from_ip(party.world.hosts()[host].ip));
            let buffer = party.world.host(b.host).bytes(mr.addr, u64::from(len + AREA));
            let area = GrhArea::parse(buffer.first_chunk().expect("the area"));
            assert_eq!([area.src(), area.dst()], ips);
            assert!(buffer[GRH_LEN..] == data, "{len} bytes");
            let (sent, _) = party.completions(0);
            assert_eq!(sent.len(), 1);
            assert_eq!(sent[0].status, WcStatus::Success);
        }
    }
}

/// One queue pair sends to several: each datagram of a list goes its own way.
#[test]
fn a_list_of_datagrams_goes_to_many_peers() {
    for config in worlds() {
        // Two on each host: one is a neighbour of the sender, and one is the sender itself.
        let mut party = Party::new(&config, &[0, 0, 1, 1]);
        let ways: Vec<To> = (0..4).map(|to| party.way(0, to)).collect();
        let a = party.ends[0];
        let orders: Vec<usize> = (0..40).map(|k: usize| (k * k + k / 3) % 4).collect();
        for (k, to) in (0..).zip(&orders) {
            let mr = party.ends[*to].mr;
            party.recv(*to, k, mr, 8192 + k * 512, 512);
        }
        let data = pattern(400, 1);
        party.world.host(a.host).write_bytes(a.mr.addr, &data);
        let sends: Vec<SendWr> = (0..)
            .zip(&orders)
            .map(|(k, to)| SendWr::send(k, &[a.mr.sge(0, 10 * k as u32)]).to(ways[*to]))
            .collect();
        party.world.host(a.host).post_sends(a.qp, &sends).expect("room in the queue");
        let mut got = 0;
        for to in 0..4 {
            let (_, received) = party.completions(to);
            let wr_ids: Vec<u64> = received.iter().map(|cqe| cqe.wr_id).collect();
            let expected = (0..40).filter(|k| orders[*k as usize] == to);
            assert_eq!(wr_ids, expected.collect::<Vec<_>>());
            let end = party.ends[to];
            for cqe in &received {
                let at = end.mr.addr + 8192 + cqe.wr_id * 512 + u64::from(AREA);
                let len = 10 * cqe.wr_id;
                assert_eq!(u64::from(cqe.byte_len), len + u64::from(AREA));
                assert!(party.world.host(end.host).bytes(at, len) == &data[..len as usize]);
            }
            got += received.len();
        }
        assert_eq!(got, orders.len());
    }
}

/// The program may use its buffer again at the completion, also where the wire is inside the
/// engine.
#[test]
fn what_is_complete_may_be_overwritten() {
    const LEN: u32 = 4096;
    for keeps_internal in [false, true] {
        let port = PortConfig { max_segments: 16, keeps_internal, ..PortConfig::frames() };
        let config = WorldConfig { ports: vec![port], ..WorldConfig::pair(0) };
        let mut party = Party::new(&config, &[0]);
        let end = party.ends[0];
        let to = party.way(0, 0);
        let data = pattern(LEN.into(), 1);
        let host = party.world.host(0);
        host.memory.is_copied_from = true;
        host.write_bytes(end.mr.addr, &data);
        party.recv(0, 5, end.mr, 8192, LEN + AREA);
        party.post(0, &SendWr::send(7, &[end.mr.sge(0, LEN)]).to(to));
        while party.world.host(0).poll(end.send_cq).is_none() {
            assert!(party.world.step(), "the send completes");
        }
        party.world.host(0).write_bytes(end.mr.addr, &[0; LEN as usize]);
        let (_, received) = party.completions(0);
        assert_eq!(received.len(), 1);
        let at = end.mr.addr + 8192 + u64::from(AREA);
        assert!(party.world.host(0).bytes(at, LEN.into()) == data);
    }
}
