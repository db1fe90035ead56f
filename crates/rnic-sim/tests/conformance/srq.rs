//! Shared receive queues: receives that many queue pairs take, each once and in order.

use crate::{ACK, INVALID, OPERATIONAL, ok, request, send_only, small_mtu, statuses};
use rnic_abi::control::AsyncEvent;
use rnic_abi::verbs::{AsyncEventType, QpState, QpType, WcStatus};
use rnic_core::command::{ClientCommand, Command, Errno, Outcome};
use rnic_core::profile::Profile;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::pair::{End, PATIENCE, pattern};
use rnic_sim::port::PortConfig;
use rnic_sim::srq::SrqId;
use rnic_sim::verbs::{Connection, PostError, QpSetup, SendWr, full_access};
use rnic_sim::world::{World, WorldConfig};
use roce_wire::{Opcode, Syndrome};

/// WQEs of the queue of most scripts.
const SIZE: u32 = 16;

/// A dialogue of a queue pair that takes its receives from a shared queue.
fn on_srq_of(qp_type: QpType, profile: Profile) -> (Dialogue, SrqId) {
    let mut d = Dialogue::of(profile, small_mtu());
    let old = d.nic.qp;
    let srq = d.world.host(0).create_srq(d.nic.pd, SIZE, 4).unwrap();
    let (pd, send_cq, recv_cq) = (d.nic.pd, d.nic.send_cq, d.nic.recv_cq);
    let setup = QpSetup { recv_cq, qp_type, srq: Some(srq), ..QpSetup::new(pd, send_cq) };
    let qp = d.world.host(0).create_qp(setup);
    let connection = d.connection;
    let (peer, number) = (rnic_sim::dialogue::PEER, rnic_sim::dialogue::PEER_QPN);
    d.world.host(0).connect(qp, &connection, peer, number);
    d.world.host(0).destroy_qp(old);
    d.nic.qp = qp;
    (d, srq)
}

fn on_srq() -> (Dialogue, SrqId) {
    on_srq_of(QpType::Rc, Profile::Spec)
}

fn post(d: &mut Dialogue, srq: SrqId, wr_id: u64, len: u32) {
    let sge = d.nic.mr.sge(4096 + wr_id * 1024, len);
    d.world.host(0).post_srq_recv(srq, wr_id, &[sge]).expect("room");
}

fn command(d: &mut Dialogue, command: ClientCommand) -> Result<Outcome, Errno> {
    d.world.host(0).command(command).map_err(|error| error.errno)
}

fn limit(d: &mut Dialogue, srq: SrqId) -> u32 {
    let srq = d.world.hosts()[0].srq_handle(srq);
    match command(d, ClientCommand::QuerySrq { srq }) {
        Ok(Outcome::Srq { max_wr: SIZE, max_sge: 4, limit }) => limit,
        other => panic!("{other:?}"),
    }
}

fn set_limit(d: &mut Dialogue, srq: SrqId, limit: u32) -> Result<Outcome, Errno> {
    d.world.host(0).set_srq_limit(srq, limit).map_err(|error| error.errno)
}

/// Async events about the shared queue.
fn limit_events(d: &mut Dialogue, srq: SrqId) -> usize {
    d.world.run_for(50_000);
    let element = d.world.hosts()[0].srq_handle(srq);
    let wanted = AsyncEvent { event: AsyncEventType::SrqLimitReached, element };
    d.world.host(0).take_async_events().iter().filter(|event| **event == wanted).count()
}

#[test]
fn messages_take_its_receives_in_order() {
    let (mut d, srq) = on_srq();
    d.say(&send_only(&d, 0, &[1; 8]));
    let heard = d.expect(Opcode::RcAck, d.peer_psn(0));
    assert!(matches!(heard.aeth().0, Syndrome::RnrNak { .. }), "nothing is posted");
    for wr_id in 0..3 {
        post(&mut d, srq, wr_id, 300);
    }
    d.say(&send_only(&d, 0, &[1; 8]));
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(1)).payload(&[2; 256]));
    d.say(&Say::new(Opcode::RcSendLast, d.peer_psn(2)).payload(&[3; 4]));
    d.say(&request(&d, Opcode::RcWriteOnlyImm, 3, (0, 8)).payload(&[4; 8]).ack_req());
    d.expect_aeth(d.peer_psn(3), ACK, 3);
    let received = d.received();
    assert_eq!(statuses(&received), ok(0..3));
    assert_eq!(received.iter().map(|cqe| cqe.byte_len).collect::<Vec<_>>(), [8, 260, 8]);
    assert_eq!(d.memory(4096, 9), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(d.memory(4096 + 1024 + 255, 3), [2, 3, 3]);
}

