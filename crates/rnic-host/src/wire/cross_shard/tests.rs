//! Frames that go through the memory of two shards.

use super::super::tests::exchange::{self, Seen, Shape};
use super::super::{DeviceWire, tests};
use super::owner::PATIENCE;
use super::*;
use crate::wire::Links;
use rnic_core::ports::{Range, RxIpId, RxTrain, Wire};
use rnic_net::HopTable;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

#[test]
fn capabilities_fit_a_word() {
    for tx_ip_id in [TxIpId::Ours, TxIpId::SegmentIndex] {
        let caps = WireCaps { max_datagram: 65_507, max_segments: 64, max_train: 65_536, tx_ip_id };
        assert_eq!(decode_caps(encode_caps(caps)), caps);
    }
}

fn owner() -> DeviceWire {
    let mut owner = DeviceWire::new("loopback".into(), Links::default(), HopTable::default());
    owner.follow(&tests::change(&[tests::loopback_path().flow.src]));
    owner
}

struct Shard {
    wire: ShardWire,
    receiver: ShardRx,
    stats: Arc<BranchStats>,
}

fn add_shard(owner: &mut DeviceWire, serial: u64) -> Shard {
    let alarm = Arc::new(EventFd::new().unwrap());
    let NewBranch { attachment, branch, receiver, stats } = branch(serial, alarm).unwrap();
    owner.add_shard(branch);
    Shard { wire: ShardWire::attach(attachment).unwrap(), receiver, stats }
}

fn turn(owner: &mut DeviceWire, receiver: &mut ShardRx) {
    let mut trains = Vec::with_capacity(64);
    owner.receive(&mut trains);
    for train in &trains {
        let start = train.range.offset as usize;
        let bytes = &owner.rx(train.arena)[start..start + train.range.len as usize];
        for (k, datagram) in bytes.chunks(train.segment_len as usize).enumerate() {
            let RxIpId::Seen(first) = train.ip_id else { panic!() };
            let ip_id = RxIpId::Seen(first + k as u16);
            receiver.hand_over(&RxTrain { ip_id, ..*train }, datagram);
        }
    }
    receiver.flush();
    owner.release();
    owner.submit();
}

#[test]
fn a_shard_reaches_itself_through_the_owner() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, stats } = add_shard(&mut owner, 1);
    turn(&mut owner, &mut receiver);
    assert_eq!(shard.caps(), owner.caps());
    let path = tests::loopback_path();
    let mut seen = Seen::default();
    let shape = Shape { count: 15, len: 4136, last: 1000 };
    let (mut number, mut sent) = (0, 0);
    while seen.numbers.len() < 60_000 {
        while number < 60_000 && exchange::put(&mut shard, &path, 0, number, shape).is_some() {
            number += shape.count;
            sent += 14 * 4136 + 1000;
        }
        shard.submit();
        for _ in 0..TRAINS.slots {
            turn(&mut owner, &mut receiver);
            exchange::take(&mut shard, &path.flow, &mut seen);
        }
    }
    assert!(seen.numbers.iter().copied().eq(0..number));
    assert_eq!((stats.rx_lost(), stats.tx_refused(), stats.tx_bytes()), (0, 0, sent));
}

#[test]
fn a_side_that_sleeps_is_woken_and_one_that_works_is_not() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, .. } = add_shard(&mut owner, 1);
    let path = tests::loopback_path();
    let readable = |fd: BorrowedFd<'_>| {
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&none)).unwrap() == 1
    };
    let shape = Shape { count: 1, len: 64, last: 64 };
    turn(&mut owner, &mut receiver);
    for _ in 0..3 {
        exchange::put(&mut shard, &path, 0, 0, shape).unwrap();
        shard.submit();
        assert!(!owner.fds().into_iter().any(readable), "it does not sleep");
        assert!(!owner.prepare_sleep(), "a train waits");
        owner.awake(true);
        turn(&mut owner, &mut receiver);
        assert!(owner.prepare_sleep());
        exchange::put(&mut shard, &path, 0, 1, shape).unwrap();
        shard.submit();
        assert!(owner.fds().into_iter().any(readable));
        owner.awake(true);
        assert!(!owner.fds().into_iter().any(readable));
        turn(&mut owner, &mut receiver);
        assert!(!readable(shard.fd()), "it does not sleep");
        let mut seen = Seen::default();
        exchange::take(&mut shard, &path.flow, &mut seen);
        assert!(shard.prepare_sleep());
        turn(&mut owner, &mut receiver);
        assert!(readable(shard.fd()));
        shard.awake();
        exchange::take(&mut shard, &path.flow, &mut seen);
        assert_eq!(seen.numbers, [0, 1]);
    }
}

