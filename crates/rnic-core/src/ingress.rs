//! Ingress: a burst of received trains becomes state changes, deliveries and completions.
//!
//! Per datagram: parse, ICRC, QP, state, P_Key, peer address; then the responder half takes
//! requests and the completer responses. Neither sends anything.

use crate::by_reference::{self, Payload};
use crate::delivery;
use crate::event::{DropReason, Event, NakReason, PacketInfo, Tap};
use crate::groups::MAX_MEMBERS;
use crate::ports::{ArenaId, Dma, Host, MemRange, Ports, Range, RxIpId, RxTrain, Wire};
use crate::qp::Qp;
use crate::qp::packet::Packet;
use crate::qp::responder::replies::ReplyKind;
use crate::qp::verdict::{AtomicRequest, AtomicResult, Deferred, Verdict};
use crate::qpn::{QpnCodec, shard_of};
use crate::shared::Ctx;
use crate::slab::Slab;
use rnic_abi::verbs::WcStatus;
use roce_wire::grh::{GRH_LEN, grh_area};
use roce_wire::icrc::{self, IcrcCheck};
use roce_wire::{Datagram, Ecn, Flow, Qpn, Transport};

/// Trains of one burst.
pub(crate) const MAX_TRAINS: usize = 64;

/// Scratch memory of ingress.
#[derive(Debug)]
pub(crate) struct Ingress {
    trains: Vec<RxTrain>,
    codec: QpnCodec,
    shard: u8,
    /// The last QP found: consecutive datagrams mostly have the same one.
    last: Option<(Qpn, u32)>,
    /// Members of the group that the datagram is for; empty between two datagrams.
    members: Vec<u32>,
}

/// Where a datagram is. What is seldom run takes it by value, so that it needs no memory otherwise.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    train: &'a RxTrain,
    bytes: &'a [u8],
    /// Of the datagram in the arena.
    offset: u32,
    /// Number in its train.
    k: u16,
}

impl Arrival<'_> {
    /// What stands in front of a datagram's payload: the IP header that it came with.
    #[cold]
    fn grh_area(&self) -> [u8; GRH_LEN] {
        grh_area(&self.train.flow, self.train.ip_id.likely(self.k), self.bytes.len())
    }
}

/// What a datagram is for.
enum Receiver {
    /// The queue pair in this slot.
    Qp(u32),
    /// The members of its group, here or in other shards.
    Members,
    /// Another shard, or the control plane, which has it now.
    Elsewhere,
}

/// What of the engine ingress works on.
pub(crate) struct Target<'a, 'c, T> {
    pub(crate) ctx: Ctx<'c, T>,
    pub(crate) qps: &'a mut Slab<Qp>,
}

impl Ingress {
    pub(crate) fn new(codec: QpnCodec, shard: u8) -> Self {
        let members = Vec::with_capacity(MAX_MEMBERS);
        Self { trains: Vec::with_capacity(MAX_TRAINS), codec, shard, last: None, members }
    }

