//! What a process keeps for itself: a value behind a lock that a forked child does not inherit.
//!
//! Another thread of the parent may hold the lock during the fork, and then nothing in the child
//! would ever release it.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{process, ptr};

/// A static value of each process, which begins as the default.
pub struct OfProcess<T: 'static> {
    /// That of this process, or of one that it was forked from; never freed.
    last: AtomicPtr<Instance<T>>,
}

struct Instance<T> {
    process: u32,
    value: Mutex<T>,
}

impl<T: Default + Send> OfProcess<T> {
    /// Of processes that have used none yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value of this process.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        let process = process::id();
        let mut last = self.last.load(Ordering::Acquire);
        loop {
            // SAFETY: null or from `Box::into_raw` below, and never freed once it is there.
            if let Some(own) = unsafe { last.as_ref() }.filter(|found| found.process == process) {
                return own.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            let fresh = Box::into_raw(Box::new(Instance { process, value: Mutex::default() }));
            last = match self.last.compare_exchange(
                last,
                fresh,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => fresh,
                Err(newer) => {
                    // SAFETY: made above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    newer
                }
            };
        }
    }
}

impl<T: Default + Send> Default for OfProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}
