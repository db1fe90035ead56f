//! Going back: timeouts, NAKs, RNR waits, and when to give up.

use super::super::Qp;
use super::super::verdict::Verdict;
use super::state::Wait;
use crate::event::{Event, RewindCause, Tap};
use crate::profile::Profile;
use crate::shared::Ctx;
use crate::time::Instant;
use rnic_abi::verbs::{QpState, WcStatus};
use roce_wire::Psn;
use roce_wire::headers::rnr_timer_ns;

impl Qp {
    /// Nanoseconds until the local ACK timeout fires, which may be up to four times what the
    /// attribute says; `None` when it never does.
    fn ack_timeout(&self, profile: Profile) -> Option<u64> {
        let exponent = self.attr.timeout;
        // Rule: TimeoutZeroIsNever
        if exponent == 0 {
            return None;
        }
        // Rule: TimeoutRange
        Some(profile.wait(profile.timeout(exponent), self.requester.timeouts()))
    }

    /// May it not go back once more?
    fn is_out_of_retries(&self, profile: Profile, cause: RewindCause) -> bool {
        if cause == RewindCause::Timeout && profile.retries_by_time() {
            let patience = profile.timeout(self.attr.timeout) * u64::from(self.attr.retry_cnt);
            return self.requester.timeout_nanos() >= patience;
        }
        self.requester.retries() == 0
    }

