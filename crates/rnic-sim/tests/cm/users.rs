//! What one user, or one peer, can take of a manager that serves several.

use crate::peer::{self, OWNER, PORT, Talk, accepted, dreq, req};
use rnic_core::cm::{CmError, Happening, Owner};
use rnic_sim::cm::{MAX_IDS, MAX_OF_USER, address};
use roce_wire::Qpn;
use roce_wire::cm::{CmMessage, PortSpace, RejectReason, Req};

const STRANGER: Owner = Owner { user: 1, place: 7 };
const THIRD: Owner = Owner { user: 2, place: 7 };

#[test]
fn a_user_has_no_more_than_a_share_whatever_peers_add_to_it() {
    let mut talk = Talk::listening();
    while talk.cm.bind(STRANGER, PortSpace::Tcp, None, 0, false).is_ok() {}
    assert_eq!(talk.cm.len(), MAX_OF_USER + 1);
    talk.requested();
    while talk.cm.bind(OWNER, PortSpace::Tcp, None, 0, false).is_ok() {}
    assert_eq!(talk.cm.len(), MAX_IDS, "all together");
    // What a user gives back is the user's again, and not another one's.
    let all = Owner { place: 0, ..STRANGER }..=Owner { place: u64::MAX, ..STRANGER };
    let ids: Vec<u32> = talk.cm.owned(all).collect();
    assert_eq!(ids.len(), MAX_OF_USER);
    for id in ids {
        talk.cm.release(talk.now, id).expect("it is there");
    }
    talk.cm.bind(STRANGER, PortSpace::Tcp, None, 0, false).expect("room");
}

#[test]
fn requests_of_peers_count_for_the_user_who_listens() {
    let mut talk = Talk::listening();
    while talk.cm.bind(OWNER, PortSpace::Tcp, None, 0, false).is_ok() {}
    talk.say(CmMessage::Req(req()));
    talk.is_refused(RejectReason::NO_RESOURCES);
    talk.cm.bind(STRANGER, PortSpace::Tcp, None, 0, false).expect("room for others");
}

#[test]
fn no_user_shares_a_port_with_another_one() {
    let mut talk = Talk::with(PortSpace::Udp);
    let mut bind = |owner, at| talk.cm.bind(owner, PortSpace::Tcp, at, PORT, true).map(drop);
    assert_eq!(bind(STRANGER, None), Ok(()));
    assert_eq!(bind(STRANGER, Some(address(0))), Ok(()), "its own");
    assert_eq!(bind(THIRD, Some(address(0))), Err(CmError::AddressInUse));
    assert_eq!(bind(THIRD, Some(address(1))), Err(CmError::AddressInUse));
    // What failed takes nothing.
    assert_eq!(talk.cm.len(), 3);
}

#[test]
fn a_listener_listens_once() {
    let mut talk = Talk::listening();
    assert_eq!(talk.cm.listen(talk.listener, 9), Err(CmError::State));
    assert_eq!(talk.cm.listeners(), 1);
    talk.cm.release(talk.now, talk.listener).expect("it is there");
    assert_eq!(talk.cm.listeners(), 0);
}

#[test]
fn a_listener_that_stops_keeps_its_port_and_may_listen_again() {
    let mut talk = Talk::listening();
    assert_eq!(talk.cm.stop_listening(talk.listener), Ok(()));
    assert_eq!(talk.cm.stop_listening(talk.listener), Err(CmError::State));
    assert_eq!(talk.cm.listeners(), 0);
    talk.say(CmMessage::Req(req()));
    talk.is_refused(RejectReason::INVALID_SERVICE_ID);
    let bound = talk.cm.bind(STRANGER, PortSpace::Tcp, None, PORT, false);
    assert_eq!(bound, Err(CmError::AddressInUse));
    talk.cm.listen(talk.listener, 1).expect("idle");
    talk.requested();
    talk.cm.release(talk.now, talk.listener).expect("it is there");
    assert_eq!(talk.cm.stop_listening(talk.listener), Err(CmError::NoSuchId));
}

#[test]
fn what_programs_ask_for_is_told_from_what_answers_a_peer() {
    let mut talk = Talk::listening();
    let (id, _) = talk.cm.bind(OWNER, PortSpace::Tcp, None, 0, false).expect("free");
    talk.cm.connect(talk.now, id, &peer::connect(0x400)).expect("idle");
    assert!(talk.cm.next_mad().is_some_and(|mad| mad.user == Some(OWNER.user)));
    talk.pass(4608);
    assert!(talk.cm.next_mad().is_some_and(|mad| mad.user == Some(OWNER.user)), "again");
    talk.say(CmMessage::Req(Req { service_id: 1, ..req() }));
    assert!(talk.cm.next_mad().is_some_and(|mad| mad.user.is_none()));
    let id = talk.requested();
    talk.accept(id, 0x300);
    assert!(talk.cm.next_mad().is_some_and(|mad| mad.user.is_none()));
    talk.pass(4096);
    assert!(talk.cm.next_mad().is_some_and(|mad| mad.user.is_none()), "again");
}

/// Minutes, not the hours that the fields allow.
#[test]
fn a_peer_that_asks_for_hours_gets_a_minute() {
    let patient = |local_qpn, local_comm_id| {
        let mut req = Req { local_qpn: Qpn::new(local_qpn), local_comm_id, ..req() };
        req.local_cm_response_timeout = 31;
        req.primary.local_ack_timeout = 31;
        CmMessage::Req(req)
    };
    let mut talk = Talk::listening();
    talk.say(patient(0x210, 1));
    let id = talk.is_offered();
    talk.accept(id, 0x300);
    for _ in 0..16 {
        let CmMessage::Rep(_) = talk.hear() else { panic!("no REP") };
        talk.pass(65_536);
    }
    assert_eq!(talk.event(id), Happening::Unreachable);
    talk.is_refused(RejectReason::TIMEOUT);
    // And what is over is forgotten.
    talk.say(patient(0x211, 2));
    let id = talk.is_offered();
    talk.accept(id, 0x301);
    let CmMessage::Rep(rep) = talk.hear() else { panic!("no REP") };
    talk.say(accepted(&rep));
    assert_eq!(talk.event(id), Happening::Established);
    talk.say(CmMessage::Dreq(dreq(&rep)));
    assert_eq!(talk.event(id), Happening::Disconnected);
    talk.pass(65_536);
    assert_eq!(talk.event(id), Happening::TimewaitExit);
}
