//! Egress: the only place from which anything leaves.
//!
//! Active QPs are visited in [turns](crate::active), each with a byte budget. A visit plans
//! packets (replies, then requests and the ACK or NAK), reserves trains for them, writes
//! headers, gathers the payload with as few [`Dma::read`] calls as possible, seals, and only then
//! moves the QP's state. When memory faults, the trains from the fault on are cancelled and the
//! state simply does not move past them.
//!
//! * `fill`, `headers`: the headers of planned packets.
//! * `gather`: the payloads, by copy or by reference.

mod fill;
mod gather;
mod headers;

use crate::command::Path;
use crate::event::{Event, Tap};
use crate::ids::HopId;
use crate::ports::{Dma, Host, Ports, Range, TxIpId, TxSlot, TxTrain, Wire, WireCaps};
use crate::qp::Qp;
use crate::qp::plan::{AddressId, Budget, Segment, Source, train_from};
use crate::qp::requester::sq::Work;
use crate::qpn::shard_of;
use crate::shared::Ctx;
use crate::slab::Slab;
use gather::{Gather, Place, Unreadable};
use headers::{dest_of, info_of};
use rnic_abi::verbs::WcStatus;

/// Packets of one visit.
const MAX_SEGMENTS: usize = 128;

/// QPs that a turn passes by in which the wire took nothing.
const PASSED_BY: usize = 16;

/// The last train of a plan may wait for the next visit where it is at most so small a part.
const LITTLE: usize = 8;

/// Visits beyond one for each active QP.
const EXTRA_VISITS: usize = 3;

/// A reserved train.
#[derive(Clone, Copy, Debug)]
struct Train {
    slot: TxSlot,
    /// Its segments in the plan.
    first: usize,
    end: usize,
    /// That of all its segments.
    address: AddressId,
    ip_id: u16,
    /// It stays on this host.
    is_local: bool,
    /// Its payloads may stay where they are: see [`by_reference`](crate::by_reference).
    may_refer: bool,
}

/// Scratch memory of egress.
#[derive(Debug)]
pub(crate) struct Egress {
    plan: Vec<Segment>,
    trains: Vec<Train>,
    gather: Gather,
    ip_id: u16,
    shard: u8,
    /// Bytes that the visit may send.
    allowed: u32,
    /// The next packet, where the budget ended the plan before it.
    follows: Option<Segment>,
    /// The QP whose visit the wire cut short, and the bytes that it may still send.
    cut_short: Option<(u32, u32)>,
    /// The way that the wire refused a train for, while others are passed by: local or not.
    stuck: Option<bool>,
}

/// How a visit ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Visit {
    /// Nothing more to do for now.
    Done,
    /// The budget ended it.
    More,
    /// The wire takes no more in this turn.
    WireFull,
}

/// Result of the transmit stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Transmitted {
    pub(crate) worked: bool,
    pub(crate) more: bool,
}

impl Egress {
    pub(crate) fn new(shard: u8) -> Self {
        Self {
            plan: Vec::with_capacity(MAX_SEGMENTS),
            trains: Vec::with_capacity(MAX_SEGMENTS),
            gather: Gather::new(),
            ip_id: 0,
            shard,
            allowed: 0,
            follows: None,
            cut_short: None,
            stuck: None,
        }
    }

