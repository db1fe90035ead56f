//! Connections end.

use crate::peer::{COMM, OWNER, QPN, Talk, accepted, drep, dreq, rej, rep, req};
use rnic_core::cm::{Happening, Owner};
use rnic_sim::cm::way;
use roce_wire::Qpn;
use roce_wire::cm::{AboutMessage, AlternatePath, CmMessage, Dreq, RejectReason, Req};

const OTHER: Owner = Owner { user: 0, place: 99 };

#[test]
fn a_peer_that_disconnects_is_answered_each_time() {
    let mut talk = Talk::listening();
    let (id, rep) = talk.established(0x300);
    talk.say(CmMessage::Dreq(dreq(&rep)));
    assert_eq!(talk.event(id), Happening::Disconnected);
    for _ in 0..2 {
        let CmMessage::Drep(drep) = talk.hear() else { panic!("no DREP") };
        assert_eq!((drep.remote_comm_id, drep.local_comm_id), (COMM, rep.local_comm_id));
        talk.silence();
        talk.say(CmMessage::Dreq(dreq(&rep)));
    }
    assert!(matches!(talk.hear(), CmMessage::Drep(_)));
    talk.pass(511);
    talk.silence();
    talk.pass(1);
    assert_eq!(talk.event(id), Happening::TimewaitExit);
    // Nothing is known of it any more.
    talk.say(CmMessage::Dreq(dreq(&rep)));
    assert!(matches!(talk.hear(), CmMessage::Drep(_)));
}

#[test]
fn a_disconnect_must_name_our_queue_pair_and_both_identifiers() {
    let mut talk = Talk::listening();
    let (id, rep) = talk.established(0x300);
    let good = dreq(&rep);
    talk.say(CmMessage::Dreq(Dreq { remote_qpn: Qpn::new(0x301), ..good }));
    talk.say(CmMessage::Dreq(Dreq { local_comm_id: COMM ^ 1, ..good }));
    talk.say_from(&way(0, 2), CmMessage::Dreq(good));
    talk.silence();
    assert_eq!(talk.cm.counters().cm_strangers, 3);
    talk.say(CmMessage::Dreq(good));
    assert_eq!(talk.event(id), Happening::Disconnected);
}

#[test]
fn a_peer_that_does_not_answer_a_disconnect_is_left() {
    let mut talk = Talk::listening();
    let (id, _) = talk.established(0x300);
    talk.cm.disconnect(talk.now, id).expect("it is up");
    for _ in 0..16 {
        assert!(matches!(talk.hear(), CmMessage::Dreq(_)));
        talk.silence();
        talk.pass(4096);
    }
    assert_eq!(talk.event(id), Happening::Disconnected);
    talk.pass(512);
    assert_eq!(talk.event(id), Happening::TimewaitExit);
    assert_eq!(talk.cm.counters().cm_timeouts, 1);
}

#[test]
fn both_may_disconnect_at_once() {
    let mut talk = Talk::listening();
    let (id, rep) = talk.established(0x300);
    talk.cm.disconnect(talk.now, id).expect("it is up");
    let CmMessage::Dreq(ours) = talk.hear() else { panic!("no DREQ") };
    talk.say(CmMessage::Dreq(dreq(&rep)));
    assert!(matches!(talk.hear(), CmMessage::Drep(_)));
    assert_eq!(talk.event(id), Happening::Disconnected);
    talk.say(drep(&ours));
    talk.silence();
    assert_eq!(talk.cm.disconnect(talk.now, id), Ok(()), "it is over already");
}

#[test]
fn a_connection_that_is_let_go_is_closed_and_leaves_nothing() {
    let mut talk = Talk::listening();
    let (id, _) = talk.established(0x300);
    talk.cm.release(talk.now, id).expect("it is there");
    let CmMessage::Dreq(ours) = talk.hear() else { panic!("no DREQ") };
    assert!(talk.cm.release(talk.now, id).is_err(), "no program has it any more");
    talk.say(drep(&ours));
    talk.silence();
    assert_eq!(talk.cm.len(), 2, "packets may be on the way");
    talk.pass(512);
    talk.silence();
    assert_eq!(talk.cm.len(), 1);
}

#[test]
fn attempts_that_are_let_go_are_refused() {
    // Undecided.
    let mut talk = Talk::listening();
    let id = talk.requested();
    talk.cm.release(talk.now, id).expect("it is there");
    let rej = talk.is_refused(RejectReason::CONSUMER_DEFINED);
    assert_eq!((rej.about, rej.remote_comm_id), (AboutMessage::Req, COMM));
    // Accepted, without the last word.
    let id = talk.requested();
    talk.accept(id, 0x300);
    assert!(matches!(talk.hear(), CmMessage::Rep(_)));
    talk.cm.release(talk.now, id).expect("it is there");
    let rej = talk.is_refused(RejectReason::CONSUMER_DEFINED);
    assert_eq!((rej.about, rej.remote_comm_id), (AboutMessage::Other, COMM));
    // Asked for.
    let (id, asked) = talk.connecting(0x301);
    talk.cm.release(talk.now, id).expect("it is there");
    let rej = talk.is_refused(RejectReason::TIMEOUT);
    assert_eq!((rej.about, rej.local_comm_id), (AboutMessage::Req, asked.local_comm_id));
    // Answered.
    let (id, asked) = talk.connecting(0x302);
    talk.say(CmMessage::Rep(rep(&asked, 0x200)));
    assert!(matches!(talk.event(id), Happening::Response(_)));
    talk.cm.release(talk.now, id).expect("it is there");
    let rej = talk.is_refused(RejectReason::CONSUMER_DEFINED);
    assert_eq!((rej.about, rej.remote_comm_id), (AboutMessage::Rep, COMM + 1));
    talk.silence();
    assert_eq!(talk.cm.len(), 1);
}

