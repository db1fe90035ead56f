//! Completion queues of another size over the control socket.

use super::Daemon;
use crate::quota::Resource;
use rnic_abi::control::{Reply, Request};

#[test]
fn a_completion_queue_changes_its_size() {
    let daemon = Daemon::start("resize", &[(Resource::Cqs, 1)]);
    let client = daemon.open();
    let cq = client.cq();
    for (wanted, granted) in [(1, 2), (3, 4), (100, 128), (100_000, 131_072), (7, 8)] {
        let reply = client.call(&Request::ResizeCq { cq, cqe: wanted });
        let Ok(Reply::Cq { cq: same, cqe, .. }) = reply else { panic!("{reply:?}") };
        assert_eq!((same, cqe), (cq, granted));
    }
    for (cq, cqe, errno) in
        [(cq, 0, libc::EINVAL), (cq, u32::MAX, libc::EINVAL), (cq + 1, 1, libc::ENOENT)]
    {
        assert_eq!(client.errno(&Request::ResizeCq { cq, cqe }), errno, "{cq} {cqe}");
    }
    client.call(&Request::DestroyCq { cq }).unwrap();
    assert_eq!(client.errno(&Request::ResizeCq { cq, cqe: 1 }), libc::ENOENT);
}

#[test]
fn memory_of_the_old_ring_is_used_again() {
    let daemon = Daemon::start("resize-memory", &[(Resource::RingBytes, 8 << 20)]);
    let client = daemon.open();
    let cq = client.cq();
    for cqe in [4096, 8192].repeat(50) {
        client.call(&Request::ResizeCq { cq, cqe }).unwrap();
    }
}
