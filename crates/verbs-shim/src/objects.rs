//! The objects of a context by the daemon's handle, for events.
//!
//! The daemon reuses a handle as soon as its object was destroyed, while events of that object may
//! still be in a socket. So a destroy request is made under this table's lock and records how many
//! such events are left. They precede every event of the handle's next object, and are dropped when
//! they are read.

use std::{
    collections::HashMap,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use verbs_abi::ibv_pd;

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
    /// Unread async events of destroyed objects in the socket.
    stale: HashMap<(Kind, u32), u64>,
}

// SAFETY: the objects behind the pointers are all Sync, and are only followed under the lock.
unsafe impl Send for Tables {}

impl Tables {
    /// An object was destroyed after `sent` async events were sent and `read` of them read.
    pub(crate) fn add_stale(&mut self, kind: Kind, handle: u32, sent: u64, read: u32) {
        let left = sent.saturating_sub(read.into());
        if left > 0 {
            *self.stale.entry((kind, handle)).or_default() += left;
        }
    }

    /// Whether a queue was made with this domain.
    pub(crate) fn has_queue_of(&self, pd: *const ibv_pd) -> bool {
        // SAFETY: what is in a table is alive while it is locked.
        let qps = self.qps.values().map(|qp| unsafe { (**qp).pd() });
        // SAFETY: as above.
        let srqs = self.srqs.values().map(|srq| unsafe { (**srq).pd() });
        // SAFETY: as above.
        let cqs = self.cqs.values().map(|cq| unsafe { (**cq).parent_domain });
        qps.chain(srqs).chain(cqs).any(|of| ptr::eq(of, pd))
    }

    /// True for an async event of a destroyed object; counts it off.
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
pub(crate) struct Objects {
    tables: Mutex<Tables>,
    records: Mutex<()>,
}

impl Objects {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the doorbell records that are free from being used again. Completions name them: a
    /// queue whose completions outlast it for a moment must not be taken for the next one. To be
    /// locked before the tables.
    pub(crate) fn keep_records(&self) -> MutexGuard<'_, ()> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the program has acknowledged every event that it was given; destroying an object
/// requires that.
pub(crate) fn wait_for_acks(completed: impl Fn() -> u32, given: u32) {
    while completed() != given {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
