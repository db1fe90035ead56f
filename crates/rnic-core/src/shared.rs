//! What the QPs of an engine share.

use crate::active::ActiveQps;
use crate::ah::AddressHandle;
use crate::batch::Batch;
use crate::clients::Clients;
use crate::command::ClientId;
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::cq::Cq;
use crate::event::{DropReason, Event, PacketInfo, Tap};
use crate::groups::Groups;
use crate::mr::MrTable;
use crate::outbox::Outbox;
use crate::owned::{Owned, OwnedSlab};
use crate::recv_queue::{NoRecv, Recv};
use crate::srq::Srq;
use crate::time::Instant;
use crate::wheel::Wheel;
use crate::xrc::{MAX_SRQS, Xrc};
use rnic_abi::control::AsyncEvent;
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{AsyncEventType, WcStatus};
use rnic_abi::wqe::Sge;
use roce_wire::Qpn;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) client: ClientId,
    /// Queue pairs, shared receive queues, address handles and memory windows.
    pub(crate) users: u32,
}

impl Owned for Pd {
    fn owner(&self) -> Option<ClientId> {
        Some(self.client)
    }
}

/// Everything of an engine but its QPs and scratch memory.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) clients: Clients,
    pub(crate) pds: OwnedSlab<Pd>,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: OwnedSlab<Cq>,
    pub(crate) srqs: OwnedSlab<Srq>,
    pub(crate) xrc: Xrc,
    pub(crate) ahs: OwnedSlab<AddressHandle>,
    pub(crate) groups: Groups,
    pub(crate) wheel: Wheel,
    pub(crate) active: ActiveQps,
    /// Slots of QPs whose send queue may have completions to write.
    pub(crate) retiring: Vec<u32>,
    /// Accepted data on its way to application memory.
    pub(crate) batch: Batch,
    /// Data was placed, or a message came that its completion carries, in this turn.
    pub(crate) placed: bool,
    pub(crate) dirty_cqs: Vec<u32>,
    pub(crate) broken_cqs: Vec<u32>,
    pub(crate) async_events: Vec<(ClientId, AsyncEvent)>,
    /// Management datagrams to be sent.
    pub(crate) outbox: Outbox,
    pub(crate) counters: Counters,
    /// When the wire last took something that leaves the host, and something that does not.
    departures: [Instant; 2],
}

impl Shared {
    pub(crate) fn new(config: EngineConfig, now: Instant) -> Self {
        Self {
            config,
            clients: Clients::default(),
            pds: OwnedSlab::new(config.limits.max_pd as usize),
            mrs: MrTable::new(
                [config.limits.max_mr, config.limits.max_mw].map(|max| max as usize),
                config.secret,
            ),
            cqs: OwnedSlab::new(config.limits.max_cq as usize),
            srqs: OwnedSlab::new((config.limits.max_srq as usize).min(MAX_SRQS)),
            xrc: Xrc::new(&config),
            ahs: OwnedSlab::new(config.limits.max_ah as usize),
            groups: Groups::default(),
            wheel: Wheel::new(now),
            active: ActiveQps::default(),
            retiring: Vec::new(),
            batch: Batch::new(),
            placed: false,
            dirty_cqs: Vec::new(),
            broken_cqs: Vec::new(),
            async_events: Vec::new(),
            outbox: Outbox::new(),
            counters: Counters::default(),
            departures: [now; 2],
        }
    }

    /// Takes the next WQE of a shared receive queue. In line it would cost all other requests.
    #[inline(never)]
    pub(crate) fn take_receive(
        &mut self,
        handle: u32,
        sges: &mut Vec<Sge>,
    ) -> Result<Recv, NoRecv> {
        // One that queue pairs use is never removed.
        let Some(srq) = self.srqs.get_mut(handle) else { return Err(NoRecv::Empty) };
        let taken = srq.take(&self.clients, sges);
        self.look_at_limit(handle);
        taken
    }

    /// Raises the limit event of a shared receive queue that has fewer WQEs left.
    pub(crate) fn look_at_limit(&mut self, handle: u32) {
        let Some(srq) = self.srqs.get_mut(handle) else { return };
        if srq.is_below_limit(&self.clients) {
            let event = AsyncEvent { event: AsyncEventType::SrqLimitReached, element: handle };
            self.async_events.push((srq.client, event));
            self.counters.async_events += 1;
        }
    }

    /// When the wire last took something.
    pub(crate) fn departed(&self, is_local: bool) -> Instant {
        self.departures[usize::from(is_local)]
    }

    /// The wire takes something.
    #[inline]
    pub(crate) fn departs(&mut self, is_local: bool, now: Instant) {
        self.departures[usize::from(is_local)] = now;
    }
}

/// What every stage gets: the time, the shared state, the listener.
pub(crate) struct Ctx<'a, T> {
    pub(crate) now: Instant,
    pub(crate) shared: &'a mut Shared,
    pub(crate) tap: &'a mut T,
}

impl<T: Tap> Ctx<'_, T> {
    #[inline(always)]
    pub(crate) fn event(&mut self, event: impl FnOnce() -> Event) {
        self.tap.on(self.now, event);
    }

    pub(crate) fn dropped(&mut self, reason: DropReason, packet: Option<PacketInfo>) {
        self.shared.counters.dropped(reason);
        self.event(|| Event::Dropped { reason, packet });
    }

    /// Writes a completion. One that does not fit breaks the CQ and every QP that uses it: false.
    pub(crate) fn complete(&mut self, cq_handle: u32, cqe: &Cqe) -> bool {
        let Some(cq) = self.shared.cqs.get_mut(cq_handle) else { return false };
        if cq.broken {
            return false;
        }
        if cq.push(cqe).is_err() {
            self.break_cq(cq_handle);
            return false;
        }
        if !cq.is_dirty {
            cq.is_dirty = true;
            self.shared.dirty_cqs.push(cq_handle);
        }
        self.shared.counters.completions += 1;
        if cqe.status == WcStatus::WrFlushErr {
            self.shared.counters.flushed_wqes += 1;
        }
        self.event(|| Event::Completed {
            qpn: Qpn::new(cqe.qpn),
            message: (!cqe.flags.contains(CqeFlags::RECV)).then_some(cqe.wqe_index),
            status: cqe.status,
            receive: cqe.flags.contains(CqeFlags::RECV),
            wr_id: cqe.wr_id,
        });
        true
    }

    /// CQ_ERR now; its QPs follow.
    #[cold]
    pub(crate) fn break_cq(&mut self, handle: u32) {
        let Some(cq) = self.shared.cqs.get_mut(handle).filter(|cq| !cq.broken) else { return };
        cq.broken = true;
        // Rule: OverflowTold
        cq.async_events += 1;
        let event = AsyncEvent { event: AsyncEventType::CqErr, element: handle };
        self.shared.async_events.push((cq.client, event));
        self.shared.counters.async_events += 1;
        self.shared.broken_cqs.push(handle);
        self.shared.counters.cq_overflows += 1;
        self.event(|| Event::CqOverflow { cq: handle });
    }
}
