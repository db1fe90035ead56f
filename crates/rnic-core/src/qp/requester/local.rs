//! Local work: binds of windows and invalidations, which the engine does when their turn comes.
//!
//! They have no packets, and take their place among those that do by what has left: all before
//! them was sent, and nothing behind them is sent before they are done. They are done once, however
//! often the requester goes back, and complete in order like all others.

use super::super::Qp;
use super::super::plan::Budget;
use super::sq::Work;
use super::{Cursor, Permit};
use crate::event::{Event, Tap};
use crate::mr::{Bind, Through};
use crate::shared::Ctx;
use rnic_abi::verbs::{QpState, SendFlags, WcStatus, WrOpcode};

impl Qp {
    /// What this queue pair may use of windows.
    #[inline]
    pub(crate) fn through(&self) -> Through {
        self.through_domain(self.pd)
    }

    /// The same for a request that was executed in this protection domain.
    #[inline]
    pub(crate) fn through_domain(&self, pd: u32) -> Through {
        Through { pd, qp: self.handle }
    }

    /// Whether local work waits only for what is planned before it, or for the next visit.
    #[inline]
    pub(super) fn is_next_local(&self, cursor: Cursor, budget: &Budget) -> bool {
        cursor.index != self.sq.fetched()
            && self.sq.wr(cursor.index).work == Work::Local
            && (cursor.psn != self.requester.cursor().psn || budget.segments == 0)
    }

    /// Does the local work at the cursor, if its turn has come: then the cursor may go on.
    #[cold]
    pub(super) fn do_local<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        cursor: Cursor,
        reads: u32,
        budget: &mut Budget,
    ) -> Option<u32> {
        if self.permit_local(cursor, reads) != Permit::Go {
            return None;
        }
        // Rule: LocalWorkBounded
        if !budget.take_local() {
            return None;
        }
        self.retire_later(ctx);
        let control = &self.sq.wr(cursor.index).control;
        let (opcode, through, qpn) = (control.opcode, self.through(), self.qpn);
        let failed = match opcode {
            WrOpcode::BindMw => {
                ctx.shared.mrs.bind(through, &Bind::from(control)).err().map(|why| {
                    ctx.event(|| Event::BindRefused { qpn, reason: why });
                    // Rule: BadBindStatus
                    WcStatus::MwBindErr
                })
            }
            _ => ctx.shared.mrs.invalidate(control.imm_or_key, through).err().map(|why| {
                ctx.event(|| Event::InvalidationRefused { qpn, reason: why });
                // Rule: BadLocalInvalidationStatus
                WcStatus::LocQpOpErr
            }),
        };
        if let Some(status) = failed {
            self.sq.wr_mut(cursor.index).work = Work::Fault(status);
            return None;
        }
        self.sq.wr_mut(cursor.index).work = Work::Done;
        self.pass_done();
        Some(0)
    }

    fn permit_local(&self, cursor: Cursor, reads: u32) -> Permit {
        // What is only planned may still be cut off by a fault or a full wire.
        // Rule: LocalWorkInOrder
        let all_left = cursor.psn == self.requester.cursor().psn;
        let is_held = self.attr.state == QpState::Sqd;
        let flags = self.sq.wr(cursor.index).control.flags;
        // Rule: LocalWorkFenced
        let is_fenced = flags.contains(SendFlags::FENCE) && reads > 0;
        if all_left && !is_held && !is_fenced { Permit::Go } else { Permit::Wait }
    }

    /// Local work that is done completes with what is before it.
    #[inline(always)]
    pub(super) fn pass_done(&mut self) {
        while self.requester.oldest() != self.sq.fetched()
            && self.sq.wr(self.requester.oldest()).work == Work::Done
        {
            self.requester.pass_oldest();
        }
    }
}
