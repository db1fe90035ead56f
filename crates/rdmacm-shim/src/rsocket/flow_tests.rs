use super::*;
use crate::rsocket::wire::Order;

const SIZES: Sizes =
    Sizes { receives: 16, sends: 16, receive_bytes: 8192, send_bytes: 8192, mappings: 2 };
const RING: Place = Place { addr: 0x10_0000, rkey: 0x11, len: 8192 };
const TABLE: Place = Place { addr: 0x20_0000, rkey: 0x22, len: 2 };

fn connected() -> Flow {
    let mut flow = Flow::new(SIZES, RING);
    let peer = Connect {
        credits: 16,
        order: Order::Same,
        mappings: 2,
        table: TABLE,
        data: Place { addr: 0x30_0000, rkey: 0x33, len: 4096 },
    };
    flow.meet(peer).unwrap();
    flow
}

fn nothing(_: usize) -> Place {
    Place::default()
}

/// Two honest ends: whatever one sends the other reads, in order, for ever.
#[test]
fn two_ends_pass_any_amount_of_data() {
    let tables = [0x20_0000_u64, 0x40_0000];
    let rings = [0x10_0000_u64, 0x50_0000];
    let mut ends: [Flow; 2] =
        rings.map(|addr| Flow::new(SIZES, Place { addr, rkey: 1, len: SIZES.receive_bytes }));
    let [first, second] =
        [0, 1].map(|end: usize| ends[end].introduce(Place { addr: tables[end], rkey: 2, len: 0 }));
    ends[0].meet(second).unwrap();
    ends[1].meet(first).unwrap();
    let mut entries = [[Place::default(); 2]; 2];
    let mut offset = 0_u64;
    let mut moved = [0_u64; 2];
    for turn in 0..20_000_u32 {
        let from = (turn % 2) as usize;
        let to = 1 - from;
        while let Some(grant) = ends[from].grant() {
            let (message, mut len) = (grant.message, 0);
            if let Some((bytes, at)) = grant.half {
                let index = ((at.addr - tables[to]) / 16) as usize;
                entries[to][index] = Place::from_table(&bytes);
                len = 16;
            }
            let table = entries[to];
            ends[to].received(message, len, |index| table[index]).unwrap();
            ends[from].control_sent();
        }
        let want = 1 + turn % 3000;
        if let Some(out) = ends[from].send(want, 64) {
            let at = out.to.addr - rings[to];
            let (unread, read_at) = ends[to].unread();
            assert_eq!(at % u64::from(SIZES.receive_bytes), u64::from((read_at + unread) % 8192));
            ends[to].received(out.message, out.to.len, nothing).unwrap();
            ends[from].sent(if out.to.len > 64 { out.to.len } else { 0 });
            moved[to] += u64::from(out.to.len);
        }
        offset += u64::from(ends[to].unread().0);
        if turn % 3 != 0 {
            ends[to].read(1 + turn % 5000);
        }
    }
    assert!(offset > 0 && moved.iter().all(|bytes| *bytes > 1_000_000), "{moved:?}");
}

#[test]
fn a_stream_stops_where_the_other_end_has_no_room() {
    let mut flow = connected();
    let first = flow.send(5000, 0).unwrap();
    assert_eq!((first.to.addr, first.to.len, first.from), (0x30_0000, 4096, 0));
    assert!(!flow.can_send());
    let half = Place { addr: 0x30_1000, rkey: 0x33, len: 4096 };
    let asked = |index| {
        assert_eq!(index, 1);
        half
    };
    flow.received(Message::Credits(17), 16, asked).unwrap();
    let next = flow.send(10, 0).unwrap();
    assert_eq!((next.to.addr, next.from), (0x30_1000, 4096));
    flow.sent(4096);
    flow.sent(10);
    assert!(flow.is_quiet());
}

