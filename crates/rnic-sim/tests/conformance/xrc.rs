//! XRC: requests that name the shared receive queue that they are for.

use crate::{ACCESS, INVALID, OPERATIONAL, SEQUENCE, ok, small_mtu, statuses};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{AsyncEventType, QpState, QpType, WcOpcode, WcStatus};
use rnic_core::command::ClientId;
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN, Say};
use rnic_sim::srq::SrqId;
use rnic_sim::verbs::{CqId, Mr, QpSetup, Remote, SendWr, full_access};
use rnic_sim::xrc::PRIVATE;
use roce_wire::{Feth, Ieth, Opcode, RKey, Syndrome};

/// A shared receive queue of a domain, with a protection domain and a completion queue of its own.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) srq: SrqId,
    pub(crate) srqn: u32,
    pub(crate) pd: u32,
    pub(crate) cq: CqId,
    pub(crate) mr: Mr,
}

/// Adds one to the host of a dialogue.
pub(crate) fn place(d: &mut Dialogue, xrcd: u32) -> Place {
    let host = d.world.host(0);
    let (pd, cq) = (host.alloc_pd(), host.create_cq(64));
    let mr = host.new_mr(pd, 1 << 20, full_access());
    let srq = host.create_xrc_srq(pd, xrcd, cq, 16);
    let place = Place { srq, srqn: host.srqn(srq), pd, cq, mr };
    for wr_id in 0..8 {
        host.post_srq_recv(srq, wr_id, &[mr.sge(4096 + wr_id * 1024, 600)]).expect("room");
    }
    place
}

/// A dialogue with a target, its domain, and two shared receive queues there.
pub(crate) fn target() -> (Dialogue, u32, [Place; 2]) {
    let mut d = Dialogue::new(small_mtu());
    let (old, connection) = (d.nic.qp, d.connection);
    let host = d.world.host(0);
    let xrcd = host.open_xrcd(PRIVATE);
    let qp = host.create_target(xrcd);
    host.connect(qp, &connection, PEER, PEER_QPN);
    host.destroy_qp(old);
    d.nic.qp = qp;
    let places = [place(&mut d, xrcd), place(&mut d, xrcd)];
    (d, xrcd, places)
}

fn send(d: &Dialogue, offset: u32, srqn: u32, payload: &[u8]) -> Say {
    Say::new(Opcode::XrcSendOnly, d.peer_psn(offset)).payload(payload).ack_req().srqn(srqn)
}

fn write(d: &Dialogue, offset: u32, srqn: u32, to: Remote, payload: &[u8]) -> Say {
    let len = u32::try_from(payload.len()).unwrap();
    let say = Say::new(Opcode::XrcWriteOnly, d.peer_psn(offset)).payload(payload).ack_req();
    say.reth(to.addr, to.rkey, len).srqn(srqn)
}

#[track_caller]
fn expect_aeth(d: &mut Dialogue, offset: u32, syndrome: Syndrome, msn: u32) {
    let heard = d.expect(Opcode::XrcAck, d.peer_psn(offset));
    assert_eq!(heard.aeth(), (syndrome, msn));
}

fn received(d: &mut Dialogue, place: &Place) -> Vec<Cqe> {
    d.world.run_for(50_000);
    d.world.check();
    d.world.host(0).drain(place.cq)
}

#[test]
fn each_message_takes_a_receive_of_the_queue_that_it_names() {
    let (mut d, _, [one, other]) = target();
    let qpn = d.world.hosts()[0].qpn(d.nic.qp);
    // One burst: where each completes must not depend on the last of it.
    d.say_all(&[
        send(&d, 0, one.srqn, &[1; 200]),
        send(&d, 1, other.srqn, &[2; 200]),
        Say::new(Opcode::XrcSendFirst, d.peer_psn(2)).payload(&[3; 256]).srqn(one.srqn),
        Say::new(Opcode::XrcSendLast, d.peer_psn(3)).payload(&[3; 4]).srqn(one.srqn),
        write(&d, 4, other.srqn, other.mr.remote(0), &[4; 8]),
    ]);
    expect_aeth(&mut d, 4, Syndrome::ACK, 4);
    let (first, second) = (received(&mut d, &one), received(&mut d, &other));
    assert_eq!((statuses(&first), statuses(&second)), (ok([0, 1]), ok([0])));
    assert_eq!(first.iter().map(|cqe| cqe.byte_len).collect::<Vec<_>>(), [200, 260]);
    assert!(first.iter().chain(&second).all(|cqe| cqe.qpn == qpn));
    let host = d.world.host(0);
    assert_eq!(host.bytes(one.mr.addr + 4096, 200), [1; 200]);
    assert_eq!(host.bytes(other.mr.addr + 4096, 200), [2; 200]);
    assert_eq!(host.bytes(one.mr.addr + 4096 + 1024, 260), [3; 260]);
    assert_eq!(host.bytes(other.mr.addr, 8), [4; 8]);
}

