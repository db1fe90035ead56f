//! What one queue pair did lately: its WQEs, and its packets as rungs of a ladder.

use rnic_host::observe::Record;
use roce_wire::Psn;
use std::collections::VecDeque;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Trail {
    /// Newest last.
    pub(super) wqes: VecDeque<Wqe>,
    /// Newest last.
    pub(super) rungs: VecDeque<Rung>,
    /// What made it go back last.
    cause: Option<String>,
}

/// A send WQE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wqe {
    pub(super) index: u32,
    pub(super) operation: String,
    pub(super) length: u32,
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) progress: Progress,
    /// Packets of it that were sent again.
    pub(super) again: u32,
}

/// How far a WQE has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    Fetched,
    Sent,
    Acked,
    Completed(String),
}

/// Where a rung leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// From this queue pair to its peer.
    Out,
    /// The reverse.
    In,
    /// Nowhere: something that happened here.
    Here,
}

/// A packet, or some that belong together, or something that happened between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rung {
    /// Of the first, in nanoseconds since 1970 (UTC).
    pub(super) at_ns: u64,
    pub(super) way: Way,
    /// The opcode, or what happened.
    pub(super) what: String,
    /// The opcode of the last.
    pub(super) last_what: String,
    /// The PSN of the first.
    pub(super) first: Option<u32>,
    /// How many there are, with PSNs that follow each other.
    pub(super) count: u32,
    /// Bytes of payload.
    pub(super) bytes: u64,
    /// What is wrong with it.
    pub(super) trouble: Option<String>,
    /// It does not arrive.
    pub(super) is_stopped: bool,
}

impl Rung {
    fn of(record: &Record, way: Way, what: String) -> Self {
        Self {
            at_ns: record.time_ns,
            way,
            last_what: what.clone(),
            what,
            first: record.number("psn"),
            count: 1,
            bytes: record.number("payload").unwrap_or(0).into(),
            trouble: None,
            is_stopped: false,
        }
    }

    fn packet(record: &Record, way: Way) -> Self {
        let opcode = record.name("opcode").unwrap_or("?").to_owned();
        Self::of(record, way, opcode)
    }

    fn with(mut self, trouble: String) -> Self {
        self.trouble = Some(trouble);
        self
    }

    /// The PSN of the last.
    pub(super) fn last(&self) -> Option<u32> {
        self.first.map(|first| Psn::new(first).wrapping_add(self.count - 1).value())
    }

    /// What follows it is like it, or a part of the same message.
    fn goes_on(&self, next: &Self) -> bool {
        let follows = self.last().zip(next.first);
        let is_like_it = self.last_what == next.what || self.trouble.is_some();
        let in_message = || ["_FIRST", "_MIDDLE"].iter().any(|end| self.last_what.ends_with(end));
        self.way == next.way
            && self.trouble == next.trouble
            && self.is_stopped == next.is_stopped
            && follows.is_some_and(|(last, next)| Psn::new(last).wrapping_add(1).value() == next)
            && (is_like_it || in_message())
    }

    fn add(&mut self, next: Self) {
        self.count += 1;
        self.bytes += next.bytes;
        self.last_what = next.what;
    }
}

impl Trail {
    /// An event of this queue pair.
    pub(super) fn note(&mut self, record: &Record) {
        match &*record.event {
            "wqe_fetched" => self.fetched(record),
            "sent" => self.sent(record),
            "received" => self.push(Rung::packet(record, Way::In)),
            "dropped" => self.dropped(record),
            "fault" => self.disturbed(record),
            "acked" => self.acked(record),
            "completed" => self.completed(record),
            "rewound" => {
                let cause = record.name("cause").unwrap_or("?");
                self.cause = Some(cause.to_owned());
                self.happened(record, "goes back to", cause);
            }
            "nak" => self.happened(record, "refuses", record.name("reason").unwrap_or("?")),
            "rnr_nak" => self.happened(record, "refuses", "no receive WQE"),
            "lost" => self.happened(record, "lost for good from", "gap"),
            "dma_fault" => self.happened(record, "memory fault at", "unmapped"),
            "state" => {
                let name = |field| record.name(field).unwrap_or("?");
                let what = format!("{} to {}", name("from"), name("to"));
                self.happened(record, &what, "state");
            }
            _ => {}
        }
    }

    fn fetched(&mut self, record: &Record) {
        let number = |name| record.number(name).unwrap_or(0);
        if self.wqes.len() == MOST_WQES {
            self.wqes.pop_front();
        }
        self.wqes.push_back(Wqe {
            index: number("message"),
            operation: record.name("operation").unwrap_or("?").to_owned(),
            length: number("length"),
            first: number("first_psn"),
            last: number("last_psn"),
            progress: Progress::Fetched,
            again: 0,
        });
    }

