//! The responder half: what incoming requests do.
//!
//! * this file: the checks of a request, duplicates and gaps. `unexpected`: which of these it is.
//! * `rq`: where receives come from.
//! * `datagram`: requests of a queue pair without a connection.
//! * `placement`: FLUSH and ATOMIC_WRITE.
//! * `execute`: what a good request does. `nak`: what a bad one does.
//! * `replies`: responses of READs and atomics. `answers`: the packets that are owed.
//!
//! Requests run through named checks in the order of IBTA 9.7.4 (PSN, opcode sequence, operation,
//! resources, length, key), and only then change anything. Memory is not touched here: data goes to
//! the [batch](crate::batch), atomics are handed to ingress, which empties the batch
//! first. Nothing is sent here: what is owed stays in `ack` and `replies` until egress visits.

mod answers;
mod datagram;
mod execute;
mod nak;
mod placement;
pub(crate) mod replies;
pub(crate) mod rq;
mod unexpected;

use super::Qp;
use super::packet::Packet;
use super::verdict::{Deferred, Verdict};
use crate::event::{DropReason, Event, NakReason, Tap};
use crate::recv_queue::{NoRecv, Recv};
use crate::shared::Ctx;
use replies::ReplyQueue;
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpAttr, QpState};
use rnic_abi::wqe::Sge;
use roce_wire::{Msn, NakCode, Operation, Psn, Syndrome, Trailer};

/// The message of several packets of which more are to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::qp) enum OpenMessage {
    #[default]
    None,
    Send,
    /// Where the next byte goes and how many are to come.
    Write {
        va: u64,
        rkey: u32,
        left: u32,
    },
}

/// An acknowledgement to be sent behind the queued replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ack {
    pub(crate) psn: Psn,
    pub(crate) syndrome: Syndrome,
}

/// State of the responder half.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Expected PSN.
    pub(crate) epsn: Psn,
    pub(crate) msn: Msn,
    pub(in crate::qp) message: OpenMessage,
    /// The receive WQE that the message fills, and its SGEs.
    pub(in crate::qp) recv: Option<Recv>,
    pub(in crate::qp) recv_sges: Vec<Sge>,
    /// Bytes of the current WRITE message so far.
    pub(in crate::qp) written: u64,
    /// COMM_EST was raised.
    established: bool,
    /// A NAK for the current gap (sequence or RNR) is out: further packets ahead are dropped.
    nak_sent: bool,
    /// One past the furthest packet that was dropped behind the last gap.
    dropped_until: Psn,
    pub(crate) ack: Option<Ack>,
    /// The wire had no room for an acknowledgement behind requests: the next one leaves before
    /// them.
    pub(crate) ack_was_refused: bool,
    /// Events that had told of receives when the last acknowledgement left.
    events_told: u64,
    pub(crate) replies: ReplyQueue,
    /// The NAK that ends the connection, and what precedes it or, where there is none, the request
    /// that ended it, may still be sent in ERR.
    pub(in crate::qp) final_nak_pending: bool,
}

pub(in crate::qp) type Checked<T = ()> = Result<T, Verdict>;

/// Longest DMA length of a RETH.
pub(in crate::qp) const MAX_DMA_LEN: u32 = 1 << 31;

impl Responder {
    /// With room for the SGEs of a receive WQE, so that no message has to wait for memory.
    pub(crate) fn new(max_sges: usize) -> Self {
        Self { recv_sges: Vec::with_capacity(max_sges), ..Self::default() }
    }

    /// As it was made.
    pub(crate) fn reset(&mut self) {
        *self = Self { recv_sges: std::mem::take(&mut self.recv_sges), ..Self::default() };
    }

    /// INIT -> RTR.
    pub(crate) fn start(&mut self, attr: &QpAttr) {
        self.reset();
        // Rule: FirstExpectedPsn
        self.epsn = Psn::new(attr.rq_psn);
        self.replies.resize(attr.max_dest_rd_atomic);
    }

    /// SQD -> SQD may change the depth.
    pub(crate) fn resize(&mut self, attr: &QpAttr) {
        self.replies.resize(attr.max_dest_rd_atomic);
    }

    /// The QP goes to ERR: only last words may follow.
    pub(crate) fn stop(&mut self) {
        self.message = OpenMessage::None;
        if !self.final_nak_pending {
            self.ack = None;
            self.replies.clear();
        }
    }

