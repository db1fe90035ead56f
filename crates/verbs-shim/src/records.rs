//! The work queue behind each doorbell record, for completions: found without a lock.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use rnic_abi::doorbell::MAX_RECORDS;

use crate::queue::WorkQueue;

const PAGE: usize = 512;
const PAGES: usize = MAX_RECORDS / PAGE;

type Page = [AtomicPtr<WorkQueue>; PAGE];

/// Record index to work queue. Pages are made when first used and live as long as the table.
pub(crate) struct RecordTable {
    pages: Box<[AtomicPtr<Page>]>,
}

impl RecordTable {
    pub(crate) fn new() -> Self {
        Self { pages: (0..PAGES).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    /// The queue at a record; null when there is none.
    #[inline]
    pub(crate) fn get(&self, record: u32) -> *const WorkQueue {
        let record = record as usize;
        let Some(page) = self.pages.get(record / PAGE) else { return ptr::null() };
        let page = page.load(Ordering::Acquire);
        if page.is_null() {
            return ptr::null();
        }
        // SAFETY: a page lives as long as the table.
        unsafe { (&(*page))[record % PAGE].load(Ordering::Acquire) }
    }

    /// Enters a queue. The daemon reuses a record only after its last queue was destroyed.
    pub(crate) fn set(&self, record: u32, queue: &WorkQueue) {
        if let Some(slot) = self.slot(record) {
            slot.store(ptr::from_ref(queue).cast_mut(), Ordering::Release);
        }
    }

    /// Removes a queue, unless its record belongs to another one already.
    pub(crate) fn clear(&self, record: u32, queue: &WorkQueue) {
        if let Some(slot) = self.slot(record) {
            let queue = ptr::from_ref(queue).cast_mut();
            // Not ours any more: nothing to do.
            let _ =
                slot.compare_exchange(queue, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn slot(&self, record: u32) -> Option<&AtomicPtr<WorkQueue>> {
        let record = record as usize;
        let slot = self.pages.get(record / PAGE)?;
        let mut page = slot.load(Ordering::Acquire);
        if page.is_null() {
            let fresh: Box<Page> = Box::new(std::array::from_fn(|_| AtomicPtr::default()));
            let fresh = Box::into_raw(fresh);
            match slot.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => page = fresh,
                Err(other) => {
                    // SAFETY: it was made above; no other thread has it yet.
                    drop(unsafe { Box::from_raw(fresh) });
                    page = other;
                }
            }
        }
        // SAFETY: a page lives as long as the table.
        Some(unsafe { &(&(*page))[record % PAGE] })
    }
}

impl Drop for RecordTable {
    fn drop(&mut self) {
        for page in &self.pages {
            let page = page.load(Ordering::Acquire);
            if !page.is_null() {
                // SAFETY: pages are boxes, and the table's borrowers are gone.
                drop(unsafe { Box::from_raw(page) });
            }
        }
    }
}