#[test]
fn a_receive_that_is_complete_makes_room() {
    let (mut d, srq) = on_srq();
    for wr_id in 0..u64::from(SIZE) {
        post(&mut d, srq, wr_id, 8);
    }
    let sge = d.nic.mr.sge(0, 8);
    assert_eq!(d.world.host(0).post_srq_recv(srq, 99, &[sge]), Err(PostError::Full));
    for k in 0..3 * SIZE {
        d.say(&send_only(&d, k, &[1; 8]));
        d.expect_aeth(d.peer_psn(k), ACK, k + 1);
        assert_eq!(statuses(&d.received()), ok([u64::from(k % SIZE)]));
        post(&mut d, srq, u64::from(k % SIZE), 8);
    }
}

#[test]
fn a_message_in_the_middle_keeps_its_receive_to_itself() {
    let (mut d, srq) = on_srq();
    for wr_id in 0..2 {
        post(&mut d, srq, wr_id, 512);
    }
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&[1; 256]).ack_req());
    d.expect_aeth(d.peer_psn(0), ACK, 0);
    // Its slot may be overwritten from now on, as far as the engine is concerned.
    assert_eq!(statuses(&d.received()), []);
    d.say(&Say::new(Opcode::RcSendLast, d.peer_psn(1)).payload(&[2; 8]).ack_req());
    d.expect_aeth(d.peer_psn(1), ACK, 1);
    assert_eq!(statuses(&d.received()), ok([0]));
    assert_eq!(d.memory(4096 + 255, 3), [1, 2, 2]);
}

#[test]
fn acks_say_nothing_about_credits() {
    let (mut d, srq) = on_srq_of(QpType::Rc, Profile::ConnectX);
    for wr_id in 0..4 {
        post(&mut d, srq, wr_id, 8);
    }
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
}

#[test]
fn the_limit_is_told_once_and_only_when_armed() {
    let (mut d, srq) = on_srq();
    for wr_id in 0..6 {
        post(&mut d, srq, wr_id, 8);
    }
    let mut next = 0;
    let mut take = |d: &mut Dialogue| {
        d.say(&send_only(d, next, &[1; 8]));
        d.expect_aeth(d.peer_psn(next), ACK, next + 1);
        next += 1;
    };
    take(&mut d);
    assert_eq!(limit_events(&mut d, srq), 0, "it is not armed");
    assert_eq!(set_limit(&mut d, srq, 4), Ok(Outcome::Done));
    assert_eq!(limit(&mut d, srq), 4);
    take(&mut d);
    assert_eq!(limit_events(&mut d, srq), 0, "four are left");
    take(&mut d);
    assert_eq!(limit_events(&mut d, srq), 1, "three are left");
    assert_eq!(limit(&mut d, srq), 0);
    take(&mut d);
    assert_eq!(limit_events(&mut d, srq), 0, "once");
    assert_eq!(set_limit(&mut d, srq, SIZE), Ok(Outcome::Done));
    assert_eq!(limit_events(&mut d, srq), 1, "fewer are left already");
    assert_eq!(set_limit(&mut d, srq, SIZE + 1), Err(Errno::Invalid));
}

#[test]
fn a_queue_pair_that_fails_says_so_and_leaves_the_others_their_receives() {
    let (mut d, srq) = on_srq();
    for wr_id in 0..3 {
        post(&mut d, srq, wr_id, 512);
    }
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&[1; 256]));
    d.say(&Say::new(Opcode::RcWriteMiddle, d.peer_psn(1)).payload(&[1; 256]));
    assert_eq!(d.hear().aeth().0, INVALID);
    assert_eq!(statuses(&d.received()), [(0, WcStatus::RemInvReqErr)]);
    assert_eq!(d.events(), [AsyncEventType::QpLastWqeReached]);
    assert_eq!(d.world.hosts()[0].srq_posted(srq), 2, "they are another's");
}

#[test]
fn a_queue_pair_that_the_program_stops_flushes_only_the_receive_in_use() {
    for state in [QpState::Err, QpState::Reset] {
        let (mut d, srq) = on_srq();
        for wr_id in 0..3 {
            post(&mut d, srq, wr_id, 512);
        }
        d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&[1; 256]));
        d.expect_silence();
        let qp = d.nic.qp;
        d.world.host(0).set_state(qp, state);
        assert_eq!(statuses(&d.received()), [(0, WcStatus::WrFlushErr)]);
        let events = if state == QpState::Err { 1 } else { 0 };
        assert_eq!(d.events(), vec![AsyncEventType::QpLastWqeReached; events]);
    }
}

#[test]
fn a_queue_pair_that_is_destroyed_gives_its_receive_back() {
    let (mut d, srq) = on_srq();
    post(&mut d, srq, 0, 512);
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&[1; 256]));
    d.expect_silence();
    let qp = d.nic.qp;
    d.world.host(0).destroy_qp(qp);
    assert_eq!(statuses(&d.received()), [(0, WcStatus::WrFlushErr)]);
}

