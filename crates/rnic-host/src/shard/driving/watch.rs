//! How the engine's thread notices that a program has stopped to drive.

use super::super::alarm::Alarm;
use super::{DOUBT, LOOK, LOOK_WITHOUT_ALARM};
use rnic_abi::os::driving::Driving;
use rnic_core::Instant;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// What the engine's thread looks at while it sleeps, without the lock.
pub(in super::super) struct Watch {
    pub(super) driving: &'static Driving,
    pub(super) alarm: Option<Arc<Alarm>>,
    /// Of the program, when this was last looked at.
    pub(super) turns: u64,
    /// When to look next whether the program should go on.
    pub(super) look_at: Instant,
    /// The program seems to have stopped, and is watched for a moment.
    pub(super) in_doubt: bool,
    pub(super) is_away: bool,
}

impl Watch {
    /// What rings when the program seems to have stopped.
    pub(in super::super) fn alarm(&self) -> Option<RawFd> {
        self.alarm.as_ref().map(|alarm| alarm.fd())
    }

    /// For how long to sleep.
    pub(in super::super) fn patience(&self, now: Instant) -> Duration {
        let look = self.look_at.since(now);
        match &self.alarm {
            _ if self.in_doubt => DOUBT,
            Some(_) => look,
            None => look.min(LOOK_WITHOUT_ALARM),
        }
    }

    /// After a sleep that nothing but the alarm has ended: whether to sleep on.
    pub(in super::super) fn goes_on(&mut self, now: Instant) -> bool {
        let was_in_doubt = std::mem::take(&mut self.in_doubt);
        let made_none = self.made_no_turn();
        let has_rung = self.has_rung();
        self.is_away = was_in_doubt && made_none;
        self.in_doubt = !self.is_away && (made_none || has_rung);
        !self.is_away && !self.is_due(now) && !self.driving.is_withdrawn()
    }

    /// After a sleep that was ended otherwise: whether the program made no turn meanwhile. When
    /// that was in doubt already, it has stopped.
    pub(super) fn was_quiet(&mut self) -> bool {
        let made_none = self.made_no_turn();
        let has_rung = self.has_rung();
        self.is_away |= made_none && (self.in_doubt || has_rung);
        self.in_doubt = has_rung;
        made_none
    }

    /// The program has stopped.
    pub(super) fn is_away(&self) -> bool {
        self.is_away
    }

    /// It is time to look whether the program should go on.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.look_at
    }

    /// It should go on: looks again when it is time.
    pub(super) fn looked(mut self, now: Instant) -> Self {
        if self.is_due(now) {
            self.look_at = now.after(LOOK);
        }
        self
    }

    fn has_rung(&self) -> bool {
        self.alarm.as_ref().is_some_and(|alarm| alarm.has_rung())
    }

    fn made_no_turn(&mut self) -> bool {
        let turns = self.driving.turns();
        std::mem::replace(&mut self.turns, turns) == turns
    }
}
