//! Memory that the device may access.

use std::{
    ffi::c_void,
    io,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd},
    ptr,
};

use rnic_abi::os::memory;
use verbs_abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_mr, ibv_pd};

use super::wire::Place;
use crate::{
    error::{Errno, Result},
    session::own_verbs,
    verbs,
};

/// Pages of its own, registered. Peers may write to them at any time, so that there is never a
/// reference to what is in them.
pub(crate) struct Region {
    at: *mut u8,
    len: usize,
    mr: *mut ibv_mr,
    /// The only process that has the pages: its children do not.
    process: u32,
}

// SAFETY: it is only accessed by copying, and objects of libibverbs may be used by any thread.
unsafe impl Send for Region {}
// SAFETY: as above; what overlaps is the program's affair, as with sockets.
unsafe impl Sync for Region {}

impl Region {
    /// `remote`: peers that have its key may write to it.
    pub(crate) fn new(pd: *mut ibv_pd, len: usize, remote: bool) -> Result<Self> {
        let len = len.max(1);
        // The daemon maps it too, and copies without system calls. Where the size of files is
        // limited, making one that is larger ends the program by a signal.
        let file = match file_size_is_limited() {
            true => None,
            false => Some(memory::reserve("rsocket", len as u64)?),
        };
        let mut region = Self::map(file.as_ref(), len)?;
        let access = IBV_ACCESS_LOCAL_WRITE | if remote { IBV_ACCESS_REMOTE_WRITE } else { 0 };
        let (at, access) = (region.at.cast::<c_void>(), access.cast_signed());
        region.mr = match file {
            Some(file) => {
                // SAFETY: the domain is an open device's, the mapping new, and the descriptor given
                // away.
                unsafe {
                    let register = own_verbs((*pd).context).reg_file_mr;
                    register(pd, at, len, access, file.into_raw_fd())
                }
            }
            // SAFETY: as above.
            None => unsafe { verbs::ibv_reg_mr(pd, at, len, access) },
        };
        if region.mr.is_null() { Err(Errno::last()) } else { Ok(region) }
    }

    /// Pages of a file or, without one, of this process only; not registered yet.
    fn map(file: Option<&OwnedFd>, len: usize) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let process = std::process::id();
        let region = Self { at: at.cast(), len, mr: ptr::null_mut(), process };
        // A child made by fork has no part in it.
        // SAFETY: the mapping just made.
        if unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(region)
    }

    pub(crate) fn address(&self) -> u64 {
        self.at.addr() as u64
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: alive as long as the region.
        unsafe { (*self.mr).lkey }
    }

    /// The first `len` bytes, for peers.
    pub(crate) fn place(&self, len: u32) -> Place {
        // SAFETY: alive as long as the region.
        Place { addr: self.address(), rkey: unsafe { (*self.mr).rkey }, len }
    }

    /// Copies bytes of the program into a ring that begins at the start.
    ///
    /// # Safety
    /// `from` has `len` bytes.
    pub(crate) unsafe fn fill(&self, ring: u32, at: u32, from: *const u8, len: u32) {
        for (at, into, len) in pieces(ring, at, len) {
            if at.checked_add(len).is_some_and(|end| end <= self.len) {
                // SAFETY: checked, and by contract; a mapping of ours is not the program's.
                unsafe { ptr::copy_nonoverlapping(from.add(into), self.at.add(at), len) };
            }
        }
    }

    /// Copies bytes of such a ring to the program.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    pub(crate) unsafe fn copy_out(&self, ring: u32, at: u32, to: *mut u8, len: u32) {
        for (at, into, len) in pieces(ring, at, len) {
            if at.checked_add(len).is_some_and(|end| end <= self.len) {
                // SAFETY: checked, and by contract; a mapping of ours is not the program's.
                unsafe { ptr::copy_nonoverlapping(self.at.add(at), to.add(into), len) };
            }
        }
    }

    /// Copies some bytes once.
    pub(crate) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        if at.checked_add(N).is_some_and(|end| end <= self.len) {
            // SAFETY: checked.
            unsafe { ptr::copy_nonoverlapping(self.at.add(at), bytes.as_mut_ptr(), N) };
        }
        bytes
    }
}

/// The two pieces of a range of a ring: where in it, where in the range, and how long.
pub(crate) fn pieces(ring: u32, at: u32, len: u32) -> [(usize, usize, usize); 2] {
    let first = len.min(ring.saturating_sub(at));
    let rest = len - first;
    [(at as usize, 0, first as usize), (0, first as usize, rest as usize)]
}

fn file_size_is_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    result != 0 || limit.rlim_cur != libc::RLIM_INFINITY
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a forked child the range may by now belong to another mapping.
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: its own, and both are ended once.
        unsafe {
            if !self.mr.is_null() {
                verbs::ibv_dereg_mr(self.mr);
            }
            libc::munmap(self.at.cast::<c_void>(), self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_a_ring_has_two_pieces() {
        assert_eq!(pieces(100, 10, 20), [(10, 0, 20), (0, 20, 0)]);
        assert_eq!(pieces(100, 90, 20), [(90, 0, 10), (0, 10, 10)]);
        assert_eq!(pieces(100, 90, 10), [(90, 0, 10), (0, 10, 0)]);
        assert_eq!(pieces(100, 0, 0), [(0, 0, 0), (0, 0, 0)]);
    }

    fn is_mapped(at: *mut u8, len: usize) -> bool {
        // SAFETY: the kernel only looks whether there are pages.
        unsafe { libc::msync(at.cast(), len, libc::MS_ASYNC) == 0 }
    }

    #[test]
    fn pages_without_a_file_are_written_and_read() {
        let region = Region::map(None, 8192).unwrap();
        // SAFETY: so many bytes.
        unsafe { region.fill(8192, 8190, [1, 2, 3, 4].as_ptr(), 4) };
        assert_eq!(region.read::<2>(8190), [1, 2]);
        assert_eq!(region.read::<2>(0), [3, 4]);
    }

    #[test]
    fn pages_of_another_process_are_not_unmapped() {
        let mut region = Region::map(None, 8192).unwrap();
        let (at, len, process) = (region.at, region.len, region.process);
        region.process = process.wrapping_add(1);
        drop(region);
        assert!(is_mapped(at, len), "it may be another mapping there");
        drop(Region { at, len, mr: ptr::null_mut(), process });
    }
}
