//! The CPU that the engine's thread runs on.

use rnic_core::time::Instant;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// How often to look where programs are, nanoseconds.
const LOOK_EVERY: u64 = 500_000;

/// The calling thread's, which follows programs from CPU to CPU.
#[derive(Debug)]
pub(super) struct Affinity {
    allowed: Option<CpuSet>,
    /// The CPU shared with a program.
    shared: Option<u32>,
    looked: Instant,
}

impl Affinity {
    /// For the calling thread.
    pub(super) fn new() -> Self {
        Self { allowed: sched_getaffinity(None).ok(), shared: None, looked: Instant::ZERO }
    }

    /// How many CPUs the thread may run on, when the kernel tells.
    pub(super) fn cpus(&self) -> Option<u32> {
        self.allowed.as_ref().map(CpuSet::count)
    }

    #[inline]
    pub(super) fn shared(&self) -> Option<u32> {
        self.shared
    }

    /// Moves to the CPU of a program now and then, as `target` says from the one that is shared
    /// now. True when another one is shared from now on.
    #[inline]
    pub(super) fn follow(
        &mut self,
        now: Instant,
        target: impl FnOnce(Option<u32>) -> Option<u32>,
    ) -> bool {
        if now.as_nanos().saturating_sub(self.looked.as_nanos()) < LOOK_EVERY {
            return false;
        }
        self.looked = now;
        let target = target(self.shared);
        let here = u32::try_from(sched_getcpu()).ok();
        if target == self.shared && (target.is_none() || target == here) {
            return false;
        }
        self.shared = self.move_to(target);
        true
    }

    /// Shares no CPU any more.
    pub(super) fn leave(&mut self) {
        if self.shared.is_some() {
            self.shared = self.move_to(None);
        }
    }

    /// Returns the CPU that is now shared.
    fn move_to(&self, target: Option<u32>) -> Option<u32> {
        let allowed = self.allowed.as_ref()?;
        match target.and_then(|cpu| usize::try_from(cpu).ok()) {
            // A program may tell any number.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CPUs that the calling thread may run on.
    fn here() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    #[test]
    fn the_thread_follows_a_program_to_cpus_that_it_may_run_on() {
        let all = here();
        let mut affinity = Affinity::new();
        let mut micros = 0;
        let mut follow = |affinity: &mut Affinity, target| {
            micros += LOOK_EVERY / 1000;
            affinity.follow(Instant::from_nanos(micros * 1000), |_| target)
        };
        for &cpu in &all {
            let target = u32::try_from(cpu).unwrap();
            assert!(follow(&mut affinity, Some(target)));
            assert_eq!((affinity.shared(), here()), (Some(target), vec![cpu]));
            assert!(!follow(&mut affinity, Some(target)), "it is there already");
        }
        // A program writes any number.
        let max = u32::try_from(CpuSet::MAX_CPU).unwrap();
        let absent = (0..max).find(|cpu| !all.contains(&(*cpu as usize)));
        for target in [absent, Some(max), Some(u32::MAX - 1), Some(u32::MAX), None] {
            follow(&mut affinity, u32::try_from(all[0]).ok());
            assert!(follow(&mut affinity, target));
            assert_eq!((affinity.shared(), here()), (None, all.clone()), "{target:?}");
        }
        follow(&mut affinity, u32::try_from(all[0]).ok());
        affinity.leave();
        assert_eq!((affinity.shared(), here()), (None, all));
    }
}
