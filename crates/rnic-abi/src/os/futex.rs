//! Sleeping on a word of shared memory until its other side wakes the sleeper.

use crate::words::AtomicU64;
use rustix::thread::futex::{self, Flags, Timespec};
use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Which half of a word the kernel compares: the low one.
const LOW_HALF: usize = if cfg!(target_endian = "big") { 1 } else { 0 };

fn low_half(word: &AtomicU64) -> &AtomicU32 {
    let half = word.as_ptr().cast::<u32>().wrapping_add(LOW_HALF);
    // SAFETY: an aligned half of a live word. Only the kernel reads through the reference.
    unsafe { AtomicU32::from_ptr(half) }
}

/// Not `PRIVATE`: another process wakes.
const SHARED: Flags = Flags::empty();

/// Sleeps while the word's low half is `value`, until it is woken or for so long.
///
/// # Errors
/// When that was over before it was woken: the time, a signal, another value. To the caller it
/// should make no difference: it looks for itself what there is.
pub fn sleep(word: &AtomicU64, value: u32, at_most: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(at_most).unwrap_or(LONGEST);
    Ok(futex::wait(low_half(word), SHARED, value, Some(&timeout))?)
}

const LONGEST: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };

/// Wakes at most so many threads that sleep on the word. One system call.
///
/// # Errors
/// What the kernel says.
pub fn wake(word: &AtomicU64, at_most: u32) -> io::Result<()> {
    // The kernel takes the number as a signed one.
    futex::wake(low_half(word), SHARED, at_most.min(i32::MAX as u32))?;
    Ok(())
}