#[test]
fn a_receive_that_cannot_be_read_fails_its_queue_pair_only() {
    let (mut d, srq) = on_srq();
    let sge = d.nic.mr.sge(0, 8);
    d.world.host(0).post_srq_recv(srq, 7, &[rnic_abi::wqe::Sge { lkey: 1, ..sge }]).unwrap();
    post(&mut d, srq, 1, 8);
    d.say(&send_only(&d, 0, &[1; 8]));
    assert_eq!(d.hear().aeth().0, OPERATIONAL);
    assert_eq!(statuses(&d.received()), [(7, WcStatus::LocProtErr)]);
    assert_eq!(d.world.hosts()[0].srq_posted(srq), 1);
}

#[test]
fn its_receives_belong_to_its_protection_domain() {
    let (mut d, _) = on_srq();
    let host = d.world.host(0);
    let other_pd = host.alloc_pd();
    let mr = host.new_mr(other_pd, 4096, full_access());
    let srq = host.create_srq(other_pd, 4, 1).unwrap();
    let setup = QpSetup { srq: Some(srq), ..QpSetup::new(d.nic.pd, d.nic.send_cq) };
    let qp = d.world.host(0).create_qp(QpSetup { recv_cq: d.nic.recv_cq, ..setup });
    let (peer, number) = (rnic_sim::dialogue::PEER, rnic_sim::dialogue::PEER_QPN);
    let connection = d.connection;
    d.world.host(0).connect(qp, &connection, peer, number);
    d.nic.qp = qp;
    d.world.host(0).post_srq_recv(srq, 1, &[mr.sge(0, 8)]).unwrap();
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    assert_eq!(statuses(&d.received()), ok([1]));
    // What is of the queue pair's own domain is not reached through it.
    let foreign = d.nic.mr.sge(0, 8);
    d.world.host(0).post_srq_recv(srq, 2, &[foreign]).unwrap();
    d.say(&send_only(&d, 1, &[1; 8]));
    assert_eq!(d.hear().aeth().0, OPERATIONAL);
}

#[test]
fn an_unreliable_message_without_a_receive_is_lost() {
    let (mut d, srq) = on_srq_of(QpType::Uc, Profile::Spec);
    let send = |d: &Dialogue, k| Say::new(Opcode::UcSendOnly, d.peer_psn(k)).payload(&[1; 8]);
    d.say(&send(&d, 0));
    d.expect_silence();
    post(&mut d, srq, 1, 8);
    d.say(&send(&d, 1));
    d.expect_silence();
    assert_eq!(statuses(&d.received()), ok([1]));
}

#[test]
fn what_is_in_use_stays() {
    let (mut d, srq) = on_srq();
    let srq = d.world.hosts()[0].srq_handle(srq);
    let pd = d.nic.pd;
    assert_eq!(command(&mut d, ClientCommand::DestroySrq { srq }), Err(Errno::Busy));
    let qp = d.nic.qp;
    d.world.host(0).destroy_qp(qp);
    let mr = d.nic.mr.handle;
    assert_eq!(command(&mut d, ClientCommand::DeregMr { mr }), Ok(Outcome::Done));
    assert_eq!(command(&mut d, ClientCommand::DeallocPd { pd }), Err(Errno::Busy));
    assert_eq!(command(&mut d, ClientCommand::DestroySrq { srq }), Ok(Outcome::Done));
    assert_eq!(command(&mut d, ClientCommand::DeallocPd { pd }), Ok(Outcome::Done));
    assert_eq!(command(&mut d, ClientCommand::DestroySrq { srq }), Err(Errno::NoEntry));
}

#[test]
fn a_shared_queue_of_another_client_does_not_exist() {
    let (mut d, srq) = on_srq();
    let srq = d.world.hosts()[0].srq_handle(srq);
    let now = d.world.now();
    for foreign in [
        ClientCommand::QuerySrq { srq },
        ClientCommand::SetSrqLimit { srq, limit: 1 },
        ClientCommand::DestroySrq { srq },
    ] {
        let command = Command::Client(rnic_core::ClientId(2), foreign);
        let refused = d.world.host(0).engine.execute(now, command);
        assert_eq!(refused.map_err(|error| error.errno), Err(Errno::NoEntry));
    }
}

