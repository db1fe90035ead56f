//! What the wire of a device has the thread that follows the network do.

use super::HopTable;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The way to the network.
#[derive(Default)]
pub(super) struct Wire {
    times: Mutex<Times>,
    /// Is told when they change.
    listener: OnceLock<Arc<OwnedFd>>,
}

#[derive(Clone, Copy, Default)]
struct Times {
    /// When the wire is tried again, if it is lost.
    retry: Option<Instant>,
    /// When all is told once more.
    again: Option<Instant>,
}

impl HopTable {
    /// Whether the wire could not be opened on an interface that was made anew, and then when it
    /// is to be tried again: until it works the port is down, whatever the interface is.
    pub fn set_wire_retry(&self, at: Option<Instant>) {
        let before = std::mem::replace(&mut self.times().retry, at);
        if before.is_some() != at.is_some() {
            self.wake();
        }
    }

    /// See [`set_wire_retry`](Self::set_wire_retry).
    pub(crate) fn wire_retry(&self) -> Option<Instant> {
        self.times().retry
    }

    /// Has the network told once more at that time, or before: the wire could not do all that the
    /// last change takes, though it has a way to the network.
    pub fn tell_again(&self, at: Instant) {
        let mut times = self.times();
        times.again = Some(times.again.map_or(at, |before| before.min(at)));
        drop(times);
        self.wake();
    }

    /// See [`tell_again`](Self::tell_again).
    pub(crate) fn next_telling(&self) -> Option<Instant> {
        self.times().again
    }

    /// Whether it is time to tell all once more, which is done then.
    pub(crate) fn take_telling(&self, now: Instant) -> bool {
        self.times().again.take_if(|at| *at <= now).is_some()
    }

    /// An event counter to write when any of this changes.
    pub(crate) fn tell_of_wire(&self, listener: Arc<OwnedFd>) {
        // There is one thread that follows the network.
        let _ = self.wire.listener.set(listener);
    }

    fn wake(&self) {
        if let Some(listener) = self.wire.listener.get() {
            // Cannot fail: the counter is far from full.
            let _ = rustix::io::write(&**listener, &1u64.to_ne_bytes());
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.wire.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
