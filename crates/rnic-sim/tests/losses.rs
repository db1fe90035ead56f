//! Every packet of small exchanges is lost once, each alone and each two of them: whichever it is,
//! all data and all completions arrive, once and in order.

use rnic_abi::verbs::{SendFlags, WcOpcode, WcStatus};
use rnic_sim::link::{Blow, Strike};
use rnic_sim::pair::Pair;
use rnic_sim::verbs::{Connection, SendWr};

/// Bytes of a packet.
const MTU: u32 = 1024;
/// Where remote data is.
const REMOTE: u64 = 400_000;

/// A loss: from which host, and how many of its packets arrive before.
type Loss = (usize, u32);

/// A pair whose links lose these packets.
fn losing(losses: &[Loss]) -> Pair {
    let mut pair = Pair::new(1, Connection { sq_psn: 0xff_fff0, ..Connection::default() });
    for (from, spared) in losses {
        pair.world.strike(*from, 1 - from, Strike::new(Blow::Drop).after(*spared));
    }
    pair
}

/// One loss in either direction, behind fewer than `count` packets.
fn each(count: u32) -> impl Iterator<Item = Loss> {
    (0..2).flat_map(move |from| (0..count).map(move |spared| (from, spared)))
}

/// A message of one verb.
type Exchange = fn(&mut Pair, u32);

const EXCHANGES: [Exchange; 4] = [send, write, write_imm, read];

fn send(pair: &mut Pair, len: u32) {
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(a, 0, len.into(), 1);
    pair.recv(b, 5, &[b.mr.sge(REMOTE, len)]);
    pair.run(a, &SendWr::send(7, &[a.mr.sge(0, len)]).with_imm(0x0403_0201));
    let received = pair.received(b);
    assert_eq!((received.wr_id, received.status), (5, WcStatus::Success));
    assert_eq!((received.byte_len, received.imm_or_key), (len, 0x0403_0201));
    assert!(pair.memory(b, REMOTE, len.into()) == data, "the data differs at {len} bytes");
    pair.finish();
}

fn write(pair: &mut Pair, len: u32) {
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(a, 0, len.into(), 2);
    pair.run(a, &SendWr::write(7, &[a.mr.sge(0, len)], b.mr.remote(REMOTE)));
    assert!(pair.memory(b, REMOTE, len.into()) == data, "the data differs at {len} bytes");
    pair.finish();
}

fn write_imm(pair: &mut Pair, len: u32) {
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(a, 0, len.into(), 3);
    pair.recv(b, 6, &[]);
    pair.run(a, &SendWr::write(7, &[a.mr.sge(0, len)], b.mr.remote(REMOTE)).with_imm(9));
    let received = pair.received(b);
    assert_eq!((received.wr_id, received.opcode), (6, WcOpcode::RecvWriteImm));
    assert_eq!((received.byte_len, received.imm_or_key), (len, 9));
    assert!(pair.memory(b, REMOTE, len.into()) == data, "the data differs at {len} bytes");
    pair.finish();
}

fn read(pair: &mut Pair, len: u32) {
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(b, REMOTE, len.into(), 4);
    let cqe = pair.run(a, &SendWr::read(7, &[a.mr.sge(0, len)], b.mr.remote(REMOTE)));
    assert_eq!(cqe.byte_len, len);
    assert!(pair.memory(a, 0, len.into()) == data, "the data differs at {len} bytes");
    pair.finish();
}

#[test]
fn any_single_lost_packet_is_recovered() {
    let mut struck = 0;
    for len in [0, 1, MTU, MTU + 1, 5 * MTU + 3] {
        for loss in each(8) {
            for exchange in EXCHANGES {
                let mut pair = losing(&[loss]);
                exchange(&mut pair, len);
                struck += pair.world.fault_counts().struck;
            }
        }
    }
    assert!(struck > 50, "{struck} packets were lost");
}

#[test]
fn any_two_lost_packets_are_recovered() {
    for first in each(6) {
        for second in each(6) {
            for exchange in [send, write_imm, read] {
                exchange(&mut losing(&[first, second]), 4 * MTU + 5);
            }
        }
    }
}

