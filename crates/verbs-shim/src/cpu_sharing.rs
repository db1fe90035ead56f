//! How a program shares CPUs with its engine and with other threads that poll.
//!
//! docs/cpu-sharing.md explains it with a picture. The engine writes what it asks for into the
//! doorbell area ([`HintWord`]). With fewer CPUs than spinning threads, the engine shares a CPU
//! with its program. It then asks the program to yield (`sched_yield`) after an empty poll and,
//! where [`YieldPredictor`] says so, after a post; or it asks threads whose polls find nothing to
//! sleep ([`streak`]). With enough CPUs it asks for nothing, and each of the three functions here
//! returns after one or two loads.

mod predictor;
mod streak;

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, Ordering},
};

pub(crate) use predictor::{YieldPredictor, ticks};
use rnic_abi::{cpu_hints::HintWord, doorbell::Poller};

use crate::{context::Context, cq::Cq};

/// Called after so many requests were posted, when they are visible and a sleeping engine was
/// woken.
#[inline]
pub(crate) fn after_post(context: &Context, posts: u32) {
    if context.is_driving() {
        if context.note_posts(posts) {
            // Tells the engine's thread where this one drives.
            yields_here(context, context.bell.cpu_hints());
        }
        return;
    }
    if yields_here(context, context.bell.cpu_hints()) && context.predictor.note_post() {
        yield_cpu();
    }
}

/// Called after a poll that found a completion.
#[inline]
pub(crate) fn after_full_poll(context: &Context) {
    context.predictor.note_full_poll();
    if streak::any() {
        streak::end();
    }
}

/// Called after a poll that found nothing.
#[inline]
pub(crate) fn after_empty_poll(cq: &Cq) {
    let context = cq.context();
    context.bell.publish_poller(this_thread());
    let hints = context.bell.cpu_hints();
    if context.is_driving() && !hints.yields_everywhere() {
        if context.is_crowded() || streak::any() {
            streak::rest(cq, context.is_crowded());
        }
        return;
    }
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

/// True when the engine asks threads on this CPU to yield. Publishes the thread's CPU if the engine
/// asks for that too.
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
