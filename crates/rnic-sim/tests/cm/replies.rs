//! A peer answers our request.

use crate::peer::{COMM, GUID, Talk, connect, rej, rep};
use rnic_core::cm::{CmError, Connect, Happening, PrivateData};
use rnic_sim::cm::way;
use roce_wire::cm::{AboutMessage, CmMessage, Mra, RejectReason, Rep};
use roce_wire::{Psn, Qpn};

#[test]
fn a_request_says_what_linux_says() {
    let mut talk = Talk::listening();
    let (_, req) = talk.connecting(0x300);
    assert_eq!((req.service_id, req.local_qpn.value()), (0x0106_1c06, 0x300));
    assert_eq!((req.remote_cm_response_timeout, req.local_cm_response_timeout), (20, 20));
    assert_eq!((req.max_cm_retries, req.retry_count, req.rnr_retry_count), (15, 6, 7));
    assert_eq!((req.primary.local_lid, req.primary.hop_limit), (0xffff, 64));
    assert_eq!((req.primary.flow_label, req.primary.local_ack_timeout), (0x1_2345, 17));
    assert_eq!((req.private_data[0], req.private_data[1]), (0, 0x40));
    assert_eq!(&req.private_data[36..42], b"hello\0");
}

#[test]
fn a_connection_that_the_peer_accepts_waits_for_the_program() {
    let mut talk = Talk::listening();
    let (id, req) = talk.connecting(0x300);
    talk.say(CmMessage::Rep(rep(&req, 0x200)));
    let event = talk.cm.next_event().expect("an event");
    let Happening::Response(response) = event.what else { panic!("{event:?}") };
    assert_eq!((response.offer.qpn.value(), response.starting_psn), (0x200, Psn::new(0x77)));
    assert_eq!(event.private.as_slice(), [5; 196]);
    // The peer asks once more meanwhile.
    talk.say(CmMessage::Rep(rep(&req, 0x200)));
    let CmMessage::Mra(mra) = talk.hear() else { panic!("no MRA") };
    assert_eq!(mra.about, AboutMessage::Rep);
    talk.cm.establish(id).expect("accepted");
    let CmMessage::Rtu(rtu) = talk.hear() else { panic!("no RTU") };
    assert_eq!((rtu.remote_comm_id, rtu.local_comm_id), (COMM + 1, req.local_comm_id));
    talk.silence();
}

#[test]
fn a_reply_that_comes_again_is_answered_again_and_a_forged_one_is_not() {
    let mut talk = Talk::listening();
    let (id, req) = talk.connecting(0x300);
    talk.say(CmMessage::Rep(rep(&req, 0x200)));
    assert!(matches!(talk.event(id), Happening::Response(_)));
    talk.cm.establish(id).expect("accepted");
    let CmMessage::Rtu(first) = talk.hear() else { panic!("no RTU") };
    for _ in 0..3 {
        talk.say(CmMessage::Rep(rep(&req, 0x200)));
        let CmMessage::Rtu(again) = talk.hear() else { panic!("no RTU") };
        assert_eq!(again, first);
    }
    talk.say(CmMessage::Rep(rep(&req, 0x201)));
    talk.say(CmMessage::Rep(Rep { local_comm_id: 1, ..rep(&req, 0x200) }));
    talk.silence();
    assert_eq!(talk.cm.counters().cm_strangers, 2);
}

#[test]
fn a_reply_about_nothing_is_refused() {
    let mut talk = Talk::listening();
    let (_, req) = talk.connecting(0x300);
    let unknown = Rep { remote_comm_id: req.local_comm_id ^ 1, ..rep(&req, 0x200) };
    talk.say(CmMessage::Rep(unknown));
    let rej = talk.is_refused(RejectReason::INVALID_COMM_ID);
    assert_eq!(rej.about, AboutMessage::Rep);
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (unknown.remote_comm_id, COMM + 1));
    talk.silence();
}

#[test]
fn only_the_peer_of_a_connection_speaks_of_it() {
    let mut talk = Talk::listening();
    let (id, req) = talk.connecting(0x300);
    talk.say_from(&way(0, 2), CmMessage::Rep(rep(&req, 0x200)));
    talk.is_refused(RejectReason::INVALID_COMM_ID);
    talk.silence();
    assert_eq!(talk.cm.counters().cm_strangers, 1);
    talk.say(CmMessage::Rep(rep(&req, 0x200)));
    assert!(matches!(talk.event(id), Happening::Response(_)));
}