    /// A QP went away: its number must not be found any more.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// Takes one burst off the wire. Returns whether there was one, and whether it was so long
    /// that more is likely to wait.
    pub(crate) fn receive<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        target: &mut Target<'_, '_, T>,
        ports: &mut Ports<'_, W, D, H>,
    ) -> (bool, bool) {
        let mut trains = std::mem::take(&mut self.trains);
        ports.wire.receive(&mut trains);
        let got = (!trains.is_empty(), trains.len() == trains.capacity());
        let mut arena = ArenaId::default();
        for train in &trains {
            if train.arena != arena {
                target.flush(ports.dma, ports.wire.rx(arena));
                arena = train.arena;
            }
            self.receive_train(target, ports, train);
        }
        if got.0 {
            target.flush(ports.dma, ports.wire.rx(arena));
            ports.wire.release();
        }
        trains.clear();
        self.trains = trains;
        got
    }

    fn receive_train<W: Wire, D: Dma, H: Host, T: Tap>(
        &mut self,
        target: &mut Target<'_, '_, T>,
        ports: &mut Ports<'_, W, D, H>,
        train: &RxTrain,
    ) {
        let arena = ports.wire.rx(train.arena);
        let start = train.range.offset as usize;
        let Some(bytes) = arena.get(start..start.saturating_add(train.range.len as usize)) else {
            return;
        };
        if bytes.is_empty() {
            // A socket also delivers UDP datagrams without a byte in them.
            target.ctx.shared.counters.rx_packets += 1;
            target.ctx.dropped(DropReason::Malformed, None);
            return;
        }
        let step = (train.segment_len as usize).max(1);
        target.ctx.shared.counters.rx_packets += bytes.len().div_ceil(step) as u64;
        target.ctx.shared.counters.rx_bytes += bytes.len() as u64;
        let mut offset = train.range.offset;
        for (k, bytes) in (0u16..).zip(bytes.chunks(step)) {
            let arrival = Arrival { train, bytes, offset, k };
            let receiver = match Datagram::parse(bytes) {
                Ok(packet) => match self.classify(target, &packet, &arrival, ports.host) {
                    Ok(Receiver::Qp(slot)) => {
                        target.take(slot, &packet, &arrival, ports.dma, arena);
                        Ok(())
                    }
                    Ok(Receiver::Members) => {
                        self.copy_to_members(target, &packet, arrival, ports.dma, arena);
                        Ok(())
                    }
                    Ok(Receiver::Elsewhere) => Ok(()),
                    Err(reason) => Err(reason),
                },
                Err(_) => Err(DropReason::Malformed),
            };
            if let Err(reason) = receiver {
                target.ctx.dropped(reason, PacketInfo::of(bytes));
            }
            offset = offset.saturating_add(train.segment_len);
        }
    }

    /// Checks everything that needs no protocol state and finds the receiver.
    #[inline(always)]
    fn classify<H: Host, T: Tap>(
        &mut self,
        target: &mut Target<'_, '_, T>,
        packet: &Datagram<'_>,
        arrival: &Arrival<'_>,
        host: &mut H,
    ) -> Result<Receiver, DropReason> {
        let flow = &arrival.train.flow;
        let hint = arrival.train.ip_id.hint(arrival.k);
        let trusted = arrival.train.is_internal;
        let check = if trusted { IcrcCheck::Good } else { icrc::verify(flow, hint, arrival.bytes) };
        // Rule: Icrc
        if !check.is_good() {
            return Err(DropReason::Icrc);
        }
        if flow.ecn() == Ecn::Ce {
            target.ctx.shared.counters.np_ecn_marked_roce_packets += 1;
        }
        let qpn = packet.bth().dest_qp;
        match self.last {
            Some((last, slot)) if last == qpn => Ok(Receiver::Qp(slot)),
            _ => self.find(target, packet, *arrival, check, host),
        }
    }

    /// Finds another receiver than the last one.
    #[inline(never)]
    fn find<H: Host, T: Tap>(
        &mut self,
        target: &mut Target<'_, '_, T>,
        packet: &Datagram<'_>,
        arrival: Arrival<'_>,
        check: IcrcCheck,
        host: &mut H,
    ) -> Result<Receiver, DropReason> {
        let Arrival { train, bytes, k, .. } = arrival;
        let qpn = packet.bth().dest_qp;
        let shard = shard_of(qpn);
        if shard != self.shard {
            let ip_id = RxIpId::Seen(check.ip_id(train.ip_id.hint(k)));
            let train = RxTrain { ip_id, flow: check.flow(train.flow), ..*train };
            return self.elsewhere(target, (packet, qpn), &train, bytes, host);
        }
        if qpn == Qpn::GSI {
            let info = packet.into();
            let dropped = target.ctx.take_management((packet, info), &train.flow, host);
            return dropped.map_or(Ok(Receiver::Elsewhere), Err);
        }
        let slot = self.codec.decode(qpn).slot;
        match target.qps.by_slot(slot as usize) {
            // Rule: WholeQpn
            Some(qp) if qp.qpn == qpn => {
                self.last = Some((qpn, slot));
                Ok(Receiver::Qp(slot))
            }
            _ => Err(DropReason::NoQp),
        }
    }

    /// Hands over what is for other shards. The number that stands for members of groups is in a
    /// shard that has no queue pairs.
    #[cold]
    fn elsewhere<H: Host, T: Tap>(
        &mut self,
        target: &mut Target<'_, '_, T>,
        (packet, qpn): (&Datagram<'_>, Qpn),
        train: &RxTrain,
        datagram: &[u8],
        host: &mut H,
    ) -> Result<Receiver, DropReason> {
        if qpn != Qpn::MULTICAST {
            host.hand_over(shard_of(qpn), train, datagram);
            target.ctx.event(|| Event::HandedOver { packet: packet.into() });
            return Ok(Receiver::Elsewhere);
        }
        let group = train.flow.dst;
        // Rule: GroupQpnNeedsGroup
        if !group.is_multicast() {
            return Err(DropReason::Address);
        }
        let others = host.hand_over_to_members(train, datagram);
        self.members.extend(target.ctx.shared.groups.members(group));
        if self.members.is_empty() {
            if !others {
                return Err(DropReason::NoMember);
            }
            target.ctx.event(|| Event::HandedOver { packet: packet.into() });
        }
        Ok(Receiver::Members)
    }

    /// Gives each member of a group its copy.
    #[cold]
    fn copy_to_members<D: Dma, T: Tap>(
        &mut self,
        target: &mut Target<'_, '_, T>,
        packet: &Datagram<'_>,
        arrival: Arrival<'_>,
        dma: &mut D,
        arena: &[u8],
    ) {
        for member in self.members.drain(..) {
            // Rule: EachMemberForItself
            if let Err(reason) = target.handle_datagram(member, packet, arrival, dma, arena) {
                target.ctx.dropped(reason, PacketInfo::of(arrival.bytes));
            }
        }
    }
}

