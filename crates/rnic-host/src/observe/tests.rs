mod claims;

use super::comments::Comments;
use super::story::Story;
use super::*;
use rnic_abi::control::MAX_MESSAGE;
use rnic_abi::os::Connection;
use rnic_abi::verbs::WrOpcode;
use rnic_core::event::{Disturbance, DropReason, NakReason, PacketInfo, RewindCause, SCHEMA};
use rnic_core::mr::{BindFault, KeyFault};
use rnic_core::qpn::SHARD_SHIFT;
use roce_wire::{Flow, FrameHeader, MacAddr, Opcode, Psn, Qpn};
use std::fs;
use std::path::Path;
use std::time::Duration;

const ALL: Wants = Wants { frames: true, events: true };
const QPN: Qpn = Qpn::new(0x11);
const PEER: Qpn = Qpn::new(0x22);

fn packet(opcode: Opcode, dest_qpn: Qpn, psn: u32) -> PacketInfo {
    PacketInfo { opcode, dest_qpn, psn: Psn::new(psn), ack_req: false, payload: 0, aeth: None }
}

fn frame(way: Way, info: &PacketInfo) -> Captured {
    let address = "10.0.0.1".parse().unwrap();
    let mac = MacAddr::default();
    let flow = Flow::new(address, address, 9);
    let header = FrameHeader { dst_mac: mac, src_mac: mac, vlan: None, flow };
    let mut datagram = [0; 32];
    datagram[0] = info.opcode.code();
    datagram[5..8].copy_from_slice(&info.dest_qpn.value().to_be_bytes()[1..]);
    datagram[9..12].copy_from_slice(&info.psn.value().to_be_bytes()[1..]);
    let mut frame = vec![0; header.len() + datagram.len()];
    let at = header.emit(0, datagram.len(), &mut frame);
    frame[at..].copy_from_slice(&datagram);
    Captured { at: SystemTime::UNIX_EPOCH, way, frame }
}

fn fetched(message: u32, first: u32, last: u32) -> Event {
    Event::WqeFetched {
        qpn: QPN,
        message,
        operation: WrOpcode::Write,
        wr_id: 5,
        length: 64,
        first_psn: Psn::new(first),
        last_psn: Psn::new(last),
        peer_qpn: Some(PEER),
    }
}

fn record(event: Event) -> Record {
    Record::new(SystemTime::UNIX_EPOCH, &event)
}

fn told(told: Told) -> Observation {
    Observation { shard: 0, lost: Lost::default(), told }
}

#[test]
fn what_a_watcher_does_not_take_is_counted_and_slows_nothing() {
    let (watcher, feed) = watch(ALL);
    let mut watchers = Watchers::default();
    watchers.add(watcher);
    let info = packet(Opcode::RcWriteOnly, PEER, 1);
    for _ in 0..ITEMS {
        watchers.event(Event::HandedOver { packet: info });
    }
    for _ in 0..7 {
        watchers.frame(&frame(Way::Sent, &info));
        watchers.event(Event::HandedOver { packet: info });
    }
    watchers.turn_ends();
    assert_eq!(feed.items.len(), ITEMS);
    assert_eq!(feed.losses.take(0), Lost { frames: 7, events: 7 });
    drop(feed);
    watchers.turn_ends();
    assert!(watchers.is_empty(), "one that is gone is forgotten");
}

#[test]
fn one_that_is_gone_is_forgotten_when_another_comes() {
    let mut watchers = Watchers::default();
    for _ in 0..3 {
        let (watcher, _feed) = watch(ALL);
        watchers.add(watcher);
        assert_eq!(watchers.all.len(), 1);
    }
}

#[test]
fn each_gets_what_it_wants() {
    let (events, of_events) = watch(Wants { frames: false, events: true });
    let (frames, of_frames) = watch(Wants { frames: true, events: false });
    let mut watchers = Watchers::default();
    watchers.add(events);
    watchers.add(frames);
    let info = packet(Opcode::RcWriteOnly, PEER, 1);
    watchers.frame(&frame(Way::Sent, &info));
    watchers.turn_ends();
    assert_eq!((of_events.items.len(), of_frames.items.len()), (0, 2));
    watchers.event(Event::HandedOver { packet: info });
    watchers.turn_ends();
    assert_eq!((of_events.items.len(), of_frames.items.len()), (2, 2));
}

