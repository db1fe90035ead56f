//! How the engine's thread shares CPUs with programs that spin.
//!
//! docs/cpu-sharing.md tells it with a picture. In short: with fewer CPUs than spinning threads,
//! engine and program share one CPU. The engine yields (`sched_yield`) only after it delivered
//! something, the program after a post and after an empty poll. Then each runs exactly when it has
//! something to do. Yielding after every idle turn, or never, costs milliseconds instead: threads
//! of equal weight switch only at the end of a slice.
//!
//! A yield reaches only threads of the same scheduling group, and a daemon that a service manager
//! started is in another group than its programs. And a yield may hand the CPU to any thread:
//! beside a third one that computes, each costs a slice. In both cases the engine sleeps as soon as
//! it has nothing to do, because a thread that wakes preempts others. Programs that poll again and
//! again for nothing are asked to sleep too, until the engine wakes them.
//!
//! With more polling threads than CPUs, those on the engine's CPU would yield and all others would
//! spin, each to the end of its slice. Then all yield, on every CPU. That is better than sleep:
//! each thread gets its turn for the price of a switch.
//!
//! A thread of a program that drives does not yield. What tells it of others is the time in which
//! it had no CPU ([`crowd`]).
//!
//! With CPUs enough nothing of this happens: only the threads that poll are still counted.

mod affinity;
mod backoff;
mod contention;
mod crowd;

use super::monotonic;
use super::nic::Nic;
use crate::settings::Placement as Policy;
use crate::system;
use affinity::Affinity;
use backoff::{CompletionYield, PostYield};
use contention::{Contention, Pollers};
pub(super) use crowd::Crowd;
use rnic_abi::cpu_hints::{CpuHints, YieldOn};
use rnic_core::time::Instant;
use rnic_core::{Engine, Turn};
use std::time::Duration;

/// Decides when the engine's thread yields, and asks programs to do the same.
#[derive(Debug)]
pub(super) struct CpuSharing {
    /// The engine goes where programs are.
    follows: bool,
    affinity: Affinity,
    /// Slices mean something. Asked at first: later a filter may not let the thread ask.
    is_scheduled_fairly: bool,
    /// Some programs are in another scheduling group.
    other_group: bool,
    contention: Contention,
    pollers: Pollers,
    /// Something was delivered, and the program that shares the CPU has not run since.
    yield_pending: bool,
    /// There was more to send than the last turn could.
    has_backlog: bool,
    yielded: Instant,
    completions: CompletionYield,
    posts: PostYield,
}

/// With this many CPUs, engine and program each get one of their own.
const ENOUGH_CPUS: u32 = 4;
/// The slice of an engine that does not yield, nanoseconds: the shorter the slice, the sooner a
/// waking thread preempts one that spins.
const SHORT_SLICE: u64 = 100_000;
/// The kernel's default slice. EEVDF charges a thread that yields the rest of its slice: of two
/// threads that yield to each other, the one with the longer slice gathers lag and is delayed.
const USUAL_SLICE: u64 = 0;
const MAX_YIELDS: u32 = 3;
/// No other thread ran while a yield took less.
const AWAY: Duration = Duration::from_nanos(900);
/// For how long an engine that has something to send does not yield for what it delivered.
const STREAM: Duration = Duration::from_micros(100);
/// How much later than the other of two packets that were sent together one may come: a link
/// without trains carries the first all the way before it takes the second.
const LINGER: Duration = Duration::from_micros(4);

impl CpuSharing {
    /// For the calling thread.
    pub(super) fn new(policy: Policy, engine: &mut Engine) -> Self {
        let affinity = Affinity::new();
        let cpus = affinity.cpus().unwrap_or(ENOUGH_CPUS);
        let follows = match policy {
            Policy::Program => true,
            Policy::Free => false,
            Policy::Auto => cpus < ENOUGH_CPUS,
        };
        let sharing = Self {
            follows,
            affinity,
            is_scheduled_fairly: system::is_scheduled_fairly(),
            other_group: false,
            contention: Contention::default(),
            pollers: Pollers::new(cpus),
            yield_pending: false,
            has_backlog: false,
            yielded: Instant::ZERO,
            completions: CompletionYield::default(),
            posts: PostYield::default(),
        };
        sharing.tell(engine);
        sharing
    }

    /// Whether some programs are in another scheduling group.
    pub(super) fn set_other_group(&mut self, other_group: bool, engine: &mut Engine) {
        if std::mem::replace(&mut self.other_group, other_group) == other_group {
            return;
        }
        if other_group {
            self.affinity.leave();
        }
        self.tell(engine);
    }

    /// A program rang while the engine slept.
    pub(super) fn note_wakeup(&mut self) {
        self.posts.note_wakeup();
    }

    /// True when spinning keeps no other thread from running.
    #[inline]
    pub(super) fn may_spin(&self) -> bool {
        !self.needs_sleep() && !self.pollers.are_many()
    }

