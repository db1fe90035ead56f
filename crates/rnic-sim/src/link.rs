//! Links between ports, and everything that goes wrong on them.
//!
//! A [`Link`] is one direction between two hosts. It has a delay, a rate, random [`Faults`], and
//! [`Strike`]s, which hit chosen packets. Every fault is counted: a test of recovery that injected
//! nothing tests nothing.

use crate::gaps::Gaps;
use crate::port::Packet;
use crate::rng::Rng;
use rnic_core::time::Instant;
use roce_wire::headers::{Aeth, Bth};
use roce_wire::{Ecn, HeaderRepr, IpIdHint, NakCode, Opcode, Syndrome, icrc};
use std::collections::BTreeMap;

/// Random faults of one direction; chances in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Chance that a packet is lost.
    pub loss: u32,
    /// Chance that it is lost where what follows shows that: see [`Gaps`].
    pub shown_loss: u32,
    /// Chance that an RNR NAK is followed by a sequence NAK of the same PSN, as Linux's rxe does
    /// it.
    pub echo: u32,
    /// Chance that it arrives twice.
    pub duplicate: u32,
    /// Nanoseconds that the second copy comes later, at most.
    pub late_by: u64,
    /// Chance that it is overtaken by packets sent up to `reorder_by` later.
    pub reorder: u32,
    /// Nanoseconds.
    pub reorder_by: u64,
    /// Chance that one bit is wrong.
    pub corrupt: u32,
    /// The same packet is lost or corrupted at most so often by chance; 0 for no limit. Without one
    /// the retries of some world in a million end as they must.
    pub mercy: u8,
    /// Chance that a switch marks congestion.
    pub mark: u32,
    /// Nanoseconds that every packet takes.
    pub delay: u64,
    /// Up to so many more, without changing the order.
    pub jitter: u64,
    /// Picoseconds per byte: 80 is 100 Gbit/s; 0 is infinitely fast.
    pub ps_per_byte: u64,
    /// Longest datagram that passes, bytes.
    pub mtu: u32,
}

impl Default for Faults {
    /// A good link: 2 us, no limit.
    fn default() -> Self {
        Self {
            loss: 0,
            shown_loss: 0,
            echo: 0,
            duplicate: 0,
            late_by: 3_000,
            reorder: 0,
            reorder_by: 20_000,
            corrupt: 0,
            mercy: 0,
            mark: 0,
            delay: 2_000,
            jitter: 0,
            ps_per_byte: 0,
            mtu: u32::MAX,
        }
    }
}

impl Faults {
    /// A rough link: losses, copies, overtaking and damage, each with one of these chances.
    #[must_use]
    pub fn rough(rng: &mut Rng, chances: &[u32]) -> Self {
        let mut chance = || rng.pick(chances);
        Self {
            loss: chance(),
            duplicate: chance(),
            reorder: chance(),
            corrupt: chance(),
            ..Self::default()
        }
    }

    /// Nanoseconds after which nothing arrives any more that was sent.
    pub(crate) fn longest_delay(&self) -> u64 {
        let queue = ALL_IN_FLIGHT * self.ps_per_byte / 1000;
        self.delay + self.jitter + self.reorder_by + self.late_by + queue
    }
}

/// Nanoseconds that an echo comes behind what it echoes, at most: perhaps after the shortest wait,
/// but before the refusal that may follow.
const ECHO_LATE: u64 = 11_000;
/// Bytes that a world has on a link at most.
const ALL_IN_FLIGHT: u64 = 4 << 20;

/// Faults that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Packets that entered the link.
    pub sent: u64,
    /// Packets that left it, duplicates included.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// RNR NAKs followed by a sequence NAK.
    pub echoed: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delayed past others.
    pub reordered: u64,
    /// Delivered with a wrong bit.
    pub corrupted: u64,
    /// Marked.
    pub marked: u64,
    /// Dropped because they were longer than the link's MTU.
    pub oversized: u64,
    /// Strikes.
    pub struck: u64,
}

