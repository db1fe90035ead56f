//! The search for the queue pair behind a datagram service.

use crate::peer::{OWNER, PORT, SOURCE_PORT, Talk, private_data};
use rnic_core::cm::{CmError, Happening, PrivateData};
use rnic_sim::cm::way;
use roce_wire::cm::{CmMessage, PortSpace, SidrRep, SidrReq, SidrStatus, service_id};
use roce_wire::{PKey, QKey, Qpn};

fn asks(request_id: u32, port: u16) -> CmMessage {
    CmMessage::SidrReq(SidrReq {
        request_id,
        pkey: PKey::DEFAULT,
        service_id: service_id(PortSpace::Udp, port),
        private_data: private_data(),
    })
}

fn found(talk: &mut Talk) -> u32 {
    let event = talk.cm.next_event().expect("an event");
    let Happening::Lookup(lookup) = event.what else { panic!("{event:?}") };
    assert_eq!((lookup.listener, lookup.ports), (talk.listener, (PORT, SOURCE_PORT)));
    assert_eq!(event.private.as_slice().len(), 180);
    event.id
}

fn answer(talk: &mut Talk) -> SidrRep {
    let CmMessage::SidrRep(rep) = talk.hear() else { panic!("no SIDR_REP") };
    rep
}

#[test]
fn a_service_is_found_and_a_question_that_comes_again_is_answered_again() {
    let mut talk = Talk::with(PortSpace::Udp);
    talk.say(asks(5, PORT));
    let id = found(&mut talk);
    talk.say(asks(5, PORT));
    talk.silence();
    let target = (Qpn::new(0x300), QKey::RDMA_UDP);
    talk.cm.answer(talk.now, id, target, &PrivateData::NONE).expect("undecided");
    let first = answer(&mut talk);
    assert_eq!((first.request_id, first.status), (5, SidrStatus::VALID));
    assert_eq!((first.qpn, first.qkey), target);
    talk.say(asks(5, PORT));
    assert_eq!(answer(&mut talk), first);
    talk.cm.release(talk.now, id).expect("it is there");
    talk.say(asks(5, PORT));
    assert_eq!(answer(&mut talk), first);
    talk.pass(10_000);
    assert_eq!(talk.cm.len(), 1);
    talk.silence();
}

#[test]
fn services_that_do_not_exist_or_do_not_want_are_told_so() {
    let mut talk = Talk::with(PortSpace::Udp);
    talk.say(asks(5, PORT + 1));
    assert_eq!(answer(&mut talk).status, SidrStatus::UNSUPPORTED_SERVICE);
    talk.say(asks(6, PORT));
    let id = found(&mut talk);
    talk.cm.reject(talk.now, id, &PrivateData::NONE).expect("undecided");
    assert_eq!(answer(&mut talk).status, SidrStatus::REJECTED);
    talk.say(asks(7, PORT));
    let id = found(&mut talk);
    talk.cm.release(talk.now, id).expect("it is there");
    assert_eq!(answer(&mut talk).status, SidrStatus::REJECTED);
    let target = (Qpn::GSI, QKey(0));
    let refused = talk.cm.answer(talk.now, id, target, &PrivateData::NONE);
    assert_eq!(refused, Err(CmError::Invalid));
}

fn looking(talk: &mut Talk) -> (u32, u32) {
    let (id, _) = talk.cm.bind(OWNER, PortSpace::Udp, None, 0, false).expect("free");
    let private = PrivateData::new(b"who").expect("short");
    talk.cm.look_up(talk.now, id, way(0, 1), PORT, &private).expect("idle");
    let CmMessage::SidrReq(req) = talk.hear() else { panic!("no SIDR_REQ") };
    assert_eq!(req.service_id, 0x0111_1c06);
    (id, req.request_id)
}

fn says(request_id: u32, status: SidrStatus, qpn: u32) -> CmMessage {
    CmMessage::SidrRep(SidrRep {
        request_id,
        status,
        info_len: 0,
        vendor_id: 0,
        qpn: Qpn::new(qpn),
        service_id: 0,
        qkey: QKey(9),
        info: [0; 72],
        private_data: [4; SidrRep::PRIVATE_DATA_LEN],
    })
}

#[test]
fn a_question_ends_with_an_answer_a_refusal_or_none() {
    let mut talk = Talk::with(PortSpace::Udp);
    let (id, request) = looking(&mut talk);
    talk.say(says(request ^ 1, SidrStatus::VALID, 0x200));
    talk.silence();
    talk.say(says(request, SidrStatus::VALID, 0x200));
    let found = Happening::Found { qpn: Qpn::new(0x200), qkey: QKey(9) };
    assert_eq!(talk.event(id), found);
    talk.say(says(request, SidrStatus::VALID, 0x200));
    talk.silence();
    let (id, request) = looking(&mut talk);
    talk.say(says(request, SidrStatus::REJECTED, 0));
    assert_eq!(talk.event(id), Happening::Rejected(2));
    let (id, request) = looking(&mut talk);
    talk.say(says(request, SidrStatus::VALID, 0));
    assert_eq!(talk.event(id), Happening::Rejected(3), "no queue pair has number 0");
    let (id, _) = looking(&mut talk);
    for _ in 0..15 {
        talk.pass(4096);
        assert!(matches!(talk.hear(), CmMessage::SidrReq(_)));
    }
    talk.pass(4096);
    assert_eq!(talk.event(id), Happening::Unreachable);
    talk.silence();
}
