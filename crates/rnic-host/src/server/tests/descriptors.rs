//! A daemon that runs out of descriptors.

use super::{Daemon, queue_pair};
use rnic_abi::control::{Answer, CreateQp, Request};
use rnic_abi::verbs::QpCaps;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

/// What the engine has was announced to its client: an object that the client has no handle of
/// would stay, and cost it nothing.
#[test]
fn without_a_descriptor_a_queue_is_not_made() {
    in_a_process("queues_without_descriptors");
}

/// Hung up on, it would take the daemon for dead.
#[test]
fn a_client_without_a_descriptor_for_its_session_is_told_so() {
    in_a_process("sessions_without_descriptors");
}

/// Runs a helper in a process of its own, whose limit concerns no other test.
fn in_a_process(helper: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("server::tests::descriptors::{helper}"), "--ignored"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Lets the process have so many descriptors more. Returns the limit from before.
fn limit_to(spare: u64) -> Rlimit {
    // What opening a context leaves to close is closed a moment later.
    std::thread::sleep(Duration::from_millis(200));
    let before = getrlimit(Resource::Nofile);
    let free = u64::from(rustix::io::dup(std::io::stdin()).unwrap().as_raw_fd().unsigned_abs());
    setrlimit(Resource::Nofile, Rlimit { current: Some(free + spare), ..before }).unwrap();
    before
}

#[test]
#[ignore = "a helper of a test above, which limits its process"]
fn sessions_without_descriptors() {
    let daemon = Daemon::start("sessions", &[]);
    // Its own end and the daemon's.
    let before = limit_to(2);
    let client = daemon.connect().connection;
    let greeted = client.greet();
    setrlimit(Resource::Nofile, before).unwrap();
    let error = greeted.unwrap_err();
    assert!(error.to_string().contains("no session"), "{error}");
    drop(daemon.open());
}

#[test]
#[ignore = "a helper of a test above, which limits its process"]
fn queues_without_descriptors() {
    let daemon = Daemon::start("descriptors", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let cq = client.cq();
    // Too large for the memory that there is: each needs an arena of its own.
    let caps = QpCaps { max_send_wr: 16_384, max_recv_wr: 16_384, ..queue_pair(pd, cq).caps };
    let queue_pair = CreateQp { caps, ..queue_pair(pd, cq) };
    let wanted = [
        Request::CreateCq { cqe: 100_000, channel: None, comp_vector: 0 },
        Request::CreateQp(queue_pair),
    ];
    for request in wanted {
        for spare in 0..2 {
            let before = daemon.totals();
            let limit = limit_to(spare);
            // A client of its own would not ask: it looks for room first.
            client.connection.send_message(&request, &[]).unwrap();
            let answer = client.connection.recv_message();
            setrlimit(Resource::Nofile, limit).unwrap();
            let (answer, _): (Answer, _) = answer.unwrap().unwrap();
            assert!(answer.is_err(), "{request:?} takes two descriptors at least");
            assert_eq!(daemon.totals(), before, "{request:?} with {spare} descriptors");
        }
    }
}