impl FaultCounts {
    /// Adds the counts of another link.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.echoed += other.echoed;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.marked += other.marked;
        self.oversized += other.oversized;
        self.struck += other.struck;
    }

    /// Packets that did not arrive as they were sent.
    pub fn harmed(&self) -> u64 {
        self.lost + self.corrupted + self.oversized + self.struck
    }
}

/// What a [`Strike`] does to its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// Lose it.
    Drop,
    /// Deliver it twice.
    Duplicate,
    /// Flip a bit of the payload or, without payload, of the ICRC.
    Corrupt,
    /// Deliver it so many nanoseconds late, and let others overtake.
    Delay(u64),
}

/// A fault for chosen packets: the `skip + 1`th matching one and those after it, `count` in all.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    opcode: Option<Opcode>,
    psn: Option<u32>,
    skip: u32,
    count: u32,
    blow: Blow,
}

impl Strike {
    /// Hits the first packet.
    pub fn new(blow: Blow) -> Self {
        Self { opcode: None, psn: None, skip: 0, count: 1, blow }
    }

    /// Only packets with this opcode.
    #[must_use]
    pub fn opcode(mut self, opcode: Opcode) -> Self {
        self.opcode = Some(opcode);
        self
    }

    /// Only packets with this PSN.
    #[must_use]
    pub fn psn(mut self, psn: u32) -> Self {
        self.psn = Some(psn);
        self
    }

