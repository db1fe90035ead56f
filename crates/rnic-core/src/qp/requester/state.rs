//! Where the requester is among its PSNs, and what it has left to try.
//!
//! Only the methods here change it. `una` is the oldest unacknowledged PSN, the cursor the next to
//! be transmitted, `sent_end` one past the highest ever transmitted. PSNs are given when a WQE is
//! fetched. Going back sets the cursor to `una`; nothing else is needed.

use super::segment::Segmentation;
use rnic_abi::verbs::QpAttr;
use roce_wire::Psn;

/// The next packet to be transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cursor {
    /// WQE that owns `psn`.
    pub(crate) index: u32,
    pub(crate) psn: Psn,
}

/// State of the requester half.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requester {
    /// First PSN of the next WQE to be fetched.
    next_psn: Psn,
    una: Psn,
    /// WQE that owns `una`.
    oldest: u32,
    cursor: Cursor,
    sent_end: Psn,
    /// READ and atomic requests before the cursor that are not fully answered.
    reads: u32,
    /// Retries left until progress.
    retries: u8,
    rnr_retries: u8,
    /// Timeouts since progress, and the nanoseconds they took.
    timeouts: u8,
    timeout_nanos: u64,
    wait: Option<Wait>,
    /// RNR NAKs for `una` that came, without the sequence NAKs that may follow each.
    rnr_echoes_due: u8,
    /// Pauses before a repetition since progress.
    pauses: u8,
    /// Responses that came too early and are no news.
    stale: Option<Stale>,
    /// Requests that may leave found no room on the wire.
    is_refused: bool,
}

/// Why nothing is sent until the QP's deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// An RNR NAK demands it.
    Rnr,
    /// What was sent may be on its way still: a repetition at once may be needless.
    Pause,
}

/// What may still come of a transmission that an implied NAK made us repeat. Packets overtake each
/// other, so the order of PSNs proves nothing; but each transmission is answered once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stale {
    /// The answer that told of the loss, or the latest ACK since then: seen again, it answers the
    /// repetition.
    mark: Psn,
    /// One past the highest PSN sent until then.
    end: Psn,
}

/// RNR retry count that means "for ever".
const RNR_FOR_EVER: u8 = 7;
/// Nanoseconds of the first pause before a repetition that may be needless. Each further one takes
/// twice as long, until it is longer than the round trip; ten times is long enough for every
/// network.
const FIRST_PAUSE_NS: u64 = 10_000;
const MAX_PAUSE_DOUBLINGS: u8 = 10;

/// Where it is.
impl Requester {
    #[inline]
    pub(crate) fn una(&self) -> Psn {
        self.una
    }

    /// WQE that owns `una`.
    #[inline]
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    #[inline]
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// First PSN of the next WQE to be fetched.
    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// One past the highest PSN sent so far.
    pub(crate) fn sent_end(&self) -> Psn {
        self.sent_end
    }

    /// READ and atomic requests before the cursor that are not fully answered.
    #[inline]
    pub(super) fn reads(&self) -> u32 {
        self.reads
    }

    /// Nothing is sent, for this reason.
    #[inline]
    pub(crate) fn wait(&self) -> Option<Wait> {
        self.wait
    }

    /// Something is not acknowledged that was sent, or that the wire does not take.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.has_unacknowledged() || self.is_refused
    }

    /// Something was sent and is not acknowledged.
    #[inline]
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.una != self.sent_end
    }

    /// Nothing is on its way: what is not acknowledged will be sent again.
    #[inline]
    pub(crate) fn is_rewound(&self) -> bool {
        self.cursor.psn == self.una
    }

    /// A request with this PSN was sent at some time.
    #[inline]
    pub(super) fn was_sent(&self, psn: Psn) -> bool {
        psn.distance_from(self.sent_end) < 0
    }

    /// Is `psn` in the window of requests that were sent and not yet acknowledged?
    #[inline]
    pub(super) fn is_outstanding(&self, psn: Psn) -> bool {
        let ahead = psn.distance_from(self.una);
        let sent = self.sent_end.distance_from(self.una);
        // Rule: ResponseBehind, ResponseAhead
        ahead >= 0 && ahead < sent
    }

    /// PSNs from `una` to `psn`.
    #[inline]
    pub(super) fn ahead(&self, psn: Psn) -> u32 {
        u32::try_from(psn.distance_from(self.una)).unwrap_or(0)
    }
}

/// Going on.
impl Requester {
    /// RTR -> RTS.
    pub(crate) fn start(&mut self, attr: &QpAttr) {
        // Rule: FirstPsn
        let psn = Psn::new(attr.sq_psn);
        let index = self.oldest;
        *self = Self {
            next_psn: psn,
            una: psn,
            oldest: index,
            cursor: Cursor { index, psn },
            sent_end: psn,
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            ..Self::default()
        };
    }

