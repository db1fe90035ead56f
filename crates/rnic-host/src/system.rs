//! Things asked of the operating system that belong nowhere else.

use rustix::rand::GetRandomFlags;
use std::io;

/// Asks the scheduler for slices of so many nanoseconds for the calling thread: the shorter they
/// are, the sooner it gets a CPU when it wakes (Linux 6.12 and later; earlier ones ignore it).
///
/// # Errors
/// What the kernel says.
#[allow(unsafe_code, reason = "no library wraps sched_setattr")]
pub fn request_slice(nanos: u64) -> io::Result<()> {
    /// `struct sched_attr`, first version.
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SCHED_OTHER: u32 = 0;
    let attr = SchedAttr {
        size: 48,
        policy: SCHED_OTHER,
        flags: 0,
        nice: rustix::process::nice(0).unwrap_or(0),
        priority: 0,
        runtime: nanos,
        deadline: 0,
        period: 0,
    };
    // SAFETY: thread 0 is the calling one, and the kernel reads `size` bytes of a live structure.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The scheduling group of the process with this name in `/proc`: its control group and its
/// session's autogroup. `sched_yield` yields only to threads of the same group.
pub fn scheduling_group(process: &str) -> (String, String) {
    let read =
        |file| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    // "number:controllers:path"; version 2 has one line without controllers.
    let is_cpu = |line: &&str| {
        line.split(':')
            .nth(1)
            .is_some_and(|all| all.is_empty() || all.split(',').any(|c| c == "cpu"))
    };
    let control_groups = read("cgroup").lines().filter(is_cpu).collect();
    (control_groups, read("autogroup"))
}

/// Random words, not to be guessed.
///
/// # Errors
/// What the kernel says.
pub fn random() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    // So few come all at once.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    let word = u128::from_ne_bytes(bytes);
    Ok([word as u64, (word >> 64) as u64])
}
