//! Engine processes that break every rule, and a daemon that goes on working.

mod functions;
mod timing;

use super::inspect::believed;
use super::*;
use rnic_abi::control::{CmHappening, CmNotice, CmOffer, CmRequest, CmTarget, encode};
use rnic_abi::os::memory;
use rnic_core::EngineConfig;
use rnic_core::config::default_limits;
use rnic_core::qpn::SHARD_SHIFT;
use rnic_host::inspect::{Kind, Place, Question};
use rnic_host::observe::{Wants, watch};
use rnic_host::quota::{Amounts, Limits, Machine, Resource, Section};
use rnic_host::report::{self, Object};
use rnic_host::satellite::protocol::{Call, FromEngine, Severity, ToEngine, Told, first_number};
use rnic_host::server::{Engines, Ledger};
use rnic_host::settings::{Io, XdpMode};
use rnic_host::shard::ShardPort;
use rnic_host::wire::{self, WireConfig};
use rnic_net::NetConfig;
use roce_wire::Gid;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use timing::{is_quick, time};

/// This program, as the engine process below, which is told of a peer that reads nothing.
fn command(silent: SocketAddr) -> Vec<OsString> {
    let this = std::env::current_exe().unwrap();
    let name = "users::tests::an_engine_process_that_breaks_every_rule";
    let silent = silent.to_string();
    vec![this.into(), "--exact".into(), name.into(), "--ignored".into(), silent.into()]
}

fn users(silent: SocketAddr) -> Arc<Users> {
    let place = NetConfig { netdev: Some("lo".into()), addresses: Vec::new() };
    let network = Network::start(place, Box::new(|_| ())).unwrap();
    let wires =
        WireConfig { io: Io::Loopback, xdp_mode: XdpMode::Auto, trains: true, users: false };
    let wire = wire::open(&wires, &network).unwrap();
    let joiner = wire.joiner();
    let port = ShardPort::Device(Box::new(wire));
    let engine = EngineConfig::new([1, 2]);
    let own = Arc::new(OwnEngine::start(Settings::default(), engine, port).unwrap());
    own.handle().tell(rnic_host::shard::ShardMessage::Network(network.now()));
    let limits = Limits::new(&Section::new(), &Section::new(), &Machine::look());
    let device = DeviceInfo {
        name: "rnic0".into(),
        netdev: None,
        node_guid: [0; 8],
        fw_version: "test".into(),
        limits: default_limits(),
    };
    let connections = Connections::start(&device, &network, own.handle()).unwrap();
    Users::new(Parts {
        log: crate::log::Filter::off(),
        settings: Settings::default(),
        profile: Profile::Spec,
        device,
        io: "loopback".into(),
        groups: 4,
        ledger: Accounts::new(limits, 0),
        network,
        wire_groups: WireGroups::new(own.handle().clone(), joiner),
        connections,
        own,
        shared_port: None,
        command: Some(command(silent)),
    })
    .unwrap()
}

#[test]
fn engines_without_sockets_learn_that_the_wire_is_lost() {
    let (_listener, silent) = testbed::silent_listener();
    let users = users(silent);
    let hops = users.parts.network.hops();
    let is_active = || users.network_state(false).port.active;
    assert!(is_active());
    hops.set_wire_retry(Some(Instant::now()));
    assert!(!is_active());
    hops.set_wire_retry(None);
    assert!(is_active());
    users.parts.own.stop();
}

/// Engine processes that are started.
const ROUNDS: u32 = 40;

/// Descriptors and threads of this process.
fn held() -> [usize; 2] {
    ["fd", "task"].map(|what| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count())
}

/// In a process of its own: other tests would start threads and open descriptors meanwhile.
#[test]
fn engine_processes_that_break_every_rule_harm_nothing() {
    let this = std::env::current_exe().unwrap();
    let name = "users::tests::beside_engine_processes_that_break_every_rule";
    let alone = Command::new(this).args(["--exact", name, "--ignored"]).output().unwrap();
    let ran = String::from_utf8_lossy(&alone.stdout).contains("1 passed");
    assert!(alone.status.success() && ran, "{alone:?}");
}

