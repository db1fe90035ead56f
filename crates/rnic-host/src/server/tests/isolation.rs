//! Isolation: no request of a client reaches what another client of the same user has made.

use super::*;
use rnic_abi::verbs::AhAttr;

/// What a client has, of each kind.
#[derive(Debug)]
struct Everything {
    pd: u32,
    channel: u32,
    cq: u32,
    mr: u32,
    lkey: u32,
    mws: [u32; 2],
    dm: u32,
    srq: u32,
    qp: u32,
    datagrams: u32,
    ah: u32,
    xrcd: u32,
    named: u32,
    target: (u32, u32),
}

const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];

fn address() -> AhAttr {
    AhAttr { dgid: LOOPBACK, is_global: true, port_num: 1, ..AhAttr::default() }
}

fn srq_of(pd: u32, xrc: Option<(u32, u32)>) -> Request {
    Request::CreateSrq { pd, max_wr: 4, max_sge: 1, limit: 0, xrc }
}

fn target_of(xrcd: u32) -> Request {
    let (qp_type, xrcd) = (QpType::XrcRecv, Some(xrcd));
    Request::CreateQp(CreateQp { qp_type, xrcd, ..queue_pair(0, 0) })
}

fn region_of(pd: u32, dm: u32) -> Request {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ZERO_BASED;
    Request::RegDmMr { pd, dm, offset: 0, length: 64, access }
}

fn check(pd: u32, lkey: u32, memory: &[u8]) -> Request {
    let (addr, access) = (memory.as_ptr() as u64, AccessFlags::LOCAL_WRITE);
    Request::CheckAccess { pd, lkey, addr, length: 8, access }
}

fn everything(client: &Client, memory: &[u8]) -> Everything {
    let pd = client.handle(&Request::AllocPd);
    let cq = client.cq();
    let registered = client.call(&registration(pd, memory.as_ptr() as u64, memory.len() as u64));
    let Ok(Reply::Mr { mr, lkey, .. }) = registered else { panic!("{registered:?}") };
    let window = |kind| match client.call(&Request::AllocMw { pd, kind }) {
        Ok(Reply::Mw { mw, .. }) => mw,
        other => panic!("{other:?}"),
    };
    let queue = |request: &Request| match client.call(request) {
        Ok(Reply::Srq { srq, .. }) => srq,
        other => panic!("{other:?}"),
    };
    let xrcd = client.handle(&Request::OpenXrcd { create: true, exclusive: false });
    let target = match client.call(&target_of(xrcd)) {
        Ok(Reply::Qp { qp, qpn, .. }) => (qp, qpn),
        other => panic!("{other:?}"),
    };
    let datagrams = CreateQp { qp_type: QpType::Ud, ..queue_pair(pd, cq) };
    Everything {
        pd,
        channel: client.handle(&Request::CreateChannel),
        cq,
        mr,
        lkey,
        mws: [1, 2].map(window),
        dm: client.handle(&Request::AllocDm { length: 4096 }),
        srq: queue(&srq_of(pd, None)),
        qp: client.handle(&Request::CreateQp(queue_pair(pd, cq))),
        datagrams: client.handle(&Request::CreateQp(datagrams)),
        ah: client.handle(&Request::CreateAh { pd, attr: address() }),
        xrcd,
        named: queue(&srq_of(pd, Some((xrcd, cq)))),
        target,
    }
}