    /// SQD -> SQD. What was changed is all there, as after progress.
    pub(crate) fn change_retries(&mut self, before: &QpAttr, attr: &QpAttr) {
        if before.retry_cnt != attr.retry_cnt {
            self.retries = attr.retry_cnt;
        }
        if before.rnr_retry != attr.rnr_retry {
            self.rnr_retries = attr.rnr_retry;
        }
    }

    /// The QP goes to ERR.
    pub(crate) fn stop(&mut self) {
        self.wait = None;
        self.is_refused = false;
        self.sent_end = self.una;
    }

    /// A WQE was fetched: the next one has the PSN behind it.
    pub(super) fn fetched(&mut self, end: Psn) {
        self.next_psn = end;
    }

    /// A request is on its way, and this is the next packet.
    #[inline]
    pub(super) fn sent(&mut self, next: Cursor, is_read_or_atomic: bool) {
        self.cursor = next;
        self.reads += u32::from(is_read_or_atomic);
        if next.psn.distance_from(self.sent_end) > 0 {
            self.sent_end = next.psn;
        }
    }

    /// Nothing answers: what is on its way is as good as acknowledged.
    pub(super) fn forget_sent(&mut self) {
        (self.una, self.oldest) = (self.cursor.psn, self.cursor.index);
    }

    /// SQE -> RTS: everything before the WQE with this index is complete. What was not sent of it
    /// keeps its PSNs, so that the peer sees a gap where a message is cut off.
    pub(crate) fn resume(&mut self, index: u32) {
        let psn = self.next_psn;
        self.cursor = Cursor { index, psn };
        (self.una, self.oldest, self.sent_end) = (psn, index, psn);
    }

    /// Requests that may leave found room on the wire, or none.
    #[inline]
    pub(super) fn refused(&mut self, is_refused: bool) {
        self.is_refused = is_refused;
    }

    /// All before `psn` is acknowledged, in the middle of the oldest message.
    #[inline]
    pub(super) fn ack_inside(&mut self, psn: Psn) {
        self.una = psn;
    }

    /// The response with this PSN came, in the middle of the oldest READ. Where it ends a piece,
    /// the request that asked for it is answered.
    #[inline]
    pub(super) fn ack_response(&mut self, psn: Psn, ends_piece: bool) {
        self.una = psn.wrapping_add(1);
        let was_sent = self.cursor.psn.distance_from(self.una) >= 0;
        if ends_piece && was_sent {
            self.reads = self.reads.saturating_sub(1);
        }
    }

    /// The oldest WQE, which ends before `end`, is acknowledged or answered.
    #[inline]
    pub(super) fn ack_oldest(&mut self, end: Psn, is_read_or_atomic: bool) {
        let was_sent = self.cursor.index.wrapping_sub(self.oldest).cast_signed() > 0;
        if is_read_or_atomic && was_sent {
            self.reads = self.reads.saturating_sub(1);
        }
        self.una = end;
        self.oldest = self.oldest.wrapping_add(1);
    }

    /// The oldest WQE is done, and had no packets.
    pub(super) fn pass_oldest(&mut self) {
        let next = self.oldest.wrapping_add(1);
        if self.cursor.index == self.oldest {
            self.cursor.index = next;
        }
        self.oldest = next;
    }

    /// The WQE at this cursor is done, and had no packets. Where all before it has left, the next
    /// visit begins behind it: else each one would look at all of them again, until the oldest
    /// request is acknowledged.
    pub(super) fn pass_done(&mut self, at: Cursor) {
        if self.cursor == at {
            self.cursor.index = at.index.wrapping_add(1);
        }
    }

    /// `una` moved: all retries are available again, and nothing is left to wait for.
    #[inline]
    pub(super) fn progress(&mut self, attr: &QpAttr) {
        if self.cursor.psn.distance_from(self.una) < 0 {
            // Acknowledged by an answer to an earlier transmission: no need to send it again.
            self.cursor = Cursor { index: self.oldest, psn: self.una };
            self.reads = 0;
        }
        // Rule: ProgressReloadsRetries
        self.retries = attr.retry_cnt;
        // Rule: ProgressReloadsRnrRetries
        self.rnr_retries = attr.rnr_retry;
        (self.timeouts, self.timeout_nanos) = (0, 0);
        // What was waited for is received: an answer to another transmission says so.
        // Rule: ProgressEndsRnrWait
        self.wait = None;
        (self.rnr_echoes_due, self.pauses) = (0, 0);
        if self.stale.is_some_and(|stale| self.una.distance_from(stale.mark) > 0) {
            self.stale = None;
        }
    }

    /// This WQE is the oldest that is not complete: one before it failed, or its data was lost.
    pub(in crate::qp) fn set_oldest(&mut self, index: u32) {
        self.oldest = index;
    }

    /// As if it had sent so many packets that were acknowledged.
    #[cfg(feature = "leap")]
    pub(crate) fn leap(&mut self, packets: u32, attr: &QpAttr) {
        let psn = self.next_psn.wrapping_add(packets);
        (self.next_psn, self.una, self.sent_end) = (psn, psn, psn);
        self.cursor.psn = psn;
        self.progress(attr);
    }
}