/// What the test above runs.
#[test]
#[ignore = "is run by another test"]
fn beside_engine_processes_that_break_every_rule() {
    let (_listener, silent) = testbed::silent_listener();
    let users = users(silent);
    let own = Arc::clone(&users.parts.own);
    let answers = || {
        let found = own.ask(Question::Totals).until(Instant::now() + Duration::from_secs(20));
        assert!(found.is_some(), "the engine does not answer");
    };
    answers();
    let before = held();
    for round in 0..ROUNDS {
        // Each is another user: one whose process has died waits for the next one.
        let user = (20_000 + round, 100);
        let (ours, theirs) = Connection::pair().unwrap();
        // Refused only when such a process does not live long enough.
        let _ = users.admit(user, theirs);
        assert!(time(answers) < Duration::from_millis(500), "round {round}");
        if round % 8 == 0 {
            let look = || {
                users.overview();
                users.counters();
                users.objects(Kind::Qps, Place { shard: 1, slot: 0 });
            };
            assert!(time(look) < Duration::from_secs(5), "round {round}");
        }
        drop(ours);
        std::thread::sleep(Duration::from_millis(30));
    }
    let stop = || users.stop(Instant::now() + Duration::from_secs(1));
    assert!(time(stop) < Duration::from_secs(3));
    let began = Instant::now();
    let is_over = || {
        let table = users.table();
        table.engines.is_empty() && table.numbers.is_empty()
    };
    while !is_over() || held() > before {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?} and {before:?}", held());
        std::thread::sleep(Duration::from_millis(20));
    }
    answers();
    // Everything was given back: all of it can be taken again.
    for round in 0..ROUNDS {
        let user = 20_000 + round;
        for resource in Resource::ALL {
            let all = users.parts.ledger.limit(user, resource);
            if resource != Resource::RingBytes && resource.weight() == 0 {
                users.parts.ledger.take(user, &[(resource, all)]).unwrap();
                users.parts.ledger.give(user, resource, all);
            }
        }
    }
    own.stop();
}

