//! The requester: how work requests become packets, what holds them back, which fail at once.

use crate::{ACK, dialogue, fetch_add, ok, read, send, send_only, small_mtu, statuses};
use rnic_abi::cq::ArmKind;
use rnic_abi::verbs::{AccessFlags, QpState, SendFlags, WcStatus};
use rnic_abi::wqe::Sge;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::pair::{End, Pair};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Connection, Remote, SendWr};
use rnic_sim::world::WorldConfig;
use roce_wire::{ImmDt, Opcode, PKey};

const REMOTE: Remote = Remote { addr: 0x5000, rkey: 0x99 };

#[test]
fn a_write_is_cut_at_the_path_mtu() {
    let mut d = dialogue();
    let data = d.fill(0, 601, 1);
    let write = SendWr::write(1, &[d.nic.mr.sge(0, 601)], REMOTE).with_imm(0x0403_0201);
    d.post(&write.flags(SendFlags::SOLICITED));
    let burst = d.hear_burst();
    let opcodes: Vec<Opcode> = burst.iter().map(|heard| heard.opcode()).collect();
    assert_eq!(opcodes, [Opcode::RcWriteFirst, Opcode::RcWriteMiddle, Opcode::RcWriteLastImm]);
    assert_eq!(burst.iter().map(|h| h.payload.len()).collect::<Vec<_>>(), [256, 256, 89]);
    assert_eq!(burst.iter().flat_map(|h| h.payload.clone()).collect::<Vec<u8>>(), data);
    let reth = burst[0].headers.reth.unwrap();
    assert_eq!((reth.va, reth.rkey.0, reth.dma_len), (0x5000, 0x99, 601), "all of it, at once");
    assert!(burst[1..].iter().all(|h| h.headers.reth.is_none()));
    let imm = burst.iter().map(|h| h.headers.imm).collect::<Vec<_>>();
    assert_eq!(imm, [None, None, Some(ImmDt(0x0403_0201_u32.to_ne_bytes()))]);
    let solicited: Vec<bool> = burst.iter().map(|h| h.headers.bth.solicited).collect();
    assert_eq!(solicited, [false, false, true]);
    assert!(burst[2].headers.bth.ack_req);
    assert!(burst.iter().all(|h| h.headers.bth.pkey == PKey::DEFAULT));
}

#[test]
fn a_write_without_immediate_is_never_solicited() {
    let mut d = dialogue();
    d.post(&SendWr::write(1, &[d.nic.mr.sge(0, 8)], REMOTE).flags(SendFlags::SOLICITED));
    assert!(!d.expect(Opcode::RcWriteOnly, d.our_psn(0)).headers.bth.solicited);
}

#[test]
fn the_window_limits_what_is_unacknowledged() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 1_000_000));
    let window = 512 * 1024 / 256;
    assert_eq!(d.hear_burst().len(), window);
    d.say(&Say::ack(d.our_psn(99), 0));
    assert_eq!(d.hear_burst().len(), 100);
}

#[test]
fn no_more_reads_and_atomics_are_outstanding_than_allowed_and_what_follows_waits() {
    let mut d = Dialogue::new(Connection { max_rd_atomic: 2, ..small_mtu() });
    d.post_all(&[read(&d, 1, 0, 16), fetch_add(&d, 2, 64), read(&d, 3, 128, 16), send(&d, 4, 10)]);
    let opcodes: Vec<Opcode> = d.hear_burst().iter().map(|heard| heard.opcode()).collect();
    assert_eq!(opcodes, [Opcode::RcReadRequest, Opcode::RcFetchAdd]);
    d.say(&Say::new(Opcode::RcReadRespOnly, d.our_psn(0)).syndrome(ACK, 1).payload(&[7; 16]));
    let opcodes: Vec<Opcode> = d.hear_burst().iter().map(|heard| heard.opcode()).collect();
    assert_eq!(opcodes, [Opcode::RcReadRequest, Opcode::RcSendOnly]);
}

