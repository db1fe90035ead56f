//! Application memory: what the engine's [`Dma`] calls become.
//!
//! Four kinds of address space:
//!
//! * a **process**: `process_vm_readv` and `process_vm_writev`, which work for whatever the
//!   application registered. A wrong address is a partial count, never a signal. The kernel checks
//!   the rights of the calling thread against the process at every call, so the thread must carry
//!   the rights of the client and no more.
//! * this **own** process, whose clients are in it: plain copies, which a wrong address ends, too;
//! * **mapped** memory: a memfd that can no longer shrink, mapped by both; no system call.
//! * the **null** space, which is no memory.
//!
//! One `process_vm_writev` copies in no useful order inside an iovec, so the last 8 bytes of every
//! message get an iovec of their own: programs poll the last byte of a message.

#[allow(unsafe_code)]
mod mapped;
#[allow(unsafe_code)]
mod own;
#[allow(unsafe_code)]
mod process;

use rnic_core::Instant;
use rnic_core::ports::{Dma, DmaFault, MemRange, Range, SpaceId};
use std::sync::Arc;

pub(crate) use mapped::Mapping;
pub(crate) use own::{Own, probe as probe_own};
pub(crate) use process::{Process, probe};

/// An address space.
#[derive(Debug)]
pub enum Space {
    /// Of a client process.
    Process(Process),
    /// Of this process.
    Own(Own),
    /// Of a shared memory file; address 0 is where the registration starts.
    /// Several may be of one mapping.
    Mapped(Arc<Mapping>),
    /// No memory: all bytes are zero, and what is written vanishes.
    Null,
}

/// The address spaces of one engine's clients.
#[derive(Debug)]
pub struct SystemDma {
    /// By [`slot_of`]. Each knows its whole number: a slot is used again, a number is not.
    spaces: Vec<Option<(SpaceId, Space)>>,
    scratch: process::Scratch,
    guard: own::Guard,
    /// When the half of a turn began.
    now: Instant,
}

/// The number of a space that has a slot for itself among those that exist. `generation`: how many
/// there were before.
pub(crate) fn space_id(slot: u32, generation: u32) -> SpaceId {
    SpaceId(u64::from(generation) << 32 | u64::from(slot))
}

/// The slot of a space.
pub(crate) fn slot_of(id: SpaceId) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    let slot = id.0 as u32;
    slot
}

impl SystemDma {
    /// No space yet.
    pub fn new() -> Self {
        let (scratch, guard) = (process::Scratch::new(), own::Guard::new());
        Self { spaces: Vec::new(), scratch, guard, now: Instant::ZERO }
    }

    /// A turn of the engine begins, or half of one: it may have given its CPU away between them.
    #[inline]
    pub fn begin_turn(&mut self, now: Instant) {
        self.guard.begin_turn(now);
        self.now = now;
    }

    /// Another thread makes turns from now on, which may block other signals.
    pub fn change_thread(&mut self) {
        self.guard = own::Guard::new();
    }

    /// What was found of the thread before is forgotten.
    #[cfg(test)]
    pub(crate) fn has_changed_thread(&self) -> bool {
        self.guard.is_new()
    }

    /// Whether this thread copies plainly in this process, and the kernel need not.
    #[inline]
    pub fn copies_plainly(&mut self) -> bool {
        self.guard.holds()
    }

    /// Adds or replaces a space.
    pub fn insert(&mut self, id: SpaceId, space: Space) {
        let at = slot_of(id) as usize;
        if at >= self.spaces.len() {
            self.spaces.resize_with(at + 1, || None);
        }
        self.spaces[at] = Some((id, space));
    }

    #[inline]
    fn get(&self, id: SpaceId) -> Option<&Space> {
        match self.spaces.get(slot_of(id) as usize) {
            Some(Some((own, space))) if *own == id => Some(space),
            _ => None,
        }
    }

    /// How a space is reached, in a word.
    pub fn way_to(&self, id: SpaceId) -> &'static str {
        match self.get(id) {
            Some(Space::Mapped(_)) => "shared",
            Some(Space::Null) => "none",
            Some(Space::Own(_)) => "own",
            Some(Space::Process(_)) | None => "process",
        }
    }

    /// Takes a space out; accesses to it are faults from now on.
    pub fn remove(&mut self, id: SpaceId) -> Option<Space> {
        let slot = self.spaces.get_mut(slot_of(id) as usize)?;
        slot.take_if(|(own, _)| *own == id).map(|(_, space)| space)
    }
}

/// As [`SystemDma::get`], beside which the scratch memory is used.
#[inline]
fn find(spaces: &mut [Option<(SpaceId, Space)>], id: SpaceId) -> Option<&mut Space> {
    match spaces.get_mut(slot_of(id) as usize) {
        Some(Some((own, space))) if *own == id => Some(space),
        _ => None,
    }
}

/// Nothing was transferred.
const NOTHING: DmaFault = DmaFault { done: 0 };

