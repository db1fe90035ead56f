//! When an engine without work spins and when it sleeps.

use crate::settings::{Idle, Settings};
use rnic_core::time::Instant;

/// What a turn has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Did {
    Nothing,
    /// Only what other threads have asked for, or management datagrams for one of them. That is no
    /// reason to spin: the other thread goes on next, and may need this CPU for it.
    Commands,
    /// What arrives soon after what came before.
    Work,
}

/// What to do after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Turn again at once.
    Turn,
    /// Wait for something to happen.
    Sleep,
}

/// Decides from how long nothing happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdlePolicy {
    idle: Idle,
    spin_nanos: u64,
    /// When nothing was to be done for the first time; none since the last work.
    silent_since: Option<Instant>,
}

impl IdlePolicy {
    /// As configured.
    pub(super) fn new(settings: &Settings) -> Self {
        let spin_nanos = u64::try_from(settings.spin.as_nanos()).unwrap_or(u64::MAX);
        Self { idle: settings.idle, spin_nanos, silent_since: None }
    }

    /// The engine's thread is to sleep when there is nothing to do for some time.
    pub(super) fn is_adaptive(&self) -> bool {
        self.idle == Idle::Adaptive
    }

    /// What to do after a turn that began at `now`. `may_spin` is false when others need the CPU.
    #[inline]
    pub(super) fn after_turn(&mut self, now: Instant, did: Did, may_spin: bool) -> Next {
        match did {
            Did::Nothing => {}
            Did::Commands => return Next::Turn,
            Did::Work => {
                self.silent_since = None;
                return Next::Turn;
            }
        }
        // A turn that works may take longer than any silence lasts.
        let since = *self.silent_since.get_or_insert(now);
        let silent = now.as_nanos().saturating_sub(since.as_nanos());
        match self.idle {
            Idle::Busy => Next::Turn,
            Idle::Adaptive if may_spin && silent < self.spin_nanos => Next::Turn,
            Idle::Adaptive | Idle::Event => Next::Sleep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(idle: Idle) -> IdlePolicy {
        IdlePolicy { idle, spin_nanos: 50, silent_since: None }
    }

    #[test]
    fn adaptive_spins_after_work_and_then_sleeps() {
        let mut policy = policy(Idle::Adaptive);
        let at = Instant::from_nanos;
        assert_eq!(policy.after_turn(at(1000), Did::Work, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1100), Did::Nothing, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1149), Did::Nothing, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1149), Did::Nothing, false), Next::Sleep);
        assert_eq!(policy.after_turn(at(1150), Did::Nothing, true), Next::Sleep);
    }

    #[test]
    fn commands_do_not_make_an_engine_spin() {
        let mut policy = policy(Idle::Adaptive);
        let at = Instant::from_nanos;
        assert_eq!(policy.after_turn(at(1000), Did::Work, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1100), Did::Nothing, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1140), Did::Commands, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1150), Did::Nothing, true), Next::Sleep);
        assert_eq!(policy.after_turn(at(9000), Did::Commands, true), Next::Turn);
        assert_eq!(policy.after_turn(at(9001), Did::Nothing, true), Next::Sleep);
    }

    #[test]
    fn busy_never_sleeps_and_event_always_does() {
        let later = Instant::from_nanos(u64::MAX);
        assert_eq!(policy(Idle::Busy).after_turn(later, Did::Nothing, true), Next::Turn);
        assert_eq!(policy(Idle::Event).after_turn(Instant::ZERO, Did::Nothing, true), Next::Sleep);
        assert_eq!(policy(Idle::Event).after_turn(Instant::ZERO, Did::Work, true), Next::Turn);
    }
}
