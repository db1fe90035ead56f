//! A reserve of memory, for the moment when the kernel has none to give.
//!
//! A failed allocation ends a Rust program. A daemon with many clients must not end because one of
//! them made it grow to its limit (of its address space, or under strict accounting of memory): it
//! then uses a reserve, and until that is whole again its clients get nothing new.

#![allow(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The system's allocator with a reserve behind it.
struct Reserving;

#[global_allocator]
static ALLOCATOR: Reserving = Reserving;

/// The reserve: a mapping, or null.
static RESERVE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// How large it is when it is whole; 0 in programs that want none.
static WHOLE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator, whose promises are passed on. Giving the
// reserve back touches no allocation.
unsafe impl GlobalAlloc for Reserving {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        again_if_null(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        again_if_null(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises; a failed attempt leaves the old block as it is.
        again_if_null(|| unsafe { System.realloc(old, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) };
    }
}

#[inline]
fn again_if_null(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let block = allocate();
    if block.is_null() && spend() { allocate() } else { block }
}

/// Gives the reserve back to the kernel; false when there is none.
#[cold]
fn spend() -> bool {
    let reserve = RESERVE.swap(null_mut(), Ordering::AcqRel);
    let Some(reserve) = NonNull::new(reserve) else { return false };
    // SAFETY: a mapping of this size, at an address that the kernel chose.
    unsafe { rustix::mm::munmap(reserve.as_ptr().cast(), WHOLE.load(Ordering::Relaxed)) }.is_ok()
}

fn map(len: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // Writable: only then does strict accounting count it.
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
    let mapped = unsafe { mmap_anonymous(null_mut(), len, rights, MapFlags::PRIVATE) };
    mapped.ok().and_then(|start| NonNull::new(start.cast()))
}

/// Keeps `len` bytes of address space in reserve from now on.
pub fn keep_reserve(len: usize) {
    WHOLE.store(len, Ordering::Relaxed);
    is_short();
}

/// Whether memory is so short that clients should get nothing new. Fills the reserve again when
/// that is possible.
pub fn is_short() -> bool {
    let len = WHOLE.load(Ordering::Relaxed);
    if len == 0 || !RESERVE.load(Ordering::Acquire).is_null() {
        return false;
    }
    let Some(fresh) = map(len) else { return true };
    let (null, order) = (null_mut(), Ordering::AcqRel);
    if RESERVE.compare_exchange(null, fresh.as_ptr(), order, Ordering::Relaxed).is_err() {
        // Another thread was faster.
        // SAFETY: our own mapping, to which no other pointer exists.
        let _ = unsafe { rustix::mm::munmap(fresh.as_ptr().cast(), len) };
    }
    false
}

/// Whether the kernel would give `len` more bytes of memory now.
pub fn has_room(len: usize) -> bool {
    // SAFETY: a mapping of our own without a pointer into it.
    map(len).is_some_and(|room| unsafe { rustix::mm::munmap(room.as_ptr().cast(), len) }.is_ok())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::process::Command;

    /// Tells a test that it is the process whose address space is small.
    const CHILD: &str = "RNICD_TEST_OF_LITTLE_MEMORY";
    const BLOCK: usize = 1 << 20;

    /// Runs `work` of the test with this name in a process that gets 32 MiB more than it has.
    pub fn in_little_memory(test: &str, work: fn()) {
        if std::env::var_os(CHILD).is_none() {
            let this = std::env::current_exe().unwrap();
            // One arena is what the daemon has where its address space is limited; a backtrace
            // takes more memory than there is.
            let envs = [(CHILD, "1"), ("MALLOC_ARENA_MAX", "1"), ("RUST_BACKTRACE", "0")];
            let child = Command::new(this).args(["--exact", test]).envs(envs).output().unwrap();
            let ran = String::from_utf8_lossy(&child.stdout).contains("1 passed");
            assert!(child.status.success() && ran, "{child:?}");
            return;
        }
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        let taken = pages * rustix::param::page_size() as u64;
        let maximum = getrlimit(Resource::As).maximum;
        let current = Some(taken + 32 * BLOCK as u64);
        setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
        work();
    }

    /// A mapping that is taken back on drop.
    pub struct Taken(NonNull<u8>, usize);

    impl Drop for Taken {
        fn drop(&mut self) {
            // SAFETY: a mapping of our own without a pointer into it.
            unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.1) }.unwrap();
        }
    }

    /// Maps everything there is but `len` bytes, and what small allocations need.
    pub fn take_all_but(len: usize) -> Vec<Taken> {
        // The allocator keeps it.
        drop(Vec::<u8>::with_capacity(64 * 1024));
        let left = map(len).expect("so much there is");
        let mut all = Vec::with_capacity(100);
        let mut size = 32 * BLOCK;
        while size >= rustix::param::page_size() {
            match map(size) {
                Some(start) => all.push(Taken(start, size)),
                None => size /= 2,
            }
        }
        drop(Taken(left, len));
        all
    }

    #[test]
    fn a_failed_allocation_takes_the_reserve_and_not_the_process() {
        let name = "memory::tests::a_failed_allocation_takes_the_reserve_and_not_the_process";
        in_little_memory(name, || {
            keep_reserve(16 * BLOCK);
            assert!(!is_short());
            let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(100);
            while !is_short() {
                assert!(blocks.len() < 50, "no limit is kept");
                blocks.push(Vec::with_capacity(BLOCK));
            }
            assert!(blocks.len() > 8 && !has_room(16 * BLOCK), "{}", blocks.len());
            drop(blocks);
            assert!(!is_short() && has_room(BLOCK));
        });
    }
}
