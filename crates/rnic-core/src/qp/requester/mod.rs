//! The requester half: which requests may leave next.
//!
//! * `state`: where it is among its PSNs; only its own methods change that.
//! * `sq`: what the application posted, copied once and validated.
//! * `segment`: the packets of a WQE.
//! * `local`: what is done here, without packets.
//! * `completer`: what the responses mean, and the completions.
//! * `retry`: going back, and giving up.

mod completer;
mod local;
mod retry;
mod segment;
pub(crate) mod sq;
mod state;

pub(crate) use state::{Cursor, Requester, Wait};

use super::Qp;
use super::plan::{AddressId, Budget, Segment, Source};
use crate::event::{Event, Tap};
use crate::shared::{Ctx, Shared};
use rnic_abi::verbs::{QpState, SendFlags, WcStatus};
use roce_wire::Psn;
pub(crate) use segment::Segmentation;
use segment::{request, segment};
use sq::{FetchRules, Work, Wr};

impl Cursor {
    /// At `psn`, behind packets of `wr`, where the cursor is: perhaps at the next WQE.
    #[inline]
    fn moved(self, wr: &Wr, psn: Psn) -> Self {
        let index = if psn == wr.end() { self.index.wrapping_add(1) } else { self.index };
        Self { index, psn }
    }
}

/// What a WQE may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Permit {
    Go,
    Wait,
    /// There is nothing that it could wait for.
    Never,
}