#[test]
fn messages_are_counted_in_both_directions() {
    let mut flow = connected();
    for sent in 0..12 {
        assert!(flow.send(1, 64).is_some(), "{sent}");
    }
    // The send queue is full but for control messages.
    assert!(flow.send(1, 64).is_none());
    for _ in 0..12 {
        flow.sent(0);
    }
    for _ in 12..16 {
        flow.send(1, 64).unwrap();
    }
    assert!(flow.send(1, 64).is_none(), "no credit");
    flow.received(Message::Credits(20), 0, nothing).unwrap();
    assert!(flow.send(1, 64).is_some());
}

/// One with a large ring, whose peer lends so much.
fn lent(len: u32) -> Flow {
    let mut flow = Flow::new(Sizes { send_bytes: 1 << 20, ..SIZES }, RING);
    let data = Place { len, ..RING };
    flow.meet(Connect { credits: 16, table: TABLE, data, ..Connect::default() }).unwrap();
    flow
}

#[test]
fn calls_begin_with_a_small_message_only_where_nothing_is_under_way() {
    let mut flow = lent(1 << 20);
    assert_eq!((flow.first_len(), flow.largest_len()), (2048, 262_144));
    flow.send(100, 0).unwrap();
    assert_eq!(flow.first_len(), 262_144);
    flow.sent(100);
    assert_eq!(flow.first_len(), 2048);
}

#[test]
fn several_messages_fit_into_every_ring() {
    let largest = |len| lent(len).largest_len();
    assert_eq!(largest(u32::MAX), 262_144);
    assert_eq!((largest(524_288), largest(524_286)), (262_144, 262_143));
    assert_eq!(largest(65_536), 32_768);
    // A peer that lends little does not make messages smaller than the first one.
    assert_eq!((largest(4097), largest(4095), largest(1)), (2048, 2048, 2048));
    // The own ring is small.
    assert_eq!((connected().first_len(), connected().largest_len()), (2048, 2048));
    let mut tiny = Flow::new(Sizes { send_bytes: 4096, ..SIZES }, RING);
    tiny.meet(Connect { table: TABLE, data: RING, ..Connect::default() }).unwrap();
    assert_eq!((tiny.first_len(), tiny.largest_len()), (1024, 1024));
}

#[test]
fn a_full_ring_is_filled_again_by_the_piece_not_by_the_byte() {
    let mut flow = Flow::new(SIZES, RING);
    let data = Place { len: 1 << 20, ..RING };
    flow.meet(Connect { credits: 16, table: TABLE, data, ..Connect::default() }).unwrap();
    flow.send(7000, 0).unwrap();
    assert_eq!(flow.send(4000, 0).unwrap().to.len, 1192);
    assert!(!flow.can_send());
    flow.sent(1000);
    assert!(!flow.can_send(), "an eighth of the ring is 1024 bytes");
    flow.sent(24);
    assert_eq!(flow.send(4000, 0).unwrap().to.len, 1024);
}

#[test]
fn credits_return_when_half_are_used_or_half_the_ring_is_read() {
    let mut flow = connected();
    let first = flow.grant().unwrap();
    let (bytes, to) = first.half.unwrap();
    assert_eq!(first.message, Message::Credits(16));
    assert_eq!(Place::from_table(&bytes), Place { addr: 0x10_1000, rkey: 0x11, len: 4096 });
    assert_eq!(to, Place { addr: 0x20_0010, rkey: 0x22, len: 16 });
    flow.control_sent();
    for _ in 0..8 {
        assert_eq!(flow.grant(), None);
        flow.received(Message::Data(1), 1, nothing).unwrap();
        flow.read(1);
    }
    assert_eq!(flow.grant(), Some(Grant { message: Message::Credits(24), half: None }));
}

