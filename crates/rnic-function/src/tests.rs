//! Functions of daemons that answer, that do not, and that end.

use crate::table::{connect, have_counts_told};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{Answer, DeviceInfo, PortInfo, Reply, Request};
use rnic_abi::os::{Connection, Listener};
use rnic_abi::verbs::AhAttr;
use rnic_core::HopId;
use rnic_core::command::Path as WayTo;
use rnic_core::config::default_limits;
use rnic_host::quota::Amounts;
use rnic_host::satellite::protocol::{
    Call, CallAnswer, EngineWire, FromEngine, NetworkState, Start, ToEngine, Way,
};
use rnic_host::settings::{Profile, Settings};
use roce_wire::Flow;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// These tests count what their process has: each begins when the functions of the last are gone.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    settle();
    one
}

/// Waits until no function is left, and looks for one, which closes the doors of others.
fn settle() {
    let until = Instant::now() + SOON;
    while threads() > 0 {
        assert!(Instant::now() < until, "{} threads of functions", threads());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(connect(Path::new("/no daemon"), false).is_err());
}

/// A socket that a daemon listens at.
fn listen(name: &str) -> (Listener, PathBuf) {
    let file = format!("rnic-function-{name}-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(file);
    (Listener::bind(&path, 0o600).unwrap(), path)
}

fn start() -> Start {
    let port = PortInfo {
        active: true,
        max_mtu: 5,
        active_mtu: 5,
        netdev_mtu: 4200,
        gid_table_len: 16,
        speed_mbps: 0,
    };
    Start {
        uid: 0,
        gid: 0,
        log: "off".into(),
        settings: Settings::default(),
        profile: Profile::Spec,
        shard: 1,
        secret: [1, 2],
        device: DeviceInfo {
            name: "rnic0".into(),
            netdev: None,
            node_guid: [0; 8],
            fw_version: "test".into(),
            limits: default_limits(),
        },
        io: "udp".into(),
        owner: 0,
        daemon: std::process::id(),
        limits: Amounts::default(),
        network: NetworkState {
            port,
            gids: Vec::new(),
            addresses: Vec::new(),
            interface: 0,
            gids_changed: false,
        },
        wire: EngineWire::Sockets(0),
    }
}

/// The daemon, from the request for a function on.
struct Daemon {
    function: Connection,
}

impl Daemon {
    /// Gives a program its function. Other clients are not answered.
    fn serve(listener: &Listener) -> Self {
        let client = listener.accept().unwrap();
        let (function, theirs) = Connection::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        while let Some((request, _)) = client.recv_message::<Request>().unwrap() {
            let fds = match request {
                Request::StartFunction => vec![theirs.as_fd()],
                _ => Vec::new(),
            };
            client.send_message(&Answer::Ok(Reply::Done), &fds).unwrap();
            if !fds.is_empty() {
                break;
            }
        }
        function.send_message(&ToEngine::Start(Box::new(start())), &[]).unwrap();
        Self { function }
    }

    /// What the function says first, other than that it takes something.
    fn hears(&self) -> Option<FromEngine> {
        loop {
            let mut fds = [PollFd::new(&self.function, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&Timespec::try_from(SOON).unwrap())).unwrap();
            assert_eq!(ready, 1, "the function says nothing");
            match self.function.recv_message::<FromEngine>().unwrap()?.0 {
                FromEngine::Call(number, Call::Take(_)) => {
                    let taken = ToEngine::Answer(number, CallAnswer::Taken(Ok(())));
                    self.function.send_message(&taken, &[]).unwrap();
                }
                other => return Some(other),
            }
        }
    }
}

/// What a program's thread gets that connects to its function.
fn connecting(path: &Path) -> Receiver<std::io::Result<OwnedFd>> {
    let (tell, told) = channel();
    let path = path.to_path_buf();
    std::thread::spawn(move || tell.send(connect(&path, false)));
    told
}

#[test]
fn a_daemon_that_does_not_answer_keeps_only_its_own_clients_waiting() {
    let _one = alone();
    let ((silent, no), (speaks, yes)) = (listen("silent"), listen("speaks"));
    let waits = connecting(&no);
    let asked = silent.accept().unwrap();
    let also_waits = connecting(&no);
    let served = connecting(&yes);
    let daemon = Daemon::serve(&speaks);
    let _client = served.recv_timeout(SOON).unwrap().unwrap();
    assert!(waits.try_recv().is_err() && also_waits.try_recv().is_err());
    // The other thread asks for itself.
    drop(asked);
    assert!(waits.recv_timeout(SOON).unwrap().is_err());
    drop(silent.accept().unwrap());
    assert!(also_waits.recv_timeout(SOON).unwrap().is_err());
    drop(daemon);
}

/// Of functions.
fn threads() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().map(|task| {
        let name = task.and_then(|task| fs::read_to_string(task.path().join("comm")));
        name.unwrap_or_default()
    });
    names.filter(|name| name.starts_with("rnic-")).count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_function_that_has_ended_leaves_nothing() {
    let _one = alone();
    let before = descriptors();
    let (listener, path) = listen("ends");
    for _ in 0..3 {
        let served = connecting(&path);
        let daemon = Daemon::serve(&listener);
        let client = served.recv_timeout(SOON).unwrap().unwrap();
        assert!(threads() > 0);
        drop((daemon, client));
        settle();
    }
    drop(listener);
    assert_eq!(descriptors(), before);
}

/// The function goes on: other threads, and what runs later, may still use it.
#[test]
fn what_was_counted_is_told_at_the_end_of_the_program() {
    let _one = alone();
    let (listener, path) = listen("counts");
    let served = connecting(&path);
    let daemon = Daemon::serve(&listener);
    let _client = served.recv_timeout(SOON).unwrap().unwrap();
    for _ in 0..2 {
        let at_the_end = std::thread::spawn(|| have_counts_told());
        let said = daemon.hears();
        assert!(matches!(said, Some(FromEngine::Counted(_))), "{said:?}");
        at_the_end.join().unwrap();
    }
    let another = connecting(&path).recv_timeout(SOON).unwrap();
    assert!(another.is_ok());
}

/// Two seconds without a client are the end of a function.
#[test]
fn a_function_waits_for_a_daemon_that_is_slow_to_admit_its_client() {
    let _one = alone();
    let (listener, path) = listen("slow");
    let served = connecting(&path);
    let daemon = Daemon::serve(&listener);
    let client = Connection::from(served.recv_timeout(SOON).unwrap().unwrap());
    let taken = match daemon.function.recv_message::<FromEngine>().unwrap() {
        Some((FromEngine::Call(number, Call::Take(_)), _)) => number,
        other => panic!("{other:?}"),
    };
    std::thread::sleep(Duration::from_millis(2500));
    assert!(threads() > 0);
    let answer = ToEngine::Answer(taken, CallAnswer::Taken(Ok(())));
    daemon.function.send_message(&answer, &[]).unwrap();
    ask(&client, Request::Hello { abi: ABI_VERSION });
    drop((daemon, client));
}

/// A program's request, which the function grants.
fn ask(client: &Connection, request: Request) -> Reply {
    client.call(&request, &[]).unwrap().0.unwrap()
}

#[test]
fn a_way_that_is_not_used_any_more_is_given_back() {
    let _one = alone();
    let (listener, path) = listen("ways");
    let served = connecting(&path);
    let daemon = Daemon::serve(&listener);
    let client = Connection::from(served.recv_timeout(SOON).unwrap().unwrap());
    let program = std::thread::spawn(move || {
        ask(&client, Request::Hello { abi: ABI_VERSION });
        ask(&client, Request::OpenDevice { name: start().device.name });
        let Reply::Handle(pd) = ask(&client, Request::AllocPd) else { panic!("no domain") };
        let attr = AhAttr { dgid: [1; 16], is_global: true, port_num: 1, ..AhAttr::default() };
        for _ in 0..2 {
            let Reply::Handle(ah) = ask(&client, Request::CreateAh { pd, attr }) else {
                panic!("no address handle")
            };
            ask(&client, Request::DestroyAh { ah });
        }
        client
    });
    let mut back = Vec::new();
    while back.len() < 2 {
        match daemon.hears().unwrap() {
            FromEngine::Call(number, Call::Resolve(attr)) => {
                let flow = Flow::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into(), 4791);
                let hop = HopId(7 + back.len() as u32);
                let way = CallAnswer::Way(Ok(Way::from(WayTo { attr, flow, hop })));
                daemon.function.send_message(&ToEngine::Answer(number, way), &[]).unwrap();
            }
            // Before the next one is asked for.
            FromEngine::GiveWays(ways) => back.extend(ways),
            FromEngine::Give(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(back, [(7, 1), (8, 1)]);
    drop((daemon, program.join().unwrap()));
}
