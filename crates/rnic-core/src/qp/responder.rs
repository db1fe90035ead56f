//! The responder half: what incoming requests do.
//!
//! Requests run through named checks in the order of IBTA 9.7.4 (PSN, opcode sequence, operation,
//! resources, length, key), and only then change anything. Memory is not touched here: data goes to
//! the [placement](crate::placement) batch, atomics are handed to ingress, which empties the batch
//! first. Nothing is sent here: what is owed stays in `ack` and `replies` until egress comes by.

use super::Qp;
use super::replies::{Replies, ReplyKind};
use super::rq::NoRecv;
use crate::event::{DropReason, Event, NakReason, Tap};
use crate::mr::KeyFault;
use crate::placement::{Piece, PieceKind};
use crate::ports::{MemRange, Range, SpaceId};
use crate::shared::Ctx;
use rnic_abi::cqe::{CqeFlags, MAX_CARRIED};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpAttr, QpState, WcOpcode, WcStatus};
use roce_wire::{
    AtomicEth, HeaderRepr, Msn, NakCode, Opcode, OpcodeInfo, Operation, Psn, Reth, Syndrome,
    Trailer,
};

/// A received packet that found its QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) headers: &'a HeaderRepr,
    pub(crate) info: &'static OpcodeInfo,
    pub(crate) payload: &'a [u8],
    /// Where the payload is in the receive arena.
    pub(crate) range: Range,
}

impl Packet<'_> {
    pub(crate) fn psn(&self) -> Psn {
        self.headers.bth.psn
    }

    fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }

    fn imm_or_key(&self) -> u32 {
        self.headers.imm.map_or(0, |imm| u32::from_ne_bytes(imm.0))
    }
}

/// The multi-packet message in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Message {
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
    message: Message,
    /// Bytes of the current WRITE message so far.
    written: u64,
    /// COMM_EST was raised.
    established: bool,
    /// A NAK for the current gap (sequence or RNR) is out: further packets ahead are dropped.
    nak_sent: bool,
    pub(crate) ack: Option<Ack>,
    pub(crate) replies: Replies,
    /// The NAK that ends the connection, and what precedes it, may still be sent in ERR.
    has_last_words: bool,
}

/// An atomic to be executed once all earlier data is in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRequest {
    pub(crate) space: SpaceId,
    pub(crate) addr: u64,
    /// `None` for fetch-and-add.
    pub(crate) compare: Option<u64>,
    pub(crate) swap_or_add: u64,
}

impl AtomicRequest {
    pub(crate) fn apply(&self, old: u64) -> u64 {
        match self.compare {
            Some(compare) if compare == old => self.swap_or_add,
            Some(_) => old,
            None => old.wrapping_add(self.swap_or_add),
        }
    }
}

/// What ingress has to do after a request was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Nothing.
    Done,
    /// Drop it.
    Drop(DropReason),
    /// Empty the batch, then refuse the request: [`Qp::refuse`].
    Refuse(NakReason),
    /// Empty the batch, then [`Qp::refuse`] for a receive WQE that makes no sense.
    BrokenReceive { wr_id: u64, index: u32 },
    /// Empty the batch, execute, then [`Qp::finish_atomic`].
    Atomic(AtomicRequest),
}

type Checked<T = ()> = Result<T, Step>;

/// Longest DMA length of a RETH.
const MAX_DMA_LEN: u32 = 1 << 31;

impl Responder {
    /// INIT -> RTR.
    pub(crate) fn start(&mut self, attr: &QpAttr) {
        *self = Self { epsn: Psn::new(attr.rq_psn), ..Self::default() };
        self.replies.resize(attr.max_dest_rd_atomic);
    }

    /// SQD -> SQD may change the depth.
    pub(crate) fn resize(&mut self, attr: &QpAttr) {
        self.replies.resize(attr.max_dest_rd_atomic);
    }

    /// The QP goes to ERR: only last words may follow.
    pub(crate) fn stop(&mut self) {
        self.message = Message::None;
        if !self.has_last_words {
            self.ack = None;
            self.replies.clear();
        }
    }

