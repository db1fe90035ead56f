//! The lock of one queue: held for tens of nanoseconds, so that waiting for it in the kernel would cost more.

use std::{
    cell::UnsafeCell,
    hint, mem,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Attempts before the processor is offered to others: the holder may need this very core.
const SPINS: u32 = 200;

/// A spin lock around a value.
pub(crate) struct SpinLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached by the one holder of the lock.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        loop {
            while self.held.load(Ordering::Relaxed) {
                spins += 1;
                if spins < SPINS {
                    hint::spin_loop();
                } else {
                    thread::yield_now();
                }
            }
            if !self.held.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }

    /// The value while the lock is held across calls, after [`Guard::keep`].
    ///
    /// # Safety
    /// This thread holds the lock, and no guard or other reference to the value is alive.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the lock is held, as for a guard")]
    pub(crate) unsafe fn kept(&self) -> &mut T {
        // SAFETY: exclusive by contract.
        unsafe { &mut *self.value.get() }
    }

    /// Takes back a lock that [`Guard::keep`] left held.
    ///
    /// # Safety
    /// As [`kept`](Self::kept).
    #[inline]
    pub(crate) unsafe fn take_back(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }
}

/// The lock is held while this lives.
pub(crate) struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Guard<'_, T> {
    /// Leaves the lock held: the interface has one call to take it and another to release it.
    #[inline]
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard's owner holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's owner holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let counter = SpinLock::new(0_u32);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 40_000);
    }

    #[test]
    fn a_kept_lock_is_held_until_taken_back() {
        let lock = SpinLock::new(1);
        lock.lock().keep();
        assert!(lock.held.load(Ordering::Relaxed));
        // SAFETY: this thread kept the lock.
        unsafe {
            *lock.kept() = 2;
            drop(lock.take_back());
        }
        assert_eq!(*lock.lock(), 2);
    }
}
