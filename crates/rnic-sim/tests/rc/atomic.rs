//! Compare and swap, fetch and add.

use crate::connection;
use rnic_abi::verbs::WcOpcode;
use rnic_sim::pair::{End, Pair};
use rnic_sim::verbs::SendWr;
use rnic_sim::world::WorldConfig;

fn word(pair: &mut Pair, end: End, offset: u64) -> u64 {
    u64::from_ne_bytes(pair.memory(end, offset, 8).try_into().unwrap())
}

fn set_word(pair: &mut Pair, end: End, offset: u64, value: u64) {
    pair.world.host(end.host).write_bytes(end.mr.addr + offset, &value.to_ne_bytes());
}

#[test]
fn compare_and_swap_swaps_only_when_equal() {
    let mut pair = Pair::new(1, connection(3));
    let (a, b) = (pair.a, pair.b);
    set_word(&mut pair, b, 64, 5);
    let cas = |wr_id, compare, swap| {
        SendWr::cmp_swap(wr_id, a.mr.sge(0, 8), b.mr.remote(64), compare, swap)
    };
    let cqe = pair.run(a, &cas(1, 5, u64::MAX - 1));
    assert_eq!((cqe.opcode, cqe.byte_len), (WcOpcode::CmpSwap, 8));
    assert_eq!(word(&mut pair, a, 0), 5);
    assert_eq!(word(&mut pair, b, 64), u64::MAX - 1);
    pair.run(a, &cas(2, 5, 77));
    assert_eq!(word(&mut pair, a, 0), u64::MAX - 1, "the old value is returned");
    assert_eq!(word(&mut pair, b, 64), u64::MAX - 1, "not swapped");
    pair.finish();
}

#[test]
fn fetch_and_add_wraps_around() {
    let mut pair = Pair::new(2, connection(3));
    let (a, b) = (pair.a, pair.b);
    set_word(&mut pair, b, 0, u64::MAX);
    let cqe = pair.run(a, &SendWr::fetch_add(1, a.mr.sge(8, 8), b.mr.remote(0), 3));
    assert_eq!((cqe.opcode, cqe.byte_len), (WcOpcode::FetchAdd, 8));
    assert_eq!(word(&mut pair, a, 8), u64::MAX);
    assert_eq!(word(&mut pair, b, 0), 2);
    pair.finish();
}

#[test]
fn a_run_of_atomics_executes_in_order() {
    for seed in 0..8 {
        let mut pair = Pair::with(&WorldConfig::random_pair(seed), connection(1), |_| {});
        let (a, b) = (pair.a, pair.b);
        let adds: Vec<SendWr> = (0..40)
            .map(|k| SendWr::fetch_add(k, a.mr.sge(k * 8, 8), b.mr.remote(0), k + 1))
            .collect();
        pair.world.host(0).post_sends(a.qp, &adds).unwrap();
        let mut sum = 0;
        for k in 0..40 {
            assert_eq!(pair.sent(a).wr_id, k);
            assert_eq!(word(&mut pair, a, k * 8), sum);
            sum += k + 1;
        }
        assert_eq!(word(&mut pair, b, 0), sum);
        pair.finish();
    }
}

#[test]
fn an_atomic_sees_the_write_before_it() {
    for seed in 0..8 {
        let mut pair = Pair::with(&WorldConfig::random_pair(seed), connection(1), |_| {});
        let (a, b) = (pair.a, pair.b);
        set_word(&mut pair, a, 0, 40);
        let write = SendWr::write(1, &[a.mr.sge(0, 8)], b.mr.remote(0));
        let add = SendWr::fetch_add(2, a.mr.sge(8, 8), b.mr.remote(0), 2);
        pair.world.host(0).post_sends(a.qp, &[write, add]).unwrap();
        assert_eq!((pair.sent(a).wr_id, pair.sent(a).wr_id), (1, 2));
        assert_eq!((word(&mut pair, a, 8), word(&mut pair, b, 0)), (40, 42));
        pair.finish();
    }
}
