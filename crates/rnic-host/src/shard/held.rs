//! The lock of a shard.
//!
//! The engine's thread holds it, except while it sleeps. So the lock costs nothing while the engine
//! works, and a thread of the program can [turn the engine](super::driving) only while the engine's
//! thread sleeps.

use super::run::Shard;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A shard behind its lock; `None` inside once it has ended.
#[derive(Clone)]
pub(super) struct Held(Arc<Mutex<Option<Shard>>>);

impl Held {
    pub(super) fn new(shard: Shard) -> Self {
        Self(Arc::new(Mutex::new(Some(shard))))
    }

    /// Turns the engine until told to stop. In its own thread.
    pub(super) fn run(&self) {
        // Descriptors are numbers of this thread's table: no other thread may close them.
        let _end = End(self);
        let mut held = self.lock();
        while let Some(shard) = held.as_mut().filter(|shard| !shard.stopping && !self.is_broken()) {
            let Some(mut sleep) = shard.step() else { continue };
            drop(held);
            let met = sleep.wait();
            held = self.lock();
            if let Some(shard) = held.as_mut().filter(|_| !self.is_broken()) {
                let was_called = met.is_ok_and(|met| met.epoll);
                sleep.into_watch().into_iter().for_each(|watch| shard.watched(watch, was_called));
                shard.woke(met);
            }
        }
    }

    /// A thread of the program has panicked in a turn: what that has left may be anything.
    fn is_broken(&self) -> bool {
        self.0.is_poisoned()
    }

    /// The shard, unless another thread has it, or one has panicked with it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Shard>>> {
        self.0.try_lock().ok()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Shard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the shard apart, also after a panic.
struct End<'a>(&'a Held);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let shard = self.0.lock().take();
        // Threads of the program are to see that there is none.
        self.0.0.clear_poison();
        drop(shard);
    }
}
