//! What an engine process claims, and what is believed of it.

use super::super::stream::next;
use super::*;

/// Something of another time.
fn dated(mut told: Told, at: SystemTime) -> Told {
    match &mut told {
        Told::Frame(captured) => captured.at = at,
        Told::Event(record) => record.time_ns = record::nanos(at),
        Told::Turn => {}
    }
    told
}

#[test]
fn an_engine_has_no_clock_of_its_own() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let info = packet(Opcode::RcWriteOnly, PEER, 1);
    let all =
        [Told::Frame(frame(Way::Sent, &info)), Told::Event(record(Event::CqOverflow { cq: 1 }))];
    for told in all {
        let told_at = |at| dated(told.clone(), at).believed_at(now);
        for (seconds, wanted) in [(-9, -9), (0, 0), (1, 0), (4_000_000_000, 0), (-999_999, -60)] {
            let at = |seconds: i64| match seconds.is_negative() {
                true => now - Duration::from_secs(seconds.unsigned_abs()),
                false => now + Duration::from_secs(seconds.unsigned_abs()),
            };
            assert_eq!(told_at(at(seconds)), dated(told.clone(), at(wanted)), "{seconds}");
        }
    }
}

/// A queue that two engines fill.
#[test]
fn a_loss_is_of_the_engine_that_lost_and_has_its_place_between_what_it_saw() {
    let (watcher, feed) = watch(ALL);
    let (one, other) = (watcher.clone().of_shard(1), watcher.of_shard(2));
    let event = || What::Record(record(Event::CqOverflow { cq: 1 }));
    (0..ITEMS).for_each(|_| one.put(event()));
    (0..5).for_each(|_| other.put(event()));
    let take = || next(&feed).unwrap().unwrap();
    assert!(take().lost.is_none(), "what is lost later is told later");
    one.put(event());
    for _ in 0..ITEMS {
        let observation = take();
        assert!(observation.shard == 1 && observation.lost.is_none(), "{observation:?}");
    }
    // Nothing of the other one comes behind it.
    let (shard, told) = (2, Told::Turn);
    assert_eq!(take(), Observation { shard, lost: Lost { frames: 0, events: 5 }, told });
    assert_eq!(next(&feed).unwrap(), None);
}

/// Another engine says that its packets are for a queue pair which is not its own.
#[test]
fn an_engine_does_not_take_the_place_of_a_requester_of_another_one() {
    let mut story = Story::default();
    let hostile = |qpn: u32, peer: u32| {
        let mut record = record(fetched(66, 1, 9));
        record.claim("qpn", (qpn << SHARD_SHIFT | 0x66).into());
        record.claim("peer_qpn", peer.into());
        record
    };
    story.note(&record(fetched(5, 1, 1)));
    story.note(&hostile(4, PEER.value()));
    let placed = record(Event::Placed { qpn: PEER, psn: Psn::new(1), bytes: 1 });
    let found = story.note(&placed).map(|id| id.to_string());
    assert_eq!(found.as_deref(), Some("0x000011/5"));
    // Two others contradict each other.
    let far = Qpn::new(7 << SHARD_SHIFT | 0x33);
    let placed = record(Event::Placed { qpn: far, psn: Psn::new(1), bytes: 1 });
    story.note(&hostile(5, far.value()));
    assert!(story.note(&placed).is_some());
    story.note(&hostile(6, far.value()));
    assert_eq!(story.note(&placed), None);
}

/// Each event looks through the frames of its half turn.
#[test]
fn an_engine_that_never_ends_a_half_turn_gathers_little() {
    let mut comments = Comments::default();
    let one = frame(Way::Received, &packet(Opcode::RcWriteOnly, PEER, 1));
    let given = (0..4096).map(|_| comments.take(told(Told::Frame(one.clone()))).len());
    assert_eq!(given.sum::<usize>(), 4096);
}

/// An observation as an engine process sends it.
fn send(socket: &Connection, lost: Lost, told: Told) {
    socket.send_message(&Observation { shard: 9, lost, told }, &[]).unwrap();
}

#[test]
fn an_engine_tells_nothing_of_queue_pairs_of_others() {
    let (here, there) = Connection::pair().unwrap();
    let (watcher, feed) = watch(ALL);
    let importer = std::thread::spawn({
        let watcher = watcher.clone().of_shard(3);
        move || import(&watcher, &here)
    });
    // The upper seven bits are the engine's number.
    let (own, other) = (Qpn::new(3 << SHARD_SHIFT | 0x11), Qpn::new(4 << SHARD_SHIFT | 0x11));
    let sent = |qpn| {
        let (message, retransmit) = (Some(0), false);
        let packet = packet(Opcode::RcWriteOnly, other, 1);
        Told::Event(record(Event::Sent { qpn, message, packet, retransmit }))
    };
    let seen = |way, qpn| Told::Frame(frame(way, &packet(Opcode::RcWriteOnly, qpn, 1)));
    let mut forged = record(Event::Acked { qpn: own, psn: Psn::new(1) });
    forged.pretend("qpn", &format!("{:#x}", other.value()));
    let at = SystemTime::now();
    for told in [
        sent(other),
        sent(Qpn::GSI),
        Told::Event(forged),
        seen(Way::Received, other),
        seen(Way::Looped, other),
        sent(own),
        seen(Way::Sent, other),
        seen(Way::Received, own),
    ] {
        send(&there, Lost::default(), dated(told, at));
    }
    let take = || feed.items.recv_timeout(Duration::from_secs(5)).unwrap();
    let mut lost = Lost::default();
    for wanted in [sent(own), seen(Way::Sent, other), seen(Way::Received, own)] {
        let found = take();
        lost.add(found.lost);
        assert_eq!((found.shard, Told::from(found.what)), (3, dated(wanted, at)));
    }
    assert_eq!(lost, Lost { frames: 2, events: 3 });
    // What it claims to have lost does not hide what is lost, and is not another one's loss.
    for _ in 0..3 {
        send(&there, Lost { frames: u64::MAX, events: u64::MAX }, Told::Turn);
        lost.add(take().lost);
    }
    assert!(lost.frames > 3 && lost.events > 3 && lost.frames < u64::MAX, "{lost:?}");
    drop(there);
    importer.join().unwrap();
}