/// Counts READs of the peer, which keeps a lot of them outstanding, until a request of ours is
/// complete.
fn reads_until_sent(port: PortConfig) -> u32 {
    let config = WorldConfig { ports: vec![port; 2], ..WorldConfig::pair(1) };
    let mut pair = Pair::with(&config, Connection::default(), |_| {});
    let (a, b) = (pair.a, pair.b);
    pair.recv(b, 99, &[b.mr.sge(0, 64)]);
    let long = SendWr::read(1, &[b.mr.sge(4096, 512 * 1024)], a.mr.remote(0));
    (0..4).for_each(|_| pair.post(b, &long));
    for reads in 0..100 {
        if reads == 2 {
            pair.post(a, &SendWr::send(7, &[a.mr.sge(0, 64)]));
        }
        assert_eq!(pair.sent(b).status, WcStatus::Success);
        pair.post(b, &long);
        if let Some(cqe) = pair.world.host(a.host).poll(a.send_cq) {
            assert_eq!((cqe.wr_id, cqe.status), (7, WcStatus::Success));
            return reads;
        }
    }
    pair.world.fail("a request of 64 bytes waits behind all READs of the peer")
}

#[test]
fn reads_of_the_peer_do_not_hold_requests_back() {
    assert!(reads_until_sent(PortConfig::frames()) < 5);
    assert!(reads_until_sent(PortConfig::trains()) < 5);
    assert!(reads_until_sent(PortConfig { tx_burst: 3, ..PortConfig::frames() }) < 5);
}

/// Trains of this host in which 16 messages of 16 packets travel, of which the wire takes up to 15
/// at once.
fn trains(host: usize, message: impl Fn(End, End) -> SendWr) -> u64 {
    let config = WorldConfig { ports: vec![PortConfig::trains(); 2], ..WorldConfig::pair(1) };
    let mut pair = Pair::with(&config, Connection { path_mtu: 5, ..Connection::default() }, |_| {});
    let (a, b) = (pair.a, pair.b);
    for wr_id in 0..16 {
        pair.recv(b, wr_id, &[b.mr.sge(0, 64 * 1024)]);
        pair.post(a, &message(a, b));
    }
    for _ in 0..16 {
        assert_eq!(pair.sent(a).status, WcStatus::Success);
    }
    pair.world.host(host).port.trains_sent()
}

#[test]
fn messages_that_follow_each_other_share_trains() {
    let local = |end: End| end.mr.sge(0, 64 * 1024);
    let sends = trains(0, |a, _| SendWr::send(1, &[local(a)]));
    assert!((18..24).contains(&sends), "{sends} trains for 256 packets");
    // The first packet of a WRITE is longer than the others, so it begins a train.
    let writes = trains(0, |a, b| SendWr::write(1, &[local(a)], b.mr.remote(0)));
    assert!((32..40).contains(&writes), "{writes} trains for 16 WRITEs");
    // The first and the last of an answer are longer than the others: those of two answers, and the
    // next one, are a train.
    let answers = trains(1, |a, b| SendWr::read(1, &[local(a)], b.mr.remote(0)));
    assert!((32..40).contains(&answers), "{answers} trains for 16 answers");
}

#[test]
fn each_visit_asks_for_an_ack_while_others_wait() {
    let config = WorldConfig { ports: vec![PortConfig::trains(); 2], ..WorldConfig::pair(1) };
    // None of the first 15 packets has a number that asks by itself.
    let connection = Connection { path_mtu: 5, sq_psn: 0x10_0010, ..Connection::default() };
    let mut pair = Pair::with(&config, connection, |_| {});
    let ends = [0, 1].map(|host| End::new(&mut pair.world, host, |_| {}));
    pair.world.connect((0, ends[0].qp), (1, ends[1].qp), &connection);
    pair.world.take_carried();
    for (a, b) in [(pair.a, pair.b), (ends[0], ends[1])] {
        for wr_id in 0..8 {
            pair.recv(b, wr_id, &[b.mr.sge(0, 64 * 1024)]);
            let wr = SendWr::send(wr_id, &[a.mr.sge(0, 64 * 1024)]);
            pair.world.host(0).post_send(a.qp, &wr).unwrap();
        }
    }
    pair.world.run_to_silence(1_000_000_000);
    let carried = pair.world.take_carried();
    let sent: Vec<_> = carried
        .iter()
        .filter(|carried| carried.from == 0)
        .map(|carried| carried.packet.parse().unwrap().bth())
        .collect();
    let visits: Vec<_> = sent.chunk_by(|one, next| one.dest_qp == next.dest_qp).collect();
    assert!(visits.len() >= 16, "the queue pairs take turns: {}", visits.len());
    for visit in visits {
        assert!(visit.iter().any(|bth| bth.ack_req), "{} packets without", visit.len());
    }
}

