//! The responses of one direction of a connection.

use roce_wire::headers::rnr_timer_ns;
use roce_wire::{Datagram, NakCode, Operation, Psn, Syndrome};
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
    data_end: Option<Psn>,
}

impl Responses {
    /// A response.
    pub(crate) fn packet(&mut self, datagram: &Datagram<'_>) -> Meaning {
        self.packets += 1;
        self.bytes += datagram.payload_len() as u64;
        let psn = datagram.bth().psn;
        if matches!(datagram.opcode().operation(), Operation::ReadResponse | Operation::AtomicAck) {
            let is_known = self.data_end.is_some_and(|end| psn.distance_from(end) < 0);
            self.repeated += u64::from(is_known);
            if !is_known {
                self.data_end = Some(psn.wrapping_add(1));
            }
            return Meaning::Acknowledges;
        }
        match datagram.headers().aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Ack { .. }) => {
                self.acks += 1;
                Meaning::Acknowledges
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