#[test]
fn a_reply_that_no_peer_hears_is_given_up() {
    let mut talk = Talk::listening();
    let id = talk.requested();
    talk.accept(id, 0x300);
    for _ in 0..16 {
        assert!(matches!(talk.hear(), CmMessage::Rep(_)));
        talk.pass(4096);
    }
    assert_eq!(talk.event(id), Happening::Unreachable);
    talk.is_refused(RejectReason::TIMEOUT);
    talk.silence();
}

#[test]
fn what_a_program_leaves_undecided_ends_when_any_peer_has_given_up() {
    let mut talk = Talk::listening();
    let passive = talk.requested();
    let (active, asked) = talk.connecting(0x302);
    talk.say(CmMessage::Rep(rep(&asked, 0x500)));
    assert!(matches!(talk.event(active), Happening::Response(_)));
    talk.pass(239_999);
    talk.silence();
    talk.pass(1);
    for _ in 0..2 {
        let event = talk.cm.next_event().expect("an event");
        assert_eq!(event.what, Happening::Unreachable);
        talk.is_refused(RejectReason::TIMEOUT);
        assert!([passive, active].contains(&event.id));
    }
    talk.silence();
}

#[test]
fn data_that_comes_stands_for_the_last_word() {
    let mut talk = Talk::listening();
    let id = talk.requested();
    talk.accept(id, 0x300);
    let CmMessage::Rep(rep) = talk.hear() else { panic!("no REP") };
    talk.cm.establish(id).expect("data has come");
    assert_eq!(talk.event(id), Happening::Established);
    talk.say(accepted(&rep));
    talk.silence();
    talk.pass(100_000);
    talk.silence();
}

#[test]
fn a_connection_that_the_peer_refuses_afterwards_is_over() {
    let mut talk = Talk::listening();
    let (id, rep) = talk.established(0x300);
    let comms = (COMM, rep.local_comm_id);
    let other = rej((COMM ^ 1, comms.1), AboutMessage::Other, RejectReason::CONSUMER_DEFINED);
    talk.say(CmMessage::Rej(other));
    talk.silence();
    talk.say(CmMessage::Rej(rej(comms, AboutMessage::Other, RejectReason::CONSUMER_DEFINED)));
    assert_eq!(talk.event(id), Happening::Disconnected);
}

#[test]
fn an_alternate_path_is_refused_and_the_connection_goes_on() {
    let mut talk = Talk::listening();
    let (id, rep) = talk.established(0x300);
    let mut body = [0; 232];
    body[..4].copy_from_slice(&COMM.to_be_bytes());
    body[4..8].copy_from_slice(&rep.local_comm_id.to_be_bytes());
    talk.say(CmMessage::Lap(AlternatePath { body }));
    let CmMessage::Apr(apr) = talk.hear() else { panic!("no APR") };
    assert_eq!((apr.remote_comm_id(), apr.local_comm_id()), (COMM, rep.local_comm_id));
    assert_ne!(apr.body[9], 0, "accepted");
    talk.say(CmMessage::Apr(apr));
    talk.silence();
    talk.cm.disconnect(talk.now, id).expect("it is still up");
}

#[test]
fn events_follow_an_identifier_to_its_new_owner() {
    let mut talk = Talk::listening();
    let (id, rep) = talk.established(0x300);
    talk.cm.set_owner(id, OTHER).expect("it is there");
    talk.say(CmMessage::Dreq(dreq(&rep)));
    assert_eq!(talk.cm.next_event().map(|event| event.owner), Some(OTHER));
    assert_ne!(OWNER, OTHER);
    let of = |owner| talk.cm.owned(owner..=owner).collect::<Vec<_>>();
    assert_eq!((of(OWNER), of(OTHER)), (vec![talk.listener], vec![id]));
}

#[test]
fn nonsense_is_counted_and_changes_nothing() {
    let mut talk = Talk::listening();
    let (_, rep) = talk.established(0x300);
    let before = talk.cm.counters();
    let mut mad = roce_wire::cm::CmMad::new(1, CmMessage::Dreq(dreq(&rep))).to_bytes();
    for bad in [0, 1, 2, 3, 17] {
        let good = std::mem::replace(&mut mad[bad], 0xee);
        talk.cm.receive(talk.now, &way(0, 1), &mad);
        mad[bad] = good;
    }
    talk.cm.receive(talk.now, &way(0, 1), &mad[..255]);
    talk.cm.receive(talk.now, &way(0, 1), &[]);
    talk.silence();
    assert_eq!(talk.cm.counters().cm_malformed, before.cm_malformed + 7);
    let other = Req { local_comm_id: 5, local_qpn: Qpn::new(QPN + 1), ..req() };
    talk.say(CmMessage::Req(other));
    talk.is_offered();
}
