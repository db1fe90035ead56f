//! Application memory of a simulated host: address spaces with holes, read-only pages, and a
//! witness for every DMA.
//!
//! The witness notes as a **violation** any access outside registered memory, any write to memory
//! registered without local write, any call that breaks the contract of [`Dma`], and any message
//! whose last byte is written without the ordering that programs which poll it rely on.

use rnic_abi::verbs::AccessFlags;
use rnic_core::ports::{Dma, DmaFault, MAX_DMA_RANGES, MemRange, Range, SpaceId};
use std::collections::BTreeMap;

/// Bytes of a page, the unit of protection.
pub const PAGE: u64 = 4096;

/// What may be done with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageAccess {
    /// Everything.
    ReadWrite,
    /// Writes fault.
    ReadOnly,
    /// Not mapped: every access faults.
    Hole,
}

/// How much DMA there was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DmaCounts {
    /// Calls of `read`.
    pub reads: u64,
    /// Calls of `write`.
    pub writes: u64,
    /// Calls of `atomic`.
    pub atomics: u64,
    /// Calls of `copy`.
    pub copies: u64,
    /// Memory ranges of all calls.
    pub ranges: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Calls that faulted.
    pub faults: u64,
}

/// Memory of one host.
#[derive(Debug, Default)]
pub struct Memory {
    spaces: BTreeMap<u64, Space>,
    /// How much DMA there was.
    pub counts: DmaCounts,
    /// It can be copied from: payload that the engine sends to itself may stay in it.
    pub is_copied_from: bool,
    violations: Vec<String>,
}

#[derive(Debug, Default)]
struct Space {
    /// Mappings by address.
    mappings: BTreeMap<u64, Mapping>,
    next: u64,
    regions: Vec<Region>,
    /// One past the last byte of messages of which a program polls the last byte.
    polled_ends: Vec<u64>,
}

#[derive(Debug)]
struct Mapping {
    bytes: Vec<u8>,
    pages: Vec<PageAccess>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    addr: u64,
    len: u64,
    writable: bool,
}

/// Unmapped addresses between two mappings.
const GAP: u64 = 16 * PAGE;
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;

impl Memory {
    /// Maps `len` zeroed bytes, whole pages, and returns their address. Mappings never touch.
    pub fn map(&mut self, space: SpaceId, len: u64) -> u64 {
        let space = self.spaces.entry(space.0).or_default();
        let len = len.next_multiple_of(PAGE).max(PAGE);
        let addr = FIRST_ADDRESS + space.next;
        space.next += len + GAP;
        let pages = vec![PageAccess::ReadWrite; index(len / PAGE)];
        space.mappings.insert(addr, Mapping { bytes: vec![0; index(len)], pages });
        addr
    }

    /// Changes what may be done with the pages that `len` bytes at `addr` touch.
    ///
    /// # Panics
    /// When they are not all mapped.
    pub fn protect(&mut self, space: SpaceId, addr: u64, len: u64, access: PageAccess) {
        let (base, mapping) = self.mapping_mut(space, addr, len).expect("protect what is mapped");
        let first = index((addr - base) / PAGE);
        let last = index((addr - base + len.max(1) - 1) / PAGE);
        mapping.pages[first..=last].fill(access);
    }

    /// The application reads its memory.
    ///
    /// # Panics
    /// When not all of it is mapped.
    pub fn bytes(&self, space: SpaceId, addr: u64, len: u64) -> &[u8] {
        let space = self.spaces.get(&space.0).expect("the space exists");
        let (base, mapping) = space.mapping(addr, len).expect("the application's range is mapped");
        &mapping.bytes[index(addr - base)..index(addr - base + len)]
    }

    /// The application changes its memory.
    ///
    /// # Panics
    /// When not all of it is mapped.
    pub fn bytes_mut(&mut self, space: SpaceId, addr: u64, len: u64) -> &mut [u8] {
        let (base, mapping) =
            self.mapping_mut(space, addr, len).expect("the application's range is mapped");
        &mut mapping.bytes[index(addr - base)..index(addr - base + len)]
    }

