//! Sleeping on a word of shared memory until its other side wakes the sleeper.

use crate::words::AtomicU64;
use std::io;
use std::time::Duration;

/// Which half of a word the kernel compares: the low one.
const LOW_HALF: usize = if cfg!(target_endian = "big") { 1 } else { 0 };

fn low_half(word: &AtomicU64) -> *mut u32 {
    word.as_ptr().cast::<u32>().wrapping_add(LOW_HALF)
}

/// Sleeps while the word's low half is `value`, until it is woken or for so long.
///
/// # Errors
/// When that was over before it was woken: the time, a signal, another value. To the caller it
/// should make no difference: it looks for itself what there is.
pub fn sleep(word: &AtomicU64, value: u32, at_most: Duration) -> io::Result<()> {
    let timeout = libc::timespec {
        tv_sec: at_most.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    let at = low_half(word);
    // SAFETY: an aligned half of a live word, and a live time; not FUTEX_PRIVATE, since another
    // process wakes.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, value, &raw const timeout) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Wakes at most so many threads that sleep on the word. One system call.
///
/// # Errors
/// What the kernel says.
pub fn wake(word: &AtomicU64, at_most: u32) -> io::Result<()> {
    let count = libc::c_int::try_from(at_most).unwrap_or(libc::c_int::MAX);
    // SAFETY: an aligned half of a live word.
    let woken = unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, count) };
    if woken >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
