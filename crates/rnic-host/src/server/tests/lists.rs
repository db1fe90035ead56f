//! Lists of objects, which come in pages.

use super::{Daemon, Engines, queue_pair};
use crate::inspect::Kind;
use rnic_abi::control::{Inspect, Reply, Request};

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
