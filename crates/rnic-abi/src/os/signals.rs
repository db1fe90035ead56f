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
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    without_but(|_| work())
}

/// The same. The work is told which signals the thread had blocked, as the kernel has that, to let
/// the others in where it waits.
pub fn without_but<T>(work: impl FnOnce(u64) -> T) -> T {
    let mut before = 0;
    change_mask(libc::SIG_SETMASK, Some(&OTHERS), &raw mut before);
    // Also where the thread is cancelled in such a wait.
    let restores = Restores(before);
    work(restores.0)
}

/// Blocks these signals again, and no others.
struct Restores(u64);

impl Drop for Restores {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, Some(&self.0), null_mut());
    }
}

/// The C library would first take its own signals out of the set, and clear the rest of it.
#[inline]
fn change_mask(how: i32, mask: Option<&u64>, before: *mut u64) {
    let (mask, len) = (mask.map_or(null(), std::ptr::from_ref), size_of::<u64>());
    // SAFETY: both are sets of that many bytes, and live, or null; a set has so many on all
    // processors that this is written for.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, mask, before, len);
    }
}

/// Whether a handler of the program may run in any of its threads, other than for a fault of that
/// very thread. True where that cannot be found out, and for a sandbox that carries out calls
/// itself: a thread that blocks its signal would be ended.
#[must_use]
pub fn are_handled() -> bool {
    actions(OTHERS | bit(libc::SIGSYS))
        .any(|action| action.is_none_or(|action| has_handler(&action)))
}

/// Whether a call that a signal has interrupted goes on, as the kernel's own calls do: every
/// handler that may have run in this thread was installed with `SA_RESTART`. The kernel does not
/// say which one it was, and never lets `poll` and `epoll_wait` go on by itself. Where there is no
/// handler any more, the one that ran has removed itself: a thread that slept on would never hear
/// of the signal.
#[must_use]
pub fn restarts() -> bool {
    let mut blocked = 0;
    change_mask(libc::SIG_BLOCK, None, &raw mut blocked);
    restart_but(blocked)
}

/// The same for a call during which the thread blocked these signals.
#[must_use]
pub fn restart_but(blocked: u64) -> bool {
    let mut handlers = actions(OTHERS & !blocked).flatten().filter(has_handler).peekable();
    handlers.peek().is_some() && handlers.all(|action| action.sa_flags & libc::SA_RESTART != 0)
}

/// What the program has installed for these signals; `None` where that cannot be found out.
fn actions(signals: u64) -> impl Iterator<Item = Option<libc::sigaction>> {
    (1..=SIGNALS).filter(move |signal| signals & bit(*signal) != 0).map(|signal| {
        let mut action = MaybeUninit::uninit();
        // SAFETY: it is written where the call succeeds, and only used then.
        unsafe {
            let failed = libc::sigaction(signal, null(), action.as_mut_ptr());
            (failed == 0).then(|| action.assume_init())
        }
    })
}

fn has_handler(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn ignore(_: i32) {}

    /// Installs a handler in a child, which then says whether any are found.
    fn found_with(handler: libc::sighandler_t, signal: i32) -> bool {
        in_child(|| {
            // SAFETY: a handler that does nothing, or none.
            unsafe { libc::signal(signal, handler) };
            are_handled()
        })
    }

    /// What a child without handlers finds.
    fn in_child(look: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only makes system calls and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                // Whatever the tests' process has.
                (1..=SIGNALS).for_each(|other| _ = libc::signal(other, libc::SIG_DFL));
                libc::_exit(look().into());
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
    fn a_call_goes_on_where_every_handler_wants_it() {
        let install = |signal, flags| {
            // SAFETY: all of it may be zero; the handler does nothing.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = ignore as *const () as libc::sighandler_t;
                action.sa_flags = flags;
                libc::sigaction(signal, &raw const action, null_mut());
            }
        };
        assert!(!in_child(restarts), "the only handler has removed itself");
        assert!(!in_child(|| {
            install(libc::SIGUSR1, libc::SA_RESETHAND);
            // SAFETY: there is a handler.
            unsafe { libc::raise(libc::SIGUSR1) };
            restarts()
        }));
        assert!(in_child(|| {
            install(libc::SIGUSR1, libc::SA_RESTART);
            install(libc::SIGSEGV, 0);
            restarts()
        }));
        let installs_both = || {
            install(libc::SIGUSR1, libc::SA_RESTART);
            install(libc::SIGUSR2, 0);
        };
        assert!(!in_child(|| {
            installs_both();
            restarts()
        }));
        assert!(in_child(|| {
            install(libc::SIGUSR1, libc::SA_RESTART);
            install(libc::SIGUSR2, 0);
            change_mask(libc::SIG_BLOCK, Some(&bit(libc::SIGUSR2)), null_mut());
            restarts()
        }));
    }

    #[test]
    fn signals_are_blocked_meanwhile_but_those_of_faults() {
        let blocked = || {
            let mut now = 0;
            change_mask(libc::SIG_BLOCK, None, &raw mut now);
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
