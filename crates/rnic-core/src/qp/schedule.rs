//! What a QP asks of its engine: a visit of egress, a look at its completions, its timer, an event.

use super::Qp;
use crate::event::Tap;
use crate::shared::Ctx;
use crate::time::Instant;
use crate::wheel::TimerKey;
use rnic_abi::control::AsyncEvent;
use rnic_abi::verbs::AsyncEventType;

/// Nanoseconds that an entry of the wheel may lie ahead; a later deadline takes several.
const LONGEST_ENTRY: u64 = 4_000_000_000;

impl Qp {
    /// Puts the QP on the list of those that egress visits.
    #[inline]
    pub(crate) fn activate<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if !self.is_active {
            self.is_active = true;
            ctx.shared.active.push_back(self.client_slot, self.slot);
        }
    }

    /// Remembers that the QP may have send completions to write.
    #[inline]
    pub(crate) fn retire_later<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if !self.is_retiring {
            self.is_retiring = true;
            ctx.shared.retiring.push(self.slot);
        }
    }

    /// Moves the QP's one timer. Moving it later costs a store: the wheel entry stays where it is
    /// and is scheduled again when it comes up.
    #[inline]
    pub(crate) fn set_deadline<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, deadline: Instant) {
        self.deadline = Some(deadline);
        // The longest timeout is hours; what a QP that is gone leaves in the wheel is not.
        let at = deadline.min(ctx.now.after_nanos(LONGEST_ENTRY));
        if self.wheel_at.is_none_or(|earlier| at < earlier) {
            // The overtaken entry (RNR waits are short) will serve again.
            self.wheel_later = self.wheel_at;
            self.wheel_at = Some(at);
            ctx.shared.wheel.schedule(at, TimerKey::Qp(self.slot));
        }
    }

    /// Raises an async event about the QP.
    pub(crate) fn raise<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, event: AsyncEventType) {
        if self.target.is_some() {
            return self.raise_at_refs(ctx, event);
        }
        self.async_events += 1;
        ctx.shared.counters.async_events += 1;
        ctx.shared.async_events.push((self.client_id, AsyncEvent { event, element: self.handle }));
    }
}