    /// Is there anything to send?
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.ack.is_some() || !self.replies.is_empty()
    }

    /// The next packet in sequence was accepted. A NAK that is not sent yet is out of date: its
    /// place takes an ACK of everything so far.
    fn accept(&mut self, psn: Psn, packets: u32, ends_message: bool, ack_req: bool) {
        let ahead = if cfg!(mutant = "psn_wrap") {
            Psn::new(psn.value().saturating_add(packets).min(0x00ff_ffff))
        } else {
            psn.wrapping_add(packets)
        };
        self.epsn = ahead;
        self.nak_sent = false;
        if ends_message {
            self.msn = self.msn.wrapping_add(1);
        }
        let nak_waits = self.ack.is_some_and(|ack| !matches!(ack.syndrome, Syndrome::Ack { .. }));
        if ack_req || nak_waits {
            let psn = if cfg!(mutant = "ack_off_by_one") { psn.wrapping_add(1) } else { psn };
            self.ack = Some(Ack { psn, syndrome: Syndrome::ACK });
        }
    }
}

impl Qp {
    /// Looks at one request packet.
    pub(crate) fn handle_request<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Step {
        let ahead = packet.psn().distance_from(self.responder.epsn);
        if ahead > 0 {
            return self.handle_gap(ctx);
        }
        if ahead < 0 && !cfg!(mutant = "skip_duplicate_check") {
            return self.handle_duplicate(ctx, packet);
        }
        match self.execute_request(ctx, packet) {
            Ok(step) | Err(step) => step,
        }
    }

    /// The packet in sequence: all checks, then the effect.
    fn execute_request<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked<Step> {
        self.note_established(ctx);
        self.check_opcode_sequence(packet)?;
        self.check_operation(packet)?;
        self.check_resources(ctx, packet)?;
        self.check_length(packet)?;
        match packet.info.operation {
            Operation::Send => self.execute_send(ctx, packet)?,
            Operation::Write => self.execute_write(ctx, packet)?,
            Operation::ReadRequest => self.execute_read(ctx, packet)?,
            _ => return self.prepare_atomic(ctx, packet),
        }
        ctx.activate(self);
        Ok(Step::Done)
    }

