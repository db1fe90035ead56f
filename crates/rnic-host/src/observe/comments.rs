//! What became of each captured frame, from the events around it.
//!
//! A frame and its events are told within the same half turn of the engine, except that a packet
//! which the device sends to itself, or which a fault holds back, comes by later than it was sent.
//! Frames and events of one packet have the same opcode, queue pair and PSN, and the same order.

use super::story::{MessageId, Story};
use super::{Captured, Lost, Observation, Record, Told, Way};
use roce_wire::{Frame, Opcode, Syndrome, datagram};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

/// Opcode, destination queue pair and PSN.
type Key = (u8, u32, u32);

/// A frame with what is known of it.
#[derive(Clone, Debug)]
pub struct Commented {
    /// The shard of the device that it is of.
    pub shard: u8,
    /// The frame.
    pub captured: Captured,
    /// The queue pairs of this device that have to do with it: the one that sent it, and the one
    /// that it is for.
    pub qpns: [Option<u32>; 2],
    /// Its opcode, where that could be read.
    pub opcode: Option<u8>,
    /// Something is wrong with it: it is sent again, dropped, refused, a refusal, or disturbed.
    pub is_trouble: bool,
    /// What is said of it; empty when nothing is known.
    pub comment: String,
    /// Frames that were lost before it and after the one before.
    pub lost: u64,
}

#[derive(Default)]
struct Notes {
    sender: Option<u32>,
    said: Vec<String>,
    is_trouble: bool,
    /// The event that tells of its departure, or of its arrival, is known.
    is_sent: bool,
    is_checked: bool,
    /// A fault has disturbed it.
    is_struck: bool,
}

struct Pending {
    captured: Captured,
    key: Option<Key>,
    notes: Notes,
    lost: u64,
}

/// What an event says of a packet whose frame has not come by yet.
struct Departure {
    sender: u32,
    said: Vec<String>,
    is_trouble: bool,
}

/// What waits for the end of a half turn.
#[derive(Default)]
struct Shard {
    frames: VecDeque<Pending>,
    /// Of these frames.
    bytes: usize,
    events: Vec<Record>,
    /// Packets that were sent and have not come by.
    departures: HashMap<Key, VecDeque<Departure>>,
    waiting: usize,
    /// Arrivals of packets whose frames came by before.
    released: HashMap<Key, u32>,
    /// Why requests are refused, by queue pair and PSN.
    refusals: HashMap<(u32, u32), String>,
    /// What was known of packets, and had no room.
    forgotten: u64,
}

/// See the [module](self). Its memory is bounded.
#[derive(Default)]
pub struct Comments {
    story: Story,
    shards: HashMap<u8, Shard>,
    /// What was lost so far.
    pub lost: Lost,
}

impl Comments {
    /// Takes an observation, and gives the frames of which all is known now.
    pub fn take(&mut self, observation: Observation) -> Vec<Commented> {
        let Observation { shard: number, lost, told } = observation;
        self.lost.add(lost);
        let shard = self.shards.entry(number).or_default();
        if !lost.is_none() {
            // Else it would be taken for that of a later packet with the same PSN.
            shard.forget();
        }
        let is_over = match told {
            Told::Frame(captured) => {
                let key = key_of(&captured.frame);
                let notes = Notes::default();
                shard.bytes += captured.frame.len();
                shard.frames.push_back(Pending { captured, key, notes, lost: lost.frames });
                false
            }
            Told::Event(record) => {
                shard.events.push(record);
                false
            }
            Told::Turn => true,
        };
        let is_long =
            shard.frames.len() + shard.events.len() >= MOST_TOGETHER || shard.bytes >= MOST_BYTES;
        if is_over || is_long { shard.finish(number, &mut self.story) } else { Vec::new() }
    }

    /// What was known of packets and is not in comments, because too many were on their way.
    pub fn forgotten(&self) -> u64 {
        let shards = self.shards.values().map(|shard| shard.forgotten).sum::<u64>();
        shards.saturating_add(self.story.forgotten())
    }

    /// What is kept, of packets and said of them.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        let of = |shard: &Shard| {
            let departures = shard.departures.values().flatten();
            let said: usize = departures.map(|departure| departure.said.len()).sum();
            shard.waiting + said + shard.released.len() + shard.refusals.len()
        };
        self.shards.values().map(of).sum()
    }

    /// Gives what is left.
    pub fn rest(&mut self) -> Vec<Commented> {
        let story = &mut self.story;
        self.shards.iter_mut().flat_map(|(number, shard)| shard.finish(*number, story)).collect()
    }
}

