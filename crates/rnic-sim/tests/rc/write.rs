//! RDMA WRITE, with and without immediate data.

use crate::{GUARD, MTUS, TARGET, connection, sizes, with_guards};
use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::{WcOpcode, WcStatus};
use rnic_sim::host::SPACE;
use rnic_sim::pair::Pair;
use rnic_sim::verbs::{Remote, SendWr};
use rnic_sim::world::WorldConfig;

fn write_and_check(config: &WorldConfig, path_mtu: u8, imm: Option<u32>) {
    let mut pair = Pair::with(config, connection(path_mtu), |_| {});
    let (a, b) = (pair.a, pair.b);
    for (wr_id, len) in (10..).zip(sizes(pair.connection.mtu())) {
        let data = pair.fill(a, 0, u64::from(len), wr_id);
        let before = pair.fill(b, TARGET - GUARD, u64::from(len) + 2 * GUARD, wr_id + 1000);
        let end = b.mr.addr + TARGET + u64::from(len);
        if len > 0 {
            pair.world.host(1).memory.poll_last_byte(SPACE, end);
        }
        let wr = SendWr::write(wr_id, &[a.mr.sge(0, len)], b.mr.remote(TARGET));
        if let Some(imm) = imm {
            pair.recv(b, wr_id + 500, &[]);
            pair.run(a, &wr.with_imm(imm));
            let received = pair.received(b);
            assert_eq!((received.wr_id, received.status), (wr_id + 500, WcStatus::Success));
            assert_eq!((received.opcode, received.byte_len), (WcOpcode::RecvWriteImm, len));
            assert!(received.flags.contains(CqeFlags::IMM));
            assert_eq!(received.imm_or_key, imm);
        } else {
            pair.run(a, &wr);
        }
        let after = pair.memory(b, TARGET - GUARD, u64::from(len) + 2 * GUARD);
        assert_eq!(after, with_guards(before, &data), "size {len}");
        pair.world.host(1).memory.stop_polling(SPACE, end);
    }
    pair.finish();
}

#[test]
fn write_places_every_size() {
    for mtu in MTUS {
        write_and_check(&WorldConfig::pair(1), mtu, None);
        write_and_check(&WorldConfig::random_pair(2), mtu, None);
    }
}

#[test]
fn write_imm_places_every_size_and_consumes_a_receive() {
    for mtu in MTUS {
        write_and_check(&WorldConfig::pair(3), mtu, Some(0xdead_beef));
        write_and_check(&WorldConfig::random_pair(4), mtu, Some(1));
    }
}

#[test]
fn a_zero_length_write_checks_neither_key_nor_address() {
    let mut pair = Pair::new(5, connection(3));
    let a = pair.a;
    pair.run(a, &SendWr::write(1, &[], Remote { addr: 0x1234_5678, rkey: 0xffff_ffff }));
    pair.finish();
}

#[test]
fn a_write_to_the_last_byte_of_a_region_succeeds() {
    let mut pair = Pair::new(6, connection(1));
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(a, 0, 1000, 1);
    let at = b.mr.len - 1000;
    pair.run(a, &SendWr::write(1, &[a.mr.sge(0, 1000)], b.mr.remote(at)));
    assert_eq!(pair.memory(b, at, 1000), data);
    pair.finish();
}

#[test]
fn a_receive_completion_follows_the_data_of_earlier_writes() {
    for seed in 0..20 {
        let mut pair = Pair::with(&WorldConfig::random_pair(seed), connection(1), |_| {});
        let (a, b) = (pair.a, pair.b);
        let data = pair.fill(a, 0, 40_000, seed);
        pair.recv(b, 9, &[b.mr.sge(100_000, 16)]);
        let write = SendWr::write(1, &[a.mr.sge(0, 40_000)], b.mr.remote(0)).unsignaled();
        let send = SendWr::send(2, &[a.mr.sge(0, 16)]);
        pair.world.host(0).post_sends(a.qp, &[write, send]).unwrap();
        pair.received(b);
        assert_eq!(pair.memory(b, 0, 40_000), data, "seed {seed}");
        assert_eq!(pair.sent(a).wr_id, 2);
        pair.finish();
    }
}
