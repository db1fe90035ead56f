//! A simulated host: an engine, its port and memory, and an application that uses verbs over the
//! same rings and doorbells as a real one.

use crate::memory::Memory;
use crate::oracle::QueueOracle;
use crate::port::{Port, PortConfig};
use crate::srq::AppSrq;
use crate::trace::Trace;
use crate::verbs::{CqId, Mr, QpId, QpSetup};
use crate::witness::Seen;
use rnic_abi::control::AsyncEvent;
use rnic_abi::cq::{CqConsumer, CqProducer, cq_words};
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpType};
use rnic_abi::words::Words;
use rnic_abi::work_queue::{QueueShape, WorkConsumer, WorkProducer};
use rnic_abi::wqe::{Sge, recv_stride, send_stride};
use rnic_core::OutgoingMad;
use rnic_core::command::{
    ChannelId, ClientCommand, ClientId, Command, CommandError, EngineQueue, NewQp, NewReceives,
    Outcome,
};
use rnic_core::config::EngineConfig;
use rnic_core::engine::{Engine, Turn};
use rnic_core::ports::{self, HopId, Ports, SpaceId};
use rnic_core::time::Instant;
use roce_wire::mad::MAD_LEN;
use roce_wire::{Flow, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;

/// A host.
#[derive(Debug)]
pub struct Host {
    /// Its only address.
    pub ip: IpAddr,
    /// Its NIC.
    pub engine: Engine,
    /// Its packet I/O.
    pub port: Port,
    /// Its memory.
    pub memory: Memory,
    /// What its engine did last.
    pub trace: Trace,
    pub(crate) now: Instant,
    pub(crate) notices: Notices,
    pub(crate) bell: Bell,
    /// A client wrote its eventfd, and it was not looked at.
    pub(crate) rang: bool,
    /// The control plane woke the engine's thread, or a doorbell rang that it polls.
    pub(crate) called: bool,
    records: Records,
    pub(crate) cqs: Vec<AppCq>,
    pub(crate) qps: Vec<AppQp>,
    pub(crate) srqs: Vec<AppSrq>,
    pub(crate) verdicts: Vec<String>,
    pub(crate) polled: u64,
}

/// Management datagrams that a host keeps.
pub const MAX_MADS: usize = 4;

/// What the engine told the application.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(crate) completions: Vec<u32>,
    pub(crate) asyncs: Vec<AsyncEvent>,
    pub(crate) mads: Vec<(Flow, Qpn, [u8; MAD_LEN])>,
}

impl ports::Host for Notices {
    fn completion_event(&mut self, _client: ClientId, _channel: ChannelId, cq: u32) {
        self.completions.push(cq);
    }

    fn async_event(&mut self, _client: ClientId, event: AsyncEvent) {
        self.asyncs.push(event);
    }

    fn management(&mut self, flow: &Flow, sender: Qpn, mad: &[u8; MAD_LEN]) -> bool {
        let has_room = self.mads.len() < MAX_MADS;
        if has_room {
            self.mads.push((*flow, sender, *mad));
        }
        has_room
    }
}

/// Doorbell records, reused when their queue is gone.
#[derive(Debug, Default)]
struct Records {
    next: u32,
    free: Vec<RecordIndex>,
}

impl Records {
    fn take(&mut self) -> RecordIndex {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            RecordIndex::new(self.next - 1).expect("records enough for a simulation")
        })
    }
}

#[derive(Debug)]
pub(crate) struct AppCq {
    pub(crate) handle: u32,
    pub(crate) ring: CqConsumer,
}

#[derive(Debug)]
pub(crate) struct AppQp {
    pub(crate) handle: u32,
    pub(crate) qpn: u32,
    pub(crate) setup: QpSetup,
    pub(crate) sq: AppQueue,
    pub(crate) rq: AppQueue,
    /// SGEs of posted receives, for data that comes inside the CQE.
    pub(crate) receives: VecDeque<Vec<Sge>>,
    pub(crate) is_gone: bool,
}

