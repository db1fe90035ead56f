//! Shared memory as an array of atomic 64-bit words.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes in one word.
pub const WORD: usize = 8;
/// Words in one 64-byte cache line, which is also one basic block of a work queue.
pub const LINE: usize = 8;

/// A run of 64-bit words that another process may map too.
///
/// Cloning is cheap and shares the memory; the memory lives as long as any clone.
#[derive(Clone)]
pub struct Words {
    base: NonNull<AtomicU64>,
    len: usize,
    owner: Arc<dyn std::any::Any + Send + Sync>,
}

// SAFETY: the words are atomics, and `owner` keeps them mapped and is itself Send + Sync.
unsafe impl Send for Words {}
// SAFETY: as above; all access is through `&AtomicU64`.
unsafe impl Sync for Words {}

impl Words {
    /// `len` zeroed words on the heap: simulation, tests, and same-process use.
    pub fn heap(len: usize) -> Self {
        let owner: Arc<Vec<AtomicU64>> = Arc::new((0..len).map(|_| AtomicU64::new(0)).collect());
        let base = NonNull::from(owner.as_slice()).cast();
        Self { base, len, owner }
    }

    /// Views `len` words at `base`.
    ///
    /// # Safety
    /// `base` must be 8-byte aligned and valid for reads and writes of `len` words for as long
    /// as `owner` lives, and nobody in this process may access them other than atomically.
    #[cfg(not(loom))]
    pub unsafe fn from_raw(
        base: NonNull<u64>,
        len: usize,
        owner: Arc<dyn std::any::Any + Send + Sync>,
    ) -> Self {
        Self { base: base.cast(), len, owner }
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no words.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` words from `start` on, or `None` when they are not all inside.
    pub fn slice(&self, start: usize, len: usize) -> Option<Self> {
        if start.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: start <= self.len, so the result is inside or one past the allocation.
        let base = unsafe { self.base.add(start) };
        Some(Self { base, len, owner: Arc::clone(&self.owner) })
    }

    /// The word at `index`.
    ///
    /// # Panics
    /// When `index` is out of range. Indices come from this process's own arithmetic, never
    /// from the shared memory.
    #[inline]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "word index out of range");
        // SAFETY: index < len, and the owner keeps the memory alive for the borrow of self.
        unsafe { self.base.add(index).as_ref() }
    }

    /// Loads one word without ordering.
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        self.at(index).load(Ordering::Relaxed)
    }

    /// Stores one word without ordering.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.at(index).store(value, Ordering::Relaxed);
    }

    /// Copies words out, one atomic load each.
    #[inline]
    pub fn copy_out(&self, start: usize, out: &mut [u64]) {
        for (i, word) in out.iter_mut().enumerate() {
            *word = self.get(start + i);
        }
    }

    /// Copies words in, one atomic store each.
    #[inline]
    pub fn copy_in(&self, start: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            self.set(start + i, *word);
        }
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Words").field("len", &self.len).finish_non_exhaustive()
    }
}
