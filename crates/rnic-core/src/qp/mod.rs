//! A queue pair: send queue, receive queue, and the two halves of its transport.
//!
//! * `requester`: what may leave, what the responses mean, going back.
//! * `responder`: the checks of requests, what they do, and what is owed for them.
//! * `packet`, `verdict`: a received packet, and what is left to do about it.
//! * `plan`: the packets that a visit of egress sends.
//! * `create`: how one is made. `target`: what belongs to a domain of XRC, not to a client.
//! * `schedule`: what a queue pair asks of its engine.
//! * this file: the object itself and its way through RESET ... ERR.

pub(crate) mod create;
pub(crate) mod packet;
pub(crate) mod plan;
pub(crate) mod requester;
pub(crate) mod responder;
mod schedule;
mod target;
pub(crate) mod verdict;

use crate::ah::AddressHandle;
use crate::clients::RecordOwner;
use crate::command::{ClientId, Path};
use crate::counters::QpCounters;
use crate::event::{Event, Tap};
use crate::ids::HopId;
use crate::profile::Profile;
use crate::recv_queue::RecvQueue;
use crate::shared::{Ctx, Shared};
use crate::slab::Slab;
use crate::time::Instant;
use crate::transport::TransportRules;
use plan::AddressId;
use requester::sq::SendQueue;
use requester::{Requester, Segmentation};
use responder::Responder;
use responder::rq::ReceiveSource;
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::verbs::{AsyncEventType, QpAttr, QpCaps, QpState, QpType, WcOpcode, WcStatus};
use roce_wire::flow::{flow_label_from_qpns, udp_source_port};
use roce_wire::{Flow, PKey, PathMtu, Qpn};
pub(crate) use target::Target;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) handle: u32,
    pub(crate) slot: u32,
    pub(crate) qpn: Qpn,
    pub(crate) client_id: ClientId,
    pub(crate) client_slot: u32,
    pub(crate) qp_type: QpType,
    /// What its type means.
    pub(crate) rules: &'static TransportRules,
    pub(crate) pd: u32,
    /// Protection domain of its receives.
    pub(crate) receive_pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) sq_sig_all: bool,
    pub(crate) is_active: bool,
    pub(crate) is_retiring: bool,
    /// The last visit that sent anything sent no requests: they come before replies next time.
    pub(crate) requests_due: bool,
    pub(crate) caps: QpCaps,
    pub(crate) attr: QpAttr,
    /// Peer: flow (we are `src`), next hop. Set from RTR on; datagrams have a path each.
    pub(crate) path: Option<Path>,
    /// What it sent last stayed on this host.
    is_local: bool,
    /// Path MTU, bytes.
    pub(crate) mtu: u32,
    segmentation: Segmentation,
    pub(crate) sq: SendQueue,
    pub(crate) receive_source: ReceiveSource,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// When the QP's timer fires.
    pub(crate) deadline: Option<Instant>,
    /// The earliest wheel entry of this QP.
    pub(crate) wheel_at: Option<Instant>,
    /// The entry that the earliest one has overtaken.
    pub(crate) wheel_later: Option<Instant>,
    pub(crate) counters: QpCounters,
    pub(crate) async_events: u64,
    /// Groups that it is attached to.
    pub(crate) groups: u32,
    /// What an XRC target has besides.
    pub(crate) target: Option<Box<Target>>,
}

/// An idle QP stays small: this, its reply tables (about 80 bytes for each READ of its depth) and
/// the SGEs of one receive WQE. The shadow send queue comes with the first doorbell.
const _: () = assert!(size_of::<Qp>() <= 1024);

/// Path MTU code of queue pairs without a path: their senders have any.
const LARGEST_MTU: u8 = PathMtu::Mtu4096.code();

/// Completions that one visit flushes.
const FLUSH_PER_VISIT: u32 = 64;

