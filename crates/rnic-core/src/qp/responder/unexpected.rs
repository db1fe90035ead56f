//! Requests that are not the expected one.

use super::super::Qp;
use super::super::packet::Packet;
use super::super::verdict::Verdict;
use super::Checked;
use crate::event::{DropReason, Event, Tap};
use crate::shared::Ctx;
use crate::transport::Sequence;
use roce_wire::Psn;

impl Qp {
    /// Looks at a request that is not the expected one. It may still be the one to go on with.
    #[cold]
    pub(super) fn handle_unexpected<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked {
        let psn = packet.psn;
        let ahead = psn.distance_from(self.responder.epsn);
        match self.rules.sequence(ahead, packet.info.position.is_start()) {
            Sequence::Next => {}
            Sequence::Gap => return Err(self.handle_gap(ctx, psn)),
            Sequence::Duplicate => return Err(self.handle_duplicate(ctx, packet)),
            Sequence::Anew => self.begin_anew(ctx, psn),
            Sequence::Rest => return Err(self.skip_rest(ctx)),
            Sequence::Late => return Err(Verdict::Drop(DropReason::Duplicate)),
        }
        Ok(())
    }

    /// What was expected is lost for good: a message begins with this PSN.
    #[cold]
    fn begin_anew<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, psn: Psn) {
        let expected = self.responder.epsn;
        if psn.distance_from(expected) > 0 {
            self.count_gap(ctx);
            ctx.event(|| Event::Lost { qpn: self.qpn, psn: expected });
        }
        self.responder.give_up_message();
        self.responder.epsn = psn;
    }

    /// Part of the open message is lost for good, and so is what follows of it.
    #[cold]
    fn skip_rest<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> Verdict {
        self.count_gap(ctx);
        self.responder.give_up_message();
        Verdict::Drop(DropReason::OutOfSequence)
    }

    fn count_gap<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        self.counters.out_of_sequence += 1;
        ctx.shared.counters.out_of_sequence += 1;
    }
}
