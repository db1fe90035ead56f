//! What the events of a queue pair say about its requester.

use super::Terms;
use rnic_abi::verbs::QpState;
use rnic_core::event::{Event, PacketInfo, RewindCause};
use roce_wire::{Operation, Psn, Syndrome};
use std::collections::VecDeque;

/// The requester so far.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) terms: Terms,
    /// Work requests in the order of their PSNs, from some that are acknowledged on.
    requests: VecDeque<Request>,
    /// Oldest PSN that is not acknowledged.
    una: Option<Psn>,
    /// One past the last PSN that was ever sent; a READ counts as a whole.
    sent: Option<Psn>,
    /// Work requests posted, those of which the engine heard the doorbell, and those it fetched.
    posted: u32,
    heard: u32,
    fetched: u32,
    /// An RNR NAK is being waited for.
    in_rnr_wait: bool,
    state: Option<QpState>,
    /// A READ or an atomic fails instead of leaving.
    has_no_depth: bool,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    index: u32,
    first: Psn,
    last: Psn,
    /// A READ or an atomic. Known once it was sent.
    fetches: bool,
}

/// More work requests than any queue pair has in flight.
const REMEMBERED: usize = 256;

impl Record {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            requests: VecDeque::new(),
            una: None,
            sent: None,
            posted: 0,
            heard: 0,
            fetched: 0,
            in_rnr_wait: false,
            state: None,
            has_no_depth: false,
        }
    }

    /// The same queue pair, with PSNs that have nothing to do with those before.
    pub(super) fn leapt(&self) -> Self {
        let Self { posted, heard, fetched, state, has_no_depth, .. } = *self;
        Self { posted, heard, fetched, state, has_no_depth, ..Self::new(self.terms) }
    }

    /// The application posted up to this index.
    pub(super) fn posted(&mut self, producer: u32) {
        self.posted = producer;
    }

    /// It is in this state now.
    pub(super) fn entered(&mut self, state: QpState) {
        self.state = Some(state);
    }

    /// No READ or atomic may be outstanding any more.
    pub(super) fn lost_depth(&mut self) {
        self.has_no_depth = true;
    }

    /// A request waits that the engine knows of, and nothing holds it back.
    pub(super) fn may_send(&self) -> bool {
        let waits = self.heard.wrapping_sub(self.fetched).cast_signed() > 0;
        let in_rts = self.state.is_none_or(|state| state == QpState::Rts);
        waits && in_rts && !self.in_rnr_wait && !self.is_waiting() && !self.has_no_depth
    }

    /// Something was sent and is not acknowledged.
    fn is_waiting(&self) -> bool {
        matches!((self.una, self.sent), (Some(una), Some(sent)) if sent.distance_from(una) > 0)
    }

    /// Last PSN that any request will use.
    pub(super) fn last(&self) -> Option<Psn> {
        self.requests.back().map(|request| request.last)
    }

    /// This PSN was sent and is not acknowledged.
    pub(super) fn is_outstanding(&self, psn: Psn) -> bool {
        let (Some(una), Some(sent)) = (self.una, self.sent) else { return false };
        psn.distance_from(una) >= 0 && psn.distance_from(sent) < 0
    }

    /// The oldest PSN that is not acknowledged is this one.
    pub(super) fn is_oldest(&self, psn: Psn) -> bool {
        self.una == Some(psn)
    }

    /// An RNR NAK is being waited for.
    pub(super) fn in_rnr_wait(&self) -> bool {
        self.in_rnr_wait
    }

    /// Every request of which anything was sent is acknowledged.
    pub(super) fn is_drained(&self) -> bool {
        let (Some(una), Some(sent)) = (self.una, self.sent) else { return true };
        let at_boundary = self.requests.iter().any(|r| r.last.wrapping_add(1) == una);
        sent.distance_from(una) <= 0 && at_boundary
    }

    pub(super) fn is_acknowledged(&self, index: u32) -> bool {
        let Some(una) = self.una else { return false };
        let found = self.requests.iter().rev().find(|request| request.index == index);
        found.is_some_and(|r| !r.fetches && r.last.distance_from(una) < 0)
    }

    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::WqeFetched { message: index, first_psn: first, last_psn: last, .. } => {
                self.una.get_or_insert(*first);
                self.fetched = index.wrapping_add(1);
                // One that fails at once uses no PSN.
                if last.distance_from(*first) >= 0 {
                    self.has_fetched(*index, *first, *last);
                }
            }
            Event::Sent { packet, .. } if packet.opcode.info().is_request => {
                self.in_rnr_wait = false;
                self.sent(packet);
            }
            Event::Acked { psn, .. } => self.una = Some(psn.wrapping_add(1)),
            Event::Received { packet, .. } => {
                let refused = packet.aeth.is_some_and(|(syndrome, _)| {
                    matches!(Syndrome::from_u8(syndrome), Syndrome::RnrNak { .. })
                });
                self.in_rnr_wait |= refused && self.is_outstanding(packet.psn);
            }
            Event::Rewound { cause: RewindCause::Rnr, .. } => self.in_rnr_wait = false,
            Event::Doorbell { .. } => self.heard = self.posted,
            Event::State { to, .. } => self.entered(*to),
            _ => {}
        }
    }

    fn has_fetched(&mut self, index: u32, first: Psn, last: Psn) {
        if self.requests.len() == REMEMBERED {
            self.requests.pop_front();
        }
        self.requests.push_back(Request { index, first, last, fetches: false });
    }

    fn sent(&mut self, packet: &PacketInfo) {
        let operation = packet.opcode.info().operation;
        let fetches = !matches!(operation, Operation::Send | Operation::Write);
        let owner = self.requests.iter_mut().rev().find(|r| packet.psn.distance_from(r.first) >= 0);
        let mut end = packet.psn.wrapping_add(1);
        if let Some(owner) = owner {
            owner.fetches = fetches;
            if fetches {
                end = owner.last.wrapping_add(1);
            }
        }
        if self.sent.is_none_or(|sent| end.distance_from(sent) > 0) {
            self.sent = Some(end);
        }
    }
}
