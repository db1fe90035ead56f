//! Captures of real implementations, with what is known of them.

use rnic_explain::{Report, explain, tell};
use roce_wire::{Datagram, Frame, Opcode, Transport};
use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../roce-wire/tests/vectors")
}

fn report(name: &str) -> Report {
    explain(File::open(folder().join(name)).unwrap(), |_| {}).unwrap()
}

/// What was found in a capture, in one line each.
fn findings(name: &str) -> Vec<String> {
    report(name).findings.into_iter().map(|finding| finding.what).collect()
}

fn finding(name: &str, text: &str) {
    let found = findings(name);
    assert!(found.iter().any(|what| what.contains(text)), "{name}: {found:#?}");
}

#[test]
fn connections_of_rxe_without_faults_are_right() {
    for name in ["rc_write_mtu1024", "rc_write_mtu256", "rc_write_mtu4096", "rc_sendinv"] {
        assert_eq!(findings(&format!("rxe/{name}.pcap")), [""; 0], "{name}");
    }
    for (name, mtu) in [("rc_write_mtu256", 256), ("rc_read_mtu512", 512), ("rc_mix", 1024)] {
        let report = report(&format!("rxe/{name}.pcap"));
        let [connection] = &report.connections[..] else { panic!("{report}") };
        assert_eq!(connection.sent[0].mtu.or(connection.sent[1].mtu), Some(mtu), "{name}");
    }
}

#[test]
fn mistakes_of_programs_are_named() {
    finding("rxe/rc_badrkey.pcap", "remote access error for RC_WRITE_ONLY");
    finding("rxe/rc_toolong.pcap", "remote operational error for RC_SEND_FIRST");
    finding("rxe/rc_rnr.pcap", "there was no receive at the other end");
    finding("rxe/rc_rnrfail.pcap", "was refused 4 times by an RNR NAK, to the end of the capture");
    finding("rxe/cm_reject_no_listener.pcap", "nothing listens for this service (reason 8)");
}

#[test]
fn the_connection_manager_tells_which_queue_pairs_belong_together() {
    let report = report("rxe/cm_rping.pcap");
    let [conversation] = &report.conversations[..] else { panic!("{report}") };
    assert_eq!(conversation.messages, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let (asking, answering) = conversation.qpns;
    let connection = report.connections.iter().find(|one| one.transport == "RC").unwrap();
    let ends = connection.ends.map(|end| end.qpn);
    assert!(ends == [asking, answering] || ends == [answering, asking], "{report}");
}

#[test]
fn captures_of_cards_are_read() {
    let report = report("huawei-hi1822.pcap");
    assert_eq!(report.capture.roce_packets, 11);
    assert_eq!(report.connections.len(), 1);
    finding("captured.pcap", "congestion notifications that came back: 1");
}

/// Packets of each direction whose PSN was there before, and READs. A READ that is asked for again
/// may begin with a PSN that no request had.
fn seen_again(name: &str) -> (u64, u64) {
    let file = File::open(folder().join(name)).unwrap();
    let mut reader = pcap_file::pcap::PcapReader::new(file).unwrap();
    let (mut seen, mut again, mut reads) = (HashSet::new(), 0, 0);
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let frame = Frame::parse(&packet.data).unwrap();
        let datagram = Datagram::parse(frame.payload()).unwrap();
        if datagram.opcode().is_request() && datagram.opcode().transport() == Transport::Rc {
            let bth = datagram.bth();
            again += u64::from(!seen.insert((frame.flow.dst, bth.dest_qp, bth.psn)));
            reads += u64::from(bth.opcode == Opcode::RcReadRequest);
        }
    }
    (again, reads)
}

#[test]
fn no_packet_that_was_sent_again_is_overlooked() {
    let mut looked_at = 0;
    for entry in fs::read_dir(folder().join("rxe")).unwrap() {
        let name = format!("rxe/{}", entry.unwrap().file_name().to_string_lossy());
        if !name.ends_with(".pcap") {
            continue;
        }
        let report = report(&name);
        let sent = || report.connections.iter().flat_map(|one| &one.sent);
        let again: u64 = sent()
            .map(|sent| sent.repeated - sent.lost_before_capture + sent.copies_made_by_the_network)
            .sum();
        let (seen, reads) = seen_again(&name);
        assert!((seen..=seen + reads).contains(&again), "{name}: {again}, not {seen}: {report}");
        looked_at += 1;
    }
    assert_eq!(looked_at, 35);
}

/// The page of a capture has the packets that the report counts, while there are few.
#[test]
fn the_story_of_a_capture_agrees_with_its_report() {
    for name in ["rxe/loss_rc_write_read.pcap", "rxe/dup_reorder_rc_mix.pcap", "rxe/rc_mix.pcap"] {
        let file = File::open(folder().join(name)).unwrap();
        let (told, story) = tell(file, name, |_| {}).unwrap();
        assert_eq!(told, report(name));
        assert!(story.steps.is_sorted_by_key(|step| step.at));
        let sent = told.connections.iter().flat_map(|connection| &connection.sent);
        let (mut repeated, mut copies) = (0, 0);
        for sent in sent {
            repeated += sent.repeated;
            copies += sent.copies_made_by_the_network;
        }
        if told.capture.roce_packets <= 500 {
            assert_eq!(story.steps.len() as u64, told.capture.roce_packets, "{name}");
            let flights = || story.steps.iter().filter_map(|step| step.flight.as_ref());
            assert_eq!(flights().filter(|flight| flight.again).count() as u64, repeated, "{name}");
            let copied = flights().filter(|flight| flight.fate.as_deref() == Some("duplicated"));
            assert_eq!(copied.count() as u64, copies, "{name}");
        }
        assert!(story.steps.iter().all(|step| step.blocks.len() == 1 && step.qp.is_some()));
    }
}

/// A long capture makes no long page: the beginning is there, and what went wrong behind it.
#[test]
fn of_a_long_capture_only_what_matters_is_kept() {
    let bytes = fs::read(folder().join("rxe/rc_mix.pcap")).unwrap();
    let (head, packets) = bytes.split_at(24);
    let mut long = head.to_vec();
    for _ in 0..200 {
        long.extend_from_slice(packets);
    }
    let (report, story) = tell(&long[..], "long", |_| {}).unwrap();
    assert!(report.capture.roce_packets > 9_000, "{}", report.capture.roce_packets);
    assert!((500..=2010).contains(&story.steps.len()), "{}", story.steps.len());
    let said = story.about.last().unwrap();
    assert!(said.contains("the first ones, and those around what went wrong"), "{said}");
}
