//! A client of the engine: doorbells, queues, memory, and the checks of its completions.

use crate::shared_receives::SharedReceives;
use crate::world::{HERE, World};
use rnic_abi::cq::{CqConsumer, CqProducer, cq_words};
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex, SUMMARY};
use rnic_abi::verbs::{AccessFlags, AhAttr, AttrMask, QpAttr, QpCaps, QpState, QpType, SendFlags};
use rnic_abi::words::{LINE, Words};
use rnic_abi::work_queue::{QueueShape, WorkConsumer, WorkProducer};
use rnic_abi::wqe::{RecvControl, SendControl, Sge, recv_stride, send_stride};
use rnic_core::command::WindowType;
use rnic_core::ports::{HopId, SpaceId};
use rnic_core::{ClientCommand, ClientId, Command, EngineQueue, NewQp, NewReceives, Outcome, Path};
use rnic_sim::oracle::{Posted, QueueOracle};
use rnic_sim::verbs::{Connection, Mr};
use roce_wire::{Flow, Gid, Qpn};
use std::net::IpAddr;
use std::ops::Range;

/// What every QP is made with.
pub(crate) const CAPS: QpCaps = QpCaps {
    max_send_wr: 8,
    max_recv_wr: 8,
    max_send_sge: 3,
    max_recv_sge: 3,
    max_inline_data: 64,
};
/// More than a tenant's QPs can have outstanding.
const CQ_CAPACITY: u32 = 64;
const CLIENTS: usize = 2;

/// A client.
pub(crate) struct Tenant {
    pub(crate) client: ClientId,
    pub(crate) space: SpaceId,
    /// Its doorbell area.
    pub(crate) area: Words,
    pub(crate) bell: Bell,
    /// Protection domains: one for its QPs, and one without any QP.
    pub(crate) pds: [u32; 2],
    pub(crate) cq: u32,
    pub(crate) cq_words: Words,
    completions: CqConsumer,
    pub(crate) qps: Vec<AppQp>,
    /// Where the QPs made after it take their receives from.
    pub(crate) srq: Option<SharedReceives>,
    /// An XRC domain, and the shared receive queue there.
    pub(crate) xrc: Option<(u32, SharedReceives)>,
}

/// A QP as its application sees it.
pub(crate) struct AppQp {
    pub(crate) handle: u32,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) connection: Connection,
    pub(crate) sq: AppQueue,
    pub(crate) rq: AppQueue,
}

/// A work queue as its application sees it.
pub(crate) struct AppQueue {
    pub(crate) words: Words,
    pub(crate) record: RecordIndex,
    pub(crate) ring: WorkProducer,
    pub(crate) oracle: QueueOracle,
}

thread_local! {
    /// Doorbell areas are large, so each run reuses the previous run's, zeroed where it was
    /// written.
    static AREAS: [Words; CLIENTS] = std::array::from_fn(|_| Words::heap(AREA_WORDS));
}

/// Runs of words of an area that are ever written: what stands before the bitmap and its upper
/// levels, the bits of the first records, and these records.
pub(crate) const USED: [Range<usize>; 3] =
    [0..17 * LINE, PAGE_WORDS..PAGE_WORDS + 16, SUMMARY.end..SUMMARY.end + 16];
const PAGE_WORDS: usize = 512;

fn wiped_area(nth: usize) -> Words {
    AREAS.with(|areas| {
        let area = areas[nth].clone();
        USED.into_iter().flatten().for_each(|at| area.set(at, 0));
        area
    })
}

impl Tenant {
    /// The `nth` client of a world, without QPs and memory.
    pub(crate) fn new(world: &mut World, nth: usize) -> Self {
        let number = u32::try_from(nth).expect("few clients") + 1;
        let (client, space) = (ClientId(number), SpaceId(number.into()));
        let area = wiped_area(nth);
        let doorbells = Doorbells::new(area.clone()).expect("the area is large enough");
        let bell = Bell::new(area.clone()).expect("the engine made it a doorbell area");
        world.execute(Command::AddClient { client, space, doorbells }).expect("a new client");
        let pds = [(); 2].map(|()| handle(world.command(client, ClientCommand::AllocPd)));
        let words = Words::heap(cq_words(CQ_CAPACITY).expect("a sane capacity"));
        let ring = CqProducer::new(words.clone(), CQ_CAPACITY).expect("memory of that size");
        let completions = CqConsumer::new(words.clone(), CQ_CAPACITY).expect("same");
        let create = ClientCommand::CreateCq { ring, capacity: CQ_CAPACITY, channel: None };
        let cq = handle(world.command(client, create));
        let (qps, srq, xrc) = (Vec::new(), None, None);
        Self { client, space, area, bell, pds, cq, cq_words: words, completions, qps, srq, xrc }
    }