    /// The WQE with this index, if it was seen.
    fn wqe(&mut self, index: u32) -> Option<&mut Wqe> {
        let first = self.wqes.front()?.index;
        let near = self.wqes.get(index.wrapping_sub(first) as usize);
        // After a loss of events indices have gaps.
        let at = match near.is_some_and(|wqe| wqe.index == index) {
            true => index.wrapping_sub(first) as usize,
            false => self.wqes.iter().rposition(|wqe| wqe.index == index)?,
        };
        self.wqes.get_mut(at)
    }

    fn sent(&mut self, record: &Record) {
        let is_again = record.flag("retransmit");
        if let Some(wqe) = record.number("message").and_then(|index| self.wqe(index)) {
            wqe.again += u32::from(is_again);
            if wqe.progress == Progress::Fetched {
                wqe.progress = Progress::Sent;
            }
        }
        let mut rung = Rung::packet(record, Way::Out);
        if is_again {
            rung = rung.with(format!("again: {}", self.cause.as_deref().unwrap_or("?")));
        }
        self.push(rung);
    }

    fn dropped(&mut self, record: &Record) {
        let rung = Rung::packet(record, Way::In);
        let why = format!("dropped: {}", record.name("reason").unwrap_or("?"));
        // It was received just now, or by no queue pair.
        self.take_back(&rung);
        self.push(rung.with(why));
    }

    fn disturbed(&mut self, record: &Record) {
        let kind = record.name("kind").unwrap_or("?");
        let number = record.number("fault").unwrap_or(0);
        let is_outgoing = record.flag("outgoing");
        let mut rung = Rung::packet(record, if is_outgoing { Way::Out } else { Way::In });
        rung.is_stopped = matches!(kind, "drop" | "delay" | "reorder");
        if is_outgoing {
            self.take_back(&rung);
        } else if !rung.is_stopped {
            // It arrives with an event of its own.
            rung.way = Way::Here;
        }
        self.push(rung.with(format!("fault {number}: {kind}")));
    }

    /// The last packet is told about once more: with what became of it.
    fn take_back(&mut self, rung: &Rung) {
        let is_it = |last: &Rung| {
            let same = last.way == rung.way && last.what == rung.what && last.first == rung.first;
            same && !last.is_stopped
        };
        if self.rungs.back().is_some_and(is_it) {
            self.rungs.pop_back();
        }
    }

    fn acked(&mut self, record: &Record) {
        let Some(psn) = record.number("psn").map(Psn::new) else { return };
        for wqe in self.wqes.iter_mut().rev() {
            let is_acked = psn.distance_from(Psn::new(wqe.last)) >= 0;
            match wqe.progress {
                Progress::Fetched | Progress::Sent if is_acked => wqe.progress = Progress::Acked,
                Progress::Fetched | Progress::Sent => {}
                // So is everything before it.
                Progress::Acked | Progress::Completed(_) => return,
            }
        }
    }

    fn completed(&mut self, record: &Record) {
        let status = record.name("status").unwrap_or("?");
        let index = record.number("message").filter(|_| !record.flag("receive"));
        if let Some(wqe) = index.and_then(|index| self.wqe(index)) {
            wqe.progress = Progress::Completed(status.to_owned());
        }
        index.into_iter().for_each(|index| self.ended(index));
        if record.is_error {
            self.happened(record, "completed with", status);
        }
    }

    /// A send queue ends its WQEs in order: those before were done, and asked for no completion.
    fn ended(&mut self, index: u32) {
        let before = |wqe: &&mut Wqe| (1..1 << 31).contains(&index.wrapping_sub(wqe.index));
        for wqe in self.wqes.iter_mut().rev().filter(before) {
            match wqe.progress {
                Progress::Fetched | Progress::Sent => {
                    wqe.progress = Progress::Completed("success".to_owned());
                }
                Progress::Acked | Progress::Completed(_) => return,
            }
        }
    }

    fn happened(&mut self, record: &Record, what: &str, why: &str) {
        self.push(Rung::of(record, Way::Here, what.to_owned()).with(why.to_owned()));
    }

    /// The last rung stays alone until the next one comes: more may be told about it.
    fn push(&mut self, rung: Rung) {
        if let Some(last) = self.rungs.pop_back() {
            match self.rungs.back_mut().filter(|before| before.goes_on(&last)) {
                Some(before) => before.add(last),
                None => self.rungs.push_back(last),
            }
        }
        if self.rungs.len() == MOST_RUNGS {
            self.rungs.pop_front();
        }
        self.rungs.push_back(rung);
    }
}

