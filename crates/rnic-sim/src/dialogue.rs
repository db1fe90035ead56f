//! One real engine and a peer that is a script: every packet from it is looked at, every packet to
//! it is made by hand.

use crate::pair::{End, PATIENCE};
use crate::port::{Packet, PortConfig};
use crate::verbs::{Connection, QpSetup, SendWr};
use crate::world::{World, WorldConfig};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{AsyncEventType, QpState};
use rnic_abi::wqe::Sge;
use rnic_core::profile::Profile;
use rnic_core::time::Instant;
use roce_wire::headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ImmDt, Reth};
use roce_wire::{Flow, HeaderRepr, Msn, NakCode, Opcode, Psn, QKey, Qpn, RKey, Syndrome, XrcEth};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

/// QPN of the scripted peer.
pub const PEER_QPN: u32 = 0x77;
/// Address of the scripted peer.
pub const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A packet that the engine sent.
#[derive(Clone, Debug)]
pub struct Heard {
    /// When.
    pub at: Instant,
    /// Addresses, source port, TOS.
    pub flow: Flow,
    /// Headers.
    pub headers: HeaderRepr,
    /// Payload without padding.
    pub payload: Vec<u8>,
}

impl Heard {
    /// Opcode.
    pub fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }

    /// PSN.
    pub fn psn(&self) -> u32 {
        self.headers.bth.psn.value()
    }

    /// Syndrome and MSN.
    ///
    /// # Panics
    /// When it has no AETH.
    pub fn aeth(&self) -> (Syndrome, u32) {
        let aeth = self.headers.aeth.expect("a packet with an AETH");
        (aeth.syndrome, aeth.msn.value())
    }
}

/// A packet for the engine.
#[derive(Clone, Debug)]
pub struct Say {
    headers: HeaderRepr,
    payload: Vec<u8>,
}

impl Say {
    /// With nothing but a base transport header; extension headers start as zeros.
    pub fn new(opcode: Opcode, psn: u32) -> Self {
        let mut headers = HeaderRepr::new(Bth::new(opcode, Qpn::new(0), Psn::new(psn)));
        let info = opcode.info();
        let (zero_key, zero_psn) = (RKey(0), Msn::ZERO);
        if info.has(roce_wire::HeaderSet::RETH) {
            headers.reth = Some(Reth { va: 0, rkey: zero_key, dma_len: 0 });
        }
        if info.has(roce_wire::HeaderSet::ATOMIC_ETH) {
            headers.atomic = Some(AtomicEth { va: 0, rkey: zero_key, swap_or_add: 0, compare: 0 });
        }
        if info.has(roce_wire::HeaderSet::DETH) {
            headers.deth = Some(Deth::new(QKey(0), Qpn::new(PEER_QPN)));
        }
        if info.has(roce_wire::HeaderSet::XRCETH) {
            headers.xrceth = Some(XrcEth::new(0));
        }
        if info.has(roce_wire::HeaderSet::AETH) {
            headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: zero_psn });
        }
        if info.has(roce_wire::HeaderSet::ATOMIC_ACK_ETH) {
            headers.atomic_ack = Some(AtomicAckEth { original: 0 });
        }
        if info.has(roce_wire::HeaderSet::IMM_DT) {
            headers.imm = Some(ImmDt([0; 4]));
        }
        if info.has(roce_wire::HeaderSet::IETH) {
            headers.ieth = Some(roce_wire::Ieth { rkey: zero_key });
        }
        if info.has(roce_wire::HeaderSet::FETH) {
            headers.feth = Some(roce_wire::Feth(0));
        }
        Self { headers, payload: Vec::new() }
    }

    /// An acknowledgement of everything up to `psn`.
    pub fn ack(psn: u32, msn: u32) -> Self {
        Self::new(Opcode::RcAck, psn).syndrome(Syndrome::ACK, msn)
    }

    /// A refusal of `psn`.
    pub fn nak(code: NakCode, psn: u32, msn: u32) -> Self {
        Self::new(Opcode::RcAck, psn).syndrome(Syndrome::Nak(code), msn)
    }

    /// No receive WQE for `psn`.
    pub fn rnr_nak(timer: u8, psn: u32, msn: u32) -> Self {
        Self::new(Opcode::RcAck, psn).syndrome(Syndrome::RnrNak { timer }, msn)
    }

    /// The result of an atomic.
    pub fn atomic_ack(psn: u32, msn: u32, value: u64) -> Self {
        let mut say = Self::new(Opcode::RcAtomicAck, psn).syndrome(Syndrome::ACK, msn);
        say.headers.atomic_ack = Some(AtomicAckEth { original: value });
        say
    }

    /// With this AETH.
    #[must_use]
    pub fn syndrome(mut self, syndrome: Syndrome, msn: u32) -> Self {
        self.headers.aeth = Some(Aeth { syndrome, msn: Msn::new(msn) });
        self
    }

    /// With this RETH.
    #[must_use]
    pub fn reth(mut self, va: u64, rkey: u32, dma_len: u32) -> Self {
        self.headers.reth = Some(Reth { va, rkey: RKey(rkey), dma_len });
        self
    }

    /// With this AtomicETH.
    #[must_use]
    pub fn atomic(mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Self {
        self.headers.atomic = Some(AtomicEth { va, rkey: RKey(rkey), swap_or_add, compare });
        self
    }

    /// With this Q_Key.
    #[must_use]
    pub fn qkey(mut self, qkey: u32) -> Self {
        if let Some(deth) = &mut self.headers.deth {
            deth.qkey = QKey(qkey);
        }
        self
    }

    /// For this shared receive queue.
    #[must_use]
    pub fn srqn(mut self, srqn: u32) -> Self {
        self.headers.xrceth = Some(XrcEth::new(srqn));
        self
    }

    /// With AckReq.
    #[must_use]
    pub fn ack_req(mut self) -> Self {
        self.headers.bth.ack_req = true;
        self
    }

    /// With this payload, and padding.
    #[must_use]
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self.headers = self.headers.with_payload_len(payload.len());
        self
    }

    /// With headers changed by hand.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut HeaderRepr)) -> Self {
        change(&mut self.headers);
        self
    }
}