#[test]
fn immediate_data_of_a_write_completes_at_the_queue_that_it_names() {
    let (mut d, _, [one, other]) = target();
    let say = Say::new(Opcode::XrcWriteOnlyImm, d.peer_psn(0)).payload(&[5; 8]).ack_req();
    d.say(&say.reth(other.mr.addr, other.mr.rkey, 8).srqn(other.srqn));
    expect_aeth(&mut d, 0, Syndrome::ACK, 1);
    let cqes = received(&mut d, &other);
    assert_eq!(statuses(&cqes), ok([0]));
    assert_eq!((cqes[0].opcode, cqes[0].byte_len), (WcOpcode::RecvWriteImm, 8));
    assert_eq!(received(&mut d, &one), []);
}

#[test]
fn a_number_that_the_domain_does_not_have_is_refused() {
    for case in 0..4 {
        let (mut d, _, [one, _]) = target();
        let elsewhere = d.world.host(0).open_xrcd(PRIVATE);
        let foreign = place(&mut d, elsewhere);
        let srqn = match case {
            0 => foreign.srqn,
            1 => one.srqn ^ 1,
            2 => 0,
            _ => {
                d.world.host(0).destroy_srq(one.srq).unwrap();
                one.srqn
            }
        };
        d.say(&send(&d, 0, srqn, &[1; 8]));
        expect_aeth(&mut d, 0, INVALID, 0);
        assert_eq!(d.events(), [AsyncEventType::QpReqErr], "{case}");
        assert_eq!(d.state(), QpState::Err);
        assert_eq!(received(&mut d, &foreign), []);
        assert_eq!(d.world.hosts()[0].engine.counters().resp_remote_invalid_request, 1);
    }
}

/// The targets whose receives it gets at that moment go with a completion queue, and no others.
#[test]
fn an_overflowing_cq_takes_the_targets_along_that_complete_there() {
    let (mut d, xrcd, [one, other]) = target();
    let connection = d.connection;
    let host = d.world.host(0);
    let small = host.create_cq(1);
    let srq = host.create_xrc_srq(one.pd, xrcd, small, 4);
    let (srqn, handle) = (host.srqn(srq), host.cq_handle(small));
    for wr_id in 0..3 {
        host.post_srq_recv(srq, wr_id, &[]).expect("room");
    }
    let idle = host.create_target(xrcd);
    host.connect(idle, &connection, PEER, PEER_QPN);
    // The first message completes elsewhere.
    d.say_all(&[send(&d, 0, other.srqn, &[]), send(&d, 1, srqn, &[]), send(&d, 2, srqn, &[])]);
    expect_aeth(&mut d, 2, OPERATIONAL, 2);
    let host = d.world.host(0);
    let events = host.take_async_events();
    let told: Vec<_> = events.iter().map(|told| (told.event, told.element)).collect();
    let fatal = (AsyncEventType::QpFatal, host.qp_handle(d.nic.qp));
    assert_eq!(told, [(AsyncEventType::CqErr, handle), fatal]);
    assert_eq!(host.state(idle), QpState::Rts);
    assert_eq!((d.state(), statuses(&received(&mut d, &other))), (QpState::Err, ok([0])));
    assert_eq!(statuses(&d.world.host(0).drain(small)), ok([0]));
}

#[test]
fn a_write_that_names_no_queue_of_the_domain_writes_nothing() {
    let (mut d, _, [one, _]) = target();
    d.say(&write(&d, 0, one.srqn ^ 1, one.mr.remote(0), &[1; 8]));
    expect_aeth(&mut d, 0, INVALID, 0);
    assert_eq!(d.world.host(0).bytes(one.mr.addr, 8), [0; 8]);
}

