//! RDMA READ.

use crate::{GUARD, MTUS, TARGET, connection, sizes, with_guards};
use rnic_abi::verbs::WcOpcode;
use rnic_sim::pair::Pair;
use rnic_sim::verbs::{Remote, SendWr};
use rnic_sim::world::WorldConfig;

fn read_and_check(config: &WorldConfig, path_mtu: u8) {
    let mut pair = Pair::with(config, connection(path_mtu), |_| {});
    let (a, b) = (pair.a, pair.b);
    for (wr_id, len) in (10..).zip(sizes(pair.connection.mtu())) {
        let data = pair.fill(b, 0, u64::from(len), wr_id);
        let before = pair.fill(a, TARGET - GUARD, u64::from(len) + 2 * GUARD, wr_id + 1000);
        let cqe = pair.run(a, &SendWr::read(wr_id, &[a.mr.sge(TARGET, len)], b.mr.remote(0)));
        assert_eq!((cqe.opcode, cqe.byte_len), (WcOpcode::Read, len));
        let after = pair.memory(a, TARGET - GUARD, u64::from(len) + 2 * GUARD);
        assert_eq!(after, with_guards(before, &data), "size {len}");
    }
    pair.finish();
}

#[test]
fn read_fetches_every_size() {
    for mtu in MTUS {
        read_and_check(&WorldConfig::pair(1), mtu);
        read_and_check(&WorldConfig::random_pair(2), mtu);
    }
}

#[test]
fn a_zero_length_read_checks_neither_key_nor_address() {
    let mut pair = Pair::new(3, connection(3));
    let a = pair.a;
    let cqe = pair.run(a, &SendWr::read(1, &[], Remote { addr: 7, rkey: 0xffff_ffff }));
    assert_eq!(cqe.byte_len, 0);
    pair.finish();
}

#[test]
fn more_reads_than_may_be_outstanding_wait_for_their_turn() {
    for depth in [1, 3, 16] {
        let connection = rnic_sim::verbs::Connection {
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            ..connection(1)
        };
        let mut pair = Pair::with(&WorldConfig::random_pair(4), connection, |_| {});
        let (a, b) = (pair.a, pair.b);
        let data = pair.fill(b, 0, 50_000, 1);
        let reads: Vec<SendWr> = (0..50)
            .map(|k| SendWr::read(k, &[a.mr.sge(k * 1000, 1000)], b.mr.remote(k * 1000)))
            .collect();
        pair.world.host(0).post_sends(a.qp, &reads).unwrap();
        for k in 0..50 {
            assert_eq!(pair.sent(a).wr_id, k);
        }
        assert_eq!(pair.memory(a, 0, 50_000), data, "depth {depth}");
        pair.finish();
    }
}

#[test]
fn both_ends_read_from_each_other_at_once() {
    let mut pair = Pair::with(&WorldConfig::random_pair(5), connection(3), |_| {});
    let (a, b) = (pair.a, pair.b);
    let of_b = pair.fill(b, 0, 100_000, 1);
    let of_a = pair.fill(a, 0, 100_000, 2);
    let sink = 200_000;
    pair.post(a, &SendWr::read(1, &[a.mr.sge(sink, 100_000)], b.mr.remote(0)));
    pair.post(b, &SendWr::read(2, &[b.mr.sge(sink, 100_000)], a.mr.remote(0)));
    assert_eq!((pair.sent(a).wr_id, pair.sent(b).wr_id), (1, 2));
    assert_eq!(pair.memory(a, sink, 100_000), of_b);
    assert_eq!(pair.memory(b, sink, 100_000), of_a);
    pair.finish();
}
