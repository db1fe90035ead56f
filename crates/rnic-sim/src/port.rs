//! A host's port: the [`Wire`] that its engine sees.
//!
//! What leaves is checked: trains within the limits that [`Wire::caps`] promises, every datagram
//! parses, its pad bytes are zero and its ICRC is good. What is handed out is poisoned, and what
//! was given back is gone.

use crate::rng::Rng;
use rnic_core::ports::{ArenaId, Range, RxIpId, RxTrain, TxIpId, TxSlot, TxTrain, Wire, WireCaps};
use rnic_core::time::Instant;
use roce_wire::{Datagram, Flow, IpIdHint, icrc};
use std::collections::VecDeque;
use std::rc::Rc;

/// A datagram between two ports.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Addresses and IP fields.
    pub flow: Flow,
    /// IPv4 identification.
    pub ip_id: u16,
    /// BTH to ICRC.
    pub bytes: Rc<[u8]>,
}

impl Packet {
    /// Headers and payload; `None` for bytes that are no datagram.
    pub fn parse(&self) -> Option<Datagram<'_>> {
        Datagram::parse(&self.bytes).ok()
    }

    /// Its destination is this queue pair.
    pub fn is_for(&self, qpn: u32) -> bool {
        self.parse().is_some_and(|datagram| datagram.bth().dest_qp.value() == qpn)
    }
}

/// What kind of packet I/O the port imitates.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Longest datagram, bytes.
    pub max_datagram: u32,
    /// Most datagrams of a train, in both directions; 1 for a wire without trains.
    pub max_segments: u32,
    /// What decides the IPv4 identification.
    pub tx_ip_id: TxIpId,
    /// A UDP socket: received headers are not seen.
    pub hide_rx_ip_id: bool,
    /// Arenas of each direction, used in turns.
    pub arenas: u8,
    /// What leaves must not be fragmented. Some devices do not say so, and the ICRC covers it.
    pub df: bool,
    /// Datagrams that one turn may send, or one train if that is longer; 0 when the link takes
    /// none.
    pub tx_burst: u32,
    /// Datagrams that leave the ring of the wire in each turn; 0 when all do. What has no room in
    /// the ring is refused, also while something smaller has.
    pub leaving: u32,
    /// Datagrams that one turn receives.
    pub rx_burst: u32,
    /// Trains that the engine sends to itself are internal: only the engine sees them.
    pub keeps_internal: bool,
}

impl PortConfig {
    /// Frames as AF_XDP moves them: one by one, with visible headers.
    pub fn frames() -> Self {
        Self {
            max_datagram: 4096 + 64,
            max_segments: 1,
            tx_ip_id: TxIpId::Ours,
            hide_rx_ip_id: false,
            arenas: 1,
            df: true,
            tx_burst: 64,
            leaving: 0,
            rx_burst: 64,
            keeps_internal: false,
        }
    }

    /// Trains as a UDP socket with GSO and GRO moves them.
    pub fn trains() -> Self {
        Self {
            max_segments: 16,
            tx_ip_id: TxIpId::SegmentIndex,
            hide_rx_ip_id: true,
            ..Self::frames()
        }
    }

    /// Any kind.
    pub fn random(rng: &mut Rng) -> Self {
        Self {
            max_datagram: 4096 + 64,
            max_segments: rng.pick(&[1, 1, 2, 5, 16, 64]),
            tx_ip_id: rng.pick(&[TxIpId::Ours, TxIpId::SegmentIndex]),
            hide_rx_ip_id: rng.chance(500_000),
            arenas: rng.pick(&[1, 2]),
            df: rng.chance(850_000),
            tx_burst: rng.pick(&[3, 16, 64, 256]),
            leaving: 0,
            rx_burst: rng.pick(&[1, 7, 64, 256]),
            keeps_internal: false,
        }
    }
}

/// A port.
#[derive(Debug)]
pub struct Port {
    config: PortConfig,
    inbox: VecDeque<Packet>,
    /// Internal packets, which the engine sent to itself.
    internal: VecDeque<Packet>,
    rx: Vec<Vec<u8>>,
    tx: Vec<Vec<u8>>,
    reserved: Vec<(TxTrain, TxSlot)>,
    reserved_datagrams: u32,
    /// Datagrams in the ring.
    waiting: u32,
    turn: usize,
    outbox: Vec<Packet>,
    /// The time of this turn.
    now: Instant,
    /// Until then the wire takes nothing.
    refuses_until: Instant,
    has_refused: bool,
    taken: u64,
    given: u64,
    trains: u64,
    violations: Vec<String>,
}

/// A wire that refuses until then is dead.
pub const NEVER: Instant = Instant::from_nanos(u64::MAX);
/// Bytes no sealed datagram happens to consist of.
const POISON: u8 = 0xa5;
/// Most bytes of a train: what fits into one UDP send.
const MAX_TRAIN: u32 = 65_000;
/// Bytes between datagrams of an arena.
const SPACING: u32 = 8;

