//! What the daemon asks of the operating system for its process.

use sd_notify::NotifyState;

/// Lets this process have as many descriptors as it may ask for.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // A failure leaves what there was, and the quotas follow from that.
    if current != maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Has the C library take address space as it is needed where that is limited: it takes 64 MiB in
/// advance for each of several threads otherwise.
#[allow(unsafe_code, reason = "no library wraps mallopt")]
pub(crate) fn prepare_for_little_memory() {
    #[cfg(target_env = "gnu")]
    if rustix::process::getrlimit(rustix::process::Resource::As).current.is_some() {
        // SAFETY: sets a number of the allocator.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Tells the service manager, when there is one.
pub(crate) fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
