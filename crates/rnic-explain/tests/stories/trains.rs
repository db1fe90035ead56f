//! Packets that a kernel had joined where they were captured.

use super::*;

/// Bytes of one datagram of the trains here: headers, payload and ICRC.
const SEGMENT: usize = 12 + 1024 + 4;

/// SENDs of a packet each, joined as the loopback interface of Linux shows them: one IP packet,
/// whose datagrams have the ICRC that fits their number once they are taken apart.
fn train(places: std::ops::Range<u32>, (src, dst): (IpAddr, IpAddr)) -> Vec<u8> {
    let flow = Flow { src, dst, ..flow(A) };
    let mut datagrams = Vec::new();
    for (ip_id, place) in (0..).zip(places) {
        let headers = send(place);
        let mut bytes = vec![0; SEGMENT];
        headers.emit(&mut bytes);
        headers.write_pad_and_icrc(&flow, ip_id, &mut bytes);
        datagrams.extend(bytes);
    }
    let mac = MacAddr([0; 6]);
    let header = FrameHeader { dst_mac: mac, src_mac: mac, vlan: None, flow };
    let mut frame = vec![0; header.len() + datagrams.len()];
    let at = header.emit(0, datagrams.len(), &mut frame);
    frame[at..].copy_from_slice(&datagrams);
    frame
}

#[test]
fn a_train_is_as_many_packets_as_it_has() {
    let mut story = Story { explainer: Explainer::telling(), ..Story::default() };
    story.frame(&train(0..20, (A, B)));
    story.ack(19);
    story.frame(&train(20..40, (A, B)));
    story.ack(39);
    let (report, page) = story.explainer.tell(false, "trains");
    let (_, sent) = only(&report);
    assert_eq!((sent.requests, sent.messages, sent.request_bytes), (40, 40, 40 * 1024));
    assert_eq!((sent.bad_icrc, sent.repeated, sent.never_seen), (0, 0, 0));
    let Capture { packets, roce_packets, trains, cut_trains, .. } = report.capture;
    assert_eq!((packets, roce_packets, trains, cut_trains), (42, 42, 2, 0));
    assert!(report.findings.is_empty(), "{report}");
    assert!(report.to_string().contains("2 trains of several packets"), "{report}");
    // The page has the number that Wireshark has, too.
    assert!(shown(&page, 1).0.starts_with("packet 1 (2 of 20)"), "{}", shown(&page, 1).0);
    assert!(shown(&page, 20).0.starts_with("packet 2,"), "{}", shown(&page, 20).0);
}

/// IPv6 has no identification, and a kernel that joins what it received keeps that of the first.
#[test]
fn a_train_is_taken_apart_whatever_its_other_datagrams_were_numbered() {
    let ends = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
    let mut story = Story::default();
    story.frame(&train(0..20, ends));
    let report = story.end();
    assert_eq!((only(&report).1.requests, only(&report).1.bad_icrc), (20, 0));

    let mut joined = train(0..3, (A, B));
    let at = joined.len() - SEGMENT;
    send(2).write_pad_and_icrc(&flow(A), 4711, &mut joined[at..]);
    let mut story = Story::default();
    story.frame(&joined);
    let report = story.end();
    assert_eq!((only(&report).1.requests, only(&report).1.bad_icrc), (3, 0));
}

#[test]
fn a_datagram_of_a_train_that_is_damaged_damages_no_other() {
    let mut joined = train(0..20, (A, B));
    let at = joined.len() - SEGMENT / 2;
    joined[at] ^= 1;
    let mut story = Story::default();
    story.frame(&joined);
    let report = story.end();
    assert_eq!((only(&report).1.requests, only(&report).1.bad_icrc), (19, 1));
}

#[test]
fn a_train_without_its_end_is_told_and_makes_no_losses() {
    let mut story = Story::default();
    for begin in [0, 20, 40] {
        story.cut_frame(&train(begin..begin + 20, (A, B)), 128);
        story.ack(begin + 19);
    }
    let report = story.end();
    let (_, sent) = only(&report);
    assert_eq!((sent.requests, sent.repeated, sent.never_seen, sent.mtu), (3, 0, 0, None));
    assert_eq!((report.capture.trains, report.capture.cut_trains), (0, 3));
    let [finding] = &report.findings[..] else { panic!("{report}") };
    assert!(finding.what.starts_with("3 packets are trains"), "{finding:?}");
    assert!(!finding.is_serious && finding.advice.contains("tcpdump -s 0"), "{finding:?}");
}

/// A READ takes the numbers of its response.
#[test]
fn a_train_of_reads_without_its_end_makes_no_losses() {
    let mut story = Story::default();
    for begin in [0, 640] {
        let mut headers = request(Opcode::RcReadRequest, begin);
        headers.reth = Some(Reth { va: 0x1000, rkey: RKey(7), dma_len: 65_536 });
        let bytes = frame(A, headers, 9 * 32, 1);
        story.cut_frame(&bytes, 100);
    }
    let report = story.end();
    let (_, sent) = only(&report);
    assert_eq!((report.capture.cut_trains, sent.never_seen, sent.request_bytes), (2, 0, 0));
}

#[test]
fn a_packet_without_its_end_is_no_train() {
    let mut write = request(Opcode::RcWriteOnly, 1);
    write.reth = Some(Reth { va: 0x1000, rkey: RKey(7), dma_len: 4096 });
    let mut story = Story::default();
    for bytes in [
        frame(A, send(0), 4096, 1),
        frame(A, write, 4096, 2),
        frame(A, request(Opcode::RcSendFirst, 2), 2048, 3),
        frame(A, request(Opcode::RcSendLast, 3), 3, 4),
    ] {
        story.cut_frame(&bytes, bytes.len().min(100) - 2);
    }
    story.ack(3);
    let report = story.end();
    assert_eq!((report.capture.cut_packets, report.capture.cut_trains), (4, 0));
    assert!(report.findings.is_empty(), "{report}");
}