#[test]
fn a_shard_that_does_not_keep_up_loses_frames_and_is_not_waited_for() {
    let mut owner = owner();
    let Shard { wire: shard, mut receiver, stats } = add_shard(&mut owner, 1);
    let flow = tests::loopback_path().flow;
    let range = Range { offset: 0, len: 64 };
    let (arena, ip_id) = (ArenaId(0), RxIpId::Likely(0));
    let train = RxTrain { flow, arena, range, segment_len: 64, ip_id, is_internal: false };
    for _ in 0..DATAGRAMS.slots + 10 {
        receiver.hand_over(&train, &[0; 64]);
        receiver.flush();
    }
    assert_eq!(stats.rx_lost(), 10);
    drop(shard);
    receiver.hand_over(&train, &[0; 64]);
    receiver.flush();
    assert_eq!(receiver.lost(), 11);
    // Too long for any slot.
    receiver.hand_over(&train, &[0; 5000]);
    assert_eq!(stats.rx_lost(), 12);
}

/// Lets a shard send until nothing of it goes on: what the loopback holds is not taken.
fn fill(owner: &mut DeviceWire, shard: &mut ShardWire, shape: Shape) -> u32 {
    let path = tests::loopback_path();
    let mut number = 0;
    loop {
        let before = number;
        while exchange::put(shard, &path, 0, number, shape).is_some() {
            number += shape.count;
        }
        shard.submit();
        if owner.has_backlog() && shard.has_backlog() && number == before {
            return number;
        }
        owner.receive(&mut Vec::new());
        owner.submit();
    }
}

#[test]
fn what_a_full_link_does_not_take_waits_in_the_ring() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, .. } = add_shard(&mut owner, 1);
    turn(&mut owner, &mut receiver);
    let number = fill(&mut owner, &mut shard, Shape { count: 15, len: 4136, last: 4136 });
    assert!(owner.prepare_sleep(), "for a moment");
    owner.awake(true);
    let (mut seen, mut turns) = (Seen::default(), 0);
    while seen.numbers.len() < number as usize {
        turn(&mut owner, &mut receiver);
        let before = seen.numbers.len();
        exchange::take(&mut shard, &tests::loopback_path().flow, &mut seen);
        turns = if seen.numbers.len() > before { 0 } else { turns + 1 };
        assert!(turns < 1000, "{} of {number} datagrams", seen.numbers.len());
    }
    assert!(seen.numbers.iter().copied().eq(0..number));
    assert!(!owner.has_backlog());
    shard.submit();
    assert!(!shard.has_backlog(), "the ring has room again, and nothing is to be sent");
}

#[test]
fn what_a_link_does_not_take_for_long_is_lost() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, .. } = add_shard(&mut owner, 1);
    turn(&mut owner, &mut receiver);
    fill(&mut owner, &mut shard, Shape { count: 15, len: 4136, last: 4136 });
    drop(shard);
    owner.end_shard(1);
    let before = owner.fds().len();
    std::thread::sleep(PATIENCE);
    (0..TRAINS.slots).for_each(|_| owner.receive(&mut Vec::new()));
    assert_eq!(owner.fds().len(), before - 1, "it is forgotten");
    let lost = owner.counters().iter().find(|(name, _)| *name == "shard_tx_lost").copied();
    assert!(lost.is_some_and(|(_, lost)| lost > 0));
}

/// Its memory may still be another process's.
#[test]
fn an_ended_shard_sends_no_more_than_its_ring_holds() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, .. } = add_shard(&mut owner, 1);
    let one = Shape { count: 1, len: 64, last: 64 };
    turn(&mut owner, &mut receiver);
    let before = owner.fds().len();
    owner.end_shard(1);
    let mut number = 0;
    while owner.fds().len() == before {
        while exchange::put(&mut shard, &tests::loopback_path(), 0, number, one).is_some() {
            number += 1;
        }
        shard.submit();
        turn(&mut owner, &mut receiver);
        assert!(number < 4 * TRAINS.slots as u32, "it goes on");
    }
}