/// Copied, or by reference: a queue pair of the same device is a peer like any other.
#[test]
fn a_queue_pair_may_be_its_own_peer() {
    for (qp_type, keeps_internal) in [(QpType::Rc, false), (QpType::Rc, true), (QpType::Uc, true)] {
        let port = PortConfig { max_segments: 16, keeps_internal, ..PortConfig::frames() };
        let mut world = World::new(&WorldConfig { ports: vec![port], ..WorldConfig::pair(0) });
        let end = End::new(&mut world, 0, |_| {});
        let host = world.host(0);
        host.memory.is_copied_from = true;
        let srq = host.create_srq(end.pd, 4, 2).unwrap();
        let setup = QpSetup { qp_type, srq: Some(srq), ..QpSetup::new(end.pd, end.send_cq) };
        let qp = host.create_qp(QpSetup { recv_cq: end.recv_cq, ..setup });
        let (ip, qpn) = (host.ip, host.qpn(qp));
        let connection = Connection { sq_psn: 0, rq_psn: 0, ..Connection::default() };
        host.connect(qp, &connection, ip, qpn);
        for len in [0, 1, 64, 1024, 5000, 60_000] {
            let data = pattern(len, len + 1);
            world.host(0).write_bytes(end.mr.addr, &data);
            let len = u32::try_from(len).unwrap();
            world.host(0).post_srq_recv(srq, 5, &[end.mr.sge(400_000, len)]).unwrap();
            let send = SendWr::send(7, &[end.mr.sge(0, len)]);
            world.host(0).post_send(qp, &send).unwrap();
            world.run_to_silence(PATIENCE);
            world.check();
            assert_eq!(statuses(&world.host(0).drain(end.send_cq)), ok([7]));
            assert_eq!(statuses(&world.host(0).drain(end.recv_cq)), ok([5]));
            assert!(world.host(0).bytes(end.mr.addr + 400_000, len.into()) == data, "{len}");
        }
    }
}

/// Sixteen queue pairs take from one queue, over links that lose and reorder: every receive
/// completes once, and every message arrives once and whole.
#[test]
fn many_queue_pairs_share_fairly_and_once() {
    const QPS: usize = 16;
    const ROUNDS: u64 = 20;
    const LEN: u64 = 700;
    for seed in 0..8 {
        let mut config =
            WorldConfig { ports: vec![PortConfig::frames(); 2], ..WorldConfig::pair(seed) };
        config.faults.loss = if seed % 2 == 0 { 0 } else { 20_000 };
        config.faults.reorder = config.faults.loss;
        let mut world = World::new(&config);
        let sender = End::new(&mut world, 0, |_| {});
        let receiver = End::new(&mut world, 1, |_| {});
        let srq = world.host(1).create_srq(receiver.pd, 2 * QPS as u32, 1).unwrap();
        let pairs: Vec<_> = (0..QPS)
            .map(|_| {
                let setup = QpSetup::new(sender.pd, sender.send_cq);
                let a = world.host(0).create_qp(QpSetup { recv_cq: sender.recv_cq, ..setup });
                let setup =
                    QpSetup { srq: Some(srq), ..QpSetup::new(receiver.pd, receiver.send_cq) };
                let b = world.host(1).create_qp(QpSetup { recv_cq: receiver.recv_cq, ..setup });
                let connection = Connection { path_mtu: 1, ..Connection::default() };
                world.connect((0, a), (1, b), &connection);
                (a, world.host(1).qpn(b))
            })
            .collect();
        let mut posted = 0;
        let mut taken = [0; QPS];
        for round in 0..ROUNDS {
            while world
                .host(1)
                .post_srq_recv(srq, posted, &[receiver.mr.sge(posted % 64 * LEN, LEN as u32)])
                .is_ok()
            {
                posted += 1;
            }
            for (nth, (qp, _)) in (0..).zip(&pairs) {
                let data = pattern(LEN, round * 100 + nth);
                world.host(0).write_bytes(sender.mr.addr + nth * LEN, &data);
                let send = SendWr::send(nth, &[sender.mr.sge(nth * LEN, LEN as u32)]);
                world.host(0).post_send(*qp, &send.with_imm(nth as u32)).unwrap();
            }
            world.run_to_silence(PATIENCE);
            world.check();
            assert_eq!(world.host(0).drain(sender.send_cq).len(), QPS);
            for cqe in world.host(1).drain(receiver.recv_cq) {
                assert_eq!((cqe.status, u64::from(cqe.byte_len)), (WcStatus::Success, LEN));
                let nth = pairs.iter().position(|(_, qpn)| *qpn == cqe.qpn).unwrap();
                assert_eq!(cqe.imm_or_key as usize, nth);
                let at = receiver.mr.addr + cqe.wr_id % 64 * LEN;
                let data = pattern(LEN, round * 100 + nth as u64);
                assert!(world.host(1).bytes(at, LEN) == data, "seed {seed}: {cqe:?}");
                taken[nth] += 1;
            }
        }
        assert_eq!(taken, [ROUNDS; QPS]);
    }
}
