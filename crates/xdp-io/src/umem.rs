//! Packet memory: page-aligned mappings, and the layout of an AF_XDP port's frames in one of them.

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A readable and writable mapping, unmapped on drop.
pub(crate) struct MappedMemory {
    map: MmapRaw,
}

impl MappedMemory {
    /// Maps `len` bytes of zeroed private memory, populated, on huge pages where possible, and not
    /// inherited by child processes (a fork must not copy pages the kernel writes packets into).
    pub(crate) fn anonymous(len: usize) -> io::Result<MappedMemory> {
        let map = MmapRaw::from(MmapMut::map_anon(len)?);
        for advice in [Advice::HugePage, Advice::DontFork, Advice::PopulateWrite] {
            // The advice is optional: a kernel that does not know it returns an error and the
            // memory is populated by use.
            let _ = map.advise(advice);
        }
        Ok(MappedMemory { map })
    }

    /// Maps `len` bytes of `fd` from `offset`, shared with the kernel.
    pub(crate) fn shared(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<MappedMemory> {
        let map = MmapOptions::new().len(len).offset(offset).populate().map_raw(fd.as_raw_fd())?;
        Ok(MappedMemory { map })
    }

    /// Maps the first `len` bytes of `fd`, which others write to.
    pub(crate) fn read_only(fd: BorrowedFd<'_>, len: usize) -> io::Result<MappedMemory> {
        let map = MmapOptions::new().len(len).map_raw_read_only(fd.as_raw_fd())?;
        Ok(MappedMemory { map })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The number at `at`, a multiple of 8, that the kernel changes.
    pub(crate) fn number(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at < self.len() && self.len() - at >= 8);
        // SAFETY: inside the mapping, aligned as the start of a page is, and only read.
        let number = unsafe { &*self.start().add(at).cast::<AtomicU64>() };
        number.load(Ordering::Acquire)
    }

    /// The bytes of `range`.
    ///
    /// The kernel may write to parts of the memory at any time. The ports hand out only ranges
    /// whose ownership the kernel has given up; no code reads outside those.
    pub(crate) fn bytes(&self, range: std::ops::Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len());
        // SAFETY: the range lies inside the mapping, which lives as long as `self`, and every byte
        // of it is initialised (zeroed by the kernel).
        unsafe {
            std::slice::from_raw_parts(self.start().add(range.start), range.end - range.start)
        }
    }

    /// The bytes of `range`, writable.
    pub(crate) fn bytes_mut(&mut self, range: std::ops::Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len());
        // SAFETY: as in `bytes`; `&mut self` excludes every other slice of this process. The kernel
        // only reads transmit ranges, and the ports hand out receive ranges as writable only while
        // the kernel does not own them.
        unsafe {
            std::slice::from_raw_parts_mut(self.start().add(range.start), range.end - range.start)
        }
    }

    /// Copies `len` bytes from `from` to `to`; the ranges must not overlap.
    fn copy(&mut self, from: usize, to: usize, len: usize) {
        assert!(from.abs_diff(to) >= len && from.max(to) + len <= self.len());
        // SAFETY: both ranges lie inside the mapping and do not overlap.
        unsafe {
            let start = self.start();
            ptr::copy_nonoverlapping(start.add(from), start.add(to), len);
        }
    }
}

/// Size of one chunk of UMEM. The kernel allows no more than a page in any mode.
pub(crate) const CHUNK: usize = 4096;
/// Size of one transmit frame: two adjacent chunks.
pub(crate) const TX_FRAME: usize = 2 * CHUNK;

/// The memory of an AF_XDP port: `[bounce area | receive chunks | transmit frames]`.
///
/// Bounce area and receive chunks are the receive arena. The kernel is given the memory behind the
/// bounce area as UMEM, so that UMEM address = mapping offset - bounce bytes.
pub(crate) struct Umem {
    memory: MappedMemory,
    bounce: usize,
    rx_chunks: usize,
    tx_frames: usize,
}

impl Umem {
    /// Maps the memory; `bounce` is rounded up to whole chunks.
    pub(crate) fn new(bounce: usize, rx_chunks: usize, tx_frames: usize) -> io::Result<Umem> {
        let bounce = bounce.next_multiple_of(CHUNK);
        let memory = MappedMemory::anonymous(bounce + rx_chunks * CHUNK + tx_frames * TX_FRAME)?;
        Ok(Umem { memory, bounce, rx_chunks, tx_frames })
    }

    /// The start address of the part registered with the kernel.
    pub(crate) fn registered_start(&self) -> u64 {
        self.memory.start() as u64 + self.bounce as u64
    }

    /// The length of the part registered with the kernel.
    pub(crate) fn registered_len(&self) -> usize {
        self.memory.len() - self.bounce
    }

    /// UMEM addresses of the receive chunks.
    pub(crate) fn rx_chunk_addresses(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.rx_chunks as u64).map(|chunk| chunk * CHUNK as u64)
    }

    /// The receive arena.
    pub(crate) fn rx_arena(&self) -> &[u8] {
        self.memory.bytes(0..self.rx_end())
    }

    /// The transmit arena.
    pub(crate) fn tx_arena_mut(&mut self) -> &mut [u8] {
        let start = self.rx_end();
        self.memory.bytes_mut(start..start + self.tx_frames * TX_FRAME)
    }

    /// Bytes of the bounce area, which is the start of the receive arena.
    pub(crate) fn bounce_len(&self) -> usize {
        self.bounce
    }

    /// The receive arena offset of a received descriptor, or `None` when it does not lie within
    /// one receive chunk.
    pub(crate) fn rx_offset(&self, address: u64, len: u32) -> Option<usize> {
        let address = usize::try_from(address).ok()?;
        let within = address % CHUNK + len as usize;
        (address < self.rx_chunks * CHUNK && within <= CHUNK).then_some(self.bounce + address)
    }

    /// The UMEM address of a transmit arena offset.
    pub(crate) fn tx_address(&self, offset: usize) -> u64 {
        (self.rx_chunks * CHUNK + offset) as u64
    }

    /// The transmit frame a completed address belongs to.
    pub(crate) fn tx_frame_of(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.rx_chunks * CHUNK)?;
        Some(offset / TX_FRAME).filter(|frame| *frame < self.tx_frames)
    }

    /// Appends a received piece to the bounce area.
    pub(crate) fn linearise(&mut self, from: usize, to: usize, len: usize) {
        self.memory.copy(from, to, len);
    }

    fn rx_end(&self) -> usize {
        self.bounce + self.rx_chunks * CHUNK
    }
}