#[test]
fn all_packets_of_a_message_name_one_queue() {
    let (mut d, _, [one, other]) = target();
    d.say(&Say::new(Opcode::XrcSendFirst, d.peer_psn(0)).payload(&[1; 256]).srqn(one.srqn));
    d.say(&Say::new(Opcode::XrcSendLast, d.peer_psn(1)).payload(&[1; 4]).srqn(other.srqn));
    expect_aeth(&mut d, 1, INVALID, 0);
    // The receive that the message had begun to fill is told where it was posted.
    assert_eq!(statuses(&received(&mut d, &one)), [(0, WcStatus::RemInvReqErr)]);
    assert_eq!(received(&mut d, &other), []);
}

#[test]
fn keys_are_those_of_the_named_queues_domain() {
    for reads in [false, true] {
        let (mut d, _, [one, other]) = target();
        d.world.host(0).write_bytes(one.mr.addr, &[7; 8]);
        let ask = |d: &Dialogue, offset, srqn| {
            let to = one.mr.remote(0);
            match reads {
                false => write(d, offset, srqn, to, &[1; 8]),
                true => Say::new(Opcode::XrcReadRequest, d.peer_psn(offset))
                    .reth(to.addr, to.rkey, 8)
                    .srqn(srqn),
            }
        };
        d.say(&ask(&d, 0, one.srqn));
        match reads {
            false => expect_aeth(&mut d, 0, Syndrome::ACK, 1),
            true => {
                let heard = d.expect(Opcode::XrcReadRespOnly, d.peer_psn(0));
                assert_eq!(heard.payload, [7; 8]);
            }
        }
        d.say(&ask(&d, 1, other.srqn));
        expect_aeth(&mut d, 1, ACCESS, 1);
        assert_eq!(d.events(), [AsyncEventType::QpAccessErr]);
    }
}

/// Answers are owed when the next request names another queue.
#[test]
fn an_answer_keeps_the_domain_of_its_request() {
    let (mut d, _, [one, other]) = target();
    d.world.host(0).write_bytes(one.mr.addr, &[7; 1000]);
    let read = Say::new(Opcode::XrcReadRequest, d.peer_psn(0))
        .reth(one.mr.addr, one.mr.rkey, 1000)
        .srqn(one.srqn);
    let add = Say::new(Opcode::XrcFetchAdd, d.peer_psn(5))
        .atomic(other.mr.addr, other.mr.rkey, 3, 0)
        .srqn(other.srqn);
    d.say_all(&[read.clone(), send(&d, 4, other.srqn, &[2; 8]), add]);
    let heard = d.hear_burst();
    let opcodes: Vec<_> = heard.iter().map(|heard| heard.opcode()).collect();
    let expected = [
        Opcode::XrcReadRespFirst,
        Opcode::XrcReadRespMiddle,
        Opcode::XrcReadRespMiddle,
        Opcode::XrcReadRespLast,
    ];
    assert_eq!(opcodes[..4], expected);
    assert!(heard[1].headers.aeth.is_none() && heard[1].headers.xrceth.is_none());
    assert_eq!(opcodes.last(), Some(&Opcode::XrcAtomicAck));
    assert_eq!(d.world.host(0).bytes(other.mr.addr, 8), [3, 0, 0, 0, 0, 0, 0, 0]);
    // Its duplicate is answered as it was.
    d.say(&read);
    let heard = d.hear_burst();
    assert_eq!(heard.len(), 4);
    assert!(heard.iter().all(|heard| heard.payload.iter().all(|byte| *byte == 7)));
}

/// What is not the next request names nothing: it is executed already, or asked for again.
#[test]
fn only_the_next_request_is_asked_for_its_queue() {
    let (mut d, _, [one, _]) = target();
    d.say(&send(&d, 0, one.srqn, &[1; 8]));
    expect_aeth(&mut d, 0, Syndrome::ACK, 1);
    d.say(&send(&d, 0, one.srqn ^ 1, &[1; 8]));
    expect_aeth(&mut d, 0, Syndrome::ACK, 1);
    d.say(&send(&d, 2, one.srqn ^ 1, &[1; 8]));
    expect_aeth(&mut d, 1, SEQUENCE, 1);
    assert_eq!(statuses(&received(&mut d, &one)), ok([0]));
}

