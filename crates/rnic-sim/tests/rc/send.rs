//! SEND, with and without immediate data.

use crate::{GUARD, MTUS, TARGET, connection, sizes, with_guards};
use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::{WcOpcode, WcStatus};
use rnic_sim::pair::Pair;
use rnic_sim::verbs::SendWr;
use rnic_sim::world::WorldConfig;

fn send_and_check(config: &WorldConfig, path_mtu: u8, imm: Option<u32>) {
    let mut pair = Pair::with(config, connection(path_mtu), |_| {});
    let (a, b) = (pair.a, pair.b);
    for (wr_id, len) in (10..).zip(sizes(pair.connection.mtu())) {
        let data = pair.fill(a, 0, u64::from(len), wr_id);
        let before = pair.fill(b, TARGET - GUARD, u64::from(len) + 2 * GUARD, wr_id + 1000);
        pair.recv(b, wr_id + 500, &[b.mr.sge(TARGET, len)]);
        let wr = SendWr::send(wr_id, &[a.mr.sge(0, len)]);
        let wr = if let Some(imm) = imm { wr.with_imm(imm) } else { wr };
        pair.run(a, &wr);

        let received = pair.received(b);
        assert_eq!((received.wr_id, received.status), (wr_id + 500, WcStatus::Success));
        assert_eq!((received.opcode, received.byte_len), (WcOpcode::Recv, len));
        assert_eq!(received.flags.contains(CqeFlags::IMM), imm.is_some());
        assert_eq!(received.imm_or_key, imm.unwrap_or(0));
        let after = pair.memory(b, TARGET - GUARD, u64::from(len) + 2 * GUARD);
        assert_eq!(after, with_guards(before, &data));
    }
    pair.finish();
}

#[test]
fn send_delivers_every_size() {
    for mtu in MTUS {
        send_and_check(&WorldConfig::pair(1), mtu, None);
        send_and_check(&WorldConfig::random_pair(2), mtu, None);
    }
}

#[test]
fn send_imm_delivers_every_size() {
    for mtu in MTUS {
        send_and_check(&WorldConfig::pair(3), mtu, Some(0x1122_3344));
        send_and_check(&WorldConfig::random_pair(4), mtu, Some(0));
    }
}

#[test]
fn a_message_may_be_shorter_than_the_receive_buffer() {
    let mut pair = Pair::new(5, connection(3));
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(a, 0, 5000, 1);
    let before = pair.fill(b, 0, 20_000, 2);
    pair.recv(b, 1, &[b.mr.sge(0, 20_000)]);
    pair.run(a, &SendWr::send(1, &[a.mr.sge(0, 5000)]));
    assert_eq!(pair.received(b).byte_len, 5000);
    let after = pair.memory(b, 0, 20_000);
    assert_eq!(after[..5000], data);
    assert_eq!(after[5000..], before[5000..]);
}

#[test]
fn many_sends_arrive_in_order_with_one_doorbell() {
    let mut pair = Pair::with(&WorldConfig::random_pair(6), connection(1), |_| {});
    let (a, b) = (pair.a, pair.b);
    let data = pair.fill(a, 0, 64 * 100, 1);
    for k in 0..64 {
        pair.recv(b, k, &[b.mr.sge(k * 100, 100)]);
    }
    let sends: Vec<SendWr> = (0..64).map(|k| SendWr::send(k, &[a.mr.sge(k * 100, 100)])).collect();
    pair.world.host(0).post_sends(a.qp, &sends).unwrap();
    for k in 0..64 {
        assert_eq!(pair.sent(a).wr_id, k);
        assert_eq!(pair.received(b).wr_id, k);
    }
    assert_eq!(pair.memory(b, 0, 6400), data);
    pair.finish();
}