/// Each use of each object of the other client, with one's own objects beside it.
fn attempts(own: &Everything, other: &Everything, memory: &[u8]) -> Vec<(&'static str, Request)> {
    let state = |qp| Request::ModifyQp { qp, mask: AttrMask::STATE, attr: QpAttr::default() };
    let create = |change: fn(&mut CreateQp, &Everything)| {
        let mut wanted = queue_pair(own.pd, own.cq);
        change(&mut wanted, other);
        Request::CreateQp(wanted)
    };
    let rereg = |mr, pd| Request::ReregMr { mr, pd, range: None, access: None };
    let group = |qp, attach| Request::Multicast { qp, gid: GROUP, attach };
    let start = memory.as_ptr() as u64;
    let cqe = |channel| Request::CreateCq { cqe: 10, channel: Some(channel), comp_vector: 0 };
    vec![
        ("PD, to be freed", Request::DeallocPd { pd: other.pd }),
        ("PD, of a region", registration(other.pd, start, 64)),
        ("PD, of a region that changes", rereg(own.mr, Some(other.pd))),
        ("PD, of a null region", Request::RegNullMr { pd: other.pd }),
        ("PD, of a window", Request::AllocMw { pd: other.pd, kind: 1 }),
        ("PD, of a region of device memory", region_of(other.pd, own.dm)),
        ("PD, of a queue pair", create(|wanted, other| wanted.pd = other.pd)),
        ("PD, of a shared receive queue", srq_of(other.pd, None)),
        ("PD, of one of XRC", srq_of(other.pd, Some((own.xrcd, own.cq)))),
        ("PD, of an address handle", Request::CreateAh { pd: other.pd, attr: address() }),
        ("PD, of a prefetch", check(other.pd, own.lkey, memory)),
        ("region, to be removed", Request::DeregMr { mr: other.mr }),
        ("region, to be changed", rereg(other.mr, None)),
        ("window of type 1, to be freed", Request::DeallocMw { mw: other.mws[0] }),
        ("window of type 2, to be freed", Request::DeallocMw { mw: other.mws[1] }),
        ("device memory, to be freed", Request::FreeDm { dm: other.dm }),
        ("device memory, of a region", region_of(own.pd, other.dm)),
        ("channel, to be destroyed", Request::DestroyChannel { channel: other.channel }),
        ("channel, of a CQ", cqe(other.channel)),
        ("CQ, to be destroyed", Request::DestroyCq { cq: other.cq }),
        ("CQ, to be resized", Request::ResizeCq { cq: other.cq, cqe: 20 }),
        ("CQ, of sends", create(|wanted, other| wanted.send_cq = Some(other.cq))),
        ("CQ, of receives", create(|wanted, other| wanted.recv_cq = Some(other.cq))),
        ("CQ, of a queue of XRC", srq_of(own.pd, Some((own.xrcd, other.cq)))),
        ("SRQ, of a queue pair", create(|wanted, other| wanted.srq = Some(other.srq))),
        ("SRQ, to be asked", Request::QuerySrq { srq: other.srq }),
        ("SRQ, its limit", Request::SetSrqLimit { srq: other.srq, limit: 1 }),
        ("SRQ, to be destroyed", Request::DestroySrq { srq: other.srq }),
        ("SRQ of XRC, its limit", Request::SetSrqLimit { srq: other.named, limit: 1 }),
        ("SRQ of XRC, to be destroyed", Request::DestroySrq { srq: other.named }),
        ("QP, to be asked", Request::QueryQp { qp: other.qp }),
        ("QP, to be changed", state(other.qp)),
        ("QP, to be destroyed", Request::DestroyQp { qp: other.qp }),
        ("QP, to be attached", group(other.datagrams, true)),
        ("QP, to be detached", group(other.datagrams, false)),
        ("address handle, to be destroyed", Request::DestroyAh { ah: other.ah }),
        ("domain of XRC, to be closed", Request::CloseXrcd { xrcd: other.xrcd }),
        ("domain of XRC, of a queue", srq_of(own.pd, Some((other.xrcd, own.cq)))),
        ("domain of XRC, of a target", target_of(other.xrcd)),
        ("domain of XRC, to open a target", open(other.xrcd, other.target.1)),
        ("target, to be asked", Request::QueryQp { qp: other.target.0 }),
        ("target, to be changed", state(other.target.0)),
        ("target, to be destroyed", Request::DestroyQp { qp: other.target.0 }),
    ]
}

fn open(xrcd: u32, qpn: u32) -> Request {
    Request::OpenQp { xrcd, qpn }
}