impl Shard {
    fn forget(&mut self) {
        self.departures.clear();
        self.waiting = 0;
        self.released.clear();
        self.refusals.clear();
    }

    fn finish(&mut self, number: u8, story: &mut Story) -> Vec<Commented> {
        let mut checked = None;
        for record in std::mem::take(&mut self.events) {
            let id = story.note(&record);
            match &*record.event {
                "sent" => self.departs(&record, id, story),
                "fault" => self.disturbed(&record, id),
                // What leaves later comes by when it does.
                "released" if !record.flag("outgoing") => self.goes_on(&record),
                "received" | "dropped" | "handed_over" => {
                    checked = self.arrives(&record, id, checked);
                }
                "nak" | "rnr_nak" => self.refused(&record, checked),
                _ => {}
            }
        }
        self.bytes = 0;
        let frames = std::mem::take(&mut self.frames);
        frames.into_iter().map(|frame| self.commented(number, frame)).collect()
    }

    /// The first frame with this key of which `is_wanted` is true.
    fn find(&mut self, key: Key, is_wanted: impl Fn(&Pending) -> bool) -> Option<usize> {
        self.frames.iter().position(|frame| frame.key == Some(key) && is_wanted(frame))
    }

    fn departs(&mut self, record: &Record, id: Option<MessageId>, story: &Story) {
        let (Some(key), Some(sender)) = (key(record), record.number("qpn")) else { return };
        let mut said: Vec<_> = id.iter().map(|id| format!("message {id}")).collect();
        let again = record.flag("retransmit");
        if again {
            let cause = story.cause(sender).unwrap_or("cause unknown");
            said.push(format!("sent again: {cause}"));
        }
        let refusal = record.number("syndrome").is_some_and(is_refusal);
        if refusal {
            let why = self.refusals.remove(&(sender, key.2));
            said.push(format!("refuses: {}", why.as_deref().unwrap_or("reason unknown")));
        }
        let departure = Departure { sender, said, is_trouble: again || refusal };
        match self.find(key, |frame| frame.captured.way.is_own() && !frame.notes.is_sent) {
            Some(at) => self.frames[at].notes.departs(departure),
            None if self.waiting < MOST_WAITING => {
                self.departures.entry(key).or_default().push_back(departure);
                self.waiting += 1;
            }
            None => self.forgotten += 1,
        }
    }

    /// A packet arrives whose frame came by before.
    fn goes_on(&mut self, record: &Record) {
        let Some(key) = key(record) else { return };
        if self.released.len() >= MOST_WAITING && !self.released.contains_key(&key) {
            self.forgotten += self.released.len() as u64;
            self.released.clear();
        }
        let arrivals = self.released.entry(key).or_default();
        *arrivals = arrivals.saturating_add(1);
    }

    fn disturbed(&mut self, record: &Record, id: Option<MessageId>) {
        let Some(key) = key(record) else { return };
        let outgoing = record.flag("outgoing");
        let kind = record.name("kind").unwrap_or("?");
        let number = record.number("fault").unwrap_or(0);
        let text = format!("fault {number}: {kind}");
        let found = self.find(key, |frame| {
            let way = frame.captured.way;
            !frame.notes.is_struck && if outgoing { way.is_own() } else { way.arrives() }
        });
        let Some(at) = found else {
            // It leaves later.
            let departure = self.departures.get_mut(&key).and_then(VecDeque::back_mut);
            if let Some(departure) = departure.filter(|_| outgoing) {
                say(&mut departure.said, text);
                departure.is_trouble = true;
            }
            return;
        };
        let notes = &mut self.frames[at].notes;
        notes.say_message(id);
        notes.say(text);
        notes.is_struck = true;
        notes.is_trouble = true;
        // No queue pair sees it, or later.
        notes.is_checked = !outgoing && matches!(kind, "drop" | "delay" | "reorder");
    }

    fn arrives(
        &mut self,
        record: &Record,
        id: Option<MessageId>,
        before: Option<usize>,
    ) -> Option<usize> {
        let key = key(record)?;
        let reason = record.name("reason");
        // It was accepted for checking just now, if it came so far.
        let goes_on = reason.filter(|reason| !is_early(reason)).and(before);
        let at = match goes_on.filter(|at| self.frames[*at].key == Some(key)) {
            Some(at) => at,
            None => {
                if let Entry::Occupied(mut left) = self.released.entry(key) {
                    *left.get_mut() -= 1;
                    if *left.get() == 0 {
                        left.remove();
                    }
                    return None;
                }
                self.find(key, |frame| frame.captured.way.arrives() && !frame.notes.is_checked)?
            }
        };
        let notes = &mut self.frames[at].notes;
        notes.is_checked = true;
        notes.say_message(id);
        if let Some(reason) = reason {
            notes.say(format!("dropped: {reason}"));
            notes.is_trouble = true;
        }
        Some(at)
    }

