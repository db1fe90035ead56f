//! Memory files shared by daemon and application.
//!
//! The daemon [`create`]s and [`populate`]s; the application [`map`]s what it was sent. The file
//! is sealed: it cannot shrink, so that touching a mapped page never raises SIGBUS, and no process
//! can add a seal that takes the right to write away.
//!
//! What a seal cannot prevent is an application that punches holes into the file. The daemon then
//! reads zeroes, and its next store allocates the page again, within the size of the file.

use super::invalid;
use crate::words::{WORD, Words};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create,
};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Makes a zeroed, sealed memory file of `words` words and maps it.
///
/// No page exists yet: [`populate`] the ranges that will be used. `name` is only informative: it
/// shows in `/proc/PID/maps`.
///
/// # Errors
/// `InvalidInput` when `words` is 0 or too large, or `name` contains a zero byte; else what the
/// kernel says.
pub fn create(name: &str, words: usize) -> io::Result<(OwnedFd, Words)> {
    let fd = reserve(name, bytes(words)?)?;
    let words = Mapping::new(fd.as_fd(), words)?.into_words()?;
    Ok((fd, words))
}

/// Makes a sealed memory file of `len` bytes, none of which takes memory before it is written.
///
/// # Errors
/// `InvalidInput` when `len` is 0 or too large, or `name` contains a zero byte; else what the
/// kernel says.
pub fn reserve(name: &str, len: u64) -> io::Result<OwnedFd> {
    let fd = unsealed(name, len)?;
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// As [`create`], but the process that is sent the file can only [read](map_to_read) it.
///
/// # Errors
/// As [`create`].
pub fn create_to_read(name: &str, words: usize) -> io::Result<(OwnedFd, Words)> {
    let fd = unsealed(name, bytes(words)?)?;
    let words = Mapping::new(fd.as_fd(), words)?.into_words()?;
    // After the only mapping that may be written to.
    fcntl_add_seals(&fd, SEALS | SealFlags::FUTURE_WRITE)?;
    Ok((fd, words))
}

/// As [`create`], for the process that is sent the file and [maps it for good](map_for_good).
///
/// # Errors
/// As [`create`].
pub fn create_for_good(name: &str, words: usize) -> io::Result<(OwnedFd, Words)> {
    let fd = unsealed(name, bytes(words)?)?;
    fcntl_add_seals(&fd, SEALS - SealFlags::SEAL)?;
    let words = Mapping::new(fd.as_fd(), words)?.into_words()?;
    Ok((fd, words))
}

fn unsealed(name: &str, len: u64) -> io::Result<OwnedFd> {
    if len == 0 || i64::try_from(len).is_err() {
        return Err(impossible_size());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        result => result?,
    };
    ftruncate(&fd, len)?;
    Ok(fd)
}

/// Frees the pages of the first `len` bytes, whatever has them mapped: they read as zeros.
///
/// # Errors
/// What the kernel says.
pub fn discard(fd: impl AsFd, len: u64) -> io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| fallocate(&fd, hole, 0, len))?)
}

/// Allocates the pages of a range of words.
///
/// # Errors
/// `StorageFull` or `OutOfMemory` when there is no memory: at creation, not as a SIGBUS later.
/// `PermissionDenied` when the range reaches beyond the end of the sealed file.
pub fn populate(fd: impl AsFd, range: Range<usize>) -> io::Result<()> {
    let Some(words) = range.end.checked_sub(range.start).filter(|words| *words > 0) else {
        return Ok(());
    };
    let len = bytes(words)?;
    let start = if range.start == 0 { 0 } else { bytes(range.start)? };
    Ok(retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), start, len))?)
}

/// Maps a memory file that the daemon sent.
///
/// A child made by fork does not inherit the mapping. The descriptor is not needed afterwards.
///
/// # Errors
/// `InvalidData` when the file is shorter than `words` or not sealed against shrinking; else what
/// the kernel says.
pub fn map(fd: impl AsFd, words: usize) -> io::Result<Words> {
    let fd = fd.as_fd();
    check_sealed(fd, bytes(words)?)?;
    let mut mapping = Mapping::new(fd, words)?;
    mapping.exclude_from_fork()?;
    mapping.into_words()
}