#[test]
fn what_another_process_sees_is_passed_on_and_its_losses_are_counted() {
    let (here, there) = Connection::pair().unwrap();
    let (theirs, their_feed) = watch(ALL);
    let (watcher, feed) = watch(ALL);
    let watcher = watcher.of_shard(3);
    let exporter = std::thread::spawn(move || export(&their_feed, &there));
    let importer = std::thread::spawn({
        let watcher = watcher.clone();
        move || import(&watcher, &here)
    });
    theirs.count_lost(0, 7);
    let own = Qpn::new(3 << SHARD_SHIFT | 0x11);
    let info = packet(Opcode::RcWriteOnly, own, 1);
    let acked = Event::Acked { qpn: own, psn: Psn::new(1) };
    let at = SystemTime::now();
    theirs.put(What::Frame(frame(Way::Received, &info)));
    theirs.put(What::Event(at, acked));
    let take = || feed.items.recv_timeout(Duration::from_secs(5)).unwrap();
    let first = take();
    assert!(first.shard == 3 && matches!(first.what, What::Frame(_)));
    assert_eq!(first.lost, Lost { frames: 7, events: 0 });
    let second = take();
    assert!(matches!(second.what, What::Record(found) if found == Record::new(at, &acked)));
    assert!(second.lost.is_none());
    drop(feed);
    // Both end, and with them what they hold.
    importer.join().unwrap();
    exporter.join().unwrap();
    assert!(theirs.is_over());
}

#[test]
fn a_stream_is_read_as_it_was_written() {
    let (watcher, feed) = watch(ALL);
    let info = packet(Opcode::RcWriteOnly, PEER, 1);
    watcher.put(What::Frame(frame(Way::Unsent, &info)));
    watcher.put(What::Event(SystemTime::UNIX_EPOCH, fetched(0, 1, 1)));
    watcher.put(What::Turn);
    drop(watcher);
    let mut bytes = Vec::new();
    write(&feed, &AtomicBool::new(false), &mut bytes).unwrap();
    let mut from = &bytes[..];
    let wanted =
        [Told::Frame(frame(Way::Unsent, &info)), Told::Event(record(fetched(0, 1, 1))), Told::Turn];
    for wanted in wanted {
        assert_eq!(read(&mut from).unwrap().unwrap().told, wanted);
    }
    assert_eq!(read(&mut from).unwrap(), None);
    assert!(read(&mut &[0xff; 8][..]).is_err());
    assert!(read(&mut &[2, 0, 0, 0, 0xff, 0xff][..]).is_err());
}

#[test]
fn events_of_both_sides_are_about_one_message() {
    let mut story = Story::default();
    let id = |story: &mut Story, event| story.note(&record(event)).map(|id| id.to_string());
    assert_eq!(id(&mut story, fetched(5, 0xff_fffe, 1)).as_deref(), Some("0x000011/5"));
    id(&mut story, fetched(6, 2, 2));
    let request = packet(Opcode::RcWriteMiddle, PEER, 0xff_ffff);
    let answer = packet(Opcode::RcAck, QPN, 1);
    for (event, message) in [
        (Event::Received { qpn: PEER, packet: request }, Some("0x000011/5")),
        (
            Event::Dropped { reason: DropReason::Duplicate, packet: Some(request) },
            Some("0x000011/5"),
        ),
        (Event::Placed { qpn: PEER, psn: Psn::new(2), bytes: 1 }, Some("0x000011/6")),
        (Event::Received { qpn: QPN, packet: answer }, Some("0x000011/5")),
        (Event::Acked { qpn: QPN, psn: Psn::new(1) }, Some("0x000011/5")),
        (Event::Acked { qpn: QPN, psn: Psn::new(3) }, None),
        (Event::CqOverflow { cq: 1 }, None),
    ] {
        assert_eq!(id(&mut story, event).as_deref(), message, "{event:?}");
    }
    let (psn, cause) = (Psn::new(2), RewindCause::Timeout);
    id(&mut story, Event::Rewound { qpn: QPN, psn, cause });
    assert_eq!(story.cause(QPN.value()), Some("timeout"));
}

