//! Clients that talk to a daemon of this process, well and badly.

mod addresses;
mod connections;
mod descriptors;
mod device_memory;
mod groups;
mod isolation;
mod lists;
mod memory;
mod resizes;
mod srq;
mod windows;
mod xrc;

use super::{Accounts, ClientMemory, Door, Engines, Registry, Service, WireGroups, serve};
use crate::quota::{Limits, Machine, Resource, Section};
use crate::report::Totals;
use crate::settings::{Io, Profile, Settings, XdpMode};
use crate::shard::{OwnEngine, ShardPort};
use crate::wire::{self, WireConfig};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{Answer, CreateQp, DeviceInfo, Inspect, Reply, Request};
use rnic_abi::os::{Connection, EventFd, Listener};
use rnic_abi::verbs::{AccessFlags, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rnic_core::EngineConfig;
use rnic_core::config::default_limits;
use rnic_net::{NetConfig, Network};
use rustix::event::Timespec;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A daemon of this process on a loopback wire.
struct Daemon {
    service: Arc<Service>,
    engine: Arc<OwnEngine>,
    path: PathBuf,
}

impl Daemon {
    fn start(name: &str, quota: &[(Resource, u64)]) -> Self {
        let quota: Section = quota.iter().copied().collect();
        let limits = Limits::new(&quota, &Section::new(), &Machine::look());
        let path = std::env::temp_dir().join(format!("rnicd-{name}-{}.sock", std::process::id()));
        let place = NetConfig { netdev: Some("lo".into()), addresses: Vec::new() };
        let network = Network::start(place, Box::new(|_| ())).unwrap();
        let wires =
            WireConfig { io: Io::Loopback, xdp_mode: XdpMode::Auto, trains: true, users: false };
        let wire = wire::open(&wires, &network).unwrap();
        let engine = EngineConfig::new([1, 2]);
        let joiner = wire.joiner();
        let port = ShardPort::Device(Box::new(wire));
        let engine = Arc::new(OwnEngine::start(Settings::default(), engine, port).unwrap());
        let service = Arc::new(Service {
            device: DeviceInfo {
                name: "rnic0".into(),
                netdev: None,
                node_guid: [0; 8],
                fw_version: "test".into(),
                limits: default_limits(),
            },
            network,
            groups: WireGroups::new(engine.handle().clone(), joiner),
            engine: engine.handle().clone(),
            engines: engine.clone(),
            connections: Arc::new(connections::NoConnections),
            functions: None,
            more: None,
            memory: ClientMemory::OfProcesses,
            ledger: Accounts::new(limits, rustix::process::geteuid().as_raw()),
            owner: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            io: "loopback".into(),
            profile: Profile::Spec,
            registry: Registry::new(0).unwrap(),
            started: Instant::now(),
            stop: EventFd::new().unwrap(),
        });
        let listener = Listener::bind(&path, 0o600).unwrap();
        let accepting = Arc::clone(&service);
        std::thread::spawn(move || {
            let mut door = Door::new(listener).unwrap();
            loop {
                let mut fds: Vec<_> = door.fds().collect();
                let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                rustix::event::poll(&mut fds, Some(&patience)).unwrap();
                door.attend(Instant::now(), |client| serve(&accepting, client, None));
            }
        });
        Self { service, engine, path }
    }

    fn connect(&self) -> Client {
        Client { connection: Connection::connect(&self.path).unwrap() }
    }

    /// A client that has the device open.
    fn open(&self) -> Client {
        let client = self.connect();
        client.greet();
        client.call(&Request::OpenDevice { name: "rnic0".into() }).unwrap();
        client
    }

    /// What the engine has: queue pairs, completion queues, memory regions.
    fn totals(&self) -> [u64; 3] {
        let Totals { qps, cqs, mrs } = self.engine.overview().totals;
        [qps, cqs, mrs]
    }

    /// Waits until all sessions have ended.
    fn settle(&self) {
        let started = Instant::now();
        while self.service.registry.counts().0 > 0 {
            assert!(started.elapsed() < Duration::from_secs(10), "a session does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.service.stop.wake().unwrap();
        self.engine.stop();
        // The thread that accepts still has them.
        for file in [&self.path, &self.path.with_extension("sock.lock")] {
            let _ = std::fs::remove_file(file);
        }
    }
}

struct Client {
    connection: Connection,
}

impl Client {
    fn call_with(&self, request: &Request) -> (Answer, Vec<OwnedFd>) {
        let (answer, fds) = self.connection.call(request, &[]).unwrap();
        (answer, fds.collect())
    }

    fn call(&self, request: &Request) -> Answer {
        self.call_with(request).0
    }

    fn errno(&self, request: &Request) -> i32 {
        self.call(request).expect_err("this should be refused").errno
    }

    fn greet(&self) {
        self.call(&Request::Hello { abi: ABI_VERSION }).unwrap();
    }

    fn handle(&self, request: &Request) -> u32 {
        match self.call(request).unwrap() {
            Reply::Handle(handle) => handle,
            Reply::Cq { cq, .. } => cq,
            Reply::Qp { qp, .. } => qp,
            Reply::Mr { mr, .. } => mr,
            other => panic!("no handle: {other:?}"),
        }
    }

    fn list(&self, what: Inspect) -> Vec<Value> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let answer = self.call(&Request::Inspect { what, from }).unwrap();
            let Reply::Inspected { json, next } = answer else { panic!("{answer:?}") };
            all.append(&mut serde_json::from_str(&json).unwrap());
            let Some(next) = next else { return all };
            assert!(next > from);
            from = next;
        }
    }

    fn cq(&self) -> u32 {
        self.handle(&Request::CreateCq { cqe: 10, channel: None, comp_vector: 0 })
    }

    fn register(&self, pd: u32, memory: &[u8]) -> u32 {
        self.handle(&registration(pd, memory.as_ptr() as u64, memory.len() as u64))
    }
}

fn registration(pd: u32, addr: u64, length: u64) -> Request {
    let access = AccessFlags::LOCAL_WRITE;
    Request::RegMr { pd, addr, length, iova: addr, access, fd_offset: 0 }
}

fn queue_pair(pd: u32, cq: u32) -> CreateQp {
    CreateQp {
        pd,
        qp_type: QpType::Rc,
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq: None,
        xrcd: None,
        caps: QpCaps {
            max_send_wr: 100,
            max_recv_wr: 100,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 220,
        },
        sq_sig_all: false,
    }
}

#[test]
fn a_context_lives_and_dies_with_its_session() {
    let daemon = Daemon::start("life", &[]);
    let client = daemon.connect();
    client.greet();
    let (answer, fds) = client.call_with(&Request::OpenDevice { name: "rnic0".into() });
    assert!(matches!(answer, Ok(Reply::Opened { num_comp_vectors: 1, .. })), "{answer:?}");
    assert_eq!(fds.len(), 3);
    let memory = vec![0u8; 8192];
    let pd = client.handle(&Request::AllocPd);
    let mr = client.register(pd, &memory);
    let cq = client.cq();
    let (answer, fds) = client.call_with(&Request::CreateQp(queue_pair(pd, cq)));
    let Ok(Reply::Qp { qp, caps, sq: Some(sq), rq: Some(rq), .. }) = answer else {
        panic!("{answer:?}");
    };
    // The arena came with the CQ.
    assert!(fds.is_empty() && !sq.ring.arena_is_new);
    assert!(caps.max_send_wr == 128 && caps.max_inline_data >= 220, "{caps:?}");
    assert_ne!(sq.record, rq.record);
    assert_eq!(daemon.totals(), [1, 1, 1]);
    // In use.
    assert_eq!(client.errno(&Request::DestroyCq { cq }), libc::EBUSY);
    assert_eq!(client.errno(&Request::DeallocPd { pd }), libc::EBUSY);
    assert!(matches!(client.call(&Request::DestroyQp { qp }), Ok(Reply::QpGone { .. })));
    assert!(matches!(client.call(&Request::DestroyCq { cq }), Ok(Reply::CqGone { .. })));
    assert_eq!(client.call(&Request::DeregMr { mr }), Ok(Reply::Done));
    assert_eq!(client.call(&Request::DeallocPd { pd }), Ok(Reply::Done));
    assert_eq!(daemon.totals(), [0, 0, 0]);

    // Hanging up takes everything along.
    let pd = client.handle(&Request::AllocPd);
    client.register(pd, &memory);
    let cq = client.cq();
    client.handle(&Request::CreateQp(queue_pair(pd, cq)));
    assert_eq!(daemon.totals(), [1, 1, 1]);
    drop(client);
    daemon.settle();
    assert_eq!(daemon.totals(), [0, 0, 0]);
}

#[test]
fn the_smallest_completion_queue_has_room_for_two() {
    let daemon = Daemon::start("smallest", &[]);
    let client = daemon.open();
    for (wanted, given) in [(1, 2), (2, 2), (3, 4)] {
        let request = Request::CreateCq { cqe: wanted, channel: None, comp_vector: 0 };
        let answer = client.call(&request);
        assert!(matches!(answer, Ok(Reply::Cq { cqe, .. }) if cqe == given), "{answer:?}");
    }
}

#[test]
fn what_is_not_supported_says_so() {
    let daemon = Daemon::start("unsupported", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let cq = client.cq();
    let mut wanted = queue_pair(pd, cq);
    wanted.caps.max_send_sge = 1000;
    assert_eq!(client.errno(&Request::CreateQp(wanted)), libc::EINVAL);
    for cqe in [0, u32::MAX] {
        let request = Request::CreateCq { cqe, channel: None, comp_vector: 0 };
        assert_eq!(client.errno(&request), libc::EINVAL);
    }
    let request = Request::CreateCq { cqe: 1, channel: Some(5), comp_vector: 0 };
    assert_eq!(client.errno(&request), libc::EINVAL);
}

#[test]
fn a_session_begins_with_a_greeting_in_the_same_version() {
    let daemon = Daemon::start("greeting", &[]);
    let client = daemon.connect();
    assert_eq!(client.errno(&Request::AllocPd), libc::EPROTO);
    let refusal = client.call(&Request::Hello { abi: ABI_VERSION + 1 }).unwrap_err();
    assert!(refusal.message.contains("came with the daemon"), "{refusal}");
    client.greet();
    assert_eq!(client.errno(&Request::AllocPd), libc::EINVAL);
    assert_eq!(client.errno(&Request::OpenDevice { name: "mlx5_0".into() }), libc::ENODEV);
    assert!(matches!(client.call(&Request::QueryPort), Ok(Reply::Port(_))));
    let Ok(Reply::Gids(gids)) = client.call(&Request::QueryGids { start: 0 }) else { panic!() };
    assert!(gids.iter().any(|entry| entry.index == 0), "{gids:?}");
}

#[test]
fn objects_of_another_session_are_out_of_reach() {
    let daemon = Daemon::start("isolation", &[]);
    let (owner, thief) = (daemon.open(), daemon.open());
    let memory = [0u8; 64];
    let pd = owner.handle(&Request::AllocPd);
    let mr = owner.register(pd, &memory);
    let cq = owner.cq();
    let qp = owner.handle(&Request::CreateQp(queue_pair(pd, cq)));
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let mut stolen = vec![
        Request::DeallocPd { pd },
        Request::DeregMr { mr },
        Request::DestroyCq { cq },
        Request::ResizeCq { cq, cqe: 1 },
        Request::QueryQp { qp },
        Request::ModifyQp { qp, mask: AttrMask::STATE, attr },
        Request::DestroyQp { qp },
        registration(pd, memory.as_ptr() as u64, 64),
    ];
    let own_pd = thief.handle(&Request::AllocPd);
    let own_cq = thief.cq();
    stolen.push(Request::CreateQp(queue_pair(pd, own_cq)));
    stolen.push(Request::CreateQp(queue_pair(own_pd, cq)));
    for request in stolen {
        assert_eq!(thief.errno(&request), libc::ENOENT, "{request:?}");
    }
    assert_eq!(daemon.totals(), [1, 2, 1]);
}

#[test]
fn quotas_are_kept_and_freed_again() {
    use Resource as R;
    let one = [R::Cqs, R::Mrs, R::Pds, R::Channels].map(|resource| (resource, 1));
    let quota = [&one[..], &[(R::Qps, 2), (R::Sessions, 2)]].concat();
    let daemon = Daemon::start("quota", &quota);
    let client = daemon.open();
    let memory = [0u8; 64];
    let pd = client.handle(&Request::AllocPd);
    assert_eq!(client.errno(&Request::AllocPd), libc::ENOMEM);
    let cq = client.cq();
    let request = Request::CreateCq { cqe: 1, channel: None, comp_vector: 0 };
    assert_eq!(client.errno(&request), libc::ENOMEM);
    let mr = client.register(pd, &memory);
    assert_eq!(client.errno(&registration(pd, memory.as_ptr() as u64, 64)), libc::ENOMEM);
    client.call(&Request::DeregMr { mr }).unwrap();
    client.register(pd, &memory);
    client.handle(&Request::CreateChannel);
    assert_eq!(client.errno(&Request::CreateChannel), libc::ENOMEM);
    for _ in 0..50 {
        let qps: Vec<_> =
            (0..2).map(|_| client.handle(&Request::CreateQp(queue_pair(pd, cq)))).collect();
        assert_eq!(client.errno(&Request::CreateQp(queue_pair(pd, cq))), libc::ENOMEM);
        for qp in qps {
            client.call(&Request::DestroyQp { qp }).unwrap();
        }
    }
    let second = daemon.open();
    // What one client has, another of the same user cannot have.
    assert_eq!(second.errno(&Request::AllocPd), libc::ENOMEM);
    let third = daemon.connect();
    assert_eq!(third.errno(&Request::Hello { abi: ABI_VERSION }), libc::EAGAIN);
}

#[test]
fn nonsense_ends_a_session_and_nothing_else() {
    let daemon = Daemon::start("nonsense", &[]);
    let bystander = daemon.open();
    let mut seed = 1u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..300 {
        let client = daemon.connect();
        client.greet();
        if round % 2 == 0 {
            client.call(&Request::OpenDevice { name: "rnic0".into() }).unwrap();
        }
        for _ in 0..20 {
            let len = 1 + random() as usize % 64;
            let bytes: Vec<u8> = (0..len).map(|_| (random() >> 32) as u8).collect();
            if client.connection.send(&bytes, &[]).is_err() {
                break;
            }
            let mut buffer = vec![0; rnic_abi::control::MAX_MESSAGE];
            match client.connection.recv(&mut buffer) {
                Ok((len, _)) if len > 0 => {
                    let _answer: Answer = rnic_abi::control::decode(&buffer[..len]).unwrap();
                }
                _ => break,
            }
        }
    }
    assert!(matches!(bystander.call(&Request::QueryPort), Ok(Reply::Port(_))));
    drop(bystander);
    daemon.settle();
    assert_eq!(daemon.totals(), [0, 0, 0]);
}