    /// Between two messages, and nothing is owed.
    #[cfg(feature = "leap")]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.message == OpenMessage::None && !self.owes()
    }

    /// Is there anything to answer?
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.ack.is_some() || self.replies.len() > 0
    }

    /// The next packet in sequence was accepted. A NAK that is not sent yet is out of date: its
    /// place takes an ACK of everything so far, or a NAK for the next packet where that was dropped
    /// meanwhile. The peer takes what was dropped for sent, and would wait for its timer.
    #[inline(always)]
    pub(crate) fn accept(&mut self, psn: Psn, packets: u32, ends_message: bool, ack_req: bool) {
        let ahead = psn.wrapping_add(packets);
        let passed = (self.epsn.value() ^ ahead.value()) / replies::MEMORY;
        self.epsn = ahead;
        if passed != 0 {
            self.replies.forget_behind(ahead);
        }
        // Rule: AcceptedEndsGap
        self.nak_sent = false;
        let was_nak = self.nak_waits();
        // Rule: MsnCountsMessages
        if ends_message {
            self.msn = self.msn.wrapping_add(1);
        }
        // Rule: AckOnlyOnRequest, AckReqAnswered
        // Rule: DroppedBehindNakNaked
        if was_nak && self.dropped_until.distance_from(ahead) > 0 {
            self.nak_sent = true;
            self.ack = Some(Ack { psn: ahead, syndrome: Syndrome::Nak(NakCode::PsnSequence) });
        } else if ack_req || was_nak {
            // Rule: AckNamesLast
            self.ack = Some(Ack { psn, syndrome: Syndrome::ACK });
        }
    }

    /// The message that was open is lost for good. The next one uses the same receive WQE.
    pub(in crate::qp) fn give_up_message(&mut self) {
        self.message = OpenMessage::None;
        // Rule: UcLossKeepsReceive
        if let Some(recv) = &mut self.recv {
            recv.start_over();
        }
    }

    /// A NAK or RNR NAK is not sent yet.
    #[inline]
    fn nak_waits(&self) -> bool {
        self.ack.is_some_and(|ack| !matches!(ack.syndrome, Syndrome::Ack { .. }))
    }

    /// Acknowledges the duplicate with this PSN, and everything else that was received, unless
    /// what is owed already does so: an ACK that reaches further, a NAK, or a response.
    fn acknowledge_again(&mut self, psn: Psn) {
        let epsn = self.epsn;
        // Rule: DuplicateAckStopsAtReads
        let acked = match self.replies.first_after(psn, epsn) {
            Some(first) => first,
            // Rule: DuplicateAckPsn
            None => epsn,
        };
        let psn = acked.wrapping_sub(1);
        let reaches_further = |ack: Ack| ack.psn.steps_to(epsn) < psn.steps_to(epsn);
        let owed = self.nak_waits()
            || self.ack.is_some_and(reaches_further)
            || self.replies.will_acknowledge(psn, epsn);
        // Rule: DuplicateKeepsAck
        if !owed {
            self.ack = Some(Ack { psn, syndrome: Syndrome::ACK });
        }
    }

    /// The response to a duplicate with this PSN acknowledges what is before it.
    fn drop_ack_before(&mut self, psn: Psn) {
        let epsn = self.epsn;
        let is_before = |ack: Ack| ack.psn.steps_to(epsn) > psn.steps_to(epsn);
        let superseded = self.ack.is_some_and(is_before) && !self.nak_waits();
        // Rule: DuplicateKeepsAck
        if superseded {
            self.ack = None;
        }
    }
}

impl Qp {
    /// Looks at one request packet.
    #[inline(always)]
    pub(crate) fn handle_request<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Verdict {
        if packet.psn != self.responder.epsn
            && let Err(verdict) = self.handle_unexpected(ctx, packet)
        {
            return verdict;
        }
        match self.execute_request(ctx, packet) {
            Ok(step) | Err(step) => step,
        }
    }

    /// An accepted packet demands an acknowledgement.
    #[inline]
    pub(in crate::qp) fn must_answer(&self, packet: &Packet<'_>) -> bool {
        // Rule: UcAckReqMeansNothing
        packet.bth().ack_req && self.rules.is_reliable
    }

    /// The packet in sequence: all checks, then the effect.
    #[inline(always)]
    fn execute_request<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked<Verdict> {
        self.check_opcode_sequence(packet)?;
        self.check_operation(packet)?;
        self.check_resources(ctx, packet)?;
        self.check_length(packet)?;
        match packet.info.operation {
            Operation::Send => self.execute_send(ctx, packet)?,
            Operation::Write => self.execute_write(ctx, packet)?,
            Operation::ReadRequest => self.execute_read(ctx, packet)?,
            _ => return self.execute_other(ctx, packet),
        }
        self.note_established(ctx);
        self.activate(ctx);
        Ok(Verdict::Done)
    }

