//! XRC over the control socket: domains by file, their shared receive queues, their targets.

use super::{Client, Daemon, queue_pair};
use crate::quota::Resource;
use rnic_abi::control::{Answer, CreateQp, Inspect, Reply, Request};
use rnic_abi::verbs::QpType;
use serde_json::Value;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

const CREATE: Request = Request::OpenXrcd { create: true, exclusive: false };

/// A file that is removed at the end of its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-{name}-{}", std::process::id()));
        File::create(&path).unwrap();
        Self(path)
    }

    fn open(&self) -> File {
        File::open(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Client {
    fn open_xrcd(&self, request: &Request, file: &impl AsFd) -> Answer {
        self.connection.call(request, &[file.as_fd()]).unwrap().0
    }

    fn xrcd_of(&self, file: &Scratch) -> u32 {
        match self.open_xrcd(&CREATE, &file.open()) {
            Ok(Reply::Handle(xrcd)) => xrcd,
            other => panic!("{other:?}"),
        }
    }

    fn target(&self, xrcd: u32) -> (u32, u32) {
        let qp_type = QpType::XrcRecv;
        let (send_cq, recv_cq, xrcd) = (None, None, Some(xrcd));
        let wanted = CreateQp { qp_type, send_cq, recv_cq, xrcd, ..queue_pair(0, 0) };
        match self.call(&Request::CreateQp(wanted)) {
            Ok(Reply::Qp { qp, qpn, sq: None, rq: None, .. }) => (qp, qpn),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn clients_that_can_open_a_file_share_its_domain() {
    let daemon = Daemon::start("xrc-file", &[]);
    let file = Scratch::new("xrc-file");
    let (one, other) = (daemon.open(), daemon.open());
    let must_be_there = Request::OpenXrcd { create: false, exclusive: false };
    let errno = |answer: Answer| answer.unwrap_err().errno;
    assert_eq!(errno(one.open_xrcd(&must_be_there, &file.open())), libc::EAGAIN);
    let first = one.xrcd_of(&file);
    let (_, qpn) = one.target(first);
    let exclusive = Request::OpenXrcd { create: true, exclusive: true };
    assert_eq!(errno(other.open_xrcd(&exclusive, &file.open())), libc::EINVAL);
    // A handle of another session, and a number that only a domain makes good, are of no use.
    assert_eq!(other.errno(&Request::OpenQp { xrcd: first, qpn }), libc::ENOENT);
    let alone = other.handle(&CREATE);
    assert_eq!(other.errno(&Request::OpenQp { xrcd: alone, qpn }), libc::EINVAL);
    let second = other.xrcd_of(&file);
    let opened = other.handle(&Request::OpenQp { xrcd: second, qpn });
    // The maker goes; the target stays until the other one gives it up.
    drop(one);
    while daemon.service.registry.counts().0 > 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(other.call(&Request::QueryQp { qp: opened }).is_ok());
    assert_eq!(other.errno(&Request::CloseXrcd { xrcd: second }), libc::EBUSY);
    other.call(&Request::DestroyQp { qp: opened }).unwrap();
    assert_eq!(other.errno(&Request::OpenQp { xrcd: second, qpn }), libc::EINVAL);
    for xrcd in [second, alone] {
        other.call(&Request::CloseXrcd { xrcd }).unwrap();
    }
    assert_eq!(errno(other.open_xrcd(&must_be_there, &file.open())), libc::EAGAIN);
    drop(other);
    daemon.settle();
    assert_eq!(daemon.totals()[0], 0);
}

#[test]
fn what_has_no_inode_of_its_own_stands_for_no_domain() {
    let daemon = Daemon::start("xrc-odd", &[]);
    let client = daemon.open();
    let event = rnic_abi::os::EventFd::new().unwrap();
    let refused = client.open_xrcd(&CREATE, &event).unwrap_err();
    assert_eq!(refused.errno, libc::EINVAL);
}

#[test]
fn a_shared_receive_queue_of_a_domain_has_a_number() {
    let daemon = Daemon::start("xrc-srq", &[]);
    let client = daemon.open();
    let (pd, cq, xrcd) = (client.handle(&Request::AllocPd), client.cq(), client.handle(&CREATE));
    let wanted = |xrcd, cq| {
        let xrc = Some((xrcd, cq));
        Request::CreateSrq { pd, max_wr: 4, max_sge: 1, limit: 0, xrc }
    };
    let made = client.call(&wanted(xrcd, cq));
    let Ok(Reply::Srq { srq, srqn, .. }) = made else { panic!("{made:?}") };
    assert!(srqn > 0 && srqn < 1 << 24);
    assert_eq!(client.errno(&wanted(xrcd + 1, cq)), libc::ENOENT);
    assert_eq!(client.errno(&wanted(xrcd, cq + 1)), libc::ENOENT);
    assert_eq!(client.errno(&Request::DestroyCq { cq }), libc::EBUSY);
    assert_eq!(client.errno(&Request::CloseXrcd { xrcd }), libc::EBUSY);
    client.call(&Request::DestroySrq { srq }).unwrap();
    client.call(&Request::DestroyCq { cq }).unwrap();
    client.call(&Request::CloseXrcd { xrcd }).unwrap();
}

#[test]
fn an_initiator_has_a_send_queue_only() {
    let daemon = Daemon::start("xrc-ini", &[]);
    let client = daemon.open();
    let (pd, cq) = (client.handle(&Request::AllocPd), client.cq());
    let wanted = CreateQp { qp_type: QpType::XrcSend, recv_cq: None, ..queue_pair(pd, cq) };
    let made = client.call(&Request::CreateQp(wanted));
    let Ok(Reply::Qp { caps, sq: Some(_), rq: None, .. }) = made else { panic!("{made:?}") };
    assert_eq!((caps.max_recv_wr, caps.max_recv_sge), (0, 0));
    client.target(client.handle(&CREATE));
    let qps = client.list(Inspect::Qps);
    let types: Vec<_> = qps.iter().map(|qp| qp["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["XRC_INI", "XRC_TGT"]);
    let queues = |qp: &Value| ["send_cq", "recv_cq"].map(|name| qp[name].as_u64());
    assert_eq!(queues(&qps[0]), [Some(cq.into()), None]);
    assert_eq!(queues(&qps[1]), [None, None]);
    let without = CreateQp { qp_type: QpType::XrcRecv, ..queue_pair(pd, cq) };
    assert_eq!(client.errno(&Request::CreateQp(without)), libc::EINVAL);
}

/// A reference takes what a queue pair takes, and a domain what a protection domain takes.
#[test]
fn domains_and_references_are_counted() {
    let quota = [(Resource::Qps, 3), (Resource::Pds, 2)];
    let daemon = Daemon::start("xrc-quota", &quota);
    let client = daemon.open();
    let xrcd = client.handle(&CREATE);
    let (_, qpn) = client.target(xrcd);
    let opened: Vec<_> = (0..2).map(|_| client.handle(&Request::OpenQp { xrcd, qpn })).collect();
    assert_eq!(client.errno(&Request::OpenQp { xrcd, qpn }), libc::ENOMEM);
    client.call(&Request::DestroyQp { qp: opened[0] }).unwrap();
    assert!(client.call(&Request::OpenQp { xrcd, qpn }).is_ok());
    let more = client.handle(&CREATE);
    assert_eq!(client.errno(&CREATE), libc::ENOMEM);
    client.call(&Request::CloseXrcd { xrcd: more }).unwrap();
    assert!(client.call(&CREATE).is_ok());
}