#[test]
fn without_a_receive_the_peer_is_asked_to_wait() {
    let (mut d, xrcd, [one, _]) = target();
    let host = d.world.host(0);
    let empty = host.create_xrc_srq(one.pd, xrcd, one.cq, 16);
    let srqn = host.srqn(empty);
    d.say(&send(&d, 0, srqn, &[1; 8]));
    let heard = d.expect(Opcode::XrcAck, d.peer_psn(0));
    assert!(matches!(heard.aeth().0, Syndrome::RnrNak { .. }));
    d.world.host(0).post_srq_recv(empty, 77, &[one.mr.sge(0, 8)]).unwrap();
    d.say(&send(&d, 0, srqn, &[1; 8]));
    expect_aeth(&mut d, 0, Syndrome::ACK, 1);
    assert_eq!(statuses(&received(&mut d, &one)), ok([77]));
}

#[test]
fn the_limit_of_the_named_queue_is_told() {
    let (mut d, _, [one, _]) = target();
    d.world.host(0).set_srq_limit(one.srq, 8).unwrap();
    d.say(&send(&d, 0, one.srqn, &[1; 8]));
    expect_aeth(&mut d, 0, Syndrome::ACK, 1);
    let element = d.world.hosts()[0].srq_handle(one.srq);
    let events = d.world.host(0).take_async_events();
    assert!(events.iter().any(|event| {
        (event.event, event.element) == (AsyncEventType::SrqLimitReached, element)
    }));
}

#[test]
fn a_queue_that_goes_takes_its_receive_and_ends_the_message() {
    let (mut d, _, [one, other]) = target();
    d.say(&Say::new(Opcode::XrcSendFirst, d.peer_psn(0)).payload(&[1; 256]).srqn(one.srqn));
    d.expect_silence();
    d.world.host(0).destroy_srq(one.srq).unwrap();
    d.say(&Say::new(Opcode::XrcSendLast, d.peer_psn(1)).payload(&[1; 4]).srqn(one.srqn));
    expect_aeth(&mut d, 1, INVALID, 0);
    assert_eq!(received(&mut d, &one), []);
    assert_eq!(received(&mut d, &other), []);
}

#[test]
fn a_target_that_stops_flushes_only_the_receive_in_use_and_says_nothing_of_last_ones() {
    for state in [QpState::Err, QpState::Reset] {
        let (mut d, _, [one, _]) = target();
        d.say(&Say::new(Opcode::XrcSendFirst, d.peer_psn(0)).payload(&[1; 256]).srqn(one.srqn));
        d.expect_silence();
        let qp = d.nic.qp;
        d.world.host(0).set_state(qp, state);
        assert_eq!(statuses(&received(&mut d, &one)), [(0, WcStatus::WrFlushErr)]);
        assert_eq!(d.events(), []);
        assert_eq!(d.world.hosts()[0].srq_posted(one.srq), 7);
    }
}

/// Both have the target open: each is told.
#[test]
fn every_reference_gets_its_events() {
    let (mut d, xrcd, [one, _]) = target();
    let qpn = d.world.hosts()[0].qpn(d.nic.qp);
    let host = d.world.host(0);
    let (first, second) = (host.qp_handle(d.nic.qp), host.open_qp(xrcd, qpn).unwrap());
    assert_ne!(first, second);
    // A receive fails, and the program of the queue pair hears of it although it is not that of
    // the queue.
    let long = Say::new(Opcode::XrcSendFirst, d.peer_psn(0)).payload(&[1; 256]).srqn(one.srqn);
    d.say(&long);
    for k in 1..3 {
        let middle = Say::new(Opcode::XrcSendMiddle, d.peer_psn(k)).payload(&[1; 256]);
        d.say(&middle.srqn(one.srqn));
    }
    expect_aeth(&mut d, 2, INVALID, 0);
    assert_eq!(statuses(&received(&mut d, &one)), [(0, WcStatus::LocLenErr)]);
    let events = d.world.host(0).take_async_events();
    let told: Vec<_> = events.iter().map(|event| (event.element, event.event)).collect();
    let expected = [first, second].map(|handle| (handle, AsyncEventType::QpReqErr));
    assert_eq!(told, expected);
}

/// No key can be invalidated through a target, which binds no windows. Its programs must hear why
/// it ends: the completion goes to the program of the queue.
#[test]
fn every_reference_hears_of_a_bad_invalidation() {
    let (mut d, _, [one, _]) = target();
    let say = Say::new(Opcode::XrcSendOnlyInv, d.peer_psn(0)).payload(&[1; 8]).ack_req();
    let key = Ieth { rkey: RKey(one.mr.rkey) };
    d.say(&say.srqn(one.srqn).with(|h| h.ieth = Some(key)));
    d.expect_silence();
    assert_eq!(statuses(&received(&mut d, &one)), [(0, WcStatus::RemInvReqErr)]);
    assert_eq!(d.events(), [AsyncEventType::QpReqErr]);
}

