//! What the daemon asks of the operating system for its process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use sd_notify::NotifyState;

/// Lets this process have as many descriptors as it may ask for.
pub(crate) fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // A failure leaves what there was, and the quotas follow from that.
    if current != maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    reserve_descriptor_table();
}

/// Has the kernel make the table of descriptors as large as it will ever be, before there are
/// threads. Later it would wait for an RCU grace period each time it doubles the table, with the
/// thread that accepts clients: that has taken 20 seconds on a machine whose CPUs were busy.
fn reserve_descriptor_table() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(MOST_RESERVED);
    let last = i32::try_from(limit.saturating_sub(1)).unwrap_or(0);
    // A table that grows later is only slower.
    drop(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), last));
}

/// Descriptors for which there is room from the start: half a mebibyte of the kernel's memory.
const MOST_RESERVED: u64 = 65_536;

/// Gives up what a daemon of root does not need, for this thread and those that it starts: before
/// the others, and after what may need more.
///
/// # Errors
/// What the kernel says.
pub(crate) fn keep_needed_capabilities() -> rustix::io::Result<()> {
    let own = rustix::thread::capabilities(None)?;
    // Before Linux 5.8 it takes this one to load a program.
    let knows_bpf = own.permitted.contains(CapabilitySet::BPF);
    let needed = if knows_bpf { NEEDED } else { NEEDED | CapabilitySet::SYS_ADMIN };
    for capability in own.permitted.difference(needed).iter() {
        // Programs that the daemon starts, which is engine processes, have no use for it. That it
        // may do this is a capability, too, which a service manager may have taken.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let kept = CapabilitySets {
        effective: own.effective & needed,
        permitted: own.permitted & needed,
        inheritable: own.inheritable & needed,
    };
    rustix::thread::set_capabilities(None, kept)
}

/// Packet I/O and its programs; engine processes, which get the ids of their users, and their end;
/// the memory of root's clients; memory for packets.
const NEEDED: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::IPC_LOCK);

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
