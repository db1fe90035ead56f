//! The requester half: which requests may leave next.
//!
//! PSNs are given when a WQE is fetched. `una` is the oldest unacknowledged PSN, the cursor the
//! next to be transmitted, `max_psn` one past the highest ever transmitted. Going back sets the
//! cursor to `una`; nothing else is needed.

use super::Qp;
use super::segment::{Pace, Segment, Source, segment};
use super::sq::{FetchRules, Wr};
use crate::config::EngineConfig;
use crate::event::{Event, Tap};
use crate::shared::Ctx;
use rnic_abi::verbs::{QpAttr, QpState, SendFlags, WcStatus};
use roce_wire::Psn;

/// The next packet to be transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cursor {
    /// WQE that owns `psn`.
    pub(crate) index: u32,
    pub(crate) psn: Psn,
}

impl Cursor {
    /// At `psn`, behind packets of `wr`, where the cursor is: perhaps at the next WQE.
    #[inline]
    fn moved(self, wr: &Wr, psn: Psn) -> Self {
        let index = if psn == wr.end() { self.index.wrapping_add(1) } else { self.index };
        Self { index, psn }
    }
}

/// State of the requester half.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requester {
    /// First PSN of the next WQE to be fetched.
    pub(crate) next_psn: Psn,
    /// Oldest unacknowledged PSN.
    pub(crate) una: Psn,
    /// WQE that owns `una`.
    pub(crate) acked_index: u32,
    pub(crate) cursor: Cursor,
    /// One past the highest PSN ever sent.
    pub(crate) max_psn: Psn,
    /// READ and atomic requests before the cursor that are not fully answered.
    pub(crate) reads: u32,
    /// Retries left until progress.
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    /// Timeouts since progress, and the nanoseconds they took.
    pub(crate) fired: u8,
    pub(crate) waited: u64,
    /// Waiting out an RNR NAK: nothing is sent.
    pub(crate) in_rnr_wait: bool,
    /// An RNR NAK for `una` came, and not yet the sequence NAK that may follow it.
    pub(crate) rnr_echo_due: bool,
    /// Sequence NAKs since progress that may be such echoes and came after the wait.
    pub(crate) late_echoes: u8,
    /// Responses that came too early and are no news.
    pub(crate) stale: Option<Stale>,
    /// Requests that may leave found no room on the wire.
    pub(crate) is_refused: bool,
}

/// What may still come of a transmission that an implied NAK made us repeat. Packets overtake each
/// other, so the order of PSNs proves nothing; but each transmission is answered once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stale {
    /// The answer that told of the loss, or the latest ACK since then: seen again, it answers the
    /// repetition.
    mark: Psn,
    /// One past the highest PSN sent until then.
    end: Psn,
}

/// What a response says that came before one that must come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Nothing new: what was lost is about to be sent again, or was, and this is older.
    Known,
    First,
    /// The answer to the repetition was lost too, as it seems.
    Again,
}

impl Requester {
    /// RTR -> RTS.
    pub(crate) fn start(&mut self, attr: &QpAttr) {
        // Rule: FirstPsn
        let psn = Psn::new(attr.sq_psn);
        let index = self.acked_index;
        *self = Self {
            next_psn: psn,
            una: psn,
            acked_index: index,
            cursor: Cursor { index, psn },
            max_psn: psn,
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            ..Self::default()
        };
    }

    /// Progress was made: all retries are available again.
    #[inline]
    pub(crate) fn reload(&mut self, attr: &QpAttr) {
        // Rule: ProgressReloadsRetries
        self.retries = attr.retry_cnt;
        // Rule: ProgressReloadsRnrRetries
        self.rnr_retries = attr.rnr_retry;
        (self.fired, self.waited) = (0, 0);
        (self.rnr_echo_due, self.late_echoes) = (false, 0);
        if self.stale.is_some_and(|stale| self.una.distance_from(stale.mark) > 0) {
            self.stale = None;
        }
    }

    /// A response with this PSN came although `una` has none, which must come first.
    pub(crate) fn hear_of_loss(&mut self, psn: Psn, is_ack: bool) -> Loss {
        let fresh = Stale { mark: psn, end: self.max_psn };
        let Some(stale) = &mut self.stale else {
            self.stale = Some(fresh);
            return if self.is_rewound() { Loss::Known } else { Loss::First };
        };
        let answers_anew = psn == stale.mark || psn.distance_from(stale.end) >= 0;
        if is_ack && psn.distance_from(stale.mark) > 0 {
            stale.mark = psn;
        }
        // Rule: ImpliedNakOnce, ImpliedNakAgain
        if self.is_rewound() || !answers_anew {
            return Loss::Known;
        }
        self.stale = Some(fresh);
        Loss::Again
    }

    /// The QP goes to ERR.
    pub(crate) fn stop(&mut self) {
        self.in_rnr_wait = false;
        self.is_refused = false;
        self.max_psn = self.una;
    }

    /// Something is not acknowledged that was sent, or that the wire does not take.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.una != self.max_psn || self.is_refused
    }

    /// Nothing is on its way: what is not acknowledged will be sent again.
    #[inline]
    pub(crate) fn is_rewound(&self) -> bool {
        self.cursor.psn == self.una
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

/// Far below the half of all PSNs that may be in flight at most.
const MAX_WINDOW: u32 = 1 << 20;

/// Most bytes and packets of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: u32,
    pub(crate) segments: usize,
}