/// Maps a file that [`create_for_good`] made. From then on pages cannot be punched out of it, not
/// by this process either: each one would take the other side's time, which has to map it again.
///
/// # Errors
/// As [`map`].
pub fn map_for_good(fd: impl AsFd, words: usize) -> io::Result<Words> {
    let words = map(fd.as_fd(), words)?;
    // After the last mapping that may be written to.
    fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok(words)
}

/// Maps a file that [`create_to_read`] made. No word of it may be stored to: that is a signal.
///
/// # Errors
/// As [`map`].
pub fn map_to_read(fd: impl AsFd, words: usize) -> io::Result<Words> {
    let fd = fd.as_fd();
    check_sealed(fd, bytes(words)?)?;
    let map = MmapOptions::new().len(words * WORD).map_raw_read_only(fd.as_raw_fd())?;
    let mut mapping = Mapping { map: ManuallyDrop::new(map), words, only_in: None };
    mapping.exclude_from_fork()?;
    mapping.into_words()
}

/// Checks that a file holds at least `len` bytes and can never hold fewer: only then may memory
/// that another process controls be mapped.
///
/// Huge pages are refused: they come from a pool, and a store to one that was punched out of the
/// file when the pool is empty is a SIGBUS.
///
/// # Errors
/// `InvalidData` when it does not.
pub fn check_sealed(fd: impl AsFd, len: u64) -> io::Result<()> {
    let seals = fcntl_get_seals(&fd)
        .map_err(|error| invalid(format!("not a memory file that can be sealed: {error}")))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(invalid("the memory file is not sealed against shrinking (F_SEAL_SHRINK)"));
    }
    // The size is read after the seal was seen: it can only have grown since.
    let size = fstat(&fd)?.st_size;
    if fstatfs(&fd)?.f_type != libc::TMPFS_MAGIC {
        return Err(invalid("the memory file is not of ordinary pages"));
    }
    if u64::try_from(size).is_ok_and(|size| size >= len) {
        Ok(())
    } else {
        Err(invalid(format!("the memory file has {size} bytes, {len} are needed")))
    }
}

fn bytes(words: usize) -> io::Result<u64> {
    words
        .checked_mul(WORD)
        .filter(|len| *len > 0 && isize::try_from(*len).is_ok())
        .and_then(|len| u64::try_from(len).ok())
        .ok_or_else(impossible_size)
}

fn impossible_size() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "impossible memory size")
}

#[derive(Debug)]
struct Mapping {
    map: ManuallyDrop<MmapRaw>,
    words: usize,
    /// The process that has the mapping, when a forked child does not.
    only_in: Option<u32>,
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(words * WORD).map_raw(fd.as_raw_fd())?;
        Ok(Self { map: ManuallyDrop::new(map), words, only_in: None })
    }

    fn exclude_from_fork(&mut self) -> io::Result<()> {
        self.map.advise(Advice::DontFork)?;
        self.only_in = Some(std::process::id());
        Ok(())
    }

    fn into_words(self) -> io::Result<Words> {
        let base = NonNull::new(self.map.as_mut_ptr().cast());
        let base = base.ok_or_else(|| invalid("memory mapped at address 0"))?;
        let words = self.words;
        // SAFETY: the mapping is page-aligned, holds `words` words of a file that cannot shrink,
        // and lives as long as its owner, which is handed over here. Nothing else has its address.
        Ok(unsafe { Words::from_raw(base, words, Arc::new(self)) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child the range may by now belong to another mapping.
        if self.only_in.is_some_and(|pid| pid != std::process::id()) {
            return;
        }
        // SAFETY: this process has the mapping, the last user of it is gone, and it is dropped here
        // only.
        unsafe { ManuallyDrop::drop(&mut self.map) };
    }
}
