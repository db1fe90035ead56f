//! One engine with one queue pair, over a wire and memory of this process: for what the world of
//! rnic-sim does not have, and for benchmarks.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]

pub mod wire;

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
use rnic_core::ports::SpaceId;
use rnic_core::{
    ChannelId, ClientCommand, ClientId, Command, Dma, Engine, EngineConfig, EngineQueue, Host,
    Instant, NewQp, Outcome, Path, Ports, Turn, Wire,
};
use roce_wire::Flow;
use std::net::{IpAddr, Ipv4Addr};
use wire::{HeapDma, HeapWire, Packet};

pub const CLIENT: ClientId = ClientId(7);
pub const SPACE: SpaceId = SpaceId(3);
/// Where application memory begins.
pub const BASE: u64 = 0x7000_0000;
pub const MEMORY: usize = 8 << 20;
pub const START: Instant = Instant::from_nanos(1_000_000_000);

/// A host without programs that wait for events.
pub struct NoHost;

impl Host for NoHost {
    fn completion_event(&mut self, _client: ClientId, _channel: ChannelId, _cq: u32) {}

    fn async_event(&mut self, _client: ClientId, _event: AsyncEvent) {}
}

/// One engine with one client, one QP, one CQ and one memory region.
pub struct Node<W = HeapWire, D = HeapDma> {
    pub engine: Engine,
    pub wire: W,
    pub dma: D,
    pub host: NoHost,
    pub ip: IpAddr,
    pub bell: Bell,
    pub cq: CqConsumer,
    pub qp: u32,
    pub qpn: u32,
    pub sq: WorkProducer,
    pub rq: WorkProducer,
    /// Key of all memory, with every right.
    pub key: u32,
}

pub struct Options {
    pub config: EngineConfig,
    pub caps: QpCaps,
    pub cqe: u32,
    pub sq_sig_all: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: EngineConfig::new([11, 22]),
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            cqe: 1024,
            sq_sig_all: false,
        }
    }
}

