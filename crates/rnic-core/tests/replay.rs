//! What hardware sent, given to an engine in the state that the recording implies.
//!
//! The frames are those of roce-wire's vectors, where their origin is told. Only the destination
//! QP number is replaced, for an engine chooses its own, and the ICRC computed anew for that; the
//! recorded one is verified first.

mod common;

use common::wire::Packet;
use common::{Node, Options, START, attrs, pattern, send_control};
use pcap_file::pcap::PcapReader;
use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::{QpAttr, QpState, WcStatus, WrOpcode};
use rnic_core::Instant;
use roce_wire::cm::{CmMad, CmMessage};
use roce_wire::{Datagram, Frame, Opcode, Qpn};
use std::fs::File;
use std::path::Path;

const MTU: u32 = 1024;
const CAPTURED: &str = "captured.pcap";
/// 4.096 us x 2^14.
const TIMEOUT: u64 = 4096 << 14;
const HI1822: &str = "huawei-hi1822.pcap";

/// A frame of a capture file; numbers begin at 1, as packet analysers count.
fn recorded(file: &str, number: usize) -> Vec<u8> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../roce-wire/tests/vectors");
    let mut reader = PcapReader::new(File::open(vectors.join(file)).unwrap()).unwrap();
    let mut frame = Vec::new();
    for _ in 0..number {
        frame = reader.next_packet().expect("too few frames").unwrap().data.into_owned();
    }
    frame
}

/// An engine at the address that recorded frames went to, connected to where they came from.
struct Replay {
    node: Node,
    now: Instant,
}

impl Replay {
    fn receiving(frame: &[u8], first_psn: u32) -> Self {
        let flow = Frame::parse(frame).unwrap().flow;
        let mut node = Node::new(1, &Options::default());
        node.ip = flow.dst;
        let attr = QpAttr { sq_psn: first_psn, rq_psn: first_psn, ..attrs() };
        node.connect(flow.src, 0x77, attr, QpState::Rts);
        Self { node, now: START }
    }

    /// The engine gets the frame as it is but for the QP number, and works it off.
    fn deliver(&mut self, frame: &[u8]) {
        self.deliver_to(frame, self.node.qpn);
    }

    fn deliver_to(&mut self, frame: &[u8], qpn: u32) {
        let frame = Frame::parse(frame).unwrap();
        assert!(frame.verify_icrc().is_good());
        let datagram = Datagram::parse(frame.payload()).unwrap();
        let mut headers = datagram.headers();
        headers.bth.dest_qp = Qpn::new(qpn);
        let mut bytes = vec![0; headers.datagram_len(datagram.payload_len())];
        let start = headers.emit(&mut bytes);
        bytes[start..start + datagram.payload_len()].copy_from_slice(datagram.payload());
        headers.write_pad_and_icrc(&frame.flow, frame.ip_id, &mut bytes);
        self.node.inject(Packet { flow: frame.flow, ip_id: frame.ip_id, bytes });
        self.node.settle(self.now);
    }

    fn post(&mut self, opcode: WrOpcode, wr_id: u64, len: u32) {
        let sge = self.node.sge(0, len);
        self.node.post_send(send_control(opcode, wr_id), &[sge]);
        self.node.settle(self.now);
    }

    fn post_receive(&mut self, wr_id: u64) {
        let sge = self.node.sge(wr_id * 0x1000, 0x1000);
        self.node.post_recv(wr_id, &[sge]);
    }

    fn sent(&mut self) -> Vec<(Opcode, u32)> {
        self.node.sent().iter().map(|packet| (packet.opcode(), packet.psn().value())).collect()
    }

