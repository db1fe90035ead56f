//! A peer asks for a connection.

use crate::peer::{self, COMM, OWNER, PORT, QPN, Talk, offer, req};
use rnic_core::cm::{CmError, Happening, Owner, PrivateData};
use rnic_sim::cm::{MAX_IDS, address, way};
use roce_wire::cm::{
    AboutMessage, CmMessage, CmaHeader, PortSpace, RejectReason, Req, TransportType, service_id,
};
use roce_wire::{Gid, Qpn};
use std::net::{IpAddr, Ipv6Addr};

#[track_caller]
fn refuses(change: impl Fn(&mut Req), reason: RejectReason) {
    let mut talk = Talk::listening();
    let mut bad = req();
    change(&mut bad);
    talk.say(CmMessage::Req(bad));
    let rej = talk.is_refused(reason);
    assert_eq!((rej.about, rej.remote_comm_id), (AboutMessage::Req, COMM));
    assert_eq!(talk.cm.counters().cm_refused, 1);
    talk.silence();
    assert_eq!(talk.cm.len(), 1, "nothing is kept");
    talk.requested();
}

#[test]
fn a_program_hears_what_the_peer_offers() {
    let mut talk = Talk::listening();
    talk.say(CmMessage::Req(req()));
    let event = talk.cm.next_event().expect("an event");
    let Happening::Request(request) = event.what else { panic!("{event:?}") };
    assert_eq!((event.owner, request.listener), (OWNER, talk.listener));
    assert_eq!(request.ports, (PORT, peer::SOURCE_PORT));
    assert_eq!((request.offer.qpn.value(), request.starting_psn.value()), (QPN, 0xabcd));
    assert_eq!((request.offer.responder_resources, request.offer.initiator_depth), (3, 5));
    assert_eq!((request.mtu_code, request.ack_timeout, request.retry_count), (3, 17, 7));
    assert_eq!(&event.private.as_slice()[..4], b"abc\0");
    assert_eq!(event.private.as_slice().len(), 56, "the whole area");
    talk.accept(event.id, 0x300);
    let CmMessage::Rep(rep) = talk.hear() else { panic!("no REP") };
    assert_eq!(rep.starting_psn, request.psn);
    assert_eq!(&rep.private_data[..8], b"welcome\0");
}

#[test]
fn a_request_for_a_port_without_a_listener_is_refused() {
    let service = |space, port| move |req: &mut Req| req.service_id = service_id(space, port);
    let none = RejectReason::INVALID_SERVICE_ID;
    refuses(service(PortSpace::Tcp, PORT + 1), none);
    refuses(service(PortSpace::Ib, PORT), none);
    refuses(|req| req.service_id = u64::MAX, none);
    // One that has the port and does not listen is none.
    let mut talk = Talk::listening();
    talk.cm.bind(OWNER, PortSpace::Tcp, None, PORT + 1, false).expect("free");
    let mut other = req();
    other.service_id += 1;
    talk.say(CmMessage::Req(other));
    talk.is_refused(none);
}

#[test]
fn transports_that_do_not_exist_are_refused() {
    for (transport, extended) in [(TransportType::Rd, 0), (TransportType::Extended, 2)] {
        let change = |req: &mut Req| {
            (req.transport, req.extended_transport) = (transport, extended);
        };
        refuses(change, RejectReason::INVALID_TRANSPORT);
    }
}

#[test]
fn a_path_mtu_that_the_link_does_not_take_is_refused() {
    for code in [0, 6, 15] {
        refuses(|req| req.path_mtu_code = code, RejectReason::INVALID_MTU);
    }
    let mut talk = Talk::listening();
    talk.cm.set_mtu(2);
    talk.say(CmMessage::Req(req()));
    talk.is_refused(RejectReason::INVALID_MTU);
}

#[test]
fn a_request_of_a_reserved_queue_pair_is_refused() {
    for qpn in [0, 1, 0x00ff_ffff] {
        refuses(|req| req.local_qpn = Qpn::new(qpn), RejectReason::NO_QP);
    }
}

#[test]
fn a_request_with_addresses_of_others_is_refused() {
    let other = Gid::from_ip(address(9));
    refuses(|req| req.primary.local_gid = other, RejectReason::INVALID_GID);
    refuses(|req| req.primary.remote_gid = other, RejectReason::INVALID_GID);
    refuses(|req| req.primary.remote_gid = Gid::ZERO, RejectReason::INVALID_GID);
}

