//! How a program shares CPUs with its engine and with other threads that poll.
//!
//! docs/cpu-sharing.md tells it with a picture. The engine says in the doorbell area what it asks
//! for ([`HintWord`]): with fewer CPUs than spinning threads it shares a CPU with its program,
//! which then yields (`sched_yield`) after an empty poll and, where [`YieldPredictor`] says so,
//! after a post; or it asks threads that poll for nothing to sleep ([`streak`]). With CPUs enough
//! it asks for nothing, and each of the three functions here returns after a load or two.

mod predictor;
mod streak;

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, Ordering},
};

pub(crate) use predictor::YieldPredictor;
use rnic_abi::{cpu_hints::HintWord, doorbell::Poller};

use crate::{context::Context, cq::Cq};

/// After work was made visible and, if it sleeps, the engine was woken.
#[inline]
pub(crate) fn after_post(context: &Context) {
    if yields_here(context, context.bell.cpu_hints()) && context.predictor.note_post() {
        yield_cpu();
    }
}

/// After a poll that found something.
#[inline]
pub(crate) fn after_full_poll(context: &Context) {
    context.predictor.note_full_poll();
    if streak::any() {
        streak::end();
    }
}

/// After a poll that found nothing.
#[inline]
pub(crate) fn after_empty_poll(cq: &Cq) {
    let context = cq.context();
    context.bell.publish_poller(this_thread());
    let hints = context.bell.cpu_hints();
    let yields = yields_here(context, hints);
    if yields {
        context.predictor.note_empty_poll();
    }
    if (hints.sleeps() || streak::any()) && streak::sleep(cq, hints.sleeps()) {
        return;
    }
    if yields {
        yield_cpu();
    }
}

/// True when another thread waits for the CPU of the calling thread, as far as the engine knows. It
/// is told which one that is, where it asks for that.
#[inline]
fn yields_here(context: &Context, hints: HintWord) -> bool {
    if !hints.reports_cpu() {
        return hints.yields_everywhere();
    }
    // SAFETY: no arguments, no effects; glibc reads it from the thread's rseq area.
    let Ok(cpu) = u32::try_from(unsafe { libc::sched_getcpu() }) else { return false };
    context.bell.publish_cpu(cpu);
    hints.yields_on(cpu)
}

#[inline]
fn yield_cpu() {
    // SAFETY: no arguments; it cannot fail on Linux.
    unsafe { libc::sched_yield() };
}

/// The number of the calling thread in this process.
#[inline]
fn this_thread() -> Poller {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static THIS: Cell<Option<Poller>> = const { Cell::new(None) };
    }
    THIS.get().unwrap_or_else(|| {
        let new = Poller::new(NEXT.fetch_add(1, Ordering::Relaxed));
        THIS.set(Some(new));
        new
    })
}
