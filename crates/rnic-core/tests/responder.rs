//! The responder half as a dialogue: a hand-written peer sends packets, one at a time.

mod common;

use common::wire::Packet;
use common::{BASE, Node, Options, START, attrs, pattern};
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpAttr, QpState, WcOpcode, WcStatus};
use rnic_core::{Event, NakReason};
use roce_wire::{AtomicEth, Bth, Flow, HeaderRepr, ImmDt, Opcode, Psn, Qpn, RKey, Reth};
use std::net::{IpAddr, Ipv4Addr};

const MTU: usize = 1024;
const FIRST_PSN: u32 = 0xff_fffe;
const PEER_QPN: u32 = 0x55;
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

const ACK: u8 = 0x1f;
const NAK_SEQUENCE: u8 = 0x60;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;
const NAK_OPERATION: u8 = 0x63;

/// The engine under test and the peer that talks to it.
struct Dialogue {
    node: Node,
    flow: Flow,
}

impl Dialogue {
    fn new() -> Self {
        Self::with(attrs())
    }

    fn with(attr: QpAttr) -> Self {
        let mut node = Node::new(1, &Options::default());
        node.connect(PEER, PEER_QPN, QpAttr { rq_psn: FIRST_PSN, ..attr }, QpState::Rtr);
        let flow = Flow::new(PEER, node.ip, 0xc123);
        Self { node, flow }
    }

    fn headers(&self, opcode: Opcode, nth: u32) -> HeaderRepr {
        let psn = Psn::new(FIRST_PSN).wrapping_add(nth);
        let mut bth = Bth::new(opcode, Qpn::new(self.node.qpn), psn);
        bth.ack_req = true;
        HeaderRepr::new(bth)
    }

    fn reth(&self, offset: u64, len: usize) -> Option<Reth> {
        let rkey = RKey(self.node.key);
        Some(Reth { va: BASE + offset, rkey, dma_len: len as u32 })
    }

    fn packet(&self, headers: HeaderRepr, payload: &[u8]) -> Packet {
        let headers = headers.with_payload_len(payload.len());
        let mut bytes = vec![0; headers.datagram_len(payload.len())];
        let start = headers.emit(&mut bytes);
        bytes[start..start + payload.len()].copy_from_slice(payload);
        headers.write_pad_and_icrc(&self.flow, 7, &mut bytes);
        Packet { flow: self.flow, ip_id: 7, bytes }
    }

    fn put(&mut self, headers: HeaderRepr, payload: &[u8]) {
        let packet = self.packet(headers, payload);
        self.node.inject(packet);
    }

    /// The peer sends a plain packet, `nth` after its first PSN.
    fn send(&mut self, opcode: Opcode, nth: u32, payload: &[u8]) {
        self.put(self.headers(opcode, nth), payload);
    }

    fn write(&mut self, opcode: Opcode, nth: u32, offset: u64, total: usize, payload: &[u8]) {
        let mut headers = self.headers(opcode, nth);
        headers.reth = self.reth(offset, total);
        if opcode == Opcode::RcWriteOnlyImm {
            headers.imm = Some(ImmDt([1, 2, 3, 4]));
        }
        self.put(headers, payload);
    }

    fn read(&mut self, nth: u32, offset: u64, len: usize) {
        let mut headers = self.headers(Opcode::RcReadRequest, nth);
        headers.reth = self.reth(offset, len);
        self.put(headers, &[]);
    }

    fn fetch_add(&mut self, nth: u32, offset: u64, add: u64) {
        let mut headers = self.headers(Opcode::RcFetchAdd, nth);
        let rkey = RKey(self.node.key);
        headers.atomic = Some(AtomicEth { va: BASE + offset, rkey, swap_or_add: add, compare: 0 });
        self.put(headers, &[]);
    }

    /// What the engine answers to everything put so far.
    fn answers(&mut self) -> Vec<Packet> {
        self.node.settle(START);
        self.node.sent()
    }

    /// The one answer: PSN relative to the peer's first, syndrome, MSN.
    fn answer(&mut self) -> (i32, u8, u32) {
        let answers = self.answers();
        assert_eq!(answers.len(), 1, "{:?}", opcodes(&answers));
        assert_eq!(answers[0].opcode(), Opcode::RcAck);
        let (syndrome, msn) = answers[0].aeth();
        (relative(&answers[0]), syndrome, msn)
    }

    fn silence(&mut self) {
        let answers = self.answers();
        assert!(answers.is_empty(), "{:?}", opcodes(&answers));
    }

    fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.node.poll().iter().map(|cqe: &Cqe| (cqe.wr_id, cqe.status)).collect()
    }

    fn async_events(&self) -> Vec<AsyncEventType> {
        self.node.host.async_events.iter().map(|event| event.event).collect()
    }

    fn nak_reasons(&self) -> Vec<NakReason> {
        let reason = |event: &Event| match event {
            Event::Nak { reason, .. } => Some(*reason),
            _ => None,
        };
        self.node.events.iter().filter_map(|(_, event)| reason(event)).collect()
    }

    fn post_recv(&mut self, wr_id: u64, offset: u64, len: u32) {
        let sge = self.node.sge(offset, len);
        self.node.post_recv(wr_id, &[sge]);
    }
}

fn relative(packet: &Packet) -> i32 {
    packet.psn().distance_from(Psn::new(FIRST_PSN))
}

fn opcodes(packets: &[Packet]) -> Vec<(Opcode, i32)> {
    packets.iter().map(|packet| (packet.opcode(), relative(packet))).collect()
}

#[test]
fn one_ack_answers_a_burst() {
    let mut d = Dialogue::new();
    for nth in 0..4 {
        d.write(Opcode::RcWriteOnly, nth, 100 * u64::from(nth), 8, &[nth as u8 + 1; 8]);
    }
    assert_eq!(d.answer(), (3, ACK, 4));
    assert_eq!(d.node.memory(300, 8), [4; 8]);
    assert_eq!(d.node.dma.writes, 1);
    assert_eq!(d.async_events(), [AsyncEventType::CommEst]);
}

#[test]
fn an_ack_in_the_middle_of_a_message_does_not_count_it() {
    let mut d = Dialogue::new();
    d.post_recv(1, 0, 4096);
    d.send(Opcode::RcSendFirst, 0, &[1; MTU]);
    assert_eq!(d.answer(), (0, ACK, 0));
    d.send(Opcode::RcSendLast, 1, &[2; 3]);
    assert_eq!(d.answer(), (1, ACK, 1));
    assert_eq!(d.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_gap_is_refused_once_with_the_expected_psn() {
    let mut d = Dialogue::new();
    d.write(Opcode::RcWriteOnly, 2, 0, 4, &[1; 4]);
    assert_eq!(d.answer(), (0, NAK_SEQUENCE, 0));
    d.write(Opcode::RcWriteOnly, 3, 0, 4, &[1; 4]);
    d.silence();
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[1; 4]);
    assert_eq!(d.answer(), (0, ACK, 1));
    d.write(Opcode::RcWriteOnly, 4, 0, 4, &[1; 4]);
    assert_eq!(d.answer(), (1, NAK_SEQUENCE, 1));
}

#[test]
fn a_reordered_packet_that_arrives_in_the_same_burst_takes_the_nak_back() {
    let mut d = Dialogue::new();
    d.write(Opcode::RcWriteOnly, 1, 0, 4, &[1; 4]);
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[2; 4]);
    assert_eq!(d.answer(), (0, ACK, 1));
}

#[test]
fn a_duplicate_write_is_acknowledged_but_not_executed() {
    let mut d = Dialogue::new();
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[1; 4]);
    d.write(Opcode::RcWriteOnly, 1, 0, 4, &[2; 4]);
    d.answers();
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[9; 4]);
    assert_eq!(d.answer(), (1, ACK, 2));
    assert_eq!(d.node.memory(0, 4), [2; 4]);
}

