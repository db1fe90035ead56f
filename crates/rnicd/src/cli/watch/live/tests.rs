use super::super::script::{PEER, QPN, fetched, info, lists, record, request};
use super::*;
use rnic_core::Event;
use rnic_core::event::{Disturbance, PacketInfo, RewindCause};
use rnic_host::observe::{Captured, Lost, Way};
use roce_wire::{Flow, FrameHeader, MacAddr};
use std::time::{Duration, SystemTime};

fn told(told: Told) -> Observation {
    Observation { shard: 0, lost: Lost::default(), told }
}

fn event(at_ns: u64, event: &Event) -> Observation {
    told(Told::Event(record(at_ns, event)))
}

fn frame(at_ns: u64, way: Way, packet: &PacketInfo, to: &str) -> Observation {
    let flow = Flow::new("10.0.0.1".parse().unwrap(), to.parse().unwrap(), 9);
    let mac = MacAddr::default();
    let header = FrameHeader { dst_mac: mac, src_mac: mac, vlan: None, flow };
    let mut datagram = [0; 32];
    datagram[0] = packet.opcode.code();
    datagram[5..8].copy_from_slice(&packet.dest_qpn.value().to_be_bytes()[1..]);
    datagram[9..12].copy_from_slice(&packet.psn.value().to_be_bytes()[1..]);
    let mut frame = vec![0; header.len() + datagram.len()];
    let at = header.emit(0, datagram.len(), &mut frame);
    frame[at..].copy_from_slice(&datagram);
    let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(at_ns);
    told(Told::Frame(Captured { at, way, frame }))
}

fn packet(live: &mut Live, at_ns: u64, psn: u32, to: &str) {
    live.note(event(at_ns, &request(0, psn, false)), at_ns);
    live.note(frame(at_ns, Way::Sent, &info(PEER, psn), to), at_ns);
    live.note(told(Told::Turn), at_ns);
}

#[test]
fn a_loss_and_its_repetition_are_steps_in_their_order() {
    let mut live = Live::new("rnic0", 1000);
    live.note(event(2000, &fetched(0, 1, 2)), 6);
    packet(&mut live, 2000, 1, "10.0.0.2");
    live.note(event(3000, &request(0, 2, false)), 6);
    let fault = Event::Fault {
        fault: 7,
        kind: Disturbance::Drop,
        outgoing: true,
        packet: Some(info(PEER, 2)),
    };
    live.note(event(3000, &fault), 6);
    live.note(frame(3001, Way::Unsent, &info(PEER, 2), "10.0.0.2"), 6);
    live.note(told(Told::Turn), 6);
    let psn = Psn::new(2);
    live.note(event(4000, &Event::Rewound { qpn: QPN, psn, cause: RewindCause::Timeout }), 6);
    live.note(event(4001, &request(0, 2, true)), 6);
    live.note(frame(4002, Way::Sent, &info(PEER, 2), "10.0.0.2"), 6);
    live.note(told(Told::Turn), 6);
    let news = live.news(0);
    let fates: Vec<_> = news
        .steps
        .iter()
        .map(|step| (step.at, step.flight.as_ref().and_then(|f| f.fate.as_deref())))
        .collect();
    assert_eq!(fates, [(1000, None), (2001, Some("lost")), (3000, None), (3002, None)]);
    assert_eq!(news.steps[2].title, "goes back to psn 0x000002: timeout");
    assert_eq!(news.steps[3].reason.as_deref(), Some("sent again: timeout"));
    let names: Vec<_> = news.hosts.iter().map(|host| &*host.name).collect();
    assert_eq!(names, ["rnic0", "10.0.0.2"]);
    assert_eq!(news.steps[0].qp.as_deref(), Some("0x000011"));
}

#[test]
fn a_page_gets_what_it_lacks_and_is_told_what_to_forget() {
    let mut live = Live::new("rnic0", 0);
    for n in 0..2000 {
        packet(&mut live, u64::from(n) * WINDOW_NS, 2 * n, "10.0.0.2");
    }
    assert_eq!((live.news(0).first, live.news(0).steps.len()), (1400, MOST_STEPS));
    let news = live.news(1990);
    assert_eq!((news.from, news.steps.len()), (1990, 10));
    assert_eq!(live.news(2000).steps.len(), 0);
    assert_eq!(live.news(u64::MAX).steps.len(), MOST_STEPS, "of another server");
}

