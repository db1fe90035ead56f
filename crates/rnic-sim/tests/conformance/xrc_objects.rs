//! XRC domains, and whose their objects are.

use crate::xrc::{Place, place, target};
use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr, QpState, QpType};
use rnic_core::command::{
    ClientCommand, ClientId, Command, CommandError, Errno, Outcome, XrcFile, XrcOpen,
};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::host::Host;
use rnic_sim::verbs::QpSetup;
use rnic_sim::xrc::PRIVATE;
use roce_wire::{Opcode, Syndrome};

/// Two clients besides the one of the host.
const ONE: ClientId = ClientId(7);
const OTHER: ClientId = ClientId(8);
const FILE: XrcFile = XrcFile { user: 1000, device: 3, inode: 55 };
const SHARED: XrcOpen = XrcOpen { file: Some(FILE), create: true, exclusive: false };

fn errno<T>(result: Result<T, CommandError>) -> Result<T, Errno> {
    result.map_err(|error| error.errno)
}

/// A target of [`ONE`] that [`OTHER`] has open too: handles of domain and target of each, and the
/// number.
struct Shared {
    xrcds: [u32; 2],
    qps: [u32; 2],
    qpn: u32,
}

fn shared(host: &mut Host) -> Shared {
    host.add_client(ONE);
    host.add_client(OTHER);
    let xrcds = [ONE, OTHER].map(|client| host.open_xrcd_as(client, SHARED).unwrap());
    let created = host.command_of(ONE, ClientCommand::CreateTarget { xrcd: xrcds[0] });
    let Ok(Outcome::Qp { qp, qpn }) = created else { panic!("{created:?}") };
    let opened = host.open_qp_as(OTHER, xrcds[1], qpn).unwrap();
    Shared { xrcds, qps: [qp, opened], qpn }
}

fn dialogue() -> Dialogue {
    crate::dialogue()
}

#[test]
fn a_file_stands_for_one_domain() {
    let mut d = dialogue();
    let host = d.world.host(0);
    host.add_client(ONE);
    host.add_client(OTHER);
    let must_be_there = XrcOpen { create: false, ..SHARED };
    let must_be_new = XrcOpen { exclusive: true, ..SHARED };
    assert_eq!(errno(host.open_xrcd_as(ONE, must_be_there)), Err(Errno::Again));
    let first = host.open_xrcd_as(ONE, must_be_new).unwrap();
    assert_eq!(errno(host.open_xrcd_as(OTHER, must_be_new)), Err(Errno::Invalid));
    let second = host.open_xrcd_as(OTHER, must_be_there).unwrap();
    assert_ne!(first, second, "each has a handle of its own");
    // With the last that has it open the domain goes.
    for (client, xrcd) in [(ONE, first), (OTHER, second)] {
        host.command_of(client, ClientCommand::CloseXrcd { xrcd }).unwrap();
    }
    assert_eq!(errno(host.open_xrcd_as(ONE, must_be_there)), Err(Errno::Again));
}

#[test]
fn a_file_of_another_user_or_device_is_another_domain() {
    let mut d = dialogue();
    let host = d.world.host(0);
    let Shared { qpn, .. } = shared(host);
    for file in [
        Some(XrcFile { user: 1001, ..FILE }),
        Some(XrcFile { device: 4, ..FILE }),
        Some(XrcFile { inode: 56, ..FILE }),
        None,
    ] {
        let xrcd = host.open_xrcd_as(OTHER, XrcOpen { file, ..SHARED }).unwrap();
        assert_eq!(errno(host.open_qp_as(OTHER, xrcd, qpn)), Err(Errno::Invalid), "{file:?}");
    }
}

#[test]
fn what_belongs_to_another_client_does_not_exist() {
    let mut d = dialogue();
    let host = d.world.host(0);
    let Shared { xrcds, qps, qpn } = shared(host);
    let (mask, attr) = (AttrMask::STATE, QpAttr::default());
    for foreign in [
        ClientCommand::CloseXrcd { xrcd: xrcds[0] },
        ClientCommand::CreateTarget { xrcd: xrcds[0] },
        ClientCommand::OpenQp { xrcd: xrcds[0], qpn },
        ClientCommand::QueryQp { qp: qps[0] },
        ClientCommand::ModifyQp { qp: qps[0], mask, attr, path: None },
        ClientCommand::DestroyQp { qp: qps[0] },
    ] {
        assert_eq!(errno(host.command_of(OTHER, foreign)), Err(Errno::NoEntry));
    }
    // Neither is its own handle anything that a client has.
    let real = host.engine.qps().find(|qp| qp.qpn == qpn).unwrap().qp;
    for client in [ONE, OTHER] {
        let query = ClientCommand::QueryQp { qp: real };
        assert_eq!(errno(host.command_of(client, query)), Err(Errno::NoEntry));
    }
}

#[test]
fn what_is_in_use_stays() {
    let (mut d, xrcd, [one, other]) = target();
    let host = d.world.host(0);
    let close = |host: &mut Host| errno(host.command(ClientCommand::CloseXrcd { xrcd }));
    let cq = host.cq_handle(one.cq);
    assert_eq!(close(host), Err(Errno::Busy));
    assert_eq!(errno(host.command(ClientCommand::DestroyCq { cq })), Err(Errno::Busy));
    assert_eq!(errno(host.command(ClientCommand::DeallocPd { pd: one.pd })), Err(Errno::Busy));
    for Place { srq, .. } in [one, other] {
        host.destroy_srq(srq).unwrap();
    }
    assert!(host.command(ClientCommand::DestroyCq { cq }).is_ok());
    assert_eq!(close(host), Err(Errno::Busy), "the target");
    let qp = host.qp_handle(d.nic.qp);
    host.close_reference(qp).unwrap();
    assert_eq!(close(host), Ok(Outcome::Done));
    assert_eq!(close(host), Err(Errno::NoEntry));
}

