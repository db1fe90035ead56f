//! The memory of another process, by `process_vm_readv` and `process_vm_writev`.

use super::{Mapping, NOTHING, Run, pieces};
use rnic_abi::os::process;
use rnic_core::Instant;
use rnic_core::ports::{DmaFault, MAX_DMA_RANGES, MemRange, Range};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A client process.
#[derive(Debug)]
pub struct Process {
    pid: libc::pid_t,
    /// A thread of it that was alive: the main thread may have ended before the others. `None`
    /// when there was no other one left, or the process was seen to have exited, which is for good.
    thread: Option<libc::pid_t>,
    /// `None` for this process, which lives as long as its engine.
    life: Option<Life>,
}

/// Whether a process still has its number, which the kernel gives to another one after its end.
#[derive(Debug)]
struct Life {
    /// Readable once the process has exited, which is before its number can come again. The one of
    /// the client's session.
    pidfd: Arc<OwnedFd>,
    /// Until when it is believed to live.
    until: Instant,
}

/// How long a process that was seen alive is believed to live, as a look takes a system call. For
/// its number to come again, it must exit and be waited for, and the kernel must have given out all
/// other numbers, or root choose this one: that takes much longer.
///
/// A window is left, as the kernel copies by number alone: the engine's thread may lose its CPU
/// between a look, or the start of its half turn, and the copy, for long enough that all of this
/// happens.
const BELIEVED: Duration = Duration::from_micros(50);

impl Life {
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        loop {
            match poll(&mut fds, Some(&Timespec::default())) {
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                // What cannot be seen is not written to.
                Err(_) => return true,
            }
        }
    }
}

/// Room for one call's vectors, allocated once.
pub(super) struct Scratch {
    local: Vec<libc::iovec>,
    remote: Vec<libc::iovec>,
}

// SAFETY: what the addresses name is passed with each call, which fills in all that it uses.
unsafe impl Send for Scratch {}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// A range and two cuts for each message that ends in the transfer, one more for its own end.
const MAX_LOCAL: usize = MAX_DMA_RANGES * 3 + 2;
const _: () = assert!(MAX_LOCAL <= 1024, "more than IOV_MAX");

impl Scratch {
    pub(super) fn new() -> Self {
        Self { local: Vec::with_capacity(MAX_LOCAL), remote: Vec::with_capacity(MAX_DMA_RANGES) }
    }

    fn fill_remote(&mut self, ranges: &[MemRange]) {
        self.remote.clear();
        self.remote.extend(ranges.iter().map(|range| libc::iovec {
            // The kernel checks the address; a cut one on a 32-bit host is a wrong one.
            iov_base: range.addr as usize as *mut libc::c_void,
            iov_len: range.len as usize,
        }));
    }

    /// Local vectors for `ranges`, which are where `locate` says, cut where a piece ends.
    /// The caller has checked the ranges.
    fn fill_local<R: Run>(&mut self, ranges: &[R], ends: &[u64], locate: impl Fn(R) -> *const u8) {
        self.local.clear();
        let total = ranges.iter().map(|range| u64::from(range.len())).sum();
        let mut ranges = ranges.iter().copied();
        let mut current: Option<R> = None;
        for (start, end) in pieces(ends, total) {
            let mut missing = end - start;
            while missing > 0 {
                let Some(left) = current.as_mut().filter(|left| left.len() > 0) else {
                    let Some(next) = ranges.next() else { return };
                    current = Some(next);
                    continue;
                };
                let len = missing.min(u64::from(left.len())) as u32;
                self.local.push(libc::iovec {
                    iov_base: locate(left.take(len)).cast_mut().cast(),
                    iov_len: len as usize,
                });
                missing -= u64::from(len);
            }
        }
    }

    fn total(&self) -> usize {
        self.local.iter().map(|vector| vector.iov_len).sum()
    }
}

/// True when all ranges are inside an arena of `len` bytes.
pub(super) fn inside(ranges: &[Range], len: usize) -> bool {
    ranges.iter().all(|range| range.offset as usize + range.len as usize <= len)
}

impl Process {
    /// A client: the process `pid`, as this thread sees it, which `pidfd` holds.
    pub fn of_client(pid: u32, pidfd: Arc<OwnedFd>) -> Option<Self> {
        let life = Life { pidfd, until: Instant::ZERO };
        Some(Self { life: Some(life), ..Self::numbered(pid)? })
    }

    /// This process.
    pub(crate) fn own() -> Option<Self> {
        Self::numbered(std::process::id())
    }

    fn numbered(pid: u32) -> Option<Self> {
        let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
        Some(Self { pid, thread: Some(pid), life: None })
    }

    /// Before each transfer.
    ///
    /// # Errors
    /// The process has exited: its number may be another one's.
    #[inline]
    pub(super) fn look(&mut self, now: Instant) -> Result<&mut Self, DmaFault> {
        match &self.life {
            Some(life) if now >= life.until => self.look_again(now),
            _ => Ok(self),
        }
    }

    fn look_again(&mut self, now: Instant) -> Result<&mut Self, DmaFault> {
        // First the thread, whose number may come again while the process lives. That it is one of
        // the process was true of the client if that is found alive afterwards.
        if self.thread.is_some_and(|thread| thread != self.pid && !belongs(self.pid, thread)) {
            self.thread = living_thread(self.pid);
        }
        self.forget_if_over();
        if let Some(life) = &mut self.life {
            life.until = now.after(BELIEVED);
        }
        if self.thread.is_some() { Ok(self) } else { Err(NOTHING) }
    }

    fn forget_if_over(&mut self) {
        if self.thread.is_some() && self.life.as_ref().is_some_and(Life::is_over) {
            self.thread = None;
        }
    }

