//! What hardware sent, given to an engine in the state that the recording implies.
//!
//! The frames are those of roce-wire's vectors, where their origin is told. Only the destination
//! QP number is replaced, for an engine chooses its own, and the ICRC computed anew for that; the
//! recorded one is verified first.

use crate::{ok, statuses};
use pcap_file::pcap::PcapReader;
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{QpState, WcStatus, WrOpcode};
use rnic_core::counters::Counters;
use rnic_sim::dialogue::{Dialogue, Heard};
use rnic_sim::port::Packet;
use rnic_sim::verbs::{Connection, Remote, SendWr};
use roce_wire::cm::{CmMad, CmMessage};
use roce_wire::headers::rnr_timer_ns;
use roce_wire::{Datagram, Frame, ImmDt, NakCode, Opcode, Qpn, Syndrome};
use std::fs::File;
use std::path::Path;

const MTU: u32 = 1024;
/// 4.096 us x 2^14, as many of the recorded devices are told.
const TIMEOUT: u8 = 14;
const CAPTURED: &str = "captured.pcap";
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

/// Payload and immediate data of a recorded frame.
fn content(frame: &[u8]) -> (Vec<u8>, Option<ImmDt>) {
    let frame = Frame::parse(frame).unwrap();
    let datagram = Datagram::parse(frame.payload()).unwrap();
    (datagram.payload().to_vec(), datagram.imm())
}

/// An engine at the address that recorded frames went to, connected to where they came from.
struct Replay {
    d: Dialogue,
}

impl Replay {
    fn receiving(frame: &[u8], first_psn: u32) -> Self {
        let flow = Frame::parse(frame).unwrap().flow;
        let psns = Connection { sq_psn: first_psn, rq_psn: first_psn, ..Connection::default() };
        let connection = Connection { timeout: TIMEOUT, ..psns };
        Self { d: Dialogue::between((flow.dst, flow.src), connection) }
    }

    /// The engine gets the frame as it is but for the QP number.
    fn deliver(&mut self, frame: &[u8]) {
        let qpn = self.d.world.host(0).qpn(self.d.nic.qp);
        self.deliver_to(frame, qpn);
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
        let packet = Packet { flow: frame.flow, ip_id: frame.ip_id, bytes: bytes.into() };
        self.d.world.inject(0, packet);
    }

    fn post(&mut self, opcode: WrOpcode, wr_id: u64, len: u32) {
        let sges = [self.d.nic.mr.sge(0, len)];
        let wr = match opcode {
            WrOpcode::Write => SendWr::write(wr_id, &sges, Remote { addr: 0, rkey: 0 }),
            WrOpcode::SendImm => SendWr::send(wr_id, &sges).with_imm(0),
            _ => SendWr::send(wr_id, &sges),
        };
        self.d.post(&wr);
    }

    fn post_receive(&mut self, wr_id: u64) {
        let sge = self.d.nic.mr.sge(wr_id * 0x1000, 0x1000);
        self.d.recv(wr_id, &[sge]);
    }

    /// What the engine says at once.
    fn says(&mut self) -> Vec<(Opcode, u32)> {
        self.d.hear_burst().iter().map(|heard| (heard.opcode(), heard.psn())).collect()
    }

