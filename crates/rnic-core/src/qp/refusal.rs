//! The end of a connection by the responder: NAK, error completion or async event, ERR.

use super::Qp;
use super::responder::Ack;
use crate::event::{Event, NakReason, Tap};
use crate::placement::{Piece, PieceKind};
use crate::planted::Rule;
use crate::shared::Ctx;
use rnic_abi::verbs::{AsyncEventType, WcStatus};
use roce_wire::{NakCode, Psn, Syndrome};

impl Qp {
    /// Refuses the request at the expected PSN for good: NAK, error completion, ERR.
    pub(crate) fn refuse<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, reason: NakReason) {
        if !self.receives() {
            return;
        }
        let status = match reason {
            NakReason::ReceiveTooShort if Rule::TooLongStatus.applies() => WcStatus::LocLenErr,
            NakReason::Key(_) | NakReason::RemoteMemory if Rule::RefusedImmStatus.applies() => {
                WcStatus::RemAccessErr
            }
            NakReason::Local if Rule::ReceiveKeyStatus.applies() => WcStatus::LocProtErr,
            _ => WcStatus::RemInvReqErr,
        };
        self.settle(ctx);
        let reported =
            Rule::RefusedReceiveFails.applies() && self.fail_current_receive(ctx, status);
        self.end_with_nak(ctx, self.responder.epsn, reason, reported);
    }

    /// Refuses the request at the expected PSN because the receive WQE makes no sense.
    pub(crate) fn refuse_receive<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, wr_id: u64, index: u32) {
        if !self.receives() {
            return;
        }
        self.settle(ctx);
        let cqe = self.recv_cqe(ctx.now, wr_id, index, WcStatus::LocQpOpErr);
        self.rq.release(index);
        ctx.complete(self.recv_cq, &cqe);
        self.end_with_nak(ctx, self.responder.epsn, NakReason::Local, true);
    }

    /// Memory failed while a packet that was already accepted was placed. `status` is what a
    /// receive WQE still in use completes with.
    pub(crate) fn memory_failed<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        piece: &Piece,
        status: WcStatus,
    ) {
        if !self.receives() {
            return;
        }
        // Undo everything from that packet on.
        if Rule::FaultRollsBack.applies() {
            self.responder.epsn = piece.psn;
            self.responder.msn = piece.msn;
        }
        self.responder.replies.truncate_from(piece.psn);
        let reason = match piece.kind {
            PieceKind::Receive => NakReason::Local,
            _ => NakReason::RemoteMemory,
        };
        let reported = self.fail_current_receive(ctx, status) || piece.kind == PieceKind::Receive;
        self.end_with_nak(ctx, piece.psn, reason, reported);
    }

    /// The NAK is the last thing this QP says. What no completion reports becomes an async event.
    pub(crate) fn end_with_nak<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        psn: Psn,
        reason: NakReason,
        reported: bool,
    ) {
        let (code, event) = match reason {
            NakReason::Key(_) | NakReason::RemoteMemory => {
                (NakCode::RemoteAccess, AsyncEventType::QpAccessErr)
            }
            NakReason::Local => (NakCode::RemoteOperational, AsyncEventType::QpFatal),
            _ => (NakCode::InvalidRequest, AsyncEventType::QpReqErr),
        };
        let kept = match code {
            NakCode::RemoteAccess => Rule::AccessNak.applies(),
            NakCode::RemoteOperational => Rule::OperationalNak.applies(),
            _ => Rule::InvalidNak.applies(),
        };
        let code = if kept { code } else { NakCode::PsnSequence };
        self.responder.ack = Some(Ack { psn, syndrome: Syndrome::Nak(code) });
        self.responder.has_last_words = Rule::NakLeavesInErr.applies();
        ctx.shared.counters.nak_sent(reason);
        ctx.event(|| Event::Nak { qpn: self.qpn, psn, reason });
        if Rule::NakEndsQp.applies() {
            self.enter_error(ctx);
        }
        let told = match event {
            AsyncEventType::QpAccessErr => Rule::QpAccessErr.applies(),
            AsyncEventType::QpReqErr => Rule::QpReqErr.applies(),
            _ => true,
        };
        if told && !reported || !Rule::EventOnlyUnreported.applies() {
            ctx.qp_event(self, event);
        }
    }
}