impl Budget {
    /// Takes one packet out of the budget; false when it is used up.
    #[inline]
    pub(crate) fn take(&mut self, segment: &Segment) -> bool {
        if self.bytes == 0 || self.segments == 0 {
            return false;
        }
        self.bytes = self.bytes.saturating_sub(segment.datagram_len);
        self.segments -= 1;
        true
    }
}

impl Qp {
    /// Packets that may be unacknowledged: a power of two.
    #[inline]
    pub(crate) fn window(&self, config: &EngineConfig) -> u32 {
        let packets = (config.window_bytes / self.mtu.max(1)).clamp(2, MAX_WINDOW);
        1 << packets.ilog2()
    }

    /// Appends the requests that may leave now. Returns true when the budget ended it.
    pub(crate) fn plan_requests<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        budget: &mut Budget,
        plan: &mut Vec<Segment>,
    ) -> bool {
        // Rule: RnrWait
        if !self.sends() || self.requester.in_rnr_wait {
            return false;
        }
        let window = self.window(&ctx.shared.config);
        let pace = Pace { window, ack_interval: ctx.shared.config.profile.ack_interval(window) };
        self.requester.is_refused = false;
        let mut cursor = self.requester.cursor;
        let mut reads = self.requester.reads;
        self.sq.look(&ctx.shared.clients, self.client_slot);
        if self.sq.is_overrun() {
            // The application published an index that cannot be: its queue is beyond repair. The
            // replies that are planned already are not owed any more, so they must not leave.
            self.fail_fatally(ctx);
            plan.clear();
            return false;
        }
        loop {
            if cursor.index == self.sq.fetched() && !self.fetch(ctx) {
                return false;
            }
            let wr = self.sq.wr(cursor.index);
            if wr.fault.is_some() {
                // It completes in error once everything before it is complete.
                self.settle_later(ctx);
                return false;
            }
            let ahead = u32::try_from(cursor.psn.distance_from(self.requester.una)).unwrap_or(0);
            // Rule: Window
            let room = window.saturating_sub(ahead);
            if room == 0 {
                return false;
            }
            match self.permit(wr, cursor, reads) {
                Permit::Go => {}
                Permit::Wait => return false,
                Permit::Never => {
                    self.sq.wr_mut(cursor.index).fault = Some(WcStatus::LocQpOpErr);
                    self.settle_later(ctx);
                    return false;
                }
            }
            // What follows in the same message may go as well. READs and atomics are single packets.
            let run = if wr.wants_data() { 1 } else { wr.packets - wr.packet_of(cursor.psn) };
            let mut psn = cursor.psn;
            for _ in 0..run.min(room) {
                let next = segment(wr, cursor.index, psn, self.mtu, pace);
                if !budget.take(&next) {
                    return true;
                }
                psn = psn.wrapping_add(next.span);
                plan.push(next);
            }
            cursor = cursor.moved(wr, psn);
            reads += u32::from(wr.wants_data());
        }
    }

    /// Copies the next WQE out of the ring, if one is posted and may be started.
    fn fetch<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> bool {
        // Rule: SqdHoldsNew, RtrSendsNothing
        if self.attr.state != QpState::Rts || self.sq.waiting() == 0 {
            return false;
        }
        let rules = FetchRules { pd: self.pd, max_sge: self.caps.max_send_sge, mtu: self.mtu };
        let index = self.sq.fetched();
        let first = self.requester.next_psn;
        let wr = self.sq.fetch(&rules, &ctx.shared.mrs, first);
        let (end, length) = (wr.end(), wr.length);
        self.requester.next_psn = end;
        ctx.shared.counters.send_wqes += 1;
        let (qpn, psns) = (self.qpn, (first, end.wrapping_sub(1)));
        ctx.event(|| Event::WqeFetched { qpn, index, psns, length });
        true
    }

    /// Rules that hold a WQE back although the window is open.
    fn permit(&self, wr: &Wr, cursor: Cursor, reads: u32) -> Permit {
        // Going back does not undo that it was started.
        let is_started = || wr.first.distance_from(self.requester.max_psn) < 0;
        // Rule: SqdHoldsNew
        if self.attr.state == QpState::Sqd && !is_started() {
            return Permit::Wait;
        }
        let depth = u32::from(self.attr.max_rd_atomic);
        // Rule: ReadDepth
        if wr.wants_data() && reads >= depth {
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

    /// A planned packet is a request that was sent before.
    #[inline]
    pub(crate) fn was_sent(&self, planned: &Segment) -> bool {
        let is_request = matches!(planned.source, Source::Request { .. });
        is_request && planned.psn.distance_from(self.requester.max_psn) < 0
    }

    /// A planned request is on its way.
    pub(crate) fn commit_request(&mut self, sent: &Segment) {
        let wr = self.sq.wr(self.requester.cursor.index);
        let cursor = self.requester.cursor.moved(wr, sent.psn.wrapping_add(sent.span));
        self.requester.cursor = cursor;
        self.requester.reads += u32::from(wr.wants_data());
        if cursor.psn.distance_from(self.requester.max_psn) > 0 {
            self.requester.max_psn = cursor.psn;
        }
    }
}