impl Dma for SystemDma {
    fn read(
        &mut self,
        space: SpaceId,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
    ) -> Result<(), DmaFault> {
        match find(&mut self.spaces, space) {
            Some(Space::Process(process)) => {
                process.look(self.now)?.read(from, arena, to, &mut self.scratch)
            }
            Some(Space::Own(own)) => {
                own.read(from, arena, to, (&mut self.scratch, &mut self.guard))
            }
            Some(Space::Mapped(mapping)) => mapping.read(from, arena, to),
            Some(Space::Null) => clear(arena, to),
            None => Err(NOTHING),
        }
    }

    fn write(
        &mut self,
        space: SpaceId,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        match find(&mut self.spaces, space) {
            Some(Space::Process(process)) => {
                process.look(self.now)?.write(arena, from, to, tails, &mut self.scratch)
            }
            Some(Space::Own(own)) => {
                own.write(arena, from, to, tails, (&mut self.scratch, &mut self.guard))
            }
            Some(Space::Mapped(mapping)) => mapping.write(arena, from, to, tails),
            Some(Space::Null) => Ok(()),
            None => Err(NOTHING),
        }
    }

    fn copies_from(&self, space: SpaceId, from: MemRange) -> bool {
        match self.get(space) {
            Some(Space::Mapped(mapping)) => mapping.contains(from),
            _ => false,
        }
    }

    fn copy(
        &mut self,
        source: SpaceId,
        from: &[MemRange],
        target: SpaceId,
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        if source == target {
            return match self.get(source) {
                Some(Space::Mapped(mapping)) => mapping.copy(mapping, from, to, tails),
                _ => Err(NOTHING),
            };
        }
        let slots = [source, target].map(|id| slot_of(id) as usize);
        let Ok([Some(found_source), Some(found_target)]) = self.spaces.get_disjoint_mut(slots)
        else {
            return Err(NOTHING);
        };
        if (found_source.0, found_target.0) != (source, target) {
            return Err(NOTHING);
        }
        match (&found_source.1, &mut found_target.1) {
            (Space::Mapped(source), Space::Mapped(target)) => target.copy(source, from, to, tails),
            (Space::Mapped(source), Space::Process(target)) => {
                let target = target.look(self.now)?;
                target.write_mapped(source, from, to, tails, &mut self.scratch)
            }
            (Space::Mapped(source), Space::Own(target)) => {
                let with = (&mut self.scratch, &mut self.guard);
                target.write_mapped(source, from, to, tails, with)
            }
            (Space::Mapped(_), Space::Null) => Ok(()),
            _ => Err(NOTHING),
        }
    }

    fn atomic(
        &mut self,
        space: SpaceId,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        match find(&mut self.spaces, space) {
            Some(Space::Process(process)) => process.look(self.now)?.atomic(addr, update),
            Some(Space::Own(own)) => own.atomic(addr, update, &mut self.guard),
            Some(Space::Mapped(mapping)) => mapping.atomic(addr, update),
            // No peer may use it.
            Some(Space::Null) | None => Err(NOTHING),
        }
    }
}

/// What a read of the null space gives.
fn clear(arena: &mut [u8], to: &[Range]) -> Result<(), DmaFault> {
    let mut done = 0;
    for range in to {
        let start = range.offset as usize;
        let bytes = arena.get_mut(start..start.saturating_add(range.len as usize));
        bytes.ok_or(DmaFault { done })?.fill(0);
        done += u64::from(range.len);
    }
    Ok(())
}

/// Bytes at the end of a message that become visible last.
const TAIL: u64 = 8;

/// The pieces of a transfer of `total` bytes that must be stored one after the other: bodies and
/// tails of messages, as (start, end) byte counts. `ends` are the ends of messages before the last.
fn pieces(ends: &[u64], total: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut start = 0;
    ends.iter()
        .copied()
        .chain([total])
        .flat_map(move |end| {
            let end = end.clamp(start, total);
            let cut = end.saturating_sub(TAIL).max(start);
            let body = (start, cut);
            start = end;
            [body, (cut, end)]
        })
        .filter(|(start, end)| start < end)
}

/// A run of bytes somewhere.
trait Run: Copy {
    fn len(&self) -> u32;
    /// Splits off the first `len` bytes, of at least as many.
    fn take(&mut self, len: u32) -> Self;
}

impl Run for Range {
    fn len(&self) -> u32 {
        self.len
    }

    fn take(&mut self, len: u32) -> Self {
        let first = Self { len, ..*self };
        *self = Self { offset: self.offset + len, len: self.len - len };
        first
    }
}

impl Run for MemRange {
    fn len(&self) -> u32 {
        self.len
    }

    fn take(&mut self, len: u32) -> Self {
        let first = Self { len, ..*self };
        *self = Self { addr: self.addr.wrapping_add(len.into()), len: self.len - len };
        first
    }
}

/// Calls `step` with equally long pieces of both lists until it says false. True when all of
/// `ranges` was taken.
fn walk<R: Run>(
    memory: &[MemRange],
    ranges: &[R],
    mut step: impl FnMut(MemRange, R) -> bool,
) -> bool {
    let mut memory = memory.iter().copied();
    let mut current = MemRange::default();
    for range in ranges {
        let mut left = *range;
        while left.len() > 0 {
            if current.len == 0 {
                let Some(next) = memory.next() else { return false };
                current = next;
                continue;
            }
            let len = left.len().min(current.len);
            if !step(current.take(len), left.take(len)) {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests;
