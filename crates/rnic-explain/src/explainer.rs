//! From frames to directions, and from two directions to a connection.

use crate::conversations::Conversations;
use crate::file::Packet;
use crate::link::{self, Other, Seen};
use crate::part::{self, Part};
use crate::remark::Remark;
use crate::report::{self, Capture, Report};
use crate::requests::{Requests, Sight};
use crate::responses::{Meaning, Refusal, Responses};
use crate::rewinds::{Cause, Nak};
use crate::story::{Storyteller, Tally};
use rnic_page::Story;
use roce_wire::cm::CmMad;
use roce_wire::{Bth, Datagram, Ecn, Flow, FrameError, Psn, Qpn, Transport};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

/// Directions that are kept; packets of further ones are only counted.
const MOST: usize = 65_536;
/// Directions between two addresses among which the other half of a connection is looked for.
const MOST_CANDIDATES: usize = 1024;

/// Packets of one transport from one address to a queue pair of another, and for datagrams from one
/// queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) dest_qp: Qpn,
    pub(crate) src_qp: Option<Qpn>,
}

/// What was seen of a direction.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) key: Key,
    pub(crate) transport: Transport,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    pub(crate) requests: Requests,
    pub(crate) responses: Responses,
    pub(crate) bad_icrc: u64,
    /// Packets that a switch marked because its queue was long.
    pub(crate) congestion_marks: u64,
    /// Congestion notifications.
    pub(crate) notifications: u64,
    /// Responses to requests that are not in the capture.
    pub(crate) unmatched: u64,
    /// The other direction of the connection.
    pub(crate) peer: Option<usize>,
    /// The queue pair had another connection before, in this capture.
    pub(crate) is_anew: bool,
}

/// Takes packets in the order of the capture.
#[derive(Debug, Default)]
pub struct Explainer {
    began: Option<Duration>,
    /// Packets of the file so far.
    number: u64,
    capture: Capture,
    others: BTreeMap<String, u64>,
    directions: Vec<Direction>,
    by_key: HashMap<Key, usize>,
    /// Directions of connections that ended, of which the next packet begins another one.
    ended: HashSet<Key>,
    /// Directions without a peer, by their addresses.
    alone: HashMap<(IpAddr, IpAddr), Vec<usize>>,
    conversations: Conversations,
    /// Keeps packets, where a story is wanted.
    teller: Option<Storyteller>,
    space: Vec<u8>,
}

impl Explainer {
    /// One that also [tells](Self::tell) what it saw.
    #[must_use]
    pub fn telling() -> Self {
        Self { teller: Some(Storyteller::default()), ..Self::default() }
    }