#[derive(Debug)]
pub(crate) struct AppQueue {
    pub(crate) record: RecordIndex,
    pub(crate) ring: WorkProducer,
    pub(crate) capacity: u32,
    pub(crate) stride: usize,
    pub(crate) oracle: QueueOracle,
}

/// The one application of a host.
pub(crate) const CLIENT: ClientId = ClientId(1);
/// Its memory.
pub const SPACE: SpaceId = SpaceId(1);
/// Where all its completion events go.
const CHANNEL: ChannelId = ChannelId(1);
/// To any other host.
const HOP: HopId = HopId(1);

impl Host {
    /// The way to an address.
    pub(crate) fn hop_to(&self, peer: IpAddr) -> HopId {
        if peer == self.ip { HopId::LOCAL } else { HOP }
    }

    /// A host with an application that has opened the device.
    pub fn new(ip: IpAddr, config: EngineConfig, port: PortConfig, now: Instant) -> Self {
        let mut engine = Engine::new(config, now);
        let area = Words::heap(AREA_WORDS);
        let doorbells = Doorbells::new(area.clone()).expect("the area is large enough");
        let bell = Bell::new(area).expect("the engine made it a doorbell area");
        engine
            .execute(now, Command::AddClient { client: CLIENT, space: SPACE, doorbells })
            .expect("a new engine takes a client");
        Self {
            ip,
            engine,
            port: Port::new(port),
            memory: Memory::default(),
            trace: Trace::default(),
            now,
            notices: Notices::default(),
            bell,
            rang: false,
            called: false,
            records: Records::default(),
            cqs: Vec::new(),
            qps: Vec::new(),
            srqs: Vec::new(),
            verdicts: Vec::new(),
            polled: 0,
        }
    }