    fn completions(&mut self) -> Vec<(u64, WcStatus)> {
        self.node.poll().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    /// The engine answered as the recorded answer has it; credits are the sender's own business.
    fn answered_as(&mut self, recorded: &[u8]) {
        let frame = Frame::parse(recorded).unwrap();
        let theirs = Datagram::parse(frame.payload()).unwrap().headers();
        let sent = self.node.sent();
        let [ours] = &sent[..] else { panic!("{} answers", sent.len()) };
        let ours_headers = ours.view().headers();
        assert_eq!(ours_headers.bth.opcode, theirs.bth.opcode);
        assert_eq!(ours_headers.bth.psn, theirs.bth.psn);
        assert_eq!(ours_headers.aeth.unwrap().msn, theirs.aeth.unwrap().msn);
        assert_eq!(ours_headers.bth.mig_req, theirs.bth.mig_req);
    }
}

use Opcode::{RcAck, RcSendFirst, RcSendLastImm, RcSendOnly, RcWriteLast};
use WcStatus::{RemInvReqErr, Success};

/// Two ACKs for four requests.
#[test]
fn connectx_acknowledges_two_requests_with_one_ack() {
    let acks = [recorded(CAPTURED, 15), recorded(CAPTURED, 16)];
    let mut r = Replay::receiving(&acks[0], 0xcf_7bf6);
    for wr_id in 1..=4 {
        r.post(WrOpcode::Send, wr_id, 8);
    }
    r.deliver(&acks[0]);
    assert_eq!(r.completions(), [(1, Success), (2, Success)]);
    r.deliver(&acks[1]);
    assert_eq!(r.completions(), [(3, Success), (4, Success)]);
    assert_eq!(r.node.sq.in_use(), 0);
}

/// Its MSN is 945922 and it advertises no credit: neither has a say in what completes.
#[test]
fn connectx_acknowledges_by_psn_alone() {
    let ack = recorded(CAPTURED, 6);
    let psn = 4_615_966;
    let mut r = Replay::receiving(&ack, psn - 1);
    r.post(WrOpcode::Write, 1, 3 * MTU);
    assert_eq!(r.sent().len(), 3);
    r.deliver(&ack);
    assert_eq!(r.completions(), []);
    r.now = START.after_nanos(4 * TIMEOUT);
    r.node.settle(r.now);
    assert_eq!(r.sent(), [(RcWriteLast, psn + 1)]);

    let mut r = Replay::receiving(&ack, psn);
    r.post(WrOpcode::Write, 1, 8);
    r.deliver(&ack);
    assert_eq!(r.completions(), [(1, Success)]);
}

#[test]
fn a_send_of_connectx_is_received_and_acknowledged() {
    // The second is rxe's of the same exchange.
    for number in [14, 19] {
        let send = recorded(CAPTURED, number);
        let mut r = Replay::receiving(&send, 16_703_469);
        r.post_receive(1);
        r.deliver(&send);
        let cqes = r.node.poll();
        let payload = Datagram::parse(Frame::parse(&send).unwrap().payload()).unwrap();
        let payload = payload.payload().to_vec();
        assert_eq!((cqes[0].wr_id, cqes[0].status), (1, Success));
        assert_eq!(cqes[0].byte_len as usize, payload.len());
        assert!(r.node.memory(0x1000, payload.len()) == payload);
        assert_eq!(r.sent(), [(RcAck, 16_703_469)]);
    }
}

/// Of ConnectX-4 Lx, of a virtual function, and one that another project computed.
#[test]
fn a_cnp_is_counted_and_disturbs_nothing() {
    for number in [1, 7, 27] {
        let cnp = recorded(CAPTURED, number);
        let mut r = Replay::receiving(&cnp, 0);
        r.post(WrOpcode::Write, 1, 3 * MTU);
        assert_eq!(r.sent().len(), 3);
        r.deliver(&cnp);
        assert_eq!(r.node.engine.counters().rp_cnp_handled, 1);
        assert_eq!((r.sent(), r.completions()), (vec![], vec![]));
        assert_eq!(r.node.state(), QpState::Rts);
    }
}

/// SEND_FIRST asks for an ACK, which a Hi1822 sends in the middle of the message.
#[test]
fn an_ack_in_the_middle_of_a_message_completes_nothing_yet() {
    let acks = [recorded(HI1822, 5), recorded(HI1822, 6)];
    let mut r = Replay::receiving(&acks[0], 0);
    r.post(WrOpcode::SendImm, 1, 2 * MTU);
    assert_eq!(r.sent(), [(RcSendFirst, 0), (RcSendLastImm, 1)]);
    r.deliver(&acks[0]);
    assert_eq!(r.completions(), []);
    r.deliver(&acks[1]);
    assert_eq!(r.completions(), [(1, Success)]);
}

#[test]
fn an_ack_with_credits_completes_its_request() {
    let ack = recorded(HI1822, 2);
    let mut r = Replay::receiving(&ack, 0);
    r.post(WrOpcode::SendImm, 1, 141);
    r.deliver(&ack);
    assert_eq!(r.completions(), [(1, Success)]);
}

/// Requests with a reserved bit set and a source port below 0xC000; our answers are those that the
/// other Hi1822 gave.
#[test]
fn messages_of_a_hi1822_are_answered_as_its_peer_did() {
    let first = recorded(HI1822, 3);
    let mut r = Replay::receiving(&first, 0);
    r.node.memory(0x1000, 0x4000).copy_from_slice(&pattern(1, 0x4000));
    for wr_id in 1..=3 {
        r.post_receive(wr_id);
    }
    r.deliver(&first);
    r.answered_as(&recorded(HI1822, 5));
    assert_eq!(r.completions(), []);
    r.deliver(&recorded(HI1822, 4));
    r.answered_as(&recorded(HI1822, 6));
    r.deliver(&recorded(HI1822, 7));
    assert_eq!(r.sent(), []);
    r.deliver(&recorded(HI1822, 8));
    assert_eq!(r.sent(), [(RcAck, 3)]);
    let cqes = r.node.poll();
    assert_eq!(cqes.len(), 2);
    for (cqe, [head, tail]) in cqes.iter().zip([[3, 4], [7, 8]]) {
        let [head, tail] = [recorded(HI1822, head), recorded(HI1822, tail)];
        let parts = [&head, &tail].map(|frame| {
            let datagram = Frame::parse(frame).unwrap();
            let datagram = Datagram::parse(datagram.payload()).unwrap();
            (datagram.payload().to_vec(), datagram.imm())
        });
        let message = [&parts[0].0[..], &parts[1].0[..]].concat();
        assert_eq!((cqe.status, cqe.byte_len as usize), (Success, message.len()));
        assert!(cqe.flags.contains(CqeFlags::IMM));
        assert_eq!(cqe.imm_or_key.to_ne_bytes(), parts[1].1.unwrap().0);
        assert!(r.node.memory(cqe.wr_id as usize * 0x1000, message.len()) == message);
    }
}

#[test]
fn a_short_message_of_a_hi1822_late_in_its_life() {
    let send = recorded(HI1822, 10);
    let mut r = Replay::receiving(&send, 66);
    r.post_receive(1);
    r.deliver(&send);
    assert_eq!(r.completions(), [(1, Success)]);
    assert_eq!(r.sent(), [(RcAck, 66)]);
    // One packet earlier it is a gap, which draws one NAK for what is missing.
    let mut r = Replay::receiving(&send, 65);
    r.post_receive(1);
    r.deliver(&send);
    r.deliver(&send);
    let sent = r.node.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].psn().value(), sent[0].aeth().0), (65, 0x60));
    assert_eq!(r.completions(), []);
}

