//! The completer: what responses mean for the requester, and the completions that follow.
//!
//! Responses only move `una`. Completions are written by [`Qp::retire`], after the data of the
//! burst is in place.

use super::super::Qp;
use super::super::packet::Packet;
use super::super::verdict::{AtomicResult, Deferred, Verdict};
use super::sq::{Work, Wr};
use crate::batch::{Piece, PieceKind};
use crate::event::{DropReason, Event, Tap};
use crate::ports::MemRange;
use crate::shared::Ctx;
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpState, SendFlags, WcStatus, WrOpcode};
use rnic_abi::wqe::Sge;
use roce_wire::{NakCode, Operation, Position, Psn, Syndrome};

impl Qp {
    /// Looks at one response packet.
    #[inline(always)]
    pub(crate) fn handle_response<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Verdict {
        let psn = packet.psn;
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            return Verdict::Drop(DropReason::QpState);
        }
        if !self.requester.is_outstanding(psn) {
            return Verdict::Drop(DropReason::GhostResponse);
        }
        let len = packet.datagram.payload_len();
        let allowed = packet.info.payload.allows(len, packet.bth().pad, self.mtu as usize);
        // Rule: ReadResponseLength
        if !allowed {
            return self.wrong_length(ctx, psn);
        }
        match packet.info.operation {
            Operation::Ack => self.handle_ack(ctx, packet),
            Operation::ReadResponse => self.handle_read_response(ctx, packet),
            _ => self.handle_atomic_ack(ctx, packet),
        }
    }

    fn handle_ack<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Verdict {
        let psn = packet.psn;
        let Some(aeth) = packet.datagram.aeth() else {
            return Verdict::Drop(DropReason::Malformed);
        };
        let Some(target) = self.acknowledged_by(psn, aeth.syndrome) else {
            return Verdict::Drop(DropReason::ReservedSyndrome);
        };
        // Rule: AckInRnrWait
        if !self.acknowledge(ctx, target) {
            return self.implied_nak(ctx, psn, true);
        }
        match aeth.syndrome {
            Syndrome::RnrNak { timer } => self.handle_rnr_nak(ctx, timer),
            Syndrome::Nak(NakCode::PsnSequence) => self.handle_sequence_nak(ctx),
            Syndrome::Nak(NakCode::InvalidRequest | NakCode::InvalidRdRequest) => {
                ctx.shared.counters.req_remote_invalid_request += 1;
                // Rule: InvalidRequestStatus
                Verdict::fail(WcStatus::RemInvReqErr)
            }
            Syndrome::Nak(NakCode::RemoteAccess) => {
                ctx.shared.counters.req_remote_access_errors += 1;
                // Rule: AccessErrorStatus
                Verdict::fail(WcStatus::RemAccessErr)
            }
            Syndrome::Nak(NakCode::RemoteOperational) => {
                ctx.shared.counters.req_remote_op_errors += 1;
                // Rule: OperationalErrorStatus
                Verdict::fail(WcStatus::RemOpErr)
            }
            _ => Verdict::Done,
        }
    }

    /// One past the last PSN that an AETH acknowledges: an ACK its own, a NAK all before its own.
    /// The MSN completes nothing, it may run ahead of the PSN. Reserved syndromes mean nothing.
    fn acknowledged_by(&self, psn: Psn, syndrome: Syndrome) -> Option<Psn> {
        match syndrome {
            // Rule: ReservedSyndromeIgnored
            Syndrome::Reserved(_) => None,
            // Rule: NakAcknowledgesEarlier
            Syndrome::RnrNak { .. } | Syndrome::Nak(_) => Some(psn),
            // Rule: ResponseAhead, AckUpToItsPsn
            Syndrome::Ack { .. } => Some(psn.wrapping_add(1)),
        }
    }

    /// Takes `una` up to `target`. SENDs and WRITEs on the way are acknowledged by that; a READ or
    /// atomic without its response is not: then `una` stops there and false is returned.
    #[inline(always)]
    fn acknowledge<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, target: Psn) -> bool {
        let is_ahead = self.requester.una().distance_from(target) < 0;
        !is_ahead || self.acknowledge_up_to(ctx, target)
    }

    fn acknowledge_up_to<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, target: Psn) -> bool {
        let before = self.requester.una();
        let mut complete = true;
        while self.requester.una().distance_from(target) < 0 {
            let wr = self.sq.wr(self.requester.oldest());
            // Rule: ImpliedNak
            if wr.is_read_or_atomic() {
                complete = false;
                break;
            }
            // Rule: AckInsideMessage, AckCoalesces
            if wr.packet_of(target) < wr.packets {
                self.requester.ack_inside(target);
            } else {
                self.requester.ack_oldest(wr.end(), wr.is_read_or_atomic());
            }
        }
        if self.requester.una() != before {
            self.pass_done();
            self.progress(ctx);
        }
        complete
    }

    /// The oldest WQE is answered by a response of its own, and so is local work behind it.
    fn answer_oldest(&mut self) {
        let end = self.sq.wr(self.requester.oldest()).end();
        self.requester.ack_oldest(end, true);
        self.pass_done();
    }

    /// `una` moved: retries are available again, the timer starts over, completions may be due.
    fn progress<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        self.requester.progress(&self.attr);
        let psn = self.requester.una().wrapping_sub(1);
        ctx.event(|| Event::Acked { qpn: self.qpn, psn });
        // Rule: ProgressRestartsTimer
        self.restart_timer(ctx);
        self.retire_later(ctx);
        self.activate(ctx);
    }

    #[inline(never)]
    fn handle_read_response<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Verdict {
        let psn = packet.psn;
        // It acknowledges every SEND and WRITE before it.
        // Rule: ReadAcknowledgesEarlier
        if !self.acknowledge(ctx, psn) {
            return self.implied_nak(ctx, psn, false);
        }
        let index = self.requester.oldest();
        let wr = self.sq.wr(index);
        // Rule: ReadResponseForRead
        if wr.control.opcode != WrOpcode::Read {
            return self.handle_empty_response(ctx, packet);
        }
        let (k, length) = (wr.packet_of(psn), wr.length);
        let is_last = k + 1 == wr.packets;
        let piece = self.segmentation.piece();
        let ends_piece = is_last || piece.left(k) == 1;
        let fits = fits_position(packet.info.position, piece.place(k), ends_piece);
        // Rule: ReadResponseSequence
        if !fits {
            return Verdict::fail(WcStatus::BadRespErr);
        }
        let offset = k * self.mtu;
        let expected = length.saturating_sub(offset).min(self.mtu);
        // Rule: ReadResponseLength
        if packet.bytes.len() != expected {
            return Verdict::fail(WcStatus::LocLenErr);
        }
        if let Err(status) = self.gather_response(ctx, packet, index, offset, is_last) {
            return Verdict::fail(status);
        }
        let begins_again = packet.info.position.is_start() && piece.place(k) > 0;
        if begins_again {
            // This answers the repetition: nothing of the transmission before will follow.
            self.requester.forget_loss();
        }
        if is_last {
            self.answer_oldest();
        } else {
            self.requester.ack_response(psn, ends_piece);
        }
        self.progress(ctx);
        Verdict::Done
    }

    /// A READ response for something else: it is that of a FLUSH or ATOMIC_WRITE, or wrong.
    #[cold]
    fn handle_empty_response<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Verdict {
        let wr = self.sq.wr(self.requester.oldest());
        let is_empty = packet.info.position == Position::Only && packet.bytes.len() == 0;
        // Rule: EmptyResponse
        if !is_empty || !wr.is_answered_empty() {
            return Verdict::fail(WcStatus::BadRespErr);
        }
        self.answer_oldest();
        self.progress(ctx);
        Verdict::Done
    }

    /// Queues the payload of a READ response for the WQE's SGEs.
    fn gather_response<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        index: u32,
        offset: u32,
        is_last: bool,
    ) -> Result<(), WcStatus> {
        let undo = ctx.shared.batch.len();
        let mut left = packet.bytes;
        for Sge { addr, length: len, lkey } in self.sq.parts(index, offset, left.len()) {
            let need = AccessFlags::LOCAL_WRITE;
            let Ok(target) = ctx.shared.mrs.check(lkey, self.pd, addr, len.into(), need) else {
                ctx.shared.batch.truncate(undo);
                return Err(WcStatus::LocProtErr);
            };
            ctx.shared.batch.place(Piece {
                slot: self.slot,
                qpn: self.qpn,
                kind: PieceKind::ReadResponse,
                psn: packet.psn,
                msn: self.responder.msn,
                space: target.space,
                from: left.take(len),
                to: MemRange { addr: target.addr, len },
                is_tail: false,
            });
        }
        if is_last {
            ctx.shared.batch.end_message(self.slot, packet.psn);
        }
        Ok(())
    }

    fn handle_atomic_ack<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Verdict {
        // Rule: AtomicAcknowledgesEarlier
        if !self.acknowledge(ctx, packet.psn) {
            return self.implied_nak(ctx, packet.psn, false);
        }
        // Rule: AtomicResponseForAtomic
        if !self.sq.wr(self.requester.oldest()).is_atomic() {
            return Verdict::fail(WcStatus::BadRespErr);
        }
        Verdict::AfterFlush(Deferred::StoreAtomic)
    }

    /// The result of the oldest outstanding atomic, which this packet brings.
    pub(crate) fn result_of<T: Tap>(
        &self,
        ctx: &Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Result<AtomicResult, WcStatus> {
        let value = packet.datagram.atomic_ack().ok_or(WcStatus::BadRespErr)?.original;
        let sge = self.sq.sges(self.requester.oldest()).next().ok_or(WcStatus::LocQpOpErr)?;
        let need = AccessFlags::LOCAL_WRITE;
        match ctx.shared.mrs.check(sge.lkey, self.pd, sge.addr, 8, need) {
            Ok(target) => Ok(AtomicResult { space: target.space, addr: target.addr, value }),
            Err(_) => Err(WcStatus::LocProtErr),
        }
    }

    /// The result of the oldest outstanding atomic is in memory.
    pub(crate) fn finish_own_atomic<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        self.answer_oldest();
        self.progress(ctx);
    }

    /// A response of impossible length for its opcode.
    fn wrong_length<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, psn: Psn) -> Verdict {
        if psn == self.requester.una() || self.acknowledge(ctx, psn) {
            return Verdict::fail(WcStatus::LocLenErr);
        }
        self.implied_nak(ctx, psn, false)
    }

    /// The request that owns `una` fails; everything before it is complete.
    pub(crate) fn fail_request<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, status: WcStatus) {
        if self.attr.state == QpState::Err || self.requester.oldest() == self.sq.fetched() {
            return;
        }
        self.sq.wr_mut(self.requester.oldest()).work = Work::Fault(status);
        self.retire(ctx);
    }

    /// Response data with this PSN could not be stored: the READ that owns it is the oldest request
    /// that is not complete, even if later packets of the burst have moved on.
    pub(crate) fn step_back(&mut self, psn: Psn) {
        if self.attr.state == QpState::Err {
            return;
        }
        let mut index = self.requester.oldest();
        while index != self.sq.retired
            && (index == self.sq.fetched() || self.sq.wr(index).first.distance_from(psn) > 0)
        {
            index = index.wrapping_sub(1);
        }
        self.requester.set_oldest(index);
    }

    /// Writes the completions of what is acknowledged, in order. The data of READs must be in
    /// place.
    pub(crate) fn complete_acknowledged<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        while self.sq.retired != self.requester.oldest() {
            let index = self.sq.retired;
            let wr = *self.sq.wr(index);
            self.sq.retired = index.wrapping_add(1);
            // The slot is free before the completion is visible: the program may post at once.
            self.sq.release();
            // Rule: SignalAll, UnsignaledSilent
            if self.sq_sig_all || wr.control.flags.contains(SendFlags::SIGNALED) {
                self.complete_send(ctx, &wr, index, WcStatus::Success);
            }
        }
    }

    /// Writes the completions that are due, in order.
    pub(crate) fn retire<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if self.flushes_sends() {
            return;
        }
        self.complete_acknowledged(ctx);
        // All before the next WQE is complete: what does not wait for the peer has its turn.
        if self.sq.retired != self.sq.fetched() {
            match self.sq.wr(self.sq.retired).work {
                Work::Wire | Work::Local | Work::Done => {}
                Work::Fault(status) => self.fail_next(ctx, status),
            }
        }
        self.note_drained(ctx);
    }

    /// The oldest WQE that is not complete ends with an error.
    fn fail_next<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, status: WcStatus) {
        let index = self.sq.retired;
        let wr = *self.sq.wr(index);
        self.sq.retired = index.wrapping_add(1);
        self.requester.set_oldest(self.sq.retired);
        self.sq.release();
        // Rule: ErrorsAlwaysTold
        self.complete_send(ctx, &wr, index, status);
        use WcStatus::{LocLenErr, LocProtErr, LocQpOpErr, MwBindErr};
        if matches!(status, LocQpOpErr | LocProtErr | LocLenErr | MwBindErr) {
            ctx.shared.counters.req_local_errors += 1;
        }
        match self.rules.state_after_send_error() {
            QpState::Sqe => self.stop_sends(ctx),
            _ => self.enter_error(ctx),
        }
    }

    fn complete_send<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        wr: &Wr,
        index: u32,
        status: WcStatus,
    ) {
        // Rule: CompletionOpcode
        let opcode = wr.control.opcode.completion();
        let mut cqe = self.send_cqe(ctx.now, wr.control.wr_id, index, opcode, status);
        // Rule: FetchedLength
        cqe.byte_len = wr.length;
        ctx.complete(self.send_cq, &cqe);
    }

    /// SQD: everything that was started is complete.
    fn note_drained<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if self.attr.state != QpState::Sqd || !self.attr.sq_draining {
            return;
        }
        // Rule: SqdDrains
        if self.requester.has_unacknowledged() {
            return;
        }
        // All that was sent of a message may be acknowledged before all of it was sent.
        let (oldest, una) = (self.requester.oldest(), self.requester.una());
        let is_inside = oldest != self.sq.fetched() && self.sq.wr(oldest).first != una;
        // Rule: SqdFinishesMessage
        if is_inside {
            return;
        }
        self.attr.sq_draining = false;
        // Rule: SqDrainedOnRequest
        if self.attr.en_sqd_async_notify {
            self.raise(ctx, AsyncEventType::SqDrained);
        }
    }
}

/// Is a READ response at this place of the request possible? A restarted READ may begin with FIRST
/// or ONLY anywhere, and responses to the request before it may still arrive in between.
#[inline]
fn fits_position(position: Position, k: u32, is_last: bool) -> bool {
    // Rule: ReadRestartsAnywhere
    let may_be_here = position.is_start() || k > 0;
    may_be_here && position.is_end() == is_last
}