    /// Runs one turn of the engine.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        self.now = now;
        self.called = false;
        self.port.begin_turn(now);
        let told = self.notices.asyncs.len();
        let mut ports =
            Ports { wire: &mut self.port, dma: &mut self.memory, host: &mut self.notices };
        let turn = self.engine.turn(now, &mut ports, &mut self.trace);
        self.judge_events(told);
        turn
    }

    /// The thread of the engine looks at the eventfds of its clients.
    pub(crate) fn look_at_clients(&mut self) {
        if std::mem::take(&mut self.rang) {
            self.engine.client_rang(self.now, CLIENT);
        }
    }

    /// The SQ_DRAINED event comes only when every request that was started is complete.
    fn judge_events(&mut self, told: usize) {
        for event in &self.notices.asyncs[told..] {
            let drained = event.event == AsyncEventType::SqDrained;
            let Some(qp) = self.qps.iter().find(|qp| drained && qp.handle == event.element) else {
                continue;
            };
            if !self.trace.witness.is_drained(qp.qpn) {
                self.verdicts.push(format!("{} QP {:#x} is not drained", self.ip, qp.qpn));
            }
        }
    }

    /// Compares the counters with what happened. Everything must be polled.
    ///
    /// # Errors
    /// Those that are wrong.
    pub fn check_counters(&self) -> Result<(), String> {
        let (taken, given) = self.port.datagrams();
        let seen = Seen { taken, given, completions: self.polled };
        self.trace.witness.tally().check(self.engine.counters(), &seen)
    }

    /// What any part of the host did that must not be.
    pub(crate) fn violations(&self) -> impl Iterator<Item = &String> {
        let witness = self.trace.witness.verdicts();
        let (port, memory) = (self.port.violations(), self.memory.violations());
        let parts = [self.verdicts.as_slice(), witness, port, memory];
        parts.into_iter().flatten()
    }

    /// Executes a command of the application.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn command(&mut self, command: ClientCommand) -> Result<Outcome, CommandError> {
        self.engine.execute(self.now, Command::Client(CLIENT, command))
    }

    fn handle(&mut self, command: ClientCommand) -> u32 {
        match self.command(command) {
            Ok(Outcome::Handle(handle)) => handle,
            other => panic!("the engine does not make the object: {other:?}"),
        }
    }

    /// Sends a management datagram from QP1.
    ///
    /// # Errors
    /// When too many wait.
    pub fn send_mad(&mut self, mad: OutgoingMad) -> Result<Outcome, CommandError> {
        self.called = true;
        self.engine.execute(self.now, Command::SendMad(Box::new(mad)))
    }

    /// Management datagrams that have arrived: addresses, the sender's queue pair, content.
    pub fn take_mads(&mut self) -> Vec<(Flow, Qpn, [u8; MAD_LEN])> {
        std::mem::take(&mut self.notices.mads)
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> u32 {
        self.handle(ClientCommand::AllocPd)
    }

    /// Maps memory of the application.
    pub fn alloc(&mut self, len: u64) -> u64 {
        self.memory.map(SPACE, len)
    }

    /// Registers memory.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn reg_mr(&mut self, pd: u32, addr: u64, len: u64, access: AccessFlags) -> Mr {
        let reg = ClientCommand::RegMr { pd, space: SPACE, addr, length: len, iova: addr, access };
        match self.command(reg) {
            Ok(Outcome::Mr { mr, lkey, rkey }) => {
                self.memory.register(SPACE, addr, len, access);
                Mr { handle: mr, lkey, rkey, addr, len }
            }
            other => panic!("the engine does not register memory: {other:?}"),
        }
    }

    /// Maps and registers memory.
    pub fn new_mr(&mut self, pd: u32, len: u64, access: AccessFlags) -> Mr {
        let addr = self.alloc(len);
        self.reg_mr(pd, addr, len, access)
    }

    /// Deregisters memory: from now on no DMA may touch it.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn dereg_mr(&mut self, mr: &Mr) {
        self.command(ClientCommand::DeregMr { mr: mr.handle }).expect("an idle MR goes");
        self.memory.deregister(SPACE, mr.addr, mr.len);
    }

    /// The application reads its memory.
    pub fn bytes(&self, addr: u64, len: u64) -> &[u8] {
        self.memory.bytes(SPACE, addr, len)
    }

    /// The application writes its memory.
    pub fn write_bytes(&mut self, addr: u64, bytes: &[u8]) {
        self.memory.bytes_mut(SPACE, addr, bytes.len() as u64).copy_from_slice(bytes);
    }

    /// Creates a completion queue with a completion channel.
    pub fn create_cq(&mut self, capacity: u32) -> CqId {
        let capacity = capacity.next_power_of_two();
        let words = Words::heap(cq_words(capacity).expect("a sane capacity"));
        let ring = CqProducer::new(words.clone(), capacity).expect("memory of that size");
        let channel = Some(CHANNEL);
        let handle = self.handle(ClientCommand::CreateCq { ring, capacity, channel });
        let ring = CqConsumer::new(words, capacity).expect("memory of that size");
        self.cqs.push(AppCq { handle, ring });
        CqId(self.cqs.len() - 1)
    }

    /// Moves a completion queue to another ring.
    ///
    /// # Errors
    /// Those of the verb; the queue is then as it was.
    pub fn resize_cq(&mut self, cq: CqId, capacity: u32) -> Result<(), CommandError> {
        let words = Words::heap(cq_words(capacity).expect("a sane capacity"));
        let ring = CqProducer::new(words.clone(), capacity).expect("memory of that size");
        let handle = self.cqs[cq.0].handle;
        self.command(ClientCommand::ResizeCq { cq: handle, ring, capacity })?;
        self.cqs[cq.0].ring = CqConsumer::new(words, capacity).expect("memory of that size");
        Ok(())
    }

    pub(crate) fn queue(
        &mut self,
        name: String,
        wrs: u32,
        stride: usize,
    ) -> (AppQueue, EngineQueue) {
        let capacity = wrs.next_power_of_two();
        let stride_words = u32::try_from(stride).expect("a sane stride");
        let shape = QueueShape { capacity, stride: stride_words };
        let words = Words::heap(shape.words().expect("a sane shape"));
        let record = self.records.take();
        let consumer = WorkConsumer::new(words.clone(), shape).expect("memory of that size");
        let ring = WorkProducer::new(words, shape).expect("memory of that size");
        let oracle = QueueOracle::new(name);
        let queue = AppQueue { record, ring, capacity, stride, oracle };
        (queue, EngineQueue { ring: consumer, record })
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn try_create_qp(&mut self, setup: QpSetup) -> Result<QpId, CommandError> {
        let caps = setup.caps;
        let ((sq, engine_sq), (rq, engine_rq)) = self.qp_queues(&setup);
        let outcome = self.command(ClientCommand::CreateQp(Box::new(NewQp {
            pd: setup.pd,
            qp_type: setup.qp_type,
            send_cq: self.cqs[setup.send_cq.0].handle,
            recv_cq: self.cqs[setup.recv_cq.0].handle,
            caps,
            sq_sig_all: setup.sq_sig_all,
            sq: engine_sq,
            rq: match setup.srq {
                _ if setup.qp_type == QpType::XrcSend => NewReceives::None,
                Some(srq) => NewReceives::Shared(self.srq_handle(srq)),
                None => NewReceives::Own(engine_rq),
            },
        })))?;
        let Outcome::Qp { qp: handle, qpn } = outcome else {
            panic!("CreateQp has the outcome {outcome:?}")
        };
        Ok(self.enter_qp(setup, (handle, qpn), (sq, rq)))
    }

    fn qp_queues(&mut self, setup: &QpSetup) -> ((AppQueue, EngineQueue), (AppQueue, EngineQueue)) {
        let caps = setup.caps;
        let name = format!("{} QP {}", self.ip, self.qps.len());
        let send_slot = send_stride(caps.max_send_sge, caps.max_inline_data);
        let sq = self.queue(format!("{name} send"), caps.max_send_wr, send_slot);
        let recv_slot = recv_stride(caps.max_recv_sge);
        (sq, self.queue(format!("{name} recv"), caps.max_recv_wr, recv_slot))
    }

    /// A queue pair without queues in the engine.
    pub(crate) fn add_qp(&mut self, setup: QpSetup, names: (u32, u32)) -> QpId {
        let ((sq, _), (rq, _)) = self.qp_queues(&setup);
        self.enter_qp(setup, names, (sq, rq))
    }

    fn enter_qp(
        &mut self,
        setup: QpSetup,
        (handle, qpn): (u32, u32),
        (sq, rq): (AppQueue, AppQueue),
    ) -> QpId {
        let (receives, is_gone) = (VecDeque::new(), false);
        self.qps.push(AppQp { handle, qpn, setup, sq, rq, receives, is_gone });
        QpId(self.qps.len() - 1)
    }

    /// Creates a queue pair.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn create_qp(&mut self, setup: QpSetup) -> QpId {
        self.try_create_qp(setup).expect("the engine makes the QP")
    }

    /// Destroys a queue pair; its number and doorbell records may be used again.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn destroy_qp(&mut self, qp: QpId) {
        let handle = self.qps[qp.0].handle;
        self.command(ClientCommand::DestroyQp { qp: handle }).expect("a QP can be destroyed");
        let app = &mut self.qps[qp.0];
        app.is_gone = true;
        self.records.free.push(app.sq.record);
        self.records.free.push(app.rq.record);
    }

    /// Nothing is posted, under way, or owed to the peer, as far as this host knows.
    pub(crate) fn is_at_rest(&self, qp: QpId) -> bool {
        !self.port.has_input() && self.engine.is_at_rest(self.qps[qp.0].handle)
    }

    /// The PSNs of a queue pair at rest leap: those that it sends, those that it receives.
    pub(crate) fn leap(&mut self, qp: QpId, (sent, received): (u32, u32)) {
        let AppQp { handle, qpn, .. } = self.qps[qp.0];
        self.engine.leap(handle, sent, received);
        self.trace.witness.leapt(qpn);
    }

    /// Its number.
    pub fn qpn(&self, qp: QpId) -> u32 {
        self.qps[qp.0].qpn
    }

    /// Its handle, as async events name it.
    pub fn qp_handle(&self, qp: QpId) -> u32 {
        self.qps[qp.0].handle
    }

    /// A CQ's handle, as events name it.
    pub fn cq_handle(&self, cq: CqId) -> u32 {
        self.cqs[cq.0].handle
    }
}