/// The attributes of an ordinary connection.
pub fn attrs() -> QpAttr {
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

pub fn all_access() -> AccessFlags {
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

impl Node {
    pub fn new(last_octet: u8, options: &Options) -> Self {
        let dma = HeapDma::new(SPACE, BASE, MEMORY);
        Self::over(last_octet, options, HeapWire::new(), dma)
    }

    pub fn memory(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.dma.bytes[offset..offset + len]
    }

    /// Everything sent since the last call.
    pub fn sent(&mut self) -> Vec<Packet> {
        self.wire.outbox.drain(..).collect()
    }

    /// A datagram for this node.
    pub fn inject(&mut self, packet: Packet) {
        self.wire.inbox.push_back(packet);
    }
}

impl<W: Wire, D: Dma> Node<W, D> {
    pub fn over(last_octet: u8, options: &Options, wire: W, dma: D) -> Self {
        let mut engine = Engine::new(options.config, START);
        let area = Words::heap(AREA_WORDS);
        let doorbells = Doorbells::new(area.clone()).unwrap();
        let add = Command::AddClient { client: CLIENT, space: SPACE, doorbells };
        engine.execute(START, add).unwrap();
        let mut client = |command| {
            engine.execute(START, Command::Client(CLIENT, command)).expect("command refused")
        };
        let Outcome::Handle(pd) = client(ClientCommand::AllocPd) else { panic!("no PD") };
        let words = Words::heap(cq_words(options.cqe).unwrap());
        let cq = CqConsumer::new(words.clone(), options.cqe).unwrap();
        let ring = CqProducer::new(words, options.cqe).unwrap();
        let channel = Some(ChannelId(1));
        let create = ClientCommand::CreateCq { ring, capacity: options.cqe, channel };
        let Outcome::Handle(cq_handle) = client(create) else { panic!("no CQ") };
        let caps = options.caps;
        let (sq, sq_engine) =
            queue(caps.max_send_wr, send_stride(caps.max_send_sge, caps.max_inline_data));
        let (rq, rq_engine) = queue(caps.max_recv_wr, recv_stride(caps.max_recv_sge));
        let new = NewQp {
            pd,
            qp_type: QpType::Rc,
            send_cq: cq_handle,
            recv_cq: cq_handle,
            caps,
            sq_sig_all: options.sq_sig_all,
            sq: EngineQueue { ring: sq_engine, record: RecordIndex::new(0).unwrap() },
            rq: EngineQueue { ring: rq_engine, record: RecordIndex::new(1).unwrap() },
        };
        let Outcome::Qp { qp, qpn } = client(ClientCommand::CreateQp(Box::new(new))) else {
            panic!("no QP")
        };
        let mut node = Self {
            engine,
            wire,
            dma,
            host: NoHost,
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last_octet)),
            bell: Bell::new(area).unwrap(),
            cq,
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
        node
    }

    pub fn command(&mut self, command: ClientCommand) -> Outcome {
        self.engine.execute(START, Command::Client(CLIENT, command)).expect("command refused")
    }

    pub fn modify(&mut self, now: Instant, mask: AttrMask, attr: QpAttr, path: Option<Path>) {
        let qp = self.qp;
        let modify = ClientCommand::ModifyQp { qp, mask, attr, path };
        self.engine.execute(now, Command::Client(CLIENT, modify)).expect("modify refused");
    }

    /// Takes the QP from RESET to `last`.
    pub fn connect(&mut self, peer: IpAddr, dest_qpn: u32, attr: QpAttr, last: QpState) {
        let attr = QpAttr { dest_qpn, ..attr };
        let to = |state| QpAttr { state, ..attr };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.modify(START, init, to(QpState::Init), None);
        let rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let flow = Flow::new(self.ip, peer, 0);
        let path = Path { attr: attr.ah, flow, hop: Default::default() };
        self.modify(START, rtr, to(QpState::Rtr), Some(path));
        if last == QpState::Rts {
            let rts = AttrMask::STATE
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::SQ_PSN
                | AttrMask::MAX_QP_RD_ATOMIC;
            self.modify(START, rts, to(QpState::Rts), None);
        }
    }

    pub fn state(&self) -> QpState {
        self.engine.qp(self.qp).unwrap().attr.state
    }

    /// Posts a send WQE with SGEs.
    pub fn post_send(&mut self, control: SendControl, sges: &[Sge]) {
        let mut words = Vec::with_capacity(MAX_SLOT_WORDS);
        words.extend(SendControl { num_sge: sges.len() as u8, ..control }.encode());
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        assert!(self.sq.free() > 0, "the send queue is full");
        self.sq.push(&words);
        let _ = self.bell.ring(RecordIndex::new(0).unwrap(), self.sq.producer());
        self.engine.client_rang(START, CLIENT);
    }

    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        let mut words = Vec::new();
        words.extend(RecvControl { num_sge: sges.len() as u8, wr_id }.encode());
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        assert!(self.rq.free() > 0, "the receive queue is full");
        self.rq.push(&words);
        self.bell.publish(RecordIndex::new(1).unwrap(), self.rq.producer());
    }

    pub fn poll(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.key }
    }

    pub fn turn(&mut self, now: Instant) -> Turn {
        let mut ports = Ports { wire: &mut self.wire, dma: &mut self.dma, host: &mut self.host };
        self.engine.turn(now, &mut ports, &mut ())
    }

    /// Turns until nothing more happens by itself.
    pub fn settle(&mut self, now: Instant) {
        for _ in 0..10_000 {
            let turn = self.turn(now);
            if !turn.worked && !turn.more {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }
}

pub fn send_control(opcode: WrOpcode, wr_id: u64) -> SendControl {
    SendControl::new(opcode, SendFlags::SIGNALED, wr_id)
}

/// Bytes that differ at every place and by seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}
