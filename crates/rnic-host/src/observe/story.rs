//! Which message an event is about.
//!
//! A requester's events say it. A responder knows PSNs only: where the requester is a queue pair
//! of the same daemon, its WQE tells which PSNs its packets have.

use super::Record;
use rnic_core::qpn::shard_of;
use roce_wire::{Opcode, Psn, Qpn};
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// A message: the queue pair that sends it, and the index of the WQE in its send queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MessageId {
    /// Number of the requester.
    pub qpn: u32,
    /// Index of the WQE.
    pub message: u32,
}

/// `0x000011/5`.
impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}/{}", self.qpn, self.message)
    }
}

struct Message {
    index: u32,
    first: Psn,
    last: Psn,
}

/// What is known of a requester.
#[derive(Default)]
struct Requester {
    messages: VecDeque<Message>,
    /// The last one that is over.
    over: Option<u32>,
    /// The queue pair that its packets are for.
    peer: Option<u32>,
    /// What made it go back last.
    cause: Option<String>,
}

/// The requesters of one engine. It takes nothing from those of others, which may be other users'.
#[derive(Default)]
struct Engine {
    requesters: HashMap<u32, Requester>,
    /// The requester whose packets are for a queue pair, which may be any.
    by_peer: HashMap<u32, u32>,
    /// The oldest first.
    order: VecDeque<u32>,
}

/// See the [module](self). Its memory is bounded.
#[derive(Default)]
pub struct Story {
    engines: HashMap<u8, Engine>,
    forgotten: u64,
}

impl Requester {
    /// A message ends, and with it those before.
    fn ends(&mut self, index: u32) {
        if self.over.is_none_or(|over| is_behind(index, over)) {
            self.over = Some(index);
        }
    }

    /// Keeps the last messages. Returns how many of the others were not over.
    fn keep(&mut self, most: usize) -> u64 {
        let surplus = self.messages.len().saturating_sub(most);
        let over = self.over;
        let gone = self.messages.drain(..surplus);
        gone.filter(|gone| over.is_none_or(|over| is_behind(gone.index, over))).count() as u64
    }
}

impl Engine {
    /// A requester, and how many messages were forgotten to have room for it.
    fn requester(&mut self, qpn: u32) -> (&mut Requester, u64) {
        let mut forgotten = 0;
        if !self.requesters.contains_key(&qpn) {
            if self.requesters.len() >= MAX_REQUESTERS
                && let Some(oldest) = self.order.pop_front()
                && let Some(mut gone) = self.requesters.remove(&oldest)
            {
                forgotten = gone.keep(0);
                self.unlink(oldest, gone.peer);
            }
            self.order.push_back(qpn);
        }
        (self.requesters.entry(qpn).or_default(), forgotten)
    }

    /// A queue pair's packets are not for this peer any more.
    fn unlink(&mut self, qpn: u32, peer: Option<u32>) {
        if let Some(peer) = peer.filter(|peer| self.by_peer.get(peer) == Some(&qpn)) {
            self.by_peer.remove(&peer);
        }
    }
}

impl Story {
    /// Learns from an event, and tells which message it is about, where that is known.
    pub fn note(&mut self, record: &Record) -> Option<MessageId> {
        let qpn = record.number("qpn");
        if let (Some(qpn), Some(message)) = (qpn, record.number("message")) {
            match &*record.event {
                "wqe_fetched" => self.begin(qpn, message, record),
                "completed" => self.ends(MessageId { qpn, message }),
                _ => {}
            }
            return Some(MessageId { qpn, message });
        }
        let psn = Psn::new(record.number("psn")?);
        if record.event == "rewound" {
            let cause = record.name("cause").map(str::to_owned);
            self.requester(qpn?).cause = cause;
        }
        let id = self.by_psn(record, qpn, psn);
        if record.event == "acked" {
            id.into_iter().for_each(|id| self.ends(id));
        }
        id
    }

    /// The message to which a PSN belongs.
    fn by_psn(&self, record: &Record, qpn: Option<u32>, psn: Psn) -> Option<MessageId> {
        match (&*record.event, record.name("opcode").map(is_request)) {
            ("acked" | "rewound", _) => self.of_requester(qpn?, psn),
            ("nak" | "rnr_nak" | "lost" | "placed", _) => self.of_responder(qpn?, psn),
            ("sent", Some(false)) => self.of_responder(qpn?, psn),
            ("dma_fault", _) => {
                let qpn = qpn?;
                self.of_requester(qpn, psn).or_else(|| self.of_responder(qpn, psn))
            }
            (_, Some(true)) => self.of_responder(record.number("dest_qpn")?, psn),
            (_, Some(false)) => self.of_requester(record.number("dest_qpn")?, psn),
            _ => None,
        }
    }

