//! The objects of a context by the daemon's handle, for events.
//!
//! The daemon hands a handle out again as soon as it was destroyed, while events of its old owner
//! may still lie in a socket. So destroying holds this table's lock around the request and notes
//! how many such events are left; they come before any event of the new owner and are dropped as
//! they are read.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{cq::Cq, qp::Qp, srq::Srq};

/// What an event can be about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    Qp,
    Cq,
    Srq,
}

/// The tables. The pointers are alive while the lock is held.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) qps: HashMap<u32, *const Qp>,
    pub(crate) cqs: HashMap<u32, *const Cq>,
    pub(crate) srqs: HashMap<u32, *const Srq>,
    /// Async events in the socket whose object is gone.
    stale: HashMap<(Kind, u32), u64>,
}

// SAFETY: the objects behind the pointers are all Sync, and are only followed under the lock.
unsafe impl Send for Tables {}

impl Tables {
    /// Notes that `sent` async events were sent and `read` of them were read before the object
    /// went.
    pub(crate) fn add_stale(&mut self, kind: Kind, handle: u32, sent: u64, read: u32) {
        let left = sent.saturating_sub(read.into());
        if left > 0 {
            *self.stale.entry((kind, handle)).or_default() += left;
        }
    }

    /// Whether an async event is a left-over, and counts it off.
    pub(crate) fn take_stale(&mut self, kind: Kind, handle: u32) -> bool {
        let Some(left) = self.stale.get_mut(&(kind, handle)) else { return false };
        *left -= 1;
        if *left == 0 {
            self.stale.remove(&(kind, handle));
        }
        true
    }
}

/// The tables of one context.
#[derive(Default)]
pub(crate) struct Objects(Mutex<Tables>);

impl Objects {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the program has acknowledged every event that it was given, as destroying an object
/// must.
pub(crate) fn wait_for_acks(completed: impl Fn() -> u32, given: u32) {
    while completed() != given {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
