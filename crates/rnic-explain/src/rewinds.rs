//! Where a requester went back to, and why.

use roce_wire::Psn;
use std::time::Duration;

/// A requester that went back so often to the same PSN gets on no more.
const OFTEN: u32 = 3;
/// A finite rnr_retry is at most 6: what is refused more often is sent again for ever.
const MOST_RNR_NAKS: u32 = 7;
/// Senders keep the wait of an RNR NAK roughly, but not longer than so many times and this.
const WAITS: u32 = 4;
const LATE: Duration = Duration::from_millis(100);

/// Why a requester went back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    SequenceNak,
    RnrNak,
    /// A response with data is missing, but later ones came: an implied NAK.
    DataLost,
    Silence,
    Unknown,
}

/// A NAK that asks to send again, or what a requester takes for one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nak {
    pub(crate) cause: Cause,
    pub(crate) psn: Psn,
    pub(crate) at: Duration,
    /// How long the requester has to wait.
    pub(crate) wait: Duration,
}

impl Nak {
    pub(crate) fn new(cause: Cause, psn: Psn, at: Duration) -> Self {
        Self { cause, psn, at, wait: Duration::ZERO }
    }
}

/// What the requester did since the last progress.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    psn: Psn,
    /// How often it went back to this PSN without an RNR NAK.
    times: u32,
    /// What made it do so the last time.
    last: Option<Cause>,
    sequence_naks: u32,
    rnr_naks: u32,
}

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rewinds {
    pub(crate) after_nak: u64,
    pub(crate) after_rnr: u64,
    pub(crate) after_data_lost: u64,
    pub(crate) after_silence: u64,
    pub(crate) unexplained: u64,
    /// Packets from where it went back to, to the first that it had not sent yet.
    pub(crate) farthest: u32,
    /// How often it went back for something that the capture has: it was lost behind the capture.
    pub(crate) seen_before: u64,
    /// Why it went back the last time.
    pub(crate) current: Option<Cause>,
    /// The last time counts as one for something that the capture has.
    is_counted: bool,
    /// A NAK that was not acted upon yet.
    pub(crate) nak: Option<Nak>,
    stuck: Option<Stuck>,
}

/// A request that was never acknowledged, however often it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GivenUp {
    pub(crate) psn: Psn,
    /// How often it was sent again.
    pub(crate) times: u32,
    /// How often the other end asked for it meanwhile.
    pub(crate) sequence_naks: u32,
}

/// A request for which there was no receive, to the end of the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeverReady {
    pub(crate) psn: Psn,
    pub(crate) rnr_naks: u32,
    /// The requester had time to send it again, and did not.
    pub(crate) is_over: bool,
}

impl Rewinds {
    fn stuck_at(&mut self, psn: Psn) -> &mut Stuck {
        let anew = Stuck { psn, times: 0, last: None, sequence_naks: 0, rnr_naks: 0 };
        let known = self.stuck.filter(|stuck| stuck.psn == psn);
        self.stuck.insert(known.unwrap_or(anew))
    }

    /// The requester sends this again, so many packets before the end of what it sent. The other
    /// end may have acknowledged it.
    pub(crate) fn note(&mut self, psn: Psn, distance: u32, is_silent: bool, is_known: bool) {
        let cause = match self.nak.take() {
            Some(nak) => nak.cause,
            None if is_silent => Cause::Silence,
            None => Cause::Unknown,
        };
        match cause {
            Cause::SequenceNak => self.after_nak += 1,
            Cause::RnrNak => self.after_rnr += 1,
            Cause::DataLost => self.after_data_lost += 1,
            Cause::Silence => self.after_silence += 1,
            Cause::Unknown => self.unexplained += 1,
        }
        self.farthest = self.farthest.max(distance);
        self.current = Some(cause);
        self.is_counted = !matches!(cause, Cause::RnrNak | Cause::DataLost) && !is_known;
        self.seen_before += u64::from(self.is_counted);
        let stuck = self.stuck_at(psn);
        stuck.times = stuck.times.saturating_add(u32::from(cause != Cause::RnrNak));
        stuck.last = Some(cause);
    }

    /// Among what the requester sends again is something that the capture does not have, which is
    /// why it does so: of the others, nothing tells that they were lost.
    pub(crate) fn fills_gap(&mut self) {
        self.seen_before -= u64::from(self.is_counted);
        self.is_counted = false;
    }

    /// The requester sends this for the first time.
    pub(crate) fn goes_on(&mut self, psn: Psn) {
        self.nak = self.nak.filter(|nak| nak.psn != psn);
    }

    /// Everything up to this was acknowledged, for the first time.
    pub(crate) fn progress(&mut self, psn: Psn) {
        self.stuck = None;
        self.nak = self.nak.filter(|nak| psn.distance_from(nak.psn) < 0);
    }

    /// A NAK came.
    pub(crate) fn refused(&mut self, nak: Nak) {
        let stuck = self.stuck_at(nak.psn);
        match nak.cause {
            Cause::RnrNak => stuck.rnr_naks = stuck.rnr_naks.saturating_add(1),
            Cause::SequenceNak => stuck.sequence_naks = stuck.sequence_naks.saturating_add(1),
            Cause::DataLost | Cause::Silence | Cause::Unknown => {}
        }
        // Linux's rxe sends a sequence NAK, too, for what comes behind the refused packet: the
        // cause is that there was no receive.
        let is_behind = nak.cause == Cause::SequenceNak
            && self.nak.is_some_and(|one| one.cause == Cause::RnrNak && one.psn == nak.psn);
        if !is_behind {
            self.nak = Some(nak);
        }
    }

    /// The PSN that the requester sent again and again, to the end.
    pub(crate) fn given_up(&self) -> Option<GivenUp> {
        let Stuck { psn, times, last, sequence_naks, .. } = self.stuck?;
        let is_often = times >= OFTEN && last != Some(Cause::RnrNak);
        is_often.then_some(GivenUp { psn, times, sequence_naks })
    }

    /// The PSN for which there was no receive, to the `end` of the capture. A requester that tries
    /// for ever (rnr_retry 7) and one that waits to try again have not given up.
    pub(crate) fn never_ready(&self, end: Duration) -> Option<NeverReady> {
        let Stuck { psn, rnr_naks, .. } = self.stuck?;
        let nak = self.nak.filter(|nak| nak.cause == Cause::RnrNak && nak.psn == psn)?;
        let last = nak.at.saturating_add(nak.wait.saturating_mul(WAITS)).saturating_add(LATE);
        let is_over = end > last && rnr_naks <= MOST_RNR_NAKS;
        (is_over || rnr_naks >= OFTEN).then_some(NeverReady { psn, rnr_naks, is_over })
    }
}