/// The engine, its application, and the script's ear.
#[derive(Debug)]
pub struct Dialogue {
    /// A world of one host.
    pub world: World,
    /// Its queue pair.
    pub nic: End,
    /// How it is connected.
    pub connection: Connection,
    peer: IpAddr,
    heard: VecDeque<Heard>,
    ip_id: u16,
}

/// No engine takes longer to answer: the script's notion of "at once".
const AT_ONCE: u64 = 50_000;

impl Dialogue {
    /// A queue pair in RTS.
    pub fn new(connection: Connection) -> Self {
        Self::with(connection, PortConfig::frames(), |_| {})
    }

    /// A queue pair in RTS, of a device with this profile.
    pub fn of(profile: Profile, connection: Connection) -> Self {
        let ports = vec![PortConfig::frames()];
        let config = WorldConfig { ports, profiles: vec![profile], ..WorldConfig::pair(0) };
        let mut dialogue = Self::made(&config, connection, |_| {});
        let qp = dialogue.nic.qp;
        dialogue.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
        dialogue
    }

    /// A queue pair in RTS between addresses of one's choice, the engine's and the peer's.
    pub fn between((own, peer): (IpAddr, IpAddr), connection: Connection) -> Self {
        let mut dialogue = Self::in_reset(connection, PortConfig::frames(), |_| {});
        dialogue.peer = peer;
        let qp = dialogue.nic.qp;
        let host = dialogue.world.host(0);
        host.ip = own;
        host.connect(qp, &connection, peer, PEER_QPN);
        dialogue
    }

    /// A queue pair of one's choice in RTS.
    pub fn with(connection: Connection, port: PortConfig, setup: impl Fn(&mut QpSetup)) -> Self {
        let mut dialogue = Self::in_reset(connection, port, setup);
        let qp = dialogue.nic.qp;
        dialogue.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
        dialogue
    }

    /// A queue pair in RESET.
    pub fn in_reset(
        connection: Connection,
        port: PortConfig,
        setup: impl Fn(&mut QpSetup),
    ) -> Self {
        Self::made(&WorldConfig { ports: vec![port], ..WorldConfig::pair(0) }, connection, setup)
    }

    fn made(config: &WorldConfig, connection: Connection, setup: impl Fn(&mut QpSetup)) -> Self {
        let mut world = World::new(config);
        let nic = End::new(&mut world, 0, setup);
        Self { world, nic, connection, peer: PEER, heard: VecDeque::new(), ip_id: 0 }
    }

    /// First PSN that the engine sends.
    pub fn our_psn(&self, offset: u32) -> u32 {
        Psn::new(self.connection.sq_psn).wrapping_add(offset).value()
    }

    /// First PSN that the script sends.
    pub fn peer_psn(&self, offset: u32) -> u32 {
        Psn::new(self.connection.rq_psn).wrapping_add(offset).value()
    }

    /// The script sends a packet.
    pub fn say(&mut self, say: &Say) {
        let qpn = self.world.host(0).qpn(self.nic.qp);
        let mut headers = say.headers;
        if headers.bth.dest_qp.value() == 0 {
            headers.bth.dest_qp = Qpn::new(qpn);
        }
        let flow = Flow::new(self.peer, self.world.hosts()[0].ip, 0xc123);
        let mut bytes = vec![0; headers.datagram_len(say.payload.len())];
        let at = headers.emit(&mut bytes);
        bytes[at..at + say.payload.len()].copy_from_slice(&say.payload);
        headers.write_pad_and_icrc(&flow, self.ip_id, &mut bytes);
        let packet = Packet { flow, ip_id: self.ip_id, bytes: bytes.into() };
        self.ip_id = self.ip_id.wrapping_add(1);
        self.world.inject(0, packet);
    }