/// What comes behind a message whose completion is lost is not acknowledged, wherever it completes.
#[test]
fn nothing_behind_a_lost_completion_arrives_at_another_queue() {
    let (mut d, xrcd, [one, _]) = target();
    let host = d.world.host(0);
    let cq = host.create_cq(1);
    let small = host.create_xrc_srq(one.pd, xrcd, cq, 16);
    let srqn = host.srqn(small);
    for wr_id in 0..2 {
        host.post_srq_recv(small, wr_id, &[one.mr.sge(0, 64)]).expect("room");
    }
    d.say_all(&[
        send(&d, 0, srqn, &[1; 8]),
        send(&d, 1, srqn, &[2; 8]),
        send(&d, 2, one.srqn, &[3; 8]),
    ]);
    expect_aeth(&mut d, 1, OPERATIONAL, 1);
    assert_eq!(statuses(&received(&mut d, &one)), [(0, WcStatus::WrFlushErr)]);
}

#[test]
fn a_client_that_goes_leaves_the_target_to_the_others() {
    let (mut d, xrcd, [one, _]) = target();
    let other = ClientId(7);
    let host = d.world.host(0);
    host.add_client(other);
    let qpn = host.qpn(d.nic.qp);
    // The domain of this test has no file, so only its own client can refer to the target.
    assert!(host.open_qp_as(other, xrcd, qpn).is_err());
    let again = host.open_qp(xrcd, qpn).unwrap();
    let first = host.qp_handle(d.nic.qp);
    host.close_reference(first).unwrap();
    d.say(&send(&d, 0, one.srqn, &[1; 8]));
    expect_aeth(&mut d, 0, Syndrome::ACK, 1);
    assert_eq!(statuses(&received(&mut d, &one)), ok([0]));
    d.world.host(0).close_reference(again).unwrap();
    d.say(&send(&d, 1, one.srqn, &[1; 8]));
    d.expect_silence();
    assert_eq!(d.world.hosts()[0].engine.counters().rx_no_qp, 1);
}

/// A dialogue with an initiator.
fn initiator() -> Dialogue {
    Dialogue::with(small_mtu(), rnic_sim::port::PortConfig::frames(), |setup: &mut QpSetup| {
        setup.qp_type = QpType::XrcSend;
    })
}

#[test]
fn every_request_names_its_queue() {
    let mut d = initiator();
    let remote = Remote { addr: 0x5000, rkey: 0x99 };
    let sge = d.nic.mr.sge(0, 600);
    let word = d.nic.mr.sge(0, 8);
    d.post_all(&[
        SendWr::send(1, &[sge]).named(0x0012_3456),
        SendWr::write(2, &[sge], remote).with_imm(5).named(0x00ff_fffe),
        SendWr::read(3, &[sge], remote).named(3),
        SendWr::fetch_add(4, word, remote, 1).named(4),
    ]);
    let heard = d.hear_burst();
    let named: Vec<_> = heard
        .iter()
        .map(|heard| (heard.opcode(), heard.headers.xrceth.map(|xrceth| xrceth.srq)))
        .collect();
    let expected = [
        (Opcode::XrcSendFirst, 0x0012_3456),
        (Opcode::XrcSendMiddle, 0x0012_3456),
        (Opcode::XrcSendLast, 0x0012_3456),
        (Opcode::XrcWriteFirst, 0x00ff_fffe),
        (Opcode::XrcWriteMiddle, 0x00ff_fffe),
        (Opcode::XrcWriteLastImm, 0x00ff_fffe),
        (Opcode::XrcReadRequest, 3),
        (Opcode::XrcFetchAdd, 4),
    ];
    assert_eq!(named, expected.map(|(opcode, srqn)| (opcode, Some(srqn))));
    let response = |opcode, k, len: usize| {
        Say::new(opcode, d.our_psn(k)).syndrome(Syndrome::ACK, 3).payload(&vec![9; len])
    };
    let middle = Say::new(Opcode::XrcReadRespMiddle, d.our_psn(7)).payload(&[9; 256]);
    let first = response(Opcode::XrcReadRespFirst, 6, 256);
    let last = response(Opcode::XrcReadRespLast, 8, 88);
    let mut result = Say::new(Opcode::XrcAtomicAck, d.our_psn(9)).syndrome(Syndrome::ACK, 4);
    result = result.with(|headers| {
        headers.atomic_ack = Some(roce_wire::headers::AtomicAckEth { original: 11 });
    });
    d.say_all(&[first, middle, last, result]);
    assert_eq!(statuses(&d.sent()), ok([1, 2, 3, 4]));
    assert_eq!(d.memory(0, 9), [11, 0, 0, 0, 0, 0, 0, 0, 9]);
}