impl<T: Tap> Target<'_, '_, T> {
    /// Places what was accepted.
    fn flush<D: Dma>(&mut self, dma: &mut D, arena: &[u8]) {
        delivery::flush(&mut self.ctx, self.qps, dma, arena);
    }

    /// Takes a packet that is for the QP in this slot, or drops it.
    #[inline(never)]
    fn take<D: Dma>(
        &mut self,
        slot: u32,
        datagram: &Datagram<'_>,
        arrival: &Arrival<'_>,
        dma: &mut D,
        arena: &[u8],
    ) {
        if let Err(reason) = self.handle(slot, datagram, arrival, dma, arena) {
            self.ctx.dropped(reason, PacketInfo::of(arrival.bytes));
        }
    }

    /// Checks what needs the QP and gives the packet to the half it is for. There is one call of
    /// this, and so of all that it calls: the compiler makes one function of them.
    #[inline(always)]
    fn handle<D: Dma>(
        &mut self,
        slot: u32,
        datagram: &Datagram<'_>,
        arrival: &Arrival<'_>,
        dma: &mut D,
        arena: &[u8],
    ) -> Result<(), DropReason> {
        if self.ctx.shared.batch.is_full() {
            self.flush(dma, arena);
        }
        let qp = self.qps.by_slot_mut(slot as usize).ok_or(DropReason::NoQp)?;
        // Rule: DatagramStandsAlone
        if !qp.rules.is_connected {
            return self.handle_datagram(slot, datagram, *arrival, dma, arena);
        }
        check_qp(qp, datagram)?;
        // Rule: PeerAddress
        if !qp.is_peer(&arrival.train.flow) {
            return Err(DropReason::Address);
        }
        qp.counters.rx_packets += 1;
        qp.counters.rx_bytes += arrival.bytes.len() as u64;
        self.ctx.event(|| Event::Received { qpn: qp.qpn, packet: datagram.into() });
        let info = datagram.info();
        if info.transport == Transport::Cnp {
            self.ctx.shared.counters.rp_cnp_handled += 1;
            return Ok(());
        }
        let bytes = payload_of(arrival, datagram, dma)?;
        let packet = Packet { datagram, info, psn: datagram.bth().psn, bytes };
        let verdict = if !info.is_request {
            qp.handle_response(&mut self.ctx, &packet)
        } else if qp.rules.names_srq
            && let Err(verdict) = qp.follow_name(&mut self.ctx, &packet)
        {
            verdict
        } else {
            qp.handle_request(&mut self.ctx, &packet)
        };
        match verdict {
            Verdict::Done => Ok(()),
            Verdict::Drop(reason) => Err(reason),
            Verdict::AfterFlush(deferred) => self.finish(slot, &packet, deferred, dma, arena),
        }
    }

    /// The same where there is no connection. In line it would cost all other packets.
    #[inline(never)]
    fn handle_datagram<D: Dma>(
        &mut self,
        slot: u32,
        datagram: &Datagram<'_>,
        arrival: Arrival<'_>,
        dma: &mut D,
        arena: &[u8],
    ) -> Result<(), DropReason> {
        if self.ctx.shared.batch.is_full() {
            self.flush(dma, arena);
        }
        let qp = self.qps.by_slot_mut(slot as usize).ok_or(DropReason::NoQp)?;
        check_qp(qp, datagram)?;
        check_datagram(qp, datagram, &arrival.train.flow)?;
        qp.counters.rx_packets += 1;
        qp.counters.rx_bytes += arrival.bytes.len() as u64;
        self.ctx.event(|| Event::Received { qpn: qp.qpn, packet: datagram.into() });
        let info = datagram.info();
        let bytes = payload_of(&arrival, datagram, dma)?;
        let packet = Packet { datagram, info, psn: datagram.bth().psn, bytes };
        match qp.handle_datagram(&mut self.ctx, &packet, &arrival.grh_area()) {
            Verdict::Done => Ok(()),
            Verdict::Drop(reason) => Err(reason),
            Verdict::AfterFlush(deferred) => self.finish(slot, &packet, deferred, dma, arena),
        }
    }