#[test]
fn what_comes_at_once_is_left_out_and_counted_but_for_troubles() {
    let mut live = Live::new("rnic0", 0);
    for n in 0..100 {
        packet(&mut live, 5, 2 * n, "10.0.0.2");
    }
    assert_eq!((live.news(0).steps.len(), live.left_out()), (30, 70));
    let psn = Psn::new(2);
    live.note(event(6, &Event::Rewound { qpn: QPN, psn, cause: RewindCause::Timeout }), 6);
    live.note(told(Told::Turn), 6);
    assert_eq!((live.news(0).steps.len(), live.left_out()), (31, 70));
}

#[test]
fn lanes_are_few_however_many_peers_there_are() {
    let mut live = Live::new("rnic0", 0);
    for n in 0..3000_u32 {
        let to = format!("10.0.{}.{}", n / 256 % 256, n % 256);
        packet(&mut live, u64::from(n) * WINDOW_NS, n, &to);
    }
    let news = live.news(0);
    assert_eq!(news.hosts.len(), 6);
    let to = |step: &Step| step.flight.as_ref().map_or(0, |flight| flight.to);
    assert!(news.steps.iter().all(|step| to(step) < 6));
}

#[test]
fn queues_have_curves_while_their_queue_pair_is_there() {
    let mut live = Live::new("rnic0", 0);
    for n in 0..500 {
        live.update(&lists(n * 400_000_000, n));
    }
    let news = live.news(0);
    assert_eq!(news.series.len(), 6);
    assert!(news.series.iter().all(|series| series.points.len() == MOST_POINTS));
    assert_eq!(news.begin, 350 * 400_000_000);
    let mut none = lists(500 * 400_000_000, 0);
    none.qps.clear();
    live.update(&none);
    assert!(live.news(0).series.is_empty());
}

#[test]
fn times_that_an_engine_invents_buy_no_room() {
    let mut live = Live::new("rnic0", 0);
    for n in 0..100 {
        let at_ns = u64::from(n % 2) * 10 * WINDOW_NS;
        let all = [frame(at_ns, Way::Sent, &info(PEER, n), "10.0.0.2"), told(Told::Turn)];
        all.into_iter().for_each(|one| live.note(Observation { shard: 4, ..one }, 5));
    }
    assert_eq!((live.news(0).steps.len(), live.left_out()), (30, 70));
    packet(&mut live, 5, 1, "10.0.0.2");
    assert_eq!(live.news(0).steps.len(), 31, "of another engine");
}

#[test]
fn an_engine_without_half_turns_leaves_room_for_the_events_of_others() {
    let mut live = Live::new("rnic0", 0);
    let rewound = Event::Rewound { qpn: QPN, psn: Psn::new(2), cause: RewindCause::Timeout };
    for _ in 0..2000 {
        live.note(Observation { shard: 4, ..event(6, &rewound) }, 6);
    }
    live.note(event(6, &rewound), 6);
    live.note(told(Told::Turn), 6);
    assert_eq!((live.news(0).steps.len(), live.left_out()), (1, 2000 - MOST_EVENTS as u64));
}

#[test]
fn the_two_ends_of_a_packet_have_two_lanes() {
    let (mut lanes, steps) = (Lanes::new("rnic0"), VecDeque::new());
    for qpn in 0..4 {
        lanes.of(lanes::End::Qp(qpn), None, &steps);
    }
    let from = lanes.of(lanes::End::Qp(10), None, &steps);
    let to = lanes.of(lanes::End::Qp(11), Some(from), &steps);
    assert_ne!(from, to);
}

#[test]
fn curves_begin_anew_where_the_clock_is_set_back() {
    let mut live = Live::new("rnic0", 0);
    live.update(&lists(50_000_000_000, 1));
    live.update(&lists(1_000_000_000, 2));
    assert!(live.news(0).series.iter().all(|series| series.points.len() == 1));
}
