//! Answers: what the responder half has to send.

use super::super::Qp;
use super::super::plan::{Budget, Segment, Source};
use super::replies::ReplyKind;
use crate::event::{NakReason, Tap};
use crate::shared::{Ctx, Shared};
use roce_wire::{Opcode, Position};

impl Qp {
    /// Appends queued replies. Returns true when the budget ended it.
    #[inline]
    pub(crate) fn plan_replies(&self, budget: &mut Budget, plan: &mut Vec<Segment>) -> bool {
        let mut nth = 0;
        while let Some(reply) = self.responder.replies.get(nth) {
            let mut add = |k: u32, opcode, len| {
                let (source, psn) = (Source::QueuedReply { nth, k }, reply.first.wrapping_add(k));
                let next = Segment::new(source, self.rules.form(opcode), psn, len);
                let fits = budget.take(&next);
                if fits {
                    plan.push(next);
                }
                fits
            };
            let mut left = reply.sent..reply.limit;
            let fits = match reply.kind {
                ReplyKind::Read { len, .. } => left.all(|k| {
                    let position = Position::new(k == 0, k + 1 == reply.packets);
                    let len = (len - k * self.mtu).min(self.mtu);
                    add(k, Opcode::rc_read_response(position), len)
                }),
                ReplyKind::Atomic { .. } => left.all(|k| add(k, Opcode::RcAtomicAck, 0)),
                // Rule: DoneIsEmptyRead
                ReplyKind::Done => left.all(|k| add(k, Opcode::RcReadRespOnly, 0)),
            };
            if !fits {
                return true;
            }
            nth += 1;
        }
        false
    }

    /// Whether the acknowledgement that is due may be the last of a train that begins with
    /// requests.
    ///
    /// Not where the wire has taken requests only: it might do so until there are no more. And not
    /// where the program was sent an event since the last acknowledgement. The network may cut the
    /// train, and a peer that waits for events, as this end does, would hear of the reply before it
    /// hears that its own message has arrived. `ib_send_lat -e` takes the first event for that.
    #[inline]
    pub(crate) fn ack_may_be_last(&self, shared: &Shared) -> bool {
        if self.responder.ack.is_none() {
            return true;
        }
        // Rule: ToldAckFirst
        let was_told = self.events_told(shared) != self.responder.events_told;
        // Rule: AckPassesRequests
        !was_told && !self.responder.ack_was_refused
    }

    /// How many events have told of what this queue pair received, or others with its completion
    /// queue.
    #[inline]
    pub(in crate::qp) fn events_told(&self, shared: &Shared) -> u64 {
        shared.cqs.get(self.recv_cq).map_or(0, |cq| cq.completion_events)
    }

    /// Appends the acknowledgement that is due: behind all replies, as the order of PSNs demands.
    #[inline]
    pub(crate) fn plan_ack(&self, plan: &mut Vec<Segment>) {
        if let Some(ack) = self.responder.ack {
            let opcode = self.rules.form(Opcode::RcAck);
            plan.push(Segment::new(Source::Ack, opcode, ack.psn, 0));
        }
    }

    /// Memory of a reply could not be read: a NAK ends the connection there. A duplicate
    /// READ whose memory is gone is not answered.
    pub(crate) fn reply_failed<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        nth: usize,
        k: u32,
        reason: NakReason,
    ) {
        let Some((psn, is_duplicate)) = self.responder.replies.fail(nth, k) else { return };
        // Rule: DuplicateErrorSilent
        if !is_duplicate {
            self.end_with_nak(ctx, psn, reason, false);
        }
    }
}
