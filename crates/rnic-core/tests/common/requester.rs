//! The requester's dialogue: the engine sends, a hand-written peer answers.

use super::wire::Packet;
use super::{BASE, Node, Options, START, attrs, send_control};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{AsyncEventType, QpAttr, QpState, SendFlags, WcStatus, WrOpcode};
use rnic_abi::wqe::SendControl;
use rnic_core::Instant;
use roce_wire::{Aeth, AtomicAckEth, Bth, Flow, HeaderRepr, Msn, Opcode, Psn, Qpn, Syndrome};
use std::net::{IpAddr, Ipv4Addr};

pub const MTU: usize = 1024;
pub const FIRST_PSN: u32 = 0xff_fffe;
pub const PEER_QPN: u32 = 0x55;
pub const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

pub const ACK: u8 = 0x1f;
pub const RNR: u8 = 0x20;
pub const NAK_SEQUENCE: u8 = 0x60;
/// 4.096 us x 2^14.
pub const TIMEOUT: u64 = 4096 << 14;

/// The engine under test and its time.
pub struct Dialogue {
    pub node: Node,
    pub flow: Flow,
    pub now: Instant,
}

impl Dialogue {
    pub fn new() -> Self {
        Self::with(attrs())
    }

    pub fn with(attr: QpAttr) -> Self {
        let mut node = Node::new(1, &Options::default());
        node.connect(PEER, PEER_QPN, QpAttr { sq_psn: FIRST_PSN, ..attr }, QpState::Rts);
        let flow = Flow::new(PEER, node.ip, 0xc123);
        Self { node, flow, now: START }
    }

    pub fn post(&mut self, opcode: WrOpcode, wr_id: u64, len: usize) {
        self.post_flags(opcode, wr_id, len, SendFlags::SIGNALED);
    }

    pub fn post_flags(&mut self, opcode: WrOpcode, wr_id: u64, len: usize, flags: SendFlags) {
        let control = SendControl {
            flags,
            remote_addr: BASE,
            rkey: 0x1234_5678,
            ..send_control(opcode, wr_id)
        };
        let sge = self.node.sge(0x1000 * wr_id, len as u32);
        self.node.post_send(control, &[sge]);
    }

    /// What the engine sends now, as opcode and PSN relative to the first.
    pub fn sent(&mut self) -> Vec<(Opcode, i32)> {
        self.sent_packets().iter().map(|packet| (packet.opcode(), relative(packet))).collect()
    }

    pub fn sent_packets(&mut self) -> Vec<Packet> {
        self.node.settle(self.now);
        self.node.sent()
    }

    pub fn put(&mut self, opcode: Opcode, nth: i32, syndrome: Option<u8>, payload: &[u8]) {
        let psn = Psn::new(FIRST_PSN.wrapping_add_signed(nth));
        let mut headers = HeaderRepr::new(Bth::new(opcode, Qpn::new(self.node.qpn), psn))
            .with_payload_len(payload.len());
        headers.aeth =
            syndrome.map(|byte| Aeth { syndrome: Syndrome::from_u8(byte), msn: Msn::new(1) });
        if opcode == Opcode::RcAtomicAck {
            headers.atomic_ack = Some(AtomicAckEth { original: 99 });
        }
        let mut bytes = vec![0; headers.datagram_len(payload.len())];
        let start = headers.emit(&mut bytes);
        bytes[start..start + payload.len()].copy_from_slice(payload);
        headers.write_pad_and_icrc(&self.flow, 7, &mut bytes);
        self.node.inject(Packet { flow: self.flow, ip_id: 7, bytes });
    }

    pub fn ack(&mut self, nth: i32, syndrome: u8) {
        self.put(Opcode::RcAck, nth, Some(syndrome), &[]);
    }

    pub fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.node.settle(self.now);
        self.node.poll().iter().map(|cqe: &Cqe| (cqe.wr_id, cqe.status)).collect()
    }

    pub fn wait(&mut self, nanos: u64) {
        self.now = self.now.after_nanos(nanos);
    }

    pub fn async_events(&self) -> Vec<AsyncEventType> {
        self.node.host.async_events.iter().map(|event| event.event).collect()
    }
}

/// PSN relative to the first.
pub fn relative(packet: &Packet) -> i32 {
    packet.psn().distance_from(Psn::new(FIRST_PSN))
}
