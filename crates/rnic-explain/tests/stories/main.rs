//! Packets of which the cause is known.

mod copies;
mod data;
mod managers;
mod naks;
mod trains;

use rnic_explain::file::{LinkType, Packet};
use rnic_explain::report::{Capture, Connection, Sent, WentBack};
use rnic_explain::{Explainer, Report, Story as Page};
use roce_wire::{
    Aeth, Bth, Flow, FrameHeader, HeaderRepr, MacAddr, Msn, NakCode, Opcode, Psn, Qpn, RKey, Reth,
    Syndrome,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Queue pairs of both ends.
const AT_A: u32 = 0x11;
const AT_B: u32 = 0x22;
const BEGIN: u32 = 0xff_fffc;

/// A capture that is being made: each packet comes ten microseconds after the one before.
#[derive(Default)]
struct Story {
    explainer: Explainer,
    now: Duration,
    ip_id: u16,
}

impl Story {
    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    fn packet(&mut self, from: IpAddr, headers: HeaderRepr, len: usize) {
        self.ip_id += 1;
        self.packet_with(from, headers, len, self.ip_id);
    }

    fn packet_with(&mut self, from: IpAddr, headers: HeaderRepr, len: usize, ip_id: u16) {
        self.frame(&frame(from, headers, len, ip_id));
    }

    fn frame(&mut self, bytes: &[u8]) {
        self.cut_frame(bytes, bytes.len());
    }

    /// A frame of which only the first bytes are captured.
    fn cut_frame(&mut self, bytes: &[u8], captured: usize) {
        self.now += Duration::from_micros(10);
        let (whole_len, bytes) = (bytes.len(), &bytes[..captured]);
        self.commented_frame((bytes, whole_len), "");
    }

    /// A frame with what is said of it.
    fn commented_frame(&mut self, (bytes, whole_len): (&[u8], usize), comment: &str) {
        let (at, link, comment) = (self.now, LinkType(1), comment.as_bytes());
        self.explainer.packet(&Packet { at, link, bytes, whole_len, comment });
    }

    /// SENDs of a packet each, by their place behind the first PSN.
    fn sends(&mut self, places: impl IntoIterator<Item = u32>) {
        for place in places {
            self.packet(A, send(place), 8);
        }
    }

    fn answer(&mut self, place: u32, syndrome: Syndrome) {
        self.packet(B, response(AT_A, place, syndrome), 0);
    }

    fn ack(&mut self, place: u32) {
        self.answer(place, Syndrome::ACK);
    }

    fn end(self) -> Report {
        self.explainer.finish(false)
    }

    /// Why the first end of the only connection went back.
    fn went_back(self) -> WentBack {
        only(&self.end()).1.went_back
    }
}

fn flow(src: IpAddr) -> Flow {
    let dst = if src == A { B } else { A };
    Flow { src, dst, sport: 0xc000, tos: 0, hop_limit: 64, flow_label: 0, df: true }
}

fn frame(src: IpAddr, headers: HeaderRepr, len: usize, ip_id: u16) -> Vec<u8> {
    let flow = flow(src);
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let header = FrameHeader { dst_mac: mac, src_mac: mac, vlan: None, flow };
    let headers = headers.with_payload_len(len);
    let mut frame = vec![0; header.len() + headers.datagram_len(len)];
    let at = header.emit(ip_id, headers.datagram_len(len), &mut frame);
    headers.emit(&mut frame[at..]);
    headers.write_pad_and_icrc(&flow, ip_id, &mut frame[at..]);
    frame
}

fn psn(place: u32) -> Psn {
    Psn::new(BEGIN).wrapping_add(place)
}

fn request(opcode: Opcode, place: u32) -> HeaderRepr {
    let mut bth = Bth::new(opcode, Qpn::new(AT_B), psn(place));
    bth.ack_req = true;
    HeaderRepr::new(bth)
}

fn send(place: u32) -> HeaderRepr {
    request(Opcode::RcSendOnly, place)
}

fn response(to: u32, place: u32, syndrome: Syndrome) -> HeaderRepr {
    let mut headers = HeaderRepr::new(Bth::new(Opcode::RcAck, Qpn::new(to), psn(place)));
    headers.aeth = Some(Aeth { syndrome, msn: Msn::ZERO });
    headers
}

/// The only connection of a report, and what its first end sent.
fn only(report: &Report) -> (&Connection, &Sent) {
    let [connection] = &report.connections[..] else { panic!("{report}") };
    (connection, &connection.sent[0])
}

#[test]
fn a_loss_behind_the_capture_is_told_by_a_nak() {
    let mut story = Story::default();
    story.sends(0..10);
    story.ack(2);
    story.answer(3, Syndrome::Nak(NakCode::PsnSequence));
    story.sends(3..12);
    story.ack(11);
    let report = story.end();
    let (connection, sent) = only(&report);
    assert_eq!(connection.ends.map(|end| end.qpn), [Some(AT_A), Some(AT_B)]);
    assert_eq!((sent.requests, sent.messages, sent.repeated), (19, 12, 7));
    assert_eq!((sent.lost_before_capture, sent.needless, sent.never_seen), (0, 0, 0));
    let back = sent.went_back;
    assert_eq!((back.after_sequence_nak, back.after_silence, back.farthest), (1, 0, 7));
    assert_eq!(connection.sent[1].sequence_naks, 1);
    assert!(report.to_string().contains("once after a sequence NAK, by at most 7 packets"));
    assert!(report.to_string().contains("what was lost was lost behind it"), "{report}");
}

#[test]
fn a_loss_before_the_capture_is_a_gap_that_is_filled_later() {
    let mut story = Story::default();
    story.sends([0, 1, 3, 4]);
    story.answer(2, Syndrome::Nak(NakCode::PsnSequence));
    story.sends(2..6);
    story.ack(5);
    let report = story.end();
    let (_, sent) = only(&report);
    assert_eq!((sent.repeated, sent.lost_before_capture, sent.never_seen), (3, 1, 0));
    assert_eq!((sent.went_back.after_sequence_nak, sent.overtaken), (1, 0));
    // Two of the three were sent again only because they are behind the one that was lost.
    assert!(report.to_string().contains("lost before it came to the place"), "{report}");
}

#[test]
fn the_network_may_change_the_order_and_make_copies() {
    let mut story = Story::default();
    story.sends([0, 2, 1, 3]);
    let copied = story.ip_id;
    story.sends([4]);
    story.packet_with(A, send(3), 8, copied);
    story.ack(4);
    let report = story.end();
    let (_, sent) = only(&report);
    let copies = sent.copies_made_by_the_network;
    assert_eq!((sent.overtaken, copies, sent.repeated, sent.never_seen), (1, 1, 0, 0));
}

#[test]
fn a_requester_without_answers_goes_back_after_timeouts_and_gives_up() {
    let mut story = Story::default();
    story.sends([0, 1]);
    story.ack(0);
    for _ in 0..7 {
        story.wait(Duration::from_millis(70));
        story.sends([1]);
    }
    let report = story.end();
    let (_, sent) = only(&report);
    assert_eq!((sent.repeated, sent.went_back.after_silence), (7, 7));
    assert_eq!(sent.given_up, Some((psn(1).value(), 7)));
    let first = &report.findings[0];
    assert!(first.is_serious && first.what.contains("8 times without an answer"), "{first:?}");
    assert!(first.advice.contains("RETRY_EXC_ERR"), "{first:?}");
}

/// A requester whose CPU stood still sends on before it looks at its timer.
#[test]
fn a_timer_may_run_out_behind_further_requests() {
    // What it goes back to is not acknowledged, or the acknowledgement did not reach it yet.
    for acknowledged in [1, 3] {
        let mut story = Story::default();
        story.sends(0..4);
        story.ack(acknowledged);
        story.wait(Duration::from_millis(70));
        story.sends((4..6).chain(2..6));
        story.ack(5);
        let back = story.went_back();
        assert_eq!((back.after_silence, back.unexplained), (1, 0), "{back:?}");
    }
}

/// Also where no answer of the connection is in the capture yet, and the first one is a NAK.
#[test]
fn a_timer_begins_with_any_answer() {
    let mut story = Story::default();
    story.sends(0..4);
    story.answer(0, Syndrome::Nak(NakCode::PsnSequence));
    story.sends(0..4);
    story.wait(Duration::from_millis(70));
    story.sends((4..6).chain(0..6));
    story.ack(5);
    let back = story.went_back();
    assert_eq!((back.after_sequence_nak, back.after_silence, back.unexplained), (1, 1, 0));
}

/// Nothing that a capture has says why a requester goes back at once, to new requests or again to
/// those that it has just sent again.
#[test]
fn a_requester_that_goes_back_at_once_did_not_wait() {
    for (again, timeouts) in [(4, 0), (2, 1)] {
        let mut story = Story::default();
        story.sends(0..4);
        story.ack(if again == 4 { 3 } else { 1 });
        story.wait(Duration::from_millis(70));
        story.sends((again..6).chain(again..6));
        story.ack(5);
        let back = story.went_back();
        assert_eq!((back.after_silence, back.unexplained), (timeouts, 1), "{back:?}");
    }
}

/// Packets that overtake each other while they are sent again are not sent again once more.
#[test]
fn packets_sent_again_may_overtake_each_other() {
    let mut story = Story::default();
    story.sends(0..4);
    story.ack(0);
    story.answer(1, Syndrome::RnrNak { timer: 14 });
    story.wait(Duration::from_millis(2));
    story.sends([1, 3, 2]);
    story.ack(3);
    let back = story.went_back();
    assert_eq!((back.after_rnr_nak, back.after_silence, back.unexplained), (1, 0, 1));
}

#[test]
fn an_answer_that_was_lost_behind_the_capture_makes_repetitions_needless() {
    let mut story = Story::default();
    story.sends([0]);
    story.ack(0);
    story.wait(Duration::from_millis(70));
    story.sends([0, 1]);
    story.ack(1);
    let report = story.end();
    let (_, sent) = only(&report);
    assert_eq!((sent.repeated, sent.needless, sent.given_up), (1, 1, None));
    // Nothing tells which transmission was answered, but the first request of all was sent once
    // when its answer came.
    assert_eq!(sent.latency.unwrap().count, 2);
}

#[test]
fn reads_use_the_numbers_of_their_responses() {
    let mut story = Story::default();
    let read = |place, dma_len| {
        let mut headers = request(Opcode::RcReadRequest, place);
        headers.reth = Some(Reth { va: 0x1000, rkey: RKey(7), dma_len });
        headers
    };
    // The path MTU is not known yet: the second READ shows how many packets the first one has.
    story.packet(A, read(0, 4096), 0);
    story.packet(A, read(4, 4096), 0);
    for (opcode, place) in [
        (Opcode::RcReadRespFirst, 0),
        (Opcode::RcReadRespMiddle, 1),
        (Opcode::RcReadRespMiddle, 2),
        (Opcode::RcReadRespLast, 3),
    ] {
        let mut headers = response(AT_A, place, Syndrome::ACK);
        headers.bth.opcode = opcode;
        if opcode == Opcode::RcReadRespMiddle {
            headers.aeth = None;
        }
        story.packet(B, headers, 1024);
    }
    story.packet(A, read(8, 100), 0);
    story.sends([9]);
    let report = story.end();
    let (connection, sent) = only(&report);
    assert_eq!((sent.mtu, sent.repeated, sent.never_seen), (Some(1024), 0, 0));
    assert_eq!(sent.latency.unwrap().min_ns, 20_000);
    assert_eq!(connection.sent[1].response_bytes, 4096);
}

#[test]
fn a_refusal_names_the_request_and_a_likely_cause() {
    let mut story = Story::default();
    story.sends([0]);
    let mut write = request(Opcode::RcWriteOnly, 1);
    write.reth = Some(Reth { va: 0xabc0, rkey: RKey(0x1234_5678), dma_len: 64 });
    story.packet(A, write, 64);
    story.answer(1, Syndrome::Nak(NakCode::RemoteAccess));
    let report = story.end();
    let text = report.to_string();
    assert!(
        text.contains(
            "remote access error for RC_WRITE_ONLY of 64 bytes at 0xabc0 with rkey 0x12345678"
        ),
        "{text}"
    );
    assert!(report.findings[0].advice.contains("IBV_ACCESS_REMOTE_"));
}

#[test]
fn receives_that_are_missing_are_no_loss() {
    let mut story = Story::default();
    story.sends(0..3);
    story.answer(0, Syndrome::RnrNak { timer: 14 });
    story.wait(Duration::from_millis(2));
    story.sends(0..3);
    story.ack(2);
    let report = story.end();
    let (connection, sent) = only(&report);
    assert_eq!((sent.went_back.after_rnr_nak, sent.went_back.after_silence), (1, 0));
    assert_eq!(connection.sent[1].longest_rnr_wait_ns, 1_280_000);
    let [finding] = &report.findings[..] else { panic!("{report}") };
    assert!(finding.what.contains("once there was no receive"), "{finding:?}");
}

#[test]
fn two_connections_of_the_same_hosts_are_told_apart_by_their_numbers() {
    let mut story = Story::default();
    let other = |place: u32| {
        let mut headers = send(place + 1000);
        headers.bth.dest_qp = Qpn::new(0x44);
        headers
    };
    story.sends(0..3);
    for place in 0..3 {
        story.packet(A, other(place), 8);
    }
    story.packet(B, response(0x33, 1002, Syndrome::ACK), 0);
    story.ack(2);
    let report = story.end();
    let mut pairs: Vec<_> =
        report.connections.iter().map(|one| one.ends.map(|end| end.qpn.unwrap_or(0))).collect();
    pairs.sort_unstable();
    assert_eq!(pairs, [[AT_A, AT_B], [0x33, 0x44]]);
    assert!(report.findings.is_empty(), "{report}");
}

#[test]
fn a_wrong_icrc_is_as_good_as_a_loss() {
    let mut story = Story::default();
    story.sends([0]);
    let mut changed = frame(A, send(1), 8, 9);
    *changed.last_mut().unwrap() ^= 1;
    story.frame(&changed);
    story.sends([2]);
    let report = story.end();
    let (_, sent) = only(&report);
    assert_eq!((sent.bad_icrc, sent.requests, sent.never_seen), (1, 2, 1));
    assert!(report.findings[0].is_serious && report.findings[0].what.contains("wrong ICRC"));
}

#[test]
fn a_flood_of_connections_takes_bounded_memory() {
    let mut story = Story::default();
    for number in 0..70_000 {
        let mut headers = send(0);
        headers.bth.dest_qp = Qpn::new(number);
        story.packet_with(A, headers, 0, 0);
    }
    let report = story.end();
    assert_eq!(report.connections.len(), 65_536);
    assert_eq!(report.capture.of_further_connections, 70_000 - 65_536);
}

/// Of a packet, as a page has it: title and bytes in hexadecimal, and the names of the fields.
fn shown(page: &Page, at: usize) -> (&str, &str, Vec<&str>) {
    let [block] = &page.steps[at].blocks[..] else { panic!("{:?}", page.steps[at]) };
    let names = block.fields.iter().map(|field| field.name.as_str()).collect();
    (&block.title, &block.hex, names)
}

#[test]
fn what_was_not_captured_is_not_shown_as_zeros() {
    const HEADERS: usize = 14 + 20 + 8 + 12;
    let mut story = Story { explainer: Explainer::telling(), ..Story::default() };
    let mut bytes = frame(A, send(0), 16, 1);
    bytes[HEADERS..HEADERS + 16].fill(0xab);
    // The headers and 4 bytes of 16; all but the ICRC; the headers alone.
    for captured in [HEADERS + 4, HEADERS + 16, HEADERS] {
        story.cut_frame(&bytes, captured);
    }
    // Not even the headers: neither their opcode is known, nor the length of what is written.
    let mut write = request(Opcode::RcWriteOnly, 3);
    write.reth = Some(Reth { va: 0x1000, rkey: RKey(7), dma_len: 16 });
    let write = frame(A, write, 16, 2);
    for captured in [HEADERS - 12, HEADERS - 1, HEADERS + 15] {
        story.cut_frame(&write, captured);
    }
    let (report, page) = story.explainer.tell(false, "cut");
    assert_eq!((report.capture.roce_packets, report.capture.cut_packets), (6, 6));
    let cut = "RoCEv2: the headers were not captured".to_owned();
    assert_eq!(report.capture.refused, [(cut, 3)]);
    assert_eq!(page.steps.len(), 3);
    for (at, payload) in [(0, "abababab"), (1, &*"ab".repeat(16)), (2, "")] {
        let (title, hex, names) = shown(&page, at);
        assert_eq!(&hex[24..], payload, "{title}");
        assert!(!names.contains(&"ICRC") && title.contains("16 bytes of payload"), "{title}");
        assert_eq!(names.contains(&"payload"), !payload.is_empty());
    }
}

#[test]
fn what_a_capture_says_of_a_packet_is_on_its_page() {
    let mut story = Story { explainer: Explainer::telling(), ..Story::default() };
    // Behind those that are there in any case.
    for place in 0..600 {
        story.packet(A, send(place), 8);
    }
    let bytes = frame(A, send(600), 8, 9_999);
    let nasty = "</script><img src=x onerror=alert(1)>";
    for comment in ["message 0x000011/5; fault 1: drop; never reached the wire", nasty] {
        story.commented_frame((&bytes, bytes.len()), comment);
        story.now += Duration::from_millis(20);
    }
    let (_, page) = story.explainer.tell(false, "commented");
    let of = |text: &str| page.steps.iter().find(|step| step.text.iter().any(|said| said == text));
    let lost = of("message 0x000011/5; fault 1: drop; never reached the wire").unwrap();
    assert_eq!(lost.reason.as_deref(), Some("fault 1: drop"));
    assert_eq!(lost.flight.as_ref().unwrap().fate.as_deref(), Some("lost"));
    assert!(of(nasty).is_some());
    let html = rnic_explain::html(&page);
    assert_eq!(html.matches("</script>").count(), 2, "the data's and the program's");
    assert!(!html.contains("<img"), "a comment is markup");
}