/// RNR NAK, sequence NAK, NAK invalid request over IPv6, as another simulator computes them.
#[test]
fn naks_over_ipv6() {
    let rnr = recorded(CAPTURED, 24);
    let mut r = Replay::receiving(&rnr, 1_122_867);
    for wr_id in 1..=3 {
        r.post(WrOpcode::Send, wr_id, 8);
    }
    assert_eq!(r.sent().len(), 3);
    r.deliver(&rnr);
    assert_eq!(r.sent(), []);
    // Timer code 25 is 61.44 ms.
    r.now = START.after_nanos(61_440_000 + 20_000);
    r.node.settle(r.now);
    assert_eq!(r.sent().len(), 3);
    r.deliver(&recorded(CAPTURED, 25));
    assert_eq!(r.completions(), [(1, Success)]);
    assert_eq!(r.sent(), [(RcSendOnly, 1_122_868), (RcSendOnly, 1_122_869)]);
    r.deliver(&recorded(CAPTURED, 26));
    assert_eq!(r.completions(), [(2, Success), (3, RemInvReqErr)]);
    assert_eq!(r.node.state(), QpState::Err);
}

/// Connection management goes to QP 1, which is no queue pair of this client.
#[test]
fn connection_management_of_connectx_reaches_no_other_queue_pair() {
    let names = [12, 13].map(|number| {
        let bytes = recorded(CAPTURED, number);
        let mut r = Replay::receiving(&bytes, 460);
        r.post_receive(1);
        r.deliver_to(&bytes, Qpn::GSI.value());
        assert_eq!(r.node.engine.counters().rx_packets, 1);
        assert_eq!((r.sent(), r.completions()), (vec![], vec![]));
        // Nor does it reach one that it is misdirected to.
        r.deliver(&bytes);
        assert_eq!(r.node.engine.counters().rx_bad_transport, 1);
        assert_eq!((r.sent(), r.completions()), (vec![], vec![]));
        let frame = Frame::parse(&bytes).unwrap();
        let mad = CmMad::parse(Datagram::parse(frame.payload()).unwrap().payload()).unwrap();
        if let CmMessage::Req(request) = mad.message {
            // The port space of TCP, and the vendor whose extensions the sender offers.
            assert_eq!((request.service_id >> 16, request.vendor_id), (0x0106, 0x15b3));
        }
        mad.message.name()
    });
    assert_eq!(names, ["REQ", "RTU"]);
}

/// UC of a Mellanox card at an RC queue pair.
#[test]
fn another_transport_is_dropped() {
    let send = recorded(CAPTURED, 2);
    let mut r = Replay::receiving(&send, 13_571_856);
    r.post_receive(1);
    r.deliver(&send);
    assert_eq!(r.node.engine.counters().rx_bad_transport, 1);
    assert_eq!((r.sent(), r.completions()), (vec![], vec![]));
}
