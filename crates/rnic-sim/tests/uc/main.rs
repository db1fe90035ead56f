//! Unreliable connections between two engines: every verb at every interesting size, and what is
//! left of them on links that lose, repeat and reorder.

mod bad_links;

use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::{QpType, WcOpcode, WcStatus};
use rnic_sim::pair::{End, PATIENCE, Pair, pattern};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Connection, SendWr};
use rnic_sim::world::{World, WorldConfig};

/// Where a target is in its memory.
const TARGET: u64 = 400_000;

fn connection(path_mtu: u8) -> Connection {
    Connection { path_mtu, sq_psn: 0xff_fff0, ..Connection::default() }
}

fn pair(config: &WorldConfig, path_mtu: u8) -> Pair {
    Pair::with(config, connection(path_mtu), |setup| setup.qp_type = QpType::Uc)
}

fn sizes(mtu: u32) -> [u32; 8] {
    [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 17 * mtu + 5]
}

/// Worlds with good links, simple ones and odd ones.
fn worlds() -> impl Iterator<Item = (WorldConfig, u8)> {
    let configs = (0..20).map(WorldConfig::random_pair).chain([WorldConfig::pair(0)]);
    configs.flat_map(|config| [1, 3, 5].map(|mtu| (config.clone(), mtu)))
}

#[test]
fn sends_of_every_size_arrive() {
    for (config, mtu) in worlds() {
        let mut pair = pair(&config, mtu);
        let (a, b) = (pair.a, pair.b);
        for (wr_id, len) in (10..).zip(sizes(pair.connection.mtu())) {
            let data = pair.fill(a, 0, len.into(), wr_id);
            pair.recv(b, wr_id, &[b.mr.sge(TARGET, len / 2), b.mr.sge(0, len - len / 2)]);
            pair.run(a, &SendWr::send(wr_id, &[a.mr.sge(0, len)]).with_imm(0x0403_0201));
            let received = pair.received(b);
            assert_eq!((received.wr_id, received.status), (wr_id, WcStatus::Success));
            assert_eq!((received.opcode, received.byte_len), (WcOpcode::Recv, len));
            assert!(received.flags.contains(CqeFlags::IMM) && received.imm_or_key == 0x0403_0201);
            let mut arrived = pair.memory(b, TARGET, u64::from(len / 2));
            arrived.extend(pair.memory(b, 0, u64::from(len - len / 2)));
            assert!(arrived == data, "{len} bytes");
        }
        pair.finish();
    }
}

#[test]
fn writes_of_every_size_arrive() {
    for (config, mtu) in worlds() {
        let mut pair = pair(&config, mtu);
        let (a, b) = (pair.a, pair.b);
        for (wr_id, len) in (10..).zip(sizes(pair.connection.mtu())) {
            let data = pair.fill(a, 0, len.into(), wr_id);
            let write = SendWr::write(wr_id, &[a.mr.sge(0, len)], b.mr.remote(TARGET));
            pair.run(a, &write);
            pair.finish();
            assert!(pair.memory(b, TARGET, len.into()) == data, "{len} bytes");

            let data = pair.fill(a, 0, len.into(), wr_id + 1000);
            pair.recv(b, wr_id, &[]);
            pair.run(a, &write.with_imm(7));
            let received = pair.received(b);
            assert_eq!((received.wr_id, received.status), (wr_id, WcStatus::Success));
            assert_eq!((received.opcode, received.byte_len), (WcOpcode::RecvWriteImm, len));
            assert!(pair.memory(b, TARGET, len.into()) == data, "{len} bytes");
        }
        pair.finish();
    }
}

/// The program may use its buffer again at the completion. On a wire inside the engine the payload
/// must not be looked up there later.
#[test]
fn what_is_complete_may_be_overwritten() {
    const LEN: u32 = 8192;
    for keeps_internal in [false, true] {
        let port = PortConfig { max_segments: 16, keeps_internal, ..PortConfig::frames() };
        let mut world = World::new(&WorldConfig { ports: vec![port], ..WorldConfig::pair(0) });
        let end = End::new(&mut world, 0, |setup| setup.qp_type = QpType::Uc);
        let host = world.host(0);
        host.memory.is_copied_from = true;
        let (ip, qpn) = (host.ip, host.qpn(end.qp));
        let own = Connection { sq_psn: 0, rq_psn: 0, ..Connection::default() };
        host.connect(end.qp, &own, ip, qpn);
        let data = pattern(LEN.into(), 1);
        host.write_bytes(end.mr.addr, &data);
        host.post_recv(end.qp, 5, &[end.mr.sge(TARGET, LEN)]).expect("room");
        host.post_send(end.qp, &SendWr::send(7, &[end.mr.sge(0, LEN)])).expect("room");
        while world.host(0).poll(end.send_cq).is_none() {
            assert!(world.step(), "the send completes");
        }
        world.host(0).write_bytes(end.mr.addr, &vec![0; LEN as usize]);
        world.run_to_silence(PATIENCE);
        let received = world.host(0).drain(end.recv_cq);
        assert_eq!(received.len(), 1);
        assert!(world.host(0).bytes(end.mr.addr + TARGET, LEN.into()) == data);
        world.check();
    }
}