    /// Between arrivals and departures: programs take what was delivered before anything is sent,
    /// in a stream not at once, but now and then. Returns all that arrived, and the time.
    #[inline]
    pub(super) fn after_arrivals(
        &mut self,
        now: Instant,
        arrived: Turn,
        nic: &mut Nic,
    ) -> (Turn, Instant) {
        if !self.follows {
            return (arrived, now);
        }
        self.yield_pending |= arrived.delivered();
        let streams = self.has_backlog && now < self.yielded.after(STREAM);
        if !self.yield_pending || streams || !self.shares_cpu() {
            return (arrived, now);
        }
        let (arrived, now) = wait_for_payload(now, arrived, nic);
        self.yield_for_delivery(now, arrived, nic)
    }

    /// After departures: programs that post one request after the other run when what they posted
    /// is sent.
    #[inline]
    pub(super) fn after_departures(&mut self, departed: Turn, nic: &mut Nic) {
        if !self.follows {
            return;
        }
        self.has_backlog = departed.more;
        self.completions.conclude(departed.rang);
        let all_sent = departed.rang && !departed.more;
        let is_due = self.posts.is_due(all_sent, departed.rang);
        if (departed.delivered() || is_due) && self.shares_cpu() {
            self.yield_cpu(nic);
        }
    }

    /// Moves to the CPU of a program, when there is one to follow, and looks whether yielding is
    /// still the right thing to do.
    #[inline]
    pub(super) fn after_turn(&mut self, now: Instant, engine: &mut Engine) {
        let mut changed = self.contention.ends(now);
        changed |= self.pollers.change(now, || engine.take_pollers());
        if self.follows && !self.other_group {
            changed |= self.affinity.follow(now, |shared| engine.program_cpu(shared));
        }
        if changed {
            self.tell(engine);
        }
    }

    /// True when engine and program yield to each other.
    #[inline]
    fn shares_cpu(&self) -> bool {
        self.affinity.shared().is_some() && !self.contention.is_on() && !self.pollers.are_many()
    }

    /// True when yielding is of no use, or costs too much.
    #[inline]
    fn needs_sleep(&self) -> bool {
        (self.follows && self.other_group) || self.contention.is_on()
    }

    /// Tells programs where to yield, and whether to sleep rather; and the scheduler which slice
    /// is right for that.
    fn tell(&self, engine: &mut Engine) {
        if self.is_scheduled_fairly {
            request_slice(if self.shares_cpu() { USUAL_SLICE } else { SHORT_SLICE });
        }
        let many = self.pollers.are_many();
        let yield_on = match self.affinity.shared() {
            _ if many => YieldOn::Everywhere,
            Some(cpu) => YieldOn::Cpu(cpu),
            None => YieldOn::Nowhere,
        };
        let sleep = self.needs_sleep() && !many;
        engine.ask_programs(CpuHints { report_cpu: self.follows, yield_on, sleep });
    }

    /// Yields for what was delivered, unless that is of no use. Returns all that arrived, and the
    /// time.
    fn yield_for_delivery(
        &mut self,
        now: Instant,
        arrived: Turn,
        nic: &mut Nic,
    ) -> (Turn, Instant) {
        let only_completed = arrived.completed && !arrived.placed;
        if only_completed && !self.completions.is_due() {
            self.yield_pending = false;
            return (arrived, now);
        }
        let back = self.yield_cpu(nic);
        if only_completed {
            self.completions.note_yield(now, back);
        }
        self.wait_for_completion(back, arrived, nic)
    }

    /// Data came without the completion that a program which answers it may be waiting for. An ACK
    /// that left now would reach the peer before that answer, and its program would spin on its
    /// memory, where it never yields. Returns all that arrived, and the time.
    fn wait_for_completion(
        &mut self,
        mut now: Instant,
        mut arrived: Turn,
        nic: &mut Nic,
    ) -> (Turn, Instant) {
        let patience = now.after(LINGER);
        while arrived.placed && !arrived.completed && nic.wire.expects_more() && now < patience {
            let next = nic.arrivals(now);
            arrived = arrived.and(next);
            now = if next.delivered() { self.yield_cpu(nic) } else { monotonic() };
        }
        (arrived, now)
    }

    /// Lets the program run that shares the CPU. Returns the time.
    fn yield_cpu(&mut self, nic: &mut Nic) -> Instant {
        let before = monotonic();
        let mut now = before;
        // The program may owe the scheduler a slice more than the engine does, which then goes on
        // at once.
        for _ in 0..MAX_YIELDS {
            rustix::thread::sched_yield();
            let after = monotonic();
            let was_away = after.since(now) > AWAY;
            now = after;
            if was_away {
                break;
            }
        }
        if self.contention.begins(before, now) {
            self.tell(&mut nic.engine);
        }
        self.yield_pending = false;
        self.yielded = now;
        now
    }
}

/// A completion came without data. When an answer follows it on the wire, the program must see both
/// at once: one that spins on its receive buffer never yields. Returns all that arrived, and the
/// time.
fn wait_for_payload(mut now: Instant, mut arrived: Turn, nic: &mut Nic) -> (Turn, Instant) {
    let patience = now.after(LINGER);
    while arrived.completed && !arrived.placed && nic.wire.expects_more() && now < patience {
        arrived = arrived.and(nic.arrivals(now));
        now = monotonic();
    }
    (arrived, now)
}

fn request_slice(nanos: u64) {
    if let Err(error) = system::request_slice(nanos) {
        tracing::debug!("the scheduler grants no slice of {nanos} ns: {error}");
    }
}
