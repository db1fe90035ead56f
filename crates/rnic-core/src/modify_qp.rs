//! `ibv_modify_qp`: which attributes each transition needs and allows, and their ranges.
//!
//! The table is that of the IBTA chapter on QP attributes as the Linux core enforces it. An
//! attribute that is neither required nor optional, a required one that is missing, or a value
//! out of range is EINVAL and changes nothing.

use crate::command::{CommandError, Errno, invalid};
use crate::transport::TransportRules;
use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr, QpState, QpType};
use roce_wire::PathMtu;

/// Device limits that attributes are checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttrLimits {
    /// Path MTU code that the link allows now.
    pub active_mtu: u8,
    /// Most outstanding READs and atomics as requester.
    pub max_init_rd_atomic: u8,
    /// Most outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Entries of the GID table.
    pub gid_table_len: u32,
    /// The client may set controlled Q_Keys (bit 31).
    pub privileged: bool,
}

/// Required and optional attributes of one transition.
#[derive(Clone, Copy)]
struct Allowed {
    required: AttrMask,
    optional: AttrMask,
}

const NONE: AttrMask = AttrMask::empty();
const PATH_INDEX: AttrMask = AttrMask::PKEY_INDEX;
const CONNECTED_INIT: AttrMask = PATH_INDEX.union(AttrMask::PORT).union(AttrMask::ACCESS_FLAGS);
const DATAGRAM_INIT: AttrMask = PATH_INDEX.union(AttrMask::PORT).union(AttrMask::QKEY);
const UC_RTR: AttrMask =
    AttrMask::AV.union(AttrMask::PATH_MTU).union(AttrMask::DEST_QPN).union(AttrMask::RQ_PSN);
const RC_RTR: AttrMask = UC_RTR.union(AttrMask::MAX_DEST_RD_ATOMIC).union(AttrMask::MIN_RNR_TIMER);
const CONNECTED_RTR_OPTIONAL: AttrMask =
    AttrMask::ALT_PATH.union(AttrMask::ACCESS_FLAGS).union(PATH_INDEX);
const RC_RTS: AttrMask = AttrMask::TIMEOUT
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::SQ_PSN)
    .union(AttrMask::MAX_QP_RD_ATOMIC);
const UC_RTS_OPTIONAL: AttrMask = AttrMask::CUR_STATE
    .union(AttrMask::ALT_PATH)
    .union(AttrMask::ACCESS_FLAGS)
    .union(AttrMask::PATH_MIG_STATE);
const RC_RTS_OPTIONAL: AttrMask = UC_RTS_OPTIONAL.union(AttrMask::MIN_RNR_TIMER);
const UD_RTS_OPTIONAL: AttrMask = AttrMask::CUR_STATE.union(AttrMask::QKEY);
const UC_SQD_OPTIONAL: AttrMask = AttrMask::AV
    .union(AttrMask::ALT_PATH)
    .union(AttrMask::ACCESS_FLAGS)
    .union(PATH_INDEX)
    .union(AttrMask::PATH_MIG_STATE);
const XRC_TARGET_SQD_OPTIONAL: AttrMask = UC_SQD_OPTIONAL
    .union(AttrMask::PORT)
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);
const XRC_INITIATOR_SQD_OPTIONAL: AttrMask = UC_SQD_OPTIONAL
    .union(AttrMask::PORT)
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC);
const RC_SQD_OPTIONAL: AttrMask = XRC_TARGET_SQD_OPTIONAL.union(XRC_INITIATOR_SQD_OPTIONAL);

fn allowed(qp_type: QpType, from: QpState, to: QpState) -> Option<Allowed> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let make = |required, optional| Some(Allowed { required, optional });
    match (from, to) {
        (_, Reset) => make(NONE, NONE),
        (Reset, Err) => None,
        (_, Err) => make(NONE, NONE),
        (Reset, Init) => make(init_mask(qp_type), NONE),
        (Init, Init) => make(NONE, init_mask(qp_type)),
        (Init, Rtr) => rtr(qp_type),
        (Rtr, Rts) => rts(qp_type),
        (Rts, Rts) | (Sqd, Rts) => make(NONE, rts(qp_type)?.optional),
        (Rts, Sqd) => make(NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => make(NONE, sqd_optional(qp_type)),
        (Sqe, Rts) => sqe_to_rts(qp_type),
        _ => None,
    }
}

