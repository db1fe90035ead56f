//! What work requests may ask for besides their verb: SGEs, inline data, carried data, fences.

use crate::connection;
use rnic_abi::verbs::{SendFlags, WcStatus};
use rnic_abi::wqe::Sge;
use rnic_sim::pair::{End, Pair};
use rnic_sim::verbs::{Connection, SendWr};
use rnic_sim::world::WorldConfig;

/// Pieces of odd sizes, some empty, out of order in memory; `len` bytes in all.
fn pieces(end: &End, len: u32) -> Vec<Sge> {
    let cuts = [0, 1, len / 3, 0, len / 7, 5];
    let mut left = len;
    let mut sges = Vec::new();
    for (k, cut) in (0u64..).zip(cuts) {
        let cut = cut.min(left);
        sges.push(end.mr.sge((7 - k) * 60_000 + k, cut));
        left -= cut;
    }
    sges.push(end.mr.sge(0, left));
    sges
}

fn gather(pair: &mut Pair, end: End, sges: &[Sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sge in sges {
        bytes.extend(pair.memory(end, sge.addr - end.mr.addr, u64::from(sge.length)));
    }
    bytes
}

#[test]
fn messages_are_gathered_and_scattered_by_many_sges() {
    for seed in 0..6 {
        let mut pair = Pair::with(&WorldConfig::random_pair(seed), connection(1), |_| {});
        let (a, b) = (pair.a, pair.b);
        for len in [6, 255, 256, 257, 5000, 40_000] {
            pair.fill(a, 0, 500_000, seed + 10);
            pair.fill(b, 0, 500_000, seed + 20);
            let source = pieces(&a, len);
            let data = gather(&mut pair, a, &source);
            pair.recv(b, 1, &pieces(&b, len));
            pair.run(a, &SendWr::send(1, &source));
            assert_eq!(pair.received(b).byte_len, len);
            assert_eq!(gather(&mut pair, b, &pieces(&b, len)), data);

            pair.run(a, &SendWr::write(2, &source, b.mr.remote(600_000)));
            assert_eq!(pair.memory(b, 600_000, u64::from(len)), data);

            let sink = pieces(&b, len);
            pair.fill(b, 0, 500_000, seed + 30);
            pair.run(b, &SendWr::read(3, &sink, a.mr.remote(0)));
            let expected = pair.memory(a, 0, u64::from(len));
            assert_eq!(gather(&mut pair, b, &sink), expected);
        }
        pair.finish();
    }
}

#[test]
fn inline_data_is_taken_at_posting() {
    let mut pair = Pair::new(1, connection(1));
    let (a, b) = (pair.a, pair.b);
    for len in [0, 1, 8, 100, 256] {
        let data = rnic_sim::pair::pattern(len, len + 5);
        let length = u32::try_from(len).unwrap();
        pair.recv(b, 1, &[b.mr.sge(0, length)]);
        pair.run(a, &SendWr::send(1, &[]).inline(&data));
        assert_eq!(pair.received(b).byte_len, length);
        assert_eq!(pair.memory(b, 0, len), data);
        pair.run(a, &SendWr::write(2, &[], b.mr.remote(4096)).inline(&data));
        assert_eq!(pair.memory(b, 4096, len), data);
    }
    pair.finish();
}

#[test]
fn carried_data_is_that_of_the_sges_at_posting() {
    let mut pair = Pair::new(2, connection(1));
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(a, 0, 200, 1);
    pair.recv(b, 1, &[b.mr.sge(0, 200)]);
    let send = SendWr::send(1, &[a.mr.sge(0, 150), a.mr.sge(150, 50)]).carried();
    pair.post(a, &send);
    pair.fill(a, 0, 200, 2);
    assert_eq!(pair.sent(a).status, WcStatus::Success);
    pair.received(b);
    assert_eq!(pair.memory(b, 0, 200), data);
    pair.finish();
}

/// A fenced SEND of what a READ fetches must carry the fetched bytes.
fn read_then_send(seed: u64, flags: SendFlags) -> bool {
    let mut config = WorldConfig::pair(seed);
    config.faults.delay = 100_000;
    let mut pair = Pair::with(&config, connection(3), |_| {});
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(b, 0, 20_000, seed);
    pair.fill(a, 0, 20_000, seed + 1);
    pair.recv(b, 3, &[b.mr.sge(100_000, 20_000)]);
    let read = SendWr::read(1, &[a.mr.sge(0, 20_000)], b.mr.remote(0));
    let send = SendWr::send(2, &[a.mr.sge(0, 20_000)]).flags(flags);
    pair.world.host(0).post_sends(a.qp, &[read, send]).unwrap();
    pair.received(b);
    let same = pair.memory(b, 100_000, 20_000) == data;
    assert_eq!((pair.sent(a).wr_id, pair.sent(a).wr_id), (1, 2));
    pair.finish();
    same
}

#[test]
fn a_fenced_send_waits_for_earlier_reads() {
    for seed in 0..5 {
        assert!(read_then_send(seed, SendFlags::FENCE));
        assert!(!read_then_send(seed, SendFlags::empty()), "without a fence it need not wait");
    }
}

#[test]
fn a_fenced_send_waits_for_earlier_atomics() {
    let mut config = WorldConfig::pair(3);
    config.faults.delay = 100_000;
    let mut pair = Pair::with(&config, connection(3), |_| {});
    let (a, b) = (pair.a, pair.b);
    let value = pair.fill(b, 0, 8, 1);
    pair.recv(b, 3, &[b.mr.sge(64, 8)]);
    let add = SendWr::fetch_add(1, a.mr.sge(0, 8), b.mr.remote(0), 1);
    let send = SendWr::send(2, &[a.mr.sge(0, 8)]).flags(SendFlags::FENCE);
    pair.world.host(0).post_sends(a.qp, &[add, send]).unwrap();
    pair.received(b);
    assert_eq!(pair.memory(b, 64, 8), value, "the fetched value");
}

#[test]
fn unsignaled_sends_make_no_completion() {
    let mut pair = Pair::new(4, connection(1));
    let (a, b) = (pair.a, pair.b);
    for k in 0..300 {
        let wr = SendWr::write(k, &[a.mr.sge(0, 300)], b.mr.remote(0));
        // Slots of unsignaled requests become free without a completion.
        pair.post(a, &if k % 30 == 29 { wr } else { wr.unsignaled() });
        if k % 30 == 29 {
            assert_eq!(pair.sent(a).wr_id, k);
        }
    }
    pair.finish();
}

#[test]
fn sq_sig_all_signals_everything() {
    let connection = Connection::default();
    let config = WorldConfig::pair(5);
    let mut pair = Pair::with(&config, connection, |setup| setup.sq_sig_all = true);
    let (a, b) = (pair.a, pair.b);
    for k in 0..10 {
        pair.post(a, &SendWr::write(k, &[a.mr.sge(0, 10)], b.mr.remote(0)).unsignaled());
    }
    for k in 0..10 {
        assert_eq!(pair.sent(a).wr_id, k);
    }
    pair.finish();
}
