//! Queue pairs of a host on their way through RESET ... ERR.

use crate::host::Host;
use crate::verbs::{Connection, QpId};
use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr, QpState, QpType};
use rnic_core::command::{ClientCommand, CommandError, Outcome, Path};
use roce_wire::{Flow, Gid};
use std::net::IpAddr;

/// What `ibv_modify_qp` is called with: attributes, and which of them count.
impl Connection {
    /// RESET to INIT.
    pub fn init(&self) -> (AttrMask, QpAttr) {
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let attr =
            QpAttr { state: QpState::Init, port_num: 1, access: self.access, ..QpAttr::default() };
        (mask, attr)
    }

    /// INIT to RTR of a queue pair of this type.
    pub fn rtr(&self, qp_type: QpType, peer: IpAddr, peer_qpn: u32) -> (AttrMask, QpAttr) {
        let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        let mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | where_one_of(qp_type, [QpType::Rc, QpType::XrcRecv], answers);
        let dgid = Gid::from_ip(peer).0;
        let attr = QpAttr {
            state: QpState::Rtr,
            ah: AhAttr { dgid, is_global: true, port_num: 1, ..AhAttr::default() },
            path_mtu: self.path_mtu,
            dest_qpn: peer_qpn,
            rq_psn: self.rq_psn,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            ..QpAttr::default()
        };
        (mask, attr)
    }

    /// RTR to RTS of a queue pair of this type.
    pub fn rts(&self, qp_type: QpType) -> (AttrMask, QpAttr) {
        let retries = AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        let mask = AttrMask::STATE
            | AttrMask::SQ_PSN
            | where_one_of(qp_type, [QpType::Rc, QpType::XrcSend], retries)
            | where_one_of(qp_type, [QpType::XrcRecv], AttrMask::TIMEOUT);
        let attr = QpAttr {
            state: QpState::Rts,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            sq_psn: self.sq_psn,
            max_rd_atomic: self.max_rd_atomic,
            ..QpAttr::default()
        };
        (mask, attr)
    }
}

/// These attributes, if they mean something to a queue pair of its type.
fn where_one_of<const N: usize>(
    qp_type: QpType,
    types: [QpType; N],
    attributes: AttrMask,
) -> AttrMask {
    if types.contains(&qp_type) { attributes } else { AttrMask::empty() }
}

impl Host {
    /// Modifies a queue pair. `peer` is the address that `AV` means.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn modify(
        &mut self,
        qp: QpId,
        mask: AttrMask,
        attr: QpAttr,
        peer: Option<IpAddr>,
    ) -> Result<(), CommandError> {
        let path = peer.map(|peer| {
            let flow = Flow { tos: attr.ah.traffic_class, ..Flow::new(self.ip, peer, 0) };
            Path { attr: attr.ah, flow, hop: self.hop_to(peer) }
        });
        let handle = self.qps[qp.0].handle;
        let was = self.state(qp);
        self.command(ClientCommand::ModifyQp { qp: handle, mask, attr, path })?;
        if (was, attr.state) == (QpState::Sqe, QpState::Rts) {
            self.qps[qp.0].sq.oracle.resume();
        }
        if mask.contains(AttrMask::STATE) {
            self.entered(qp, attr.state);
        }
        if mask.contains(AttrMask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic == 0 {
            self.trace.witness.lost_depth(self.qps[qp.0].qpn);
        }
        Ok(())
    }

    fn entered(&mut self, qp: QpId, state: QpState) {
        let app = &mut self.qps[qp.0];
        self.trace.witness.entered(app.qpn, state);
        if state == QpState::Reset {
            for queue in [&mut app.sq, &mut app.rq] {
                queue.ring.reset();
                queue.oracle.reset();
            }
            app.receives.clear();
        }
        // The control plane wakes the engine's thread for every command.
        self.called = true;
    }

    /// Only the state.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn set_state(&mut self, qp: QpId, state: QpState) {
        let attr = QpAttr { state, ..QpAttr::default() };
        self.modify(qp, AttrMask::STATE, attr, None).expect("the transition is allowed");
    }

    /// RESET to INIT.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn to_init(&mut self, qp: QpId, connection: &Connection) {
        let (mask, attr) = connection.init();
        self.modify(qp, mask, attr, None).expect("RESET to INIT");
    }

    /// INIT to RTR.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn to_rtr(&mut self, qp: QpId, connection: &Connection, peer: IpAddr, peer_qpn: u32) {
        let qp_type = self.qps[qp.0].setup.qp_type;
        let (mask, attr) = connection.rtr(qp_type, peer, peer_qpn);
        self.modify(qp, mask, attr, Some(peer)).expect("INIT to RTR");
    }

    /// RTR to RTS.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn to_rts(&mut self, qp: QpId, connection: &Connection) {
        let (mask, attr) = connection.rts(self.qps[qp.0].setup.qp_type);
        self.modify(qp, mask, attr, None).expect("RTR to RTS");
    }

    /// What it sends arrives, or it says that it does not.
    pub(crate) fn is_reliable(&self, qp: QpId) -> bool {
        !matches!(self.qps[qp.0].setup.qp_type, QpType::Uc | QpType::Ud)
    }

    /// RESET to RTS.
    pub fn connect(&mut self, qp: QpId, connection: &Connection, peer: IpAddr, peer_qpn: u32) {
        self.to_init(qp, connection);
        self.to_rtr(qp, connection, peer, peer_qpn);
        self.to_rts(qp, connection);
    }

    /// What the engine says about a queue pair.
    ///
    /// # Panics
    /// When the queue pair is gone.
    pub fn query_qp(&mut self, qp: QpId) -> QpAttr {
        let handle = self.qps[qp.0].handle;
        match self.command(ClientCommand::QueryQp { qp: handle }) {
            Ok(Outcome::QpState { attr, .. }) => attr,
            other => panic!("QueryQp has the outcome {other:?}"),
        }
    }

    /// Its state.
    pub fn state(&mut self, qp: QpId) -> QpState {
        self.query_qp(qp).state
    }
}