#[test]
fn a_duplicate_send_consumes_no_second_receive() {
    let mut d = Dialogue::new();
    d.post_recv(1, 0, 64);
    d.post_recv(2, 0, 64);
    d.send(Opcode::RcSendOnly, 0, &[1; 4]);
    d.send(Opcode::RcSendOnly, 0, &[1; 4]);
    assert_eq!(d.answer(), (0, ACK, 1));
    assert_eq!(d.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn read_responses_are_segmented_and_a_restart_continues_in_the_middle() {
    let mut d = Dialogue::new();
    let data = pattern(1, 3 * MTU + 5);
    d.node.memory(0, data.len()).copy_from_slice(&data);
    d.read(0, 0, data.len());
    use Opcode::{RcReadRespFirst, RcReadRespLast, RcReadRespMiddle, RcReadRespOnly};
    let expected =
        [(RcReadRespFirst, 0), (RcReadRespMiddle, 1), (RcReadRespMiddle, 2), (RcReadRespLast, 3)];
    assert_eq!(opcodes(&d.answers()), expected);
    d.read(2, 2 * MTU as u64, MTU + 5);
    let answers = d.answers();
    assert_eq!(opcodes(&answers), [(RcReadRespFirst, 2), (RcReadRespLast, 3)]);
    assert_eq!(answers[0].view().payload(), &data[2 * MTU..3 * MTU]);
    // One that reaches beyond the original is not a duplicate of it.
    d.read(3, 3 * MTU as u64, 6);
    d.silence();
    d.read(3, 3 * MTU as u64, 5);
    assert_eq!(opcodes(&d.answers()), [(RcReadRespOnly, 3)]);
}

#[test]
fn an_ack_waits_behind_read_responses_and_never_passes_one() {
    let mut d = Dialogue::new();
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[1; 4]);
    d.read(1, 0, 4);
    d.write(Opcode::RcWriteOnly, 2, 0, 4, &[2; 4]);
    let answers = d.answers();
    assert_eq!(opcodes(&answers), [(Opcode::RcReadRespOnly, 1), (Opcode::RcAck, 2)]);
    // The first WRITE again: an ACK of more than it would say that the READ's response was lost.
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[1; 4]);
    assert_eq!(d.answer(), (0, ACK, 3));
}

#[test]
fn atomics_are_executed_once_and_their_result_is_remembered() {
    let mut d = Dialogue::new();
    d.node.memory(0, 8).copy_from_slice(&5u64.to_ne_bytes());
    d.fetch_add(0, 0, 10);
    d.fetch_add(1, 0, 100);
    let originals = |answers: &[Packet]| -> Vec<u64> {
        answers.iter().map(|p| p.view().atomic_ack().unwrap().original).collect()
    };
    assert_eq!(originals(&d.answers()), [5, 15]);
    d.fetch_add(0, 0, 10);
    assert_eq!(originals(&d.answers()), [5]);
    assert_eq!(d.node.memory(0, 8), 115u64.to_ne_bytes());
    d.fetch_add(2, 4, 1);
    assert_eq!(d.answer(), (2, NAK_INVALID, 2));
    assert_eq!(d.nak_reasons(), [NakReason::Alignment]);
}

