//! XRC between two engines: every verb at every interesting size, several initiators and targets on
//! the shared receive queues of one domain, and what is left of that on bad links.

mod bad_links;

use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{QpType, WcOpcode, WcStatus};
use rnic_sim::pair::{End, PATIENCE, pattern};
use rnic_sim::srq::SrqId;
use rnic_sim::verbs::{Connection, CqId, Mr, QpId, QpSetup, SendWr, full_access};
use rnic_sim::world::{HostId, World, WorldConfig};
use rnic_sim::xrc::PRIVATE;

/// Shared receive queues of the domain, each with a protection domain of its own.
const QUEUES: usize = 3;
/// Bytes of each one's memory.
const ROOM: u64 = 1 << 20;
/// Where receives are in it.
const RECEIVES: u64 = 512 << 10;

/// A shared receive queue, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Queue {
    srq: SrqId,
    srqn: u32,
    cq: CqId,
    mr: Mr,
}

/// Initiators on host 0, their targets on host 1, and the queues of the targets' domain.
struct Domain {
    world: World,
    sender: End,
    /// Initiator and target of each connection.
    connections: Vec<(QpId, QpId)>,
    queues: [Queue; QUEUES],
}

const SENDER: HostId = 0;
const RECEIVER: HostId = 1;

impl Domain {
    fn new(config: &WorldConfig, connections: usize, connection: Connection) -> Self {
        let mut world = World::new(config);
        let sender = End::new(&mut world, SENDER, |setup| setup.qp_type = QpType::XrcSend);
        let host = world.host(RECEIVER);
        let xrcd = host.open_xrcd(PRIVATE);
        let queues = [(); QUEUES].map(|()| {
            let (pd, cq) = (host.alloc_pd(), host.create_cq(256));
            let mr = host.new_mr(pd, ROOM, full_access());
            let srq = host.create_xrc_srq(pd, xrcd, cq, 64);
            Queue { srq, srqn: host.srqn(srq), cq, mr }
        });
        let setup = QpSetup { qp_type: QpType::XrcSend, ..QpSetup::new(sender.pd, sender.send_cq) };
        let pair = |nth| {
            let initiator = match nth {
                0 => sender.qp,
                _ => world.host(SENDER).create_qp(setup),
            };
            let target = world.host(RECEIVER).create_target(xrcd);
            world.connect((SENDER, initiator), (RECEIVER, target), &connection);
            (initiator, target)
        };
        let connections = (0..connections).map(pair).collect();
        Self { world, sender, connections, queues }
    }

    fn post(&mut self, nth: usize, wr: &SendWr) {
        let (initiator, _) = self.connections[nth];
        self.world.host(SENDER).post_send(initiator, wr).expect("room in the queue");
    }

    /// Posts a receive of so many bytes at a place of its own.
    fn recv(&mut self, queue: usize, wr_id: u64, at: u64, len: u32) {
        let Queue { srq, mr, .. } = self.queues[queue];
        let sge = mr.sge(RECEIVES + at, len);
        self.world.host(RECEIVER).post_srq_recv(srq, wr_id, &[sge]).expect("room in the queue");
    }

    fn sent(&mut self) -> Vec<Cqe> {
        let cq = self.sender.send_cq;
        self.world.host(SENDER).drain(cq)
    }

    fn received(&mut self, queue: usize) -> Vec<Cqe> {
        let cq = self.queues[queue].cq;
        self.world.host(RECEIVER).drain(cq)
    }

    fn settle(&mut self) {
        self.world.run_to_silence(PATIENCE);
        self.world.check();
    }

    fn fill(&mut self, offset: u64, len: u64, salt: u64) -> Vec<u8> {
        let data = pattern(len, salt);
        self.world.host(SENDER).write_bytes(self.sender.mr.addr + offset, &data);
        data
    }

