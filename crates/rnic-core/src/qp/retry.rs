//! Going back: timeouts, NAKs, RNR waits, and when to give up.

use super::Qp;
use super::completer::Answer;
use super::requester::Cursor;
use crate::event::{Event, RewindCause, Tap};
use crate::planted::{Bug, Rule};
use crate::profile::Profile;
use crate::shared::Ctx;
use rnic_abi::verbs::{QpState, WcStatus};
use roce_wire::headers::rnr_timer_ns;

/// RNR retry count that means "for ever".
const RNR_FOR_EVER: u8 = 7;

impl Qp {
    /// Nanoseconds until the local ACK timeout fires, which may be up to four times what the
    /// attribute says; `None` when it never does.
    fn ack_timeout(&self, profile: Profile) -> Option<u64> {
        match self.attr.timeout {
            0 if Rule::TimeoutZeroIsNever.applies() => None,
            exponent => {
                let timeout = profile.timeout(exponent);
                let range = if Rule::TimeoutRange.applies() { timeout } else { timeout / 4 };
                Some(profile.wait(range, self.requester.fired))
            }
        }
    }

    /// May it not go back once more?
    fn is_out_of_retries(&self, profile: Profile, cause: RewindCause) -> bool {
        if cause == RewindCause::Timeout && profile.retries_by_time() {
            let patience = profile.timeout(self.attr.timeout) * u64::from(self.attr.retry_cnt);
            return self.requester.waited >= patience;
        }
        self.requester.retries == 0
    }

