//! Signals, which are the program's.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Signals that the kernel forces on the thread that causes them.
const OWN: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Runs this, and the threads that it starts, without the program's signals but those that tell of
/// a thread's own faults and of calls that a sandbox carries out itself, which the kernel would
/// otherwise answer by ending the process.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the sets are local variables, filled before they are used.
    unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        for own in OWN {
            libc::sigdelset(all.as_mut_ptr(), own);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = work();
    // SAFETY: it was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    result
}