    /// What made this queue pair go back last.
    pub fn cause(&self, qpn: u32) -> Option<&str> {
        self.known(qpn)?.cause.as_deref()
    }

    /// Messages that were forgotten before they were over, because too many were.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Requesters, messages, and peers.
    #[cfg(test)]
    pub(super) fn size(&self) -> [usize; 3] {
        let requesters = || self.engines.values().flat_map(|engine| engine.requesters.values());
        let messages = requesters().map(|requester| requester.messages.len()).sum();
        let peers = self.engines.values().map(|engine| engine.by_peer.len()).sum();
        [requesters().count(), messages, peers]
    }

    fn known(&self, qpn: u32) -> Option<&Requester> {
        self.engines.get(&engine_of(qpn))?.requesters.get(&qpn)
    }

    fn requester(&mut self, qpn: u32) -> &mut Requester {
        let engine = self.engines.entry(engine_of(qpn)).or_default();
        let (requester, forgotten) = engine.requester(qpn);
        self.forgotten += forgotten;
        requester
    }

    fn begin(&mut self, qpn: u32, index: u32, record: &Record) {
        let peer = record.number("peer_qpn");
        let requester = self.requester(qpn);
        let before = peer.and_then(|peer| requester.peer.replace(peer));
        let psns = (record.number("first_psn"), record.number("last_psn"));
        if let (Some(first), Some(last)) = psns {
            let (first, last) = (Psn::new(first), Psn::new(last));
            requester.messages.push_back(Message { index, first, last });
        }
        let Some(engine) = self.engines.get_mut(&engine_of(qpn)) else { return };
        if peer.is_some() && before != peer {
            engine.unlink(qpn, before);
        }
        if let Some(peer) = peer {
            engine.by_peer.insert(peer, qpn);
        }
        let most = MAX_MESSAGES.min(MAX_OF_ENGINE / engine.requesters.len().max(1));
        if let Some(requester) = engine.requesters.get_mut(&qpn) {
            self.forgotten += requester.keep(most);
        }
    }

    fn ends(&mut self, id: MessageId) {
        let engine = self.engines.get_mut(&engine_of(id.qpn));
        if let Some(requester) = engine.and_then(|engine| engine.requesters.get_mut(&id.qpn)) {
            requester.ends(id.message);
        }
    }

    fn of_requester(&self, qpn: u32, psn: Psn) -> Option<MessageId> {
        let messages = &self.known(qpn)?.messages;
        let has = |message: &&Message| {
            psn.distance_from(message.first) >= 0 && message.last.distance_from(psn) >= 0
        };
        let message = messages.iter().rev().find(has)?.index;
        Some(MessageId { qpn, message })
    }

    /// An engine may claim any peer: that of the queue pair itself is believed first, and others
    /// where they do not contradict each other.
    fn of_responder(&self, qpn: u32, psn: Psn) -> Option<MessageId> {
        let of = |engine: &Engine| self.of_requester(*engine.by_peer.get(&qpn)?, psn);
        self.engines.get(&engine_of(qpn)).and_then(of).or_else(|| {
            let mut all = self.engines.values().filter_map(of);
            let first = all.next()?;
            all.next().is_none().then_some(first)
        })
    }
}

/// Requests and responses differ in what their PSN is about.
fn is_request(opcode: &str) -> bool {
    Opcode::named(opcode).is_none_or(Opcode::is_request)
}

/// A message is later than another one.
fn is_behind(index: u32, other: u32) -> bool {
    index != other && index.wrapping_sub(other) < 1 << 31
}

fn engine_of(qpn: u32) -> u8 {
    shard_of(Qpn::new(qpn))
}

/// Of one queue pair, as many as it can have outstanding.
const MAX_MESSAGES: usize = 16 * 1024;
/// Of one engine: where it has many queue pairs, fewer are kept of each.
const MAX_OF_ENGINE: usize = 256 * 1024;
const MAX_REQUESTERS: usize = 4096;
