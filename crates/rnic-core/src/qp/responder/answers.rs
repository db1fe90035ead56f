//! Answers: what the responder half has to send.

use super::super::Qp;
use super::super::plan::{Budget, Segment, Source};
use super::replies::ReplyKind;
use crate::event::{NakReason, Tap};
use crate::shared::Ctx;
use roce_wire::Opcode;

impl Qp {
    /// Appends queued replies. Returns true when the budget ended it.
    #[inline]
    pub(crate) fn plan_replies(&self, budget: &mut Budget, plan: &mut Vec<Segment>) -> bool {
        let mut nth = 0;
        while let Some(reply) = self.responder.replies.get(nth) {
            let total = match reply.kind {
                ReplyKind::Read { len, .. } => len,
                ReplyKind::Atomic { .. } | ReplyKind::Done => 0,
            };
            for k in reply.sent..reply.limit {
                let len = (total - k * self.mtu).min(self.mtu);
                let psn = reply.first.wrapping_add(k);
                let opcode = self.rules.form(reply.opcode(k));
                let next = Segment::new(Source::QueuedReply { nth, k }, opcode, psn, len);
                if !budget.take(&next) {
                    return true;
                }
                plan.push(next);
            }
            nth += 1;
        }
        false
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
