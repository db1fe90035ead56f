//! Children of tests.

use std::{
    ffi::c_int,
    process,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// As long as it is held no child of another test has what this process has open.
pub(crate) fn without_others() -> MutexGuard<'static, ()> {
    static FORKING: Mutex<()> = Mutex::new(());
    FORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The status with which a forked child ends: 0 when what it did was right. A child that hangs is
/// killed.
pub(crate) fn status_of_child(run: impl FnOnce() -> bool) -> c_int {
    let _alone = without_others();
    // SAFETY: the child only calls the library and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a plain system call.
        unsafe { libc::alarm(30) };
        let is_right = run();
        // SAFETY: leaves without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = -1;
    // SAFETY: our own child.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child, "of {}", process::id());
    status
}
