//! The requests of one direction of a connection: which were sent again, and why.

use crate::latency::Distribution;
use crate::missing::Missing;
use crate::rewinds::{Cause, Nak, Rewinds};
use crate::sent::{Recent, Sent};
use roce_wire::{Datagram, Operation, PayloadRule, Psn};
use std::collections::VecDeque;
use std::time::Duration;

/// A requester that goes back after such a time without an answer did so because a timer ran out.
const SILENCE: Duration = Duration::from_micros(500);
/// What fills a gap within this time was overtaken on its way.
const OVERTAKEN: Duration = Duration::from_millis(1);
/// A copy that the network made follows the original within this time, and so many packets.
const COPY: Duration = Duration::from_millis(10);
const COPY_DISTANCE: usize = 16;
/// Identifications below this one say little: UDP sockets number the datagrams of each train from
/// 0, a lone one and all of IPv6 have 0.
const COUNTED: u16 = 128;
/// Payload of the packets of a READ's response before one was seen: the smallest and the largest
/// path MTU.
const MTUS: (usize, usize) = (256, 4096);

/// More packets than a requester has on their way, or a capture loses in a row. READs come on top,
/// which use more PSNs.
const WINDOW: u32 = 1 << 16;
/// READs that may be outstanding on one connection.
const READS: u32 = 128;
/// Half of all PSNs: what is farther away is nearer in the other direction.
const HALF: u32 = 1 << 23;

/// PSNs that the datagrams of a train may have which are not captured: a READ has many.
const MOST_HIDDEN: u32 = 1 << 22;

/// PSNs with which the next packet may come. They differ only behind a READ while the path MTU
/// is not known, and behind a train of which only the first datagram was captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Next {
    first: Psn,
    spread: u32,
}

impl Next {
    fn is(self, psn: Psn) -> bool {
        (0..=i64::from(self.spread)).contains(&i64::from(psn.distance_from(self.first)))
    }
}

/// What the capture says of a request beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) at: Duration,
    /// Identification of the IPv4 header.
    pub(crate) ip_id: u16,
    /// Up to so many further ones are hidden in the same packet of the capture.
    pub(crate) hidden: u32,
    /// Its comment says that the requester sent it again.
    pub(crate) is_sent_again: bool,
}

/// What the requests of one direction say.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Packets that were seen before, or whose first transmission was lost before this capture.
    pub(crate) repeated: u64,
    /// Those among them that the capture shows to be acknowledged already.
    pub(crate) needless: u64,
    /// Those whose first transmission is not in the capture.
    pub(crate) lost_before: u64,
    /// Those that were sent again because there was no receive for them, or for what is before
    /// them.
    pub(crate) repeated_after_rnr: u64,
    /// Those that ask again for data that was lost on its way back.
    pub(crate) repeated_for_data: u64,
    /// Copies that the network made.
    pub(crate) copies: u64,
    /// Packets that others overtook.
    pub(crate) overtaken: u64,
    pub(crate) rewinds: Rewinds,
    pub(crate) latency: Distribution,
    /// PSNs that are not in the capture at all.
    pub(crate) missing: Missing,
    pub(crate) recent: Recent,
    /// Behind everything that was sent.
    end: Option<Next>,
    /// PSN and length of the READ that is before the end, if it is one.
    last_read: Option<(Psn, u32)>,
    /// Behind the last packet.
    cursor: Option<Next>,
    first: Option<Psn>,
    /// Most PSNs of one request packet.
    longest: u32,
    acknowledged: Option<Psn>,
    /// Largest payload of a packet that must be full.
    full: usize,
    /// The last packets, with the identification of their IPv4 header.
    last: VecDeque<(Psn, Duration, u16)>,
    answered_at: Option<Duration>,
    /// When it last went back.
    went_back_at: Duration,
}

impl Requests {
    /// A datagram: these have no order, and nothing is sent again.
    pub(crate) fn datagram(&mut self, datagram: &Datagram<'_>) {
        self.packets += 1;
        self.messages += 1;
        self.bytes += datagram.payload_len() as u64;
    }

