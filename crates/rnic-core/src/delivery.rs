//! Delivery: payload is written to application memory, then completions become visible, in order.
//!
//! When memory faults, everything before the faulting piece stands, later pieces of that QP are
//! forgotten, and the QP fails at that packet; other QPs notice nothing.

use crate::batch::{Batch, Delivery, Fault, PieceKind};
use crate::event::{Event, Tap};
use crate::ports::Dma;
use crate::qp::Qp;
use crate::shared::Ctx;
use crate::slab::Slab;
use rnic_abi::verbs::WcStatus;

/// Writes everything queued, makes the completions visible, and fails QPs whose memory faulted.
pub(crate) fn flush<D: Dma, T: Tap>(
    ctx: &mut Ctx<'_, T>,
    qps: &mut Slab<Qp>,
    dma: &mut D,
    arena: &[u8],
) {
    if ctx.shared.batch.is_empty() {
        return;
    }
    let mut batch = std::mem::replace(&mut ctx.shared.batch, Batch::detached());
    ctx.shared.placed = true;
    // Rule: DataBeforeCompletion
    batch.write_all(dma, arena);
    for piece in &batch.pieces {
        ctx.event(|| Event::Placed { qpn: piece.qpn, psn: piece.psn, bytes: piece.to.len });
    }
    for fault in &batch.faults {
        take_back(qps, &batch, fault);
    }
    for delivery in &batch.deliveries {
        let fault = batch.faults.iter().find(|fault| fault.piece.slot == delivery.slot);
        if fault.is_none_or(|fault| delivery.after <= fault.at) {
            deliver(ctx, qps, delivery, delivery.cqe.status);
        }
    }
    for fault in &batch.faults {
        fail(ctx, qps, &batch, fault);
    }
    batch.clear();
    ctx.shared.batch = batch;
}

#[inline(always)]
fn deliver<T: Tap>(
    ctx: &mut Ctx<'_, T>,
    qps: &mut Slab<Qp>,
    delivery: &Delivery,
    status: WcStatus,
) {
    let Some(qp) = qps.by_slot_mut(delivery.slot as usize) else { return };
    let mut cqe = delivery.cqe;
    cqe.status = status;
    // A completion before it was lost at another queue of the domain, and the peer hears so.
    // Rule: XrcLostEndsBurst
    if qp.rules.names_srq && qp.has_undone(delivery.psn) {
        cqe.status = WcStatus::WrFlushErr;
    }
    // The slot is free before the completion is visible: a program that polls it may post at once.
    qp.receive_source.release(cqe.wqe_index);
    ctx.shared.clients.note_activity(qp.client_slot, ctx.now);
    let fits = ctx.complete(delivery.cq, &cqe);
    if !fits && cqe.status == WcStatus::Success {
        qp.completion_lost(ctx, delivery);
    }
}

/// What answers a READ of the QP at the fault or behind it is not in its memory, although later
/// packets of the burst may have acknowledged it.
fn take_back(qps: &mut Slab<Qp>, batch: &Batch, fault: &Fault) {
    let slot = fault.piece.slot;
    let lost = batch.pieces.get(fault.at..).unwrap_or(&[]).iter();
    let answer = lost.filter(|p| p.slot == slot).find(|p| p.kind == PieceKind::ReadResponse);
    if let Some(answer) = answer
        && let Some(qp) = qps.by_slot_mut(slot as usize)
    {
        qp.step_back(answer.psn);
    }
}

/// The QP fails at the packet of the fault: completions behind it become flushes, in order.
fn fail<T: Tap>(ctx: &mut Ctx<'_, T>, qps: &mut Slab<Qp>, batch: &Batch, fault: &Fault) {
    let piece = &fault.piece;
    let Some(qp) = qps.by_slot_mut(piece.slot as usize) else { return };
    let qpn = qp.qpn;
    ctx.event(|| Event::DmaFault { qpn, psn: piece.psn });
    // The receive WQE being filled is the first one behind the fault.
    let mut status = match piece.kind {
        PieceKind::Receive => WcStatus::LocProtErr,
        _ => WcStatus::WrFlushErr,
    };
    let mut told = piece.kind == PieceKind::Receive;
    // Rule: FaultFlushesBurst
    let is_behind = |d: &&Delivery| d.slot == piece.slot && d.after > fault.at;
    for (nth, delivery) in batch.deliveries.iter().filter(is_behind).enumerate() {
        // The packet that failed took this one, for its immediate data. A later one of the same
        // PSN is another message of an unreliable connection.
        let took = nth == 0 && piece.kind == PieceKind::Write && delivery.psn == piece.psn;
        deliver(ctx, qps, delivery, if took { WcStatus::LocAccessErr } else { status });
        told |= took;
        status = WcStatus::WrFlushErr;
    }
    let Some(qp) = qps.by_slot_mut(piece.slot as usize) else { return };
    if piece.kind == PieceKind::ReadResponse {
        qp.fail_request(ctx, WcStatus::LocProtErr);
        return;
    }
    told |= qp.receives() && qp.fail_current_receive(ctx, status);
    qp.memory_failed(ctx, piece, told);
}