fn init_mask(qp_type: QpType) -> AttrMask {
    // Rule: DatagramsNeedQKey
    if TransportRules::of(qp_type).is_connected { CONNECTED_INIT } else { DATAGRAM_INIT }
}

fn rtr(qp_type: QpType) -> Option<Allowed> {
    let (required, optional) = match qp_type {
        QpType::Rc | QpType::XrcRecv => (RC_RTR, CONNECTED_RTR_OPTIONAL),
        // Rule: UcRtrAttributes
        QpType::Uc | QpType::XrcSend => (UC_RTR, CONNECTED_RTR_OPTIONAL),
        QpType::Ud => (NONE, DATAGRAM_INIT.difference(AttrMask::PORT)),
    };
    Some(Allowed { required, optional })
}

fn rts(qp_type: QpType) -> Option<Allowed> {
    let (required, optional) = match qp_type {
        QpType::Rc => (RC_RTS, RC_RTS_OPTIONAL),
        QpType::XrcSend => (RC_RTS, UC_RTS_OPTIONAL),
        QpType::XrcRecv => (AttrMask::TIMEOUT.union(AttrMask::SQ_PSN), RC_RTS_OPTIONAL),
        // Rule: UcRtsAttributes
        QpType::Uc => (AttrMask::SQ_PSN, UC_RTS_OPTIONAL),
        QpType::Ud => (AttrMask::SQ_PSN, UD_RTS_OPTIONAL),
    };
    Some(Allowed { required, optional })
}

fn sqd_optional(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::Rc => RC_SQD_OPTIONAL,
        QpType::XrcSend => XRC_INITIATOR_SQD_OPTIONAL,
        QpType::XrcRecv => XRC_TARGET_SQD_OPTIONAL,
        QpType::Uc => UC_SQD_OPTIONAL,
        QpType::Ud => PATH_INDEX.union(AttrMask::QKEY),
    }
}

fn sqe_to_rts(qp_type: QpType) -> Option<Allowed> {
    let optional = match qp_type {
        QpType::Ud => UD_RTS_OPTIONAL,
        QpType::Uc => AttrMask::CUR_STATE.union(AttrMask::ACCESS_FLAGS),
        _ => return None,
    };
    Some(Allowed { required: NONE, optional })
}

/// What an end of XRC has no use for, because only the other end does: programs give it to both,
/// and Linux takes it.
fn ignored(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY,
        QpType::Rc | QpType::Uc | QpType::Ud => NONE,
    }
}

/// The attributes after a modify, or why it is refused.
///
/// `current.state` is the QP's state; on success the result's `state` is the new one. A modify
/// without `STATE` keeps the state (allowed where the table has that row).
///
/// # Errors
/// EINVAL or EPERM; nothing may be changed then.
pub fn modify(
    qp_type: QpType,
    current: &QpAttr,
    mask: AttrMask,
    new: &QpAttr,
    limits: &AttrLimits,
) -> Result<QpAttr, CommandError> {
    let lies = mask.contains(AttrMask::CUR_STATE) && new.cur_state != current.state;
    // Rule: CurrentState
    if lies {
        return Err(invalid("cur_qp_state is not the QP's state"));
    }
    let to = if mask.contains(AttrMask::STATE) { new.state } else { current.state };
    // Rule: Transitions
    let allowed = allowed(qp_type, current.state, to)
        .ok_or(invalid("there is no such transition from the QP's state"))?;
    // Rule: XrcOtherHalfIgnored
    let given = mask.difference(AttrMask::STATE).difference(ignored(qp_type));
    // Rule: RequiredAttributes
    if !given.contains(allowed.required) {
        return Err(invalid("an attribute that this transition requires is missing"));
    }
    let known = allowed.required.union(allowed.optional);
    // Rule: AllowedAttributes
    if !known.contains(given) {
        return Err(invalid("an attribute is given that this transition does not allow"));
    }
    check_ranges(given, new, limits)?;
    if to == QpState::Reset {
        return Ok(QpAttr::default());
    }
    let mut result = *current;
    result.state = to;
    copy(given, new, &mut result);
    // Asked for on the way to SQD: other attributes may change there before the queue is drained.
    if (current.state, to) != (QpState::Sqd, QpState::Sqd) {
        let notify = given.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && new.en_sqd_async_notify;
        result.en_sqd_async_notify = notify;
    }
    Ok(result)
}