    /// Maps and registers memory in a protection domain.
    pub(crate) fn region(&self, world: &mut World, pd: u32, len: u64, access: AccessFlags) -> Mr {
        let addr = world.memory.map(self.space, len);
        self.register(world, pd, addr, len, access).expect("a registration like any other")
    }

    /// Registers a range, mapped or not.
    pub(crate) fn register(
        &self,
        world: &mut World,
        pd: u32,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> Option<Mr> {
        let space = self.space;
        let reg = ClientCommand::RegMr { pd, space, addr, length: len, iova: addr, access };
        let Ok(Outcome::Mr { mr, lkey, rkey }) = world.command(self.client, reg) else {
            return None;
        };
        world.memory.register(self.space, addr, len, access);
        Some(Mr { handle: mr, lkey, rkey, addr, len })
    }

    /// Another QP, in RESET.
    pub(crate) fn create_qp(&mut self, world: &mut World, qp_type: QpType) -> usize {
        let nth = self.qps.len();
        let stride = send_stride(CAPS.max_send_sge, CAPS.max_inline_data);
        let (sq, engine_sq) = queue(2 * nth, CAPS.max_send_wr, stride);
        let (rq, engine_rq) = queue(2 * nth + 1, CAPS.max_recv_wr, recv_stride(CAPS.max_recv_sge));
        let own = || {
            ClientCommand::CreateQp(Box::new(NewQp {
                pd: self.pds[0],
                qp_type,
                send_cq: self.cq,
                recv_cq: self.cq,
                caps: CAPS,
                sq_sig_all: false,
                sq: engine_sq,
                rq: match &self.srq {
                    _ if qp_type == QpType::XrcSend => NewReceives::None,
                    Some(srq) => NewReceives::Shared(srq.handle),
                    None => NewReceives::Own(engine_rq),
                },
            }))
        };
        let new = match (qp_type, &self.xrc) {
            (QpType::XrcRecv, Some((xrcd, _))) => ClientCommand::CreateTarget { xrcd: *xrcd },
            _ => own(),
        };
        let Ok(Outcome::Qp { qp: handle, qpn }) = world.command(self.client, new) else {
            panic!("the engine makes the QP");
        };
        let (qpn, connection) = (Qpn::new(qpn), Connection::default());
        self.qps.push(AppQp { handle, qpn, qp_type, connection, sq, rq });
        nth
    }

    /// An address handle of the `nth` protection domain, to this host.
    pub(crate) fn create_ah(&self, world: &mut World, nth: usize) -> u32 {
        let dgid = Gid::from_ip(HERE).0;
        let attr = AhAttr { dgid, is_global: true, port_num: 1, ..AhAttr::default() };
        let path = Path { attr, flow: Flow::new(HERE, HERE, 0), hop: HopId(0) };
        handle(world.command(self.client, ClientCommand::CreateAh { pd: self.pds[nth], path }))
    }

    /// A window of the `nth` protection domain: its handle and key.
    pub(crate) fn alloc_mw(&self, world: &mut World, nth: usize, kind: WindowType) -> (u32, u32) {
        let alloc = ClientCommand::AllocMw { pd: self.pds[nth], kind };
        match world.command(self.client, alloc) {
            Ok(Outcome::Mw { mw, rkey }) => (mw, rkey),
            other => panic!("the engine makes the window: {other:?}"),
        }
    }

    /// A QP for datagrams becomes a member of a group.
    pub(crate) fn attach(&self, world: &mut World, nth: usize, group: IpAddr) {
        let (qp, group) = (self.qps[nth].handle, Gid::from_ip(group));
        world.command(self.client, ClientCommand::Attach { qp, group }).expect("room in the group");
    }

    /// From RESET to RTS.
    pub(crate) fn connect(
        &mut self,
        world: &mut World,
        nth: usize,
        connection: Connection,
        peer: (IpAddr, Qpn),
    ) {
        self.qps[nth].connection = connection;
        let meaningless = match self.qps[nth].qp_type {
            QpType::Uc => ANSWERS,
            QpType::Ud => ANSWERS | ADDRESSED,
            // The ends of XRC ignore what is for the other end.
            _ => AttrMask::empty(),
        };
        for (mask, attr) in steps(&connection, peer) {
            let mut mask = mask - meaningless;
            let needs_key = self.qps[nth].qp_type == QpType::Ud && attr.state == QpState::Init;
            mask.set(AttrMask::QKEY, needs_key);
            let path = mask.contains(AttrMask::AV).then(|| path_to(&attr, peer.0));
            let outcome = self.modify(world, nth, mask, attr, path);
            assert!(outcome, "the connection is refused");
        }
    }

    /// Modifies a QP; false when the engine refuses. A correct application polls before a RESET,
    /// which discards the completions from before it.
    pub(crate) fn modify(
        &mut self,
        world: &mut World,
        nth: usize,
        mask: AttrMask,
        attr: QpAttr,
        path: Option<Path>,
    ) -> bool {
        let to_reset = mask.contains(AttrMask::STATE) && attr.state == QpState::Reset;
        let qp = self.qps[nth].handle;
        let was = world.engine.qp_by_number(self.qps[nth].qpn).map(|view| view.attr.state);
        let modify = ClientCommand::ModifyQp { qp, mask, attr, path };
        if world.command(self.client, modify).is_err() {
            return false;
        }
        let app = &mut self.qps[nth];
        if (was, attr.state) == (Some(QpState::Sqe), QpState::Rts) {
            app.sq.oracle.resume();
        }
        if to_reset {
            for queue in [&mut app.sq, &mut app.rq] {
                queue.ring.reset();
                queue.oracle.reset();
            }
        }
        true
    }

    /// Only the state.
    pub(crate) fn set_state(&mut self, world: &mut World, nth: usize, state: QpState) -> bool {
        let attr = QpAttr { state, ..QpAttr::default() };
        self.modify(world, nth, AttrMask::STATE, attr, None)
    }

    /// Posts a send request; false when the queue is full.
    pub(crate) fn post_send(
        &mut self,
        world: &mut World,
        nth: usize,
        control: &SendControl,
        sges: &[Sge],
        data: &[u64],
    ) -> bool {
        let app = &mut self.qps[nth];
        if app.sq.ring.free() == 0 || app.qp_type == QpType::XrcRecv {
            return false;
        }
        let mut words = control.encode().to_vec();
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        words.extend(data);
        words.truncate(app.sq.ring.stride());
        let index = app.sq.ring.push(&words);
        let signaled = control.flags.contains(SendFlags::SIGNALED);
        let opcode = Some(control.opcode.completion());
        app.sq.oracle.post(Posted { index, wr_id: control.wr_id, signaled, opcode });
        if self.bell.ring(app.sq.record, app.sq.ring.producer()) {
            world.engine.client_rang(world.now, self.client);
        }
        true
    }

    /// Posts a receive request; false when the queue is full.
    pub(crate) fn post_recv(&mut self, nth: usize, wr_id: u64, sges: &[Sge]) -> bool {
        let AppQp { rq, qp_type, .. } = &mut self.qps[nth];
        let mut shared = match (*qp_type, &mut self.xrc) {
            (QpType::XrcSend, _) => return false,
            (QpType::XrcRecv, Some((_, srq))) => Some(srq),
            _ => self.srq.as_mut(),
        };
        let has_room = match &mut shared {
            Some(srq) => srq.has_room(),
            None => rq.oracle.outstanding() < CAPS.max_recv_wr as usize && rq.ring.free() > 0,
        };
        if !has_room {
            return false;
        }
        let num_sge = u8::try_from(sges.len()).unwrap_or(u8::MAX);
        let mut words = RecvControl { num_sge, wr_id }.encode().to_vec();
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        let queue = match shared {
            Some(srq) => {
                srq.posted.insert(srq.queue.ring.producer(), wr_id);
                &mut srq.queue
            }
            None => {
                let index = rq.ring.producer();
                rq.oracle.post(Posted { index, wr_id, signaled: true, opcode: None });
                rq
            }
        };
        words.truncate(queue.ring.stride());
        queue.ring.push(&words);
        self.bell.publish(queue.record, queue.ring.producer());
        if queue.ring.must_ring() {
            let _ = self.bell.ring(queue.record, queue.ring.producer());
        }
        true
    }

    /// Polls all completions and checks them.
    pub(crate) fn poll(&mut self) -> Vec<Cqe> {
        let all: Vec<Cqe> = std::iter::from_fn(|| self.completions.poll()).collect();
        for cqe in &all {
            let owner = self.qps.iter().position(|app| app.qpn.value() == cqe.qpn);
            let nth = owner.expect("a completion names a QP of its CQ");
            let app = &mut self.qps[nth];
            let is_receive = cqe.flags.contains(CqeFlags::RECV);
            if app.qp_type == QpType::XrcRecv
                && let Some((_, srq)) = &mut self.xrc
            {
                srq.complete(cqe);
                continue;
            }
            if is_receive && let Some(srq) = &mut self.srq {
                srq.complete(cqe);
                continue;
            }
            let queue = if is_receive { &mut app.rq } else { &mut app.sq };
            assert_eq!(cqe.record, queue.record.value(), "another queue's record");
            if let Err(verdict) = queue.oracle.complete(cqe) {
                panic!("{verdict}");
            }
        }
        all
    }

    /// The whole memory of a region.
    pub(crate) fn bytes<'w>(&self, world: &'w World, mr: &Mr) -> &'w [u8] {
        world.memory.bytes(self.space, mr.addr, mr.len)
    }

    /// Fills a region.
    pub(crate) fn fill(&self, world: &mut World, mr: &Mr, byte: u8) {
        world.memory.bytes_mut(self.space, mr.addr, mr.len).fill(byte);
    }
}