/// Neither the daemon's thread that admits clients waits, nor another user.
#[test]
fn a_user_whose_engine_processes_die_waits_for_the_next_one() {
    let (_listener, silent) = testbed::silent_listener();
    let mut users = users(silent);
    // Each dies at once.
    Arc::get_mut(&mut users).unwrap().starter =
        Some(Starter::new(vec!["/bin/true".into()]).unwrap());
    let refused = |user: User| {
        let (_ours, theirs) = Connection::pair().unwrap();
        users.admit(user, theirs).err().map(|(_, refusal)| refusal)
    };
    let is_early = |user| refused(user).filter(|refusal| refusal.message.contains("in a row"));
    let began = Instant::now();
    let told = loop {
        assert!(began.elapsed() < Duration::from_secs(60), "no client is told to wait");
        // Groups of a user are one user.
        match (is_early((20_000, 100)), is_early((20_000, 101))) {
            (Some(refusal), Some(_)) => break refusal,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(told.errno, libc::EAGAIN);
    assert!(is_early((20_001, 100)).is_none(), "another user waits");
    for user in [(20_000, 100), (20_001, 100)] {
        assert!(is_quick(Duration::from_millis(500), || drop(refused(user))), "it waits");
    }
    users.stop(Instant::now() + Duration::from_secs(1));
    users.parts.own.stop();
}

/// Those whose engine processes do nothing at all.
fn users_of_sleepers(silent: SocketAddr) -> Arc<Users> {
    let mut users = users(silent);
    let sleeps = vec!["/bin/sleep".into(), "60".into()];
    Arc::get_mut(&mut users).unwrap().starter = Some(Starter::new(sleeps).unwrap());
    users
}

fn admit(users: &Arc<Users>, uid: u32) -> Connection {
    let (ours, theirs) = Connection::pair().unwrap();
    users.admit((uid, 100), theirs).map_err(|(_, refusal)| refusal.message).unwrap();
    ours
}

/// Nor does any of them keep the daemon from ending.
#[test]
fn engine_processes_that_do_not_answer_are_waited_for_together_and_once() {
    let (_listener, silent) = testbed::silent_listener();
    let users = users_of_sleepers(silent);
    let _clients: Vec<_> = (20_000..20_010).map(|uid| admit(&users, uid)).collect();
    let list = || {
        let mut at = Some(Place { shard: 0, slot: 0 });
        while let Some(from) = at {
            at = users.objects(Kind::Qps, from).1;
        }
    };
    let began = Instant::now();
    list();
    // One after the other they would take a second each.
    assert!(began.elapsed() < Duration::from_secs(5));
    let told = users.overview().users;
    assert_eq!(told.iter().filter(|user| !user.answers).count(), 10);
    let again = || {
        list();
        users.counters();
    };
    assert!(is_quick(Duration::from_millis(500), again));
    assert!((0..5).any(|_| is_ended_at_once()), "an answer is waited for");
    users.stop(Instant::now());
    users.parts.own.stop();
}

/// Whether the end of the daemon does not wait for an answer that a process owes: not for a second.
fn is_ended_at_once() -> bool {
    let (_listener, silent) = testbed::silent_listener();
    let users = users_of_sleepers(silent);
    let _client = admit(&users, 20_000);
    let began = Instant::now();
    let asking = std::thread::spawn({
        let users = Arc::clone(&users);
        move || users.counters()
    });
    std::thread::sleep(Duration::from_millis(100));
    users.end();
    asking.join().unwrap();
    let is_at_once = began.elapsed() < Duration::from_secs(1);
    users.stop(Instant::now());
    users.parts.own.stop();
    is_at_once
}

#[test]
fn objects_that_a_process_invents_are_not_believed() {
    let from = Place { shard: 3, slot: 5 };
    let cq = |client| {
        let (capacity, written, polled, queues, broken) = (1, 0, 0, 1, false);
        Object::Cq(report::Cq { cq: 1, client, capacity, written, polled, queues, broken })
    };
    let (own, foreign) = (first_number(3) + 1, first_number(4));
    let too_far = 1 << rnic_core::slab::SLOT_BITS;
    let told = vec![(4, cq(own)), (5, cq(own)), (6, cq(foreign)), (7, cq(own)), (too_far, cq(own))];
    let slots = |kind| -> Vec<_> {
        let believed = believed(kind, from, told.clone());
        believed.iter().map(|(slot, _)| *slot).collect()
    };
    assert_eq!(slots(Kind::Cqs), [5, 7]);
    // Such a list could not be read where queue pairs were asked for.
    assert!(slots(Kind::Qps).is_empty());
    // One object again and again would end the list before those of further users.
    let again = believed(Kind::Cqs, from, vec![(6, cq(own)), (6, cq(own)), (5, cq(own))]);
    assert_eq!(again.len(), 1);
}

#[test]
fn queue_pairs_of_others_and_commands_for_a_terminal_are_not_believed() {
    let from = Place { shard: 3, slot: 0 };
    let qp = |qpn: u32, state: &str| {
        let (client, state) = (first_number(3), state.to_owned());
        Object::Qp(report::Qp { qpn, client, state, ..report::Qp::default() })
    };
    let (own, foreign) = (3 << SHARD_SHIFT | 7, 4 << SHARD_SHIFT | 7);
    let told = ["RTS", "\u{1b}[2J", "\u{9b}2J", "RTS"].into_iter().zip([own, own, own, foreign]);
    let told = (0..).zip(told).map(|(slot, (state, qpn))| (slot, qp(qpn, state))).collect();
    let slots: Vec<_> = believed(Kind::Qps, from, told).iter().map(|(slot, _)| *slot).collect();
    assert_eq!(slots, [0]);
    assert_eq!(report::shown("a\n\u{1b}b"), "a??b");
}

/// How many faults and watchers each process knows of in the end.
fn told(folder: &Path) -> Vec<[usize; 2]> {
    let file = |entry: io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut numbers = text.split(' ').map(|number| number.parse().unwrap());
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    fs::read_dir(folder).unwrap().map(file).collect()
}

#[test]
fn processes_that_start_while_faults_and_watchers_come_learn_of_each_once() {
    let folder = std::env::temp_dir().join(format!("rnic-told-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (_listener, silent) = testbed::silent_listener();
    let mut users = users(silent);
    let name = "users::tests::an_engine_process_that_notes_what_it_is_told";
    let this = std::env::current_exe().unwrap();
    let note = vec![this.into(), "--exact".into(), name.into(), "--ignored".into()];
    let note = [note, vec![folder.clone().into()]].concat();
    Arc::get_mut(&mut users).unwrap().starter = Some(Starter::new(note).unwrap());
    let admitting = [20_000, 20_010, 20_020].map(|first| {
        let users = Arc::clone(&users);
        let admit = move |uid| {
            let client = admit(&users, uid);
            // The next one must not have the table at once.
            std::thread::sleep(Duration::from_millis(1));
            client
        };
        std::thread::spawn(move || (first..first + 9).map(admit).collect::<Vec<_>>())
    });
    let (mut faults, mut feeds) = (Vec::new(), Vec::new());
    while admitting.iter().any(|thread| !thread.is_finished()) {
        // From the first start to the last, and no more than a process may leave unread.
        if faults.len() as u64 > 4 * users.counts().1 {
            std::thread::yield_now();
            continue;
        }
        let fault: Fault = "drop,nth=9".parse().unwrap();
        faults.push(fault.clone());
        users.disturb_all(FaultChange::Add(vec![fault], None), &faults);
        if faults.len() % 4 == 0 && feeds.len() < 20 {
            let (watcher, feed) = watch(Wants { frames: false, events: true });
            users.observe(&watcher);
            feeds.push(feed);
        }
    }
    let _clients = admitting.map(|thread| thread.join().unwrap());
    let began = Instant::now();
    let wanted = vec![[faults.len(), feeds.len()]; 27];
    while told(&folder) != wanted && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(told(&folder), wanted);
    users.stop(Instant::now());
    users.parts.own.stop();
    fs::remove_dir_all(folder).unwrap();
}

/// Not a test: it writes how many faults are in force, and how many watchers there are, into a file
/// of the folder that is its last argument.
#[test]
#[ignore = "is an engine process of another test"]
fn an_engine_process_that_notes_what_it_is_told() {
    let socket = Connection::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let folder = PathBuf::from(std::env::args_os().next_back().unwrap());
    let (file, new) = (std::process::id().to_string(), folder.with_extension("new"));
    fs::create_dir_all(&new).unwrap();
    let (mut faults, mut watchers) = (0, 0);
    while let Ok(Some((message, _))) = socket.recv_message::<ToEngine>() {
        match message {
            ToEngine::Faults(FaultChange::Add(more, _)) => faults += more.len(),
            ToEngine::Observe(_) => watchers += 1,
            // The test removes the folder.
            ToEngine::End => break,
            _ => {}
        }
        fs::write(new.join(&file), format!("{faults} {watchers}")).unwrap();
        fs::rename(new.join(&file), folder.join(&file)).unwrap();
    }
    let _ = fs::remove_dir(new);
}

/// Not a test: see [`command`].
#[test]
#[ignore = "is an engine process of another test"]
fn an_engine_process_that_breaks_every_rule() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let socket = Connection::from(socket);
    let mut random = fastrand::Rng::with_seed(std::process::id().into());
    let Ok(Some((ToEngine::Start(_), fds))) = socket.recv_message::<ToEngine>() else { return };
    let [_, memory_file, waker, eventfd] = fds.exactly().unwrap();
    let len = rustix::fs::fstat(&memory_file).unwrap().st_size as usize / 8;
    let words = memory::map(&memory_file, len).unwrap();
    if random.u8(0..4) == 0 {
        // Its last `close` takes a minute.
        let lingering = testbed::lingering(std::env::args().next_back().unwrap().parse().unwrap());
        let bytes = encode(&FromEngine::Idle(0)).unwrap();
        let _ = socket.try_send(&bytes, &[lingering.as_fd()]);
        drop(lingering);
    }
    let reads = random.bool();
    for _ in 0..random.u32(0..2000) {
        match random.u8(0..8) {
            0 => break_memory(&words, &mut random),
            1 => {
                let bytes: Vec<u8> = (0..random.usize(1..300)).map(|_| random.u8(..)).collect();
                let file: &[BorrowedFd<'_>] = &[memory_file.as_fd()];
                let _ = socket.try_send(&bytes, if random.bool() { file } else { &[] });
            }
            2 if reads => drop(socket.try_recv(&mut vec![0; 1 << 16])),
            3 => {
                let _ = rustix::net::send(&waker, &[0; 9], rustix::net::SendFlags::DONTWAIT);
                let _ = rustix::io::write(&eventfd, &random.u64(0..99).to_ne_bytes());
                let _ = rustix::io::ioctl_fionbio(&eventfd, random.bool());
            }
            4 if random.u8(..) == 0 => {
                let _ = rustix::net::shutdown(&waker, rustix::net::Shutdown::Both);
            }
            _ => {
                let bytes = encode(&message(&mut random)).unwrap();
                let _ = socket.try_send(&bytes, &[]);
            }
        }
    }
    match random.u8(0..4) {
        0 => std::process::abort(),
        1 => std::process::exit(0),
        2 => std::thread::sleep(Duration::from_secs(20)),
        _ => {}
    }
}

fn break_memory(words: &rnic_abi::words::Words, random: &mut fastrand::Rng) {
    let end = [40, 600, words.len()][random.usize(0..3)];
    let value = if random.bool() { random.u64(0..70) } else { random.u64(..) };
    words.set(random.usize(0..end), value);
}

/// What no program would ask the connection manager for.
fn request(random: &mut fastrand::Rng) -> CmRequest {
    let (id, channel) = (random.u32(0..9), random.u32(0..3));
    let private = vec![7; random.usize(0..300)];
    let mut gid = Gid::from_ip([127, 0, 0, 1].into()).0;
    gid[15] = random.u8(0..4);
    let qpn = random.u32(..);
    let offer = CmOffer { qpn, ..CmOffer::default() };
    let port = random.u16(..) >> random.u32(0..16);
    match random.u8(0..11) {
        0 | 1 => CmRequest::OpenChannel,
        2 => CmRequest::CloseChannel { channel },
        3 | 4 => {
            let space = [0x106, 0x111, 0x13f, 9][random.usize(0..4)];
            CmRequest::Bind { channel, space, address: None, port, shared: random.bool() }
        }
        5 => CmRequest::Listen { id, backlog: random.u32(..) },
        6 => {
            let to = CmTarget { local: gid, remote: gid, port, traffic_class: 0, flow_label: qpn };
            CmRequest::LookUp { id, to, private }
        }
        7 => CmRequest::Accept { id, offer, private },
        8 => CmRequest::StopListening { id },
        9 => CmRequest::Undecided { id },
        _ => {
            let what = CmHappening::Posted(qpn, 0);
            CmRequest::Post(CmNotice { id, what, private })
        }
    }
}

/// A message as an engine process sends it, with numbers that none would.
fn message(random: &mut fastrand::Rng) -> FromEngine {
    let resource = Resource::ALL[random.usize(0..Resource::ALL.len())];
    let amount = random.u64(..) >> random.u32(0..64);
    match random.u8(0..11) {
        10 => FromEngine::GiveWays(vec![(random.u32(..), random.u32(..)); random.usize(0..300)]),
        7 | 8 => FromEngine::Call(0, Call::Connections(random.u32(0..9), request(random))),
        9 => FromEngine::CloseConnections(random.u32(0..9)),
        0 => {
            let mut amounts = Amounts::default();
            amounts[resource] = amount;
            FromEngine::Give(amounts)
        }
        1 => FromEngine::Call(
            random.u32(..),
            Call::Take(vec![(resource, amount); random.usize(0..14)]),
        ),
        2 => FromEngine::Call(0, Call::Resolve(rnic_abi::verbs::AhAttr::default())),
        3 => FromEngine::Told(random.u32(0..9), Told::Sessions(Vec::new())),
        4 => FromEngine::Idle(random.u32(0..3)),
        5 => FromEngine::Log(Severity::Info, "x\n".repeat(random.usize(0..3000))),
        _ => FromEngine::Counted([("x".repeat(random.usize(0..99)).into(), amount)].into()),
    }
}
