//! A scripted peer.

use rnic_core::cm::{Cm, Connect, Happening, Offer, Owner, PrivateData, Route};
use rnic_core::time::Instant;
use rnic_sim::cm::{config, way};
use roce_wire::cm::{
    AboutMessage, CmMad, CmMessage, CmPath, CmaHeader, Drep, Dreq, PortSpace, Rej, RejectReason,
    Rep, Req, Rtu, TransportType, service_id,
};
use roce_wire::{Gid, PKey, Psn, QKey, Qpn};

pub(crate) const OWNER: Owner = Owner { user: 0, place: 7 };
pub(crate) const PORT: u16 = 7174;
/// Of the peer.
pub(crate) const COMM: u32 = 0x1234_5678;
pub(crate) const QPN: u32 = 0x200;
pub(crate) const SOURCE_PORT: u16 = 40_000;
pub(crate) const GUID: u64 = 0x1122_3344_5566_7788;

/// A manager and its peer, which is a script.
pub(crate) struct Talk {
    pub(crate) cm: Cm,
    pub(crate) now: Instant,
    pub(crate) listener: u32,
}

impl Talk {
    /// A program listens for connections.
    pub(crate) fn listening() -> Self {
        Self::with(PortSpace::Tcp)
    }

    pub(crate) fn with(space: PortSpace) -> Self {
        let mut cm = Cm::new(config(0, 1));
        let (listener, port) = cm.bind(OWNER, space, None, PORT, false).expect("free");
        assert_eq!(port, PORT);
        cm.listen(listener, 4).expect("idle");
        Self { cm, now: Instant::ZERO, listener }
    }

    /// The peer says something.
    pub(crate) fn say(&mut self, message: CmMessage) {
        self.say_from(&way(0, 1), message);
    }

    pub(crate) fn say_from(&mut self, back: &Route, message: CmMessage) {
        self.cm.receive(self.now, back, &CmMad::new(99, message).to_bytes());
    }

    /// The next message to the peer.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> CmMessage {
        self.hear_any().expect("a message")
    }

    pub(crate) fn hear_any(&mut self) -> Option<CmMessage> {
        let outgoing = self.cm.next_mad()?;
        assert_eq!(outgoing.route.qpn, Qpn::GSI);
        Some(CmMad::parse(&outgoing.mad).expect("well-formed").message)
    }

    #[track_caller]
    pub(crate) fn silence(&mut self) {
        assert_eq!(self.hear_any(), None);
        assert_eq!(self.cm.next_event(), None);
    }

    /// The next event is of this identifier.
    #[track_caller]
    pub(crate) fn event(&mut self, id: u32) -> Happening {
        let event = self.cm.next_event().expect("an event");
        assert_eq!((event.owner, event.id), (OWNER, id));
        event.what
    }

    /// The peer refuses nothing and asks for a connection: the identifier it gets.
    #[track_caller]
    pub(crate) fn requested(&mut self) -> u32 {
        self.say(CmMessage::Req(req()));
        self.is_offered()
    }

    #[track_caller]
    pub(crate) fn is_offered(&mut self) -> u32 {
        let event = self.cm.next_event().expect("an event");
        assert!(matches!(event.what, Happening::Request(_)), "{event:?}");
        event.id
    }

    /// The next message refuses for this reason.
    #[track_caller]
    pub(crate) fn is_refused(&mut self, reason: RejectReason) -> Rej {
        let CmMessage::Rej(rej) = self.hear() else { panic!("no REJ") };
        assert_eq!(rej.reason, reason);
        rej
    }

    pub(crate) fn accept(&mut self, id: u32, qpn: u32) {
        let private = PrivateData::new(b"welcome").expect("short");
        self.cm.accept(self.now, id, &offer(qpn), &private).expect("undecided");
    }

    /// A connection that the peer has asked for, with this queue pair of ours.
    #[track_caller]
    pub(crate) fn established(&mut self, qpn: u32) -> (u32, Rep) {
        let id = self.requested();
        self.accept(id, qpn);
        let CmMessage::Rep(rep) = self.hear() else { panic!("no REP") };
        self.say(accepted(&rep));
        assert_eq!(self.event(id), Happening::Established);
        (id, rep)
    }

    /// Our program asks for a connection.
    #[track_caller]
    pub(crate) fn connecting(&mut self, qpn: u32) -> (u32, Req) {
        let (id, _) = self.cm.bind(OWNER, PortSpace::Tcp, None, 0, false).expect("free");
        self.cm.connect(self.now, id, &connect(qpn)).expect("idle");
        let CmMessage::Req(req) = self.hear() else { panic!("no REQ") };
        (id, req)
    }

    /// Milliseconds pass.
    pub(crate) fn pass(&mut self, milliseconds: u64) {
        self.now = self.now.after_nanos(milliseconds * 1_000_000);
        self.cm.expire(self.now);
    }
}