impl Qp {
    /// Accepts incoming packets.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        match self.attr.state {
            QpState::Rtr | QpState::Rts => true,
            // Rule: SqdResponds
            QpState::Sqd => true,
            // Rule: UcSendErrorReceives
            QpState::Sqe => true,
            _ => false,
        }
    }

    /// What is in its send queue, and what is posted to it, is flushed.
    #[inline]
    pub(crate) fn flushes_sends(&self) -> bool {
        match self.attr.state {
            QpState::Err => true,
            // Rule: SqeFlushesSends
            QpState::Sqe => true,
            _ => false,
        }
    }

    /// Receive WQEs for messages that are not complete, as far as the producer index was seen.
    pub(crate) fn credits(&self) -> u32 {
        self.own_receives() + u32::from(self.responder.recv.is_some())
    }

    /// WQEs that are posted to one of its queues and not yet fetched.
    pub(crate) fn posted(&self, owner: RecordOwner) -> u32 {
        match owner {
            RecordOwner::Sq(_) => self.sq.waiting(),
            RecordOwner::Rq(_) => self.own_receives(),
            RecordOwner::Srq => 0,
        }
    }

    /// A doorbell of one of its queues was found.
    pub(crate) fn rang(&self, owner: RecordOwner) -> Event {
        let message = matches!(owner, RecordOwner::Sq(_)).then(|| self.sq.fetched());
        Event::Doorbell { qpn: self.qpn, wqes: self.posted(owner), message }
    }

    /// WQEs that are posted to its own receive queue and not yet fetched.
    fn own_receives(&self) -> u32 {
        self.receive_source.own().map_or(0, RecvQueue::waiting)
    }

    /// Reads the doorbell record of its own receive queue.
    pub(crate) fn refresh_receives(&mut self, shared: &Shared) {
        if let Some(rq) = self.receive_source.own_mut() {
            rq.refresh_producer(&shared.clients, self.client_slot);
        }
    }

    /// The doorbell records of its own queues.
    pub(crate) fn records(&self) -> impl Iterator<Item = RecordIndex> + use<> {
        let receives = self.receive_source.own().map(|rq| rq.record);
        [self.sq.record, receives].into_iter().flatten()
    }

    /// The only P_Key of a RoCE port.
    pub(crate) fn pkey(&self) -> PKey {
        PKey::DEFAULT
    }

    /// The peer's QPN.
    pub(crate) fn dest_qpn(&self) -> Qpn {
        Qpn::new(self.attr.dest_qpn)
    }

    /// The path to an address of its packets.
    #[inline]
    pub(crate) fn path_to<'a>(
        &'a self,
        ahs: &'a Slab<AddressHandle>,
        address: AddressId,
    ) -> Option<&'a Path> {
        if self.rules.is_connected { self.path.as_ref() } else { self.path_by(ahs, address) }
    }

    #[inline(never)]
    fn path_by<'a>(&self, ahs: &'a Slab<AddressHandle>, address: AddressId) -> Option<&'a Path> {
        // Rule: HandleOfDomain
        ahs.get(address.handle()).filter(|ah| ah.pd == self.pd).map(|ah| &ah.path)
    }

    /// Does a packet that came on `flow` come from the peer?
    #[inline]
    pub(crate) fn is_peer(&self, flow: &Flow) -> bool {
        self.path.as_ref().is_some_and(|p| p.flow.dst == flow.src && p.flow.src == flow.dst)
    }

    /// The peer has an address of this host: nothing of this leaves it. A datagram may be the
    /// exception.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Where its packets go to now.
    #[inline]
    pub(crate) fn note_way(&mut self, hop: HopId) {
        self.is_local = hop == HopId::LOCAL;
    }

    /// Takes over a resolved path. One source port per QP, so that ECMP keeps the order.
    pub(crate) fn set_path(&mut self, profile: Profile, mut path: Path) {
        self.note_way(path.hop);
        path.flow.tos = profile.tos(path.flow.tos);
        if path.flow.sport == 0 {
            let label = match path.attr.flow_label {
                0 => flow_label_from_qpns(self.qpn, self.dest_qpn()),
                label => label,
            };
            path.flow.sport = udp_source_port(label);
        }
        self.path = Some(path);
    }

    /// Applies attributes that a modify changed, going from one state to another.
    pub(crate) fn apply<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, attr: QpAttr, path: Option<Path>) {
        let from = self.attr.state;
        let to = attr.state;
        if to == QpState::Err && from != QpState::Err {
            self.attr = QpAttr { state: from, ..attr };
            self.enter_error(ctx);
            return;
        }
        let before = std::mem::replace(&mut self.attr, attr);
        let is_retimed = before.timeout != attr.timeout;
        self.attr.cur_state = to;
        if is_retimed {
            self.restart_timer(ctx);
        }
        if let Some(path) = path {
            self.set_path(ctx.shared.config.profile, path);
        }
        match (from, to) {
            // Rule: ResetEmpties
            (_, QpState::Reset) => self.reset(ctx),
            (QpState::Init, QpState::Rtr) => {
                let mtu = if self.rules.is_connected { self.attr.path_mtu } else { LARGEST_MTU };
                self.mtu = 128 << mtu;
                let config = &ctx.shared.config;
                self.segmentation = Segmentation::new(self.rules, self.mtu, config);
                self.responder.start(&self.attr);
            }
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.attr),
            (QpState::Rts, QpState::Sqd) => {
                // Rule: SqdReportsDraining
                self.attr.sq_draining = true;
            }
            (QpState::Sqd, QpState::Rts) => self.attr.sq_draining = false,
            (QpState::Sqd, QpState::Sqd) => {
                self.responder.resize(&self.attr);
                self.requester.change_retries(&before, &self.attr);
            }
            (QpState::Sqe, QpState::Rts) => self.resume_sends(ctx),
            _ => {}
        }
        if from != to {
            ctx.event(|| Event::State { qpn: self.qpn, from, to });
        }
        self.activate(ctx);
        self.retire_later(ctx);
    }

    /// Both queues become empty without completions.
    fn reset<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        self.give_receive_back(ctx);
        ctx.shared.mrs.unbind_windows_of(self.handle);
        for record in self.records() {
            ctx.shared.clients.start_over(self.client_slot, record);
        }
        self.sq.reset();
        if let Some(rq) = self.receive_source.own_mut() {
            rq.reset();
        }
        self.requester = Requester::default();
        self.responder.reset();
        self.path = None;
        self.is_local = false;
        self.mtu = 0;
        self.segmentation = Segmentation::none(self.rules);
        self.deadline = None;
        self.attr = QpAttr::default();
    }

    /// A WQE of a shared receive queue that a message was using is flushed: else its program would
    /// never have its slot again.
    pub(crate) fn give_receive_back<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        // Rule: SrqReceiveGivenBack
        if self.receive_source.own().is_none() {
            self.fail_current_receive(ctx, WcStatus::WrFlushErr);
        }
    }

    /// To ERR: stop, and flush what is posted. Data accepted earlier must be in place already. What
    /// the peer has executed and acknowledged is complete: flushed, it would be done twice.
    pub(crate) fn enter_error<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        let from = self.attr.state;
        if from == QpState::Err {
            return;
        }
        // Rule: AcknowledgedCompletes
        self.complete_acknowledged(ctx);
        self.attr.state = QpState::Err;
        self.attr.cur_state = QpState::Err;
        self.attr.sq_draining = false;
        self.deadline = None;
        self.requester.stop();
        self.responder.stop();
        if let Some(rq) = self.receive_source.own_mut() {
            rq.mark_flushed();
        }
        ctx.event(|| Event::State { qpn: self.qpn, from, to: QpState::Err });
        // Rule: ErrFlushesCurrent
        self.fail_current_receive(ctx, WcStatus::WrFlushErr);
        // Rule: LastWqeReached
        if self.receive_source.shared().is_some() {
            self.raise(ctx, AsyncEventType::QpLastWqeReached);
        }
        self.activate(ctx);
    }

    /// To SQE: a send failed, what follows it is flushed, and receiving goes on.
    pub(in crate::qp) fn stop_sends<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        let from = self.attr.state;
        self.attr.state = QpState::Sqe;
        self.attr.cur_state = QpState::Sqe;
        self.attr.sq_draining = false;
        self.requester.stop();
        ctx.event(|| Event::State { qpn: self.qpn, from, to: QpState::Sqe });
        self.activate(ctx);
    }

    /// From SQE to RTS: what was posted until now is flushed, what comes now is sent.
    fn resume_sends<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        // Once around the queue: a program that goes on posting must not keep the engine here.
        for _ in 0..=self.sq.capacity() / FLUSH_PER_VISIT {
            // Rule: SqeResumes
            if !self.flush_some(ctx) {
                break;
            }
        }
        self.requester.resume(self.sq.fetched());
    }

    /// Completes the receive WQE that a message was using, if any.
    pub(crate) fn fail_current_receive<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        status: WcStatus,
    ) -> bool {
        let Some(recv) = self.responder.recv.take() else { return false };
        let cqe = self.recv_cqe(ctx.now, recv.wr_id, recv.index, status);
        self.receive_source.release(recv.index);
        ctx.complete(self.recv_cq, &cqe);
        true
    }

    /// The common part of a receive completion.
    pub(crate) fn recv_cqe(&self, now: Instant, wr_id: u64, index: u32, status: WcStatus) -> Cqe {
        let mut cqe = Cqe::new(wr_id, self.qpn.value(), WcOpcode::Recv);
        cqe.status = status;
        cqe.flags = CqeFlags::RECV;
        cqe.timestamp = now.as_nanos();
        cqe.record = self.receive_source.record().value();
        cqe.wqe_index = index;
        cqe
    }

    /// Writes some of the flush completions of a QP in ERR, or of its sends in SQE. Returns true
    /// when more are due.
    pub(crate) fn flush_some<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> bool {
        let mut budget = FLUSH_PER_VISIT;
        self.sq.refresh_producer(&ctx.shared.clients, self.client_slot);
        self.refresh_receives(ctx.shared);
        // Rule: ErrFlushesSends
        while budget > 0 {
            let Some((index, wr_id, opcode)) = self.sq.flush_next() else { break };
            self.requester.set_oldest(self.sq.retired);
            let cqe = self.send_cqe(ctx.now, wr_id, index, opcode, WcStatus::WrFlushErr);
            ctx.complete(self.send_cq, &cqe);
            budget -= 1;
        }
        // Rule: ErrFlushesReceives
        while budget > 0 && self.attr.state == QpState::Err {
            let Some((index, wr_id)) =
                self.receive_source.own_mut().and_then(RecvQueue::flush_next)
            else {
                break;
            };
            let cqe = self.recv_cqe(ctx.now, wr_id, index, WcStatus::WrFlushErr);
            self.receive_source.release(index);
            ctx.complete(self.recv_cq, &cqe);
            budget -= 1;
        }
        budget == 0
    }

    /// The common part of a send completion.
    pub(crate) fn send_cqe(
        &self,
        now: Instant,
        wr_id: u64,
        index: u32,
        opcode: WcOpcode,
        status: WcStatus,
    ) -> Cqe {
        let mut cqe = Cqe::new(wr_id, self.qpn.value(), opcode);
        cqe.status = status;
        cqe.timestamp = now.as_nanos();
        cqe.record = self.sq.record.map_or(0, RecordIndex::value);
        cqe.wqe_index = index;
        cqe
    }

    /// Something that no completion can report: its CQ overflowed, its producer index lies.
    pub(crate) fn fail_fatally<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if self.attr.state != QpState::Err {
            self.enter_error(ctx);
            self.raise(ctx, AsyncEventType::QpFatal);
        }
    }
}