    /// Memory of a queue's owner.
    fn memory(&self, queue: usize, offset: u64, len: u64) -> &[u8] {
        self.world.hosts()[RECEIVER].bytes(self.queues[queue].mr.addr + offset, len)
    }
}

fn sizes(mtu: u32) -> [u32; 7] {
    [0, 1, 64, mtu, mtu + 1, 2 * mtu + 3, 17 * mtu + 5]
}

/// Worlds with good links, simple ones and odd ones.
fn worlds() -> impl Iterator<Item = (WorldConfig, u8)> {
    let configs = (0..10).map(WorldConfig::random_pair).chain([WorldConfig::pair(0)]);
    configs.flat_map(|config| [1, 3].map(|mtu| (config.clone(), mtu)))
}

fn connection(path_mtu: u8) -> Connection {
    Connection { path_mtu, sq_psn: 0xff_fff0, ..Connection::default() }
}

#[test]
fn every_verb_at_every_size_reaches_the_queue_that_it_names() {
    for (config, mtu) in worlds() {
        let connection = connection(mtu);
        let mut domain = Domain::new(&config, 2, connection);
        for (wr_id, len) in (10..).zip(sizes(connection.mtu())) {
            let queue = usize::try_from(wr_id).unwrap() % QUEUES;
            let Queue { srqn, mr, .. } = domain.queues[queue];
            let source = domain.sender.mr.sge(0, len);
            let data = domain.fill(0, len.into(), wr_id);
            domain.recv(queue, wr_id, 0, len);
            domain.recv(queue, wr_id + 1000, 0, 0);
            let send = SendWr::send(wr_id, &[source]).with_imm(9);
            domain.post(1, &send.named(srqn));
            let write = SendWr::write(wr_id, &[source], mr.remote(0)).with_imm(8);
            domain.post(1, &write.named(srqn));
            let back = domain.sender.mr.sge(500_000, len);
            domain.post(1, &SendWr::read(wr_id, &[back], mr.remote(0)).named(srqn));
            domain.settle();
            assert!(domain.sent().iter().all(|cqe| cqe.status == WcStatus::Success));
            let got = domain.received(queue);
            let told: Vec<_> =
                got.iter().map(|cqe| (cqe.wr_id, cqe.opcode, cqe.byte_len)).collect();
            let expected =
                [(wr_id, WcOpcode::Recv, len), (wr_id + 1000, WcOpcode::RecvWriteImm, len)];
            assert_eq!(told, expected);
            let (_, target) = domain.connections[1];
            let qpn = domain.world.hosts()[RECEIVER].qpn(target);
            assert!(got.iter().all(|cqe| cqe.flags.contains(CqeFlags::IMM) && cqe.qpn == qpn));
            assert!(domain.memory(queue, RECEIVES, len.into()) == data, "{len} bytes");
            assert!(domain.memory(queue, 0, len.into()) == data, "{len} bytes");
            let back = domain.sender.mr.addr + 500_000;
            assert!(domain.world.hosts()[SENDER].bytes(back, len.into()) == data);
        }
        domain.settle();
    }
}

#[test]
fn atomics_reach_the_memory_of_the_named_queue() {
    let mut domain = Domain::new(&WorldConfig::pair(3), 1, connection(3));
    let word = domain.sender.mr.sge(0, 8);
    for (nth, queue) in [(1, 0), (2, 2), (3, 0)] {
        let Queue { srqn, mr, .. } = domain.queues[queue];
        domain.post(0, &SendWr::fetch_add(nth, word, mr.remote(0), nth).named(srqn));
        domain.post(0, &SendWr::cmp_swap(nth, word, mr.remote(8), nth - 1, nth).named(srqn));
    }
    domain.settle();
    assert_eq!(domain.sent().len(), 6);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let words = [0, 2].map(|queue| [0, 8].map(|at| number(domain.memory(queue, at, 8))));
    assert_eq!(words, [[4, 1], [2, 0]]);
}
