//! Two hosts with one connected queue pair each: the stage of most scenarios.

use crate::verbs::{Connection, CqId, Mr, QpId, QpSetup, SendWr, full_access};
use crate::world::{HostId, World, WorldConfig};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::WcStatus;
use rnic_abi::wqe::Sge;

/// One end: a QP, its CQs and its memory.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Where.
    pub host: HostId,
    /// Protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// The queue pair.
    pub qp: QpId,
    /// Memory with every right.
    pub mr: Mr,
}

/// Two ends.
#[derive(Debug)]
pub struct Pair {
    /// Their world.
    pub world: World,
    /// Host 0.
    pub a: End,
    /// Host 1.
    pub b: End,
    /// How they are connected, as `a` sees it.
    pub connection: Connection,
}

/// Bytes of each end's memory.
pub const MEMORY: u64 = 1 << 20;
/// Time that any scenario has for one message.
pub const PATIENCE: u64 = 60_000_000_000;

impl Pair {
    /// Connected over good links.
    pub fn new(seed: u64, connection: Connection) -> Self {
        Self::with(&WorldConfig::pair(seed), connection, |_| {})
    }

    /// Connected in a world of one's choice, with queue pairs of one's choice.
    pub fn with(
        config: &WorldConfig,
        connection: Connection,
        setup: impl Fn(&mut QpSetup),
    ) -> Self {
        let mut world = World::new(config);
        let a = End::new(&mut world, 0, &setup);
        let b = End::new(&mut world, 1, &setup);
        world.connect((0, a.qp), (1, b.qp), &connection);
        Self { world, a, b, connection }
    }

    /// Posts a receive at an end.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn recv(&mut self, end: End, wr_id: u64, sges: &[Sge]) {
        self.world.host(end.host).post_recv(end.qp, wr_id, sges).expect("room in the queue");
    }

    /// Posts a send at an end.
    ///
    /// # Panics
    /// When the queue is full or the request does not fit.
    pub fn post(&mut self, end: End, wr: &SendWr) {
        self.world.host(end.host).post_send(end.qp, wr).expect("a request that fits");
    }

    /// Waits for the next send completion of an end.
    pub fn sent(&mut self, end: End) -> Cqe {
        self.completion(end.host, end.send_cq, "send")
    }

    /// Waits for the next receive completion of an end.
    pub fn received(&mut self, end: End) -> Cqe {
        self.completion(end.host, end.recv_cq, "receive")
    }

    fn completion(&mut self, host: HostId, cq: CqId, what: &str) -> Cqe {
        let mut polled = None;
        let done = self.world.run_until(PATIENCE, |world| {
            polled = world.host(host).poll(cq);
            polled.is_some()
        });
        self.world.check();
        match polled {
            Some(cqe) if done => cqe,
            _ => self.world.fail(&format!("host {host} waits in vain for a {what} completion")),
        }
    }

    /// Posts a send and waits for its success.
    ///
    /// # Panics
    /// When it has another status.
    pub fn run(&mut self, end: End, wr: &SendWr) -> Cqe {
        self.post(end, wr);
        let cqe = self.sent(end);
        assert_eq!((cqe.wr_id, cqe.status), (wr.wr_id, WcStatus::Success));
        cqe
    }

    /// Lets everything on its way arrive; then nothing may be left to poll.
    ///
    /// # Panics
    /// When a completion is left.
    pub fn finish(&mut self) {
        self.world.run_to_silence(PATIENCE);
        for end in [self.a, self.b] {
            let host = self.world.host(end.host);
            assert_eq!(host.drain(end.send_cq), []);
            assert_eq!(host.drain(end.recv_cq), []);
        }
        self.world.check();
    }

    /// Fills an end's memory with bytes that follow from `salt`, and returns them.
    pub fn fill(&mut self, end: End, offset: u64, len: u64, salt: u64) -> Vec<u8> {
        let bytes = pattern(len, salt);
        self.world.host(end.host).write_bytes(end.mr.addr + offset, &bytes);
        bytes
    }

    /// An end's memory.
    pub fn memory(&mut self, end: End, offset: u64, len: u64) -> Vec<u8> {
        self.world.host(end.host).bytes(end.mr.addr + offset, len).to_vec()
    }
}

impl End {
    /// A QP with memory of its own, and with a PD and CQs of its own unless `setup` names others.
    pub fn new(world: &mut World, host: HostId, setup: impl Fn(&mut QpSetup)) -> Self {
        Self::with_memory(world, host, MEMORY, setup)
    }

    /// The same with so many bytes of memory instead of [`MEMORY`].
    pub fn with_memory(
        world: &mut World,
        host: HostId,
        len: u64,
        setup: impl Fn(&mut QpSetup),
    ) -> Self {
        let id = host;
        let host = world.host(id);
        let own_pd = host.alloc_pd();
        let (send_cq, recv_cq) = (host.create_cq(256), host.create_cq(256));
        let mut wanted = QpSetup { recv_cq, ..QpSetup::new(own_pd, send_cq) };
        setup(&mut wanted);
        let qp = host.create_qp(wanted);
        let QpSetup { pd, send_cq, recv_cq, .. } = wanted;
        let mr = host.new_mr(pd, len, full_access());
        Self { host: id, pd, send_cq, recv_cq, qp, mr }
    }
}

/// Bytes in which no run repeats soon.
pub fn pattern(len: u64, salt: u64) -> Vec<u8> {
    let mut rng = crate::rng::Rng::new(salt);
    let mut bytes = vec![0; usize::try_from(len).expect("a length that fits")];
    rng.fill(&mut bytes);
    bytes
}