    fn mapping_mut(&mut self, space: SpaceId, addr: u64, len: u64) -> Option<(u64, &mut Mapping)> {
        let space = self.spaces.get_mut(&space.0)?;
        let (&base, mapping) = space.mappings.range_mut(..=addr).next_back()?;
        let inside = addr.checked_add(len)? <= base + mapping.bytes.len() as u64;
        inside.then_some((base, mapping))
    }

    /// DMA to this range is legal from now on.
    pub fn register(&mut self, space: SpaceId, addr: u64, len: u64, access: AccessFlags) {
        let writable = access.contains(AccessFlags::LOCAL_WRITE);
        let space = self.spaces.entry(space.0).or_default();
        space.regions.push(Region { addr, len, writable });
    }

    /// DMA to this range is illegal again.
    pub fn deregister(&mut self, space: SpaceId, addr: u64, len: u64) {
        let Some(space) = self.spaces.get_mut(&space.0) else { return };
        if let Some(at) = space.regions.iter().position(|r| (r.addr, r.len) == (addr, len)) {
            space.regions.swap_remove(at);
        }
    }

    /// A program polls the byte before `end` for the arrival of a message.
    pub fn poll_last_byte(&mut self, space: SpaceId, end: u64) {
        self.spaces.entry(space.0).or_default().polled_ends.push(end);
    }

    /// It no longer does.
    pub fn stop_polling(&mut self, space: SpaceId, end: u64) {
        let Some(space) = self.spaces.get_mut(&space.0) else { return };
        if let Some(at) = space.polled_ends.iter().position(|polled| *polled == end) {
            space.polled_ends.swap_remove(at);
        }
    }

    /// What the engine did that no NIC may do.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn check_call(&mut self, from: (usize, u64), to: (usize, u64)) {
        if from.0 > MAX_DMA_RANGES || to.0 > MAX_DMA_RANGES {
            self.violations.push(format!("DMA with {} and {} ranges", from.0, to.0));
        }
        if from.1 != to.1 {
            self.violations.push(format!("DMA from {} to {} bytes", from.1, to.1));
        }
    }

    fn check_registered(&mut self, space: SpaceId, range: MemRange, write: bool) {
        let ok = self.spaces.get(&space.0).is_some_and(|s| s.is_registered(range, write));
        if !ok {
            let what = if write { "write" } else { "read" };
            self.violations.push(format!(
                "DMA {what} of {} bytes at {:#x} outside registered memory",
                range.len, range.addr
            ));
        }
    }

    /// Every message end that is polled and written here must be a tail of the transfer.
    fn check_tails(&mut self, space: SpaceId, to: &[MemRange], tails: &[u64]) {
        let total: u64 = to.iter().map(|range| u64::from(range.len)).sum();
        if !tails.is_sorted() || tails.iter().any(|tail| *tail > total) {
            self.violations.push(format!("tails {tails:?} of a transfer of {total} bytes"));
        }
        let Some(space) = self.spaces.get(&space.0) else { return };
        let mut before = 0;
        for range in to {
            let end = range.addr.wrapping_add(u64::from(range.len));
            for polled in &space.polled_ends {
                if *polled > range.addr && *polled <= end {
                    let at = before + (polled - range.addr);
                    if at != total && !tails.contains(&at) {
                        self.violations.push(format!(
                            "the byte before {polled:#x}, which a program polls, is written \
                             without being a tail: byte {at} of {total}, tails {tails:?}"
                        ));
                    }
                }
            }
            before += u64::from(range.len);
        }
    }
}

impl Space {
    fn mapping(&self, addr: u64, len: u64) -> Option<(u64, &Mapping)> {
        let (&base, mapping) = self.mappings.range(..=addr).next_back()?;
        let inside = addr.checked_add(len)? <= base + mapping.bytes.len() as u64;
        inside.then_some((base, mapping))
    }

    /// Every byte is inside some region; a range may span regions that touch.
    fn is_registered(&self, range: MemRange, write: bool) -> bool {
        let Some(end) = range.addr.checked_add(u64::from(range.len)) else { return false };
        let mut at = range.addr;
        while at < end {
            let inside =
                |r: &&Region| (r.writable || !write) && r.addr <= at && at - r.addr < r.len;
            match self.regions.iter().filter(inside).map(|r| r.addr + r.len).max() {
                Some(next) => at = next,
                None => return false,
            }
        }
        true
    }