    /// Its completed sends.
    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        statuses(&self.d.sent())
    }

    /// The one message received is this one, in the buffer of its receive.
    fn assert_received(&mut self, cqe: &Cqe, message: &[u8]) {
        assert_eq!((cqe.status, cqe.byte_len as usize), (Success, message.len()));
        assert!(self.d.memory(cqe.wr_id * 0x1000, message.len() as u64) == message);
    }

    /// Nothing came of what was delivered.
    fn assert_untouched(&mut self) {
        assert_eq!((self.says(), self.sent()), (vec![], vec![]));
        assert_eq!(statuses(&self.d.received()), []);
    }

    fn counters(&self) -> &Counters {
        self.d.world.hosts()[0].engine.counters()
    }

    /// The engine answered as the recorded answer has it; credits are the sender's own business.
    fn assert_answered_as(&mut self, recorded: &[u8]) {
        let frame = Frame::parse(recorded).unwrap();
        let theirs = Datagram::parse(frame.payload()).unwrap().headers();
        let heard = self.d.hear_burst();
        let [Heard { headers: ours, .. }] = &heard[..] else { panic!("{} answers", heard.len()) };
        assert_eq!(ours.bth.opcode, theirs.bth.opcode);
        assert_eq!(ours.bth.psn, theirs.bth.psn);
        assert_eq!(ours.aeth.unwrap().msn, theirs.aeth.unwrap().msn);
        assert_eq!(ours.bth.mig_req, theirs.bth.mig_req);
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
    assert_eq!(r.says().len(), 4);
    r.deliver(&acks[0]);
    assert_eq!(r.sent(), ok([1, 2]));
    r.deliver(&acks[1]);
    assert_eq!(r.sent(), ok([3, 4]));
    let qp = r.d.nic.qp;
    assert_eq!(r.d.world.host(0).owed(qp).0, 0);
}

/// Its MSN is 945922 and it advertises no credit: neither has a say in what completes.
#[test]
fn connectx_acknowledges_by_psn_alone() {
    let ack = recorded(CAPTURED, 6);
    let psn = 4_615_966;
    let mut r = Replay::receiving(&ack, psn - 1);
    r.post(WrOpcode::Write, 1, 3 * MTU);
    assert_eq!(r.says().len(), 3);
    r.deliver(&ack);
    assert_eq!(r.sent(), []);
    // What it does not acknowledge, and nothing else, is sent again after a timeout.
    r.d.expect(RcWriteLast, psn + 1);
    r.d.expect_silence();

    let mut r = Replay::receiving(&ack, psn);
    r.post(WrOpcode::Write, 1, 8);
    assert_eq!(r.says().len(), 1);
    r.deliver(&ack);
    assert_eq!(r.sent(), ok([1]));
}

#[test]
fn a_send_of_connectx_is_received_and_acknowledged() {
    // The second is rxe's of the same exchange.
    for number in [14, 19] {
        let send = recorded(CAPTURED, number);
        let mut r = Replay::receiving(&send, 16_703_469);
        r.post_receive(1);
        r.deliver(&send);
        let completions = r.d.received();
        assert_eq!(statuses(&completions), ok([1]));
        r.assert_received(&completions[0], &content(&send).0);
        assert_eq!(r.says(), [(RcAck, 16_703_469)]);
    }
}

/// Of ConnectX-4 Lx, of a virtual function, and one that another project computed.
#[test]
fn a_cnp_is_counted_and_disturbs_nothing() {
    for number in [1, 7, 27] {
        let cnp = recorded(CAPTURED, number);
        let mut r = Replay::receiving(&cnp, 0);
        r.post(WrOpcode::Write, 1, 3 * MTU);
        assert_eq!(r.says().len(), 3);
        r.deliver(&cnp);
        r.assert_untouched();
        assert_eq!(r.counters().rp_cnp_handled, 1);
        assert_eq!(r.d.state(), QpState::Rts);
    }
}

/// SEND_FIRST asks for an ACK, which a Hi1822 sends in the middle of the message.
#[test]
fn an_ack_in_the_middle_of_a_message_completes_nothing_yet() {
    let acks = [recorded(HI1822, 5), recorded(HI1822, 6)];
    let mut r = Replay::receiving(&acks[0], 0);
    r.post(WrOpcode::SendImm, 1, 2 * MTU);
    assert_eq!(r.says(), [(RcSendFirst, 0), (RcSendLastImm, 1)]);
    r.deliver(&acks[0]);
    assert_eq!(r.sent(), []);
    r.deliver(&acks[1]);
    assert_eq!(r.sent(), ok([1]));
}

#[test]
fn an_ack_with_credits_completes_its_request() {
    let ack = recorded(HI1822, 2);
    let mut r = Replay::receiving(&ack, 0);
    r.post(WrOpcode::SendImm, 1, 141);
    assert_eq!(r.says().len(), 1);
    r.deliver(&ack);
    assert_eq!(r.sent(), ok([1]));
}

