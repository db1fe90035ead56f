//! The memory of this very process: the engine is in the program that registered it.
//!
//! Plain copies, which a page that is not there ends in the middle ([`guarded`]). Where they are
//! not possible, the kernel copies, as from another process.

mod guarded;

use super::process::{Process, Scratch, inside};
use super::{Mapping, NOTHING, Run, pieces, walk};
use guarded::Fault;
#[cfg(all(test, target_arch = "x86_64"))]
pub(super) use guarded::NARROW;
use rnic_core::Instant;
use rnic_core::ports::{DmaFault, MemRange, Range};
use std::io;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub struct Own {
    kernel: Process,
}

/// Whether plain copies are possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    /// As found a moment ago; not known once that is over.
    holds: Option<bool>,
    until: Instant,
}

/// How long that is believed. To ask takes three system calls, and half a round trip copies once.
const BELIEVED: Duration = Duration::from_micros(100);

impl Guard {
    pub(super) fn new() -> Self {
        Self { holds: None, until: Instant::ZERO }
    }

    #[cfg(test)]
    pub(super) fn is_new(&self) -> bool {
        self.holds.is_none() && self.until == Instant::ZERO
    }

    /// The program may have taken the handler of faults away since it was looked for, or blocked
    /// its signals.
    #[inline]
    pub(super) fn begin_turn(&mut self, now: Instant) {
        if now >= self.until {
            self.holds = None;
            self.until = now.after(BELIEVED);
        }
    }

    #[inline]
    pub(super) fn holds(&mut self) -> bool {
        *self.holds.get_or_insert_with(guarded::is_ready)
    }
}

impl Own {
    /// Of this process.
    pub(crate) fn new() -> Option<Self> {
        Some(Self { kernel: Process::own()? })
    }

    pub(super) fn read(
        &mut self,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
        (scratch, guard): (&mut Scratch, &mut Guard),
    ) -> Result<(), DmaFault> {
        if !guard.holds() {
            return self.kernel.read(from, arena, to, scratch);
        }
        if !inside(to, arena.len()) {
            return Err(NOTHING);
        }
        let mut done = 0;
        let copied = walk(from, to, |memory, range| {
            let start = range.offset as usize;
            let bytes = &mut arena[start..start + range.len as usize];
            let result = guarded::load(memory.addr as usize, bytes);
            note(&mut done, range.len, result)
        });
        if copied { Ok(()) } else { Err(DmaFault { done }) }
    }

    pub(super) fn write(
        &mut self,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
        (scratch, guard): (&mut Scratch, &mut Guard),
    ) -> Result<(), DmaFault> {
        if !guard.holds() {
            return self.kernel.write(arena, from, to, tails, scratch);
        }
        if !inside(from, arena.len()) {
            return Err(NOTHING);
        }
        let base = arena.as_ptr();
        store(from, to, tails, |range: Range| base.wrapping_add(range.offset as usize))
    }

    /// Writes what is in a mapping.
    pub(super) fn write_mapped(
        &mut self,
        source: &Mapping,
        from: &[MemRange],
        to: &[MemRange],
        tails: &[u64],
        (scratch, guard): (&mut Scratch, &mut Guard),
    ) -> Result<(), DmaFault> {
        if !guard.holds() {
            return self.kernel.write_mapped(source, from, to, tails, scratch);
        }
        if !from.iter().all(|range| source.contains(*range)) {
            return Err(NOTHING);
        }
        store(from, to, tails, |range| source.locate(range).0)
    }

    /// Read, change, write: atomic because one engine thread alone reaches this memory.
    pub(super) fn atomic(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
        guard: &mut Guard,
    ) -> Result<u64, DmaFault> {
        if !guard.holds() {
            return self.kernel.atomic(addr, update);
        }
        let mut word = [0; 8];
        guarded::load(addr as usize, &mut word).map_err(|_| NOTHING)?;
        let old = u64::from_ne_bytes(word);
        let new = update(old).to_ne_bytes();
        guarded::store(new.as_ptr(), new.len(), addr as usize).map_err(|_| NOTHING)?;
        Ok(old)
    }
}

/// Stores what is at the places that `locate` names, which the caller has checked, piece by piece.
fn store<R: Run>(
    from: &[R],
    to: &[MemRange],
    tails: &[u64],
    locate: impl Fn(R) -> *const u8,
) -> Result<(), DmaFault> {
    let total = from.iter().map(|range| u64::from(range.len())).sum();
    let mut ends = pieces(tails, total).map(|(_, end)| end);
    let (mut end, mut done) = (0, 0);
    let copied = walk(to, from, |mut memory, mut range| {
        while range.len() > 0 {
            while end <= done {
                let Some(next) = ends.next() else { return false };
                end = next;
            }
            let len = (end - done).min(range.len().into()) as u32;
            let (at, piece) = (memory.take(len), locate(range.take(len)));
            if !note(&mut done, len, guarded::store(piece, len as usize, at.addr as usize)) {
                return false;
            }
        }
        true
    });
    if copied { Ok(()) } else { Err(DmaFault { done }) }
}

/// Counts the bytes of a copy. False when it was not whole.
#[inline]
fn note(done: &mut u64, len: u32, result: Result<(), Fault>) -> bool {
    let missing = result.err().map_or(0, |fault| fault.missing as u64);
    *done += u64::from(len).saturating_sub(missing);
    missing == 0
}

/// Reads one byte of this process's memory: whether there is any.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn probe(addr: u64) -> io::Result<()> {
    if !guarded::is_ready() {
        return super::process::probe(std::process::id(), addr);
    }
    let found = guarded::load(addr as usize, &mut [0]);
    found.map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))
}