fn handle(outcome: Result<Outcome, rnic_core::CommandError>) -> u32 {
    match outcome {
        Ok(Outcome::Handle(handle)) => handle,
        other => panic!("the engine makes the object: {other:?}"),
    }
}

pub(crate) fn queue(record: usize, wrs: u32, stride: usize) -> (AppQueue, EngineQueue) {
    let stride = u32::try_from(stride).expect("a sane stride");
    let shape = QueueShape { capacity: wrs, stride };
    let words = Words::heap(shape.words().expect("a sane shape"));
    let record = u32::try_from(record).ok().and_then(RecordIndex::new).expect("few records");
    let consumer = WorkConsumer::new(words.clone(), shape).expect("memory of that size");
    let ring = WorkProducer::new(words.clone(), shape).expect("memory of that size");
    let oracle = QueueOracle::new(String::new());
    (AppQueue { words, record, ring, oracle }, EngineQueue { ring: consumer, record })
}

/// Q_Key of all queue pairs for datagrams.
pub(crate) const QKEY: u32 = 0x1111_1111;

fn path_to(attr: &QpAttr, peer: IpAddr) -> Path {
    Path { attr: attr.ah, flow: Flow::new(HERE, peer, 0), hop: HopId(0) }
}

/// Attributes of transports with answers.
const ANSWERS: AttrMask = AttrMask::MAX_DEST_RD_ATOMIC
    .union(AttrMask::MIN_RNR_TIMER)
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC);

/// Attributes of queue pairs with a peer.
const ADDRESSED: AttrMask = AttrMask::AV
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN)
    .union(AttrMask::ACCESS_FLAGS);

/// INIT, RTR, RTS.
fn steps(connection: &Connection, (peer, peer_qpn): (IpAddr, Qpn)) -> [(AttrMask, QpAttr); 3] {
    let (mask, init) = connection.init();
    let rtr = connection.rtr(QpType::Rc, peer, peer_qpn.value());
    [(mask, QpAttr { qkey: QKEY, ..init }), rtr, connection.rts(QpType::Rc)]
}