#[test]
fn what_an_end_claims_beyond_what_it_may_is_a_violation() {
    let check = |message, len| connected().received(message, len, nothing);
    // More than it was lent, than a message can carry, or than it wrote.
    assert_eq!(check(Message::Data(4096), 4096), Ok(()));
    assert_eq!(check(Message::Data(4097), 4097), Err(Violation));
    assert_eq!(check(Message::Data(MAX_DATA), MAX_DATA), Err(Violation));
    assert_eq!(check(Message::Data(100), 0), Err(Violation));
    // A table entry that is empty or cut off.
    assert_eq!(check(Message::Credits(9), 16), Err(Violation));
    assert_eq!(check(Message::Credits(9), 8), Err(Violation));
    // A place that there is not.
    assert_eq!(check(Message::Mapping(1), 24), Ok(()));
    assert_eq!(check(Message::Mapping(2), 24), Err(Violation));
    assert_eq!(check(Message::Unknown, 0), Err(Violation));
}

#[test]
fn messages_beyond_the_credits_are_a_violation() {
    let mut flow = connected();
    for _ in 0..16 {
        flow.received(Message::Data(1), 1, nothing).unwrap();
    }
    assert_eq!(flow.received(Message::Data(1), 1, nothing), Err(Violation));
}

#[test]
fn a_place_that_is_in_use_is_not_overwritten() {
    let mut flow = connected();
    let some = |_| Place { addr: u64::MAX, rkey: 0, len: u32::MAX };
    flow.received(Message::Credits(0), 16, some).unwrap();
    assert_eq!(flow.received(Message::Credits(0), 16, some), Err(Violation));
    // Addresses of the other end wrap as they like: they mean nothing here.
    flow.received(Message::Credits(9), 0, nothing).unwrap();
    flow.send(4096, 0).unwrap();
    flow.sent(4096);
    assert_eq!(flow.send(4096, 0).unwrap().to.addr, u64::MAX);
    flow.sent(4096);
    assert_eq!(flow.send(4096, 0).unwrap().to.addr, 4095);
}

#[test]
fn private_data_that_leaves_no_room_is_refused() {
    let meet = |table: u32, data: u32| {
        let peer = Connect {
            table: Place { len: table, ..TABLE },
            data: Place { addr: 0, rkey: 0, len: data },
            ..Connect::default()
        };
        Flow::new(SIZES, RING).meet(peer)
    };
    assert_eq!(meet(2, 1), Ok(()));
    assert_eq!(meet(1, 1), Ok(()));
    assert_eq!(meet(0, 1), Err(Violation));
    assert_eq!(meet(2, 0), Err(Violation));
}

#[test]
fn streams_end_in_one_direction_or_both() {
    let mut flow = connected();
    flow.received(Message::Data(3), 3, nothing).unwrap();
    flow.received(Message::Control(Control::Shutdown), 0, nothing).unwrap();
    assert!(flow.is_up() && !flow.is_readable() && flow.can_send());
    flow.received(Message::Control(Control::Disconnect), 0, nothing).unwrap();
    assert!(!flow.is_up() && !flow.can_send());
    // What came before is still there.
    assert_eq!(flow.unread(), (3, 0));
    let mut closing = connected();
    closing.stop_writing();
    closing.received(Message::Control(Control::Shutdown), 0, nothing).unwrap();
    assert!(!closing.is_up());
    let mut broken = connected();
    broken.fail(5);
    broken.fail(6);
    assert_eq!((broken.error(), broken.is_up()), (5, false));
    assert_eq!(broken.grant(), None);
}

#[test]
fn mapped_buffers_are_announced_and_written_to() {
    let mut flow = connected();
    let announced = flow.announce(1).unwrap();
    assert_eq!((announced.message, announced.to.addr), (Message::Mapping(1), 0x20_0000 + 32 + 24));
    assert_eq!(flow.announce(2), None);
    let to = Place { addr: 0x77, rkey: 1, len: 3000 };
    assert_eq!(flow.write(5000, 64, to).unwrap().to.len, 3000);
    flow.sent(3000);
    flow.sent(0);
    assert!(flow.is_quiet());
}