impl Qp {
    /// Appends the requests that may leave now. Returns true when the budget ended it.
    pub(crate) fn plan_requests<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        budget: &mut Budget,
        plan: &mut Vec<Segment>,
    ) -> bool {
        // Rule: RnrWait
        if !self.sends() || self.requester.wait().is_some() {
            return false;
        }
        self.requester.refused(false);
        if !self.refresh_posted(ctx) {
            // The replies that are planned already are not owed any more, so they must not leave.
            plan.clear();
            return false;
        }
        let how = self.segmentation;
        let window = self.requester.window(&how);
        let mut cursor = self.requester.cursor();
        let mut reads = self.requester.reads();
        while let Some(run) = self.admissible(ctx, (cursor, reads), window, budget) {
            let wr = self.sq.wr(cursor.index);
            let mut psn = cursor.psn;
            for _ in 0..run {
                let next = if wr.is_read_or_atomic() {
                    request(wr, cursor.index, psn, &how)
                } else {
                    segment(wr, cursor.index, psn, &how)
                };
                if !budget.take(&next) {
                    return true;
                }
                psn = psn.wrapping_add(next.span);
                plan.push(next);
            }
            if !self.rules.is_connected
                && let Some(datagram) = plan.last_mut()
            {
                datagram.address = AddressId::of(wr.control.ah);
            }
            cursor = cursor.moved(wr, psn);
            reads += u32::from(wr.is_read_or_atomic());
        }
        self.is_next_local(cursor, budget)
    }

    /// Reads what the application posted. One that published an index that cannot be has a queue
    /// beyond repair: false.
    fn refresh_posted<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> bool {
        self.sq.refresh_producer(&ctx.shared.clients, self.client_slot);
        if self.sq.is_overrun() {
            self.fail_fatally(ctx);
            return false;
        }
        true
    }

    /// Packets of the WQE at the cursor that may leave now; `None` when neither they nor what
    /// follows may. READs and atomics are single packets.
    #[inline]
    fn admissible<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        (cursor, reads): (Cursor, u32),
        window: u32,
        budget: &mut Budget,
    ) -> Option<u32> {
        if cursor.index == self.sq.fetched() && !self.fetch(ctx) {
            return None;
        }
        let wr = self.sq.wr(cursor.index);
        if !matches!(wr.work, Work::Wire) {
            return self.admit_other(ctx, (cursor, reads), budget);
        }
        // Rule: Window
        let room = window.saturating_sub(self.requester.ahead(cursor.psn));
        if room == 0 {
            return None;
        }
        if !self.rules.is_connected
            && let Err(status) = self.check_datagram(ctx.shared, wr)
        {
            self.sq.wr_mut(cursor.index).work = Work::Fault(status);
            self.retire_later(ctx);
            return None;
        }
        match self.permit(wr, cursor, reads) {
            Permit::Go if wr.is_read_or_atomic() => Some(1),
            Permit::Go => Some(room.min(wr.packets - wr.packet_of(cursor.psn))),
            Permit::Wait => None,
            Permit::Never => {
                self.sq.wr_mut(cursor.index).work = Work::Fault(WcStatus::LocQpOpErr);
                self.retire_later(ctx);
                None
            }
        }
    }

    /// The same for a WQE without packets.
    #[cold]
    fn admit_other<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        (cursor, reads): (Cursor, u32),
        budget: &mut Budget,
    ) -> Option<u32> {
        let passed = match self.sq.wr(cursor.index).work {
            Work::Wire | Work::Fault(_) => {
                self.retire_later(ctx);
                None
            }
            Work::Local => self.do_local(ctx, cursor, reads, budget),
            // Rule: LocalWorkOnce
            Work::Done => Some(0),
        };
        if passed.is_some() {
            self.requester.pass_done(cursor);
        }
        passed
    }

    /// Copies the next WQE out of the ring, if one is posted and may be started.
    #[inline(never)]
    fn fetch<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> bool {
        // Rule: SqdHoldsNew, RtrSendsNothing
        if self.attr.state != QpState::Rts || self.sq.waiting() == 0 {
            return false;
        }
        let (pd, max_sge, mtu) = (self.pd, self.caps.max_send_sge, self.mtu);
        let rules = FetchRules { transport: self.rules, pd, max_sge, mtu };
        let index = self.sq.fetched();
        let first = self.requester.next_psn();
        let wr = self.sq.fetch(&rules, &ctx.shared.mrs, first);
        let (end, length) = (wr.end(), wr.length);
        self.requester.fetched(end);
        ctx.shared.counters.send_wqes += 1;
        ctx.event(|| Event::WqeFetched {
            qpn: self.qpn,
            message: index,
            operation: self.sq.wr(index).control.opcode,
            wr_id: self.sq.wr(index).control.wr_id,
            length,
            first_psn: first,
            last_psn: end.wrapping_sub(1),
            peer_qpn: self.rules.is_connected.then(|| self.dest_qpn()),
        });
        true
    }

    /// Rules that hold a WQE back although the window is open.
    fn permit(&self, wr: &Wr, cursor: Cursor, reads: u32) -> Permit {
        // Going back does not undo that it was started.
        let is_started = || self.requester.was_sent(wr.first);
        // Rule: SqdHoldsNew
        if self.attr.state == QpState::Sqd && !is_started() {
            return Permit::Wait;
        }
        let depth = u32::from(self.attr.max_rd_atomic);
        // Rule: ReadDepth
        if wr.is_read_or_atomic() && reads >= depth {
            return match (depth, is_started()) {
                // The depth was taken away while the queue was drained.
                // Rule: NoDepthNoReads
                (0, false) => Permit::Never,
                (0, true) if reads == 0 => Permit::Go,
                _ => Permit::Wait,
            };
        }
        if cursor.psn != wr.first {
            return Permit::Go;
        }
        // FENCE: all earlier READs and atomics are complete.
        // Rule: Fence
        if wr.control.flags.contains(SendFlags::FENCE) && reads > 0 {
            return Permit::Wait;
        }
        Permit::Go
    }

    /// What a datagram needs besides: one packet of what the link takes, and an address handle that
    /// it may use. Whenever it may leave: while it waits for the wire, the link may change, and its
    /// program may destroy the handle.
    #[inline(never)]
    fn check_datagram(&self, shared: &Shared, wr: &Wr) -> Result<(), WcStatus> {
        let mtu = 128 << shared.config.port.active_mtu;
        // Rule: DatagramIsOnePacket
        if wr.length > mtu {
            return Err(WcStatus::LocLenErr);
        }
        let path = self.path_to(&shared.ahs, AddressId::of(wr.control.ah));
        // Rule: HandleExists
        if path.is_none() { Err(WcStatus::LocQpOpErr) } else { Ok(()) }
    }

    /// A planned packet is a request that was sent before.
    #[inline]
    pub(crate) fn was_sent(&self, planned: &Segment) -> bool {
        let is_request = matches!(planned.source, Source::Request { .. });
        is_request && self.requester.was_sent(planned.psn)
    }

    /// Requests of a visit are on their way. `was_rewound`: nothing was on its way before.
    pub(crate) fn requests_left<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, was_rewound: bool) {
        // Rule: UcCompletesWhenSent
        if !self.rules.is_reliable {
            self.requester.forget_sent();
            self.retire_later(ctx);
        } else if was_rewound {
            // The oldest packet that is not acknowledged has only just left.
            self.restart_timer(ctx);
        }
    }

    /// A planned request of the WQE with this index is on its way.
    #[inline]
    pub(crate) fn commit_request(&mut self, index: u32, sent: &Segment) {
        let wr = self.sq.wr(index);
        let next = Cursor { index, psn: sent.psn };
        let next = next.moved(wr, sent.psn.wrapping_add(sent.span));
        self.requester.sent(next, wr.is_read_or_atomic());
    }
}