    /// A request.
    pub(crate) fn packet(&mut self, datagram: &Datagram<'_>, sight: Sight) {
        let Sight { at, ip_id, hidden, .. } = sight;
        let psn = datagram.bth().psn;
        self.packets += 1;
        // What seems to be payload of a READ is those that are hidden.
        if datagram.opcode().info().payload != PayloadRule::Zero {
            self.bytes += datagram.payload_len() as u64;
        }
        if !datagram.opcode().position().is_end() && hidden == 0 {
            self.learn_mtu(datagram.payload_len());
        }
        if self.is_copy(psn, sight) {
            self.copies += 1;
            return;
        }
        let mut behind = self.behind(datagram);
        let span = behind.first.wrapping_add(behind.spread).distance_from(psn).unsigned_abs();
        self.longest = self.longest.max(span);
        behind.spread = hidden.saturating_mul(span).saturating_add(behind.spread).min(MOST_HIDDEN);
        let is_new = self.place(psn, at);
        if is_new {
            self.end = Some(behind);
            self.last_read = read_len(datagram).filter(|_| hidden == 0).map(|len| (psn, len));
            self.messages += u64::from(datagram.opcode().position().is_end());
        }
        self.recent.note(Sent::of(datagram, at), is_new);
        self.cursor = Some(behind);
        self.last.truncate(COPY_DISTANCE - 1);
        self.last.push_front((psn, at, ip_id));
        self.first.get_or_insert(psn);
    }

    /// A sender gives each transmission another identification, if any: a packet with that of an
    /// earlier one was copied on its way. Without identifications, only an immediate repetition
    /// is, and nothing that the requester has a reason to send.
    fn is_copy(&self, psn: Psn, sight: Sight) -> bool {
        let Sight { at, ip_id, is_sent_again, .. } = sight;
        if is_sent_again || ip_id < COUNTED && self.is_due(psn) {
            return false;
        }
        let distance = if ip_id == 0 { 1 } else { COPY_DISTANCE };
        let limit = if ip_id == 0 { SILENCE } else { COPY };
        self.last
            .iter()
            .take(distance)
            .any(|&(last, when, id)| last == psn && id == ip_id && at.saturating_sub(when) < limit)
    }

    /// The requester goes on with this, or a NAK asked for it.
    fn is_due(&self, psn: Psn) -> bool {
        let is_asked = self.rewinds.nak.is_some_and(|nak| psn.distance_from(nak.psn) >= 0);
        is_asked || self.cursor.is_some_and(|cursor| psn.distance_from(cursor.first) >= 0)
    }

    /// Compares a packet with what was sent before; true where it is behind all of that.
    fn place(&mut self, psn: Psn, at: Duration) -> bool {
        let ahead = self.end.map_or(0, |end| psn.distance_from(end.first));
        if self.end.is_none_or(|end| ahead > 0 || end.is(psn)) {
            if let Some(end) = self.end.filter(|end| !end.is(psn)) {
                self.missing.add(end.first, ahead.unsigned_abs(), at);
            }
            self.rewinds.goes_on(psn);
            return true;
        }
        let gap = self.missing.take(psn);
        let answers_nak = self.rewinds.nak.is_some_and(|nak| psn.distance_from(nak.psn) >= 0);
        if let Some(since) = gap
            && !answers_nak
            && at.saturating_sub(since) < OVERTAKEN
        {
            self.overtaken += 1;
            return false;
        }
        self.repeated += 1;
        self.lost_before += u64::from(gap.is_some());
        let is_known = self.acknowledged.is_some_and(|known| psn.distance_from(known) <= 0);
        self.needless += u64::from(is_known);
        if self.cursor.is_some_and(|cursor| psn.distance_from(cursor.first) < 0) {
            let is_silent = at.saturating_sub(self.timer_began(psn, at)) >= SILENCE;
            self.went_back_at = at;
            self.rewinds.note(psn, ahead.unsigned_abs(), is_silent, is_known);
        }
        if gap.is_some() {
            self.rewinds.fills_gap();
        }
        if gap.is_none() && !is_known {
            match self.rewinds.current {
                Some(Cause::RnrNak) => self.repeated_after_rnr += 1,
                Some(Cause::DataLost) => self.repeated_for_data += 1,
                _ => {}
            }
        }
        false
    }