#[test]
fn a_flush_and_an_atomic_write_use_keys_of_the_named_queues_domain() {
    let (mut d, _, [one, other]) = target();
    let request = |opcode, offset, srqn| {
        Say::new(opcode, d.peer_psn(offset)).reth(other.mr.addr, other.mr.rkey, 8).srqn(srqn)
    };
    let flush = |offset, srqn| {
        let feth = Feth::new(Feth::GLOBAL_VISIBILITY, Feth::RANGE);
        request(Opcode::XrcFlush, offset, srqn).with(|headers| headers.feth = Some(feth))
    };
    let word = |offset, srqn| request(Opcode::XrcAtomicWrite, offset, srqn).payload(b"in order");
    let asked = [word(0, other.srqn), flush(1, other.srqn), word(0, other.srqn)];
    let bad = flush(2, one.srqn);
    for (say, offset) in asked.iter().zip([0, 1, 0]) {
        d.say(say);
        let heard = d.expect(Opcode::XrcReadRespOnly, d.peer_psn(offset));
        assert_eq!((heard.aeth().0, heard.payload.len()), (Syndrome::ACK, 0));
    }
    assert_eq!(d.world.host(0).bytes(other.mr.addr, 8), *b"in order");
    d.say(&bad);
    expect_aeth(&mut d, 2, ACCESS, 2);
}

#[test]
fn a_flush_and_an_atomic_write_of_an_initiator_name_their_queue() {
    let mut d = initiator();
    let remote = Remote { addr: 0x5000, rkey: 0x99 };
    d.post_all(&[
        SendWr::flush(1, remote, 100).named(5),
        SendWr::atomic_write(2, d.nic.mr.sge(0, 8), remote).named(6),
    ]);
    for (offset, opcode, srqn) in [(0, Opcode::XrcFlush, 5), (1, Opcode::XrcAtomicWrite, 6)] {
        let heard = d.expect(opcode, d.our_psn(offset));
        assert_eq!(heard.headers.xrceth.map(|xrceth| xrceth.srq), Some(srqn));
        assert_eq!(heard.headers.feth.is_some(), opcode == Opcode::XrcFlush);
    }
    for offset in 0..2 {
        let done = Say::new(Opcode::XrcReadRespOnly, d.our_psn(offset));
        d.say(&done.syndrome(Syndrome::ACK, offset + 1));
    }
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn requests_to_an_initiator_are_dropped() {
    let mut d = initiator();
    d.say(&send(&d, 0, 1, &[1; 8]));
    d.expect_silence();
    assert_eq!(d.state(), QpState::Rts);
    assert_eq!(d.world.hosts()[0].engine.counters().rx_bad_transport, 1);
}

#[test]
fn a_refusal_of_the_named_queue_fails_the_request() {
    let mut d = initiator();
    d.post(&SendWr::send(1, &[d.nic.mr.sge(0, 8)]).named(3));
    d.expect(Opcode::XrcSendOnly, d.our_psn(0));
    d.say(&Say::new(Opcode::XrcAck, d.our_psn(0)).syndrome(INVALID, 0));
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(d.state(), QpState::Err);
}

#[test]
fn packets_of_rc_and_of_xrc_are_not_mixed() {
    let (mut d, _, [one, _]) = target();
    let rc = Say::new(Opcode::RcSendOnly, d.peer_psn(0)).payload(&[1; 8]).ack_req();
    d.say(&rc);
    d.expect_silence();
    // It sends nothing that could be answered.
    d.say(&Say::new(Opcode::XrcAck, d.our_psn(0)));
    d.expect_silence();
    let mut plain = Dialogue::new(small_mtu());
    plain.say(&send(&plain, 0, one.srqn, &[1; 8]));
    plain.expect_silence();
    for d in [&mut d, &mut plain] {
        assert_eq!(d.state(), QpState::Rts);
        assert_eq!(d.world.hosts()[0].engine.counters().rx_bad_transport, 1);
    }
}
