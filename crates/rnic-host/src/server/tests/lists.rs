//! Lists of objects, which come in pages.

use super::{Daemon, Engines, queue_pair};
use crate::inspect::Kind;
use rnic_abi::control::{Inspect, Reply, Request};
use rnic_abi::os::Credentials;

#[test]
fn long_lists_come_in_pages() {
    let daemon = Daemon::start("pages", &[]);
    let client = daemon.open();
    let mut cqs: Vec<u32> = (0..1500).map(|_| client.cq()).collect();
    // Where many have gone, too.
    for cq in cqs.split_off(1100) {
        client.call(&Request::DestroyCq { cq }).unwrap();
    }
    for cq in cqs.drain(100..700) {
        client.call(&Request::DestroyCq { cq }).unwrap();
    }
    let list = client.list(Inspect::Cqs);
    let mut seen: Vec<u32> = list.iter().map(|cq| cq["cq"].as_u64().unwrap() as u32).collect();
    seen.sort_unstable();
    cqs.sort_unstable();
    assert_eq!(seen, cqs);
    // A place without an object is at the end.
    for from in [u32::MAX, 1 << 31, 1400, 5000] {
        let answer = client.call(&Request::Inspect { what: Inspect::Cqs, from });
        assert_eq!(answer, Ok(Reply::Inspected { json: "[]".into(), next: None }), "{from}");
    }
}

/// However many there are, the rest of what `rnic` shows does not depend on them.
#[test]
fn many_sessions_come_in_pages() {
    let daemon = Daemon::start("sessions", &[]);
    let registry = &daemon.service.registry;
    let peer = Credentials { pid: std::process::id(), uid: u32::MAX, gid: 0 };
    let mut entered: Vec<u32> = (0..3000).map(|_| registry.enter(peer)).collect();
    entered.drain(100..400).for_each(|session| registry.leave(session));
    let client = daemon.open();
    let list = client.list(Inspect::Sessions);
    let numbers: Vec<u64> =
        list.iter().map(|session| session["session"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), entered.len() + 1);
    assert!(numbers.is_sorted() && entered.iter().all(|one| numbers.contains(&u64::from(*one))));
    assert_eq!(list.iter().filter(|session| session["client"].is_u64()).count(), 1);
    let status = client.call(&Request::Inspect { what: Inspect::Status, from: 0 }).unwrap();
    assert!(matches!(status, Reply::Inspected { json, .. } if json.contains("totals")));
}

/// An engine works between two looks at its objects, however many there are and however many
/// sessions ask.
#[test]
fn looking_at_many_objects_keeps_no_engine() {
    let daemon = Daemon::start("looks", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let cq = client.cq();
    for _ in 0..1000 {
        client.handle(&Request::CreateQp(queue_pair(pd, cq)));
    }
    let (objects, next) = daemon.engine.objects(Kind::Qps, 0.into());
    assert!(!objects.is_empty() && objects.len() <= 64, "{}", objects.len());
    assert!(next.is_some());
    assert_eq!(client.list(Inspect::Qps).len(), 1000);
}