    /// When a timer began that would make the requester go back to this: with the last answer, the
    /// last transmission of this packet, or the last time that it went back. Not with other
    /// requests: it may send some while it waits (one whose CPU stood still does so before it looks
    /// at its timer). So where the round trip is long, a NAK that the capture does not have looks
    /// like a timeout, too. A capture without answers tells only of pauses.
    fn timer_began(&self, psn: Psn, at: Duration) -> Duration {
        let Some(answered_at) = self.answered_at else {
            return self.last.front().map_or(at, |(_, sent, _)| *sent);
        };
        let lately = self.last.iter().find(|(last, ..)| *last == psn).map(|(_, sent, _)| *sent);
        let sent = lately.or_else(|| self.recent.first_sent(psn)).unwrap_or_default();
        answered_at.max(sent).max(self.went_back_at)
    }

    /// The PSNs behind a packet: a READ has one for each packet of its response.
    fn behind(&self, datagram: &Datagram<'_>) -> Next {
        let psn = datagram.bth().psn;
        match read_len(datagram) {
            Some(len) => self.behind_read(psn, len),
            None => Next { first: psn.wrapping_add(1), spread: 0 },
        }
    }

    fn behind_read(&self, psn: Psn, len: u32) -> Next {
        let packets = |mtu: usize| u32::try_from((len as usize).div_ceil(mtu).max(1));
        let (smallest, largest) = if self.full > 0 { (self.full, self.full) } else { MTUS };
        let (most, least) = (packets(smallest).unwrap_or(1), packets(largest).unwrap_or(1));
        Next { first: psn.wrapping_add(least), spread: most - least }
    }

    /// FIRST and MIDDLE packets, of responses too, are as long as the path MTU. The first one that
    /// is seen may be of the response to the last READ: only then is known where that ends.
    pub(crate) fn learn_mtu(&mut self, payload: usize) {
        let before = self.full;
        self.full = before.max(payload.min(MTUS.1));
        if self.full > before
            && let Some((psn, len)) = self.last_read
        {
            let end = Some(self.behind_read(psn, len));
            self.cursor = if self.cursor == self.end { end } else { self.cursor };
            self.end = end;
        }
    }

    /// The path MTU, as far as packets show it.
    pub(crate) fn mtu(&self) -> Option<usize> {
        (self.full > 0).then_some(self.full)
    }

    /// Whether this answers one of the requests.
    pub(crate) fn may_be_answered_by(&self, psn: Psn) -> bool {
        let (Some(first), Some(end)) = (self.first, self.end) else { return false };
        let last = end.first.wrapping_add(end.spread);
        psn.distance_from(first) >= 0 && psn.distance_from(last) < 0
    }

    /// A requester that is still the same sends no such PSN: it goes on, or goes back to what was
    /// not acknowledged. A capture that lost more than that in a row looks alike. Its connection is
    /// then told as two, which says less than it could, but nothing wrong of either.
    pub(crate) fn is_elsewhere(&self, psn: Psn) -> bool {
        let Some(end) = self.end else { return false };
        let distance = psn.distance_from(end.first);
        let reach = if distance > 0 {
            WINDOW.saturating_add(end.spread)
        } else {
            self.longest.saturating_mul(READS).saturating_add(WINDOW)
        };
        distance.unsigned_abs() > reach.min(HALF)
    }

    /// A response acknowledges everything up to a PSN.
    pub(crate) fn acknowledge(&mut self, psn: Psn, at: Duration) {
        self.answered_at = Some(at);
        if !self.may_be_answered_by(psn) {
            return;
        }
        if self.acknowledged.is_none_or(|known| psn.distance_from(known) > 0) {
            self.acknowledged = Some(psn);
            self.rewinds.progress(psn);
        }
        if let Some(sent) = self.recent.answered(psn) {
            self.latency.add(at.saturating_sub(sent));
        }
    }

    /// A NAK asks for everything from its PSN on.
    pub(crate) fn refuse(&mut self, nak: Nak) {
        self.acknowledge(nak.psn.wrapping_sub(1), nak.at);
        self.rewinds.refused(nak);
    }
}

/// Bytes that a READ asks for, if it is one.
fn read_len(datagram: &Datagram<'_>) -> Option<u32> {
    match datagram.opcode().operation() {
        Operation::ReadRequest => datagram.headers().reth.map(|reth| reth.dma_len),
        _ => None,
    }
}