    /// COMM_EST: the first good packet while in RTR.
    fn note_established<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if self.attr.state == QpState::Rtr && !self.responder.established {
            self.responder.established = true;
            ctx.qp_event(self, AsyncEventType::CommEst);
        }
    }

    /// PSN ahead of the expected one: one NAK per gap, with the expected PSN in it.
    fn handle_gap<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> Step {
        self.counters.out_of_sequence += 1;
        if !self.responder.nak_sent {
            self.responder.nak_sent = true;
            let psn = self.responder.epsn;
            let syndrome = Syndrome::Nak(NakCode::PsnSequence);
            self.responder.ack = Some(Ack { psn, syndrome });
            ctx.shared.counters.nak_sent(NakReason::Sequence);
            ctx.event(|| Event::Nak { qpn: self.qpn, psn, reason: NakReason::Sequence });
            ctx.activate(self);
        }
        Step::Drop(DropReason::OutOfSequence)
    }

    /// Duplicates are acknowledged or answered again, never executed again, never refused.
    fn handle_duplicate<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Step {
        self.counters.duplicates += 1;
        let psn = packet.psn();
        match packet.info.operation {
            Operation::Send | Operation::Write => {
                let acked = match self.responder.replies.first_after(psn) {
                    Some(first) => first,
                    None => self.responder.epsn,
                };
                let psn = acked.wrapping_sub(1);
                self.responder.ack = Some(Ack { psn, syndrome: Syndrome::ACK });
            }
            Operation::ReadRequest => {
                let Some(reth) = packet.headers.reth else { return Step::Done };
                let request = (reth.va, reth.rkey.0, reth.dma_len);
                let packets = packets_of(reth.dma_len, self.mtu);
                if reth.dma_len > MAX_DMA_LEN
                    || !self.responder.replies.push_duplicate_read(psn, request, packets)
                {
                    return Step::Drop(DropReason::Duplicate);
                }
                self.responder.ack = None;
            }
            Operation::CmpSwap | Operation::FetchAdd => {
                if !self.responder.replies.push_duplicate_atomic(psn) {
                    return Step::Drop(DropReason::Duplicate);
                }
                self.responder.ack = None;
            }
            _ => return Step::Drop(DropReason::Duplicate),
        }
        // The peer went back below the gap: a new loss in its second try must be NAKed anew.
        self.responder.nak_sent = false;
        ctx.shared.counters.duplicate_request += 1;
        ctx.activate(self);
        Step::Done
    }

    /// A message goes on with its own kind or ends; nothing interleaves.
    fn check_opcode_sequence(&self, packet: &Packet<'_>) -> Checked {
        let follows = match (packet.info.operation, self.responder.message) {
            (Operation::Send, Message::Send) | (Operation::Write, Message::Write { .. }) => {
                !packet.info.position.is_start()
            }
            (_, Message::None) => packet.info.position.is_start(),
            _ => false,
        };
        if follows { Ok(()) } else { Err(Step::Refuse(NakReason::OpcodeSequence)) }
    }

    /// The operation exists here and the QP's access flags allow it.
    fn check_operation(&self, packet: &Packet<'_>) -> Checked {
        let need = match packet.info.operation {
            Operation::Send if packet.info.trailer() != Trailer::Invalidate => return Ok(()),
            Operation::Write => AccessFlags::REMOTE_WRITE,
            Operation::ReadRequest => AccessFlags::REMOTE_READ,
            Operation::CmpSwap | Operation::FetchAdd => AccessFlags::REMOTE_ATOMIC,
            _ => return Err(Step::Refuse(NakReason::NotAllowed)),
        };
        if self.attr.access.contains(need) {
            Ok(())
        } else {
            Err(Step::Refuse(NakReason::NotAllowed))
        }
    }

    /// READ and atomic depth; a receive WQE for what needs one.
    fn check_resources<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Checked {
        let position = packet.info.position;
        let needs_receive = match packet.info.operation {
            Operation::Send => position.is_start(),
            Operation::Write => position.is_end() && packet.info.trailer() == Trailer::Imm,
            _ if self.responder.replies.make_room() => false,
            _ => return Err(Step::Refuse(NakReason::Resources)),
        };
        if !needs_receive {
            return Ok(());
        }
        match self.rq.take(&ctx.shared.clients, self.client_slot) {
            Ok(()) => Ok(()),
            Err(NoRecv::Empty) => Err(self.refuse_for_now(ctx)),
            Err(NoRecv::Broken { wr_id, index }) => Err(Step::BrokenReceive { wr_id, index }),
        }
    }

    /// No receive WQE: RNR NAK. The packet is not consumed; those behind it are dropped silently.
    fn refuse_for_now<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> Step {
        let psn = self.responder.epsn;
        let timer = self.attr.min_rnr_timer;
        self.responder.ack = Some(Ack { psn, syndrome: Syndrome::RnrNak { timer } });
        self.responder.nak_sent = true;
        self.counters.rnr_naks_sent += 1;
        ctx.shared.counters.out_of_buffer += 1;
        ctx.event(|| Event::RnrNak { qpn: self.qpn, psn, timer });
        ctx.activate(self);
        Step::Done
    }

    /// FIRST and MIDDLE are full, LAST is not empty, requests without data have none.
    fn check_length(&self, packet: &Packet<'_>) -> Checked {
        let pad = packet.headers.bth.pad;
        if packet.info.payload.allows(packet.payload.len(), pad, self.mtu as usize) {
            Ok(())
        } else {
            Err(Step::Refuse(NakReason::Length))
        }
    }

    fn execute_send<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Checked {
        let Some(recv) = self.rq.current else { return Err(Step::Refuse(NakReason::Local)) };
        let len = packet.payload.len() as u64;
        if recv.filled + len > recv.room {
            return Err(Step::Refuse(NakReason::ReceiveTooShort));
        }
        let ends = packet.info.position.is_end();
        let small = ctx.shared.config.carry_small_receives
            && packet.info.position.is_start()
            && ends
            && packet.payload.len() <= MAX_CARRIED;
        let private = self.scatter(ctx, packet, small)?;
        self.responder.message = if ends { Message::None } else { Message::Send };
        if ends {
            let carried = if private { packet.payload } else { &[] };
            let byte_len = u32::try_from(recv.filled + len).unwrap_or(u32::MAX);
            self.deliver(ctx, packet, WcOpcode::Recv, byte_len, carried);
        }
        self.responder.accept(packet.psn(), 1, ends, packet.headers.bth.ack_req);
        Ok(())
    }

    /// Queues the payload for the receive SGEs. When `may_carry` and no peer can reach them,
    /// nothing is queued and true is returned: the CQE will carry the data.
    fn scatter<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        may_carry: bool,
    ) -> Checked<bool> {
        let Some(mut recv) = self.rq.current else { return Ok(false) };
        let undo = ctx.shared.batch.len();
        let mut from = packet.range;
        let mut private = may_carry && from.len > 0;
        while from.len > 0 {
            let Some(sge) = self.rq.sges().get(recv.sge).copied() else { break };
            let len = from.len.min(sge.length - recv.in_sge);
            if len > 0 {
                let va = sge.addr.wrapping_add(u64::from(recv.in_sge));
                let need = AccessFlags::LOCAL_WRITE;
                let Ok(target) = ctx.shared.mrs.check(sge.lkey, self.pd, va, len.into(), need)
                else {
                    ctx.shared.batch.truncate(undo);
                    return Err(Step::Refuse(NakReason::Local));
                };
                private &= target.private;
                let piece = self.piece(packet, PieceKind::Receive, target.space);
                ctx.shared.batch.place(Piece {
                    from: Range { len, ..from },
                    to: MemRange { addr: target.addr, len },
                    ..piece
                });
            }
            recv.in_sge += len;
            from = Range { offset: from.offset + len, len: from.len - len };
            if recv.in_sge == sge.length {
                recv.sge += 1;
                recv.in_sge = 0;
            }
        }
        recv.filled += u64::from(packet.range.len);
        self.rq.current = Some(recv);
        if private {
            ctx.shared.batch.truncate(undo);
        }
        Ok(private)
    }

    fn piece(&self, packet: &Packet<'_>, kind: PieceKind, space: SpaceId) -> Piece {
        Piece {
            slot: self.slot,
            qpn: self.qpn,
            kind,
            psn: packet.psn(),
            msn: self.responder.msn,
            space,
            from: packet.range,
            to: MemRange::default(),
            is_tail: false,
        }
    }

    /// Queues the receive completion behind its data.
    fn deliver<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        opcode: WcOpcode,
        byte_len: u32,
        carried: &[u8],
    ) {
        let Some(recv) = self.rq.current.take() else { return };
        let mut cqe = self.recv_cqe(ctx.now, recv.wr_id, recv.index, WcStatus::Success);
        cqe.opcode = opcode;
        cqe.byte_len = byte_len;
        if packet.info.trailer() == Trailer::Imm {
            cqe.flags |= CqeFlags::IMM;
            cqe.imm_or_key = packet.imm_or_key();
        }
        if packet.headers.bth.solicited {
            cqe.flags |= CqeFlags::SOLICITED;
        }
        if !carried.is_empty() {
            // Its length was checked against MAX_CARRIED.
            let _ = cqe.carry(carried);
        }
        ctx.shared.batch.end_message(self.slot, packet.psn());
        ctx.shared.batch.deliver(self.slot, cqe);
    }

    fn execute_write<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Checked {
        let (va, rkey, left) = self.write_position(ctx, packet)?;
        let len = packet.range.len;
        let ends = packet.info.position.is_end();
        // The payloads add up to the DMA length exactly.
        if len > left || ends != (len == left) {
            return Err(Step::Refuse(NakReason::Length));
        }
        if len > 0 {
            let target = self.check_key(ctx, rkey, va, len, AccessFlags::REMOTE_WRITE)?;
            let piece = self.piece(packet, PieceKind::Write, target.space);
            // Planted bug: the last packet of a WRITE is acknowledged but not stored.
            let lost = cfg!(mutant = "lost_tail_write") && ends && !packet.info.position.is_start();
            if !lost {
                let to = MemRange { addr: target.addr, len };
                ctx.shared.batch.place(Piece { to, is_tail: ends, ..piece });
            }
        }
        self.responder.message = if ends {
            Message::None
        } else {
            Message::Write { va: va.wrapping_add(len.into()), rkey, left: left - len }
        };
        if ends && packet.info.trailer() == Trailer::Imm {
            self.responder.written += u64::from(len);
            let total = u32::try_from(self.responder.written).unwrap_or(u32::MAX);
            self.deliver(ctx, packet, WcOpcode::RecvWriteImm, total, &[]);
        } else {
            self.responder.written += u64::from(len);
        }
        self.responder.accept(packet.psn(), 1, ends, packet.headers.bth.ack_req);
        Ok(())
    }

    /// Where this WRITE packet's data goes: from its RETH, or after the previous packet.
    fn write_position<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked<(u64, u32, u32)> {
        if let Message::Write { va, rkey, left } = self.responder.message {
            return Ok((va, rkey, left));
        }
        let reth = self.check_reth(packet)?;
        self.responder.written = 0;
        if reth.dma_len > 0 {
            let need = AccessFlags::REMOTE_WRITE;
            self.check_key(ctx, reth.rkey.0, reth.va, reth.dma_len, need)?;
        }
        Ok((reth.va, reth.rkey.0, reth.dma_len))
    }

    fn check_reth(&self, packet: &Packet<'_>) -> Checked<Reth> {
        match packet.headers.reth {
            Some(reth) if reth.dma_len <= MAX_DMA_LEN => Ok(reth),
            _ => Err(Step::Refuse(NakReason::Length)),
        }
    }

    fn check_key<T: Tap>(
        &self,
        ctx: &Ctx<'_, T>,
        rkey: u32,
        va: u64,
        len: u32,
        need: AccessFlags,
    ) -> Checked<crate::mr::Target> {
        ctx.shared
            .mrs
            .check(rkey, self.pd, va, len.into(), need)
            .map_err(|fault: KeyFault| Step::Refuse(NakReason::Key(fault)))
    }

    fn execute_read<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) -> Checked {
        let reth = self.check_reth(packet)?;
        if reth.dma_len > 0 {
            let need = AccessFlags::REMOTE_READ;
            self.check_key(ctx, reth.rkey.0, reth.va, reth.dma_len, need)?;
        }
        let packets = packets_of(reth.dma_len, self.mtu);
        let kind = ReplyKind::Read { va: reth.va, rkey: reth.rkey.0, len: reth.dma_len };
        self.reply(packet.psn(), packets, kind);
        Ok(())
    }

    /// The response acknowledges everything before it, so a waiting ACK is not needed any more.
    fn reply(&mut self, psn: Psn, packets: u32, kind: ReplyKind) {
        self.responder.accept(psn, packets, true, false);
        self.responder.ack = None;
        self.responder.replies.push_new(kind, psn, packets);
    }

    fn prepare_atomic<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked<Step> {
        let Some(AtomicEth { va, rkey, swap_or_add, compare }) = packet.headers.atomic else {
            return Err(Step::Refuse(NakReason::NotAllowed));
        };
        if !va.is_multiple_of(8) {
            return Err(Step::Refuse(NakReason::Alignment));
        }
        let target = self.check_key(ctx, rkey.0, va, 8, AccessFlags::REMOTE_ATOMIC)?;
        let compare = (packet.opcode() == Opcode::RcCmpSwap).then_some(compare);
        let (space, addr) = (target.space, target.addr);
        Ok(Step::Atomic(AtomicRequest { space, addr, compare, swap_or_add }))
    }

    /// The atomic was executed and returned `value`.
    pub(crate) fn finish_atomic<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, psn: Psn, value: u64) {
        self.reply(psn, 1, ReplyKind::Atomic { value });
        ctx.activate(self);
    }

    /// Refuses the request at the expected PSN for good: NAK, error completion, ERR.
    pub(crate) fn refuse<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, reason: NakReason) {
        if !self.receives() {
            return;
        }
        let status = match reason {
            NakReason::ReceiveTooShort => WcStatus::LocLenErr,
            NakReason::Key(_) | NakReason::RemoteMemory => WcStatus::RemAccessErr,
            NakReason::Local => WcStatus::LocProtErr,
            _ => WcStatus::RemInvReqErr,
        };
        let reported = self.fail_current_receive(ctx, status);
        self.end_with_nak(ctx, self.responder.epsn, reason, reported);
    }

    /// Refuses the request at the expected PSN because the receive WQE makes no sense.
    pub(crate) fn refuse_receive<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, wr_id: u64, index: u32) {
        if !self.receives() {
            return;
        }
        let cqe = self.recv_cqe(ctx.now, wr_id, index, WcStatus::LocQpOpErr);
        ctx.complete(self.recv_cq, &cqe);
        self.rq.release(index);
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
        self.responder.epsn = piece.psn;
        self.responder.msn = piece.msn;
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
        self.responder.ack = Some(Ack { psn, syndrome: Syndrome::Nak(code) });
        self.responder.has_last_words = true;
        ctx.shared.counters.nak_sent(reason);
        ctx.event(|| Event::Nak { qpn: self.qpn, psn, reason });
        self.enter_error(ctx);
        if !reported {
            ctx.qp_event(self, event);
        }
    }
}

/// PSNs that a message of `len` bytes uses.
pub(crate) fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu.max(1)).max(1)
}
