//! Messages of an engine process about what happens in it.

use crate::Seed;
use rnic_abi::control::encode;
use rnic_abi::verbs::{WcStatus, WrOpcode};
use rnic_core::Event;
use rnic_core::event::{Disturbance, DropReason, NakReason, PacketInfo, RewindCause};
use rnic_core::qpn::SHARD_SHIFT;
use rnic_host::observe::{Captured, Lost, Observation, Record, Told, Way};
use roce_wire::{Bth, Flow, FrameHeader, HeaderRepr, MacAddr, Opcode, Psn, Qpn};
use std::time::SystemTime;

/// Of the engine with number 3.
const OWN: Qpn = Qpn::new(3 << SHARD_SHIFT | 0x11);
const PEER: Qpn = Qpn::new(4 << SHARD_SHIFT | 0x22);
const PSN: Psn = Psn::new(7);

fn message(told: Told) -> Vec<u8> {
    let observation = Observation { shard: 3, lost: Lost::default(), told };
    let bytes = encode(&observation).expect("a short message");
    let len = u16::try_from(bytes.len()).expect("a short message").to_le_bytes();
    [&len[..], &bytes].concat()
}

fn event(event: Event) -> Told {
    Told::Event(Record::new(SystemTime::UNIX_EPOCH, &event))
}

fn frame(way: Way, to: Qpn) -> Told {
    let address = "10.0.0.1".parse().expect("an address");
    let mac = MacAddr::default();
    let flow = Flow::new(address, address, 9);
    let header = FrameHeader { dst_mac: mac, src_mac: mac, vlan: None, flow };
    let headers = HeaderRepr::new(Bth::new(Opcode::RcSendOnly, to, PSN));
    let len = headers.datagram_len(0);
    let mut frame = vec![0; header.len() + len];
    let at = header.emit(1, len, &mut frame);
    headers.emit(&mut frame[at..]);
    headers.write_pad_and_icrc(&flow, 1, &mut frame[at..]);
    Told::Frame(Captured { at: SystemTime::UNIX_EPOCH, way, frame })
}

fn packet(dest_qpn: Qpn) -> PacketInfo {
    let opcode = Opcode::RcSendOnly;
    PacketInfo { opcode, dest_qpn, psn: PSN, ack_req: true, payload: 0, aeth: None }
}

/// A message is sent, lost, sent again and acknowledged.
fn sender() -> Vec<Told> {
    let (message, operation) = (5, WrOpcode::Send);
    let sent = |retransmit| {
        event(Event::Sent { qpn: OWN, message: Some(message), packet: packet(PEER), retransmit })
    };
    let (fault, kind, outgoing) = (1, Disturbance::Drop, true);
    let (status, receive) = (WcStatus::Success, false);
    vec![
        event(Event::Doorbell { qpn: OWN, wqes: 1, message: Some(message) }),
        event(Event::WqeFetched {
            qpn: OWN,
            message,
            operation,
            wr_id: 9,
            length: 0,
            first_psn: PSN,
            last_psn: PSN,
            peer_qpn: Some(PEER),
        }),
        sent(false),
        event(Event::Fault { fault, kind, outgoing, packet: Some(packet(PEER)) }),
        frame(Way::Unsent, PEER),
        Told::Turn,
        event(Event::Rewound { qpn: OWN, psn: PSN, cause: RewindCause::Timeout }),
        sent(true),
        frame(Way::Sent, PEER),
        Told::Turn,
        event(Event::Acked { qpn: OWN, psn: PSN }),
        event(Event::Completed { qpn: OWN, message: Some(message), status, receive, wr_id: 9 }),
        Told::Turn,
    ]
}

/// Packets are refused, dropped and held back.
fn receiver() -> Vec<Told> {
    let (fault, kind, outgoing) = (1, Disturbance::Delay, false);
    let packet = packet(OWN);
    vec![
        frame(Way::Received, OWN),
        event(Event::Received { qpn: OWN, packet }),
        event(Event::Nak { qpn: OWN, psn: PSN, reason: NakReason::Sequence }),
        Told::Turn,
        frame(Way::Looped, OWN),
        event(Event::Fault { fault, kind, outgoing, packet: Some(packet) }),
        event(Event::Released { outgoing, packet: Some(packet) }),
        event(Event::Dropped { reason: DropReason::Duplicate, packet: Some(packet) }),
        Told::Turn,
    ]
}

pub(crate) fn seeds() -> Vec<Seed> {
    let all = |told: Vec<Told>| told.into_iter().flat_map(message).collect::<Vec<u8>>();
    let stories = [("sender", sender()), ("receiver", receiver())];
    let mut seeds: Vec<Seed> = Vec::new();
    for (name, told) in stories {
        for (nth, one) in told.iter().enumerate().step_by(3) {
            seeds.push((format!("{name}_{nth:02}"), message(one.clone())));
        }
        seeds.push((name.to_owned(), all(told)));
    }
    seeds
}
