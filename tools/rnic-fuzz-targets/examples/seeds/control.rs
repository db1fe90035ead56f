//! One control message of each kind.

use crate::Seed;
use rnic_abi::control::{
    Answer, CmHappening, CmNotice, CmRequest, CreateQp, Inspect, Refusal, Reply, Request, encode,
};
use rnic_abi::verbs::{AccessFlags, AhAttr, AttrMask, QpAttr, QpCaps, QpType, SendFlags, WrOpcode};
use rnic_abi::wqe::SendControl;
use serde::Serialize;

/// The first byte of an input selects what the rest is.
const REQUEST: u8 = 0;
const ANSWER: u8 = 1;
const EVENTS: u8 = 3;
const WORK_REQUESTS: u8 = 4;
const COMPLETION: u8 = 5;
const NOTICE: u8 = 6;

pub(crate) fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (nth, request) in requests().iter().enumerate() {
        seeds.push((format!("request_{nth:02}"), tagged(REQUEST, request)));
    }
    for (nth, answer) in answers().iter().enumerate() {
        seeds.push((format!("answer_{nth:02}"), tagged(ANSWER, answer)));
    }
    let mut send = SendControl::new(WrOpcode::SendImm, SendFlags::SIGNALED, 5);
    send.num_sge = 2;
    let words: Vec<u8> = send.encode().iter().flat_map(|word| word.to_le_bytes()).collect();
    seeds.push(("events".into(), [&[EVENTS][..], &[7; 16]].concat()));
    seeds.push(("send".into(), [&[WORK_REQUESTS, 16][..], &words, &[0; 48]].concat()));
    let notice = CmNotice { id: 1, what: CmHappening::Rejected(28), private: vec![7; 148] };
    seeds.push(("notice".into(), tagged(NOTICE, &notice)));
    seeds.push(("completion".into(), [&[COMPLETION][..], &[1; 128]].concat()));
    seeds
}

fn tagged<T: Serialize>(kind: u8, message: &T) -> Vec<u8> {
    let encoded = encode(message).expect("a short message");
    [&[kind][..], &encoded].concat()
}

fn requests() -> Vec<Request> {
    let access = AccessFlags::LOCAL_WRITE;
    let caps = QpCaps { max_send_wr: 16, max_recv_wr: 16, ..QpCaps::default() };
    let ends = (Some(1), Some(1));
    let create = CreateQp {
        pd: 1,
        qp_type: QpType::Rc,
        send_cq: ends.0,
        recv_cq: ends.1,
        srq: None,
        xrcd: None,
        caps,
        sq_sig_all: true,
    };
    let (mask, attr) = (AttrMask::STATE | AttrMask::AV, QpAttr::default());
    vec![
        Request::Hello { abi: rnic_abi::ABI_VERSION },
        Request::ListDevices,
        Request::OpenDevice { name: "rnic0".into() },
        Request::QueryPort,
        Request::QueryGids { start: 1 },
        Request::AllocPd,
        Request::DeallocPd { pd: 1 },
        Request::RegMr { pd: 1, addr: 4096, length: 8192, iova: 4096, access, fd_offset: 0 },
        Request::DeregMr { mr: 1 },
        Request::ReregMr { mr: 1, pd: Some(2), range: Some((1, 2, 3)), access: Some(access) },
        Request::RegNullMr { pd: 1 },
        Request::AllocMw { pd: 1, kind: 2 },
        Request::DeallocMw { mw: 1 },
        Request::CreateChannel,
        Request::CreateCq { cqe: 64, channel: Some(1), comp_vector: 0 },
        Request::DestroyCq { cq: 1 },
        Request::CreateQp(create),
        Request::ModifyQp { qp: 1, mask, attr },
        Request::QueryQp { qp: 1 },
        Request::DestroyQp { qp: 1 },
        Request::OpenXrcd { create: true, exclusive: false },
        Request::CloseXrcd { xrcd: 1 },
        Request::OpenQp { xrcd: 1, qpn: 17 },
        Request::CreateAh { pd: 1, attr: AhAttr::default() },
        Request::Multicast { qp: 1, gid: [0xff; 16], attach: true },
        Request::Inspect { what: Inspect::Qps, from: 3 },
        Request::CheckAccess { pd: 1, lkey: 2, addr: 4096, length: 8, access },
        Request::AllocDm { length: 4096 },
        Request::FreeDm { dm: 1 },
        Request::RegDmMr { pd: 1, dm: 2, offset: 64, length: 128, access },
        Request::Connections(CmRequest::OpenChannel),
        Request::Connections(CmRequest::Listen { id: 1, backlog: 8 }),
        Request::Connections(CmRequest::Reject { id: 1, private: vec![1, 2, 3] }),
    ]
}

fn answers() -> Vec<Answer> {
    let (attr, caps) = (QpAttr::default(), QpCaps::default());
    vec![
        Ok(Reply::Hello { abi: rnic_abi::ABI_VERSION, server: "rnicd".into() }),
        Ok(Reply::Devices(Vec::new())),
        Ok(Reply::Gids(Vec::new())),
        Ok(Reply::Done),
        Ok(Reply::Handle(7)),
        Ok(Reply::Mr { mr: 1, lkey: 2, rkey: 3 }),
        Ok(Reply::Qp { qp: 1, qpn: 2, caps, sq: None, rq: None }),
        Ok(Reply::QpState { attr, caps, sq_sig_all: false }),
        Ok(Reply::Inspected { json: "[]".into(), next: Some(7) }),
        Err(Refusal { errno: 22, message: "no such queue pair".into() }),
    ]
}