    /// The script sends packets that arrive as one burst.
    pub fn say_all(&mut self, all: &[Say]) {
        for say in all {
            self.say(say);
        }
    }

    fn listen(&mut self) {
        for (at, packet) in self.world.take_strays() {
            assert_eq!(packet.flow.dst, self.peer, "a packet to another address");
            let Some(datagram) = packet.parse() else { panic!("not a datagram: {packet:?}") };
            let headers = datagram.headers();
            assert_eq!(headers.bth.dest_qp.value(), PEER_QPN, "a packet to another QP");
            self.heard.push_back(Heard {
                at,
                flow: packet.flow,
                headers,
                payload: datagram.payload().to_vec(),
            });
        }
    }

    fn hear_within(&mut self, nanos: u64) -> Option<Heard> {
        let end = self.world.now().after_nanos(nanos);
        loop {
            self.listen();
            if let Some(heard) = self.heard.pop_front() {
                return Some(heard);
            }
            if self.world.next_event().is_none_or(|at| at > end) {
                let rest = end.since(self.world.now()).as_nanos();
                self.world.run_for(u64::try_from(rest).unwrap_or(u64::MAX));
                return None;
            }
            self.world.step();
        }
    }

    /// The next packet from the engine, however long it takes.
    ///
    /// # Panics
    /// When none comes.
    #[track_caller]
    pub fn hear(&mut self) -> Heard {
        self.hear_within(PATIENCE).expect("the engine says something")
    }

    /// The next packet from the engine is this one.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn expect(&mut self, opcode: Opcode, psn: u32) -> Heard {
        let heard = self.hear();
        let what = (heard.opcode(), heard.psn());
        assert_eq!(what, (opcode, psn), "heard {:x}, expected {psn:x}", heard.psn());
        heard
    }

    /// The engine acknowledges with this PSN, syndrome and MSN.
    ///
    /// # Panics
    /// When it says something else.
    #[track_caller]
    pub fn expect_aeth(&mut self, psn: u32, syndrome: Syndrome, msn: u32) {
        let heard = self.expect(Opcode::RcAck, psn);
        assert_eq!(heard.aeth(), (syndrome, msn));
    }

    /// Everything the engine says at once.
    pub fn hear_burst(&mut self) -> Vec<Heard> {
        std::iter::from_fn(|| self.hear_within(AT_ONCE)).collect()
    }

    /// The engine says nothing more at once (timers are another matter).
    ///
    /// # Panics
    /// When it does.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        let heard = self.hear_within(AT_ONCE);
        assert!(heard.is_none(), "the engine says {heard:?}");
    }

    /// The engine says nothing for so long.
    ///
    /// # Panics
    /// When it does.
    #[track_caller]
    pub fn expect_silence_for(&mut self, nanos: u64) {
        let heard = self.hear_within(nanos);
        assert!(heard.is_none(), "the engine says {heard:?}");
    }

    /// The application posts a send.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn post(&mut self, wr: &SendWr) {
        self.world.host(0).post_send(self.nic.qp, wr).expect("room in the queue");
    }

    /// The application posts sends with one doorbell.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn post_all(&mut self, wrs: &[SendWr]) {
        self.world.host(0).post_sends(self.nic.qp, wrs).expect("room in the queue");
    }

    /// The application posts a receive.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.world.host(0).post_recv(self.nic.qp, wr_id, sges).expect("room in the queue");
    }

    /// Send completions that are there once the engine has done what it can at once.
    pub fn sent(&mut self) -> Vec<Cqe> {
        self.settle();
        self.world.host(0).drain(self.nic.send_cq)
    }

    /// Receive completions, likewise.
    pub fn received(&mut self) -> Vec<Cqe> {
        self.settle();
        self.world.host(0).drain(self.nic.recv_cq)
    }

    /// Async events of the queue pair, likewise.
    pub fn events(&mut self) -> Vec<AsyncEventType> {
        self.settle();
        self.world.host(0).take_qp_events(self.nic.qp)
    }

    /// The queue pair's state, likewise.
    pub fn state(&mut self) -> QpState {
        self.settle();
        self.world.host(0).state(self.nic.qp)
    }

    fn settle(&mut self) {
        self.world.run_for(AT_ONCE);
        self.world.check();
    }

    /// Application memory.
    pub fn memory(&mut self, offset: u64, len: u64) -> Vec<u8> {
        self.world.host(0).bytes(self.nic.mr.addr + offset, len).to_vec()
    }

    /// Fills application memory with bytes that follow from `salt`, and returns them.
    pub fn fill(&mut self, offset: u64, len: u64, salt: u64) -> Vec<u8> {
        let bytes = crate::pair::pattern(len, salt);
        self.world.host(0).write_bytes(self.nic.mr.addr + offset, &bytes);
        bytes
    }
}
