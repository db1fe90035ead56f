//! One engine with one queue pair, over a wire and memory of one's choice. The world of rnic-sim
//! watches its engines, which would count as instructions of theirs.

use rnic_abi::control::AsyncEvent;
use rnic_abi::cq::{CqConsumer, CqProducer, cq_words};
use rnic_abi::cqe::Cqe;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::verbs::{
    AccessFlags, AhAttr, AttrMask, QpAttr, QpCaps, QpState, QpType, SendFlags, WrOpcode,
};
use rnic_abi::words::Words;
use rnic_abi::work_queue::{QueueShape, WorkConsumer, WorkProducer};
use rnic_abi::wqe::{MAX_SLOT_WORDS, RecvControl, SendControl, Sge, recv_stride, send_stride};
#[cfg(feature = "observe")]
use rnic_core::Event;
use rnic_core::ports::SpaceId;
use rnic_core::{
    ChannelId, ClientCommand, ClientId, Command, Dma, Engine, EngineConfig, EngineQueue, Host,
    Instant, NewQp, NewReceives, NewSrq, Outcome, Path, Ports, Turn, Wire,
};
use roce_wire::Flow;
use std::net::{IpAddr, Ipv4Addr};

const CLIENT: ClientId = ClientId(7);
const SPACE: SpaceId = SpaceId(3);
/// Where application memory begins.
pub(crate) const BASE: u64 = 0x7000_0000;
const MEMORY: usize = 8 << 20;
pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000);

/// A host without programs that wait for events.
struct NoHost;

impl Host for NoHost {
    fn completion_event(&mut self, _client: ClientId, _channel: ChannelId, _cq: u32) {}

    fn async_event(&mut self, _client: ClientId, _event: AsyncEvent) {}
}

/// One engine with one client, one QP, one CQ and one memory region.
pub(crate) struct Node<W, D> {
    engine: Engine,
    pub(crate) wire: W,
    dma: D,
    host: NoHost,
    pub(crate) ip: IpAddr,
    bell: Bell,
    cq: CqConsumer,
    pd: u32,
    cq_handle: u32,
    qp: u32,
    pub(crate) qpn: u32,
    sq: WorkProducer,
    rq: WorkProducer,
    /// Key of all memory, with every right.
    pub(crate) key: u32,
    /// What it is told while it is watched.
    #[cfg(feature = "observe")]
    pub(crate) observed: Option<Vec<(Instant, Event)>>,
}

const CAPS: QpCaps = QpCaps {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 256,
};
const CQE: u32 = 1024;
/// Queue pairs that are only there post nothing.
const IDLE_CAPS: QpCaps = QpCaps { max_send_wr: 1, max_send_sge: 1, max_inline_data: 0, ..CAPS };

/// The doorbell records of the QP. Those behind them are of queue pairs that are only there.
const SQ_RECORD: u32 = 0;
const RQ_RECORD: u32 = 1;
const IDLE_RECORDS: u32 = 2;

/// Where the QP takes its receives from.
#[derive(Clone, Copy)]
pub(crate) enum Receives {
    Own,
    /// A shared receive queue, which so many queue pairs share that are only there.
    Shared {
        idle: u32,
    },
}

/// The attributes of an ordinary connection.
pub(crate) fn attrs() -> QpAttr {
    QpAttr {
        path_mtu: 3,
        rq_psn: 0,
        sq_psn: 0,
        access: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC,
        ah: AhAttr { is_global: true, port_num: 1, dgid: [1; 16], ..AhAttr::default() },
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    }
}

impl Receives {
    /// With the handle of the shared receive queue, and how many queue pairs are to share it.
    fn make(
        self,
        pd: u32,
        queue: EngineQueue,
        client: &mut impl FnMut(ClientCommand) -> Outcome,
    ) -> (NewReceives, Option<(u32, u32)>) {
        let idle = match self {
            Self::Own => return (NewReceives::Own(queue), None),
            Self::Shared { idle } => idle,
        };
        let (max_wr, max_sge) = (CAPS.max_recv_wr, CAPS.max_recv_sge);
        let new = NewSrq { pd, queue, max_wr, max_sge, xrc: None };
        let Outcome::NewSrq { srq, .. } = client(ClientCommand::CreateSrq(new)) else {
            panic!("no SRQ")
        };
        (NewReceives::Shared(srq), Some((srq, idle)))
    }
}