    /// Visits active QPs until the turn's budget or the wire's room is used up.
    pub(crate) fn transmit<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        qps: &mut Slab<Qp>,
        ports: &mut Ports<'_, W, D, H>,
    ) -> Transmitted {
        let caps = ports.wire.caps();
        let sent_before = ctx.shared.counters.tx_bytes;
        let limit = u64::from(ctx.shared.config.turn_bytes);
        // A lone QP may have several turns, as long as the budget lasts.
        let mut visits = ctx.shared.active.len() + EXTRA_VISITS;
        let mut result = Transmitted::default();
        let mut mads_wait = false;
        if !ctx.shared.outbox.is_empty() {
            result.worked = true;
            mads_wait = !ctx.send_management(ports.wire, &mut self.ip_id);
        }
        while visits > 0 && ctx.shared.counters.tx_bytes - sent_before < limit {
            visits -= 1;
            let Some(slot) = ctx.shared.active.pop_front() else { break };
            let Some(qp) = qps.by_slot_mut(slot as usize) else { continue };
            result.worked = true;
            qp.is_active = false;
            let before = ctx.shared.counters.tx_bytes;
            let visit = self.visit(ctx, qp, ports, &caps);
            self.cut_short = None;
            match visit {
                Visit::Done => {}
                Visit::More => qp.activate(ctx),
                Visit::WireFull => {
                    let sent = ctx.shared.counters.tx_bytes - before;
                    self.keep_turn(ctx, qp, u32::try_from(sent).unwrap_or(u32::MAX));
                    if ctx.shared.counters.tx_bytes == sent_before {
                        let is_local = qp.is_local();
                        self.pass_by(ctx, qps, ports, is_local);
                    }
                    break;
                }
            }
        }
        result.more = mads_wait || !ctx.shared.active.is_empty();
        // Also when nothing is new: the link may not have taken everything last time.
        ports.wire.submit();
        result
    }

    /// The wire cut its visit short: it goes on next time. Where others wait, only until it has
    /// sent what one visit may: a slow wire cuts every visit short.
    fn keep_turn<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, qp: &mut Qp, sent: u32) {
        if qp.is_active {
            // It has entered the error state on the way.
            return;
        }
        if !ctx.shared.active.is_empty() {
            let left = self.allowed.saturating_sub(sent);
            if left == 0 {
                qp.activate(ctx);
                return;
            }
            self.cut_short = Some((qp.slot, left));
        }
        qp.is_active = true;
        ctx.shared.active.push_front(qp.client_slot, qp.slot);
    }

    /// The wire took nothing of the QP whose turn it is: some of those behind it are looked at all
    /// the same. What takes another way may leave, and a QP that waits for the same one must know
    /// that it waits: a wire may stay like that for ever.
    fn pass_by<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        qps: &mut Slab<Qp>,
        ports: &mut Ports<'_, W, D, H>,
        is_local: bool,
    ) {
        let caps = ports.wire.caps();
        self.stuck = Some(is_local);
        for _ in 0..PASSED_BY.min(ctx.shared.active.len() - 1) {
            let Some(slot) = ctx.shared.active.glance() else { break };
            let Some(qp) = qps.by_slot_mut(slot as usize) else { continue };
            // Each datagram may go another way.
            if qp.is_local() != is_local || !qp.rules.is_connected {
                self.visit(ctx, qp, ports, &caps);
            } else if qp.flushes_sends() {
                qp.flush_some(ctx);
            } else {
                self.plan.clear();
                let mut least = Budget::new(1, 1);
                qp.plan_requests(ctx, &mut least, &mut self.plan);
                qp.note_refused(ctx, !self.plan.is_empty());
            }
        }
        self.stuck = None;
    }

    fn visit<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        qp: &mut Qp,
        ports: &mut Ports<'_, W, D, H>,
        caps: &WireCaps,
    ) -> Visit {
        let flushing = qp.flushes_sends() && qp.flush_some(ctx);
        if qp.rules.is_connected && qp.path.is_none() {
            return if flushing { Visit::More } else { Visit::Done };
        }
        let budget_ended = self.plan_visit(ctx, qp, caps);
        let more = budget_ended | flushing;
        if self.plan.is_empty() {
            return if more { Visit::More } else { Visit::Done };
        }
        let reserved = self.reserve(ctx, ports.wire, caps, qp);
        let full = reserved < self.plan.len();
        if full {
            let refused = &self.plan[reserved..];
            qp.responder.ack_was_refused |= refused.iter().any(|s| s.source == Source::Ack);
            qp.note_refused(ctx, refused.iter().any(Segment::is_request));
            self.plan.truncate(reserved);
        }
        self.write_headers(ctx.shared.config.profile, qp, ports.wire);
        let fault = self.read_payloads(ctx, qp, ports.wire, ports.dma).err();
        if let Some(fault) = fault {
            self.give_up_from(ctx, qp, ports.wire, fault);
        }
        self.seal(ctx, qp, ports.wire, caps);
        self.commit(ctx, qp);
        match (full, more || fault.is_some()) {
            (true, _) => Visit::WireFull,
            (false, true) => Visit::More,
            (false, false) => Visit::Done,
        }
    }

    /// What one visit may send. Loopback traffic gains nothing from leaving early: where only this
    /// QP and its peer on this device are active, it is the budget of the whole turn, so that all
    /// copies are made in one call.
    fn budget<T: Tap>(&self, ctx: &Ctx<'_, T>, qp: &Qp) -> Budget {
        let config = &ctx.shared.config;
        let bytes = if let Some((_, left)) = self.cut_short.filter(|(slot, _)| *slot == qp.slot) {
            left
        } else if qp.is_local() && ctx.shared.active.len() < 2 && self.is_to_self(qp) {
            config.turn_bytes
        } else {
            config.visit_bytes
        };
        // One is for the acknowledgement.
        Budget::new(bytes, MAX_SEGMENTS - 1)
    }

    /// The peer is a queue pair of this engine, if it is one of this device.
    fn is_to_self(&self, qp: &Qp) -> bool {
        qp.rules.is_connected && shard_of(qp.dest_qpn()) == self.shard
    }

    /// Where datagrams of the plan go. Returns the end of those that are for the same engine as the
    /// first, and whether it is this one: a kernel leads a whole train to one engine.
    #[inline(never)]
    fn note_way(&self, qp: &mut Qp, hop: HopId, (first, end): (usize, usize)) -> (usize, bool) {
        qp.note_way(hop);
        let mut shards = self.plan[first..end].iter().map(|segment| shard_of(dest_of(qp, segment)));
        let shard = shards.next();
        let same = 1 + shards.take_while(|other| Some(*other) == shard).count();
        (first + same, shard == Some(self.shard))
    }

    /// Plans what one visit may send. Returns true when the budget ended it.
    fn plan_visit<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, qp: &mut Qp, caps: &WireCaps) -> bool {
        self.plan.clear();
        let mut budget = self.budget(ctx, qp);
        self.allowed = budget.bytes;
        let ended = self.plan(&mut budget, ctx, qp, caps);
        self.follows = budget.left_out;
        ended
    }

    /// What may leave now, in the order it must leave. Returns true when the budget ended it.
    fn plan<T: Tap>(
        &mut self,
        budget: &mut Budget,
        ctx: &mut Ctx<'_, T>,
        qp: &mut Qp,
        caps: &WireCaps,
    ) -> bool {
        if qp.responder.owes() && ctx.shared.config.profile.tells_credits() {
            qp.refresh_receives(ctx.shared);
        }
        // Neither half may keep the other from sending, however much it has to send.
        let requests_first = qp.requests_due && qp.responder.replies.len() > 0;
        if requests_first && qp.plan_requests(ctx, budget, &mut self.plan) {
            return true;
        }
        // Rule: AnswersInOrder
        if qp.plan_replies(budget, &mut self.plan) {
            return true;
        }
        // Where trains are possible, an ACK behind the requests costs next to nothing: it is the
        // last, shorter datagram of a train. Without trains it leaves first, so that the peer has
        // the completion of its message before the reply to it.
        let joins = caps.max_segments > 1 && qp.ack_may_be_last(ctx.shared);
        if !joins {
            qp.plan_ack(&mut self.plan);
        }
        let more = !requests_first && qp.plan_requests(ctx, budget, &mut self.plan);
        if joins {
            qp.plan_ack(&mut self.plan);
        }
        more
    }

    /// Cuts the plan into trains of equal datagrams (the last may be shorter) and reserves them.
    /// The last train may [wait](Self::may_wait) for the next visit. Returns how many segments
    /// found room.
    fn reserve<W: Wire, T: Tap>(
        &mut self,
        ctx: &Ctx<'_, T>,
        wire: &mut W,
        caps: &WireCaps,
        qp: &mut Qp,
    ) -> usize {
        self.trains.clear();
        let mut to_self = self.is_to_self(qp);
        let mut first = 0;
        while let Some(head) = self.plan.get(first) {
            let Segment { address, datagram_len: segment_len, .. } = *head;
            let Some(Path { flow, hop, .. }) = qp.path_to(&ctx.shared.ahs, address).copied() else {
                break;
            };
            let (mut end, mut last_len) = train_from(&self.plan, first, head, caps);
            if !qp.rules.is_connected {
                (end, to_self) = self.note_way(qp, hop, (first, end));
                last_len = self.plan[end - 1].datagram_len;
                // A short datagram would take the room that a long train waits for, again and
                // again.
                if self.stuck == Some(qp.is_local()) {
                    break;
                }
            }
            let is_last = end == self.plan.len() && first > 0;
            if is_last && self.may_wait(ctx, qp, (first, end), caps) {
                self.plan.truncate(first);
                break;
            }
            let segments = u32::try_from(end - first).unwrap_or(u32::MAX);
            let ip_id = self.ip_id;
            let train = TxTrain { flow, hop, segments, segment_len, last_len, ip_id, to_self };
            let Some(slot) = wire.reserve(&train) else { break };
            self.ip_id = self.ip_id.wrapping_add(u16::try_from(segments).unwrap_or(1));
            // A send that nothing acknowledges is complete when it leaves: its program may change
            // the memory before the peer has it.
            // Rule: UcSendCopies
            let may_refer = slot.is_internal && qp.rules.is_reliable;
            let is_local = hop == HopId::LOCAL;
            self.trains.push(Train { slot, first, end, address, ip_id, is_local, may_refer });
            first = end;
        }
        first
    }

    /// Whether the last train is left to the next visit, which can fill it: trains cost by their
    /// number. The packet that follows must fit it, and be of the same half: the next visit may
    /// begin with the other one.
    fn may_wait<T: Tap>(
        &self,
        ctx: &Ctx<'_, T>,
        qp: &Qp,
        (first, end): (usize, usize),
        caps: &WireCaps,
    ) -> bool {
        let (Some(next), [head, .., last] | [head @ last]) = (self.follows, &self.plan[first..end])
        else {
            return false;
        };
        let room = caps.max_segments.min(caps.max_train / head.datagram_len.max(1));
        let is_full = end - first >= room as usize || last.datagram_len < head.datagram_len;
        let fits = next.datagram_len <= head.datagram_len && next.is_request() == last.is_request();
        if is_full || !fits || !qp.rules.is_connected {
            return false;
        }
        // In the middle of a message always: it would be cut askew again and again.
        !last.opcode.info().position.is_end() || self.may_wait_whole(ctx, qp, first)
    }

    /// The same where the train ends with a message. It is planned twice, so it must be little of
    /// the plan. While others have their visits it must hold neither the only packet that asks for
    /// an ACK nor the end of an answer: the peer's timer, or that of the packets before, would run
    /// out. On the way to this device a train costs nothing.
    fn may_wait_whole<T: Tap>(&self, ctx: &Ctx<'_, T>, qp: &Qp, first: usize) -> bool {
        let (stays, waits) = self.plan.split_at(first);
        let asks = |some: &[Segment]| some.iter().any(|segment| segment.ack_req);
        // Rule: VisitAsks
        let is_asked =
            asks(stays) || waits.first().is_some_and(Segment::is_request) && !asks(waits);
        let is_harmless = ctx.shared.active.is_empty() || is_asked;
        waits.len() <= self.plan.len() / LITTLE && is_harmless && !qp.is_local()
    }

    /// Reads all payloads that are in application memory, also those before one that cannot be
    /// read.
    fn read_payloads<W: Wire, D: Dma, T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        qp: &Qp,
        wire: &mut W,
        dma: &mut D,
    ) -> Result<(), Unreadable> {
        self.gather.clear();
        let all = self.gather_payloads(ctx, qp, wire, dma);
        // What is gathered is before a segment that was refused.
        // Rule: FaultSparesEarlier
        self.gather.execute(wire, dma).and(all)
    }

    fn gather_payloads<W: Wire, D: Dma, T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        qp: &Qp,
        wire: &mut W,
        dma: &mut D,
    ) -> Result<(), Unreadable> {
        for train in &self.trains {
            let mut offset = train.slot.offset;
            for at in train.first..train.end {
                let segment = self.plan[at];
                let to = Range { offset: offset + segment.header_len, len: segment.len };
                offset += train.slot.stride;
                if segment.len > 0 {
                    let place = Place { arena: train.slot.arena, to, may_refer: train.may_refer };
                    self.gather.add_segment(ctx, qp, wire, dma, (at, segment, place))?;
                }
            }
        }
        Ok(())
    }

    /// Cancels everything from the unreadable segment's train on.
    fn give_up_from<W: Wire, T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        qp: &mut Qp,
        wire: &mut W,
        fault: Unreadable,
    ) {
        let Some(at) = self.trains.iter().position(|t| fault.segment < t.end) else { return };
        let Some(segment) = self.plan.get(fault.segment).copied() else { return };
        let train = self.trains[at];
        wire.cancel_from(&train.slot);
        self.trains.truncate(at);
        self.plan.truncate(train.first);
        ctx.event(|| Event::DmaFault { qpn: qp.qpn, psn: segment.psn });
        match segment.source {
            Source::Request { index, .. } => {
                qp.sq.wr_mut(index).work = Work::Fault(WcStatus::LocProtErr);
                qp.retire_later(ctx);
            }
            Source::QueuedReply { nth, k } => qp.reply_failed(ctx, nth, k, fault.reason),
            Source::Ack => {}
        }
    }

    /// Pad and ICRC.
    fn seal<W: Wire, T: Tap>(&self, ctx: &Ctx<'_, T>, qp: &Qp, wire: &mut W, caps: &WireCaps) {
        for train in &self.trains {
            let path = qp.path_to(&ctx.shared.ahs, train.address);
            let Some(Path { flow, .. }) = path else { continue };
            let first = match caps.tx_ip_id {
                TxIpId::Ours => train.ip_id,
                TxIpId::SegmentIndex => 0,
            };
            let arena = wire.tx(train.slot.arena);
            for (k, (segment, datagram)) in (0u16..).zip(self.datagrams(train, arena)) {
                let pad = usize::from(segment.pad());
                let end = datagram.len().saturating_sub(roce_wire::datagram::ICRC_LEN);
                if pad > 0
                    && let Some(pad) = datagram.get_mut(end.saturating_sub(pad)..end)
                {
                    // Rule: PadIsZero
                    pad.fill(0);
                }
                if !train.slot.is_internal {
                    roce_wire::icrc::seal(flow, first.wrapping_add(k), datagram);
                }
            }
        }
    }

    /// Everything planned is on its way: moves the QP's state.
    fn commit<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, qp: &mut Qp) {
        let packets = self.plan.len() as u64;
        let bytes: u64 = self.plan.iter().map(|segment| u64::from(segment.datagram_len)).sum();
        ctx.shared.counters.tx_packets += packets;
        ctx.shared.counters.tx_bytes += bytes;
        qp.counters.tx_packets += packets;
        qp.counters.tx_bytes += bytes;
        let was_rewound = qp.requester.is_rewound();
        let mut requests = false;
        let profile = ctx.shared.config.profile;
        for segment in &self.plan {
            let retransmit = qp.was_sent(segment);
            if retransmit {
                ctx.shared.counters.retransmitted_packets += 1;
                qp.counters.retransmitted_packets += 1;
            }
            let packet = || info_of(qp, segment, profile);
            ctx.event(|| Event::Sent {
                qpn: qp.qpn,
                message: segment.source.message(),
                packet: packet(),
                retransmit,
            });
            match segment.source {
                Source::Request { index, .. } => {
                    requests = true;
                    qp.commit_request(index, segment);
                }
                Source::QueuedReply { .. } => qp.responder.replies.advance(),
                Source::Ack => qp.acknowledgement_left(ctx),
            }
        }
        for train in &self.trains {
            ctx.shared.departs(train.is_local, ctx.now);
        }
        if packets > 0 {
            // Rule: HalvesTakeTurns
            qp.requests_due = !requests;
        }
        if requests {
            ctx.shared.clients.note_activity(qp.client_slot, ctx.now);
            qp.requests_left(ctx, was_rewound);
        }
    }
}