impl Port {
    /// A port with nothing on its way.
    pub fn new(config: PortConfig) -> Self {
        let arenas = usize::from(config.arenas.max(1));
        Self {
            config,
            inbox: VecDeque::new(),
            internal: VecDeque::new(),
            rx: vec![Vec::new(); arenas],
            tx: vec![Vec::new(); arenas],
            reserved: Vec::new(),
            reserved_datagrams: 0,
            waiting: 0,
            turn: 0,
            outbox: Vec::new(),
            now: Instant::ZERO,
            refuses_until: Instant::ZERO,
            has_refused: false,
            taken: 0,
            given: 0,
            trains: 0,
            violations: Vec::new(),
        }
    }

    /// Changes what the port can do.
    pub fn configure(&mut self, config: PortConfig) {
        let (taken, given) = self.datagrams();
        let (inbox, internal) =
            (std::mem::take(&mut self.inbox), std::mem::take(&mut self.internal));
        *self = Self { inbox, internal, taken, given, ..Self::new(config) };
    }

    /// What the port imitates.
    pub fn config(&self) -> &PortConfig {
        &self.config
    }

    /// Until then the wire takes nothing: its rings are full, or the link is down.
    pub fn refuse_until(&mut self, until: Instant) {
        self.refuses_until = until;
    }

    /// The wire takes nothing now.
    pub fn refuses(&self, now: Instant) -> bool {
        now < self.refuses_until
    }

    /// When the wire, which refused something, takes it.
    pub(crate) fn has_room_at(&self, now: Instant) -> Option<Instant> {
        let wants = self.has_refused && self.refuses(now);
        wants.then_some(self.refuses_until).filter(|until| *until < NEVER)
    }

    /// A turn begins.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
        self.has_refused = false;
        self.waiting = self.waiting.saturating_sub(self.config.leaving);
    }

    /// The wire took not even one train in this turn.
    pub(crate) fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Datagrams that the engine sent, and those that it received.
    pub fn datagrams(&self) -> (u64, u64) {
        (self.taken, self.given)
    }

    /// Trains that the engine sent since the port was configured.
    pub fn trains_sent(&self) -> u64 {
        self.trains
    }

    /// A datagram arrives.
    pub fn deliver(&mut self, packet: Packet) {
        self.inbox.push_back(packet);
    }

    /// Something waits to be received.
    pub fn has_input(&self) -> bool {
        !self.inbox.is_empty() || !self.internal.is_empty()
    }

    /// What was submitted.
    pub fn take_output(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.outbox)
    }

    /// What the engine did that no engine may do.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// The packets of the next train: of one flow and of equal size, the last may be shorter.
    fn next_train(&mut self, budget: u32, is_internal: bool) -> Vec<Packet> {
        let most = self.config.max_segments.min(budget) as usize;
        let queue = if is_internal { &mut self.internal } else { &mut self.inbox };
        let mut train: Vec<Packet> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = queue.front() {
            if let (Some(first), Some(last)) = (train.first(), train.last()) {
                let alike = next.flow == first.flow
                    && last.bytes.len() == first.bytes.len()
                    && next.bytes.len() <= first.bytes.len();
                let fits = train.len() < most && bytes + next.bytes.len() <= MAX_TRAIN as usize;
                if !(alike && fits) {
                    break;
                }
            }
            bytes += next.bytes.len();
            train.extend(queue.pop_front());
        }
        train
    }

    fn receive_train(&mut self, packets: &[Packet], is_internal: bool) -> Option<RxTrain> {
        let first = packets.first()?;
        self.given += packets.len() as u64;
        let id = self.turn % self.rx.len();
        self.turn += 1;
        let arena = &mut self.rx[id];
        let offset = size(arena.len());
        for packet in packets {
            arena.extend_from_slice(&packet.bytes);
        }
        let len = size(arena.len()) - offset;
        arena.resize(arena.len() + SPACING as usize, POISON);
        let hidden = self.config.hide_rx_ip_id;
        Some(RxTrain {
            flow: Flow { df: hidden || first.flow.df, ..first.flow },
            arena: ArenaId(u8::try_from(id).unwrap_or(0)),
            range: Range { offset, len },
            segment_len: size(first.bytes.len()),
            ip_id: if hidden { RxIpId::Likely(0) } else { RxIpId::Seen(first.ip_id) },
            is_internal,
        })
    }

    fn check_train(&mut self, train: &TxTrain) {
        let caps = self.caps();
        let whole = u64::from(train.segment_len) * u64::from(train.segments.saturating_sub(1))
            + u64::from(train.last_len);
        let ok = (1..=caps.max_segments).contains(&train.segments)
            && train.segment_len <= caps.max_datagram
            && train.last_len <= train.segment_len
            && whole <= u64::from(caps.max_train)
            && (train.segments > 1 || train.last_len == train.segment_len);
        if !ok {
            self.violations.push(format!("reserve of {train:?}, which {caps:?} does not allow"));
        }
    }

    /// Checks what is about to leave: a NIC sends nothing that a NIC would drop.
    fn check_datagram(&mut self, packet: &Packet) {
        let Ok(datagram) = Datagram::parse(&packet.bytes) else {
            self.violations.push(format!("sends no datagram: {:02x?}", packet.bytes));
            return;
        };
        let check = icrc::verify(&packet.flow, IpIdHint::Known(packet.ip_id), &packet.bytes);
        if check != roce_wire::IcrcCheck::Good {
            self.violations.push(format!("sends a bad ICRC: {:?}", datagram.bth()));
        }
        if datagram.pad_bytes().iter().any(|byte| *byte != 0) {
            self.violations.push(format!("sends pad bytes that are not zero: {datagram:?}"));
        }
    }
}

