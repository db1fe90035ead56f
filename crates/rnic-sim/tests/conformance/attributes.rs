//! `ibv_modify_qp`: the table of transitions, and the ranges of attributes.

use crate::{send, small_mtu, write_only};
use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr, QpState};
use rnic_core::command::{Command, Errno, PortState};
use rnic_sim::dialogue::{Dialogue, PEER};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::Connection;
use roce_wire::Gid;

const RTR: AttrMask = AttrMask::AV
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN)
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);

/// A queue pair in INIT.
fn in_init() -> Dialogue {
    let mut d = Dialogue::in_reset(small_mtu(), PortConfig::frames(), |_| {});
    let (qp, connection) = (d.nic.qp, d.connection);
    d.world.host(0).to_init(qp, &connection);
    d
}

/// A queue pair in SQD, where most attributes may change.
fn in_sqd() -> Dialogue {
    let mut d = Dialogue::new(small_mtu());
    let qp = d.nic.qp;
    d.world.host(0).set_state(qp, QpState::Sqd);
    d
}

/// Values that every transition takes.
fn good(state: QpState) -> QpAttr {
    let ah =
        AhAttr { dgid: Gid::from_ip(PEER).0, is_global: true, port_num: 1, ..AhAttr::default() };
    QpAttr { state, ah, port_num: 1, path_mtu: 3, max_dest_rd_atomic: 4, ..QpAttr::default() }
}

/// Modifies, with an address that has a route.
fn modify(d: &mut Dialogue, mask: AttrMask, attr: QpAttr) -> Result<(), Errno> {
    let qp = d.nic.qp;
    d.world.host(0).modify(qp, mask | AttrMask::STATE, attr, Some(PEER)).map_err(|e| e.errno)
}

/// The modification is refused as invalid and changes nothing.
#[track_caller]
fn refused(d: &mut Dialogue, mask: AttrMask, attr: QpAttr) {
    let qp = d.nic.qp;
    let before = d.world.host(0).query_qp(qp);
    assert_eq!(modify(d, mask, attr), Err(Errno::Invalid), "{mask:?}");
    assert_eq!(d.world.host(0).query_qp(qp), before);
}

#[test]
fn transitions_that_do_not_exist_are_refused() {
    let mut d = Dialogue::in_reset(small_mtu(), PortConfig::frames(), |_| {});
    refused(&mut d, AttrMask::empty(), good(QpState::Err));
    refused(&mut d, RTR, good(QpState::Rtr));
    let mut d = in_init();
    refused(&mut d, AttrMask::empty(), good(QpState::Rts));
    refused(&mut d, AttrMask::empty(), good(QpState::Sqd));
    assert_eq!(modify(&mut d, RTR, good(QpState::Rtr)), Ok(()));
}

#[test]
fn every_required_attribute_must_be_given() {
    for missing in RTR.iter() {
        refused(&mut in_init(), RTR - missing, good(QpState::Rtr));
    }
}

#[test]
fn attributes_that_a_transition_does_not_have_are_refused() {
    for extra in [AttrMask::QKEY, AttrMask::SQ_PSN, AttrMask::TIMEOUT, AttrMask::CAP] {
        refused(&mut in_init(), RTR | extra, good(QpState::Rtr));
    }
    refused(&mut in_sqd(), AttrMask::PATH_MTU, good(QpState::Sqd));
}

#[test]
fn the_current_state_must_be_true_when_it_is_given() {
    let mut d = in_sqd();
    let attr = QpAttr { cur_state: QpState::Rtr, ..good(QpState::Rts) };
    refused(&mut d, AttrMask::CUR_STATE, attr);
    let attr = QpAttr { cur_state: QpState::Sqd, ..attr };
    assert_eq!(modify(&mut d, AttrMask::CUR_STATE, attr), Ok(()));
}

#[test]
fn values_out_of_range_are_refused() {
    let refuse = |mask, change: fn(&mut QpAttr)| {
        let mut attr = good(QpState::Sqd);
        change(&mut attr);
        refused(&mut in_sqd(), mask, attr);
    };
    refuse(AttrMask::TIMEOUT, |a| a.timeout = 32);
    refuse(AttrMask::RETRY_CNT, |a| a.retry_cnt = 8);
    refuse(AttrMask::RNR_RETRY, |a| a.rnr_retry = 8);
    refuse(AttrMask::MIN_RNR_TIMER, |a| a.min_rnr_timer = 32);
    refuse(AttrMask::PORT, |a| a.port_num = 2);
    refuse(AttrMask::PKEY_INDEX, |a| a.pkey_index = 1);
    refuse(AttrMask::MAX_QP_RD_ATOMIC, |a| a.max_rd_atomic = 17);
    refuse(AttrMask::MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic = 17);
    refuse(AttrMask::AV, |a| a.ah.is_global = false);
    refuse(AttrMask::AV, |a| a.ah.dgid = [0; 16]);
    refuse(AttrMask::AV, |a| a.ah.port_num = 0);
    refuse(AttrMask::AV, |a| a.ah.port_num = 2);
}