#[test]
fn a_program_is_not_told_addresses_that_the_peer_does_not_have() {
    let header = |src, dst| {
        move |req: &mut Req| {
            let header = CmaHeader { src_port: 1, src: address(src), dst: address(dst) };
            req.private_data[..CmaHeader::LEN].copy_from_slice(&header.to_bytes());
        }
    };
    refuses(header(9, 0), RejectReason::INVALID_GID);
    refuses(header(1, 9), RejectReason::INVALID_GID);
    refuses(|req| req.private_data[0] = 1, RejectReason::CONSUMER_DEFINED);
    refuses(|req| req.private_data[1] = 0x50, RejectReason::CONSUMER_DEFINED);
}

#[test]
fn a_request_that_comes_again_makes_no_second_identifier() {
    let mut talk = Talk::listening();
    let id = talk.requested();
    talk.say(CmMessage::Req(req()));
    let CmMessage::Mra(mra) = talk.hear() else { panic!("no MRA") };
    assert_eq!((mra.about, mra.remote_comm_id), (AboutMessage::Req, COMM));
    talk.silence();
    talk.accept(id, 0x300);
    let CmMessage::Rep(_) = talk.hear() else { panic!("no REP") };
    talk.say(CmMessage::Req(req()));
    talk.silence();
    assert_eq!(talk.cm.counters().cm_duplicates, 2);
    assert_eq!(talk.cm.len(), 2);
}

#[test]
fn a_late_request_of_a_connection_that_is_over_is_stale() {
    let mut talk = Talk::listening();
    let (_, rep) = talk.established(0x300);
    talk.say(CmMessage::Dreq(peer::dreq(&rep)));
    let CmMessage::Drep(_) = talk.hear() else { panic!("no DREP") };
    talk.say(CmMessage::Req(req()));
    talk.is_refused(RejectReason::STALE_CONNECTION);
}

#[test]
fn a_queue_pair_that_the_peer_uses_again_has_lost_its_connection() {
    let mut talk = Talk::listening();
    let (id, _) = talk.established(0x300);
    let again = Req { local_comm_id: COMM + 9, ..req() };
    talk.say(CmMessage::Req(again));
    assert_eq!(talk.event(id), Happening::Disconnected);
    let CmMessage::Dreq(_) = talk.hear() else { panic!("no DREQ") };
    let rej = talk.is_refused(RejectReason::STALE_CONNECTION);
    assert_eq!(rej.remote_comm_id, COMM + 9);
    talk.silence();
    talk.say(CmMessage::Req(Req { local_comm_id: COMM + 10, ..again }));
    talk.is_offered();
}

#[test]
fn a_queue_pair_that_the_peer_uses_again_ends_a_disconnect() {
    let mut talk = Talk::listening();
    let (id, _) = talk.established(0x300);
    talk.cm.disconnect(talk.now, id).expect("established");
    let CmMessage::Dreq(_) = talk.hear() else { panic!("no DREQ") };
    // Its answer is lost.
    talk.say(CmMessage::Req(Req { local_comm_id: COMM + 9, ..req() }));
    assert_eq!(talk.event(id), Happening::Disconnected);
    talk.is_offered();
    talk.silence();
    talk.pass(512);
    assert_eq!(talk.event(id), Happening::TimewaitExit);
}

#[test]
fn a_queue_pair_is_free_when_its_identifier_is_let_go() {
    let mut talk = Talk::listening();
    let (id, _) = talk.established(0x300);
    talk.cm.release(talk.now, id).expect("it is there");
    let CmMessage::Dreq(_) = talk.hear() else { panic!("no DREQ") };
    talk.connecting(0x300);
    // The end of the old one leaves the new one alone.
    talk.pass(60_000);
    let (active, _) = talk.cm.bind(OWNER, PortSpace::Tcp, None, 0, false).expect("free");
    let again = talk.cm.connect(talk.now, active, &peer::connect(0x300));
    assert_eq!(again, Err(CmError::QpInUse));
}

#[test]
fn a_request_that_the_peer_has_given_up_does_not_stand_in_the_way_of_another() {
    let mut talk = Talk::listening();
    let id = talk.requested();
    let again = Req { local_comm_id: COMM + 9, ..req() };
    talk.say(CmMessage::Req(again));
    talk.is_refused(RejectReason::STALE_CONNECTION);
    assert_eq!(talk.event(id), Happening::Rejected(RejectReason::STALE_CONNECTION.0));
    talk.say(CmMessage::Req(Req { local_comm_id: COMM + 10, ..again }));
    talk.is_offered();
}

#[test]
fn a_flood_of_requests_fills_the_backlog_and_nothing_else() {
    let mut talk = Talk::listening();
    let nth = |n: u32| Req { local_comm_id: n, local_qpn: Qpn::new(n + 100), ..req() };
    let mut ids = Vec::new();
    for n in 1..=100 {
        talk.say(CmMessage::Req(nth(n)));
        if n <= 4 {
            ids.push(talk.is_offered());
        } else {
            talk.is_refused(RejectReason::NO_RESOURCES);
        }
    }
    assert_eq!(talk.cm.len(), 5);
    // One that is decided makes room for another.
    talk.cm.reject(talk.now, ids[2], &PrivateData::NONE).expect("undecided");
    talk.is_refused(RejectReason::CONSUMER_DEFINED);
    talk.say(CmMessage::Req(nth(200)));
    talk.is_offered();
}

