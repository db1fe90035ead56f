//! A daemon without a NIC: it makes objects with real shared memory and lets a test play the
//! engine.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use rnic_abi::{
    ABI_VERSION,
    control::{
        Answer, AsyncEvent, CompletionEvent, CreateQp, DeviceInfo, DeviceLimits, GidEntry,
        PortInfo, QueuePlace, Refusal, Reply, Request, RingPlace,
    },
    cq::{CqProducer, cq_words},
    cqe::Cqe,
    doorbell::{AREA_WORDS, Doorbells, RecordIndex},
    os::{Connection, EventFd, Listener, memory},
    verbs::{AsyncEventType, QpAttr, QpCaps, QpState},
    words::Words,
    work_queue::{QueueShape, WorkConsumer},
    wqe::{recv_stride, send_stride},
};

/// One completion queue as the engine sees it.
pub(crate) struct FakeCq {
    pub(crate) ring: CqProducer,
    channel: Option<u32>,
    events: u64,
}

/// One queue pair as the engine sees it.
pub(crate) struct FakeQp {
    pub(crate) qpn: u32,
    pub(crate) sq: Option<(RecordIndex, WorkConsumer)>,
    pub(crate) rq: Option<(RecordIndex, WorkConsumer)>,
    attr: QpAttr,
    wish: CreateQp,
    pub(crate) async_events: u64,
}

/// What the daemon has.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) bells: Option<Doorbells>,
    pub(crate) wake: Option<EventFd>,
    pub(crate) cqs: HashMap<u32, FakeCq>,
    pub(crate) qps: HashMap<u32, FakeQp>,
    channels: HashMap<u32, OwnedFd>,
    pub(crate) async_socket: Option<Connection>,
    sessions: Vec<OwnedFd>,
    /// The file of every registration, and the offset in it.
    pub(crate) registered: Vec<(Option<OwnedFd>, u64)>,
    /// The device memory that was made last.
    pub(crate) device_memory: Option<Words>,
    /// Handles of the regions of device memory, which cannot be changed.
    device_regions: Vec<u32>,
    /// Shared receive queues.
    pub(crate) srqs: u32,
    /// The engine's side of the last one.
    pub(crate) last_srq: Option<(RecordIndex, WorkConsumer)>,
    /// Maps no memory of programs.
    pub(crate) refuses_files: bool,
    next: u32,
}