fn record(index: u32) -> RecordIndex {
    RecordIndex::new(index).unwrap()
}

fn all_access() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_ATOMIC
}

fn queue(wr: u32, stride: usize) -> (WorkProducer, WorkConsumer) {
    let shape =
        QueueShape { capacity: wr.next_power_of_two(), stride: u32::try_from(stride).unwrap() };
    let words = Words::heap(shape.words().unwrap());
    (WorkProducer::new(words.clone(), shape).unwrap(), WorkConsumer::new(words, shape).unwrap())
}

impl<W: Wire, D: Dma> Node<W, D> {
    pub(crate) fn new(last_octet: u8, wire: W, dma: D, receives: Receives) -> Self {
        let mut engine = Engine::new(EngineConfig::new([11, 22]), START);
        let area = Words::heap(AREA_WORDS);
        let doorbells = Doorbells::new(area.clone()).unwrap();
        let add = Command::AddClient { client: CLIENT, space: SPACE, doorbells };
        engine.execute(START, add).unwrap();
        let mut client = |command| {
            engine.execute(START, Command::Client(CLIENT, command)).expect("command refused")
        };
        let Outcome::Handle(pd) = client(ClientCommand::AllocPd) else { panic!("no PD") };
        let words = Words::heap(cq_words(CQE).unwrap());
        let cq = CqConsumer::new(words.clone(), CQE).unwrap();
        let ring = CqProducer::new(words, CQE).unwrap();
        let channel = Some(ChannelId(1));
        let create = ClientCommand::CreateCq { ring, capacity: CQE, channel };
        let Outcome::Handle(cq_handle) = client(create) else { panic!("no CQ") };
        let (sq, sq_engine) =
            queue(CAPS.max_send_wr, send_stride(CAPS.max_send_sge, CAPS.max_inline_data));
        let (rq, rq_engine) = queue(CAPS.max_recv_wr, recv_stride(CAPS.max_recv_sge));
        let rq_engine = EngineQueue { ring: rq_engine, record: record(RQ_RECORD) };
        let (receives, idle) = receives.make(pd, rq_engine, &mut client);
        let new = NewQp {
            pd,
            qp_type: QpType::Rc,
            send_cq: cq_handle,
            recv_cq: cq_handle,
            caps: CAPS,
            sq_sig_all: false,
            sq: EngineQueue { ring: sq_engine, record: record(SQ_RECORD) },
            rq: receives,
        };
        let Outcome::Qp { qp, qpn } = client(ClientCommand::CreateQp(Box::new(new))) else {
            panic!("no QP")
        };
        let mut node = Self {
            engine,
            wire,
            dma,
            host: NoHost,
            #[cfg(feature = "observe")]
            observed: None,
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last_octet)),
            bell: Bell::new(area).unwrap(),
            cq,
            pd,
            cq_handle,
            qp,
            qpn,
            sq,
            rq,
            key: 0,
        };
        let (addr, length, access) = (BASE, MEMORY as u64, all_access());
        let register = ClientCommand::RegMr { pd, space: SPACE, addr, length, iova: addr, access };
        let Outcome::Mr { lkey, .. } = node.command(register) else { panic!("no MR") };
        node.key = lkey;
        if let Some((srq, idle)) = idle {
            (0..idle).for_each(|nth| node.add_idle(srq, nth));
        }
        node
    }

    /// Adds a queue pair to the shared receive queue that could receive, by turns one with a peer
    /// and one for datagrams.
    fn add_idle(&mut self, srq: u32, nth: u32) {
        let (_, ring) = queue(1, send_stride(IDLE_CAPS.max_send_sge, IDLE_CAPS.max_inline_data));
        let qp_type = if nth.is_multiple_of(2) { QpType::Rc } else { QpType::Ud };
        let new = NewQp {
            pd: self.pd,
            qp_type,
            send_cq: self.cq_handle,
            recv_cq: self.cq_handle,
            caps: IDLE_CAPS,
            sq_sig_all: false,
            sq: EngineQueue { ring, record: record(IDLE_RECORDS + nth) },
            rq: NewReceives::Shared(srq),
        };
        let Outcome::Qp { qp, .. } = self.command(ClientCommand::CreateQp(Box::new(new))) else {
            panic!("no QP")
        };
        match qp_type {
            QpType::Ud => self.open(qp),
            _ => self.connect_qp(qp, self.ip, nth, attrs()),
        }
    }

    /// Takes a QP without a connection from RESET to RTS.
    fn open(&mut self, qp: u32) {
        let to = |state| QpAttr { state, port_num: 1, qkey: 1, ..QpAttr::default() };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        self.modify(qp, init, to(QpState::Init), None);
        self.modify(qp, AttrMask::STATE, to(QpState::Rtr), None);
        self.modify(qp, AttrMask::STATE | AttrMask::SQ_PSN, to(QpState::Rts), None);
    }

    fn command(&mut self, command: ClientCommand) -> Outcome {
        self.engine.execute(START, Command::Client(CLIENT, command)).expect("command refused")
    }

    fn modify(&mut self, qp: u32, mask: AttrMask, attr: QpAttr, path: Option<Path>) {
        self.command(ClientCommand::ModifyQp { qp, mask, attr, path });
    }

    /// Takes the QP from RESET to RTS.
    pub(crate) fn connect(&mut self, peer: IpAddr, dest_qpn: u32, attr: QpAttr) {
        self.connect_qp(self.qp, peer, dest_qpn, attr);
    }

    fn connect_qp(&mut self, qp: u32, peer: IpAddr, dest_qpn: u32, attr: QpAttr) {
        let attr = QpAttr { dest_qpn, ..attr };
        let to = |state| QpAttr { state, ..attr };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.modify(qp, init, to(QpState::Init), None);
        let rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let flow = Flow::new(self.ip, peer, 0);
        let path = Path { attr: attr.ah, flow, hop: Default::default() };
        self.modify(qp, rtr, to(QpState::Rtr), Some(path));
        let rts = AttrMask::STATE
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::SQ_PSN
            | AttrMask::MAX_QP_RD_ATOMIC;
        self.modify(qp, rts, to(QpState::Rts), None);
    }

    /// Posts a send WQE with SGEs.
    pub(crate) fn post_send(&mut self, control: SendControl, sges: &[Sge]) {
        let mut words = Vec::with_capacity(MAX_SLOT_WORDS);
        words.extend(SendControl { num_sge: sges.len() as u8, ..control }.encode());
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        assert!(self.sq.free() > 0, "the send queue is full");
        self.sq.push(&words);
        let _ = self.bell.ring(record(SQ_RECORD), self.sq.producer());
        self.engine.client_rang(START, CLIENT);
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        let mut words = Vec::new();
        words.extend(RecvControl { num_sge: sges.len() as u8, wr_id }.encode());
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        assert!(self.rq.free() > 0, "the receive queue is full");
        self.rq.push(&words);
        self.bell.publish(record(RQ_RECORD), self.rq.producer());
    }

    pub(crate) fn poll(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.key }
    }

    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        let mut ports = Ports { wire: &mut self.wire, dma: &mut self.dma, host: &mut self.host };
        #[cfg(feature = "observe")]
        if let Some(events) = &mut self.observed {
            events.clear();
            return self.engine.turn(now, &mut ports, events);
        }
        self.engine.turn(now, &mut ports, &mut ())
    }
}

pub(crate) fn send_control(opcode: WrOpcode, wr_id: u64) -> SendControl {
    SendControl::new(opcode, SendFlags::SIGNALED, wr_id)
}