/// A value that no queue pair can have.
type Wrong = (AttrMask, fn(&mut QpAttr));

const WRONG: [Wrong; 12] = [
    (AttrMask::PORT, |a| a.port_num = 0),
    (AttrMask::PKEY_INDEX, |a| a.pkey_index = 1),
    (AttrMask::TIMEOUT, |a| a.timeout = 32),
    (AttrMask::RETRY_CNT, |a| a.retry_cnt = 8),
    (AttrMask::RNR_RETRY, |a| a.rnr_retry = 8),
    (AttrMask::MIN_RNR_TIMER, |a| a.min_rnr_timer = 32),
    (AttrMask::PATH_MTU, |a| a.path_mtu = 6),
    (AttrMask::MAX_QP_RD_ATOMIC, |a| a.max_rd_atomic = 17),
    (AttrMask::MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic = 17),
    (AttrMask::AV, |a| a.ah.is_global = false),
    (AttrMask::AV, |a| a.ah.dgid = [0; 16]),
    (AttrMask::AV, |a| a.ah.port_num = 9),
];

/// Every transition, with all that it requires and no more.
#[test]
fn what_no_queue_pair_can_have_is_refused_wherever_it_may_be_given() {
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let rts = AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_QP_RD_ATOMIC;
    let path = [
        (QpState::Init, init),
        (QpState::Init, AttrMask::empty()),
        (QpState::Rtr, RTR),
        (QpState::Rts, rts),
        (QpState::Rts, AttrMask::empty()),
        (QpState::Sqd, AttrMask::empty()),
        (QpState::Sqd, AttrMask::empty()),
        (QpState::Rts, AttrMask::empty()),
    ];
    let mut d = Dialogue::in_reset(small_mtu(), PortConfig::frames(), |_| {});
    let mut refusals = 0;
    for (to, mask) in path {
        for (bit, spoil) in WRONG {
            let mut attr = good(to);
            spoil(&mut attr);
            refused(&mut d, mask | bit, attr);
            refusals += 1;
        }
        assert_eq!(modify(&mut d, mask, good(to)), Ok(()), "{to:?}");
    }
    assert_eq!(refusals, path.len() * WRONG.len());
}

#[test]
fn alternate_paths_are_refused() {
    refused(&mut in_init(), RTR | AttrMask::ALT_PATH, good(QpState::Rtr));
    refused(&mut in_sqd(), AttrMask::ALT_PATH, good(QpState::Sqd));
    refused(&mut in_sqd(), AttrMask::ALT_PATH, good(QpState::Rts));
}

#[test]
fn a_query_tells_the_psns_of_now() {
    let psns = |d: &mut Dialogue| {
        let qp = d.nic.qp;
        let attr = d.world.host(0).query_qp(qp);
        (attr.sq_psn, attr.rq_psn)
    };
    let (sq_psn, rq_psn) = (0x00ff_ffff, 0x00ff_fffe);
    let mut d = Dialogue::new(Connection { sq_psn, rq_psn, ..small_mtu() });
    assert_eq!(psns(&mut d), (sq_psn, rq_psn));
    d.post(&send(&d, 1, 600));
    d.hear_burst();
    let writes: Vec<_> = (0..4).map(|k| write_only(&d, k, 0, &[1; 8])).collect();
    d.say_all(&writes);
    d.hear_burst();
    assert_eq!(psns(&mut d), (2, 2));
    let qp = d.nic.qp;
    d.world.host(0).set_state(qp, QpState::Reset);
    assert_eq!(psns(&mut d), (0, 0));
}

#[test]
fn the_path_mtu_is_one_that_the_port_has() {
    for path_mtu in [0, 6] {
        refused(&mut in_init(), RTR, QpAttr { path_mtu, ..good(QpState::Rtr) });
    }
    let mut d = in_init();
    let port = PortState { active: true, active_mtu: 3, gids_changed: false };
    let now = d.world.now();
    d.world.host(0).engine.execute(now, Command::SetPort(port)).unwrap();
    refused(&mut d, RTR, QpAttr { path_mtu: 4, ..good(QpState::Rtr) });
    assert_eq!(modify(&mut d, RTR, good(QpState::Rtr)), Ok(()));
}

#[test]
fn psns_and_numbers_have_24_bits() {
    let mut d = in_init();
    let attr = QpAttr { rq_psn: 0xff12_3456, dest_qpn: 0xff00_0077, ..good(QpState::Rtr) };
    assert_eq!(modify(&mut d, RTR, attr), Ok(()));
    let qp = d.nic.qp;
    let attr = d.world.host(0).query_qp(qp);
    assert_eq!((attr.rq_psn, attr.dest_qpn), (0x12_3456, 0x77));
}

#[test]
fn an_address_without_a_route_is_refused() {
    let mut d = in_init();
    let qp = d.nic.qp;
    let mask = RTR | AttrMask::STATE;
    let refused = d.world.host(0).modify(qp, mask, good(QpState::Rtr), None);
    assert_eq!(refused.map_err(|e| e.errno), Err(Errno::HostUnreachable));
    assert_eq!(d.state(), QpState::Init);
}