/// Going back.
impl Requester {
    /// Back to `una`. READs in flight count as not sent.
    pub(super) fn rewind(&mut self) {
        // Rule: GoBackN
        self.cursor = Cursor { index: self.oldest, psn: self.una };
        self.reads = 0;
    }

    /// Answers to all that was sent are news again.
    pub(super) fn forget_loss(&mut self) {
        self.stale = None;
    }

    /// A response with this PSN came although `una` has none, which must come first. False when
    /// that is nothing new: what was lost is about to be sent again, or was, and this is older.
    pub(super) fn hear_of_loss(&mut self, psn: Psn, is_ack: bool) -> bool {
        let fresh = Stale { mark: psn, end: self.sent_end };
        let Some(stale) = &mut self.stale else {
            self.stale = Some(fresh);
            return !self.is_rewound();
        };
        let answers_anew = psn == stale.mark || psn.distance_from(stale.end) >= 0;
        if is_ack && psn.distance_from(stale.mark) > 0 {
            stale.mark = psn;
        }
        // Rule: ImpliedNakOnce, ImpliedNakAgain
        if self.is_rewound() || !answers_anew {
            return false;
        }
        // The answer to the repetition was lost too, as it seems.
        self.stale = Some(fresh);
        true
    }

    /// Retries left until progress: of the transport, and after RNR NAKs.
    pub(crate) fn retries_left(&self) -> (u8, u8) {
        (self.retries, self.rnr_retries)
    }

    pub(super) fn retries(&self) -> u8 {
        self.retries
    }

    pub(super) fn take_retry(&mut self) {
        self.retries = self.retries.saturating_sub(1);
    }

    /// Timeouts since progress.
    pub(super) fn timeouts(&self) -> u8 {
        self.timeouts
    }

    /// How many packets may be unacknowledged. After a timeout, few until something is
    /// acknowledged: if the peer is only busy, each repeated packet delays its answer further.
    #[inline]
    pub(super) fn window(&self, how: &Segmentation) -> u32 {
        // Rule: TimeoutNarrowsWindow
        if self.timeouts == 0 { how.window } else { how.narrow_window() }
    }

    /// Nanoseconds of these timeouts.
    pub(super) fn timeout_nanos(&self) -> u64 {
        self.timeout_nanos
    }

    pub(super) fn count_timeout(&mut self, nanos: u64) {
        self.timeout_nanos = self.timeout_nanos.saturating_add(nanos);
        self.timeouts = self.timeouts.saturating_add(1);
    }

    /// Takes one of the RNR retries; false when none is left.
    pub(super) fn take_rnr_retry(&mut self) -> bool {
        let left = self.rnr_retries;
        // Rule: RnrRetriesEnd
        if left == 0 {
            return false;
        }
        // Rule: RnrSevenIsInfinite
        if left != RNR_FOR_EVER {
            self.rnr_retries = left.saturating_sub(1);
        }
        true
    }

    /// Nothing is sent until the wait ends, and everything from `una` on afterwards.
    pub(super) fn begin_wait(&mut self, wait: Wait) {
        // Rule: RnrResends
        self.rewind();
        self.wait = Some(wait);
    }

    pub(super) fn end_wait(&mut self) {
        self.wait = None;
    }

    /// An RNR NAK came: a sequence NAK may follow as its echo.
    pub(super) fn expect_echo(&mut self) {
        // Rule: EachRnrNakMayEcho
        self.rnr_echoes_due = self.rnr_echoes_due.saturating_add(1);
    }

    /// A sequence NAK came: it may be the echo of an RNR NAK.
    pub(super) fn take_echo(&mut self) -> bool {
        let is_due = self.rnr_echoes_due > 0;
        self.rnr_echoes_due = self.rnr_echoes_due.saturating_sub(1);
        is_due
    }

    /// Nanoseconds to pause before the next repetition.
    pub(super) fn next_pause(&mut self) -> u64 {
        let doublings = self.pauses;
        self.pauses = (doublings + 1).min(MAX_PAUSE_DOUBLINGS);
        FIRST_PAUSE_NS << doublings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_begins_behind_local_work_that_is_done() {
        let mut requester = Requester::default();
        let at = |index, psn| Cursor { index, psn: Psn::new(psn) };
        requester.fetched(Psn::new(3));
        requester.sent(at(1, 3), false);
        // Two of them behind a request that is not acknowledged.
        for index in [1, 2] {
            requester.pass_done(at(index, 3));
            assert_eq!(requester.cursor(), at(index + 1, 3));
        }
        // Behind what is only planned: it may not leave.
        requester.pass_done(at(4, 5));
        assert_eq!(requester.cursor(), at(3, 3));
        requester.rewind();
        assert_eq!((requester.cursor(), requester.oldest()), (at(0, 0), 0));
    }
}