/// The daemon.
pub(crate) struct Fake {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Fake {
    pub(crate) fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbs-shim-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = Listener::bind(&path, 0o600).unwrap();
        let state = Arc::new(Mutex::new(State { next: 100, ..State::default() }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            while let Ok(connection) = listener.accept() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&connection, &shared));
            }
        });
        Self { path, state }
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// All sockets close, as when the process is killed.
    pub(crate) fn die(&self) {
        let mut state = self.state();
        for session in state.sessions.drain(..) {
            // SAFETY: a plain system call on a live socket.
            unsafe { libc::shutdown(session.as_raw_fd(), libc::SHUT_RDWR) };
        }
        state.async_socket = None;
        state.channels.clear();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // The thread that accepts still has them.
        for file in [&self.path, &self.path.with_extension("sock.lock")] {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn serve(connection: &Connection, shared: &Mutex<State>) {
    shared.lock().unwrap().sessions.push(connection.as_fd().try_clone_to_owned().unwrap());
    while let Ok(Some((request, mut sent))) = connection.recv_message::<Request>() {
        let (answer, fds) = shared.lock().unwrap().answer(request, sent.next());
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if connection.send_message(&answer, &fds).is_err() {
            return;
        }
    }
}

pub(crate) fn info() -> DeviceInfo {
    DeviceInfo {
        name: "rnic0".to_owned(),
        netdev: None,
        node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, 1],
        fw_version: "0.1".to_owned(),
        limits: DeviceLimits {
            max_qp: 1000,
            max_qp_wr: 4096,
            max_sge: 32,
            max_cq: 1000,
            max_cqe: 65536,
            max_mr: 1000,
            max_mr_size: u64::MAX,
            max_pd: 1000,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_mw: 0,
            max_ah: 100,
            max_groups: 8,
            max_members: 4,
            max_srq: 0,
            max_inline: 1024,
            max_dm_size: 1 << 20,
            qp_types: 0b11100,
            send_opcodes: u32::MAX,
            atomics: true,
        },
    }
}

impl State {
    fn handle(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn ring(&mut self, words: usize, fds: &mut Vec<OwnedFd>) -> (RingPlace, Words) {
        let (fd, memory) = memory::create("fake", words).unwrap();
        fds.push(fd);
        let place = RingPlace {
            arena: self.handle(),
            arena_len: words as u64 * 8,
            arena_is_new: true,
            start: 0,
            words: words as u64,
        };
        (place, memory)
    }

    fn answer(&mut self, request: Request, sent: Option<OwnedFd>) -> (Answer, Vec<OwnedFd>) {
        let mut fds = Vec::new();
        let reply = match request {
            Request::Hello { .. } => Reply::Hello { abi: ABI_VERSION, server: "fake".to_owned() },
            Request::ListDevices => Reply::Devices(vec![info()]),
            Request::OpenDevice { .. } => self.open(&mut fds),
            Request::QueryPort => Reply::Port(PortInfo {
                active: true,
                max_mtu: 5,
                active_mtu: 3,
                netdev_mtu: 1500,
                gid_table_len: 16,
                speed_mbps: 100_000,
            }),
            Request::QueryGids { start } => Reply::Gids(gids(start)),
            Request::RegMr { .. }
            | Request::CheckAccess { .. }
            | Request::AllocDm { .. }
            | Request::ReregMr { .. }
            | Request::RegDmMr { .. } => match self.answer_memory(request, sent, &mut fds) {
                Ok(reply) => reply,
                Err(errno) => {
                    return (Err(Refusal { errno, message: "refused".to_owned() }), fds);
                }
            },
            Request::AllocMw { .. } => self.alloc_mw(),
            Request::CreateChannel => {
                let (ours, theirs) = Connection::pair().unwrap();
                let channel = self.handle();
                self.channels.insert(channel, ours.into());
                fds.push(theirs.into());
                Reply::Handle(channel)
            }
            Request::CreateCq { cqe, channel, .. } => self.create_cq(cqe, channel, &mut fds),
            Request::ResizeCq { cq, cqe } => self.resize_cq(cq, cqe, &mut fds),
            Request::DestroyCq { cq } => {
                let gone = self.cqs.remove(&cq).unwrap();
                Reply::CqGone { completion_events: gone.events, async_events: 0 }
            }
            Request::CreateQp(wish) => self.create_qp(wish, &mut fds),
            Request::ModifyQp { qp, mask: _, attr } => self.modify(qp, attr),
            Request::QueryQp { qp } => {
                let qp = &self.qps[&qp];
                let (attr, caps) = (qp.attr, qp.wish.caps);
                Reply::QpState { attr, caps, sq_sig_all: qp.wish.sq_sig_all }
            }
            Request::DestroyQp { qp } => {
                Reply::QpGone { async_events: self.qps.remove(&qp).unwrap().async_events }
            }
            Request::CreateSrq { max_wr, max_sge, .. } => {
                self.create_srq(max_wr, max_sge, &mut fds)
            }
            Request::DestroySrq { .. } => self.destroy_srq(),
            Request::AllocPd | Request::OpenXrcd { .. } | Request::CreateAh { .. } => {
                Reply::Handle(self.handle())
            }
            _ => Reply::Done,
        };
        (Ok(reply), fds)
    }

    fn answer_memory(
        &mut self,
        request: Request,
        sent: Option<OwnedFd>,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Reply, i32> {
        match request {
            Request::RegMr { access, .. } if access.is_empty() => Err(libc::EINVAL),
            Request::RegMr { .. } if sent.is_some() && self.refuses_files => Err(libc::ENOMEM),
            Request::RegMr { fd_offset, .. } => {
                self.registered.push((sent, fd_offset));
                Ok(self.new_region())
            }
            Request::CheckAccess { length, .. } if length > 1 << 20 => Err(libc::EFAULT),
            Request::AllocDm { length } => {
                let words = usize::try_from(length.div_ceil(8)).unwrap();
                let (fd, words) = memory::create("fake-dm", words).unwrap();
                fds.push(fd);
                self.device_memory = Some(words);
                Ok(Reply::Handle(self.handle()))
            }
            Request::RegDmMr { .. } => {
                self.device_regions.push(self.next + 1);
                Ok(self.new_region())
            }
            Request::ReregMr { mr, .. } if self.device_regions.contains(&mr) => Err(libc::EINVAL),
            Request::ReregMr { .. } => Ok(self.new_region()),
            _ => Ok(Reply::Done),
        }
    }

    fn new_region(&mut self) -> Reply {
        let mr = self.handle();
        Reply::Mr { mr, lkey: mr << 8, rkey: mr << 8 | 1 }
    }

    fn open(&mut self, fds: &mut Vec<OwnedFd>) -> Reply {
        let (area, words) = memory::create("bells", AREA_WORDS).unwrap();
        self.bells = Doorbells::new(words);
        let wake = EventFd::new().unwrap();
        let (ours, theirs) = Connection::pair().unwrap();
        let wake_copy = wake.as_fd().try_clone_to_owned().unwrap();
        self.wake = Some(wake);
        self.async_socket = Some(ours);
        fds.extend([area, wake_copy, theirs.into()]);
        Reply::Opened { device: info(), num_comp_vectors: 2 }
    }

    fn alloc_mw(&mut self) -> Reply {
        let mw = self.handle();
        Reply::Mw { mw, rkey: mw << 8 | 0xff }
    }

    fn create_cq(&mut self, cqe: u32, channel: Option<u32>, fds: &mut Vec<OwnedFd>) -> Reply {
        let cqe = cqe.next_power_of_two();
        let (ring, words) = self.ring(cq_words(cqe).unwrap(), fds);
        let cq = self.handle();
        let producer = CqProducer::new(words, cqe).unwrap();
        self.cqs.insert(cq, FakeCq { ring: producer, channel, events: 0 });
        Reply::Cq { cq, ring, cqe }
    }

    fn resize_cq(&mut self, cq: u32, cqe: u32, fds: &mut Vec<OwnedFd>) -> Reply {
        let cqe = cqe.next_power_of_two();
        let (ring, words) = self.ring(cq_words(cqe).unwrap(), fds);
        let object = self.cqs.get_mut(&cq).unwrap();
        object.ring = object.ring.resized(CqProducer::new(words, cqe).unwrap()).unwrap();
        Reply::Cq { cq, ring, cqe }
    }

    fn queue(
        &mut self,
        wr: u32,
        stride: usize,
        fds: &mut Vec<OwnedFd>,
    ) -> (QueuePlace, (RecordIndex, WorkConsumer)) {
        let shape =
            QueueShape { capacity: wr.next_power_of_two(), stride: u32::try_from(stride).unwrap() };
        let (ring, words) = self.ring(shape.words().unwrap(), fds);
        let record = RecordIndex::new(self.handle()).unwrap();
        let consumer = WorkConsumer::new(words, shape).unwrap();
        (QueuePlace { ring, shape, record }, (record, consumer))
    }

    fn create_qp(&mut self, wish: CreateQp, fds: &mut Vec<OwnedFd>) -> Reply {
        let caps = QpCaps { max_send_wr: wish.caps.max_send_wr.max(1), ..wish.caps };
        let stride = send_stride(caps.max_send_sge, caps.max_inline_data);
        let (sq_place, sq) = self.queue(caps.max_send_wr, stride, fds);
        let stride = recv_stride(caps.max_recv_sge);
        let (rq_place, rq) = self.queue(caps.max_recv_wr.max(1), stride, fds);
        let qp = self.handle();
        let qpn = qp + 0x1000;
        let attr = QpAttr::default();
        let object = FakeQp { qpn, sq: Some(sq), rq: Some(rq), attr, wish, async_events: 0 };
        self.qps.insert(qp, object);
        Reply::Qp { qp, qpn, caps, sq: Some(sq_place), rq: Some(rq_place) }
    }

    fn create_srq(&mut self, max_wr: u32, max_sge: u32, fds: &mut Vec<OwnedFd>) -> Reply {
        let (queue, engine) = self.queue(max_wr, recv_stride(max_sge), fds);
        self.srqs += 1;
        self.last_srq = Some(engine);
        let srq = self.handle();
        Reply::Srq { srq, queue, max_wr, max_sge, srqn: srq }
    }

    fn destroy_srq(&mut self) -> Reply {
        self.srqs -= 1;
        Reply::Done
    }

    fn modify(&mut self, qp: u32, attr: QpAttr) -> Reply {
        let bells = self.bells.as_ref().unwrap();
        let qp = self.qps.get_mut(&qp).unwrap();
        qp.attr = attr;
        if attr.state == QpState::Reset {
            for (record, queue) in qp.sq.iter_mut().chain(&mut qp.rq) {
                queue.reset();
                bells.reset(*record);
            }
        }
        Reply::QpState { attr, caps: qp.wish.caps, sq_sig_all: qp.wish.sq_sig_all }
    }

    /// Writes a completion, and sends an event when the CQ is armed for it.
    pub(crate) fn complete(&mut self, cq: u32, cqe: &Cqe) {
        let object = self.cqs.get_mut(&cq).unwrap();
        object.ring.push(cqe).unwrap();
        CqProducer::fence_before_arm_check();
        if object.ring.take_arm(cqe.is_solicited()) {
            object.events += 1;
            let socket = &self.channels[&object.channel.unwrap()];
            let bytes = CompletionEvent { cq }.encode();
            // SAFETY: a live buffer.
            unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        }
    }

    /// Sends an async event.
    pub(crate) fn raise(&mut self, event: AsyncEventType, element: u32) {
        if let Some(qp) = self.qps.get_mut(&element) {
            qp.async_events += 1;
        }
        let socket = self.async_socket.as_ref().unwrap();
        socket.send(&AsyncEvent { event, element }.encode(), &[]).unwrap();
    }

    /// Records rung since the last call.
    pub(crate) fn rung(&mut self) -> Vec<RecordIndex> {
        let mut rung = Vec::new();
        let _ = self.bells.as_mut().unwrap().take(usize::MAX, |record| rung.push(record));
        rung
    }

    /// The next send WQE of a queue pair, when one was published.
    pub(crate) fn fetch_send(&mut self, qp: u32) -> Option<(u32, Vec<u64>)> {
        let bells = self.bells.as_ref().unwrap();
        let (record, queue) = self.qps.get_mut(&qp).unwrap().sq.as_mut().unwrap();
        fetch(bells, *record, queue)
    }

    /// The next receive WQE of the last shared receive queue, whose slot is free at once.
    pub(crate) fn take_shared(&mut self) -> Option<(RecordIndex, u32, Vec<u64>)> {
        let (record, queue) = self.last_srq.as_mut().unwrap();
        let (index, words) = fetch(self.bells.as_ref().unwrap(), *record, queue)?;
        queue.release(index.wrapping_add(1));
        Some((*record, index, words))
    }

    /// The next receive WQE of a queue pair, when one was published.
    pub(crate) fn fetch_receive(&mut self, qp: u32) -> Option<(u32, Vec<u64>)> {
        let bells = self.bells.as_ref().unwrap();
        let (record, queue) = self.qps.get_mut(&qp).unwrap().rq.as_mut().unwrap();
        fetch(bells, *record, queue)
    }
}

fn fetch(
    bells: &Doorbells,
    record: RecordIndex,
    queue: &mut WorkConsumer,
) -> Option<(u32, Vec<u64>)> {
    let available = queue.available(bells.producer(record)).unwrap();
    (available > 0).then(|| {
        let mut words = vec![0; queue.stride()];
        (queue.fetch(&mut words), words)
    })
}

fn gids(start: u32) -> Vec<GidEntry> {
    [0, 1, 3]
        .into_iter()
        .filter(|index| *index >= start)
        .take(2)
        .map(|index| GidEntry { index, gid: [u8::try_from(index).unwrap() + 1; 16], ifindex: 7 })
        .collect()
}
