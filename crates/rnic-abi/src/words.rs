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

/// A SeqCst fence directly behind a read-modify-write operation of this thread. On x86 such an
/// operation is one already: neither loads nor stores pass an instruction with LOCK (Intel SDM,
/// volume 3, 9.2.3.9), so that only the compiler must be kept from moving them.
#[inline(always)]
pub(crate) fn fence_behind_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    fence(Ordering::SeqCst);
}

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
    /// `len` zeroed words on the heap: simulation, tests, and same-process use. Large runs cost
    /// memory only where they are written.
    pub fn heap(len: usize) -> Self {
        let owner = Arc::new(heap::zeroed(len));
        let base = heap::base(&owner);
        Self { base, len, owner }
    }

    /// Views `len` words at `base`.
    ///
    /// # Safety
    /// `base` must be 8-byte aligned and valid for reads and writes of `len` words for as long
    /// as `owner` lives, and this process may access them only atomically.
    #[cfg(not(loom))]
    pub unsafe fn from_raw(
        base: NonNull<u64>,
        len: usize,
        owner: Arc<dyn std::any::Any + Send + Sync>,
    ) -> Self {
        debug_assert!(base.cast::<AtomicU64>().is_aligned());
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

    /// Where the words are. What another process may write is only to be copied from there.
    pub fn as_ptr(&self) -> NonNull<AtomicU64> {
        self.base
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

    /// The words from `start` on, with one bounds check for all of them.
    #[inline]
    fn run(&self, start: usize, len: usize) -> &[AtomicU64] {
        assert!(start <= self.len && len <= self.len - start, "words out of range");
        // SAFETY: the range is inside, the owner keeps the memory alive for the borrow of self,
        // and atomics may be shared.
        unsafe { std::slice::from_raw_parts(self.base.add(start).as_ptr(), len) }
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
    ///
    /// # Panics
    /// As [`at`](Self::at).
    #[inline]
    pub fn copy_out(&self, start: usize, out: &mut [u64]) {
        let from = self.run(start, out.len());
        for (to, from) in out.iter_mut().zip(from) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Copies words in, one atomic store each.
    ///
    /// # Panics
    /// As [`at`](Self::at).
    #[inline]
    pub fn copy_in(&self, start: usize, words: &[u64]) {
        for (to, from) in self.run(start, words.len()).iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Words").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The allocator's own zeroed pages: a doorbell area is a megabyte of which little is used.
#[cfg(not(loom))]
mod heap {
    use super::AtomicU64;
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use std::ptr::NonNull;

    pub(super) struct Allocation {
        base: NonNull<AtomicU64>,
        layout: Layout,
    }

    // SAFETY: it owns atomics, which are Send.
    unsafe impl Send for Allocation {}
    // SAFETY: it gives out nothing but their address.
    unsafe impl Sync for Allocation {}

    impl Drop for Allocation {
        fn drop(&mut self) {
            // SAFETY: allocated with this layout, and the last user is gone.
            unsafe { dealloc(self.base.as_ptr().cast(), self.layout) };
        }
    }

    pub(super) fn zeroed(len: usize) -> Allocation {
        // An empty run has an address too.
        let layout = Layout::array::<AtomicU64>(len.max(1)).expect("a possible size");
        // SAFETY: the layout is not empty. Zero bytes are a valid AtomicU64.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base.cast()) else { handle_alloc_error(layout) };
        Allocation { base, layout }
    }

    pub(super) fn base(allocation: &Allocation) -> NonNull<AtomicU64> {
        allocation.base
    }
}

/// Loom's atomics are objects that have to be made one by one.
#[cfg(loom)]
mod heap {
    use super::AtomicU64;
    use std::ptr::NonNull;

    pub(super) fn zeroed(len: usize) -> Vec<AtomicU64> {
        (0..len).map(|_| AtomicU64::new(0)).collect()
    }

    pub(super) fn base(words: &[AtomicU64]) -> NonNull<AtomicU64> {
        NonNull::from(words).cast()
    }
}