fn check_ranges(mask: AttrMask, new: &QpAttr, limits: &AttrLimits) -> Result<(), CommandError> {
    let require = |attr, ok, why| require(mask, attr, ok, why);
    // Rule: PortRange
    require(AttrMask::PORT, new.port_num == 1, "port_num is not 1")?;
    require(
        AttrMask::PKEY_INDEX,
        // Rule: PKeyIndexRange
        new.pkey_index == 0,
        "the P_Key table has one entry, 0",
    )?;
    require(
        AttrMask::TIMEOUT,
        // Rule: TimeoutExponentRange
        new.timeout <= 31,
        "timeout is beyond 31",
    )?;
    // Rule: RetryCntRange
    require(AttrMask::RETRY_CNT, new.retry_cnt <= 7, "retry_cnt is beyond 7")?;
    // Rule: RnrRetryRange
    require(AttrMask::RNR_RETRY, new.rnr_retry <= 7, "rnr_retry is beyond 7")?;
    require(
        AttrMask::MIN_RNR_TIMER,
        // Rule: MinRnrTimerRange
        new.min_rnr_timer <= 31,
        "min_rnr_timer is beyond 31",
    )?;
    // Rule: PathMtuRange
    let mtu = PathMtu::from_code(new.path_mtu).is_some() && new.path_mtu <= limits.active_mtu;
    require(AttrMask::PATH_MTU, mtu, "path_mtu is not a code or beyond the port's active_mtu")?;
    // Rule: RdAtomicRange
    let initiator = new.max_rd_atomic <= limits.max_init_rd_atomic;
    require(AttrMask::MAX_QP_RD_ATOMIC, initiator, "max_rd_atomic is beyond the device's limit")?;
    // Rule: DestRdAtomicRange
    let responder = new.max_dest_rd_atomic <= limits.max_dest_rd_atomic;
    require(
        AttrMask::MAX_DEST_RD_ATOMIC,
        responder,
        "max_dest_rd_atomic is beyond the device's limit",
    )?;
    check_paths(mask, new, limits)?;
    check_qkey(mask, new, limits)
}

fn require(
    mask: AttrMask,
    attr: AttrMask,
    ok: bool,
    why: &'static str,
) -> Result<(), CommandError> {
    if mask.contains(attr) && !ok { Err(invalid(why)) } else { Ok(()) }
}

fn check_paths(mask: AttrMask, new: &QpAttr, limits: &AttrLimits) -> Result<(), CommandError> {
    if mask.contains(AttrMask::AV) {
        check_address(&new.ah, limits.gid_table_len)?;
    }
    let why = "alternate paths and their migration are not supported";
    // Rule: NoAlternatePath
    require(mask, AttrMask::ALT_PATH, false, why)
}

/// Checks an address vector.
pub(crate) fn check_address(ah: &AhAttr, gid_table_len: u32) -> Result<(), CommandError> {
    // Rule: AddressRange
    let address = ah.is_global
        && u32::from(ah.sgid_index) < gid_table_len
        && ah.dgid != [0; 16]
        && ah.flow_label < 1 << 20;
    if !address {
        return Err(invalid("RoCE needs a global route with a good sgid_index and dgid"));
    }
    // Rule: AddressPortRange
    let port = ah.port_num == 1;
    if port { Ok(()) } else { Err(invalid("port_num of the address is not 1")) }
}

fn check_qkey(mask: AttrMask, new: &QpAttr, limits: &AttrLimits) -> Result<(), CommandError> {
    if mask.contains(AttrMask::QKEY) && new.qkey >> 31 != 0 && !limits.privileged {
        return Err(CommandError {
            errno: Errno::Perm,
            reason: "a Q_Key with bit 31 set is for privileged clients",
        });
    }
    Ok(())
}