    /// Spares the first `skip` matching packets.
    #[must_use]
    pub fn after(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    /// Hits `count` packets instead of one.
    #[must_use]
    pub fn times(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    fn hits(&mut self, packet: &Packet) -> bool {
        let Some(datagram) = packet.parse() else { return false };
        let bth = datagram.bth();
        let matches = self.opcode.is_none_or(|opcode| opcode == bth.opcode)
            && self.psn.is_none_or(|psn| psn == bth.psn.value());
        if !matches || self.count == 0 {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.count -= 1;
        true
    }
}

/// One direction between two hosts.
#[derive(Debug)]
pub struct Link {
    /// What may happen to any packet.
    pub faults: Faults,
    strikes: Vec<Strike>,
    gaps: Gaps,
    /// How often that happened to a packet: its queue pair, its PSN, and whether it is a request.
    harmed: BTreeMap<(u32, u32, bool), u8>,
    /// What happened.
    pub counts: FaultCounts,
    rng: Rng,
    free_at: Instant,
    last_arrival: Instant,
}

impl Link {
    /// A link with chances of its own.
    pub fn new(faults: Faults, rng: Rng) -> Self {
        Self {
            faults,
            strikes: Vec::new(),
            gaps: Gaps::default(),
            harmed: BTreeMap::new(),
            counts: FaultCounts::default(),
            rng,
            free_at: Instant::ZERO,
            last_arrival: Instant::ZERO,
        }
    }

    /// Adds a fault for chosen packets.
    pub fn strike(&mut self, strike: Strike) {
        self.strikes.push(strike);
    }

    /// Strikes that have not happened completely.
    pub fn pending_strikes(&self) -> usize {
        self.strikes.iter().filter(|strike| strike.count > 0).count()
    }

    /// Carries a packet that these follow, and does what was chosen for it, if anything: what
    /// arrives, and when; and what was done to it on purpose.
    pub(crate) fn carry(
        &mut self,
        now: Instant,
        packet: Packet,
        followers: &[Packet],
        chosen: Option<Blow>,
    ) -> (Vec<(Instant, Packet)>, Option<Blow>) {
        self.counts.sent += 1;
        let arrival = self.arrival(now, packet.bytes.len());
        if packet.bytes.len() > self.faults.mtu as usize {
            self.counts.oversized += 1;
            return (Vec::new(), None);
        }
        let struck = self.strikes.iter_mut().find_map(|s| s.hits(&packet).then_some(s.blow));
        let blow = chosen.or(struck);
        self.counts.struck += u64::from(blow.is_some());
        (self.arrivals(packet, followers, arrival, blow), blow)
    }

    /// What becomes of a packet that this is done to, and that would arrive then.
    fn arrivals(
        &mut self,
        mut packet: Packet,
        followers: &[Packet],
        arrival: Instant,
        blow: Option<Blow>,
    ) -> Vec<(Instant, Packet)> {
        if blow == Some(Blow::Drop) {
            return Vec::new();
        }
        let Self { rng, gaps, faults, .. } = self;
        let wanted = || rng.chance(faults.shown_loss);
        let shown = faults.shown_loss > 0 && gaps.loses(&packet, followers, wanted);
        if shown || self.rng.chance(self.faults.loss) && !self.spares(&packet) {
            self.counts.lost += 1;
            return Vec::new();
        }
        if self.rng.chance(self.faults.mark) && packet.flow.ecn() != Ecn::NotEct {
            self.counts.marked += 1;
            packet.flow.tos |= Ecn::Ce as u8;
        }
        let mut arrivals = Vec::new();
        if self.faults.echo > 0
            && let Some(echo) = echo(&packet)
            && self.rng.chance(self.faults.echo)
        {
            self.counts.echoed += 1;
            arrivals.push((arrival.after_nanos(self.rng.below(ECHO_LATE)), echo));
        }
        if blow == Some(Blow::Duplicate) || self.rng.chance(self.faults.duplicate) {
            self.counts.duplicated += 1;
            arrivals
                .push((arrival.after_nanos(self.rng.below(self.faults.late_by)), packet.clone()));
        }
        let corrupts = self.rng.chance(self.faults.corrupt) && !self.spares(&packet);
        if blow == Some(Blow::Corrupt) || corrupts {
            self.counts.corrupted += 1;
            flip_a_bit(&mut packet, &mut self.rng);
        }
        let mut late = if let Some(Blow::Delay(late)) = blow { late } else { 0 };
        if self.rng.chance(self.faults.reorder) {
            self.counts.reordered += 1;
            late += 1 + self.rng.below(self.faults.reorder_by);
        }
        if late == 0 {
            self.last_arrival = arrival;
        }
        arrivals.insert(0, (arrival.after_nanos(late), packet));
        self.counts.delivered += arrivals.len() as u64;
        arrivals
    }

    /// Chance would harm the packet, and did so often enough.
    fn spares(&mut self, packet: &Packet) -> bool {
        let Some(datagram) = packet.parse().filter(|_| self.faults.mercy > 0) else { return false };
        let (bth, info) = (datagram.bth(), datagram.opcode().info());
        let name = (bth.dest_qp.value(), bth.psn.value(), info.is_request);
        let times = self.harmed.entry(name).or_default();
        *times = times.saturating_add(1);
        *times > self.faults.mercy
    }

    /// When a packet sent now arrives: after those before it.
    fn arrival(&mut self, now: Instant, len: usize) -> Instant {
        let start = now.max(self.free_at);
        self.free_at = start.after_nanos(len as u64 * self.faults.ps_per_byte / 1000);
        let jitter = self.rng.below(self.faults.jitter);
        self.free_at.after_nanos(self.faults.delay + jitter).max(self.last_arrival)
    }
}

/// The sequence NAK that some responders send behind an RNR NAK.
fn echo(packet: &Packet) -> Option<Packet> {
    let datagram = packet.parse()?;
    let headers = datagram.headers();
    let aeth = headers.aeth.filter(|a| matches!(a.syndrome, Syndrome::RnrNak { .. }))?;
    let syndrome = Syndrome::Nak(NakCode::PsnSequence);
    let headers = HeaderRepr { aeth: Some(Aeth { syndrome, ..aeth }), ..headers };
    let mut bytes = vec![0; packet.bytes.len()];
    headers.emit(&mut bytes);
    headers.write_pad_and_icrc(&packet.flow, packet.ip_id, &mut bytes);
    Some(Packet { bytes: bytes.into(), ..packet.clone() })
}

/// Flips a bit that the ICRC covers.
///
/// Where the receiver does not see the IPv4 identification the check has only 15 bits of strength;
/// a flip that some identification would explain is not used, so that every corruption is one that
/// a receiver of either kind must notice.
fn flip_a_bit(packet: &mut Packet, rng: &mut Rng) {
    /// The byte with FECN, BECN and reserved bits, which the ICRC masks.
    const MASKED: usize = 4;
    let good = packet.bytes.clone();
    let payload_at = packet.parse().filter(|d| d.payload_len() > 0).map(|d| d.payload_offset());
    loop {
        let mut bytes = good.to_vec();
        let from = if rng.chance(500_000) { payload_at.unwrap_or(0) } else { 0 };
        let at = from + usize::try_from(rng.below((bytes.len() - from) as u64)).unwrap_or(0);
        bytes[at] ^= 1 << rng.below(8);
        let noticed = !icrc::verify(&packet.flow, IpIdHint::Predicted(0), &bytes).is_good();
        if at != MASKED && noticed && bytes.len() > Bth::LEN {
            packet.bytes = bytes.into();
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Blow, Faults, Link, Strike};
    use crate::port::Packet;
    use crate::rng::Rng;
    use rnic_core::time::Instant;
    use roce_wire::headers::Bth;
    use roce_wire::{Flow, HeaderRepr, IpIdHint, Opcode, Psn, Qpn, icrc};
    use std::net::{IpAddr, Ipv4Addr};

    fn packet(psn: u32) -> Packet {
        let ip = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let flow = Flow::new(ip(1), ip(2), 0xc000);
        let headers = HeaderRepr::new(Bth::new(Opcode::RcSendOnly, Qpn::new(5), Psn::new(psn)));
        let mut bytes = vec![0; headers.datagram_len(16)];
        headers.emit(&mut bytes);
        headers.write_pad_and_icrc(&flow, 0, &mut bytes);
        Packet { flow, ip_id: 0, bytes: bytes.into() }
    }

    fn psn(packet: &Packet) -> u32 {
        packet.parse().unwrap().bth().psn.value()
    }

    #[test]
    fn a_good_link_keeps_the_order_in_spite_of_jitter() {
        let mut link = Link::new(Faults { jitter: 10_000, ..Faults::default() }, Rng::new(1));
        let mut last = Instant::ZERO;
        for k in 0..100 {
            let (arrivals, _) = link.carry(Instant::from_nanos(k), packet(7), &[], None);
            assert_eq!(arrivals.len(), 1);
            assert!(arrivals[0].0 >= last);
            last = arrivals[0].0;
        }
    }

    #[test]
    fn a_strike_hits_the_packet_it_names() {
        let mut link = Link::new(Faults::default(), Rng::new(1));
        link.strike(Strike::new(Blow::Drop).psn(3).after(1));
        let mut arrived = Vec::new();
        for number in [3, 4, 3, 3] {
            for (_, packet) in link.carry(Instant::ZERO, packet(number), &[], None).0 {
                arrived.push(psn(&packet));
            }
        }
        assert_eq!(arrived, [3, 4, 3]);
        assert_eq!((link.counts.struck, link.pending_strikes()), (1, 0));
    }

    #[test]
    fn a_flipped_bit_is_always_noticed() {
        let mut link = Link::new(Faults { corrupt: 1_000_000, ..Faults::default() }, Rng::new(9));
        for k in 0..200 {
            let (_, packet) = link.carry(Instant::ZERO, packet(k), &[], None).0.remove(0);
            assert!(!icrc::verify(&packet.flow, IpIdHint::Known(0), &packet.bytes).is_good());
            assert!(!icrc::verify(&packet.flow, IpIdHint::Predicted(0), &packet.bytes).is_good());
        }
    }
}
