//! Queue pairs without a connection, and the addresses that their datagrams go to.

use crate::host::Host;
use crate::verbs::QpId;
use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr, QpState};
use rnic_core::command::{ClientCommand, CommandError, Outcome, Path};
use roce_wire::{Flow, Gid};
use std::net::IpAddr;

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct To {
    /// Address handle.
    pub ah: u32,
    /// Queue pair there.
    pub qpn: u32,
    /// Its Q_Key, or one with the high bit set for the sender's own.
    pub qkey: u32,
}

impl Host {
    /// Makes an address handle of attributes of one's choice.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn try_create_ah(
        &mut self,
        pd: u32,
        peer: IpAddr,
        attr: AhAttr,
    ) -> Result<u32, CommandError> {
        let hop_limit = if attr.hop_limit == 0 { Flow::DEFAULT_HOP_LIMIT } else { attr.hop_limit };
        let flow = Flow {
            tos: attr.traffic_class,
            hop_limit,
            flow_label: attr.flow_label,
            ..Flow::new(self.ip, peer, 0)
        };
        let path = Path { attr, flow, hop: self.hop_to(peer) };
        match self.command(ClientCommand::CreateAh { pd, path })? {
            Outcome::Handle(ah) => Ok(ah),
            other => panic!("CreateAh has the outcome {other:?}"),
        }
    }

    /// Makes an address handle.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn create_ah(&mut self, pd: u32, peer: IpAddr) -> u32 {
        let dgid = Gid::from_ip(peer).0;
        let attr = AhAttr { dgid, is_global: true, port_num: 1, ..AhAttr::default() };
        self.try_create_ah(pd, peer, attr).expect("the engine makes the address handle")
    }

    /// Destroys an address handle.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn destroy_ah(&mut self, ah: u32) -> Result<(), CommandError> {
        self.command(ClientCommand::DestroyAh { ah }).map(drop)
    }

    /// Attaches a queue pair to a group.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn attach(&mut self, qp: QpId, group: IpAddr) -> Result<(), CommandError> {
        let qp = self.qp_handle(qp);
        self.command(ClientCommand::Attach { qp, group: Gid::from_ip(group) }).map(drop)
    }

    /// Detaches it.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn detach(&mut self, qp: QpId, group: IpAddr) -> Result<(), CommandError> {
        let qp = self.qp_handle(qp);
        self.command(ClientCommand::Detach { qp, group: Gid::from_ip(group) }).map(drop)
    }

    /// RESET to RTS.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn open_for_datagrams(&mut self, qp: QpId, qkey: u32, sq_psn: u32) {
        let attr = QpAttr { port_num: 1, qkey, sq_psn, ..QpAttr::default() };
        let steps = [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY),
            (QpState::Rtr, AttrMask::empty()),
            (QpState::Rts, AttrMask::SQ_PSN),
        ];
        for (state, mask) in steps {
            let attr = QpAttr { state, ..attr };
            self.modify(qp, mask | AttrMask::STATE, attr, None).expect("the transition exists");
        }
    }
}