#[test]
fn a_full_table_refuses_what_it_cannot_keep() {
    let mut talk = Talk::listening();
    for user in 0..2 {
        let owner = Owner { user, place: 7 };
        while talk.cm.bind(owner, PortSpace::Tcp, None, 0, false).is_ok() {}
    }
    assert_eq!(talk.cm.len(), MAX_IDS);
    talk.say(CmMessage::Req(req()));
    talk.is_refused(RejectReason::NO_RESOURCES);
    let full = talk.cm.bind(OWNER, PortSpace::Tcp, None, 0, false);
    assert_eq!(full, Err(CmError::Full));
}

#[test]
fn a_listener_at_an_address_comes_before_one_at_all() {
    let mut talk = Talk::listening();
    let taken = talk.cm.bind(OWNER, PortSpace::Tcp, Some(address(0)), PORT, false);
    assert_eq!(taken, Err(CmError::AddressInUse));
    let mut talk = Talk::listening();
    talk.cm.release(talk.now, talk.listener).expect("it is there");
    let mut listen = |at| {
        let (id, _) = talk.cm.bind(OWNER, PortSpace::Tcp, at, PORT, true).expect("shared");
        (id, talk.cm.listen(id, 1))
    };
    let (here, first) = listen(Some(address(0)));
    let (elsewhere, second) = listen(Some(address(5)));
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(listen(None).1, Err(CmError::AddressInUse));
    talk.say(CmMessage::Req(req()));
    let event = talk.cm.next_event().expect("an event");
    let Happening::Request(request) = event.what else { panic!("{event:?}") };
    assert_eq!(request.listener, here);
    assert_ne!(here, elsewhere);
}

#[test]
fn a_listener_at_all_addresses_of_a_family_leaves_the_other_family() {
    let all = [IpAddr::from([0_u8; 4]), IpAddr::from([0_u16; 8])];
    let mut talk = Talk::with(PortSpace::Udp);
    let mut listen = |at| {
        let (id, _) = talk.cm.bind(OWNER, PortSpace::Tcp, at, PORT, false)?;
        talk.cm.listen(id, 1).map(|()| id)
    };
    let v6 = listen(Some(all[1])).expect("free");
    let v4 = listen(Some(all[0])).expect("of the other family");
    for taken in [None, Some(address(0)), Some(all[0]), Some(Ipv6Addr::LOCALHOST.into())] {
        assert_eq!(listen(taken), Err(CmError::AddressInUse), "{taken:?}");
    }
    talk.say(CmMessage::Req(req()));
    let event = talk.cm.next_event().expect("an event");
    let Happening::Request(request) = event.what else { panic!("{event:?}") };
    assert_eq!(request.listener, v4);
    talk.cm.release(talk.now, v4).expect("it is there");
    assert!(talk.cm.next_mad().is_none());
    talk.say(CmMessage::Req(Req { local_comm_id: 9, local_qpn: Qpn::new(0x99), ..req() }));
    talk.is_refused(RejectReason::INVALID_SERVICE_ID);
    assert_ne!(v4, v6);
}

#[test]
fn a_queue_pair_has_one_connection() {
    let mut talk = Talk::listening();
    let id = talk.requested();
    talk.accept(id, 0x300);
    let CmMessage::Rep(_) = talk.hear() else { panic!("no REP") };
    talk.say(CmMessage::Req(Req { local_comm_id: 5, local_qpn: Qpn::new(0x900), ..req() }));
    let other = talk.is_offered();
    let none = PrivateData::NONE;
    let again = talk.cm.accept(talk.now, other, &offer(0x300), &none);
    assert_eq!(again, Err(CmError::QpInUse));
    let (active, _) = talk.cm.bind(OWNER, PortSpace::Tcp, None, 0, false).expect("free");
    let again = talk.cm.connect(talk.now, active, &peer::connect(0x300));
    assert_eq!(again, Err(CmError::QpInUse));
    talk.accept(other, 0x301);
}

#[test]
fn requests_from_another_address_are_others() {
    let mut talk = Talk::listening();
    talk.requested();
    let mut same = req();
    same.primary.local_gid = Gid::from_ip(address(2));
    let header = CmaHeader { src_port: 1, src: address(2), dst: address(0) };
    same.private_data[..CmaHeader::LEN].copy_from_slice(&header.to_bytes());
    talk.say_from(&way(0, 2), CmMessage::Req(same));
    talk.is_offered();
}