    /// Starts the ACK timer over while something is outstanding, stops it otherwise.
    pub(crate) fn restart_timer<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        match self.ack_timeout(ctx.shared.config.profile) {
            Some(timeout) if self.requester.is_waiting() => {
                let deadline = ctx.now.after_nanos(timeout);
                ctx.set_deadline(self, deadline);
            }
            _ if Rule::TimerStops.applies() && !Bug::LateTimer.is_planted() => self.deadline = None,
            _ => {}
        }
    }

    /// A request left: the timer runs unless it does already.
    #[inline]
    pub(crate) fn ensure_timer<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        if self.deadline.is_none() && Rule::TimerArms.applies() {
            self.restart_timer(ctx);
        }
    }

    /// The QP's deadline has passed.
    pub(crate) fn handle_timer<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) {
        self.deadline = None;
        if self.requester.in_rnr_wait {
            self.requester.in_rnr_wait = false;
            let (qpn, to) = (self.qpn, self.requester.una);
            ctx.event(|| Event::Rewound { qpn, to, cause: RewindCause::Rnr });
            ctx.activate(self);
        } else if self.requester.is_waiting() || !Rule::TimerStops.applies() {
            self.counters.timeouts += 1;
            ctx.shared.counters.local_ack_timeout_err += 1;
            let waited = self.ack_timeout(ctx.shared.config.profile).unwrap_or(0);
            self.requester.waited = self.requester.waited.saturating_add(waited);
            self.requester.fired = self.requester.fired.saturating_add(1);
            if let Answer::Fail(status) = self.retry(ctx, RewindCause::Timeout) {
                self.fail_request(ctx, status);
            }
        }
    }

    /// Goes back to the oldest unacknowledged packet, if the retries allow it.
    fn retry<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, cause: RewindCause) -> Answer {
        let ends = Rule::RetriesEnd.applies() && !Bug::RetryNeverEnds.is_planted();
        let profile = ctx.shared.config.profile;
        if ends && self.is_out_of_retries(profile, cause) {
            ctx.shared.counters.req_retry_exceeded += 1;
            return Answer::Fail(WcStatus::RetryExcErr);
        }
        let by_time = cause == RewindCause::Timeout && profile.retries_by_time();
        if !by_time && costs_retry(cause, self.attr.retry_cnt) {
            self.requester.retries = self.requester.retries.saturating_sub(1);
        }
        self.rewind(ctx, cause);
        self.deadline = None;
        Answer::Done
    }

    /// Sets the cursor back to `una`. READs in flight count as not sent.
    pub(crate) fn rewind<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, cause: RewindCause) {
        let requester = &mut self.requester;
        if Rule::GoBackN.applies() {
            requester.cursor = Cursor { index: requester.acked_index, psn: requester.una };
        }
        if !Bug::RewindKeepsReads.is_planted() {
            requester.reads = 0;
        }
        let (qpn, to) = (self.qpn, requester.una);
        ctx.event(|| Event::Rewound { qpn, to, cause });
        ctx.activate(self);
    }

    /// NAK: PSN sequence error. Everything before it is acknowledged already.
    pub(crate) fn handle_sequence_nak<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> Answer {
        ctx.shared.counters.packet_seq_err += 1;
        let echo = std::mem::take(&mut self.requester.rnr_echo_due);
        if (self.requester.in_rnr_wait || echo) && Rule::SequenceNakInRnrWait.applies() {
            // Some peers send one behind an RNR NAK for the packets they dropped. It may arrive
            // only when a short wait is over: then it must not cost a retry either.
            return Answer::Done;
        }
        if !Rule::SequenceNakRewinds.applies() {
            return Answer::Done;
        }
        self.retry(ctx, RewindCause::SequenceNak)
    }

    /// A later response came although an earlier READ or atomic has none: it was lost.
    pub(crate) fn implied_nak<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>) -> Answer {
        if self.requester.implied_at == Some(self.requester.una) || self.requester.in_rnr_wait {
            return Answer::Done;
        }
        ctx.shared.counters.implied_nak_seq_err += 1;
        let answer = self.retry(ctx, RewindCause::ImpliedNak);
        self.requester.implied_at = Some(self.requester.una);
        answer
    }

    /// RNR NAK: nothing is sent until its time has passed.
    pub(crate) fn handle_rnr_nak<T: Tap>(&mut self, ctx: &mut Ctx<'_, T>, timer: u8) -> Answer {
        self.counters.rnr_naks_received += 1;
        ctx.shared.counters.rcvd_rnr_err += 1;
        if self.requester.in_rnr_wait {
            return Answer::Done;
        }
        let left = self.requester.rnr_retries;
        if left == 0 && Rule::RnrRetriesEnd.applies() {
            ctx.shared.counters.rnr_nak_retry_err += 1;
            return Answer::Fail(WcStatus::RnrRetryExcErr);
        }
        if left != RNR_FOR_EVER || !Rule::RnrSevenIsInfinite.applies() {
            self.requester.rnr_retries = left.saturating_sub(1);
        }
        if Rule::RnrResends.applies() {
            self.requester.cursor =
                Cursor { index: self.requester.acked_index, psn: self.requester.una };
        }
        self.requester.reads = 0;
        self.requester.in_rnr_wait = true;
        self.requester.rnr_echo_due = true;
        let wait = rnr_timer_ns(timer);
        let wait = if Bug::RnrHalfTime.is_planted() { wait / 2 } else { wait };
        let until = ctx.now.after_nanos(wait);
        // The transport timer stands still meanwhile: the QP has one deadline.
        self.deadline = None;
        ctx.set_deadline(self, until);
        Answer::Done
    }

    /// Does the QP still send requests?
    pub(crate) fn sends(&self) -> bool {
        match self.attr.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => !Rule::RtrSendsNothing.applies(),
            _ => false,
        }
    }
}

/// Timeouts, sequence NAKs and implied NAKs each cost a retry, and seven retries are seven.
fn costs_retry(cause: RewindCause, retry_cnt: u8) -> bool {
    let counts = match cause {
        RewindCause::SequenceNak => Rule::SequenceNakCostsRetry.applies(),
        RewindCause::ImpliedNak => Rule::ImpliedNakCostsRetry.applies(),
        RewindCause::Timeout | RewindCause::Rnr => true,
    };
    counts && (retry_cnt != 7 || Rule::SevenRetriesAreSeven.applies())
}
