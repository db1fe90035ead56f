//! Connections from XRC initiators to XRC targets.

use crate::peer::{self, OWNER, PORT, QPN, Talk, offer, rep, req};
use rnic_core::cm::{Connect, Happening, Offer};
use roce_wire::Qpn;
use roce_wire::cm::{CmMessage, PortSpace, RejectReason, Rep, Req, TransportType, service_id};

/// The request of a peer's initiator.
fn initiator() -> Req {
    Req {
        service_id: service_id(PortSpace::Ib, PORT),
        transport: TransportType::Extended,
        extended_transport: 1,
        ..req()
    }
}

/// A program connects an initiator: the identifier and what the peer hears.
fn connecting(talk: &mut Talk) -> (u32, Req) {
    let (id, _) = talk.cm.bind(OWNER, PortSpace::Ib, None, 0, false).expect("free");
    let offer = Offer { srq: true, ..offer(0x300) };
    let connect = Connect { transport: TransportType::Extended, offer, ..peer::connect(0) };
    talk.cm.connect(talk.now, id, &connect).expect("idle");
    let CmMessage::Req(req) = talk.hear() else { panic!("no REQ") };
    (id, req)
}

#[test]
fn an_initiator_asks_for_a_target_and_says_nothing_of_answers() {
    let mut talk = Talk::with(PortSpace::Ib);
    let (_, req) = connecting(&mut talk);
    assert_eq!((req.transport, req.extended_transport), (TransportType::Extended, 1));
    assert_eq!(req.service_id, service_id(PortSpace::Ib, PORT));
    assert_eq!((req.local_qpn, req.initiator_depth), (Qpn::new(0x300), 2));
    let of_answers = (req.responder_resources, req.retry_count, req.rnr_retry_count, req.srq);
    assert_eq!(of_answers, (0, 0, 0, false));
}

#[test]
fn the_number_of_a_target_is_where_linux_has_it() {
    let mut talk = Talk::with(PortSpace::Ib);
    talk.say(CmMessage::Req(initiator()));
    let event = talk.cm.next_event().expect("an event");
    let Happening::Request(request) = event.what else { panic!("{event:?}") };
    assert_eq!((request.transport, request.space), (TransportType::Extended, PortSpace::Ib));
    assert_eq!(request.offer.qpn, Qpn::new(QPN));
    talk.accept(event.id, 0x305);
    let CmMessage::Rep(rep) = talk.hear() else { panic!("no REP") };
    assert_eq!((rep.local_qpn, rep.local_eecn), (Qpn::new(0), 0x305));
    assert_eq!((rep.srq, rep.initiator_depth, rep.flow_control), (true, 0, false));
    assert_eq!(rep.responder_resources, 4);
    // A peer that disconnects names the same queue pair.
    talk.say(peer::accepted(&rep));
    assert_eq!(talk.event(event.id), Happening::Established);
    let dreq = peer::dreq(&rep);
    talk.say(CmMessage::Dreq(dreq));
    talk.silence();
    talk.say(CmMessage::Dreq(roce_wire::cm::Dreq { remote_qpn: Qpn::new(0x305), ..dreq }));
    assert_eq!(talk.event(event.id), Happening::Disconnected);
}

#[test]
fn an_initiator_learns_the_number_of_the_target() {
    let mut talk = Talk::with(PortSpace::Ib);
    let (id, req) = connecting(&mut talk);
    let good = Rep { local_qpn: Qpn::new(0), local_eecn: 0x444, ..rep(&req, 0) };
    talk.say(CmMessage::Rep(good));
    let Happening::Response(response) = talk.event(id) else { panic!("no answer") };
    assert_eq!(response.offer.qpn, Qpn::new(0x444));
    assert_eq!(talk.cm.open_qpns(id), Some((Qpn::new(0x300), Qpn::new(0x444))));
    talk.cm.establish(id).expect("it has a REP");
    let CmMessage::Rtu(rtu) = talk.hear() else { panic!("no RTU") };
    // The REP again is answered again; one that names another target is not.
    talk.say(CmMessage::Rep(good));
    assert_eq!(talk.hear(), CmMessage::Rtu(rtu));
    talk.say(CmMessage::Rep(Rep { local_eecn: 0x445, ..good }));
    talk.silence();
}

#[test]
fn a_target_of_a_reserved_number_is_refused() {
    let mut talk = Talk::with(PortSpace::Ib);
    let (id, req) = connecting(&mut talk);
    talk.say(CmMessage::Rep(rep(&req, 0x444)));
    talk.is_refused(RejectReason::NO_QP);
    assert_eq!(talk.event(id), Happening::Rejected(RejectReason::NO_QP.0));
}

#[test]
fn a_listener_of_another_space_takes_no_initiator() {
    let mut talk = Talk::listening();
    talk.say(CmMessage::Req(Req { service_id: req().service_id, ..initiator() }));
    talk.is_refused(RejectReason::INVALID_TRANSPORT);
    talk.silence();
    assert_eq!(talk.cm.len(), 1, "nothing is kept");
}
