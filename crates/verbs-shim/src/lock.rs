//! The lock of one queue. It is held for tens of nanoseconds, so that sleeping in the kernel would
//! cost more than spinning.
//!
//! Two interfaces hold it between calls: `ibv_start_poll` to `ibv_end_poll`, and `ibv_wr_start` to
//! `ibv_wr_complete`. A program may make control calls in between, which need the lock too: they
//! use [`visit`](SpinLock::visit).

use std::{
    cell::UnsafeCell,
    hint, mem,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

/// Attempts before the thread yields: the lock's holder may need this CPU.
const SPINS: u32 = 200;

/// A spin lock around a value.
pub(crate) struct SpinLock<T> {
    held: AtomicBool,
    /// The thread that holds it between calls; 0 for none.
    keeper: AtomicUsize,
    value: UnsafeCell<T>,
}

/// A number that no other living thread has; never 0.
#[inline]
fn this_thread() -> usize {
    // SAFETY: no arguments; it cannot fail.
    unsafe { libc::pthread_self() as usize }
}

// SAFETY: the value is only reached by the one holder of the lock.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            keeper: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `change` under the lock, even when this thread holds it between calls.
    pub(crate) fn visit<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        // Only this thread writes its own number here, so a concurrent store by another thread
        // cannot make the comparison wrong.
        if self.keeper.load(Ordering::Relaxed) == this_thread() {
            // SAFETY: this thread holds the lock. A reference that `kept` gave ended with the call
            // that asked for it.
            return change(unsafe { self.kept() });
        }
        change(&mut self.lock())
    }

    /// As [`visit`](Self::visit); `None` while another thread has the lock.
    pub(crate) fn try_visit<R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.keeper.load(Ordering::Relaxed) == this_thread() {
            // SAFETY: as in `visit`.
            return Some(change(unsafe { self.kept() }));
        }
        let is_free = !self.held.swap(true, Ordering::Acquire);
        is_free.then(|| change(&mut Guard { lock: self }))
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

    /// The value while the lock is held between calls, after [`Guard::keep`].
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
        self.keeper.store(0, Ordering::Relaxed);
        Guard { lock: self }
    }
}

/// The lock is held while this lives.
pub(crate) struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Guard<'_, T> {
    /// Leaves the lock held: one call of the interface takes it and another one releases it.
    #[inline]
    pub(crate) fn keep(self) {
        self.lock.keeper.store(this_thread(), Ordering::Relaxed);
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

    #[test]
    fn a_kept_lock_admits_its_own_thread_and_no_other() {
        let lock = SpinLock::new(1);
        lock.lock().keep();
        lock.visit(|value| *value += 1);
        thread::scope(|scope| {
            let other = scope.spawn(|| lock.visit(|value| *value *= 10));
            thread::sleep(std::time::Duration::from_millis(20));
            assert!(!other.is_finished());
            lock.visit(|value| *value += 1);
            // SAFETY: this thread kept the lock.
            drop(unsafe { lock.take_back() });
        });
        lock.visit(|value| assert_eq!(*value, 30));
    }
}