    /// Starts the ACK timer over while something is outstanding or waits for the wire, stops it
    /// otherwise. During a wait it stands still: the QP has one deadline.
    #[inline(always)]
    pub(crate) fn restart_timer<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if self.requester.wait().is_some() {
            return;
        }
        // Rule: TimerOutlastsStall
        let runs = self.sends() && self.requester.is_waiting();
        match self.ack_timeout(ctx.shared.config.profile) {
            // Rule: TimerArms
            Some(timeout) if runs => {
                let deadline = ctx.now.after_nanos(timeout);
                self.set_deadline(ctx, deadline);
            }
            // Rule: TimerStops
            _ => self.deadline = None,
        }
    }

    /// Requests that may leave found room on the wire, or none.
    pub(crate) fn note_refused<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, is_refused: bool) {
        self.requester.refused(is_refused);
        if is_refused && self.deadline.is_none() {
            self.restart_timer(ctx);
        }
    }

    /// The QP's deadline has passed.
    pub(crate) fn handle_timer<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        self.deadline = None;
        if self.requester.wait().is_some() {
            self.requester.end_wait();
            let (qpn, psn) = (self.qpn, self.requester.una());
            ctx.event(|| Event::Rewound { qpn, psn, cause: RewindCause::Rnr });
            self.activate(ctx);
            self.restart_timer(ctx);
        // Rule: TimerStops
        } else if self.requester.is_waiting() {
            self.handle_timeout(ctx);
        }
    }

    fn handle_timeout<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        let timeout_nanos = self.ack_timeout(ctx.shared.config.profile).unwrap_or(0);
        // What waits for its turn is not unanswered: until it leaves, time counts only while the
        // wire takes nothing at all.
        let stalled = ctx.shared.departed(self.is_local()).after_nanos(timeout_nanos);
        // Rule: TurnIsNoTimeout
        if self.requester.is_rewound() && stalled > ctx.now {
            self.set_deadline(ctx, stalled);
            return;
        }
        self.counters.timeouts += 1;
        ctx.shared.counters.local_ack_timeout_err += 1;
        self.requester.count_timeout(timeout_nanos);
        if let Err(status) = self.retry(ctx, RewindCause::Timeout) {
            self.fail_request(ctx, status);
        }
    }

    /// Goes back to the oldest unacknowledged packet, if the retries allow it.
    fn retry<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, cause: RewindCause) -> Result<(), WcStatus> {
        let profile = ctx.shared.config.profile;
        // Rule: RetriesEnd
        if self.is_out_of_retries(profile, cause) {
            ctx.shared.counters.req_retry_exceeded += 1;
            return Err(WcStatus::RetryExcErr);
        }
        let by_time = cause == RewindCause::Timeout && profile.retries_by_time();
        // Timeouts, sequence NAKs and implied NAKs each cost a retry, and seven retries are seven.
        // Rule: SevenRetriesAreSeven, ImpliedNakCostsRetry, SequenceNakCostsRetry
        if !by_time {
            self.requester.take_retry();
        }
        self.rewind(ctx, cause);
        self.restart_timer(ctx);
        Ok(())
    }

    /// Back to the oldest packet that is not acknowledged.
    fn rewind<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, cause: RewindCause) {
        self.requester.rewind();
        if cause != RewindCause::ImpliedNak {
            self.requester.forget_loss();
        }
        let (qpn, psn) = (self.qpn, self.requester.una());
        ctx.event(|| Event::Rewound { qpn, psn, cause });
        self.activate(ctx);
    }

    /// NAK: PSN sequence error. Everything before it is acknowledged already.
    pub(crate) fn handle_sequence_nak<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> Verdict {
        ctx.shared.counters.packet_seq_err += 1;
        // Some peers send one behind an RNR NAK, for the packets that they dropped.
        let may_echo = self.requester.take_echo();
        let waits = self.requester.wait().is_some();
        // Nothing was sent since it went back: a second copy, or such an echo.
        // Rule: RepeatedNakIgnored
        let is_copy = !waits && self.requester.is_rewound();
        // Rule: SequenceNakInRnrWait, SequenceNakRewinds
        if waits || is_copy {
            return Verdict::Done;
        }
        // Rule: LateEchoIsFree
        if may_echo && !waits {
            self.requester.forget_loss();
            self.pause_to_repeat(ctx);
            return Verdict::Done;
        }
        self.retry_for_nak(ctx, RewindCause::SequenceNak)
    }

    /// No retry was taken since progress.
    fn has_all_retries(&self) -> bool {
        self.requester.retries() == self.attr.retry_cnt
    }

    /// Goes back for a NAK, or for what implies one: at once for the first since progress, behind a
    /// pause for the next. Several may tell of one transmission: copies, answers to copies, ACKs of
    /// a peer that acknowledges each duplicate. Each looks like an answer to the next transmission,
    /// and without the pause all retries would be spent within a round trip.
    fn retry_for_nak<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, cause: RewindCause) -> Verdict {
        let is_first = self.has_all_retries();
        if let Err(status) = self.retry(ctx, cause) {
            return Verdict::fail(status);
        }
        // Rule: SecondNakPauses
        if !is_first {
            self.pause_to_repeat(ctx);
        }
        Verdict::Done
    }

    /// Repeats, but not at once. An echo may arrive only when a short RNR wait is over and the
    /// packets have left once more; it looks like a new loss. If each were followed at once, each
    /// transmission would be answered with two reasons to repeat it, and their number would double
    /// with every round trip. What arrives within the pause adds none.
    fn pause_to_repeat<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        let until = ctx.now.after_nanos(self.requester.next_pause());
        self.wait_to_repeat(ctx, Wait::Pause, until);
    }

    /// A later response, with this PSN, came although an earlier READ or atomic has none: it was
    /// lost.
    pub(crate) fn implied_nak<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        psn: Psn,
        is_ack: bool,
    ) -> Verdict {
        let is_news = self.requester.hear_of_loss(psn, is_ack);
        // A copy of what told of the loss looks like a second one, and a path that loses only long
        // packets tells of one with every round trip. Half of the retries are left to the timer,
        // where there is one: the path may recover within its time.
        let few_left = self.requester.retries() <= self.attr.retry_cnt / 2;
        // Rule: TimerKeepsRetries
        let may_wait = few_left && !self.has_all_retries() && self.attr.timeout > 0;
        if !is_news || may_wait {
            return Verdict::Done;
        }
        ctx.shared.counters.implied_nak_seq_err += 1;
        self.retry_for_nak(ctx, RewindCause::ImpliedNak)
    }

    /// RNR NAK: nothing is sent until its time has passed.
    pub(crate) fn handle_rnr_nak<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, timer: u8) -> Verdict {
        self.counters.rnr_naks_received += 1;
        ctx.shared.counters.rcvd_rnr_err += 1;
        self.requester.expect_echo();
        let told = ctx.now.after_nanos(rnr_timer_ns(timer));
        let until = match self.requester.wait() {
            // It answers an earlier transmission than the one that began the wait.
            Some(Wait::Rnr) => return Verdict::Done,
            // It may answer the latest: if it were free too, a peer could hold the requester for
            // ever.
            // Rule: RnrNakInPauseCounts
            Some(Wait::Pause) => self.deadline.map_or(told, |end_of_pause| told.max(end_of_pause)),
            None => told,
        };
        if !self.requester.take_rnr_retry() {
            ctx.shared.counters.rnr_nak_retry_err += 1;
            return Verdict::fail(WcStatus::RnrRetryExcErr);
        }
        self.requester.forget_loss();
        self.wait_to_repeat(ctx, Wait::Rnr, until);
        Verdict::Done
    }

    /// Sends nothing until then, and afterwards everything from `una` on again.
    fn wait_to_repeat<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, wait: Wait, until: Instant) {
        self.requester.begin_wait(wait);
        // The transport timer stands still meanwhile: the QP has one deadline.
        self.deadline = None;
        self.set_deadline(ctx, until);
    }

    /// Does the QP still send requests?
    pub(crate) fn sends(&self) -> bool {
        match self.attr.state {
            QpState::Rts | QpState::Sqd => true,
            // Rule: RtrSendsNothing
            _ => false,
        }
    }
}