impl Wire for Port {
    fn caps(&self) -> WireCaps {
        WireCaps {
            max_datagram: self.config.max_datagram,
            max_segments: self.config.max_segments,
            max_train: if self.config.max_segments == 1 {
                self.config.max_datagram
            } else {
                MAX_TRAIN
            },
            tx_ip_id: self.config.tx_ip_id,
        }
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let mut budget = self.config.rx_burst;
        while budget > 0 && trains.len() < trains.capacity() {
            let is_internal = !self.internal.is_empty();
            let packets = self.next_train(budget, is_internal);
            let Some(train) = self.receive_train(&packets, is_internal) else { break };
            budget = budget.saturating_sub(size(packets.len()));
            trains.push(train);
        }
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        self.rx.get(usize::from(arena.0)).map_or(&[], Vec::as_slice)
    }

    fn release(&mut self) {
        self.rx.iter_mut().for_each(Vec::clear);
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        self.check_train(train);
        if self.refuses(self.now) || self.config.tx_burst == 0 {
            self.has_refused = true;
            return None;
        }
        let waiting = self.waiting + self.reserved_datagrams;
        if waiting + train.segments > self.config.tx_burst.max(train.segments) {
            self.has_refused |= waiting > 0 && self.reserved.is_empty();
            return None;
        }
        self.reserved_datagrams += train.segments;
        let id = self.turn % self.tx.len();
        self.turn += 1;
        let arena = &mut self.tx[id];
        let offset = size(arena.len());
        let stride = train.segment_len + SPACING;
        arena.resize(arena.len() + (stride * train.segments) as usize, POISON);
        let arena = ArenaId(u8::try_from(id).unwrap_or(0));
        let is_internal = train.to_self && self.config.keeps_internal;
        let slot = TxSlot { arena, offset, stride, is_internal };
        self.reserved.push((*train, slot));
        Some(slot)
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        let Some(at) = self.reserved.iter().position(|(_, reserved)| reserved == slot) else {
            self.violations.push(format!("cancel of {slot:?}, which is not reserved"));
            return;
        };
        for (train, slot) in self.reserved.drain(at..).rev() {
            self.reserved_datagrams -= train.segments;
            self.tx[usize::from(slot.arena.0)].truncate(slot.offset as usize);
        }
    }

    fn tx(&mut self, arena: ArenaId) -> &mut [u8] {
        self.tx.get_mut(usize::from(arena.0)).map_or(&mut [], Vec::as_mut_slice)
    }

    fn submit(&mut self) {
        self.trains += self.reserved.len() as u64;
        for (train, slot) in std::mem::take(&mut self.reserved) {
            for k in 0..train.segments {
                let is_last = k + 1 == train.segments;
                let len = if is_last { train.last_len } else { train.segment_len } as usize;
                let start = (slot.offset + k * slot.stride) as usize;
                let bytes = &self.tx[usize::from(slot.arena.0)][start..start + len];
                let nth = u16::try_from(k).unwrap_or(u16::MAX);
                let ip_id = match self.config.tx_ip_id {
                    TxIpId::Ours => train.ip_id.wrapping_add(nth),
                    TxIpId::SegmentIndex => nth,
                };
                let packet = Packet { flow: train.flow, ip_id, bytes: bytes.into() };
                self.taken += 1;
                if slot.is_internal {
                    self.internal.push_back(packet);
                    continue;
                }
                self.check_datagram(&packet);
                self.outbox.push(if self.config.df { packet } else { may_be_fragmented(packet) });
            }
        }
        let submitted = std::mem::take(&mut self.reserved_datagrams);
        if self.config.leaving > 0 {
            self.waiting += submitted;
        }
        for arena in &mut self.tx {
            arena.clear();
        }
    }
}

/// The packet as a device sends it that leaves DF clear.
fn may_be_fragmented(mut packet: Packet) -> Packet {
    packet.flow.df = false;
    let mut bytes = packet.bytes.to_vec();
    icrc::seal(&packet.flow, packet.ip_id, &mut bytes);
    Packet { bytes: bytes.into(), ..packet }
}

fn size(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