#[test]
fn a_target_lasts_until_the_last_reference() {
    let mut d = dialogue();
    let host = d.world.host(0);
    let Shared { xrcds, qps, qpn } = shared(host);
    let there = |host: &Host| host.engine.qps().find(|qp| qp.qpn == qpn).map(|qp| qp.client);
    assert_eq!(there(host), Some(ONE));
    // Its maker goes, with all that it has.
    let now = d.world.now();
    let host = d.world.host(0);
    host.engine.execute(now, Command::RemoveClient { client: ONE }).unwrap();
    assert_eq!(there(host), Some(OTHER));
    let query = host.command_of(OTHER, ClientCommand::QueryQp { qp: qps[1] });
    assert!(matches!(query, Ok(Outcome::QpState { .. })));
    let close = ClientCommand::CloseXrcd { xrcd: xrcds[1] };
    assert_eq!(errno(host.command_of(OTHER, close)), Err(Errno::Busy));
    let gone = host.command_of(OTHER, ClientCommand::DestroyQp { qp: qps[1] });
    assert_eq!(gone, Ok(Outcome::QpGone { async_events: 0 }));
    assert_eq!(there(host), None);
    let close = ClientCommand::CloseXrcd { xrcd: xrcds[1] };
    assert_eq!(errno(host.command_of(OTHER, close)), Ok(Outcome::Done));
}

#[test]
fn only_a_target_can_be_opened() {
    let mut d = dialogue();
    let qpn = d.world.hosts()[0].qpn(d.nic.qp);
    let host = d.world.host(0);
    let xrcd = host.open_xrcd(PRIVATE);
    assert_eq!(errno(host.open_qp(xrcd, qpn)), Err(Errno::Invalid));
    assert_eq!(errno(host.open_qp(xrcd, qpn ^ 1)), Err(Errno::Invalid));
}

/// Programs give both ends the attributes of RC.
#[test]
fn the_ends_take_what_is_for_the_other_end() {
    let mut d = dialogue();
    let host = d.world.host(0);
    let xrcd = host.open_xrcd(PRIVATE);
    let setup = QpSetup::new(d.nic.pd, d.nic.send_cq);
    let initiator = host.create_qp(QpSetup { qp_type: QpType::XrcSend, ..setup });
    for qp in [initiator, host.create_target(xrcd)] {
        let connection = d.connection;
        d.world.host(0).to_init(qp, &connection);
        let responder = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        let requester = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        let rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let rts = AttrMask::TIMEOUT | AttrMask::SQ_PSN;
        let ah = AhAttr { dgid: [1; 16], is_global: true, port_num: 1, ..AhAttr::default() };
        let attr = QpAttr { ah, path_mtu: 1, ..QpAttr::default() };
        let steps = [(QpState::Rtr, rtr | responder), (QpState::Rts, rts | requester)];
        for (state, mask) in steps {
            let peer = mask.contains(AttrMask::AV).then_some(rnic_sim::dialogue::PEER);
            let attr = QpAttr { state, ..attr };
            d.world.host(0).modify(qp, mask | AttrMask::STATE, attr, peer).unwrap();
        }
    }
}

#[test]
fn a_queue_of_a_domain_is_not_for_other_queue_pairs() {
    let (mut d, _, [one, _]) = target();
    let setup = QpSetup::new(d.nic.pd, d.nic.send_cq);
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let setup = QpSetup { qp_type, srq: Some(one.srq), ..setup };
        let refused = d.world.host(0).try_create_qp(setup);
        assert_eq!(errno(refused), Err(Errno::Invalid), "{qp_type:?}");
    }
}

#[test]
fn a_client_that_goes_takes_its_queues_and_no_others() {
    let mut d = dialogue();
    let host = d.world.host(0);
    let Shared { .. } = shared(host);
    let xrcd = host.open_xrcd(SHARED);
    let mine = place(&mut d, xrcd);
    let now = d.world.now();
    let host = d.world.host(0);
    for client in [ONE, OTHER] {
        host.engine.execute(now, Command::RemoveClient { client }).unwrap();
    }
    assert_eq!(host.engine.qps().filter(|qp| qp.qp_type == QpType::XrcRecv).count(), 0);
    // The domain is there as long as this client has it.
    let target = host.create_target(xrcd);
    let connection = d.connection;
    let (peer, number) = (rnic_sim::dialogue::PEER, rnic_sim::dialogue::PEER_QPN);
    d.world.host(0).connect(target, &connection, peer, number);
    d.nic.qp = target;
    let say = Say::new(Opcode::XrcSendOnly, d.peer_psn(0)).payload(&[1; 8]).ack_req();
    d.say(&say.srqn(mine.srqn));
    let heard = d.expect(Opcode::XrcAck, d.peer_psn(0));
    assert_eq!(heard.aeth(), (Syndrome::ACK, 1));
}