/// How many requests, shorter than an ACK and endless, the peer of a port with such trains receives
/// until it has the ACK of its own.
fn requests_before_an_ack(tx_burst: u32, rx_burst: u32) -> usize {
    const MANY: u32 = 8000;
    let port = PortConfig { max_segments: 64, tx_burst, rx_burst, ..PortConfig::trains() };
    let config = WorldConfig { ports: vec![port; 2], ..WorldConfig::pair(1) };
    let connection = Connection { path_mtu: 1, ..Connection::default() };
    let mut pair = Pair::with(&config, connection, |setup| {
        (setup.caps.max_send_wr, setup.caps.max_recv_wr) = (MANY, MANY);
    });
    let (a, b) = (pair.a, pair.b);
    for wr_id in 0..u64::from(MANY) {
        pair.recv(b, wr_id, &[]);
        pair.post(a, &SendWr::send(wr_id, &[]));
    }
    pair.recv(a, 1, &[]);
    pair.post(b, &SendWr::send(7, &[]));
    let (mut received, mut answer) = (0, None);
    pair.world.run_until(1_000_000_000, |world| {
        world.host(0).drain(a.send_cq);
        received += world.host(1).drain(b.recv_cq).len();
        answer = world.host(1).poll(b.send_cq);
        answer.is_some()
    });
    assert_eq!(answer.map(|cqe| cqe.status), Some(WcStatus::Success));
    received
}

#[test]
fn an_ack_does_not_wait_until_there_are_no_more_requests() {
    // The wire takes all that a visit plans, or never all of it.
    for (tx_burst, rx_burst) in [(1000, 200), (64, 64)] {
        let received = requests_before_an_ack(tx_burst, rx_burst);
        assert!(received < 1800, "{received}, where the wire takes {tx_burst}");
    }
}

/// What leaves when the program replies at once to the last of some messages that it may wait for,
/// on a wire with trains.
fn reply_to_messages(armed: &[Option<ArmKind>]) -> Vec<Opcode> {
    let mut d = Dialogue::with(small_mtu(), PortConfig::trains(), |_| {});
    let (cq, sge) = (d.nic.recv_cq, d.nic.mr.sge(0, 64));
    let mut left = Vec::new();
    for (psn, kind) in (0..).zip(armed) {
        d.recv(1, &[sge]);
        kind.iter().for_each(|kind| d.world.host(0).arm(cq, *kind));
        d.say(&send_only(&d, psn, &[7; 64]));
        d.post(&send(&d, 1, 64));
        left = d.hear_burst().iter().map(|heard| heard.opcode()).collect();
    }
    left
}

#[test]
fn the_ack_leaves_before_the_reply_of_a_program_that_waits_for_events() {
    let (reply, ack) = (Opcode::RcSendOnly, Opcode::RcAck);
    assert_eq!(reply_to_messages(&[Some(ArmKind::Any)]), [ack, reply]);
    assert_eq!(reply_to_messages(&[None, Some(ArmKind::Any)]), [ack, reply]);
    // It polls, or waits for other messages.
    assert_eq!(reply_to_messages(&[None]), [reply, ack]);
    assert_eq!(reply_to_messages(&[Some(ArmKind::Any), None]), [reply, ack]);
    assert_eq!(reply_to_messages(&[Some(ArmKind::Solicited)]), [reply, ack]);
}

