//! What a thread does for the engine's sake around its posts and polls.
//!
//! The engine places itself by the processor that programs run on. The one place for the policy of handing the
//! processor over when there are fewer of them than spinning threads; today none is handed over.

use crate::context::Context;

/// After work was made visible and, if it sleeps, the engine was woken.
#[inline]
pub(crate) fn after_post(context: &Context) {
    publish_cpu(context);
}

/// After every [`EMPTY_POLLS`]th poll in a row that found nothing.
#[inline]
pub(crate) fn after_empty_polls(context: &Context) {
    publish_cpu(context);
}

/// Empty polls between two calls of [`after_empty_polls`].
pub(crate) const EMPTY_POLLS: u32 = 64;

/// Empty polls between two looks at whether the daemon still lives.
pub(crate) const LIVENESS_POLLS: u32 = 1024;

const _: () = assert!(LIVENESS_POLLS.is_multiple_of(EMPTY_POLLS));

#[inline]
fn publish_cpu(context: &Context) {
    // SAFETY: no arguments, no effects; glibc reads it from the thread's rseq area.
    if let Ok(cpu) = u32::try_from(unsafe { libc::sched_getcpu() }) {
        context.bell.publish_cpu(cpu);
    }
}