/// The engine of the owner has its share of a wire that further shards fill.
#[test]
fn the_owner_and_shards_send_by_turns() {
    let mut owner = owner();
    let mut shards: Vec<_> = (1..=3).map(|serial| add_shard(&mut owner, serial)).collect();
    let path = tests::loopback_path();
    let whole = Shape { count: 15, len: 4136, last: 4136 };
    let (mut own, mut trains) = (0, Vec::with_capacity(64));
    for _ in 0..1000 {
        for shard in &mut shards[..2] {
            while exchange::put(&mut shard.wire, &path, 0, 0, whole).is_some() {}
            shard.wire.submit();
        }
        // Room for one train more, as a slow link has it.
        trains.clear();
        trains.shrink_to(1);
        owner.receive(&mut trains);
        own += u64::from(exchange::put(&mut owner, &path, 0, 0, whole).is_some());
        owner.submit();
        owner.release();
    }
    let [first, second, _] = [0, 1, 2].map(|nth: usize| shards[nth].stats.tx_bytes());
    let share = first as f64 / second as f64;
    assert!((0.8..1.25).contains(&share), "{first} and {second} bytes");
    assert!(own > 100, "{own} trains of its own");
}

#[test]
fn what_a_shard_sent_before_its_end_leaves_and_then_it_is_forgotten() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, .. } = add_shard(&mut owner, 1);
    let path = tests::loopback_path();
    let shape = Shape { count: 1, len: 64, last: 64 };
    turn(&mut owner, &mut receiver);
    exchange::put(&mut shard, &path, 0, 0, shape).unwrap();
    shard.submit();
    drop(shard);
    owner.end_shard(1);
    let before = owner.fds().len();
    turn(&mut owner, &mut receiver);
    assert_eq!(owner.fds().len(), before - 1);
    assert!(owner.counters().contains(&("shard_tx_trains", 1)));
}

#[test]
fn a_shard_that_wakes_the_owner_for_nothing_is_cut_off() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, stats } = add_shard(&mut owner, 1);
    let honest = add_shard(&mut owner, 2);
    let path = tests::loopback_path();
    let shape = Shape { count: 1, len: 64, last: 64 };
    let sleep = |owner: &mut DeviceWire, receiver: &mut ShardRx| {
        owner.prepare_sleep();
        owner.awake(true);
        turn(owner, receiver);
    };
    // For a train each time it may be as often as it likes, also when the owner was awake by then.
    for number in 0..2000 {
        exchange::put(&mut shard, &path, 0, number, shape).unwrap();
        owner.prepare_sleep();
        shard.submit();
        if number % 2 == 0 {
            turn(&mut owner, &mut receiver);
        }
        sleep(&mut owner, &mut receiver);
        exchange::take(&mut shard, &path.flow, &mut Seen::default());
        assert_eq!(stats.cut_off(), None, "after {number}");
    }
    for _ in 0..1000 {
        shard.owner.wake().unwrap();
        sleep(&mut owner, &mut receiver);
    }
    assert_eq!((stats.cut_off(), honest.stats.cut_off()), (Some(Misuse::WakeUps), None));
    assert!(owner.counters().contains(&("shard_cut_off_wake_ups", 1)));
}

/// Descriptors with a wake-up: the last `close` of one may take as long as its sender likes.
#[test]
fn what_a_shard_sends_with_a_wake_up_does_not_keep_the_owner() {
    let mut owner = owner();
    let Shard { wire: shard, mut receiver, .. } = add_shard(&mut owner, 1);
    let (_listener, address) = testbed::silent_listener();
    let socket = testbed::lingering(address);
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let sockets = [socket.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&sockets)));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(shard.fd(), &[IoSlice::new(b"x")], &mut control, flags);
    crate::discard::start().unwrap();
    crate::discard::discard(socket);
    let began = std::time::Instant::now();
    owner.prepare_sleep();
    owner.awake(true);
    turn(&mut owner, &mut receiver);
    owner.end_shard(1);
    turn(&mut owner, &mut receiver);
    drop(receiver);
    assert!(began.elapsed().as_secs() < 5, "it was kept: {:?}", began.elapsed());
    assert_eq!(sent, Err(rustix::io::Errno::PIPE), "the owner takes nothing there");
}

