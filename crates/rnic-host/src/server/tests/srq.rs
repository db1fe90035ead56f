//! Shared receive queues over the control socket.

use super::{Daemon, queue_pair};
use crate::quota::Resource;
use rnic_abi::control::{CreateQp, Reply, Request};
use rnic_abi::verbs::{QpCaps, QpType};

fn wanted(pd: u32, max_wr: u32, max_sge: u32, limit: u32) -> Request {
    Request::CreateSrq { pd, max_wr, max_sge, limit, xrc: None }
}

#[test]
fn a_shared_receive_queue_lasts_as_long_as_its_queue_pairs() {
    let daemon = Daemon::start("srq", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    let cq = client.cq();
    let (answer, fds) = client.call_with(&wanted(pd, 100, 3, 0));
    let Ok(Reply::Srq { srq, queue, max_wr: 128, max_sge: 3, srqn: 0 }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((queue.shape.capacity, fds.is_empty()), (128, !queue.ring.arena_is_new));
    for (nth, qp_type) in [QpType::Rc, QpType::Uc].into_iter().enumerate() {
        let on_srq = CreateQp { qp_type, srq: Some(srq), ..queue_pair(pd, cq) };
        let reply = client.call(&Request::CreateQp(on_srq));
        let Ok(Reply::Qp { qp, caps, sq: Some(_), rq: None, .. }) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!((caps.max_recv_wr, caps.max_recv_sge), (0, 0), "they are the shared queue's");
        assert_eq!(client.errno(&Request::DestroySrq { srq }), libc::EBUSY, "{nth}");
        client.call(&Request::DestroyQp { qp }).unwrap();
    }
    client.call(&Request::SetSrqLimit { srq, limit: 0 }).unwrap();
    assert_eq!(client.errno(&Request::SetSrqLimit { srq, limit: 129 }), libc::EINVAL);
    let state = client.call(&Request::QuerySrq { srq });
    assert_eq!(state, Ok(Reply::SrqState { max_wr: 128, max_sge: 3, limit: 0 }));
    client.call(&Request::DestroySrq { srq }).unwrap();
    for gone in [
        Request::DestroySrq { srq },
        Request::QuerySrq { srq },
        Request::CreateQp(CreateQp { srq: Some(srq), ..queue_pair(pd, cq) }),
    ] {
        assert_eq!(client.errno(&gone), libc::ENOENT);
    }
}

#[test]
fn one_that_is_too_large_is_refused() {
    let daemon = Daemon::start("srq-large", &[]);
    let client = daemon.open();
    let pd = client.handle(&Request::AllocPd);
    for (max_wr, max_sge, limit) in [(u32::MAX, 1, 0), (1, u32::MAX, 0), (4, 1, 5)] {
        assert_eq!(client.errno(&wanted(pd, max_wr, max_sge, limit)), libc::EINVAL);
    }
    assert_eq!(client.errno(&wanted(pd + 77, 1, 1, 0)), libc::ENOENT);
    // What was refused left nothing behind: the capabilities of a queue pair without receives are
    // of no account.
    let caps = QpCaps { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..QpCaps::default() };
    let srq = match client.call(&wanted(pd, 4, 1, 0)) {
        Ok(Reply::Srq { srq, .. }) => srq,
        other => panic!("{other:?}"),
    };
    let cq = client.cq();
    let on_srq = CreateQp { srq: Some(srq), caps, ..queue_pair(pd, cq) };
    assert!(client.call(&Request::CreateQp(on_srq)).is_ok());
}

/// It takes what a queue pair takes, so a program must not be told that it may have more.
#[test]
fn shared_receive_queues_count_as_queue_pairs() {
    let daemon = Daemon::start("srq-quota", &[(Resource::Qps, 3)]);
    let client = daemon.open();
    let Ok(Reply::Devices(devices)) = client.call(&Request::ListDevices) else {
        panic!("no devices")
    };
    assert_eq!(devices[0].limits.max_srq, 3);
    let pd = client.handle(&Request::AllocPd);
    let made: Vec<_> = (0..4).map(|_| client.call(&wanted(pd, 4, 1, 0))).collect();
    let refused: Vec<_> = made.iter().map(|reply| reply.as_ref().err().map(|e| e.errno)).collect();
    assert_eq!(refused, [None, None, None, Some(libc::ENOMEM)]);
    let Ok(Reply::Srq { srq, .. }) = made[0] else { panic!("{made:?}") };
    client.call(&Request::DestroySrq { srq }).unwrap();
    assert!(client.call(&wanted(pd, 4, 1, 0)).is_ok());
}
