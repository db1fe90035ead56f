//! Memory of an application: mapped here, or in another process.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::case::Copy;
use crate::os::{self, Mapping};

/// Most pieces of one system call.
const MAX_PIECES: usize = 1024;

pub(crate) struct Memory {
    kind: Kind,
    len: usize,
    pieces: Vec<libc::iovec>,
}

enum Kind {
    Mapped(Mapping),
    Foreign { pid: libc::pid_t, address: usize },
}

impl Memory {
    /// Memory of `len` bytes, all of it touched.
    pub(crate) fn new(len: usize, copy: Copy) -> Result<Self> {
        let mut mapping = Mapping::new(len, false)?;
        let kind = match copy {
            Copy::Memcpy => {
                mapping.bytes_mut().fill(0x5a);
                Kind::Mapped(mapping)
            }
            Copy::ProcessVm => owner(mapping)?,
        };
        Ok(Self { kind, len, pieces: Vec::with_capacity(MAX_PIECES) })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies from `at` into ranges of `arena`.
    pub(crate) fn fetch(
        &mut self,
        mut at: usize,
        arena: &mut [u8],
        ranges: &[Range<usize>],
    ) -> Result<()> {
        match &mut self.kind {
            Kind::Mapped(mapping) => {
                for range in ranges {
                    let end = at + range.len();
                    arena[range.clone()].copy_from_slice(&mapping.bytes_mut()[at..end]);
                    at = end;
                }
                Ok(())
            }
            Kind::Foreign { pid, address } => {
                for some in ranges.chunks(MAX_PIECES) {
                    let wanted = collect(&mut self.pieces, arena, some);
                    // SAFETY: the pieces are disjoint ranges of `arena`, which is exclusively
                    // borrowed.
                    let read = unsafe { os::read_from(*pid, *address + at, &self.pieces) };
                    ensure!(read.context("process_vm_readv")? == wanted, "a short read");
                    at += wanted;
                }
                Ok(())
            }
        }
    }

    /// Copies ranges of `arena` to `at`.
    pub(crate) fn place(
        &mut self,
        mut at: usize,
        arena: &[u8],
        ranges: &[Range<usize>],
    ) -> Result<()> {
        match &mut self.kind {
            Kind::Mapped(mapping) => {
                for range in ranges {
                    let end = at + range.len();
                    mapping.bytes_mut()[at..end].copy_from_slice(&arena[range.clone()]);
                    at = end;
                }
                Ok(())
            }
            Kind::Foreign { pid, address } => {
                for some in ranges.chunks(MAX_PIECES) {
                    let wanted = collect(&mut self.pieces, arena, some);
                    let written = os::write_to(*pid, *address + at, &self.pieces);
                    ensure!(written.context("process_vm_writev")? == wanted, "a short write");
                    at += wanted;
                }
                Ok(())
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Kind::Foreign { pid, .. } = self.kind {
            os::end(pid);
        }
    }
}

/// A process that touches the mapping and sleeps. We never touch it, so its pages are its own.
fn owner(mut mapping: Mapping) -> Result<Kind> {
    let touched = Mapping::new(1, true)?;
    let address = mapping.start().addr().get();
    let pid = os::fork(|| {
        mapping.bytes_mut().fill(0x5a);
        // SAFETY: the one byte of a mapping shared with the parent, which reads it by process_vm.
        unsafe { touched.start().write_volatile(1) };
        os::sleep_for_ever()
    })?;
    let flag = touched.start();
    // SAFETY: as above; a byte cannot be torn.
    while unsafe { flag.read_volatile() } == 0 {
        if os::has_ended(pid) {
            os::end(pid);
            anyhow::bail!("the process that owns the memory ended");
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(Kind::Foreign { pid, address })
}

fn collect(pieces: &mut Vec<libc::iovec>, arena: &[u8], ranges: &[Range<usize>]) -> usize {
    pieces.clear();
    pieces.extend(ranges.iter().map(|range| os::piece(&arena[range.clone()])));
    ranges.iter().map(Range::len).sum()
}
