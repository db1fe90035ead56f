//! Signals, which are the program's.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// Signals that the kernel forces on the thread that causes them.
const OWN: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// Those of the C library itself, whose handlers return: one cancels threads, which a thread can
/// hold off otherwise, and one changes the user of all threads at once.
const LIBRARY: [i32; 2] = [32, 33];
/// As many as Linux has on most processors.
const SIGNALS: i32 = 64;

/// All but these, as the kernel has it.
const OTHERS: u64 = !(mask(&OWN) | mask(&LIBRARY));

const fn mask(signals: &[i32]) -> u64 {
    let (mut mask, mut at) = (0, 0);
    while at < signals.len() {
        mask |= bit(signals[at]);
        at += 1;
    }
    mask
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Runs this, and the threads that it starts, without the program's signals but those that tell of
/// a thread's own faults and of calls that a sandbox carries out itself, which the kernel would
/// otherwise answer by ending the process.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    let mut before = 0;
    set_mask(&OTHERS, &raw mut before);
    let result = work();
    set_mask(&before, null_mut());
    result
}

/// The C library would first take its own signals out of the set, and clear the rest of it.
#[inline]
fn set_mask(mask: &u64, before: *mut u64) {
    // SAFETY: both are sets of that many bytes, and live; a set has so many on all processors that
    // this is written for.
    unsafe {
        let (how, len) = (libc::SIG_SETMASK, size_of::<u64>());
        libc::syscall(libc::SYS_rt_sigprocmask, how, std::ptr::from_ref(mask), before, len);
    }
}

/// Whether a handler of the program may run in any of its threads, other than for a fault of that
/// very thread. True where that cannot be found out, and for a sandbox that carries out calls
/// itself: a thread that blocks its signal would be ended.
pub(crate) fn are_handled() -> bool {
    let looked_for = OTHERS | bit(libc::SIGSYS);
    (1..=SIGNALS).filter(|signal| looked_for & bit(*signal) != 0).any(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: it is written where the call succeeds, and only used then.
        let action = unsafe {
            let failed = libc::sigaction(signal, null(), action.as_mut_ptr());
            (failed == 0).then(|| action.assume_init().sa_sigaction)
        };
        action.is_none_or(|action| !matches!(action, libc::SIG_DFL | libc::SIG_IGN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn ignore(_: i32) {}

    /// Installs a handler in a child, which then says whether any are found.
    fn found_with(handler: libc::sighandler_t, signal: i32) -> bool {
        // SAFETY: the child only makes system calls and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                // Whatever the tests' process has.
                (1..=SIGNALS).for_each(|other| _ = libc::signal(other, libc::SIG_DFL));
                libc::signal(signal, handler);
                libc::_exit(are_handled().into());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status), "{status:#x}");
            libc::WEXITSTATUS(status) != 0
        }
    }

    #[test]
    fn handlers_are_found_but_those_of_faults() {
        let ignore = ignore as *const () as libc::sighandler_t;
        for signal in [1, libc::SIGINT, libc::SIGPWR, libc::SIGSYS, libc::SIGRTMIN(), SIGNALS] {
            assert!(found_with(ignore, signal), "signal {signal}");
            assert!(!found_with(libc::SIG_IGN, signal), "signal {signal} is ignored");
        }
        for signal in OWN.into_iter().filter(|signal| *signal != libc::SIGSYS) {
            assert!(!found_with(ignore, signal), "signal {signal}");
        }
    }

    #[test]
    fn signals_are_blocked_meanwhile_but_those_of_faults() {
        let blocked = || {
            let mut now = 0u64;
            // SAFETY: writes one set.
            unsafe {
                let (set, len) = (null::<u64>(), size_of::<u64>());
                libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, set, &raw mut now, len);
            }
            now
        };
        let before = blocked();
        let during = without(blocked);
        let uncatchable = mask(&[libc::SIGKILL, libc::SIGSTOP]);
        assert_eq!(during, OTHERS & !uncatchable);
        assert_eq!(during & mask(&OWN), 0);
        assert_eq!(blocked(), before);
    }
}