#[test]
fn a_cancelled_train_is_not_sent() {
    let mut owner = owner();
    let Shard { wire: mut shard, mut receiver, .. } = add_shard(&mut owner, 1);
    let path = tests::loopback_path();
    let shape = Shape { count: 1, len: 64, last: 64 };
    turn(&mut owner, &mut receiver);
    let mut expected = Vec::new();
    for round in 0..3 * TRAINS.slots as u32 {
        exchange::put(&mut shard, &path, 0, 4 * round, shape).unwrap();
        let second = exchange::put(&mut shard, &path, 0, 4 * round + 1, shape).unwrap();
        exchange::put(&mut shard, &path, 0, 4 * round + 2, shape).unwrap();
        shard.cancel_from(&second);
        exchange::put(&mut shard, &path, 0, 4 * round + 3, shape).unwrap();
        shard.submit();
        expected.extend([4 * round, 4 * round + 3]);
        turn(&mut owner, &mut receiver);
        turn(&mut owner, &mut receiver);
        let mut seen = Seen::default();
        exchange::take(&mut shard, &path.flow, &mut seen);
        assert_eq!(seen.numbers, expected.split_off(expected.len() - 2));
    }
}

/// Whatever the lengths of their trains, if these are not very short.
#[test]
fn shards_share_the_wire_by_bytes() {
    let mut owner = owner();
    let mut long = add_shard(&mut owner, 1);
    let mut short = add_shard(&mut owner, 2);
    let path = tests::loopback_path();
    turn(&mut owner, &mut long.receiver);
    let before = [long.stats.tx_bytes(), short.stats.tx_bytes()];
    for _ in 0..2000 {
        let whole = Shape { count: 15, len: 4136, last: 4136 };
        while exchange::put(&mut long.wire, &path, 0, 0, whole).is_some() {}
        long.wire.submit();
        let part = Shape { count: 2, len: 4136, last: 4136 };
        while exchange::put(&mut short.wire, &path, 0, 0, part).is_some() {}
        short.wire.submit();
        turn(&mut owner, &mut long.receiver);
    }
    let [long, short] = [&long, &short].map(|shard| shard.stats.tx_bytes());
    let [long, short] = [long - before[0], short - before[1]];
    let share = long as f64 / short as f64;
    assert!((0.9..1.1).contains(&share), "{long} and {short} bytes");
}

/// Random words all over what a shard may write, while another one works.
#[test]
fn a_shard_that_writes_nonsense_is_cut_off_and_harms_no_other() {
    let path = tests::loopback_path();
    let shape = Shape { count: 3, len: 1000, last: 500 };
    let mut random = fastrand::Rng::with_seed(7);
    let mut cut_off = 0;
    for _ in 0..200 {
        let mut owner = owner();
        let alarm = Arc::new(EventFd::new().unwrap());
        let NewBranch { attachment, branch, mut receiver, stats } =
            branch(1, Arc::clone(&alarm)).unwrap();
        owner.add_shard(branch);
        let mut good = add_shard(&mut owner, 2);
        let [to_read, to_write, socket, woken] = attachment.fds();
        assert!(memory::map(to_read, DATAGRAMS).is_err(), "it can be written to");
        let len = rustix::fs::fstat(to_write).unwrap().st_size as usize / WORD;
        let words = rnic_abi::os::memory::map(to_write, len).unwrap();
        let mut seen = Seen::default();
        for number in 0..50 {
            for _ in 0..random.usize(0..20) {
                // Mostly where indexes and entries are.
                let end = [40, 600, len][random.usize(0..3)];
                let at = random.usize(0..end);
                let value = match random.u8(0..4) {
                    0 => random.u64(0..70),
                    1 => u64::MAX - random.u64(0..70),
                    _ => random.u64(..),
                };
                words.set(at, value);
            }
            if random.u8(0..8) == 0 {
                let _ = send(socket, &[0; 100], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                rustix::io::ioctl_fionbio(woken, random.bool()).unwrap();
            }
            exchange::put(&mut good.wire, &path, 0, 3 * number, shape);
            good.wire.submit();
            let range = Range { offset: 0, len: 64 };
            let (arena, ip_id, flow) = (ArenaId(0), RxIpId::Likely(0), path.flow);
            let train = RxTrain { flow, arena, range, segment_len: 64, ip_id, is_internal: false };
            receiver.hand_over(&train, &[0; 64]);
            receiver.flush();
            owner.prepare_sleep();
            owner.awake(true);
            turn(&mut owner, &mut good.receiver);
            turn(&mut owner, &mut good.receiver);
            seen.numbers.clear();
            exchange::take(&mut good.wire, &path.flow, &mut seen);
            assert!(seen.numbers.ends_with(&[3 * number, 3 * number + 1, 3 * number + 2]));
        }
        assert_eq!(good.stats.cut_off(), None);
        cut_off += u32::from(stats.cut_off() == Some(Misuse::Ring));
    }
    assert!(cut_off > 100, "only {cut_off} of 200 were noticed");
}
