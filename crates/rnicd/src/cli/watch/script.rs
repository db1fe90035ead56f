//! Events and lists of a small world, for tests.

use super::model::{Lists, Model};
use rnic_abi::verbs::{WcStatus, WrOpcode};
use rnic_core::event::{Disturbance, PacketInfo, RewindCause};
use rnic_core::{Event, QpCounters};
use rnic_host::observe::Record;
use rnic_host::report::{Cq, Made, Port, Qp, ReceiveQueue, Status, Timer, Totals};
use roce_wire::{Opcode, Psn, Qpn};
use std::time::{Duration, SystemTime};

pub(super) const QPN: Qpn = Qpn::new(0x11);
pub(super) const PEER: Qpn = Qpn::new(0x22);

pub(super) fn record(at_ns: u64, event: &Event) -> Record {
    Record::new(SystemTime::UNIX_EPOCH + Duration::from_nanos(at_ns), event)
}

pub(super) fn info(dest_qpn: Qpn, psn: u32) -> PacketInfo {
    let opcode = Opcode::RcWriteMiddle;
    PacketInfo { opcode, dest_qpn, psn: Psn::new(psn), ack_req: false, payload: 1024, aeth: None }
}

/// A packet of a message that is sent.
pub(super) fn request(message: u32, psn: u32, retransmit: bool) -> Event {
    Event::Sent { qpn: QPN, message: Some(message), packet: info(PEER, psn), retransmit }
}

pub(super) fn fetched(message: u32, first: u32, last: u32) -> Event {
    Event::WqeFetched {
        qpn: QPN,
        message,
        operation: WrOpcode::Write,
        wr_id: message.into(),
        length: (last.wrapping_sub(first) + 1) * 1024,
        first_psn: Psn::new(first),
        last_psn: Psn::new(last),
        peer_qpn: Some(PEER),
    }
}

/// Two queue pairs, of which the first has sent so many packets.
pub(super) fn lists(at_ns: u64, packets: u64) -> Lists {
    let counters = |tx_packets, retransmitted_packets| QpCounters {
        tx_packets,
        tx_bytes: tx_packets * 1000,
        retransmitted_packets,
        timeouts: retransmitted_packets / 2,
        ..QpCounters::default()
    };
    let port = [("tx_packets", packets), ("tx_bytes", packets * 1000), ("fault_dropped", 1)];
    Lists {
        at_ns,
        status: status(),
        qps: vec![qp(QPN, PEER, counters(packets, 4)), qp(PEER, QPN, counters(packets / 8, 0))],
        cqs: [1, 2].map(cq).to_vec(),
        counters: port.map(|(name, number)| (name.to_owned(), number)).into(),
    }
}

fn status() -> Status {
    Status {
        version: "0.1.0".into(),
        pid: 4711,
        uptime_seconds: 61,
        device: "rnic0".into(),
        netdev: Some("eth1".into()),
        io: "AF_XDP".into(),
        profile: "rxe".into(),
        port: Port { active: true, active_mtu: 1024, netdev_mtu: 1500, speed_mbps: 10_000 },
        gids: Vec::new(),
        users: Vec::new(),
        totals: Totals { qps: 2, cqs: 2, mrs: 3 },
    }
}

fn cq(cq: u32) -> Cq {
    Cq { cq, client: 1, capacity: 128, written: 100, polled: 70, queues: 2, broken: false }
}

fn qp(qpn: Qpn, peer: Qpn, counters: QpCounters) -> Made<Qp> {
    let is_sender = qpn == QPN;
    let object = Qp {
        qp: qpn.value(),
        qpn: qpn.value(),
        client: 1,
        transport: "RC".into(),
        state: "RTS".into(),
        dest_qpn: Some(peer.value()),
        dgid: Some("192.0.2.7".into()),
        path_mtu: Some(1024),
        outstanding: if is_sender { 20 } else { 0 },
        posted: if is_sender { 12 } else { 0 },
        max_send_wr: 128,
        receive_queue: Some(ReceiveQueue { posted: 500, max_wr: 512, srq: None }),
        una: 100,
        next_psn: if is_sender { 140 } else { 100 },
        sent_psn: if is_sender { 160 } else { 100 },
        free_psn: if is_sender { 180 } else { 100 },
        expected_psn: 0x00ab_cdef,
        timer: is_sender.then(|| Timer { reason: "ack_timeout".into(), left_us: 61_440 }),
        timeout: 14,
        retry_cnt: 7,
        retries_left: 6,
        rnr_retry: 7,
        rnr_retries_left: 7,
        send_cq: Some(1),
        recv_cq: Some(2),
        counters,
    };
    Made { object, pid: Some(100 + qpn.value()), command: Some("ib_write_bw".into()) }
}

/// A message of four packets, one of which a fault drops.
pub(super) fn model() -> Model {
    let mut model = Model::default();
    let start = 45_296_000_000_000;
    model.update(lists(start, 0));
    let fault = Event::Fault {
        fault: 1,
        kind: Disturbance::Drop,
        outgoing: true,
        packet: Some(info(PEER, 102)),
    };
    let cause = RewindCause::SequenceNak;
    let ack = PacketInfo { opcode: Opcode::RcAck, payload: 0, ..info(QPN, 99) };
    let events = [
        fetched(5, 90, 99),
        Event::Received { qpn: QPN, packet: ack },
        Event::Acked { qpn: QPN, psn: Psn::new(99) },
        Event::Completed {
            qpn: QPN,
            message: Some(5),
            status: WcStatus::Success,
            receive: false,
            wr_id: 5,
        },
        fetched(6, 100, 103),
        request(6, 100, false),
        request(6, 101, false),
        request(6, 102, false),
        fault,
        request(6, 103, false),
        Event::Received { qpn: QPN, packet: PacketInfo { psn: Psn::new(102), ..ack } },
        Event::Rewound { qpn: QPN, psn: Psn::new(102), cause },
        request(6, 102, true),
        request(6, 103, true),
        fetched(7, 104, 107),
    ];
    for (n, event) in (0..).zip(&events) {
        model.note(0, record(start + n * 3_500, event));
    }
    model.lose(42);
    model.update(lists(start + 1_000_000_000, 120_000));
    model
}
