//! The requests of one direction of a connection: which were sent again, and why.

use crate::latency::Distribution;
use crate::missing::Missing;
use crate::sent::{Recent, Sent};
use roce_wire::{Datagram, Operation, Psn};
use std::collections::VecDeque;
use std::time::Duration;

/// A requester that sends again behind a pause like this did so because a timer ran out.
const SILENCE: Duration = Duration::from_micros(500);
/// What fills a gap within this time was overtaken on its way.
const OVERTAKEN: Duration = Duration::from_millis(1);
/// A copy that the network made follows the original within this time, and so many packets.
const COPY: Duration = Duration::from_millis(10);
const COPY_DISTANCE: usize = 16;
/// Payload of the packets of a READ's response before one was seen: the smallest and the largest
/// path MTU.
const MTUS: (usize, usize) = (256, 4096);

/// Why a requester went back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    SequenceNak,
    RnrNak,
    Silence,
    Unknown,
}

/// Where a requester went back to, and what for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rewinds {
    pub(crate) after_nak: u64,
    pub(crate) after_rnr: u64,
    pub(crate) after_silence: u64,
    pub(crate) unexplained: u64,
    /// Packets from where it went back to, to the first that it had not sent yet.
    pub(crate) farthest: u32,
    /// The last one, and how often in a row it was to the same PSN.
    pub(crate) last: Option<(Psn, u32)>,
}

/// PSNs with which the next packet may come. They differ only behind a READ while the path MTU
/// is not known, and behind a train of which only the first datagram was captured.
#[derive(Clone, Copy, Debug)]
struct Next {
    first: Psn,
    spread: u32,
}

impl Next {
    fn is(self, psn: Psn) -> bool {
        (0..=i64::from(self.spread)).contains(&i64::from(psn.distance_from(self.first)))
    }
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
    /// Behind the last packet.
    cursor: Option<Next>,
    first: Option<Psn>,
    acknowledged: Option<Psn>,
    /// Largest payload of a packet that must be full.
    full: usize,
    /// The last packets, with the identification of their IPv4 header.
    last: VecDeque<(Psn, Duration, u16)>,
    answered_at: Duration,
    /// A NAK that was not acted upon yet.
    nak: Option<(Cause, Psn)>,
}

impl Requests {
    /// A datagram: these have no order, and nothing is sent again.
    pub(crate) fn datagram(&mut self, datagram: &Datagram<'_>) {
        self.packets += 1;
        self.messages += 1;
        self.bytes += datagram.payload_len() as u64;
    }

    /// A request. `ip_id` tells a copy that the network made from one that the requester sent. Up
    /// to so many further ones are `hidden` in the same packet of the capture.
    pub(crate) fn packet(
        &mut self,
        datagram: &Datagram<'_>,
        hidden: u32,
        at: Duration,
        ip_id: u16,
    ) {
        let psn = datagram.bth().psn;
        self.packets += 1;
        self.bytes += datagram.payload_len() as u64;
        if !datagram.opcode().position().is_end() && hidden == 0 {
            self.learn_mtu(datagram.payload_len());
        }
        if self.is_copy(psn, at, ip_id) {
            self.copies += 1;
            return;
        }
        let mut behind = self.behind(datagram);
        behind.spread += hidden;
        let is_new = self.place(psn, at);
        if is_new {
            self.end = Some(behind);
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
    /// is.
    fn is_copy(&self, psn: Psn, at: Duration, ip_id: u16) -> bool {
        let distance = if ip_id == 0 { 1 } else { COPY_DISTANCE };
        let limit = if ip_id == 0 { SILENCE } else { COPY };
        self.last
            .iter()
            .take(distance)
            .any(|&(last, when, id)| last == psn && id == ip_id && at.saturating_sub(when) < limit)
    }

    /// Compares a packet with what was sent before; true where it is behind all of that.
    fn place(&mut self, psn: Psn, at: Duration) -> bool {
        let Some(end) = self.end else { return true };
        if end.is(psn) {
            return true;
        }
        let ahead = psn.distance_from(end.first);
        if ahead > 0 {
            self.missing.add(end.first, ahead.unsigned_abs(), at);
            return true;
        }
        let gap = self.missing.take(psn);
        let answers_nak = self.nak.is_some_and(|(_, from)| psn.distance_from(from) >= 0);
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
            self.note_rewind(psn, ahead.unsigned_abs(), at);
        }
        false
    }

    fn note_rewind(&mut self, psn: Psn, distance: u32, at: Duration) {
        let heard = self.last.front().map_or(at, |(_, sent, _)| (*sent).max(self.answered_at));
        let cause = match self.nak.take() {
            Some((cause, _)) => cause,
            None if at.saturating_sub(heard) >= SILENCE => Cause::Silence,
            None => Cause::Unknown,
        };
        let rewinds = &mut self.rewinds;
        match cause {
            Cause::SequenceNak => rewinds.after_nak += 1,
            Cause::RnrNak => rewinds.after_rnr += 1,
            Cause::Silence => rewinds.after_silence += 1,
            Cause::Unknown => rewinds.unexplained += 1,
        }
        rewinds.farthest = rewinds.farthest.max(distance);
        rewinds.last = match rewinds.last {
            Some((last, times)) if last == psn => Some((psn, times.saturating_add(1))),
            _ => Some((psn, 1)),
        };
    }

    /// The PSNs behind a packet: a READ has one for each packet of its response.
    fn behind(&self, datagram: &Datagram<'_>) -> Next {
        let psn = datagram.bth().psn;
        let read = match datagram.opcode().operation() {
            Operation::ReadRequest => datagram.headers().reth,
            _ => None,
        };
        let Some(reth) = read else { return Next { first: psn.wrapping_add(1), spread: 0 } };
        let packets = |mtu: usize| u32::try_from((reth.dma_len as usize).div_ceil(mtu).max(1));
        let (smallest, largest) = if self.full > 0 { (self.full, self.full) } else { MTUS };
        let (most, least) = (packets(smallest).unwrap_or(1), packets(largest).unwrap_or(1));
        Next { first: psn.wrapping_add(least), spread: most - least }
    }

    /// FIRST and MIDDLE packets, of responses too, are as long as the path MTU.
    pub(crate) fn learn_mtu(&mut self, payload: usize) {
        self.full = self.full.max(payload.min(MTUS.1));
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

    /// A response acknowledges everything up to a PSN.
    pub(crate) fn acknowledge(&mut self, psn: Psn, at: Duration) {
        self.answered_at = at;
        if !self.may_be_answered_by(psn) {
            return;
        }
        if self.acknowledged.is_none_or(|known| psn.distance_from(known) > 0) {
            self.acknowledged = Some(psn);
            self.rewinds.last = None;
        }
        if let Some(sent) = self.recent.answered(psn) {
            self.latency.add(at.saturating_sub(sent));
        }
    }

    /// A NAK asks for everything from its PSN on.
    pub(crate) fn refuse(&mut self, cause: Cause, psn: Psn, at: Duration) {
        self.acknowledge(psn.wrapping_sub(1), at);
        self.nak = Some((cause, psn));
    }

    /// The PSN that the requester sent again and again, to the end and without an answer.
    pub(crate) fn given_up_at(&self) -> Option<(Psn, u32)> {
        const OFTEN: u32 = 3;
        self.rewinds.last.filter(|(_, times)| *times >= OFTEN)
    }
}
