//! On which CPU the engine runs.
//!
//! With a CPU to spare the scheduler decides. When the engine, spinning, finds that it was put
//! aside for long, there are fewer CPUs than threads that spin. It then shares the CPU of its
//! program: the program gives way after posting and when it finds nothing, the engine when it has
//! delivered something, and neither waits for the end of the other's time slice. After a while
//! the engine tries again whether it has become less crowded.

use rnic_core::{Engine, Instant};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::Duration;

/// See the [module](self).
pub(super) struct Placement {
    /// Where the scheduler may put us.
    allowed: CpuSet,
    /// Where we sit because it is crowded.
    seat: Option<u32>,
    /// When to look again: for another seat, or whether a seat is needed at all.
    next_look: Instant,
    leave_at: Instant,
    patience: Duration,
    last_turn: Instant,
}

impl Placement {
    pub(super) fn new() -> Self {
        // Without knowing the set there is only the scheduler's choice.
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        Self {
            allowed,
            seat: None,
            next_look: Instant::ZERO,
            leave_at: Instant::ZERO,
            patience: FIRST_PATIENCE,
            last_turn: Instant::ZERO,
        }
    }

    /// True when the program shares our CPU.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.seat.is_some()
    }

    /// After waking up: the time spent asleep says nothing.
    #[inline]
    pub(super) fn woke(&mut self, now: Instant) {
        self.last_turn = now;
    }

    /// After a turn that began at `now`.
    #[inline]
    pub(super) fn after_turn(&mut self, now: Instant, worked: bool, engine: &mut Engine) {
        let gap = now.since(self.last_turn);
        self.last_turn = now;
        if self.seat.is_none() {
            if !worked && gap > PUT_ASIDE {
                self.sit_down(now, engine);
            }
        } else if now >= self.next_look {
            self.look(now, engine);
        }
    }

    fn sit_down(&mut self, now: Instant, engine: &mut Engine) {
        self.leave_at = now.after(self.patience);
        self.patience = (self.patience * 2).min(LONGEST_PATIENCE);
        self.take_seat(now, engine);
    }

    fn look(&mut self, now: Instant, engine: &mut Engine) {
        if now < self.leave_at {
            return self.take_seat(now, engine);
        }
        if now.since(self.leave_at) > LONGEST_PATIENCE {
            // Nothing happened for long: what was learnt is out of date.
            self.patience = FIRST_PATIENCE;
        }
        self.seat = None;
        let _ = sched_setaffinity(None, &self.allowed);
        engine.publish_engine_cpu(None);
    }

    /// Goes where the program is.
    fn take_seat(&mut self, now: Instant, engine: &mut Engine) {
        self.next_look = now.after(LOOK_INTERVAL);
        let wanted = engine.program_cpu(self.seat);
        let Some(cpu) = wanted.filter(|cpu| self.is_allowed(*cpu)) else { return };
        if self.seat == Some(cpu) {
            return;
        }
        let mut only = CpuSet::new();
        only.set(cpu as usize);
        if sched_setaffinity(None, &only).is_ok() {
            self.seat = Some(cpu);
            engine.publish_engine_cpu(Some(cpu));
        }
    }

    fn is_allowed(&self, cpu: u32) -> bool {
        (cpu as usize) < CpuSet::MAX_CPU && self.allowed.is_set(cpu as usize)
    }
}

/// An idle turn takes a microsecond; an interrupt may take some more.
const PUT_ASIDE: Duration = Duration::from_micros(500);
/// Programs move between CPUs.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// How long to sit before trying without a seat; doubled each time it was too early.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);
const LONGEST_PATIENCE: Duration = Duration::from_secs(8);
