//! How soon an engine process that has died is started again.
//!
//! A user may kill its engine process as often as it likes, and one that is broken dies by itself.
//! To start it takes time of the machine and of the daemon, so a user whose processes die one after
//! the other waits for the next one. Its clients are refused meanwhile: they know best whether to
//! try again, and connections that wait would be the daemon's to keep.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The users whose engine processes have died of late, by user id: all groups of a user are one
/// user.
#[derive(Default)]
pub(super) struct Restarts(BTreeMap<u32, Deaths>);

struct Deaths {
    in_a_row: u32,
    /// When the next process may be started.
    until: Instant,
}

/// What a client is told that comes too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooSoon {
    pub(super) deaths: u32,
    pub(super) left: Duration,
}

impl Restarts {
    /// A process of a user died `now`, after it had lived for some time.
    pub(super) fn died(&mut self, uid: u32, lived: Duration, now: Instant) {
        // What is not forgotten would be one entry for every user ever.
        self.0.retain(|_, deaths| now < deaths.until + LONG_LIFE);
        let deaths = self.0.entry(uid).or_insert(Deaths { in_a_row: 0, until: now });
        if lived >= LONG_LIFE {
            deaths.in_a_row = 0;
        }
        deaths.in_a_row = deaths.in_a_row.saturating_add(1);
        // Another group's process may have died before, and have the longer wait.
        deaths.until = deaths.until.max(now + delay(deaths.in_a_row));
    }

    /// Whether it is too soon for the next process of a user.
    pub(super) fn too_soon(&self, uid: u32, now: Instant) -> Option<TooSoon> {
        let deaths = self.0.get(&uid)?;
        let left = deaths.until.saturating_duration_since(now);
        (!left.is_zero()).then_some(TooSoon { deaths: deaths.in_a_row, left })
    }
}

/// After so many deaths: none after the first one.
fn delay(deaths: u32) -> Duration {
    match deaths.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_DELAY.saturating_mul(1 << doublings.min(16)).min(LONGEST_DELAY),
    }
}

/// After the second death in a row; each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// A process that lived so long, or a user without a death for so long, begins anew.
const LONG_LIFE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn the_first_restart_is_at_once_and_the_next_ones_wait_longer_and_longer() {
        let (mut restarts, mut now) = (Restarts::default(), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..40 {
            restarts.died(7, SHORT, now);
            let left = restarts.too_soon(7, now).map_or(Duration::ZERO, |soon| soon.left);
            delays.push(left.as_millis());
            now += left;
            assert_eq!(restarts.too_soon(7, now), None, "the wait is over");
        }
        assert_eq!(delays[..9], [0, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(delays[9..].iter().all(|delay| *delay == 1000));
    }

    #[test]
    fn a_user_waits_for_its_own_deaths_only() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        (0..3).for_each(|_| restarts.died(7, SHORT, now));
        let left = Duration::from_millis(40);
        assert_eq!(restarts.too_soon(7, now), Some(TooSoon { deaths: 3, left }));
        assert_eq!(restarts.too_soon(8, now), None);
    }

    #[test]
    fn a_long_life_and_a_long_time_begin_anew() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        (0..9).for_each(|_| restarts.died(7, SHORT, now));
        let later = now + LONGEST_DELAY;
        restarts.died(7, LONG_LIFE, later);
        assert_eq!(restarts.too_soon(7, later), None);
        (0..9).for_each(|_| restarts.died(7, SHORT, later));
        let much_later = later + LONGEST_DELAY + LONG_LIFE;
        restarts.died(7, SHORT, much_later);
        assert_eq!(restarts.too_soon(7, much_later), None);
    }

    #[test]
    fn users_whose_processes_died_long_ago_take_no_memory() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        for uid in 0..10_000 {
            restarts.died(uid, SHORT, now + LONG_LIFE * uid);
        }
        assert_eq!(restarts.0.len(), 1);
    }
}
