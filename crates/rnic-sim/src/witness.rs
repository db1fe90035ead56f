//! Judges of what two engines say to each other, whatever the links do to it.
//!
//! [`Witness`] receives the events of one engine. For each connected queue pair it keeps a [record]
//! of what its requester did so far, and has every [`Judge`] look at every event:
//!
//! * [`messages`]: an answer's MSN counts every message up to its PSN and none that was never sent.
//! * [`waits`]: a timeout fires not before its time, and an RNR NAK is waited for.
//! * [`ack_requests`]: the end of every SEND and WRITE asks for an ACK.
//! * [`going_back`]: one loss costs one retry, and a NAK that says so is heeded.
//! * [`gap_naks`]: one NAK tells of a gap.
//! * [`refusals`]: an RNR NAK that was decided on leaves.
//! * [`share`]: answers to the peer's READs do not keep a request waiting for ever.
//!
//! Three more are asked when something can be seen only from outside: [`Witness::is_drained`],
//! [`Witness::is_acknowledged`] and the [`tally`] of what the counters must say.

mod ack_requests;
mod gap_naks;
mod going_back;
mod messages;
mod record;
mod refusals;
mod share;
mod tally;
mod waits;

use ack_requests::AckRequests;
use gap_naks::GapNaks;
use going_back::GoingBack;
use messages::Messages;
use record::Record;
use refusals::Refusals;
use rnic_abi::verbs::QpState;
use rnic_core::event::Event;
use rnic_core::time::Instant;
use roce_wire::Qpn;
use share::Share;
use std::collections::BTreeMap;
pub(crate) use tally::{Seen, Tally};
use waits::Waits;

/// What a judge may take for granted about a connection.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Shortest ACK timeout, nanoseconds; none where the timer is off.
    pub timeout: Option<u64>,
    /// Time after which an answer to something cannot be one to anything sent earlier, nanoseconds.
    pub round_trip: u64,
    /// Bytes that the engine sends for one queue pair before it looks at the next, at most.
    pub visit: u64,
}

/// Looks at the events of one queue pair.
trait Judge {
    /// Something happened. `record` knows what happened before.
    ///
    /// # Errors
    /// Why it must not have.
    fn saw(&mut self, now: Instant, event: &Event, record: &Record) -> Result<(), String>;
}

/// The judges of one queue pair.
#[derive(Debug)]
struct Bench {
    record: Record,
    messages: Messages,
    waits: Waits,
    ack_requests: AckRequests,
    going_back: GoingBack,
    gap_naks: GapNaks,
    refusals: Refusals,
    share: Share,
}

/// The judges of one engine.
#[derive(Debug, Default)]
pub struct Witness {
    connections: BTreeMap<u32, Bench>,
    tally: Tally,
    verdicts: Vec<String>,
}

impl Witness {
    /// A queue pair is connected to another engine, with fresh PSNs.
    pub fn connected(&mut self, qpn: u32, terms: Terms) {
        let bench = Bench {
            record: Record::new(terms),
            messages: Messages::default(),
            waits: Waits::default(),
            ack_requests: AckRequests,
            going_back: GoingBack::default(),
            gap_naks: GapNaks::default(),
            refusals: Refusals::default(),
            share: Share::default(),
        };
        self.connections.insert(qpn, bench);
    }

    /// The PSNs of a queue pair leapt: what was sent before is far away.
    pub fn leapt(&mut self, qpn: u32) {
        if let Some(bench) = self.connections.get_mut(&qpn) {
            bench.record = bench.record.leapt();
            bench.messages.leapt();
            bench.gap_naks = GapNaks::default();
        }
    }

    /// The application posted sends up to this index.
    pub(crate) fn posted(&mut self, qpn: u32, producer: u32) {
        if let Some(bench) = self.connections.get_mut(&qpn) {
            bench.record.posted(producer);
        }
    }

    /// The application moved a queue pair to this state.
    pub(crate) fn entered(&mut self, qpn: u32, state: QpState) {
        if let Some(bench) = self.connections.get_mut(&qpn) {
            bench.record.entered(state);
        }
    }

    /// The application took away the depth of READs and atomics.
    pub(crate) fn lost_depth(&mut self, qpn: u32) {
        if let Some(bench) = self.connections.get_mut(&qpn) {
            bench.record.lost_depth();
        }
    }

    /// What was said that must not be.
    pub fn verdicts(&self) -> &[String] {
        &self.verdicts
    }

    /// What happened, counted.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Everything that this queue pair started is complete, so that it may be called drained.
    pub fn is_drained(&self, qpn: u32) -> bool {
        self.connections.get(&qpn).is_none_or(|bench| bench.record.is_drained())
    }

    /// The SEND or WRITE at this index of its queue was acknowledged.
    pub fn is_acknowledged(&self, qpn: u32, index: u32) -> bool {
        self.connections.get(&qpn).is_some_and(|bench| bench.record.is_acknowledged(index))
    }

    /// Something happened in the engine.
    pub(crate) fn saw(&mut self, now: Instant, event: &Event) {
        self.tally.saw(event);
        let Some(qpn) = subject(event) else { return };
        let Some(bench) = self.connections.get_mut(&qpn.value()) else { return };
        let Bench { record, messages, waits, ack_requests, going_back, gap_naks, .. } = bench;
        let Bench { refusals, share, .. } = bench;
        let judges: [&mut dyn Judge; 7] =
            [messages, waits, ack_requests, going_back, gap_naks, refusals, share];
        for judge in judges {
            if let Err(why) = judge.saw(now, event, record) {
                self.verdicts.push(format!("QP {:#x}: {why}", qpn.value()));
            }
        }
        record.note(event);
    }
}

/// The queue pair that an event is about, if the judges want to know.
fn subject(event: &Event) -> Option<Qpn> {
    match event {
        Event::Sent { qpn, .. }
        | Event::Received { qpn, .. }
        | Event::Rewound { qpn, .. }
        | Event::Acked { qpn, .. }
        | Event::WqeFetched { qpn, .. }
        | Event::Doorbell { qpn, .. }
        | Event::Nak { qpn, .. }
        | Event::RnrNak { qpn, .. }
        | Event::Completed { qpn, .. }
        | Event::State { qpn, .. } => Some(*qpn),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
