//! SEND, with and without immediate data.

use crate::{MTUS, connection, sizes};
use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::{WcOpcode, WcStatus};
use rnic_sim::pair::Pair;
use rnic_sim::verbs::SendWr;
use rnic_sim::world::WorldConfig;

/// Where the receive buffer is in its memory.
const TARGET: u64 = 4096;
/// Bytes before and behind it that must not change.
const GUARD: u64 = 64;

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
        let mut expected = before;
        let guard = usize::try_from(GUARD).unwrap();
        expected[guard..guard + data.len()].copy_from_slice(&data);
        assert_eq!(pair.memory(b, TARGET - GUARD, u64::from(len) + 2 * GUARD), expected);
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
