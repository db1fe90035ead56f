//! Functions that go by the rules, that break them, and that end.

use super::*;
use rnic_abi::os::Credentials;
use rnic_host::inspect::Numbers;
use rnic_host::satellite::protocol::CallAnswer;
use rnic_host::server::Functions;
use rnic_host::wire::STEER;
use rustix::process::{Pid, PidfdFlags, getgid, getpid, getuid, pidfd_open};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;

fn with_sockets() -> Arc<Users> {
    let (_listener, silent) = testbed::silent_listener();
    let mut users = users(silent);
    let parts = &mut Arc::get_mut(&mut users).unwrap().parts;
    parts.shared_port = Some(Arc::new(SteeredPort::in_order(47_931, 0, 1 << 16, STEER)));
    users
}

fn this_program() -> (Credentials, OwnedFd) {
    let pid = getpid();
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let number = Pid::as_raw_nonzero(pid).get().unsigned_abs();
    (Credentials { pid: number, uid, gid }, pidfd_open(pid, PidfdFlags::empty()).unwrap())
}

fn start(users: &Arc<Users>) -> Result<Connection, rnic_abi::control::Refusal> {
    let (peer, process) = this_program();
    FunctionStarter(Arc::clone(users)).start(peer, process).map(Connection::from)
}

/// Until the daemon hangs up.
fn is_cut_off(socket: &Connection) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        match socket.try_recv(&mut vec![0; 1 << 16]) {
            Ok((0, _)) => return true,
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    false
}

#[test]
fn functions_are_for_the_daemons_own_user() {
    let users = with_sockets();
    let (peer, process) = this_program();
    let foreign = Credentials { uid: peer.uid + 1, ..peer };
    let refused = FunctionStarter(Arc::clone(&users)).start(foreign, process).unwrap_err();
    assert_eq!(refused.errno, libc::EPERM);
    let socket = start(&users).unwrap();
    let (first, _) = socket.recv_message::<ToEngine>().unwrap().unwrap();
    let ToEngine::Start(start) = first else { panic!("{first:?}") };
    assert_eq!((start.uid, start.shard), (peer.uid, 1));
    users.parts.own.stop();
}

/// Root of a container has the uid of root's daemon, and could otherwise use its port.
#[test]
fn functions_are_for_the_daemons_own_namespaces() {
    let users = with_sockets();
    for (option, kind) in [("--net", "network"), ("--user", "user")] {
        let mut child = Command::new("unshare").args([option, "sleep", "60"]).spawn().unwrap();
        let name = format!("/proc/{}/comm", child.id());
        while child.try_wait().unwrap().is_none() && fs::read_to_string(&name).unwrap() != "sleep\n"
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        if child.try_wait().unwrap().is_some() || !getuid().is_root() {
            eprintln!("not tried: unshare {option}");
            let _ = child.kill();
            child.wait().unwrap();
            continue;
        }
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let peer = Credentials { pid: child.id(), ..this_program().0 };
        let refused = FunctionStarter(Arc::clone(&users)).start(peer, process);
        child.kill().unwrap();
        child.wait().unwrap();
        let refused = refused.unwrap_err();
        let why = format!("the program is in another {kind} namespace");
        assert!(refused.message.contains(&why), "{}", refused.message);
        assert_eq!(refused.errno, libc::EPERM);
    }
    users.parts.own.stop();
}

/// This process, which would be killed if it were an engine process, goes on.
#[test]
fn a_function_that_breaks_the_rules_is_cut_off() {
    let users = with_sockets();
    let (one, other) = (start(&users).unwrap(), start(&users).unwrap());
    one.send(&[0xff; 40], &[]).unwrap();
    assert!(is_cut_off(&one));
    other.send_message(&FromEngine::Call(1, Call::Take(Vec::new())), &[]).unwrap();
    let is_answer = || match other.recv_message::<ToEngine>().unwrap().unwrap().0 {
        ToEngine::Answer(1, CallAnswer::Taken(taken)) => taken.is_ok(),
        _ => false,
    };
    assert!((0..9).any(|_| is_answer()));
    users.parts.own.stop();
}

#[test]
fn numbers_come_back_when_functions_end() {
    let users = with_sockets();
    for _ in 0..2 {
        let all: Vec<_> = (0..ENGINES).map(|_| start(&users).unwrap()).collect();
        assert_eq!(start(&users).unwrap_err().errno, libc::EUSERS);
        assert_eq!(users.overview().users.len(), ENGINES);
        drop(all);
        all_are_gone(&users);
    }
    users.stop(Instant::now() + Duration::from_secs(1));
    users.parts.own.stop();
}