/// Also one of those that were sent again.
#[test]
fn long_messages_survive_regular_loss() {
    const LEN: u32 = 300 * MTU;
    for exchange in EXCHANGES {
        let losses: Vec<Loss> = (0..6).flat_map(|k| [(0, 60 * k), (1, 60 * k)]).collect();
        let mut pair = losing(&losses);
        exchange(&mut pair, LEN);
        assert!(pair.world.fault_counts().struck > 4);
    }
}

#[test]
fn atomics_return_the_old_value_once_whatever_is_lost() {
    for loss in each(4) {
        let mut pair = losing(&[loss]);
        let (a, b) = (pair.a, pair.b);
        let word = b.mr.addr + REMOTE;
        pair.world.host(1).write_bytes(word, &40_u64.to_ne_bytes());
        pair.post(a, &SendWr::fetch_add(1, a.mr.sge(0, 8), b.mr.remote(REMOTE), 2));
        pair.post(a, &SendWr::cmp_swap(2, a.mr.sge(8, 8), b.mr.remote(REMOTE), 42, 7));
        for wr_id in 1..3 {
            let cqe = pair.sent(a);
            assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success), "{loss:?}");
        }
        let old = [40_u64.to_ne_bytes(), 42_u64.to_ne_bytes()].concat();
        assert_eq!(pair.memory(a, 0, 16), old, "{loss:?}");
        assert_eq!(pair.memory(b, REMOTE, 8), 7_u64.to_ne_bytes(), "{loss:?}");
        pair.finish();
    }
}

#[test]
fn mixed_operations_survive_every_single_loss() {
    const LEN: u32 = 3000;
    for loss in each(30) {
        let mut pair = losing(&[loss]);
        let (a, b) = (pair.a, pair.b);
        let data = pair.fill(a, 0, LEN.into(), 1);
        pair.recv(b, 9, &[b.mr.sge(REMOTE + 100_000, 4096)]);
        let (from, to) = (a.mr.sge(0, LEN), b.mr.remote(REMOTE));
        // It reads what was written just before.
        let read = |wr_id, at| {
            let read = SendWr::read(wr_id, &[a.mr.sge(at, LEN)], to);
            read.flags(SendFlags::SIGNALED | SendFlags::FENCE)
        };
        let requests = [
            SendWr::write(0, &[from], to),
            read(1, 10_000),
            SendWr::write(2, &[from], to),
            read(3, 30_000),
            SendWr::send(4, &[from]),
        ];
        pair.world.host(0).post_sends(a.qp, &requests).unwrap();
        for wr_id in 0..5 {
            let cqe = pair.sent(a);
            assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success), "{loss:?}");
        }
        assert_eq!(pair.received(b).wr_id, 9);
        for at in [10_000, 30_000] {
            assert!(pair.memory(a, at, LEN.into()) == data, "{loss:?}");
        }
        assert!(pair.memory(b, REMOTE + 100_000, LEN.into()) == data, "{loss:?}");
        pair.finish();
    }
}

#[test]
fn many_messages_stay_in_order_under_loss() {
    let losses: Vec<Loss> = (0..20).map(|k| (0, 7 * k + 3)).collect();
    let mut pair = losing(&losses);
    let (a, b) = (pair.a, pair.b);
    let size = |k: u64| u32::try_from(k * 97 % 4000).unwrap();
    let data: Vec<_> = (0..40).map(|k| pair.fill(a, 4096 * k, size(k).into(), k)).collect();
    for k in 0..40 {
        pair.recv(b, k, &[b.mr.sge(REMOTE + 4096 * k, 4096)]);
        pair.post(a, &SendWr::send(k, &[a.mr.sge(4096 * k, size(k))]));
    }
    for (k, data) in (0..).zip(data) {
        assert_eq!((pair.sent(a).wr_id, pair.received(b).wr_id), (k, k));
        assert!(pair.memory(b, REMOTE + 4096 * k, size(k).into()) == data, "message {k}");
    }
    pair.finish();
}