#[test]
fn a_reply_with_a_queue_pair_that_cannot_be_ends_the_attempt() {
    let mut talk = Talk::listening();
    let (id, req) = talk.connecting(0x300);
    talk.say(CmMessage::Rep(rep(&req, 1)));
    talk.is_refused(RejectReason::NO_QP);
    assert_eq!(talk.event(id), Happening::Rejected(RejectReason::NO_QP.0));
    // A queue pair that is connected already.
    let (first, req) = talk.connecting(0x301);
    talk.say(CmMessage::Rep(rep(&req, 0x200)));
    assert!(matches!(talk.event(first), Happening::Response(_)));
    talk.cm.establish(first).expect("accepted");
    let CmMessage::Rtu(_) = talk.hear() else { panic!("no RTU") };
    let (second, req) = talk.connecting(0x302);
    talk.say(CmMessage::Rep(rep(&req, 0x200)));
    assert_eq!(talk.event(first), Happening::Disconnected);
    let CmMessage::Dreq(_) = talk.hear() else { panic!("no DREQ") };
    talk.is_refused(RejectReason::STALE_CONNECTION);
    assert_eq!(talk.event(second), Happening::Rejected(RejectReason::STALE_CONNECTION.0));
}

#[test]
fn a_request_is_sent_sixteen_times_and_then_given_up() {
    let mut talk = Talk::listening();
    let (id, req) = talk.connecting(0x300);
    for _ in 0..15 {
        talk.pass(4607);
        talk.silence();
        talk.pass(1);
        assert_eq!(talk.hear(), CmMessage::Req(req));
    }
    talk.pass(4608);
    assert_eq!(talk.event(id), Happening::Unreachable);
    let rej = talk.is_refused(RejectReason::TIMEOUT);
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (req.local_comm_id, 0));
    assert_eq!(&rej.info[..8], &req.local_ca_guid.to_be_bytes());
    talk.silence();
    assert_eq!(talk.cm.counters().cm_retransmitted, 15);
    // It may try again.
    talk.cm.connect(talk.now, id, &connect(0x300)).expect("idle");
}

#[test]
fn a_peer_may_ask_for_more_time_once() {
    let mut talk = Talk::listening();
    let (_, req) = talk.connecting(0x300);
    let mra = |about, service_timeout| {
        CmMessage::Mra(Mra {
            local_comm_id: COMM,
            remote_comm_id: req.local_comm_id,
            about,
            service_timeout,
            private_data: [0; Mra::PRIVATE_DATA_LEN],
        })
    };
    talk.say(mra(AboutMessage::Rep, 31));
    talk.say(mra(AboutMessage::Req, 24));
    talk.pass(60_000);
    talk.silence();
    talk.say(mra(AboutMessage::Req, 24));
    talk.pass(6050);
    assert_eq!(talk.hear(), CmMessage::Req(req));
    assert_eq!(talk.cm.counters().cm_out_of_state, 2);
    talk.pass(4608);
    assert_eq!(talk.hear(), CmMessage::Req(req));
}

#[test]
fn a_refusal_tells_its_reason_and_what_the_peer_added() {
    let mut talk = Talk::listening();
    let (id, req) = talk.connecting(0x300);
    let reason = RejectReason::CONSUMER_DEFINED;
    talk.say(CmMessage::Rej(rej((0, req.local_comm_id), AboutMessage::Req, reason)));
    let event = talk.cm.next_event().expect("an event");
    assert_eq!((event.id, event.what), (id, Happening::Rejected(28)));
    assert_eq!(event.private.as_slice(), [3; 148]);
    talk.silence();
    talk.cm.connect(talk.now, id, &connect(0x300)).expect("the queue pair is free again");
}

#[test]
fn a_peer_that_has_given_up_is_found_by_its_own_identifier() {
    let mut talk = Talk::listening();
    let id = talk.requested();
    let mut timeout = rej((COMM, 0), AboutMessage::Req, RejectReason::TIMEOUT);
    timeout.info[..8].copy_from_slice(&GUID.to_be_bytes());
    talk.say_from(&way(0, 2), CmMessage::Rej(timeout));
    talk.silence();
    talk.say(CmMessage::Rej(timeout));
    assert_eq!(talk.event(id), Happening::Rejected(RejectReason::TIMEOUT.0));
    assert_eq!(talk.cm.release(talk.now, id), Ok(()));
    assert_eq!(talk.cm.len(), 1);
}

#[test]
fn numbers_that_no_message_carries_are_refused() {
    let mut talk = Talk::listening();
    let good = connect(0x300);
    let bad = [
        Connect { retry_count: 8, ..good },
        Connect { ack_timeout: 32, ..good },
        Connect { private: PrivateData::new(&[0; 57]).expect("fits"), ..good },
        Connect { offer: rnic_core::cm::Offer { rnr_retry_count: 8, ..good.offer }, ..good },
        Connect { offer: rnic_core::cm::Offer { qpn: Qpn::GSI, ..good.offer }, ..good },
    ];
    let owner = crate::peer::OWNER;
    let space = roce_wire::cm::PortSpace::Tcp;
    let (id, _) = talk.cm.bind(owner, space, None, 0, false).expect("free");
    for connect in bad {
        assert_eq!(talk.cm.connect(talk.now, id, &connect), Err(CmError::Invalid));
    }
    assert_eq!(PrivateData::new(&[0; 197]), None);
    talk.silence();
    talk.cm.connect(talk.now, id, &good).expect("idle");
}