/// Waits until the daemon has noticed the end of all functions.
fn all_are_gone(users: &Users) {
    let until = Instant::now() + Duration::from_secs(60);
    while !users.table().numbers.is_empty() {
        assert!(Instant::now() < until, "a number is not given back");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the daemon has noticed the end of this function.
fn end(users: &Users, function: Connection) {
    let taken = || users.table().numbers.len();
    let before = taken();
    drop(function);
    let until = Instant::now() + Duration::from_secs(60);
    while taken() == before {
        assert!(Instant::now() < until, "a number is not given back");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn number_given(function: &Connection) -> u8 {
    let (first, _) = function.recv_message::<ToEngine>().unwrap().unwrap();
    let ToEngine::Start(start) = first else { panic!("{first:?}") };
    start.shard
}

/// Peers may still send to what had the number before: one that stays must not make the others
/// take turns with the number beside it.
#[test]
fn the_number_that_was_given_back_first_is_used_next() {
    let users = with_sockets();
    let mut given = Vec::new();
    let stays = start(&users).unwrap();
    assert_eq!(number_given(&stays), 1);
    for _ in 0..2 * ENGINES {
        let function = start(&users).unwrap();
        given.push(usize::from(number_given(&function)));
        end(&users, function);
    }
    let all: Vec<_> = (2..=ENGINES).cycle().take(2 * ENGINES).collect();
    assert_eq!(given, all);
    users.parts.own.stop();
}

/// Also what the wire of a function has counted, and no names of its own.
#[test]
fn counters_of_a_function_outlive_it() {
    let users = with_sockets();
    let function = start(&users).unwrap();
    let counted = [("tx_packets", 5), ("fault_dropped", 3), ("link_rx_bytes", 9), ("invented", 1)];
    let counted = counted.map(|(name, number)| (name.into(), number)).into_iter().collect();
    function.send_message(&FromEngine::Counted(counted), &[]).unwrap();
    end(&users, function);
    let past = users.table().past.clone();
    let past: Vec<_> = past.iter().map(|(name, number)| (name.as_ref(), *number)).collect();
    assert_eq!(past, [("fault_dropped", 3), ("link_rx_bytes", 9), ("tx_packets", 5)]);
    users.parts.own.stop();
}

/// Also at once, before the daemon has noticed its end, and not twice; an answer that was overtaken
/// changes nothing.
#[test]
fn counters_of_a_function_miss_nothing_while_it_ends() {
    let users = with_sockets();
    let sent = || users.counters().get("tx_packets").copied().unwrap_or_default();
    let before = sent();
    for times in 1..=30 {
        let function = start(&users).unwrap();
        for sent in [5, 4] {
            let counted = Numbers::from([("tx_packets".into(), sent)]);
            function.send_message(&FromEngine::Counted(counted), &[]).unwrap();
        }
        drop(function);
        assert_eq!(sent(), before + times * 5);
    }
    all_are_gone(&users);
    assert_eq!(sent(), before + 30 * 5);
    users.parts.own.stop();
}

/// Nothing tells when another program gives the port back.
#[test]
fn addresses_that_a_function_got_no_sockets_for_are_tried_again() {
    let users = with_sockets();
    let _function = start(&users).unwrap();
    let engine = Arc::clone(&users.table().functions[0]);
    let (address, mut unserved) = (IpAddr::from([127, 0, 0, 9]), None);
    let mut give = || {
        assert!(users.give_sockets(&engine, &[address], &mut unserved));
        let port = users.parts.shared_port.as_ref().unwrap();
        let serves = port.serves(engine.number(), engine.serial, address);
        (serves, unserved.as_ref().unwrap().failed())
    };
    let other = UdpSocket::bind((address, 47_931)).unwrap();
    assert_eq!([give(), give()], [(false, 1), (false, 2)]);
    for name in ["link_bind_failed", "local_bind_failed"] {
        let mut own = Numbers::from([(name.into(), 3), ("link_tx_errors".into(), 3)]);
        users.add_unserved(&mut own);
        assert_eq!(own, Numbers::from([(name.into(), 5), ("link_tx_errors".into(), 3)]));
    }
    drop(other);
    assert_eq!(give(), (true, 2));
    users.parts.own.stop();
}