const MOST_WQES: usize = 256;
const MOST_RUNGS: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::script::{PEER, QPN, fetched, info, record, request};
    use super::*;
    use rnic_abi::verbs::WcStatus;
    use rnic_core::Event;
    use rnic_core::event::{Disturbance, DropReason, RewindCause};

    fn trail(events: &[Event]) -> Trail {
        let mut trail = Trail::default();
        events.iter().for_each(|event| trail.note(&record(0, event)));
        trail
    }

    #[test]
    fn packets_that_follow_each_other_are_one_rung_until_one_differs() {
        let fault = Event::Fault {
            fault: 1,
            kind: Disturbance::Drop,
            outgoing: true,
            packet: Some(info(PEER, 3)),
        };
        let cause = RewindCause::Timeout;
        let trail = trail(&[
            fetched(0, 1, 4),
            request(0, 1, false),
            request(0, 2, false),
            request(0, 3, false),
            fault,
            request(0, 4, false),
            Event::Rewound { qpn: QPN, psn: roce_wire::Psn::new(3), cause },
            request(0, 3, true),
            request(0, 4, true),
        ]);
        let seen: Vec<_> = trail
            .rungs
            .iter()
            .map(|rung| (rung.way, rung.first, rung.count, rung.trouble.as_deref()))
            .collect();
        let wanted = [
            (Way::Out, Some(1), 2, None),
            (Way::Out, Some(3), 1, Some("fault 1: drop")),
            (Way::Out, Some(4), 1, None),
            (Way::Here, Some(3), 1, Some("timeout")),
            (Way::Out, Some(3), 1, Some("again: timeout")),
            (Way::Out, Some(4), 1, Some("again: timeout")),
        ];
        assert_eq!(seen, wanted);
        assert_eq!((trail.wqes[0].again, &trail.wqes[0].progress), (2, &Progress::Sent));
    }

    #[test]
    fn the_packets_of_a_message_are_one_rung() {
        use roce_wire::Opcode::{RcWriteFirst, RcWriteLast, RcWriteMiddle, RcWriteOnly};
        let opcodes = [RcWriteFirst, RcWriteMiddle, RcWriteLast, RcWriteOnly, RcWriteFirst];
        let sent = (1..).zip(opcodes).map(|(psn, opcode)| {
            let packet = rnic_core::event::PacketInfo { opcode, ..info(PEER, psn) };
            Event::Sent { qpn: QPN, message: None, packet, retransmit: false }
        });
        let trail = trail(&sent.collect::<Vec<_>>());
        let counts: Vec<_> = trail.rungs.iter().map(|rung| rung.count).collect();
        assert_eq!(counts, [3, 1, 1]);
        assert!(trail.rungs[0].last_what.ends_with("_LAST"));
    }

    #[test]
    fn what_is_dropped_after_it_was_received_is_told_once() {
        let packet = info(QPN, 9);
        let trail = trail(&[
            Event::Received { qpn: QPN, packet },
            Event::Dropped { reason: DropReason::Duplicate, packet: Some(packet) },
        ]);
        assert_eq!(trail.rungs.len(), 1);
        assert_eq!(trail.rungs[0].trouble.as_deref(), Some("dropped: duplicate"));
    }

    #[test]
    fn an_acknowledgement_ends_all_before_it_also_behind_the_wrap() {
        let psn = roce_wire::Psn::new(1);
        let trail = trail(&[
            fetched(6, 0xff_fffe, 0xff_ffff),
            fetched(7, 0, 1),
            fetched(8, 2, 2),
            Event::Acked { qpn: QPN, psn },
        ]);
        let progress: Vec<_> = trail.wqes.iter().map(|wqe| wqe.progress.clone()).collect();
        assert_eq!(progress, [Progress::Acked, Progress::Acked, Progress::Fetched]);
    }

    #[test]
    fn a_completion_ends_those_before_it_which_have_none() {
        let completed = |receive, status| {
            let (message, wr_id) = (Some(0), 0);
            Event::Completed { qpn: QPN, message, status, receive, wr_id }
        };
        let wqes = || {
            let sent = Event::Sent {
                qpn: QPN,
                message: Some(u32::MAX),
                packet: info(PEER, 2),
                retransmit: false,
            };
            vec![fetched(u32::MAX - 1, 1, 1), fetched(u32::MAX, 2, 2), sent, fetched(0, 3, 3)]
        };
        let progress = |receive, status| {
            let mut all = wqes();
            all.extend([fetched(1, 4, 4), completed(receive, status)]);
            let wqes = trail(&all).wqes;
            wqes.into_iter().map(|wqe| wqe.progress).collect::<Vec<_>>()
        };
        let done = |status: &str| Progress::Completed(status.to_owned());
        let success = progress(false, WcStatus::Success);
        assert_eq!(success[..3], ["success"; 3].map(done));
        assert_eq!(success[3], Progress::Fetched);
        assert_eq!(progress(true, WcStatus::Success)[2], Progress::Fetched);
    }

    #[test]
    fn a_trail_is_bounded() {
        let all: Vec<_> = (0..2000).map(|n| fetched(n, 2 * n, 2 * n)).collect();
        assert_eq!(trail(&all).wqes.len(), MOST_WQES);
        let all: Vec<_> = (0..2000).map(|n| request(0, 2 * n, false)).collect();
        assert_eq!(trail(&all).rungs.len(), MOST_RUNGS);
    }
}