fn copy(mask: AttrMask, new: &QpAttr, result: &mut QpAttr) {
    // Rule: PsnMasked
    let psn_mask = 0x00ff_ffff;
    let mut take = |attr: AttrMask, assign: &dyn Fn(&mut QpAttr)| {
        if mask.contains(attr) {
            assign(result);
        }
    };
    take(AttrMask::ACCESS_FLAGS, &|r| r.access = new.access);
    take(AttrMask::PKEY_INDEX, &|r| r.pkey_index = new.pkey_index);
    take(AttrMask::PORT, &|r| r.port_num = new.port_num);
    take(AttrMask::QKEY, &|r| r.qkey = new.qkey);
    take(AttrMask::AV, &|r| r.ah = new.ah);
    take(AttrMask::PATH_MTU, &|r| r.path_mtu = new.path_mtu);
    take(AttrMask::TIMEOUT, &|r| r.timeout = new.timeout);
    take(AttrMask::RETRY_CNT, &|r| r.retry_cnt = new.retry_cnt);
    take(AttrMask::RNR_RETRY, &|r| r.rnr_retry = new.rnr_retry);
    take(AttrMask::RQ_PSN, &|r| r.rq_psn = new.rq_psn & psn_mask);
    take(AttrMask::SQ_PSN, &|r| r.sq_psn = new.sq_psn & psn_mask);
    take(AttrMask::DEST_QPN, &|r| r.dest_qpn = new.dest_qpn & psn_mask);
    take(AttrMask::MAX_QP_RD_ATOMIC, &|r| r.max_rd_atomic = new.max_rd_atomic);
    take(AttrMask::MAX_DEST_RD_ATOMIC, &|r| r.max_dest_rd_atomic = new.max_dest_rd_atomic);
    take(AttrMask::MIN_RNR_TIMER, &|r| r.min_rnr_timer = new.min_rnr_timer);
}

