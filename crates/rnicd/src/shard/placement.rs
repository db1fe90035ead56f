//! Where the engine's thread runs, and who gives way to whom.
//!
//! With fewer CPUs than spinning threads, engine and program sit on one CPU and hand it over: the
//! engine gives way only after it delivered something, the program after posting and when a poll
//! finds nothing. Then each runs exactly when it has something to do. Giving way at every turn
//! that found nothing, or never, costs milliseconds instead: threads of equal weight change places
//! only at the end of their slices.
//!
//! Giving way only reaches threads of the same scheduling group, and a daemon that a service
//! manager started is not in that of its programs. The engine then sleeps as soon as it has
//! nothing to do: waking up is what takes a CPU from a thread of another group.

use crate::config::Placement as Policy;
use rnic_core::Engine;
use rnic_core::time::Instant;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity, sched_yield};

/// Follows programs from CPU to CPU.
#[derive(Debug)]
pub(crate) struct Placement {
    follows: bool,
    allowed: Option<CpuSet>,
    /// The CPU shared with a program.
    cpu: Option<u32>,
    looked: Instant,
    /// Some programs are in another scheduling group.
    strangers: bool,
}

/// How often to look where programs are, nanoseconds.
const LOOK_EVERY: u64 = 500_000;
/// With this many CPUs, engine and program each get one of their own.
const ENOUGH_CPUS: u32 = 4;
/// The slice that the engine's thread asks for, nanoseconds: the shorter the slice, the sooner a
/// waking thread gets the CPU.
const SLICE: u64 = 100_000;

impl Placement {
    /// For the calling thread.
    pub(crate) fn new(policy: Policy) -> Self {
        let allowed = sched_getaffinity(None).ok();
        let cpus = allowed.as_ref().map_or(ENOUGH_CPUS, CpuSet::count);
        let follows = match policy {
            Policy::Program => true,
            Policy::Free => false,
            Policy::Auto => cpus < ENOUGH_CPUS,
        };
        if let Err(error) = crate::system::request_slice(SLICE) {
            tracing::debug!("the scheduler grants no short slice: {error}");
        }
        Self { follows, allowed, cpu: None, looked: Instant::ZERO, strangers: false }
    }

    /// Whether some programs are in another scheduling group.
    pub(crate) fn set_strangers(&mut self, strangers: bool, engine: &mut Engine) {
        self.strangers = strangers;
        if strangers && self.cpu.is_some() {
            self.cpu = self.move_to(None);
            engine.publish_engine_cpu(None);
        }
    }

    /// True when spinning keeps nobody from running.
    #[inline]
    pub(crate) fn may_spin(&self) -> bool {
        !(self.follows && self.strangers)
    }

    /// Moves to the CPU of a program, when there is one to follow.
    #[inline]
    pub(crate) fn after_turn(&mut self, now: Instant, engine: &mut Engine) {
        let follows = self.follows && !self.strangers;
        if follows && now.as_nanos().saturating_sub(self.looked.as_nanos()) >= LOOK_EVERY {
            self.looked = now;
            self.look(engine);
        }
    }

    fn look(&mut self, engine: &mut Engine) {
        let target = engine.program_cpu(self.cpu);
        let here = u32::try_from(sched_getcpu()).ok();
        if target == self.cpu && (target.is_none() || target == here) {
            return;
        }
        self.cpu = self.move_to(target);
        engine.publish_engine_cpu(self.cpu);
    }

    /// Returns the CPU that is now shared.
    fn move_to(&self, target: Option<u32>) -> Option<u32> {
        let allowed = self.allowed.as_ref()?;
        match target.and_then(|cpu| usize::try_from(cpu).ok()) {
            Some(cpu) if cpu < CpuSet::MAX_CPU && allowed.is_set(cpu) => {
                let mut one = CpuSet::new();
                one.set(cpu);
                sched_setaffinity(None, &one).ok()?;
                target
            }
            _ => {
                let _ = sched_setaffinity(None, allowed);
                None
            }
        }
    }

    /// After the engine delivered something: lets the program look at it.
    #[inline]
    pub(crate) fn after_delivery(&self) {
        if self.cpu.is_some() {
            sched_yield();
        }
    }
}