#[test]
fn a_send_without_receive_is_told_to_wait_and_nothing_more_is_said() {
    let mut d = Dialogue::new();
    d.send(Opcode::RcSendOnly, 0, &[1; 4]);
    d.send(Opcode::RcSendOnly, 1, &[2; 4]);
    assert_eq!(d.answer(), (0, 0x20 | 12, 0));
    d.post_recv(1, 0, 64);
    d.post_recv(2, 0, 64);
    d.send(Opcode::RcSendOnly, 0, &[1; 4]);
    d.send(Opcode::RcSendOnly, 1, &[2; 4]);
    assert_eq!(d.answer(), (1, ACK, 2));
    assert_eq!(d.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn write_with_immediate_takes_a_receive_and_leaves_its_buffers_alone() {
    let mut d = Dialogue::new();
    d.post_recv(1, 500, 64);
    d.write(Opcode::RcWriteOnlyImm, 0, 0, 4, &[7; 4]);
    assert_eq!(d.answer(), (0, ACK, 1));
    let cqe = d.node.poll()[0];
    assert_eq!((cqe.opcode, cqe.byte_len), (WcOpcode::RecvWriteImm, 4));
    assert!(cqe.flags.contains(CqeFlags::IMM | CqeFlags::RECV));
    assert_eq!(cqe.imm_or_key.to_ne_bytes(), [1, 2, 3, 4]);
    assert_eq!((d.node.memory(0, 4)[0], d.node.memory(500, 4)[0]), (7, 0));
}

/// Each refused packet: the NAK, its reason, and where the QP ends.
#[test]
fn invalid_requests_end_the_connection() {
    type Put = fn(&mut Dialogue);
    let cases: [(Put, u8, NakReason); 9] = [
        (|d| d.send(Opcode::RcSendMiddle, 0, &[0; MTU]), NAK_INVALID, NakReason::OpcodeSequence),
        (|d| d.send(Opcode::RcSendLast, 0, &[0; 4]), NAK_INVALID, NakReason::OpcodeSequence),
        (|d| d.write(Opcode::RcWriteFirst, 0, 0, 4096, &[0; 100]), NAK_INVALID, NakReason::Length),
        (|d| d.write(Opcode::RcWriteOnly, 0, 0, 5, &[0; 4]), NAK_INVALID, NakReason::Length),
        (|d| d.write(Opcode::RcWriteOnly, 0, 0, 3, &[0; 4]), NAK_INVALID, NakReason::Length),
        (
            |d| d.write(Opcode::RcWriteOnly, 0, common::MEMORY as u64 - 3, 4, &[0; 4]),
            NAK_ACCESS,
            NakReason::Key(rnic_core::mr::KeyFault::Bounds),
        ),
        (
            |d| {
                d.node.key ^= 1;
                d.read(0, 0, 4);
            },
            NAK_ACCESS,
            NakReason::Key(rnic_core::mr::KeyFault::UnknownKey),
        ),
        (
            |d| {
                for nth in 0..5 {
                    d.read(nth, 0, 4);
                }
            },
            NAK_INVALID,
            NakReason::Resources,
        ),
        (
            |d| {
                d.node.dma.unmapped = BASE..BASE + 4;
                d.write(Opcode::RcWriteOnly, 0, 0, 4, &[0; 4]);
            },
            NAK_OPERATION,
            NakReason::RemoteMemory,
        ),
    ];
    for (i, (put, syndrome, reason)) in cases.into_iter().enumerate() {
        let mut d = Dialogue::new();
        put(&mut d);
        let answers = d.answers();
        let last = answers.last().unwrap();
        assert_eq!((last.opcode(), last.aeth().0), (Opcode::RcAck, syndrome), "case {i}");
        assert_eq!(d.nak_reasons(), [reason], "case {i}");
        assert_eq!(d.node.state(), QpState::Err);
        let event = match syndrome {
            NAK_ACCESS => AsyncEventType::QpAccessErr,
            NAK_OPERATION => AsyncEventType::QpFatal,
            _ => AsyncEventType::QpReqErr,
        };
        // Memory fails behind the checks, when its packet was accepted.
        let accepted = relative(last) > 0 || reason == NakReason::RemoteMemory;
        let comm_est = accepted.then_some(AsyncEventType::CommEst);
        let expected: Vec<_> = comm_est.into_iter().chain([event]).collect();
        assert_eq!(d.async_events(), expected, "case {i}");
        d.write(Opcode::RcWriteOnly, 0, 0, 4, &[0; 4]);
        d.silence();
    }
}

#[test]
fn zero_length_requests_need_no_key() {
    let mut d = Dialogue::new();
    d.node.key = 0;
    d.write(Opcode::RcWriteOnly, 0, 1 << 60, 0, &[]);
    d.read(1, 1 << 60, 0);
    assert_eq!(opcodes(&d.answers()), [(Opcode::RcReadRespOnly, 1)]);
}

#[test]
fn what_the_access_flags_forbid_is_an_invalid_request() {
    let mut d = Dialogue::with(QpAttr { access: AccessFlags::REMOTE_WRITE, ..attrs() });
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[1; 4]);
    assert_eq!(d.answer(), (0, ACK, 1));
    d.read(1, 0, 4);
    assert_eq!(d.answer(), (1, NAK_INVALID, 1));
    assert_eq!(d.nak_reasons(), [NakReason::NotAllowed]);
}

#[test]
fn a_send_longer_than_its_receive_fails_both_sides() {
    let mut d = Dialogue::new();
    d.post_recv(1, 0, 8);
    d.post_recv(2, 0, 8);
    d.send(Opcode::RcSendOnly, 0, &[1; 9]);
    assert_eq!(d.answer(), (0, NAK_INVALID, 0));
    assert_eq!(d.statuses(), [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(d.async_events(), [], "the completion tells it, and nothing was accepted");
}

#[test]
fn a_receive_buffer_with_a_bad_key_is_the_responders_own_fault() {
    let mut d = Dialogue::new();
    let bad = rnic_abi::wqe::Sge { lkey: d.node.key ^ 0x100, ..d.node.sge(0, 64) };
    d.node.post_recv(1, &[bad]);
    d.send(Opcode::RcSendOnly, 0, &[1; 9]);
    assert_eq!(d.answer(), (0, NAK_OPERATION, 0));
    assert_eq!(d.statuses(), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn a_fault_in_the_middle_of_a_burst_keeps_what_came_before_and_nothing_after() {
    let mut d = Dialogue::new();
    for wr_id in 0..4 {
        d.post_recv(wr_id, 0x1000 * wr_id, 0x1000);
    }
    d.node.dma.unmapped = BASE + 0x2000..BASE + 0x2001;
    for nth in 0..3 {
        d.send(Opcode::RcSendOnly, nth, &[nth as u8 + 1; 100]);
    }
    d.read(3, 0, 8);
    assert_eq!(d.answer(), (2, NAK_OPERATION, 2));
    let expected = [
        (0, WcStatus::Success),
        (1, WcStatus::Success),
        (2, WcStatus::LocProtErr),
        (3, WcStatus::WrFlushErr),
    ];
    assert_eq!(d.statuses(), expected);
    assert_eq!(d.node.memory(0x1000, 100), [2; 100]);
    assert_eq!(d.node.state(), QpState::Err);
}

#[test]
fn a_read_that_faults_halfway_sends_what_it_can_and_then_the_nak() {
    let mut d = Dialogue::new();
    d.node.dma.unmapped = BASE + 2 * MTU as u64..BASE + 2 * MTU as u64 + 1;
    d.read(0, 0, 4 * MTU);
    let answers = d.answers();
    let expected =
        [(Opcode::RcReadRespFirst, 0), (Opcode::RcReadRespMiddle, 1), (Opcode::RcAck, 2)];
    assert_eq!(opcodes(&answers), expected);
    assert_eq!(answers[2].aeth().0, NAK_OPERATION);
    assert_eq!(d.node.state(), QpState::Err);
    assert_eq!(d.async_events(), [AsyncEventType::CommEst, AsyncEventType::QpFatal]);
}

#[test]
fn strangers_and_damaged_packets_get_no_answer() {
    let mut d = Dialogue::new();
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[1; 4]);
    let good = d.node.wire.inbox.pop_front().unwrap();

    let mut damaged = good.clone();
    *damaged.bytes.last_mut().unwrap() ^= 1;
    d.node.inject(damaged);

    let mut cut = good.clone();
    cut.bytes.truncate(20);
    d.node.inject(cut);

    let own = d.flow;
    d.flow = Flow { src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 66)), ..own };
    d.write(Opcode::RcWriteOnly, 0, 0, 4, &[1; 4]);
    d.flow = own;

    let mut wrong_pkey = d.headers(Opcode::RcWriteOnly, 0);
    wrong_pkey.reth = d.reth(0, 4);
    wrong_pkey.bth.pkey = roce_wire::PKey(0x8001);
    d.put(wrong_pkey, &[1; 4]);

    d.send(Opcode::UcSendOnly, 0, &[]);

    let mut nobody = d.headers(Opcode::RcSendOnly, 0);
    nobody.bth.dest_qp = Qpn::new(d.node.qpn ^ 1);
    d.put(nobody, &[]);

    d.silence();
    let counters = d.node.engine.counters();
    assert_eq!(counters.rx_icrc_encapsulated, 1);
    assert_eq!(counters.rx_malformed, 1);
    assert_eq!(counters.rx_bad_address, 1);
    assert_eq!(counters.bad_pkey_violations, 1);
    assert_eq!(counters.rx_bad_transport, 1);
    assert_eq!(d.node.state(), QpState::Rtr);
    d.node.inject(good);
    assert_eq!(d.answer(), (0, ACK, 1));
}

#[test]
fn small_receives_travel_in_the_completion_only_where_no_peer_can_reach_the_buffer() {
    let mut d = Dialogue::new();
    let (_, private) = d.node.register(BASE + 0x8000, 4096, AccessFlags::LOCAL_WRITE);
    let sge = rnic_abi::wqe::Sge { addr: BASE + 0x8000, length: 4096, lkey: private };
    d.node.post_recv(1, &[sge]);
    d.post_recv(2, 0, 64);
    d.send(Opcode::RcSendOnly, 0, &[5; 64]);
    d.send(Opcode::RcSendOnly, 1, &[6; 64]);
    d.answers();
    let cqes = d.node.poll();
    assert_eq!(cqes[0].carried()[..cqes[0].carried_len()], [5; 64]);
    assert_eq!(d.node.memory(0x8000, 1), [0]);
    assert_eq!(cqes[1].carried_len(), 0);
    assert_eq!(d.node.memory(0, 64), [6; 64]);
}

#[test]
fn every_message_end_inside_a_write_is_announced() {
    let mut d = Dialogue::new();
    d.write(Opcode::RcWriteOnly, 0, 0, 100, &[1; 100]);
    d.write(Opcode::RcWriteFirst, 1, 100, MTU + 4, &[2; MTU]);
    d.send(Opcode::RcWriteLast, 2, &[3; 4]);
    d.write(Opcode::RcWriteOnly, 3, 5000, 8, &[4; 8]);
    d.answers();
    assert_eq!(d.node.dma.writes, 1);
    assert_eq!(d.node.dma.tails, [100, 104 + MTU as u64]);
}