    /// The part of a packet that needs the payload of earlier ones in memory.
    #[inline(never)]
    fn finish<D: Dma>(
        &mut self,
        slot: u32,
        packet: &Packet<'_>,
        deferred: Deferred,
        dma: &mut D,
        arena: &[u8],
    ) -> Result<(), DropReason> {
        // Rule: AtomicAfterWrites
        self.flush(dma, arena);
        let qp = self.qps.by_slot_mut(slot as usize).ok_or(DropReason::NoQp)?;
        // Memory that could not be written may have ended the connection.
        if !qp.receives() {
            return Err(DropReason::AfterFault);
        }
        let ctx = &mut self.ctx;
        match deferred {
            Deferred::Nak(reason) => return qp.refuse(ctx, reason),
            Deferred::BadReceive => qp.fail_receive(ctx),
            Deferred::Atomic => match qp.atomic_of(ctx, packet).and_then(|a| execute(dma, &a)) {
                Ok(answer) => qp.finish_atomic(ctx, packet.psn, answer),
                Err(reason) => return qp.refuse(ctx, reason),
            },
            Deferred::FailRequest(status) => qp.fail_request(ctx, status),
            Deferred::StoreAtomic => match qp.result_of(ctx, packet).and_then(|r| store(dma, r)) {
                Ok(()) => qp.finish_own_atomic(ctx),
                Err(status) => qp.fail_request(ctx, status),
            },
        }
        Ok(())
    }
}

/// Where the payload is. A payload that is passed by reference may have been deregistered since:
/// then the packet is dropped, and its retransmission finds the key invalid.
#[inline(always)]
fn payload_of<D: Dma>(
    arrival: &Arrival<'_>,
    datagram: &Datagram<'_>,
    dma: &D,
) -> Result<Payload, DropReason> {
    #[expect(clippy::cast_possible_truncation, reason = "a datagram is below 64 KiB")]
    let arrived = Range {
        offset: arrival.offset + datagram.payload_offset() as u32,
        len: datagram.payload_len() as u32,
    };
    if !arrival.train.is_internal {
        return Ok(Payload::arrived(arrived));
    }
    let found = by_reference::find(arrival.bytes, datagram.payload(), arrived);
    match found.lender() {
        Some(space) if !dma.copies_from(space, found.in_memory()) => Err(DropReason::LentGone),
        _ => Ok(found),
    }
}

/// Transport, state and partition must be those of the queue pair.
#[inline(always)]
fn check_qp(qp: &Qp, datagram: &Datagram<'_>) -> Result<(), DropReason> {
    let fits = qp.rules.takes(datagram.info().transport);
    // Rule: TransportFits
    if !fits {
        return Err(DropReason::Transport);
    }
    // Rule: StateReceives
    if !qp.receives() {
        return Err(DropReason::QpState);
    }
    // Rule: PKeyMatches
    if !datagram.bth().pkey.matches(qp.pkey()) {
        return Err(DropReason::PKey);
    }
    Ok(())
}

/// A datagram comes from anywhere, but its sender must know the Q_Key.
#[inline(never)]
fn check_datagram(qp: &Qp, datagram: &Datagram<'_>, flow: &Flow) -> Result<(), DropReason> {
    // What is sent to a group is for its members only, which are not named by a number.
    // Rule: GroupNeedsGroupQpn
    if flow.dst.is_multicast() && datagram.bth().dest_qp != Qpn::MULTICAST {
        return Err(DropReason::Address);
    }
    // Rule: QKeyMatches
    match datagram.deth() {
        Some(deth) if deth.qkey.0 == qp.attr.qkey => Ok(()),
        _ => Err(DropReason::QKey),
    }
}

/// Executes an atomic of the peer and says how it is answered.
fn execute<D: Dma>(dma: &mut D, request: &AtomicRequest) -> Result<ReplyKind, NakReason> {
    let old = dma.atomic(request.space, request.addr, &mut |old| request.apply(old));
    old.map(|old| request.answer(old)).map_err(|_| NakReason::RemoteMemory)
}

/// Stores the result of our own atomic, in the byte order of this machine.
fn store<D: Dma>(dma: &mut D, result: AtomicResult) -> Result<(), WcStatus> {
    let AtomicResult { space, addr, value } = result;
    // Rule: AtomicResultNative
    let bytes = value.to_ne_bytes();
    let from = [Range { offset: 0, len: 8 }];
    let to = [MemRange { addr, len: 8 }];
    dma.write(space, &bytes, &from, &to, &[]).map_err(|_| WcStatus::LocProtErr)
}
