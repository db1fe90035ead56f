//! What an accepted request does: data to the delivery batch, completions behind it, replies.

use super::super::Qp;
use super::super::packet::Packet;
use super::super::verdict::{AtomicRequest, Update, Verdict};
use super::replies::ReplyKind;
use super::{Checked, MAX_DMA_LEN, OpenMessage, packets_of};
use crate::batch::{Piece, PieceKind};
use crate::by_reference::Payload;
use crate::event::{NakReason, Tap};
use crate::mr::Target;
use crate::ports::{MemRange, SpaceId};
use crate::shared::Ctx;
use rnic_abi::cqe::{CqeFlags, MAX_CARRIED};
use rnic_abi::verbs::{AccessFlags, WcOpcode, WcStatus};
use roce_wire::{AtomicEth, Operation, Psn, Reth, Trailer};

impl Qp {
    #[inline(always)]
    pub(in crate::qp) fn execute_send<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked {
        let Some(recv) = self.responder.recv else { return Err(Verdict::nak(NakReason::Local)) };
        let len = packet.datagram.payload_len() as u64;
        // Rule: SendFits
        if recv.filled + len > recv.room {
            return Err(Verdict::nak(NakReason::ReceiveTooShort));
        }
        let ends = packet.info.position.is_end();
        let small = ctx.shared.config.carry_small_receives
            && packet.info.position.is_start()
            && ends
            && packet.datagram.payload_len() <= MAX_CARRIED;
        let invalidates = packet.info.trailer() == Trailer::Invalidate;
        if invalidates {
            self.check_invalidation(ctx, packet)?;
        }
        let private = self.scatter(ctx, packet, packet.bytes, small)?;
        if invalidates {
            self.invalidate(ctx, packet);
        }
        self.responder.message = if ends { OpenMessage::None } else { OpenMessage::Send };
        if ends {
            let carried = if private { packet.datagram.payload() } else { &[] };
            // Rule: ReceivedLength
            let total = recv.filled + len;
            let byte_len = u32::try_from(total).unwrap_or(u32::MAX);
            self.deliver(ctx, packet, WcOpcode::Recv, byte_len, carried, 0);
        }
        self.responder.accept(packet.psn, 1, ends, self.must_answer(packet));
        Ok(())
    }

