//! What a thread does for the engine's sake around its posts and polls.
//!
//! The engine places itself by the CPU that programs run on. Where there are fewer CPUs than
//! spinning threads it shares one with its program and says so in the doorbell area; the program
//! then gives way after posting and when a poll finds nothing, the engine when it has delivered
//! something. A program that only polls its memory never comes by here, and need not.

use crate::context::Context;

/// After work was made visible and, if it sleeps, the engine was woken. A program with many
/// requests under way (`outstanding`) is about to post more of them or to poll, and the engine has
/// others to work at.
#[inline]
pub(crate) fn after_post(context: &Context, outstanding: u32) {
    if outstanding < A_STREAM {
        give_way(context);
    }
}

/// Requests under way that make a stream of them.
const A_STREAM: u32 = 8;

/// After a poll that found nothing.
#[inline]
pub(crate) fn after_empty_poll(context: &Context) {
    give_way(context);
}

/// Empty polls between two looks at whether the daemon still lives.
pub(crate) const LIVENESS_POLLS: u32 = 1024;

#[inline]
fn give_way(context: &Context) {
    // SAFETY: no arguments, no effects; glibc reads it from the thread's rseq area.
    let Ok(cpu) = u32::try_from(unsafe { libc::sched_getcpu() }) else { return };
    context.bell.publish_cpu(cpu);
    if context.bell.engine_waits_for(cpu) {
        // SAFETY: no arguments; it cannot fail on Linux.
        unsafe { libc::sched_yield() };
    }
}