pub(crate) fn offer(qpn: u32) -> Offer {
    Offer {
        qpn: Qpn::new(qpn),
        srq: false,
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: true,
        rnr_retry_count: 7,
    }
}

pub(crate) fn connect(qpn: u32) -> Connect {
    Connect {
        route: Route { flow_label: 0x1_2345, ..way(0, 1) },
        port: PORT,
        transport: TransportType::Rc,
        offer: offer(qpn),
        retry_count: 6,
        mtu_code: 3,
        ack_timeout: 17,
        private: PrivateData::new(b"hello").expect("short"),
    }
}

pub(crate) fn private_data<const N: usize>() -> [u8; N] {
    let mut private = [0; N];
    let Route { local, remote, .. } = way(0, 1);
    let header = CmaHeader { src_port: SOURCE_PORT, src: remote, dst: local };
    private[..CmaHeader::LEN].copy_from_slice(&header.to_bytes());
    private[CmaHeader::LEN..][..3].copy_from_slice(b"abc");
    private
}

/// The peer's request.
pub(crate) fn req() -> Req {
    let Route { local, remote, .. } = way(0, 1);
    Req {
        local_comm_id: COMM,
        vendor_id: 0,
        service_id: service_id(PortSpace::Tcp, PORT),
        local_ca_guid: GUID,
        local_qkey: QKey(0),
        local_qpn: Qpn::new(QPN),
        responder_resources: 3,
        local_eecn: 0,
        initiator_depth: 5,
        remote_eecn: 0,
        remote_cm_response_timeout: 20,
        transport: TransportType::Rc,
        flow_control: true,
        starting_psn: Psn::new(0xabcd),
        local_cm_response_timeout: 20,
        retry_count: 7,
        pkey: PKey::DEFAULT,
        path_mtu_code: 3,
        rdc_exists: false,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary: CmPath {
            local_gid: Gid::from_ip(remote),
            remote_gid: Gid::from_ip(local),
            local_ack_timeout: 17,
            hop_limit: 64,
            ..CmPath::default()
        },
        alternate: CmPath::default(),
        private_data: private_data(),
    }
}

/// The peer accepts our request with this queue pair.
pub(crate) fn rep(req: &Req, qpn: u32) -> Rep {
    Rep {
        local_comm_id: COMM + 1,
        remote_comm_id: req.local_comm_id,
        local_qkey: QKey(0),
        local_qpn: Qpn::new(qpn),
        vendor_id: 0,
        local_eecn: 0,
        starting_psn: Psn::new(0x77),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        local_ca_guid: GUID,
        private_data: [5; Rep::PRIVATE_DATA_LEN],
    }
}

/// The peer has our REP.
pub(crate) fn accepted(rep: &Rep) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_comm_id: rep.remote_comm_id,
        remote_comm_id: rep.local_comm_id,
        private_data: [0; Rtu::PRIVATE_DATA_LEN],
    })
}

/// The peer ends the connection of our REP.
pub(crate) fn dreq(rep: &Rep) -> Dreq {
    Dreq {
        local_comm_id: rep.remote_comm_id,
        remote_comm_id: rep.local_comm_id,
        remote_qpn: rep.local_qpn,
        private_data: [0; Dreq::PRIVATE_DATA_LEN],
    }
}

pub(crate) fn drep(dreq: &Dreq) -> CmMessage {
    CmMessage::Drep(Drep {
        local_comm_id: dreq.remote_comm_id,
        remote_comm_id: dreq.local_comm_id,
        private_data: [0; Drep::PRIVATE_DATA_LEN],
    })
}

pub(crate) fn rej(comms: (u32, u32), about: AboutMessage, reason: RejectReason) -> Rej {
    Rej {
        local_comm_id: comms.0,
        remote_comm_id: comms.1,
        about,
        info_len: 0,
        reason,
        info: [0; 72],
        private_data: [3; Rej::PRIVATE_DATA_LEN],
    }
}