    /// The next packet of the capture.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        self.number += 1;
        self.capture.packets += 1;
        let began = *self.began.get_or_insert(packet.at);
        let at = packet.at.saturating_sub(began);
        self.capture.length_ns = self.capture.length_ns.max(nanos(at));
        let mut space = std::mem::take(&mut self.space);
        match link::frame(packet, &mut space) {
            Ok(seen) => self.frame(&seen, packet.comment, at),
            Err(Other::Frame(FrameError::UdpPort(_) | FrameError::Protocol(_))) => {}
            Err(Other::Frame(FrameError::EtherType(_))) => {}
            Err(Other::Frame(error)) => self.other(error.to_string()),
            Err(Other::Link(link)) => self.other(format!("link type {} is not known", link.0)),
        }
        self.space = space;
    }

    fn frame(&mut self, seen: &Seen<'_>, comment: &[u8], at: Duration) {
        for part in part::of(seen) {
            if let Some((place, _)) = part.of_train {
                self.capture.trains += u64::from(place == 1);
                self.capture.packets += u64::from(place > 1);
            }
            self.part(&part, comment, at);
        }
    }

    /// A packet as it is on a link.
    fn part(&mut self, part: &Part<'_>, comment: &[u8], at: Duration) {
        self.capture.roce_packets += 1;
        self.capture.cut_packets += u64::from(!part.is_whole());
        let cut = || "RoCEv2: the headers were not captured".to_owned();
        if part.captured < Bth::LEN {
            return self.other(cut());
        }
        let datagram = match Datagram::parse(part.bytes) {
            Ok(datagram) => datagram,
            Err(error) => return self.other(format!("RoCEv2: {error}")),
        };
        if part.captured < datagram.payload_offset() {
            return self.other(cut());
        }
        let Some(index) = self.direction(part, &datagram, at) else {
            self.capture.of_further_connections += 1;
            return;
        };
        let was = Tally::of(&self.directions[index]);
        let remark = Remark::of(comment);
        self.look(index, (part, &remark), &datagram, at);
        if let Some(teller) = &mut self.teller {
            let change = (index, was, Tally::of(&self.directions[index]));
            teller.packet((self.number, at), part, &datagram, change, remark);
        }
    }

    /// A packet of a direction.
    fn look(
        &mut self,
        index: usize,
        (part, remark): (&Part<'_>, &Remark),
        datagram: &Datagram<'_>,
        at: Duration,
    ) {
        let hidden = if part.is_whole() { 0 } else { part::hidden(datagram, self.mtu_of(index)) };
        self.capture.cut_trains += u64::from(hidden > 0);
        let direction = &mut self.directions[index];
        direction.last = at;
        if part.is_bad {
            // No receiver acts upon it: it may as well be lost.
            direction.bad_icrc += 1;
            return;
        }
        direction.congestion_marks += u64::from(part.flow.ecn() == Ecn::Ce);
        if datagram.opcode().transport() == Transport::Cnp {
            direction.notifications += 1;
        } else if datagram.opcode().transport() == Transport::Ud {
            direction.requests.datagram(datagram);
            if part.is_whole() {
                self.manager_message(&part.flow, datagram, at);
            }
        } else if datagram.opcode().is_request() {
            let (ip_id, is_sent_again) = (part.ip_id, remark.is_sent_again());
            direction.requests.packet(datagram, Sight { at, ip_id, hidden, is_sent_again });
        } else {
            self.response(index, datagram, hidden, at);
        }
    }

    /// The path MTU of a connection, as far as packets show it.
    fn mtu_of(&self, index: usize) -> Option<usize> {
        let direction = &self.directions[index];
        let peer = direction.peer.map(|peer| &self.directions[peer]);
        direction.requests.mtu().or(peer.and_then(|peer| peer.requests.mtu()))
    }

    fn manager_message(&mut self, flow: &Flow, datagram: &Datagram<'_>, at: Duration) {
        if datagram.bth().dest_qp == Qpn::GSI
            && let Ok(mad) = CmMad::parse(datagram.payload())
            && let Some((asking, answering)) =
                self.conversations.message(&mad, flow.src, flow.dst, at)
        {
            // Two queue pairs are connected now, whatever they did before.
            for ((dst, dest_qp), (src, _)) in [(asking, answering), (answering, asking)] {
                let key = Key { src, dst, dest_qp, src_qp: None };
                if let Some(&index) = self.by_key.get(&key) {
                    self.end_connection(index);
                }
            }
        }
    }

    fn response(&mut self, index: usize, datagram: &Datagram<'_>, hidden: u32, at: Duration) {
        let psn = datagram.bth().psn;
        let meaning = self.directions[index].responses.packet(datagram, hidden > 0, at);
        let Some(peer) = self.peer_of(index, psn) else {
            self.directions[index].unmatched += 1;
            return;
        };
        let requests = &mut self.directions[peer].requests;
        if !datagram.opcode().position().is_end() && hidden == 0 {
            requests.learn_mtu(datagram.payload_len());
        }
        match meaning {
            Meaning::Acknowledges => requests.acknowledge(psn, at),
            Meaning::Lost => requests.refuse(Nak::new(Cause::SequenceNak, psn, at)),
            Meaning::DataLost(psn) => requests.refuse(Nak::new(Cause::DataLost, psn, at)),
            Meaning::NotReady(wait) => {
                requests.refuse(Nak { wait, ..Nak::new(Cause::RnrNak, psn, at) });
            }
            Meaning::Refused(code) => {
                let request = requests.recent.message_of(psn).map(|sent| sent.in_words());
                requests.acknowledge(psn.wrapping_sub(1), at);
                let reason = code.to_string();
                let refusal = Refusal { at_ns: nanos(at), psn: psn.value(), reason, request };
                self.directions[index].responses.keep(refusal);
            }
            Meaning::Nothing => {}
        }
    }

    fn direction(
        &mut self,
        part: &Part<'_>,
        datagram: &Datagram<'_>,
        at: Duration,
    ) -> Option<usize> {
        let src_qp = datagram.headers().deth.map(|deth| deth.src_qp);
        let Flow { src, dst, .. } = part.flow;
        let key = Key { src, dst, dest_qp: datagram.bth().dest_qp, src_qp };
        if let Some(&index) = self.by_key.get(&key) {
            // A PSN of a packet that no receiver acts upon may be any.
            if part.is_bad || !self.begins_anew(index, datagram) {
                let transport = &mut self.directions[index].transport;
                if *transport == Transport::Cnp {
                    *transport = datagram.opcode().transport();
                }
                return Some(index);
            }
            self.end_connection(index);
        }
        if self.directions.len() == MOST {
            return None;
        }
        let index = self.directions.len();
        self.by_key.insert(key, index);
        self.directions.push(Direction {
            key,
            transport: datagram.opcode().transport(),
            first: at,
            last: at,
            requests: Requests::default(),
            responses: Responses::default(),
            bad_icrc: 0,
            congestion_marks: 0,
            notifications: 0,
            unmatched: 0,
            peer: None,
            is_anew: self.ended.remove(&key),
        });
        if src_qp.is_none() {
            let alone = self.alone.entry((key.src, key.dst)).or_default();
            if alone.len() < MOST_CANDIDATES {
                alone.push(index);
            }
        }
        Some(index)
    }

    /// This request is not of the connection that the direction belongs to: its queue pair was
    /// reset and connected again, or another one has its number. Either begins with a message, at a
    /// PSN of its own choice.
    fn begins_anew(&self, index: usize, datagram: &Datagram<'_>) -> bool {
        let (opcode, direction) = (datagram.opcode(), &self.directions[index]);
        let is_connected =
            matches!(opcode.transport(), Transport::Rc | Transport::Uc | Transport::Xrc);
        is_connected
            && opcode.is_request()
            && opcode.position().is_start()
            && direction.requests.is_elsewhere(datagram.bth().psn)
            && self.directions.len() < MOST
    }

    /// What comes for the queue pairs of this direction from now on is of another connection.
    fn end_connection(&mut self, index: usize) {
        for index in [Some(index), self.directions[index].peer].into_iter().flatten() {
            let key = self.directions[index].key;
            if self.by_key.get(&key) == Some(&index) {
                self.by_key.remove(&key);
                self.ended.insert(key);
            }
            self.is_not_alone(index);
        }
    }

    /// The direction whose requests this one answers. The connection manager's messages tell it;
    /// otherwise it is the only one between these hosts that has sent a request with this PSN.
    fn peer_of(&mut self, index: usize, psn: Psn) -> Option<usize> {
        if let Some(peer) = self.directions[index].peer {
            return Some(peer);
        }
        let Key { src, dst, dest_qp, .. } = self.directions[index].key;
        let told = self.conversations.peer_of(dst, dest_qp).and_then(|(address, qpn)| {
            let key = Key { src: dst, dst: address, dest_qp: qpn, src_qp: None };
            self.by_key.get(&key).copied()
        });
        let peer = told.or_else(|| {
            let candidates = self.alone.get(&(dst, src))?;
            let mut fitting = candidates.iter().copied().filter(|&other| {
                let direction = &self.directions[other];
                other != index
                    && direction.peer.is_none()
                    && direction.transport == self.directions[index].transport
                    && direction.requests.may_be_answered_by(psn)
            });
            fitting.next().filter(|_| fitting.next().is_none())
        })?;
        self.join(index, peer);
        Some(peer)
    }

    fn join(&mut self, one: usize, other: usize) {
        for (index, peer) in [(one, other), (other, one)] {
            self.directions[index].peer = Some(peer);
            self.is_not_alone(index);
        }
    }

    fn is_not_alone(&mut self, index: usize) {
        let Key { src, dst, .. } = self.directions[index].key;
        if let Some(alone) = self.alone.get_mut(&(src, dst)) {
            alone.retain(|candidate| *candidate != index);
        }
    }

    fn other(&mut self, reason: String) {
        *self.others.entry(reason).or_default() += 1;
    }

    /// What follows from all packets. The file ended within one if it `is_cut`.
    #[must_use]
    pub fn finish(self, is_cut: bool) -> Report {
        self.tell(is_cut, "").0
    }

    /// The same, and a story called `name`, which has packets if this is one that
    /// [tells](Self::telling).
    #[must_use]
    pub fn tell(mut self, is_cut: bool, name: &str) -> (Report, Story) {
        self.capture.is_cut = is_cut;
        self.capture.refused = self.others.into_iter().collect();
        self.capture.further_conversations = self.conversations.untold;
        let list = self.conversations.into_list();
        let report = report::of(self.capture, &self.directions, list);
        let story = self.teller.unwrap_or_default().tell(name, &report, &self.directions);
        (report, story)
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
