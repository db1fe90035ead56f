//! The responses of one direction of a connection.

use roce_wire::headers::rnr_timer_ns;
use roce_wire::{Datagram, NakCode, Operation, Position, Psn, Syndrome};
use serde::Serialize;
use std::time::Duration;

/// Refusals that are kept of a connection; further ones are only counted.
const MOST: usize = 16;

/// A request that the responder refused for good.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Refusal {
    /// Since the first packet of the capture.
    pub at_ns: u64,
    /// PSN of the NAK.
    pub psn: u32,
    /// What the NAK says.
    pub reason: String,
    /// The request, where the capture has it.
    pub request: Option<String>,
}

/// What a response means to the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    /// Everything up to the PSN is acknowledged.
    Acknowledges,
    /// What begins with the PSN was lost.
    Lost,
    /// Of what was asked for, data from this PSN on is not there, but later data is: the requester
    /// asks for it again.
    DataLost(Psn),
    /// There was no receive: the requester has to wait so long.
    NotReady(Duration),
    /// The request is refused.
    Refused(NakCode),
    Nothing,
}

/// What the responses of one direction say.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) acks: u64,
    pub(crate) sequence_naks: u64,
    pub(crate) rnr_naks: u64,
    /// The longest wait that an RNR NAK asked for.
    pub(crate) rnr_wait: Duration,
    pub(crate) refused: u64,
    pub(crate) refusals: Vec<Refusal>,
    /// Packets of READ responses and of atomics that were sent again.
    pub(crate) repeated: u64,
    data: Data,
}

/// A gap between responses with data is no longer one where they still come after this time: the
/// requester has what the capture does not have.
const PATIENCE: Duration = Duration::from_millis(100);

/// The responses with data. Each follows the one before it, or begins the answer to another READ.
#[derive(Debug, Default)]
struct Data {
    /// Behind the last one.
    end: Option<Psn>,
    /// The last one was not the end of its answer.
    is_open: bool,
    /// What follows may be anything: there was more than was captured.
    is_vague: bool,
    /// The first one behind a gap, and when it came.
    gap: Option<(Psn, Duration)>,
}

/// How a response with data follows those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Follows {
    Next,
    Again,
    /// The first one behind a gap.
    ShowsGap(Psn),
    BehindGap,
}

impl Data {
    fn take(&mut self, psn: Psn, position: Position, at: Duration) -> Follows {
        let end = self.end.unwrap_or(psn);
        let ahead = psn.distance_from(end);
        if ahead < 0 {
            return Follows::Again;
        }
        let follows = ahead == 0
            || self.is_vague
            || position.is_start()
                && self.gap.map_or(!self.is_open, |(shown, _)| psn.distance_from(shown) < 0);
        if follows {
            *self = Self {
                end: Some(psn.wrapping_add(1)),
                is_open: !position.is_end(),
                ..Self::default()
            };
            return Follows::Next;
        }
        if self.gap.is_some() {
            return Follows::BehindGap;
        }
        self.gap = Some((psn, at));
        Follows::ShowsGap(end)
    }

    fn forget_old_gap(&mut self, at: Duration) {
        if self.gap.take_if(|(_, since)| at.saturating_sub(*since) > PATIENCE).is_some() {
            self.is_vague = true;
        }
    }

    /// A requester that misses data before this takes it for no acknowledgement.
    fn is_behind_gap(&self, psn: Psn) -> bool {
        self.gap.is_some() && self.end.is_some_and(|end| psn.distance_from(end) >= 0)
    }
}

impl Responses {
    /// A response. Others are hidden in the same packet of the capture, or not.
    pub(crate) fn packet(&mut self, datagram: &Datagram<'_>, hides: bool, at: Duration) -> Meaning {
        self.packets += 1;
        self.bytes += datagram.payload_len() as u64;
        let (psn, opcode) = (datagram.bth().psn, datagram.opcode());
        self.data.forget_old_gap(at);
        if matches!(opcode.operation(), Operation::ReadResponse | Operation::AtomicAck) {
            let follows = self.data.take(psn, opcode.position(), at);
            self.data.is_vague |= hides;
            self.repeated += u64::from(follows == Follows::Again);
            return match follows {
                Follows::Next | Follows::Again => Meaning::Acknowledges,
                Follows::ShowsGap(from) => Meaning::DataLost(from),
                Follows::BehindGap => Meaning::Nothing,
            };
        }
        match datagram.headers().aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Ack { .. }) => {
                self.acks += 1;
                if self.data.is_behind_gap(psn) { Meaning::Nothing } else { Meaning::Acknowledges }
            }
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.sequence_naks += 1;
                Meaning::Lost
            }
            Some(Syndrome::RnrNak { timer }) => {
                self.rnr_naks += 1;
                let wait = Duration::from_nanos(rnr_timer_ns(timer));
                self.rnr_wait = self.rnr_wait.max(wait);
                Meaning::NotReady(wait)
            }
            Some(Syndrome::Nak(code)) => {
                self.refused += 1;
                Meaning::Refused(code)
            }
            Some(Syndrome::Reserved(_)) | None => Meaning::Nothing,
        }
    }

    pub(crate) fn keep(&mut self, refusal: Refusal) {
        if self.refusals.len() < MOST {
            self.refusals.push(refusal);
        }
    }
}
