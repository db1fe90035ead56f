//! How an engine asks a program to share CPUs with it: one word of the doorbell area.
//!
//! The word is 0 where there are enough CPUs for all threads. A post or a poll then costs the
//! program one load of the word. A poll that finds nothing also makes the engine count its thread
//! ([`Bell::publish_poller`](crate::doorbell::Bell::publish_poller)): one load, and one store after
//! each count.

/// As the engine writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuHints {
    /// Publish the CPU of each thread that posts or polls
    /// ([`Bell::publish_cpu`](crate::doorbell::Bell::publish_cpu)): the engine then moves to that
    /// CPU.
    pub report_cpu: bool,
    /// Where to yield.
    pub yield_on: YieldOn,
    /// Sleep until there is a completion
    /// ([`CqConsumer::prepare_sleep`](crate::cq::CqConsumer::prepare_sleep)) instead of yielding:
    /// yielding does not let every thread run that needs the CPU, or does not return the CPU in
    /// time.
    pub sleep: bool,
}

/// Where a thread yields its CPU (`sched_yield`) after a poll that finds nothing, or when it is
/// about to spin on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum YieldOn {
    /// Nowhere.
    #[default]
    Nowhere,
    /// On this CPU, which the engine uses.
    Cpu(u32),
    /// On every CPU: there are more spinning threads than CPUs.
    Everywhere,
}

/// As the program reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HintWord(pub(crate) u64);

const SLEEP: u64 = 1 << 32;
const REPORT_CPU: u64 = 1 << 33;
/// [`YieldOn`]: 0, a CPU plus one, or [`EVERYWHERE`].
const YIELD_ON: u64 = SLEEP - 1;
const EVERYWHERE: u64 = YIELD_ON;

impl CpuHints {
    pub(crate) fn encode(self) -> u64 {
        let yield_on = match self.yield_on {
            YieldOn::Nowhere => 0,
            YieldOn::Cpu(cpu) => (u64::from(cpu) + 1) & YIELD_ON,
            YieldOn::Everywhere => EVERYWHERE,
        };
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        yield_on | bit(self.sleep, SLEEP) | bit(self.report_cpu, REPORT_CPU)
    }
}

impl HintWord {
    /// [`CpuHints::report_cpu`].
    #[inline]
    pub fn reports_cpu(self) -> bool {
        self.0 & REPORT_CPU != 0
    }

    /// [`CpuHints::sleep`].
    #[inline]
    pub fn sleeps(self) -> bool {
        self.0 & SLEEP != 0
    }

    /// [`YieldOn::Everywhere`].
    #[inline]
    pub fn yields_everywhere(self) -> bool {
        self.0 & YIELD_ON == EVERYWHERE
    }

    /// True when a thread on this CPU yields.
    #[inline]
    pub fn yields_on(self, cpu: u32) -> bool {
        self.0 & YIELD_ON == u64::from(cpu) + 1 || self.yields_everywhere()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_what_the_engine_asks() {
        for (report_cpu, sleep) in [(false, false), (false, true), (true, false), (true, true)] {
            let ask = |yield_on| {
                let word = HintWord(CpuHints { report_cpu, yield_on, sleep }.encode());
                assert_eq!((word.reports_cpu(), word.sleeps()), (report_cpu, sleep));
                ([0, 1, 2].map(|cpu| word.yields_on(cpu)), word.yields_everywhere())
            };
            assert_eq!(ask(YieldOn::Cpu(1)), ([false, true, false], false));
            assert_eq!(ask(YieldOn::Everywhere), ([true; 3], true));
            assert_eq!(ask(YieldOn::Nowhere), ([false; 3], false));
        }
        assert_eq!(CpuHints::default().encode(), 0);
    }
}
