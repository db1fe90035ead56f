//! How the engine's thread notices that a program has stopped to drive.

use super::super::alarm::Alarm;
use super::Policy;
use rnic_abi::os::driving::Driving;
use rnic_core::Instant;
use std::cell::OnceCell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// The alarm rings so long after it was put off: a sixteenth of the time for which the program has
/// driven, within these limits. To put it off costs some microseconds in a virtual machine, where
/// it is the next interrupt of the CPU. Behind the scheduler's tick, which comes every 4 ms or
/// sooner, it is not.
const ALARM: (Duration, Duration) = (Duration::from_micros(250), Duration::from_millis(4));
const ALARM_SHARE: u32 = 16;
/// Where something else needs the CPU: the program loses it for a slice at a time, which is no
/// reason to take the engine from it.
pub(super) const ALARM_IN_CROWD: Duration = Duration::from_millis(12);
/// For how long the program is watched once the alarm has rung. Where something else had the CPU,
/// this thread may run before the program that could not put the alarm off.
const DOUBT: Duration = Duration::from_micros(100);
/// How often the engine's thread looks whether the program should go on.
const LOOK: Duration = Duration::from_millis(20);
/// How often it looks for turns where there is no alarm.
const LOOK_WITHOUT_ALARM: Duration = Duration::from_micros(200);

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

impl Policy {
    /// What the engine's thread looks at while it sleeps, from now on.
    pub(super) fn new_watch(&mut self, now: Instant) -> Watch {
        let driving = self.driven.driving;
        let alarm = self.alarm.get_or_init(|| Alarm::new().ok().map(Arc::new)).clone();
        let alarm = alarm.filter(|alarm| {
            alarm.has_rung();
            alarm.put_off(ALARM.0)
        });
        if alarm.is_none() {
            self.alarm = OnceCell::from(None);
        }
        let (turns, look_at) = (driving.turns(), now.after(LOOK));
        Watch { driving, alarm, turns, look_at, in_doubt: false, is_away: false }
    }

    /// A turn of the program begins.
    pub(super) fn note_turn(&mut self, now: Instant) {
        self.driven.driving.note_turn();
        if now >= self.put_off_at {
            self.put_off(now);
        }
    }

    pub(super) fn put_off(&mut self, now: Instant) {
        let wait = match () {
            () if self.crowd.is_on(now) => ALARM_IN_CROWD,
            // It sleeps between its turns.
            () if self.rest.is_known() => ALARM.1,
            () => (now.since(self.since) / ALARM_SHARE).clamp(ALARM.0, ALARM.1),
        };
        self.put_off_at = now.after(wait / 2);
        self.alarm.get().into_iter().flatten().for_each(|alarm| _ = alarm.put_off(wait));
    }
}