#[cfg(test)]
mod tests {
    use super::{AttrLimits, RC_RTR, RC_RTS, modify};
    use crate::command::Errno;
    use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr, QpState, QpType};

    const LIMITS: AttrLimits = AttrLimits {
        active_mtu: 3,
        max_init_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        gid_table_len: 16,
        privileged: false,
    };

    fn wanted(state: QpState) -> QpAttr {
        let ah = AhAttr { dgid: [1; 16], is_global: true, port_num: 1, ..AhAttr::default() };
        QpAttr {
            state,
            path_mtu: 3,
            port_num: 1,
            ah,
            rq_psn: 0xff12_3456,
            max_rd_atomic: 16,
            ..QpAttr::default()
        }
    }

    fn in_state(state: QpState) -> QpAttr {
        QpAttr { state, ..QpAttr::default() }
    }

    fn step(from: QpState, to: QpState, mask: AttrMask) -> Result<QpAttr, Errno> {
        modify(QpType::Rc, &in_state(from), mask | AttrMask::STATE, &wanted(to), &LIMITS)
            .map_err(|e| e.errno)
    }

    #[test]
    fn the_ordinary_path_of_an_rc_qp() {
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        assert!(step(QpState::Reset, QpState::Init, init).is_ok());
        let rtr = step(QpState::Init, QpState::Rtr, RC_RTR).unwrap();
        assert_eq!((rtr.state, rtr.rq_psn), (QpState::Rtr, 0x0012_3456));
        assert!(step(QpState::Rtr, QpState::Rts, RC_RTS).is_ok());
        assert!(step(QpState::Rts, QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY).is_ok());
        assert!(step(QpState::Sqd, QpState::Sqd, AttrMask::TIMEOUT).is_ok());
        assert!(step(QpState::Sqd, QpState::Rts, AttrMask::empty()).is_ok());
        assert!(step(QpState::Rts, QpState::Err, AttrMask::empty()).is_ok());
        assert!(step(QpState::Err, QpState::Reset, AttrMask::empty()).is_ok());
    }

    #[test]
    fn the_ends_of_xrc_take_what_is_for_the_other_end_and_keep_nothing_of_it() {
        for qp_type in [QpType::XrcSend, QpType::XrcRecv] {
            let step = |from, to, mask| {
                let new = QpAttr { min_rnr_timer: 5, rnr_retry: 5, ..wanted(to) };
                modify(qp_type, &in_state(from), mask | AttrMask::STATE, &new, &LIMITS).unwrap()
            };
            let is_target = qp_type == QpType::XrcRecv;
            let rtr = step(QpState::Init, QpState::Rtr, RC_RTR);
            assert_eq!(rtr.min_rnr_timer == 5, is_target);
            let rts = step(QpState::Rtr, QpState::Rts, RC_RTS);
            assert_eq!(rts.rnr_retry == 5, !is_target);
        }
    }

    #[test]
    fn a_missing_or_extra_attribute_is_refused_for_every_bit() {
        for bit in RC_RTR.iter() {
            let without = step(QpState::Init, QpState::Rtr, RC_RTR.difference(bit));
            assert_eq!(without, Err(Errno::Invalid), "{bit:?} is required");
        }
        for extra in [AttrMask::QKEY, AttrMask::SQ_PSN, AttrMask::CAP, AttrMask::RATE_LIMIT] {
            assert_eq!(step(QpState::Init, QpState::Rtr, RC_RTR | extra), Err(Errno::Invalid));
        }
    }

    #[test]
    fn transitions_that_do_not_exist_are_refused() {
        for (from, to) in [
            (QpState::Reset, QpState::Err),
            (QpState::Reset, QpState::Rtr),
            (QpState::Init, QpState::Rts),
            (QpState::Err, QpState::Init),
            (QpState::Sqe, QpState::Rts),
            (QpState::Rts, QpState::Init),
        ] {
            assert_eq!(step(from, to, AttrMask::empty()), Err(Errno::Invalid), "{from:?} {to:?}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let refuse = |mask: AttrMask, change: fn(&mut QpAttr)| {
            let mut attr = wanted(QpState::Sqd);
            change(&mut attr);
            let from = in_state(QpState::Sqd);
            let result = modify(QpType::Rc, &from, mask | AttrMask::STATE, &attr, &LIMITS);
            assert_eq!(result.map_err(|e| e.errno), Err(Errno::Invalid), "{mask:?}");
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
        refuse(AttrMask::AV, |a| a.ah.sgid_index = 16);
        refuse(AttrMask::AV, |a| a.ah.dgid = [0; 16]);
    }

    #[test]
    fn the_path_mtu_is_bounded_by_the_port() {
        let mut attr = wanted(QpState::Rtr);
        attr.path_mtu = 4;
        let from = in_state(QpState::Init);
        let mask = RC_RTR | AttrMask::STATE;
        assert!(modify(QpType::Rc, &from, mask, &attr, &LIMITS).is_err());
        let jumbo = AttrLimits { active_mtu: 5, ..LIMITS };
        assert!(modify(QpType::Rc, &from, mask, &attr, &jumbo).is_ok());
    }

    #[test]
    fn a_controlled_qkey_needs_privilege() {
        let mut attr = wanted(QpState::Init);
        attr.qkey = 0x8001_0000;
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        let from = in_state(QpState::Reset);
        let refused = modify(QpType::Ud, &from, mask, &attr, &LIMITS);
        assert_eq!(refused.map_err(|e| e.errno), Err(Errno::Perm));
        let root = AttrLimits { privileged: true, ..LIMITS };
        assert!(modify(QpType::Ud, &from, mask, &attr, &root).is_ok());
    }

    #[test]
    fn cur_state_must_tell_the_truth() {
        let mut attr = wanted(QpState::Rts);
        attr.cur_state = QpState::Sqd;
        let mask = AttrMask::STATE | AttrMask::CUR_STATE;
        assert!(modify(QpType::Rc, &in_state(QpState::Rts), mask, &attr, &LIMITS).is_err());
        attr.cur_state = QpState::Rts;
        assert!(modify(QpType::Rc, &in_state(QpState::Rts), mask, &attr, &LIMITS).is_ok());
    }
}
