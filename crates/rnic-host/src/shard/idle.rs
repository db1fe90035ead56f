//! When an engine without work spins and when it sleeps.

use crate::settings::{Idle, Settings};
use rnic_core::time::Instant;

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

    /// What to do after a turn that began at `now` and did something or not. `may_spin` is false
    /// when others need the CPU.
    #[inline]
    pub(super) fn after_turn(&mut self, now: Instant, worked: bool, may_spin: bool) -> Next {
        if worked {
            self.silent_since = None;
            return Next::Turn;
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
        assert_eq!(policy.after_turn(at(1000), true, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1100), false, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1149), false, true), Next::Turn);
        assert_eq!(policy.after_turn(at(1149), false, false), Next::Sleep);
        assert_eq!(policy.after_turn(at(1150), false, true), Next::Sleep);
    }

    #[test]
    fn busy_never_sleeps_and_event_always_does() {
        let later = Instant::from_nanos(u64::MAX);
        assert_eq!(policy(Idle::Busy).after_turn(later, false, true), Next::Turn);
        assert_eq!(policy(Idle::Event).after_turn(Instant::ZERO, false, true), Next::Sleep);
        assert_eq!(policy(Idle::Event).after_turn(Instant::ZERO, true, true), Next::Turn);
    }
}
