//! Messages of the connection manager, and queue pairs that are connected again.

use super::*;
use roce_wire::mad::MadHeader;
use roce_wire::{Deth, QKey};

const REQ: u16 = 0x10;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

impl Story {
    /// A message of the connection manager: bytes at places of its body.
    fn manager(&mut self, from: IpAddr, attribute: u16, fields: &[(usize, &[u8])]) {
        let mut mad = MadHeader::cm(attribute, 7).to_bytes().to_vec();
        mad.resize(256, 0);
        for (at, bytes) in fields {
            mad[24 + at..][..bytes.len()].copy_from_slice(bytes);
        }
        let mut headers = HeaderRepr::new(Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::ZERO));
        headers.deth = Some(Deth::new(QKey(0x8001_0000), Qpn::GSI));
        self.ip_id += 1;
        let flow = flow(from);
        let mut bytes = frame(from, headers, mad.len(), self.ip_id);
        let at = bytes.len() - mad.len() - 4;
        bytes[at..at + mad.len()].copy_from_slice(&mad);
        let datagram = bytes.len() - mad.len() - 4 - 20;
        headers.write_pad_and_icrc(&flow, self.ip_id, &mut bytes[datagram..]);
        self.frame(&bytes);
    }

    /// A asks with this communication id, for a queue pair.
    fn req(&mut self, id: u8) {
        self.manager(A, REQ, &[(0, &[0, 0, 0, id]), (32, &[0, 0, AT_A as u8])]);
    }

    fn rep(&mut self, id: u8) {
        let own = [0, 0, 1, id];
        self.manager(B, REP, &[(0, &own), (4, &[0, 0, 0, id]), (12, &[0, 0, AT_B as u8])]);
    }
}

fn connections(report: &Report) -> Vec<&Connection> {
    report.connections.iter().filter(|one| one.transport == "RC").collect()
}

#[test]
fn a_queue_pair_that_is_connected_again_begins_a_connection() {
    // Behind what it sent before, before it, and far from it.
    for begin in [200_000, 0xff_0000 - 200_000, 0x7f_0000] {
        let mut story = Story::default();
        story.sends(0..10);
        story.ack(9);
        story.wait(Duration::from_millis(5));
        story.sends(begin..begin + 20);
        story.ack(begin + 19);
        let report = story.end();
        let [later, earlier] = &connections(&report)[..] else { panic!("{report}") };
        assert_eq!((earlier.sent[0].requests, later.sent[0].requests), (10, 20));
        assert!(later.is_anew && !earlier.is_anew && later.ends == earlier.ends, "{report}");
        assert!(report.findings.is_empty(), "{report}");
        assert!(report.to_string().contains(", connected anew"), "{report}");
    }
}

/// Its PSN may be near those of the connection before: the connection manager tells.
#[test]
fn a_connection_that_is_made_again_begins_anew_at_any_psn() {
    let mut story = Story::default();
    for (id, begin) in [(1, 100), (2, 0)] {
        story.req(id);
        story.rep(id);
        // Its answer may be lost: it comes again when data flows.
        story.sends(begin..begin + 5);
        story.rep(id);
        story.sends(begin + 5..begin + 10);
        story.ack(begin + 9);
    }
    let report = story.end();
    let [one, other] = &connections(&report)[..] else { panic!("{report}") };
    assert_eq!((one.sent[0].requests, other.sent[0].requests), (10, 10));
    assert_eq!((one.sent[0].repeated, other.sent[0].repeated), (0, 0), "{report}");
    assert!(report.findings.is_empty(), "{report}");
}

#[test]
fn what_goes_on_or_goes_back_is_the_same_connection() {
    let mut story = Story::default();
    let mut read = request(Opcode::RcReadRequest, 10);
    read.reth = Some(Reth { va: 0x1000, rkey: RKey(7), dma_len: 1 << 30 });
    story.packet(A, request(Opcode::RcSendFirst, 0), 1024);
    story.packet(A, request(Opcode::RcSendLast, 1), 8);
    // A capture that lost much; a long READ, of which all is asked for again.
    story.sends(40_000..40_010);
    read.bth.psn = psn(40_010);
    story.packet(A, read, 0);
    let behind = 40_010 + (1 << 20);
    story.sends([behind]);
    story.wait(Duration::from_millis(70));
    story.packet(A, read, 0);
    // What was damaged may have any PSN.
    let mut damaged = frame(A, send(0x50_0000), 8, 9);
    *damaged.last_mut().unwrap() ^= 1;
    story.frame(&damaged);
    story.sends([behind]);
    let report = story.end();
    assert_eq!(connections(&report).len(), 1, "{report}");
}

#[test]
fn a_refusal_tells_which_end_refused_and_what_to_do() {
    let refused = |from: IpAddr, fields: &[(usize, &[u8])]| {
        let mut story = Story::default();
        story.req(1);
        if from == A {
            story.rep(1);
        }
        story.manager(from, REJ, fields);
        let report = story.end();
        let [finding] = &report.findings[..] else { panic!("{report}") };
        (finding.what.clone(), finding.advice, report.to_string())
    };
    let reason = |reason: u8| [0, reason];
    let (what, advice, _) = refused(B, &[(4, &[0, 0, 0, 1]), (10, &reason(8))]);
    assert!(what.starts_with("10.0.0.2 refused to connect 10.0.0.1 to"), "{what}");
    assert!(advice.contains("Start the server first"), "{advice}");
    let (what, advice, _) = refused(B, &[(4, &[0, 0, 0, 1]), (10, &reason(28))]);
    assert!(what.ends_with("the program refused (reason 28)"), "{what}");
    assert!(advice.contains("rdma_reject") && !advice.contains("Start the server"), "{advice}");
    let ids = [(0, &[0, 0, 0, 1][..]), (4, &[0, 0, 1, 1])];
    let (what, advice, text) = refused(A, &[ids[0], ids[1], (10, &reason(4))]);
    assert!(what.starts_with("10.0.0.1 asked 10.0.0.2 for"), "{what}");
    assert!(
        what.contains("but did not connect: a message of the other end did not come"),
        "{what}"
    );
    assert!(
        advice.contains("in time") && text.contains("given up by the end that asked"),
        "{text}"
    );
}

#[test]
fn datagram_services_that_are_refused_are_not_connected() {
    let mut story = Story::default();
    story.manager(A, SIDR_REQ, &[(0, &[0, 0, 0, 1])]);
    story.manager(B, SIDR_REP, &[(0, &[0, 0, 0, 1]), (4, &[1])]);
    let report = story.end();
    let text = report.to_string();
    assert!(text.contains("refused: nothing listens for this service (status 1)"), "{text}");
    assert!(!text.contains("connected after") && !text.contains("queue pairs 0x"), "{text}");
}

#[test]
fn a_request_that_is_never_answered_is_told() {
    let mut story = Story::default();
    story.req(1);
    assert!(Story::default().end().findings.is_empty());
    for _ in 0..3 {
        story.wait(Duration::from_secs(4));
        story.req(1);
    }
    let report = story.end();
    let [finding] = &report.findings[..] else { panic!("{report}") };
    assert!(finding.is_serious && finding.what.contains("4 times without an answer"), "{report}");
}
