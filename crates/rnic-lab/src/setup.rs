//! The stage of most stories: two hosts with a connected queue pair each.

use crate::decode;
use crate::teller::{NAMES, Teller};
use rnic_abi::verbs::{AttrMask, QpAttr, QpType};
use rnic_page::Kind;
use rnic_sim::pair::End;
use rnic_sim::verbs::{Connection, QpId, QpSetup};
use rnic_sim::world::HostId;

/// Bytes of memory of each end.
const MEMORY: u64 = 64 << 10;

/// How most connections of the stories are made: small packets and short waits.
pub(crate) fn connection() -> Connection {
    Connection {
        path_mtu: 1,
        timeout: 5,
        min_rnr_timer: 3,
        // Packets whose PSN is a multiple of 32 ask for an ACK on the way.
        sq_psn: 0x10_0001,
        rq_psn: 0x20_0001,
        ..Connection::default()
    }
}

impl Teller {
    /// Two ends, connected.
    pub(crate) fn connected(&mut self) -> (End, End) {
        self.connected_by(&connection(), QpType::Rc)
    }

    /// The same by other terms.
    pub(crate) fn connected_by(&mut self, connection: &Connection, qp_type: QpType) -> (End, End) {
        let (a, b) = self.ends(|setup| setup.qp_type = qp_type);
        self.world.connect((0, a.qp), (1, b.qp), connection);
        self.mtu = connection.mtu();
        let (own, peer) = (connection, connection.reversed());
        self.told_setup(0, &a, Some(own));
        self.told_setup(1, &b, Some(&peer));
        self.resync();
        (a, b)
    }

    /// Two ends, not connected.
    pub(crate) fn ends(&mut self, setup: impl Fn(&mut QpSetup)) -> (End, End) {
        let a = End::with_memory(&mut self.world, 0, MEMORY, &setup);
        let b = End::with_memory(&mut self.world, 1, MEMORY, &setup);
        self.qps.extend([(0, a.qp), (1, b.qp)]);
        (a, b)
    }

    /// What a program did before the story begins.
    pub(crate) fn told_setup(&mut self, host: HostId, end: &End, how: Option<&Connection>) {
        let qpn = self.world.host(host).qpn(end.qp);
        let state = how.map_or("not connected", |_| "connected");
        let title = format!("Before: {} has queue pair {qpn:#08x}, {state}", NAMES[host]);
        let mr = &end.mr;
        let mut text = vec![format!(
            "Its memory: {} bytes at {:#x}, lkey {:#010x}, rkey {:#010x}.",
            mr.len, mr.addr, mr.lkey, mr.rkey
        )];
        if let Some(how) = how {
            text.push(format!("First PSN {:#08x}, path MTU {} bytes.", how.sq_psn, how.mtu()));
        }
        let mut step = self.step(Kind::Call, host, title);
        (step.text, step.qp) = (text, Some(Self::qp_name(host, qpn)));
        self.push(step);
    }

    /// `ibv_modify_qp`, told with what it changes.
    pub(crate) fn modify(
        &mut self,
        host: HostId,
        qp: QpId,
        mask: AttrMask,
        attr: QpAttr,
        peer: Option<HostId>,
    ) -> bool {
        let peer = peer.map(|peer| self.world.hosts()[peer].ip);
        let qpn = self.world.host(host).qpn(qp);
        let result = self.world.host(host).modify(qp, mask, attr, peer);
        let names: Vec<_> = mask.iter_names().map(|(name, _)| name).collect();
        let mut title = format!("ibv_modify_qp({qpn:#08x}, {})", names.join("|"));
        if mask.contains(AttrMask::STATE) {
            let state = crate::narrate::state(attr.state);
            title = format!("ibv_modify_qp({qpn:#08x}, to {state}, {})", names.join("|"));
        }
        if let Err(error) = result {
            title += &format!(" = {:?}", error.errno);
            self.said.push(error.reason.to_owned());
        }
        let mut step = self.step(Kind::State, host, title);
        step.qp = Some(Self::qp_name(host, qpn));
        self.push(step);
        self.resync();
        result.is_ok()
    }

    /// RESET to INIT.
    pub(crate) fn init(&mut self, end: &End, how: &Connection) -> bool {
        let (mask, attr) = how.init();
        let rights = decode::rights(how.access);
        self.said.push(format!("The peer may do this through it: {rights}."));
        self.modify(end.host, end.qp, mask, attr, None)
    }

    /// INIT to RTR, with the peer's number and first PSN.
    pub(crate) fn rtr(&mut self, end: &End, how: &Connection, peer: (HostId, u32)) -> bool {
        self.rtr_marked(end, how, peer, 0)
    }

    /// The same with a traffic class of the packets.
    pub(crate) fn rtr_marked(
        &mut self,
        end: &End,
        how: &Connection,
        (peer, peer_qpn): (HostId, u32),
        traffic_class: u8,
    ) -> bool {
        let peer_ip = self.world.hosts()[peer].ip;
        let (mask, mut attr) = how.rtr(QpType::Rc, peer_ip, peer_qpn);
        attr.ah.traffic_class = traffic_class;
        self.mtu = how.mtu();
        self.said.push(format!(
            "Its peer is queue pair {peer_qpn:#08x} at {peer_ip}, whose first PSN is {:#08x}; \
             packets carry up to {} bytes.",
            how.rq_psn,
            how.mtu()
        ));
        self.modify(end.host, end.qp, mask, attr, Some(peer))
    }

    /// RTR to RTS.
    pub(crate) fn rts(&mut self, end: &End, how: &Connection) -> bool {
        let (mask, attr) = how.rts(QpType::Rc);
        let terms = self.world.terms(how);
        let qpn = self.world.host(end.host).qpn(end.qp);
        self.world.host(end.host).trace.witness.connected(qpn, terms);
        self.said.push(format!(
            "Its own first PSN is {:#08x}; it sends again after {} us without an answer, {} \
             times at most.",
            how.sq_psn,
            how.ack_timeout() / 1000,
            how.retry_cnt
        ));
        self.modify(end.host, end.qp, mask, attr, None)
    }
}