    fn refused(&mut self, record: &Record, checked: Option<usize>) {
        let why = match record.name("reason") {
            Some(reason) => reason.to_owned(),
            None => "no receive WQE (RNR)".to_owned(),
        };
        if let Some(at) = checked {
            self.frames[at].notes.say(format!("refused: {why}"));
            self.frames[at].notes.is_trouble = true;
        }
        if let (Some(qpn), Some(psn)) = (record.number("qpn"), record.number("psn")) {
            if self.refusals.len() >= MOST_WAITING {
                self.forgotten += self.refusals.len() as u64;
                self.refusals.clear();
            }
            self.refusals.insert((qpn, psn), why);
        }
    }

    fn commented(&mut self, shard: u8, frame: Pending) -> Commented {
        let Pending { captured, key, mut notes, lost } = frame;
        if captured.way.is_own()
            && !notes.is_sent
            && let Some(key) = key
            && let Some(departures) = self.departures.get_mut(&key)
        {
            if let Some(departure) = departures.pop_front() {
                notes.departs(departure);
                self.waiting -= 1;
            }
            if departures.is_empty() {
                self.departures.remove(&key);
            }
        }
        if captured.way == Way::Unsent {
            notes.say("never reached the wire".to_owned());
            notes.is_trouble = true;
        }
        let receiver = key.map(|(_, qpn, _)| qpn).filter(|_| captured.way.arrives());
        Commented {
            shard,
            captured,
            qpns: [notes.sender, receiver],
            opcode: key.map(|(opcode, ..)| opcode),
            is_trouble: notes.is_trouble,
            comment: notes.said.join("; "),
            lost,
        }
    }
}

impl Notes {
    fn say(&mut self, text: String) {
        say(&mut self.said, text);
    }

    fn say_message(&mut self, id: Option<MessageId>) {
        if let Some(id) = id {
            self.say(format!("message {id}"));
        }
    }

    fn departs(&mut self, departure: Departure) {
        self.is_sent = true;
        self.sender = Some(departure.sender);
        self.is_trouble |= departure.is_trouble;
        // What was done to it comes behind what it is.
        let later = std::mem::take(&mut self.said);
        departure.said.into_iter().chain(later).for_each(|text| self.say(text));
    }
}

/// Says it once. What an engine could say without end is not believed.
fn say(said: &mut Vec<String>, text: String) {
    if said.len() < MOST_SAID && !said.contains(&text) {
        said.push(text);
    }
}

/// Of a frame.
fn key_of(frame: &[u8]) -> Option<Key> {
    let (opcode, qpn, psn) = datagram::peek(Frame::parse(frame).ok()?.payload())?;
    Some((opcode, qpn.value(), psn.value()))
}

/// Of the packet that an event is about.
fn key(record: &Record) -> Option<Key> {
    let opcode = Opcode::named(record.name("opcode")?)?;
    Some((opcode.code(), record.number("dest_qpn")?, record.number("psn")?))
}

/// RNR NAKs and NAKs.
fn is_refusal(syndrome: u32) -> bool {
    u8::try_from(syndrome).is_ok_and(|byte| {
        matches!(Syndrome::from_u8(byte), Syndrome::Nak(_) | Syndrome::RnrNak { .. })
    })
}

/// What is dropped for these reasons was never received by a queue pair.
fn is_early(reason: &str) -> bool {
    let early = [
        "malformed",
        "icrc",
        "no_qp",
        "no_member",
        "transport",
        "qp_state",
        "p_key",
        "address",
        "q_key",
    ];
    early.contains(&reason)
}

/// Frames and events of one half turn; what is more is looked at apart. Each event looks through
/// the frames, so an engine that never ends a half turn may not gather many.
const MOST_TOGETHER: usize = 2048;
/// And so many bytes of frames.
const MOST_BYTES: usize = 16 << 20;
/// More than is said of any packet.
const MOST_SAID: usize = 16;
/// Packets whose frames have not come by, and refusals that have not left.
const MOST_WAITING: usize = 16 * 1024;