    pub(super) fn read(
        &mut self,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
        scratch: &mut Scratch,
    ) -> Result<(), DmaFault> {
        if !inside(to, arena.len()) {
            return Err(NOTHING);
        }
        scratch.fill_remote(from);
        let base = arena.as_mut_ptr();
        scratch.fill_local(to, &[], |range: Range| base.wrapping_add(range.offset as usize));
        self.transfer(scratch, libc::process_vm_readv)
    }

    pub(super) fn write(
        &mut self,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
        scratch: &mut Scratch,
    ) -> Result<(), DmaFault> {
        if !inside(from, arena.len()) || tails.len() > MAX_DMA_RANGES {
            return Err(NOTHING);
        }
        scratch.fill_remote(to);
        let base = arena.as_ptr();
        scratch.fill_local(from, tails, |range: Range| base.wrapping_add(range.offset as usize));
        self.transfer(scratch, libc::process_vm_writev)
    }

    /// Writes what is in a mapping.
    pub(super) fn write_mapped(
        &mut self,
        source: &Mapping,
        from: &[MemRange],
        to: &[MemRange],
        tails: &[u64],
        scratch: &mut Scratch,
    ) -> Result<(), DmaFault> {
        if !from.iter().all(|range| source.contains(*range)) || tails.len() > MAX_DMA_RANGES {
            return Err(NOTHING);
        }
        scratch.fill_remote(to);
        scratch.fill_local(from, tails, |range| source.locate(range).0);
        self.transfer(scratch, libc::process_vm_writev)
    }

    /// Read, change, write: atomic because one engine thread alone reaches this memory.
    pub(super) fn atomic(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let mut word = [0; 8];
        let at = libc::iovec { iov_base: addr as usize as *mut libc::c_void, iov_len: 8 };
        let here = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: 8 };
        self.call(&[here], &[at], 8, libc::process_vm_readv).map_err(|_| NOTHING)?;
        let old = u64::from_ne_bytes(word);
        word = update(old).to_ne_bytes();
        let here = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: 8 };
        self.call(&[here], &[at], 8, libc::process_vm_writev).map_err(|_| NOTHING)?;
        Ok(old)
    }

    fn transfer(&mut self, scratch: &Scratch, call: ProcessVm) -> Result<(), DmaFault> {
        let total = scratch.total();
        if total == 0 {
            return Ok(());
        }
        self.call(&scratch.local, &scratch.remote, total, call)
    }

    /// The vectors of `local` must name memory that is valid for `call`.
    fn call(
        &mut self,
        local: &[libc::iovec],
        remote: &[libc::iovec],
        total: usize,
        call: ProcessVm,
    ) -> Result<(), DmaFault> {
        for _ in 0..ATTEMPTS {
            let thread = self.thread.ok_or(NOTHING)?;
            // SAFETY: every caller builds `local` from a live arena, mapping or variable that it
            // borrows for as long as this call, mutably where the kernel writes. The kernel
            // checks `remote`.
            let done = unsafe {
                call(
                    thread,
                    local.as_ptr(),
                    local.len() as libc::c_ulong,
                    remote.as_ptr(),
                    remote.len() as libc::c_ulong,
                    0,
                )
            };
            if usize::try_from(done) == Ok(total) {
                return Ok(());
            }
            if let Ok(done) = u64::try_from(done) {
                return Err(DmaFault { done });
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ESRCH) => {
                    self.thread = living_thread(self.pid);
                    // Afterwards: then what was found was the client's.
                    self.forget_if_over();
                }
                _ => return Err(NOTHING),
            }
        }
        Err(NOTHING)
    }
}

/// Tries of one transfer: a thread may end right after it was found to be alive, and a client that
/// makes that happen every time must not keep its engine.
const ATTEMPTS: u32 = 4;
/// Threads looked at in search of a living one. Those that ended are gone, unless a debugger holds
/// them; then there may be thousands, in the order in which they began.
const MAX_THREADS: usize = 64;

type ProcessVm = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// A thread of `pid` that has not ended: `/proc/PID/task` also lists zombies.
fn living_thread(pid: libc::pid_t) -> Option<libc::pid_t> {
    let threads = process::folder(pid.cast_unsigned()).ok()?.join("task");
    std::fs::read_dir(&threads)
        .ok()?
        .take(MAX_THREADS)
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|thread| is_alive(&threads, *thread))
}

/// Whether a thread is one of `pid`, by a signal that is none.
fn belongs(pid: libc::pid_t, thread: libc::pid_t) -> bool {
    // SAFETY: no memory is named, and signal 0 does nothing.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, 0) };
    // Another error, such as EPERM, is one about a thread that was found.
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

fn is_alive(threads: &Path, thread: libc::pid_t) -> bool {
    // "1234 (any name) S ...": Z is a zombie, X is dead.
    let stat = threads.join(thread.to_string()).join("stat");
    let stat = std::fs::read(stat).unwrap_or_default();
    let name_ends = stat.iter().rposition(|byte| *byte == b')');
    let state = name_ends.and_then(|at| stat.get(at + 2));
    state.is_some_and(|state| !b"ZXx".contains(state))
}

/// Reads one byte of `pid`'s memory: whether this thread may, and whether there is any.
///
/// # Errors
/// `EPERM`, `EFAULT` or `ESRCH`, as the kernel says.
pub(crate) fn probe(pid: u32, addr: u64) -> io::Result<()> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: addr as usize as *mut libc::c_void, iov_len: 1 };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: one byte of a live variable; the kernel checks the remote address.
    let done = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    match done {
        1 => Ok(()),
        0 => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::pidfd_of;
