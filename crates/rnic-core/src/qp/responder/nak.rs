//! The end of a connection by the responder: NAK, error completion or async event, ERR.

use super::super::Qp;
use super::Ack;
use crate::batch::{Delivery, Piece, PieceKind};
use crate::event::{DropReason, Event, NakReason, Tap};
use crate::shared::Ctx;
use rnic_abi::verbs::{AsyncEventType, WcStatus};
use roce_wire::{Msn, NakCode, Psn, Syndrome};

impl Qp {
    /// Refuses the request at the expected PSN for good: NAK, error completion, ERR. Where nothing
    /// tells the peer, its message is lost like any other, unless the program's own receive WQE is
    /// at fault.
    #[cold]
    pub(crate) fn refuse<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        reason: NakReason,
    ) -> Result<(), DropReason> {
        // Rule: UcRefusesSilently, UcBadReceiveEndsQp
        if !self.rules.is_reliable && reason != NakReason::Local {
            self.responder.give_up_message();
            return Err(DropReason::Refused(reason));
        }
        let status = match reason {
            // Rule: TooLongStatus
            NakReason::ReceiveTooShort => WcStatus::LocLenErr,
            // Rule: RefusedImmStatus
            NakReason::Key(_) => WcStatus::LocAccessErr,
            // Rule: ReceiveKeyStatus
            NakReason::Local => WcStatus::LocProtErr,
            _ => WcStatus::RemInvReqErr,
        };
        self.retire(ctx);
        // Rule: RefusedReceiveFails
        let reported = self.fail_current_receive(ctx, status);
        if let NakReason::Invalidation(_) = reason {
            self.end_silently(ctx, reported);
            return Err(DropReason::Refused(reason));
        }
        self.end_with_nak(ctx, self.responder.epsn, reason, reported);
        Ok(())
    }

    /// The request at the expected PSN ends the connection without a NAK; what was accepted before
    /// it is still acknowledged.
    fn end_silently<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, reported: bool) {
        // Rule: BadInvalidationUnanswered
        self.responder.final_nak_pending = self.responder.owes();
        self.enter_error(ctx);
        // Rule: XrcInvalidationRaised
        if !self.is_told(reported) {
            self.raise(ctx, AsyncEventType::QpReqErr);
        }
    }

    /// A completion tells the program why the connection ends. One of XRC goes to the program of
    /// the shared receive queue, which need not be one of those that have the queue pair.
    fn is_told(&self, reported: bool) -> bool {
        // Rule: XrcErrorsRaised
        reported && self.target.is_none()
    }

    /// Refuses the request at the expected PSN because the receive WQE is invalid.
    pub(crate) fn fail_receive<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        self.retire(ctx);
        self.fail_current_receive(ctx, WcStatus::LocQpOpErr);
        self.end_with_nak(ctx, self.responder.epsn, NakReason::Local, true);
    }

    /// Memory failed while a packet that was already accepted was placed. `reported`: a completion
    /// says so.
    pub(crate) fn memory_failed<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        piece: &Piece,
        reported: bool,
    ) {
        if !self.receives() {
            return;
        }
        // Rule: FaultRollsBack
        self.undo_from(piece.psn, piece.msn);
        let reason = match piece.kind {
            PieceKind::Receive => NakReason::Local,
            _ => NakReason::RemoteMemory,
        };
        self.end_with_nak(ctx, piece.psn, reason, reported);
    }

    /// The completion of a message that was already accepted found its CQ full. The program will
    /// never hear of the message, so the peer must not be told that it arrived.
    pub(crate) fn completion_lost<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, lost: &Delivery) {
        // Rule: OverflowNotAcked
        if self.receives() {
            self.undo_from(lost.psn, lost.msn);
            self.end_with_nak(ctx, lost.psn, NakReason::Local, false);
        }
    }

    /// The packet with this PSN was accepted, and then it and what is behind it was undone.
    pub(crate) fn has_undone(&self, psn: Psn) -> bool {
        psn.distance_from(self.responder.epsn) >= 0
    }

    /// What the packet with this PSN and those behind it did to the responder did not happen.
    fn undo_from(&mut self, psn: Psn, msn: Msn) {
        self.responder.epsn = psn;
        self.responder.msn = msn;
        self.responder.replies.truncate_from(psn);
    }

    /// The NAK, where there are any, is the last thing this QP says. What no completion reports
    /// becomes an async event.
    pub(crate) fn end_with_nak<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        psn: Psn,
        reason: NakReason,
        reported: bool,
    ) {
        let (code, event) = match reason {
            // Rule: AccessNak
            NakReason::Key(_) => (NakCode::RemoteAccess, AsyncEventType::QpAccessErr),
            // Rule: MissingMemoryIsOurs, OperationalNak
            NakReason::Local | NakReason::RemoteMemory => {
                (NakCode::RemoteOperational, AsyncEventType::QpFatal)
            }
            // Rule: InvalidNak
            _ => (NakCode::InvalidRequest, AsyncEventType::QpReqErr),
        };
        if self.rules.is_reliable {
            self.responder.ack = Some(Ack { psn, syndrome: Syndrome::Nak(code) });
            // Rule: NakLeavesInErr
            self.responder.final_nak_pending = true;
            ctx.shared.counters.refused(reason);
            ctx.event(|| Event::Nak { qpn: self.qpn, psn, reason });
        } else {
            // Rule: UcNeverAnswers
            ctx.dropped(DropReason::Refused(reason), None);
        }
        // Rule: NakEndsQp
        self.enter_error(ctx);
        let is_told = self.is_told(reported);
        // Rule: EventOnlyUnreported, QpReqErr, QpAccessErr
        if !is_told {
            self.raise(ctx, event);
        }
    }
}