#[test]
fn a_frame_says_what_became_of_it() {
    let mut comments = Comments::default();
    let mut turn = |all: Vec<Told>| {
        let mut found = Vec::new();
        for one in all.into_iter().chain([Told::Turn]) {
            found.extend(comments.take(told(one)));
        }
        found.into_iter().map(|frame| (frame.comment, frame.is_trouble)).collect::<Vec<_>>()
    };
    let event = |event| Told::Event(record(event));
    let info = packet(Opcode::RcWriteOnly, PEER, 7);
    let sent = |retransmit| Event::Sent { qpn: QPN, message: Some(0), packet: info, retransmit };
    let fault = |kind, outgoing| Event::Fault { fault: 2, kind, outgoing, packet: Some(info) };
    // A loss before the wire.
    let found = turn(vec![
        event(fetched(0, 7, 7)),
        event(sent(false)),
        event(fault(Disturbance::Drop, true)),
        Told::Frame(frame(Way::Unsent, &info)),
    ]);
    let text = "message 0x000011/0; fault 2: drop; never reached the wire";
    assert_eq!(found, [(text.to_owned(), true)]);
    // Sent again, and received on the same device: shown when it arrives, twice by a fault.
    let rewound = Event::Rewound { qpn: QPN, psn: Psn::new(7), cause: RewindCause::Timeout };
    assert_eq!(turn(vec![event(rewound), event(sent(true))]), []);
    let received = Event::Received { qpn: PEER, packet: info };
    let dropped = Event::Dropped { reason: DropReason::Duplicate, packet: Some(info) };
    let found = turn(vec![
        Told::Frame(frame(Way::Looped, &info)),
        event(fault(Disturbance::Duplicate, false)),
        event(Event::Released { outgoing: false, packet: Some(info) }),
        event(received),
        event(received),
        event(dropped),
    ]);
    let text = "message 0x000011/0; sent again: timeout; fault 2: duplicate; dropped: duplicate";
    assert_eq!(found, [(text.to_owned(), true)]);
    // Two with the same PSN: each event finds its frame.
    let found = turn(vec![
        Told::Frame(frame(Way::Received, &info)),
        Told::Frame(frame(Way::Received, &info)),
        event(received),
        event(received),
        event(dropped),
    ]);
    let said: Vec<_> = found.iter().map(|(text, _)| text.contains("dropped")).collect();
    assert_eq!(said, [false, true]);
}

#[test]
fn what_another_process_invents_is_not_shown() {
    let mut record = record(fetched(0, 1, 1));
    assert!(record.is_sane());
    record.event = "\u{1b}[2J".to_owned();
    assert!(!record.is_sane());
    record.event = "x".repeat(65);
    assert!(!record.is_sane());
    let frame = |len| Captured { at: SystemTime::UNIX_EPOCH, way: Way::Sent, frame: vec![0; len] };
    assert!(frame(4096 + 96 + 66).is_sane());
    assert!(!frame(MAX_MESSAGE / 2).is_sane());
}

#[test]
fn a_story_has_bounded_memory_and_counts_what_it_forgets() {
    let mut story = Story::default();
    // Each of another requester, as an engine may invent them.
    let rewound = |at| {
        let (psn, cause) = (Psn::new(1), RewindCause::Timeout);
        record(Event::Rewound { qpn: Qpn::new(at), psn, cause })
    };
    let note_all = |story: &mut Story, n, record: &dyn Fn(u32) -> Record| {
        (0..n).for_each(|at| {
            story.note(&record(at));
        });
    };
    note_all(&mut story, 3 << 12, &rewound);
    assert!(story.size()[0] <= 1 << 12, "{:?}", story.size());
    assert_eq!(story.forgotten(), 0, "no message was");
    // The peer of one changes without end.
    let to_another = |at| {
        let mut record = record(fetched(at, at, at));
        record.claim("peer_qpn", at.into());
        record
    };
    note_all(&mut story, 40_000, &to_another);
    let [_, messages, peers] = story.size();
    assert!(messages <= 16 << 10 && peers <= 1 << 12, "{:?}", story.size());
    assert_eq!(story.forgotten(), 40_000 - messages as u64);
    // Another engine's are not touched.
    let of_another = Event::Acked { qpn: Qpn::new(4 << SHARD_SHIFT | 9), psn: Psn::new(1) };
    let mut first = record(fetched(0, 1, 1));
    first.claim("qpn", 4 << SHARD_SHIFT | 9);
    story.note(&first);
    note_all(&mut story, 2 << 12, &rewound);
    assert!(story.note(&record(of_another)).is_some());
    // Those that are over are not missed.
    let mut story = Story::default();
    for at in 0..40_000 {
        story.note(&record(fetched(at, at, at)));
        story.note(&record(Event::Acked { qpn: QPN, psn: Psn::new(at) }));
    }
    assert_eq!(story.forgotten(), 0);
}