#[test]
fn what_another_client_has_made_is_of_no_use() {
    let daemon = Daemon::start("isolation", &[]);
    let (client, owner) = (daemon.open(), daemon.open());
    let memory = vec![0; 4096];
    // Numbers that each session counts for itself are beyond those of this client.
    let spare = [(); 3].map(|()| owner.handle(&Request::AllocDm { length: 4096 }));
    let channels = [(); 3].map(|()| owner.handle(&Request::CreateChannel));
    let (own, other) = (everything(&client, &memory), everything(&owner, &memory));
    let before = daemon.totals();
    for (what, request) in attempts(&own, &other, &memory) {
        let errno = client.errno(&request);
        let expected = if what.starts_with("channel") { libc::EINVAL } else { libc::ENOENT };
        assert_eq!(errno, expected, "{what}");
    }
    // A key and a number are no handles: they are good for their own domain only.
    assert_eq!(client.errno(&check(own.pd, other.lkey, &memory)), libc::EFAULT);
    assert_eq!(client.errno(&open(own.xrcd, other.target.1)), libc::EINVAL);
    assert_eq!(daemon.totals(), before);
    // Nothing of it has gone, and all of it is its owner's.
    assert_eq!(owner.call(&check(other.pd, other.lkey, &memory)), Ok(Reply::Done));
    for xrc in [other.srq, other.named] {
        assert!(matches!(owner.call(&Request::QuerySrq { srq: xrc }), Ok(Reply::SrqState { .. })));
    }
    let freed = [
        Request::DestroyQp { qp: other.target.0 },
        Request::DestroyQp { qp: other.qp },
        Request::DestroyQp { qp: other.datagrams },
        Request::DestroySrq { srq: other.srq },
        Request::DestroySrq { srq: other.named },
        Request::CloseXrcd { xrcd: other.xrcd },
        Request::DestroyAh { ah: other.ah },
        Request::DeallocMw { mw: other.mws[0] },
        Request::DeallocMw { mw: other.mws[1] },
        Request::DeregMr { mr: other.mr },
        Request::FreeDm { dm: other.dm },
        Request::FreeDm { dm: spare[0] },
        Request::DestroyCq { cq: other.cq },
        Request::DestroyChannel { channel: other.channel },
        Request::DestroyChannel { channel: channels[0] },
        Request::DeallocPd { pd: other.pd },
    ];
    for request in freed {
        let answer = owner.call(&request);
        assert!(answer.is_ok(), "{request:?}: {answer:?}");
    }
}

/// What the daemon gives is exactly what a client takes here: there is no more of any kind, until
/// that client has ended.
#[test]
fn everything_is_charged_and_given_back() {
    let quota = [
        (Resource::Pds, 2),
        (Resource::Channels, 1),
        (Resource::Cqs, 1),
        (Resource::Mrs, 3),
        (Resource::Qps, 5),
        (Resource::Ahs, 2),
        (Resource::DeviceMemoryBytes, 4096),
    ];
    let daemon = Daemon::start("charges", &quota);
    let memory = vec![0; 4096];
    for _ in 0..3 {
        let client = daemon.open();
        let own = everything(&client, &memory);
        let group = Request::Multicast { qp: own.datagrams, gid: GROUP, attach: true };
        client.call(&group).unwrap();
        let mut elsewhere = GROUP;
        elsewhere[15] = 4;
        for (what, one_more) in [
            ("PD", Request::AllocPd),
            ("domain of XRC", Request::OpenXrcd { create: true, exclusive: false }),
            ("channel", Request::CreateChannel),
            ("CQ", Request::CreateCq { cqe: 10, channel: None, comp_vector: 0 }),
            ("region", registration(own.pd, memory.as_ptr() as u64, 64)),
            ("null region", Request::RegNullMr { pd: own.pd }),
            ("region of device memory", region_of(own.pd, own.dm)),
            ("window", Request::AllocMw { pd: own.pd, kind: 2 }),
            ("QP", Request::CreateQp(queue_pair(own.pd, own.cq))),
            ("target", target_of(own.xrcd)),
            ("target that is there", open(own.xrcd, own.target.1)),
            ("SRQ", srq_of(own.pd, None)),
            ("SRQ of XRC", srq_of(own.pd, Some((own.xrcd, own.cq)))),
            ("address handle", Request::CreateAh { pd: own.pd, attr: address() }),
            ("membership", Request::Multicast { qp: own.datagrams, gid: elsewhere, attach: true }),
            ("device memory", Request::AllocDm { length: 1 }),
        ] {
            assert_eq!(client.errno(&one_more), libc::ENOMEM, "{what}");
        }
        drop(client);
        daemon.settle();
        assert_eq!(daemon.totals(), [0, 0, 0]);
    }
}