    /// Queues bytes of the packet for the receive SGEs. When `may_carry` and no peer can reach
    /// them, nothing is queued and true is returned: the CQE will carry the data.
    #[inline(always)]
    pub(super) fn scatter<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        bytes: Payload,
        may_carry: bool,
    ) -> Checked<bool> {
        let Some(mut recv) = self.responder.recv else { return Ok(false) };
        let undo = ctx.shared.batch.len();
        let mut left = bytes;
        let mut private = may_carry && left.len() > 0;
        while left.len() > 0 {
            let Some(sge) = self.responder.recv_sges.get(recv.sge).copied() else { break };
            let from = left.take(sge.length - recv.in_sge);
            let len = from.len();
            if len > 0 {
                let va = sge.addr.wrapping_add(u64::from(recv.in_sge));
                let need = AccessFlags::LOCAL_WRITE;
                let Ok(target) =
                    ctx.shared.mrs.check(sge.lkey, self.receive_pd, va, len.into(), need)
                else {
                    ctx.shared.batch.truncate(undo);
                    return Err(Verdict::nak(NakReason::Local));
                };
                private &= target.private;
                let piece = self.piece(packet, PieceKind::Receive, target.space);
                let to = MemRange { addr: target.addr, len };
                ctx.shared.batch.place(Piece { from, to, ..piece });
            }
            recv.in_sge += len;
            if recv.in_sge == sge.length {
                recv.sge += 1;
                recv.in_sge = 0;
            }
        }
        recv.filled += u64::from(bytes.len());
        self.responder.recv = Some(recv);
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
            psn: packet.psn,
            msn: self.responder.msn,
            space,
            from: packet.bytes,
            to: MemRange::default(),
            is_tail: false,
        }
    }

    /// Queues the receive completion behind its data. `sl`: 0, or the type of a datagram's IP
    /// header.
    #[inline(always)]
    pub(super) fn deliver<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        opcode: WcOpcode,
        byte_len: u32,
        carried: &[u8],
        sl: u8,
    ) {
        let Some(recv) = self.responder.recv.take() else { return };
        let mut cqe = self.recv_cqe(ctx.now, recv.wr_id, recv.index, WcStatus::Success);
        // Rule: ReceiveOpcode
        cqe.opcode = opcode;
        cqe.byte_len = byte_len;
        cqe.sl = sl;
        // Rule: ImmediateDelivered
        if packet.info.trailer() == Trailer::Imm {
            cqe.flags |= CqeFlags::IMM;
            cqe.imm_or_key = packet.imm_or_key();
        }
        // Rule: InvalidationTold
        if packet.info.trailer() == Trailer::Invalidate {
            cqe.flags |= CqeFlags::INV;
            cqe.imm_or_key = packet.imm_or_key();
        }
        if let Some(deth) = packet.datagram.deth() {
            // Rule: AreaFlagged
            cqe.flags |= CqeFlags::GRH;
            // Rule: SourceQpTold
            cqe.src_qp = deth.src_qp.value();
        }
        // Rule: SolicitedDelivered
        if packet.bth().solicited {
            cqe.flags |= CqeFlags::SOLICITED;
        }
        if !carried.is_empty() {
            // Its length was checked against MAX_CARRIED.
            let _ = cqe.carry(carried);
        }
        ctx.shared.batch.end_message(self.slot, packet.psn);
        let at = (packet.psn, self.responder.msn);
        ctx.shared.batch.deliver(self.slot, self.recv_cq, at, cqe);
    }

    #[inline(always)]
    pub(in crate::qp) fn execute_write<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked {
        let (va, rkey, left) = self.write_position(ctx, packet)?;
        let len = packet.bytes.len();
        let ends = packet.info.position.is_end();
        // The payloads add up to the DMA length exactly.
        // Rule: WriteTotal
        if len > left || ends != (len == left) {
            return Err(Verdict::nak(NakReason::Length));
        }
        if len > 0 {
            let target = self.check_key(ctx, rkey, va, len, AccessFlags::REMOTE_WRITE)?;
            let piece = self.piece(packet, PieceKind::Write, target.space);
            let to = MemRange { addr: target.addr, len };
            ctx.shared.batch.place(Piece { to, is_tail: ends, ..piece });
        }
        self.responder.message = if ends {
            OpenMessage::None
        } else {
            let left = left.saturating_sub(len);
            OpenMessage::Write { va: va.wrapping_add(len.into()), rkey, left }
        };
        if ends && packet.info.trailer() == Trailer::Imm {
            self.responder.written += u64::from(len);
            let total = u32::try_from(self.responder.written).unwrap_or(u32::MAX);
            self.deliver(ctx, packet, WcOpcode::RecvWriteImm, total, &[], 0);
        } else {
            self.responder.written += u64::from(len);
        }
        self.responder.accept(packet.psn, 1, ends, self.must_answer(packet));
        Ok(())
    }

    #[cold]
    fn check_invalidation<T: Tap>(&self, ctx: &Ctx<'_, T>, packet: &Packet<'_>) -> Checked {
        ctx.shared
            .mrs
            .check_invalidation(packet.imm_or_key(), self.through())
            .map_err(|fault| Verdict::nak(NakReason::Invalidation(fault)))
    }

    /// Takes the key of a window away. Every packet behind this one finds it dead, and the data of
    /// those before it is in place before a completion tells the program.
    #[cold]
    fn invalidate<T: Tap>(&self, ctx: &mut Ctx<'_, T>, packet: &Packet<'_>) {
        // Rule: SendInvalidates
        let _ = ctx.shared.mrs.invalidate(packet.imm_or_key(), self.through());
    }

    /// Where this WRITE packet's data goes: from its RETH, or after the previous packet.
    #[inline(always)]
    fn write_position<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked<(u64, u32, u32)> {
        if let OpenMessage::Write { va, rkey, left } = self.responder.message {
            return Ok((va, rkey, left));
        }
        let reth = self.check_reth(packet)?;
        self.responder.written = 0;
        if needs_key(reth.dma_len) {
            let need = AccessFlags::REMOTE_WRITE;
            self.check_key(ctx, reth.rkey.0, reth.va, reth.dma_len, need)?;
        }
        Ok((reth.va, reth.rkey.0, reth.dma_len))
    }

    pub(super) fn check_reth(&self, packet: &Packet<'_>) -> Result<Reth, NakReason> {
        match packet.datagram.reth() {
            // Rule: MaxDmaLength
            Some(reth) if reth.dma_len <= MAX_DMA_LEN => Ok(reth),
            _ => Err(NakReason::Length),
        }
    }

    #[inline(always)]
    pub(super) fn check_key<T: Tap>(
        &self,
        ctx: &Ctx<'_, T>,
        rkey: u32,
        va: u64,
        len: u32,
        need: AccessFlags,
    ) -> Result<Target, NakReason> {
        ctx.shared
            .mrs
            // Rule: AtomicNeedsRight, ReadNeedsRight, WriteNeedsRight
            .check_remote(rkey, self.through(), va, len.into(), need)
            .map_err(NakReason::Key)
    }

    pub(in crate::qp) fn execute_read<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Checked {
        let reth = self.check_reth(packet)?;
        if needs_key(reth.dma_len) {
            let need = AccessFlags::REMOTE_READ;
            self.check_key(ctx, reth.rkey.0, reth.va, reth.dma_len, need)?;
        }
        let packets = packets_of(reth.dma_len, self.mtu);
        let (va, rkey, len, pd) = (reth.va, reth.rkey.0, reth.dma_len, self.pd);
        let kind = ReplyKind::Read { va, rkey, len, pd };
        self.reply(packet.psn, packets, kind);
        Ok(())
    }

    /// The response acknowledges everything before it, so a waiting ACK is not needed any more. A
    /// waiting NAK stays: it asks for what was dropped behind this request.
    fn reply(&mut self, psn: Psn, packets: u32, kind: ReplyKind) {
        // Rule: MsnCountsAtomics, MsnCountsReads
        self.responder.accept(psn, packets, true, false);
        // Rule: ReplyReplacesAck, ReplyKeepsNak
        if !self.responder.nak_waits() {
            self.responder.ack = None;
        }
        self.responder.replies.push_new(kind, psn, packets);
    }

    pub(super) fn prepare_atomic<T: Tap>(
        &self,
        ctx: &Ctx<'_, T>,
        packet: &Packet<'_>,
    ) -> Result<AtomicRequest, NakReason> {
        let Some(AtomicEth { va, rkey, swap_or_add, compare }) = packet.datagram.atomic() else {
            return Err(NakReason::NotAllowed);
        };
        // Rule: AtomicAlignment
        if !va.is_multiple_of(8) {
            return Err(NakReason::Alignment);
        }
        let target = self.check_key(ctx, rkey.0, va, 8, AccessFlags::REMOTE_ATOMIC)?;
        let update = match packet.info.operation {
            Operation::CmpSwap => Update::Swap { compare, swap: swap_or_add },
            _ => Update::Add(swap_or_add),
        };
        Ok(AtomicRequest { space: target.space, addr: target.addr, update })
    }

    /// The atomic was executed, and is answered so.
    pub(crate) fn finish_atomic<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        psn: Psn,
        answer: ReplyKind,
    ) {
        self.reply(psn, 1, answer);
        self.note_established(ctx);
        self.activate(ctx);
    }
}

/// A request without data touches no memory: neither its key nor its address is looked at.
fn needs_key(dma_len: u32) -> bool {
    // Rule: EmptyNeedsNoKey
    dma_len > 0
}