#[test]
fn an_engine_tells_of_no_packet_that_could_not_come_to_it() {
    let to = |at: u32| packet(Opcode::RcSendOnly, Qpn::new(at), 1);
    let dropped = |at| record(Event::Dropped { reason: DropReason::NoQp, packet: Some(to(at)) });
    let (own, foreign) = (3 << SHARD_SHIFT | 9, 4 << SHARD_SHIFT | 9);
    assert!([own, 1, 0xff_ffff].into_iter().all(|at| dropped(at).is_of(3)));
    assert!(!dropped(foreign).is_of(3));
    let nothing = record(Event::Dropped { reason: DropReason::Malformed, packet: None });
    assert!(nothing.is_of(3));
    // What it sends is for others.
    let (kind, packet) = (Disturbance::Drop, Some(to(foreign)));
    let fault = |outgoing| record(Event::Fault { fault: 1, kind, outgoing, packet });
    assert!(fault(true).is_of(3) && !fault(false).is_of(3));
}

#[test]
fn comments_have_bounded_memory_and_count_what_they_forget() {
    let mut comments = Comments::default();
    let mut most = 0;
    let mut take = |at: u32, event| {
        comments.take(told(Told::Event(record(event))));
        comments.take(told(Told::Turn));
        if at.is_multiple_of(1000) {
            most = most.max(comments.size());
        }
    };
    for psn in 0..40_000 {
        let info = packet(Opcode::RcWriteOnly, PEER, psn);
        let packet = Some(info);
        take(psn, Event::Released { outgoing: false, packet });
        let (message, retransmit) = (None, false);
        take(psn, Event::Sent { qpn: QPN, message, packet: info, retransmit });
        let reason = NakReason::Sequence;
        take(psn, Event::Nak { qpn: QPN, psn: Psn::new(psn), reason });
    }
    // An engine that says of one packet what it likes.
    let packet = Some(packet(Opcode::RcWriteOnly, PEER, 0));
    for fault in 0..40_000 {
        let (kind, outgoing) = (Disturbance::Mark, true);
        take(fault, Event::Fault { fault, kind, outgoing, packet });
    }
    assert!(most <= 3 * (16 << 10) + 100, "{most}");
    assert!(comments.forgotten() > 40_000, "{}", comments.forgotten());
}

/// A packet that a fault held back on its way out, and that this device receives then.
#[test]
fn a_packet_that_left_late_is_what_arrives() {
    let mut comments = Comments::default();
    let info = packet(Opcode::RcWriteOnly, PEER, 7);
    let event = |event| Told::Event(record(event));
    let (kind, outgoing, packet) = (Disturbance::Delay, true, Some(info));
    let retransmit = false;
    let mut found = Vec::new();
    for one in [
        event(fetched(0, 7, 7)),
        event(Event::Sent { qpn: QPN, message: Some(0), packet: info, retransmit }),
        event(Event::Fault { fault: 2, kind, outgoing, packet }),
        Told::Turn,
        event(Event::Released { outgoing, packet }),
        Told::Turn,
        Told::Frame(frame(Way::Looped, &info)),
        event(Event::Dropped { reason: DropReason::NoQp, packet }),
        Told::Turn,
    ] {
        found.extend(comments.take(told(one)));
    }
    let said: Vec<_> = found.iter().map(|frame| &*frame.comment).collect();
    assert_eq!(said, ["message 0x000011/0; fault 2: delay; dropped: no_qp"]);
}

/// The tables of docs/observe.md, from the code.
fn tables() -> Vec<String> {
    let mut all: Vec<String> = Event::schema()
        .into_iter()
        .map(|event| {
            let mut text = format!("#### `{}`\n\n{}\n\n", event.name, event.meaning);
            text += "| field | meaning |\n|---|---|\n";
            for (name, meaning) in event.fields {
                text += &format!("| `{name}` | {meaning} |\n");
            }
            text
        })
        .collect();
    let reasons = [
        ("Reasons of `dropped`", DropReason::meanings()),
        ("Reasons of `nak`", NakReason::meanings()),
        ("What a key does not allow", KeyFault::meanings()),
        ("Reasons of `bind_refused`", BindFault::meanings()),
        ("Causes of `rewound`", RewindCause::meanings()),
        ("Kinds of `fault`", Disturbance::meanings()),
    ];
    all.extend(reasons.into_iter().map(|(title, meanings)| {
        let mut text = format!("#### {title}\n\n| name | meaning |\n|---|---|\n");
        for (name, meaning) in meanings {
            text += &format!("| `{name}` | {meaning} |\n");
        }
        text
    }));
    all
}

#[test]
fn the_document_says_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/observe.md");
    let text = fs::read_to_string(path).unwrap();
    for table in tables() {
        assert!(text.contains(&table), "docs/observe.md does not have:\n{table}");
    }
    let titles = text.lines().filter(|line| line.starts_with("#### ")).count();
    assert_eq!(titles, tables().len(), "docs/observe.md explains what the code does not have");
    assert!(text.contains(&format!("The schema's version is {SCHEMA}.")));
}