    /// Bytes from `addr` on that can be accessed, at most `len`.
    fn reachable(&self, addr: u64, len: u64, write: bool) -> u64 {
        let Some((base, mapping)) = self.mapping(addr, 0) else { return 0 };
        let mut reached = 0;
        while reached < len {
            let offset = addr + reached - base;
            let allowed = match mapping.pages.get(index(offset / PAGE)) {
                Some(PageAccess::ReadWrite) => true,
                Some(PageAccess::ReadOnly) => !write,
                Some(PageAccess::Hole) | None => false,
            };
            if !allowed {
                break;
            }
            reached = (reached + PAGE - offset % PAGE).min(len);
        }
        reached
    }
}

/// Where the bytes of one side of a transfer are, one after the other.
struct Cursor<'a> {
    ranges: &'a [Range],
    done: usize,
}

impl Cursor<'_> {
    /// The next run of at most `len` bytes of the arena.
    fn next(&mut self, len: usize) -> Option<std::ops::Range<usize>> {
        loop {
            let first = self.ranges.first()?;
            let left = first.len as usize - self.done;
            if left == 0 {
                self.ranges = &self.ranges[1..];
                self.done = 0;
                continue;
            }
            let start = first.offset as usize + self.done;
            let take = left.min(len);
            self.done += take;
            return Some(start..start + take);
        }
    }
}

impl Dma for Memory {
    fn read(
        &mut self,
        space: SpaceId,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
    ) -> Result<(), DmaFault> {
        self.counts.reads += 1;
        self.load(space, from, arena, to)
    }

    fn write(
        &mut self,
        space: SpaceId,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        self.counts.writes += 1;
        self.store(space, arena, from, to, tails)
    }

    fn copies_from(&self, space: SpaceId, from: MemRange) -> bool {
        let len = u64::from(from.len);
        let reached = self.spaces.get(&space.0).map_or(0, |s| s.reachable(from.addr, len, false));
        self.is_copied_from && reached == len
    }

    fn copy(
        &mut self,
        source: SpaceId,
        from: &[MemRange],
        target: SpaceId,
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        self.counts.copies += 1;
        if !from.iter().all(|range| self.copies_from(source, *range)) {
            self.violations.push(format!("a copy from {from:?}, which cannot be copied from"));
        }
        let mut bytes = vec![0; index(mem_total(from).1)];
        let all = [Range { offset: 0, len: u32::try_from(bytes.len()).unwrap_or(u32::MAX) }];
        self.load(source, from, &mut bytes, &all)?;
        self.store(target, &bytes, &all, to, tails)
    }

    fn atomic(
        &mut self,
        space: SpaceId,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        self.counts.atomics += 1;
        self.check_registered(space, MemRange { addr, len: 8 }, true);
        if !addr.is_multiple_of(8) {
            self.violations.push(format!("atomic at {addr:#x}, which is not a multiple of 8"));
        }
        let reached = self.spaces.get(&space.0).map_or(0, |s| s.reachable(addr, 8, true));
        if reached < 8 {
            self.counts.faults += 1;
            return Err(DmaFault { done: 0 });
        }
        let bytes = self.bytes_mut(space, addr, 8);
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        let old = u64::from_ne_bytes(word);
        bytes.copy_from_slice(&update(old).to_ne_bytes());
        Ok(old)
    }
}