#[test]
fn requests_do_not_hold_answers_back() {
    let slow = PortConfig { tx_burst: 3, ..PortConfig::frames() };
    let config = WorldConfig { ports: vec![slow; 2], ..WorldConfig::pair(1) };
    let mut pair = Pair::with(&config, Connection::default(), |_| {});
    let (a, b) = (pair.a, pair.b);
    for wr_id in 0..16 {
        pair.post(a, &SendWr::write(wr_id, &[a.mr.sge(0, 1 << 20)], b.mr.remote(0)));
    }
    for wr_id in 0..4 {
        pair.run(b, &SendWr::read(wr_id, &[b.mr.sge(0, 64 * 1024)], a.mr.remote(0)));
    }
    let done = pair.world.host(a.host).drain(a.send_cq).len();
    assert!(done < 8, "{done} MiB were written before four small READs were answered");
}

/// The request completes with this status, sends nothing, and ends the connection.
#[track_caller]
fn fails(d: &mut Dialogue, wr: &SendWr, status: WcStatus) {
    d.post(wr);
    d.expect_silence();
    assert_eq!(statuses(&d.sent()), [(wr.wr_id, status)]);
    assert_eq!(d.state(), QpState::Err);
}

#[test]
fn a_malformed_work_request_fails() {
    // A READ that brings data along.
    let mut d = dialogue();
    let wr = read(&d, 1, 0, 8).carried();
    fails(&mut d, &wr, WcStatus::LocQpOpErr);
}

#[test]
fn only_sends_and_writes_may_be_inline() {
    let mut d = dialogue();
    let wr = read(&d, 1, 0, 0).inline(&[]);
    fails(&mut d, &wr, WcStatus::LocQpOpErr);
}

#[test]
fn more_sges_than_the_queue_pair_has_fail() {
    let mut d = dialogue();
    let wr = SendWr::send(1, &[d.nic.mr.sge(0, 1); 9]);
    fails(&mut d, &wr, WcStatus::LocQpOpErr);
}

#[test]
fn a_message_beyond_the_limit_is_a_length_error() {
    let mut d = dialogue();
    let wr = SendWr::send(1, &[d.nic.mr.sge(0, 1 << 30); 3]);
    fails(&mut d, &wr, WcStatus::LocLenErr);
}

#[test]
fn the_sink_of_a_read_must_be_writable() {
    let mut d = dialogue();
    let pd = d.nic.pd;
    d.nic.mr = d.world.host(0).new_mr(pd, 4096, AccessFlags::REMOTE_READ);
    let wr = read(&d, 1, 0, 16);
    fails(&mut d, &wr, WcStatus::LocProtErr);
}

#[test]
fn an_atomic_has_one_sink_of_eight_bytes() {
    for sges in [&[4_u32][..], &[16], &[4, 4], &[]] {
        let mut d = dialogue();
        let sges = sges.iter().map(|len| d.nic.mr.sge(0, *len)).collect();
        let wr = SendWr { sges, ..fetch_add(&d, 1, 0) };
        fails(&mut d, &wr, WcStatus::LocLenErr);
    }
}

#[test]
fn an_empty_sge_means_nothing_whatever_its_key() {
    let mut d = dialogue();
    let data = d.fill(0, 20, 1);
    let empty = Sge { addr: 5, length: 0, lkey: 0 };
    let sges = [empty, d.nic.mr.sge(0, 8), empty, d.nic.mr.sge(8, 12), empty];
    d.post(&SendWr::send(1, &sges));
    assert_eq!(d.expect(Opcode::RcSendOnly, d.our_psn(0)).payload, data);
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn a_short_last_response_is_a_length_error() {
    let mut d = dialogue();
    d.post(&read(&d, 1, 0, 300));
    d.hear_burst();
    d.say(&Say::new(Opcode::RcReadRespFirst, d.our_psn(0)).syndrome(ACK, 1).payload(&[1; 256]));
    d.say(&Say::new(Opcode::RcReadRespLast, d.our_psn(1)).syndrome(ACK, 1).payload(&[1; 40]));
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::LocLenErr)]);
    assert_eq!(d.state(), QpState::Err);
}