    /// COMM_EST: the first good packet while in RTR.
    pub(in crate::qp) fn note_established<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        // Rule: CommEstOnce
        let first = !self.responder.established;
        // Rule: CommEst
        if self.attr.state == QpState::Rtr && first {
            self.responder.established = true;
            self.raise(ctx, AsyncEventType::CommEst);
        }
    }

    /// PSN ahead of the expected one: one NAK per gap, with the expected PSN in it.
    fn handle_gap<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, dropped: Psn) -> Verdict {
        self.counters.out_of_sequence += 1;
        let is_new = !self.responder.nak_sent;
        let dropped_until = dropped.wrapping_add(1);
        if is_new || dropped_until.distance_from(self.responder.dropped_until) > 0 {
            self.responder.dropped_until = dropped_until;
        }
        if is_new || !ctx.shared.config.profile.counts_gaps() {
            ctx.shared.counters.out_of_sequence += 1;
        }
        // Rule: OneNakPerGap
        if is_new {
            self.responder.nak_sent = true;
            // Rule: GapNakPsn
            let psn = self.responder.epsn;
            let syndrome = Syndrome::Nak(NakCode::PsnSequence);
            self.responder.ack = Some(Ack { psn, syndrome });
            ctx.event(|| Event::Nak { qpn: self.qpn, psn, reason: NakReason::Sequence });
            self.activate(ctx);
        }
        Verdict::Drop(DropReason::OutOfSequence)
    }

    /// The acknowledgement that was owed is on its way.
    pub(crate) fn acknowledgement_left<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        let Some(ack) = self.responder.ack.take() else { return };
        self.responder.ack_was_refused = false;
        self.responder.events_told = self.events_told(ctx.shared);
        ctx.shared.counters.acknowledged(ack.syndrome);
        if matches!(ack.syndrome, Syndrome::RnrNak { .. }) {
            self.counters.rnr_naks_sent += 1;
        }
    }

    /// Duplicates are acknowledged or answered again, never executed again, never refused. What is
    /// owed already stays: the duplicate may be a late copy that nothing will follow.
    fn handle_duplicate<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Verdict {
        self.counters.duplicates += 1;
        let (psn, epsn) = (packet.psn, self.responder.epsn);
        let mut end = psn.wrapping_add(1);
        match packet.info.operation {
            Operation::Send | Operation::Write => self.responder.acknowledge_again(psn),
            Operation::ReadRequest => {
                let Some(reth) = packet.datagram.reth() else { return Verdict::Done };
                let request = (reth.va, reth.rkey.0, reth.dma_len);
                let packets = packets_of(reth.dma_len, self.mtu);
                end = psn.wrapping_add(packets);
                // Rule: DuplicateReadAnswered
                if reth.dma_len > MAX_DMA_LEN
                    || !self.responder.replies.push_duplicate_read(psn, request, packets, epsn)
                {
                    return Verdict::Drop(DropReason::Duplicate);
                }
                self.responder.drop_ack_before(psn);
            }
            Operation::CmpSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite => {
                let saved = self.responder.replies.push_duplicate_atomic(psn, epsn);
                // Rule: DuplicateAtomicAnswered
                if !saved {
                    return Verdict::Drop(DropReason::Duplicate);
                }
                self.responder.drop_ack_before(psn);
            }
            _ => return Verdict::Drop(DropReason::Duplicate),
        }
        // The peer went back below the gap: a new loss in its second try must be NAKed anew. Its
        // tries reach the gap. Late copies hardly do, and if each of them brought another NAK for
        // what is on its way, all retries could be spent where nothing is lost.
        // Rule: DuplicateEndsGap
        // Rule: RepetitionReachesGap
        if end == epsn && !self.responder.nak_waits() {
            self.responder.nak_sent = false;
        }
        ctx.shared.counters.duplicate_request += 1;
        self.activate(ctx);
        Verdict::Done
    }

    /// A message goes on with its own kind or ends; nothing interleaves.
    #[inline(always)]
    fn check_opcode_sequence(&mut self, packet: &Packet<'_>) -> Checked {
        let (operation, is_start) = (packet.info.operation, packet.info.position.is_start());
        let follows = match self.responder.message {
            OpenMessage::None => is_start,
            OpenMessage::Send => operation == Operation::Send && !is_start,
            OpenMessage::Write { .. } => operation == Operation::Write && !is_start,
        };
        if !follows && packet.info.position.is_start() && !self.rules.is_reliable {
            // The end of the open message was cut off.
            // Rule: UcBeginsAnywhere
            self.responder.give_up_message();
            return Ok(());
        }
        // Rule: OpcodeSequence
        if follows { Ok(()) } else { Err(Verdict::nak(NakReason::OpcodeSequence)) }
    }

    /// The operation exists here and the QP's access flags allow it.
    #[inline(always)]
    fn check_operation(&self, packet: &Packet<'_>) -> Checked {
        let need = match packet.info.operation {
            Operation::Send => return Ok(()),
            Operation::Write => AccessFlags::REMOTE_WRITE,
            Operation::ReadRequest => AccessFlags::REMOTE_READ,
            _ => Self::rights_of_other(packet)?,
        };
        // Rule: QpAccess
        if self.attr.access.contains(need) {
            Ok(())
        } else {
            Err(Verdict::nak(NakReason::NotAllowed))
        }
    }

    /// READ and atomic depth; a receive WQE for what needs one.
    #[inline(always)]
    pub(in crate::qp) fn check_resources<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked {
        let needs_receive = match packet.info.operation {
            Operation::Send => true,
            Operation::Write => {
                // Rule: WriteImmTakesReceive
                packet.info.trailer() == Trailer::Imm && packet.info.position.is_end()
            }
            _ if self.responder.replies.make_room() => false,
            _ => return Err(Verdict::nak(NakReason::Resources)),
        };
        // The first packet took one for its message, or found that of a message that was given up.
        // Rule: SendTakesReceiveFirst
        if !needs_receive || self.responder.recv.is_some() {
            return Ok(());
        }
        let sges = &mut self.responder.recv_sges;
        match self.receive_source.take(ctx.shared, self.client_slot, sges) {
            Ok(recv) => {
                self.responder.recv = Some(recv);
                Ok(())
            }
            Err(why) => Err(self.without_receive(ctx, why)),
        }
    }

    /// A message needs a receive WQE and cannot have one.
    #[cold]
    fn without_receive<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, why: NoRecv) -> Verdict {
        match why {
            NoRecv::Empty if self.rules.is_reliable => self.send_rnr_nak(ctx),
            NoRecv::Empty => {
                self.responder.give_up_message();
                // Rule: UcNoReceiveDropped
                Verdict::Drop(DropReason::NoReceive)
            }
            NoRecv::Broken { wr_id, index } => {
                self.responder.recv = Some(Recv::broken(wr_id, index));
                Verdict::AfterFlush(Deferred::BadReceive)
            }
        }
    }

    /// No receive WQE: RNR NAK. The packet is not consumed; those behind it are dropped silently.
    fn send_rnr_nak<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> Verdict {
        // Rule: RnrNakPsn
        let psn = self.responder.epsn;
        // Rule: RnrTimer
        let timer = self.attr.min_rnr_timer;
        self.responder.ack = Some(Ack { psn, syndrome: Syndrome::RnrNak { timer } });
        if !self.responder.nak_sent {
            self.responder.dropped_until = psn;
        }
        // Rule: RnrSilencesGap
        self.responder.nak_sent = true;
        ctx.event(|| Event::RnrNak { qpn: self.qpn, psn, timer });
        self.activate(ctx);
        Verdict::Done
    }

    /// FIRST and MIDDLE are full, LAST is not empty, requests without data have none.
    #[inline(always)]
    pub(in crate::qp) fn check_length(&self, packet: &Packet<'_>) -> Checked {
        let pad = packet.bth().pad;
        let allowed =
            packet.info.payload.allows(packet.datagram.payload_len(), pad, self.mtu as usize);
        // Rule: PayloadLength
        if allowed { Ok(()) } else { Err(Verdict::nak(NakReason::Length)) }
    }
}

/// PSNs that a message of `len` bytes uses.
pub(crate) fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_given_up_leaves_its_receive_to_the_next() {
        let fresh = Recv { wr_id: 7, index: 1, room: 4096, filled: 0, sge: 0, in_sge: 0 };
        let recv = Some(Recv { filled: 1024, sge: 1, in_sge: 24, ..fresh });
        let message = OpenMessage::Send;
        let mut responder = Responder { message, recv, ..Responder::default() };
        responder.give_up_message();
        assert_eq!(responder.message, OpenMessage::None);
        assert_eq!(responder.recv, Some(fresh));
    }
}