impl Memory {
    fn load(
        &mut self,
        space: SpaceId,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
    ) -> Result<(), DmaFault> {
        self.check_call(mem_total(from), arena_total(to));
        let mut cursor = Cursor { ranges: to, done: 0 };
        let mut done = 0;
        for range in from {
            self.counts.ranges += 1;
            self.check_registered(space, *range, false);
            let Some(memory) = self.spaces.get(&space.0) else { return self.fault(done) };
            let len = u64::from(range.len);
            let reached = memory.reachable(range.addr, len, false);
            if let Some((base, mapping)) = memory.mapping(range.addr, reached) {
                let mut source = &mapping.bytes[index(range.addr - base)..][..index(reached)];
                while !source.is_empty() {
                    let Some(run) = cursor.next(source.len()) else { break };
                    let (now, later) = source.split_at(run.len());
                    arena[run].copy_from_slice(now);
                    source = later;
                }
            }
            done += reached;
            self.counts.bytes += reached;
            if reached < len {
                return self.fault(done);
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        space: SpaceId,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        self.check_call(arena_total(from), mem_total(to));
        self.check_tails(space, to, tails);
        let mut cursor = Cursor { ranges: from, done: 0 };
        let mut done = 0;
        for range in to {
            self.counts.ranges += 1;
            self.check_registered(space, *range, true);
            let len = u64::from(range.len);
            let reached =
                self.spaces.get(&space.0).map_or(0, |s| s.reachable(range.addr, len, true));
            if let Some((base, mapping)) = self.mapping_mut(space, range.addr, reached) {
                let mut target = &mut mapping.bytes[index(range.addr - base)..][..index(reached)];
                while !target.is_empty() {
                    let Some(run) = cursor.next(target.len()) else { break };
                    let (now, later) = target.split_at_mut(run.len());
                    now.copy_from_slice(&arena[run]);
                    target = later;
                }
            }
            done += reached;
            self.counts.bytes += reached;
            if reached < len {
                return self.fault(done);
            }
        }
        Ok(())
    }

    fn fault(&mut self, done: u64) -> Result<(), DmaFault> {
        self.counts.faults += 1;
        Err(DmaFault { done })
    }
}

fn mem_total(ranges: &[MemRange]) -> (usize, u64) {
    (ranges.len(), ranges.iter().map(|range| u64::from(range.len)).sum())
}

fn arena_total(ranges: &[Range]) -> (usize, u64) {
    (ranges.len(), ranges.iter().map(|range| u64::from(range.len)).sum())
}

/// Sizes of the simulation fit into `usize`.
fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Memory, PAGE, PageAccess};
    use rnic_abi::verbs::AccessFlags;
    use rnic_core::ports::{Dma, MemRange, Range, SpaceId};

    const SPACE: SpaceId = SpaceId(1);

    #[test]
    fn a_write_stops_at_the_first_hole() {
        let mut memory = Memory::default();
        let addr = memory.map(SPACE, 3 * PAGE);
        memory.register(SPACE, addr, 3 * PAGE, AccessFlags::LOCAL_WRITE);
        memory.protect(SPACE, addr + PAGE, 1, PageAccess::ReadOnly);
        let arena = [7; 64];
        let from = [Range { offset: 0, len: 32 }];
        let to = [MemRange { addr, len: 8 }, MemRange { addr: addr + PAGE - 10, len: 24 }];
        let fault = memory.write(SPACE, &arena, &from, &to, &[]).unwrap_err();
        assert_eq!(fault.done, 18);
        assert_eq!(memory.bytes(SPACE, addr + PAGE - 10, 11), [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        assert!(memory.violations().is_empty(), "{:?}", memory.violations());
    }

    #[test]
    fn an_access_outside_registered_memory_is_noted() {
        let mut memory = Memory::default();
        let addr = memory.map(SPACE, PAGE);
        memory.register(SPACE, addr, 16, AccessFlags::empty());
        memory.register(SPACE, addr + 16, 16, AccessFlags::LOCAL_WRITE);
        let mut arena = [0; 64];
        let to = [Range { offset: 0, len: 32 }];
        memory.read(SPACE, &[MemRange { addr, len: 32 }], &mut arena, &to).unwrap();
        assert!(memory.violations().is_empty(), "regions that touch are one range");
        memory.write(SPACE, &arena, &to, &[MemRange { addr, len: 32 }], &[]).unwrap();
        assert_eq!(memory.violations().len(), 1, "the first half is read-only");
    }

    #[test]
    fn a_polled_byte_must_be_a_tail() {
        let mut memory = Memory::default();
        let addr = memory.map(SPACE, PAGE);
        memory.register(SPACE, addr, PAGE, AccessFlags::LOCAL_WRITE);
        memory.poll_last_byte(SPACE, addr + 16);
        let arena = [1; 64];
        let from = [Range { offset: 0, len: 32 }];
        let to = [MemRange { addr, len: 32 }];
        memory.write(SPACE, &arena, &from, &to, &[16]).unwrap();
        assert!(memory.violations().is_empty());
        memory.write(SPACE, &arena, &from, &to, &[]).unwrap();
        assert_eq!(memory.violations().len(), 1);
    }
}
