//! Memory that daemon and application both map.

use super::{NOTHING, Run, TAIL, pieces, walk};
use rnic_abi::os::memory::check_sealed;
use rnic_core::ports::{DmaFault, MemRange, Range};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// A mapped part of a memfd that can no longer shrink.
#[derive(Debug)]
pub struct Mapping {
    /// Start of the whole mapping, page-aligned.
    map: NonNull<u8>,
    map_len: usize,
    /// First registered byte.
    base: NonNull<u8>,
    len: u64,
    /// A store to a mapping without this right would be a signal.
    writable: bool,
}

// SAFETY: plain memory of this process, owned by the value.
unsafe impl Send for Mapping {}
// SAFETY: copies of memory that its application changes whenever it likes: another thread of this
// process that does the same makes no difference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset` on and makes their pages exist.
    ///
    /// The process's threads share what the kernel locks meanwhile, also those that serve others:
    /// so that is done in pieces.
    ///
    /// # Errors
    /// `InvalidData` when the file is shorter, or could be cut while it is mapped (an access would
    /// then be a signal); else what the kernel says, as when there is no memory for the pages.
    pub fn new(file: impl AsFd, offset: u64, len: u64, writable: bool) -> io::Result<Self> {
        let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        check_sealed(file.as_fd(), end)?;
        let page = rustix::param::page_size() as u64;
        let start = offset / page * page;
        let map_len = usize::try_from(end - start).map_err(|_| io::ErrorKind::InvalidInput)?;
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let file_offset = i64::try_from(start).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_READ | write,
                libc::MAP_SHARED,
                file.as_fd().as_raw_fd(),
                file_offset,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: less than one page into a mapping that is longer.
        let base = unsafe { map.add((offset - start) as usize) };
        let mapping = Self { map, map_len, base, len, writable };
        mapping.populate()?;
        Ok(mapping)
    }

    /// Start and length of each piece of the mapping.
    fn pieces(&self) -> impl Iterator<Item = (*mut libc::c_void, usize)> {
        (0..self.map_len).step_by(PIECE).map(|at| {
            // SAFETY: `at` is inside the mapping.
            let start = unsafe { self.map.add(at) };
            (start.as_ptr().cast(), PIECE.min(self.map_len - at))
        })
    }

    fn populate(&self) -> io::Result<()> {
        let (read, write) = (libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE);
        let advice = if self.writable { write } else { read };
        for (start, len) in self.pieces() {
            // SAFETY: pages of our own mapping, which become present; no content changes.
            if unsafe { libc::madvise(start, len, advice) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // Threads that wait for the lock get it.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Frees the pages of the file, whatever else has them mapped: from here on they read as zeros.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn discard(&self) -> io::Result<()> {
        for (start, len) in self.pieces() {
            // SAFETY: pages of our own mapping, whose bytes others may change too.
            if unsafe { libc::madvise(start, len, libc::MADV_REMOVE) } != 0 {
                return Err(io::Error::last_os_error());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Start of `range`, and how many of its bytes are inside.
    fn clip(&self, range: MemRange) -> (NonNull<u8>, usize) {
        let room = self.len.saturating_sub(range.addr).min(u64::from(range.len));
        let at = if room == 0 { 0 } else { range.addr };
        // SAFETY: `at` is below `len` when there is room, else 0.
        (unsafe { self.base.add(at as usize) }, room as usize)
    }

    /// All of `range` is there.
    pub(super) fn contains(&self, range: MemRange) -> bool {
        self.clip(range).1 == range.len as usize
    }

    /// Where bytes are that [`contains`](Self::contains) is true for, and how many of them.
    pub(super) fn locate(&self, range: MemRange) -> (*const u8, usize) {
        let (start, len) = self.clip(range);
        (start.as_ptr(), len)
    }

    pub(super) fn read(
        &self,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
    ) -> Result<(), DmaFault> {
        let mut done = 0;
        let complete = walk(from, to, |memory, range| {
            let (source, room) = self.clip(memory);
            let target = arena.get_mut(range.offset as usize..).unwrap_or_default();
            let len = room.min(target.len());
            // SAFETY: `source` is valid for `len` bytes of mapped memory, which the application
            // may change meanwhile: any bytes are as good as any others. `target` is ours.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), len) };
            done += len as u64;
            len == range.len as usize
        });
        if complete { Ok(()) } else { Err(DmaFault { done }) }
    }

    pub(super) fn write(
        &self,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        self.write_from(from, to, tails, |range: Range| {
            let source = arena.get(range.offset as usize..).unwrap_or_default();
            (source.as_ptr(), source.len())
        })
    }

    /// Copies from another mapping, or from this one.
    pub(super) fn copy(
        &self,
        source: &Self,
        from: &[MemRange],
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        self.write_from(from, to, tails, |range| source.locate(range))
    }

    /// Copies what `locate` finds; it says from where on how many bytes are valid.
    fn write_from<R: Run>(
        &self,
        from: &[R],
        to: &[MemRange],
        tails: &[u64],
        locate: impl Fn(R) -> (*const u8, usize),
    ) -> Result<(), DmaFault> {
        if !self.writable {
            return Err(NOTHING);
        }
        let total = from.iter().map(|range| u64::from(range.len())).sum();
        let mut pieces = pieces(tails, total);
        // The piece being stored: where it ends, and whether it must be the last of its message.
        let (mut end, mut is_tail) = (0, false);
        let mut done = 0;
        let complete = walk(to, from, |memory, range| {
            let (target, room) = self.clip(memory);
            let (source, valid) = locate(range);
            let len = room.min(valid);
            let mut at = 0;
            while at < len {
                if done == end {
                    let Some((start, next)) = pieces.next() else { return false };
                    (end, is_tail) = (next, next - start <= TAIL);
                }
                let step = ((end - done) as usize).min(len - at);
                // SAFETY: `at + step` is at most `len`, for which both sides are valid.
                unsafe { store(source.add(at), target.as_ptr().add(at), step, is_tail) };
                at += step;
                done += step as u64;
            }
            len == range.len() as usize
        });
        if complete { Ok(()) } else { Err(DmaFault { done }) }
    }

    pub(super) fn atomic(
        &self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let (at, room) = self.clip(MemRange { addr, len: 8 });
        if !self.writable || room < 8 || !(at.as_ptr() as usize).is_multiple_of(8) {
            return Err(NOTHING);
        }
        // SAFETY: 8 aligned bytes inside the mapping, which lives as long as `self`.
        let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
        let mut old = word.load(Ordering::Acquire);
        loop {
            match word.compare_exchange(old, update(old), Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => return Ok(old),
                Err(now) => old = now,
            }
        }
    }
}

/// Copies; `last` bytes are stored after everything before them, and in order.
///
/// # Safety
/// Both sides are valid for `len` bytes. They may overlap, as two registrations of a program may:
/// what arrives then is any mixture.
unsafe fn store(source: *const u8, target: *mut u8, len: usize, last: bool) {
    if !last {
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy(source, target, len) };
        return;
    }
    fence(Ordering::Release);
    for i in 0..len {
        // SAFETY: inside both sides; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(target.add(i)).store(*source.add(i), Ordering::Release) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        for (start, len) in self.pieces() {
            // SAFETY: a part of the mapping made in `new`; nothing refers to it any more.
            unsafe { libc::munmap(start, len) };
        }
    }
}

/// Bytes that are populated or unmapped in one go, a fraction of a millisecond's work: so long may
/// other threads of the process wait that allocate or meet a new page.
const PIECE: usize = 2 << 20;