/// Requests with a reserved bit set and a source port below 0xC000; our answers are those that the
/// other Hi1822 gave.
#[test]
fn messages_of_a_hi1822_are_answered_as_its_peer_did() {
    let first = recorded(HI1822, 3);
    let mut r = Replay::receiving(&first, 0);
    r.d.fill(0x1000, 0x4000, 1);
    for wr_id in 1..=3 {
        r.post_receive(wr_id);
    }
    r.deliver(&first);
    r.assert_answered_as(&recorded(HI1822, 5));
    assert_eq!(statuses(&r.d.received()), []);
    r.deliver(&recorded(HI1822, 4));
    r.assert_answered_as(&recorded(HI1822, 6));
    r.deliver(&recorded(HI1822, 7));
    assert_eq!(r.says(), []);
    r.deliver(&recorded(HI1822, 8));
    assert_eq!(r.says(), [(RcAck, 3)]);
    let completions = r.d.received();
    assert_eq!(completions.len(), 2);
    for (cqe, [head, tail]) in completions.iter().zip([[3, 4], [7, 8]]) {
        let [(head, _), (tail, imm)] = [head, tail].map(|n| content(&recorded(HI1822, n)));
        r.assert_received(cqe, &[head, tail].concat());
        assert!(cqe.flags.contains(CqeFlags::IMM));
        assert_eq!(cqe.imm_or_key.to_ne_bytes(), imm.unwrap().0);
    }
}

#[test]
fn a_short_message_of_a_hi1822_late_in_its_life() {
    let send = recorded(HI1822, 10);
    let mut r = Replay::receiving(&send, 66);
    r.post_receive(1);
    r.deliver(&send);
    assert_eq!(statuses(&r.d.received()), ok([1]));
    assert_eq!(r.says(), [(RcAck, 66)]);
    // One packet earlier it is a gap, which draws one NAK for what is missing.
    let mut r = Replay::receiving(&send, 65);
    r.post_receive(1);
    r.deliver(&send);
    r.deliver(&send);
    let naks = r.d.hear_burst();
    assert_eq!(naks.len(), 1);
    assert_eq!((naks[0].psn(), naks[0].aeth().0), (65, Syndrome::Nak(NakCode::PsnSequence)));
    assert_eq!(statuses(&r.d.received()), []);
}

/// RNR NAK, sequence NAK, NAK invalid request over IPv6, as another simulator computes them.
#[test]
fn naks_over_ipv6() {
    let rnr = recorded(CAPTURED, 24);
    let mut r = Replay::receiving(&rnr, 1_122_867);
    for wr_id in 1..=3 {
        r.post(WrOpcode::Send, wr_id, 8);
    }
    assert_eq!(r.says().len(), 3);
    r.deliver(&rnr);
    // 61.44 ms.
    r.d.expect_silence_for(rnr_timer_ns(25));
    assert_eq!(r.says().len(), 3);
    r.deliver(&recorded(CAPTURED, 25));
    assert_eq!(r.sent(), ok([1]));
    assert_eq!(r.says(), [(RcSendOnly, 1_122_868), (RcSendOnly, 1_122_869)]);
    r.deliver(&recorded(CAPTURED, 26));
    assert_eq!(r.sent(), [(2, Success), (3, RemInvReqErr)]);
    assert_eq!(r.d.state(), QpState::Err);
}

/// Connection management goes to QP 1, which is no queue pair of this client.
#[test]
fn connection_management_of_connectx_reaches_no_other_queue_pair() {
    let names = [12, 13].map(|number| {
        let bytes = recorded(CAPTURED, number);
        let mut r = Replay::receiving(&bytes, 460);
        r.post_receive(1);
        r.deliver_to(&bytes, Qpn::GSI.value());
        r.assert_untouched();
        assert_eq!(r.counters().rx_packets, 1);
        // Nor does it reach one that it is misdirected to.
        r.deliver(&bytes);
        r.assert_untouched();
        assert_eq!(r.counters().rx_bad_transport, 1);
        let mad = CmMad::parse(&content(&bytes).0).unwrap();
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
    r.assert_untouched();
    assert_eq!(r.counters().rx_bad_transport, 1);
}
