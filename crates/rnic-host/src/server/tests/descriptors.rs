//! A daemon that runs out of descriptors.

use super::{Daemon, queue_pair};
use rnic_abi::control::{Answer, CreateQp, Request};
use rnic_abi::verbs::QpCaps;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

const HELPER: &str = "server::tests::descriptors::queues_without_descriptors";

/// What the engine has was announced to its client: an object that the client has no handle of
/// would stay, and cost it nothing.
#[test]
fn without_a_descriptor_a_queue_is_not_made() {
    // In a process of its own, whose limit concerns no other test.
    let helper = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", HELPER, "--ignored"])
        .output()
        .unwrap();
    assert!(helper.status.success(), "{}", String::from_utf8_lossy(&helper.stdout));
}

#[test]
#[ignore = "a helper of the test above, which limits its process"]
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
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    // What opening a context leaves to close is closed a moment later.
    std::thread::sleep(Duration::from_millis(200));
    let free = u64::from(rustix::io::dup(std::io::stdin()).unwrap().as_raw_fd().unsigned_abs());
    for request in wanted {
        for spare in 0..2 {
            let before = daemon.totals();
            limit(Some(free + spare));
            // A client of its own would not ask: it looks for room first.
            client.connection.send_message(&request, &[]).unwrap();
            let answer = client.connection.recv_message();
            limit(maximum);
            let (answer, _): (Answer, _) = answer.unwrap().unwrap();
            assert!(answer.is_err(), "{request:?} takes two descriptors at least");
            assert_eq!(daemon.totals(), before, "{request:?} with {spare} descriptors");
        }
    }
}
