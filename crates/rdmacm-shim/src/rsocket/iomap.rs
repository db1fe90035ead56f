//! Buffers of programs that the other end writes to directly.

use std::{collections::VecDeque, ffi::c_int, ffi::c_void};

use verbs_abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_mr};

use super::{
    stream::{Locked, Stream},
    wire::{Mapping, Place},
};
use crate::{
    error::{Errno, Result},
    verbs,
};

/// What a program has mapped.
#[derive(Default)]
pub(crate) struct Mapped {
    /// By its place in the other end's table.
    remote: Vec<Option<Buffer>>,
    /// For this end only.
    local: Vec<Buffer>,
    /// The other end does not know of these yet.
    unsaid: VecDeque<u16>,
}

struct Buffer {
    mr: *mut ibv_mr,
    at: usize,
    len: usize,
    offset: u64,
}

// SAFETY: objects of libibverbs may be used by any thread.
unsafe impl Send for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: its own.
        unsafe { verbs::ibv_dereg_mr(self.mr) };
    }
}

impl Buffer {
    fn mapping(&self) -> Option<Mapping> {
        // SAFETY: alive as long as this.
        let rkey = unsafe { (*self.mr).rkey };
        let len = u32::try_from(self.len).ok()?;
        Some(Mapping { offset: self.offset, place: Place { addr: self.at as u64, rkey, len } })
    }
}

impl Stream {
    /// Maps a buffer; which offset stands for its first byte.
    pub(crate) fn map(
        &self,
        data: *mut c_void,
        len: usize,
        prot: c_int,
        offset: i64,
    ) -> Result<i64> {
        let mut core = self.core();
        let pd = self.id(&mut core).public.pd;
        if pd.is_null() || prot & !libc::PROT_WRITE != 0 || u32::try_from(len).is_err() {
            return Err(Errno(libc::EINVAL));
        }
        let is_remote = prot & libc::PROT_WRITE != 0;
        let access = IBV_ACCESS_LOCAL_WRITE | if is_remote { IBV_ACCESS_REMOTE_WRITE } else { 0 };
        let most = core.link.as_ref().map_or(0, |link| link.flow.peer().mappings);
        let free = core.mapped.free(most);
        if is_remote && free.is_none() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: the domain is the device's; the kernel checks the memory.
        let mr = unsafe { verbs::ibv_reg_mr(pd, data, len, access.cast_signed()) };
        if mr.is_null() {
            return Err(Errno::last());
        }
        let offset = if offset == -1 { data.addr() as i64 } else { offset };
        let buffer = Buffer { mr, at: data.addr(), len, offset: offset.cast_unsigned() };
        match free.filter(|_| is_remote) {
            Some(index) => core.mapped.add(index, buffer),
            None => core.mapped.local.push(buffer),
        }
        Ok(offset)
    }

    pub(crate) fn unmap(&self, data: *mut c_void, len: usize) -> Result<()> {
        let mut core = self.core();
        let is_it = |buffer: &Buffer| buffer.at == data.addr() && buffer.len == len;
        let mapped = &mut core.mapped;
        for index in 0..mapped.remote.len() {
            if mapped.remote.get(index).and_then(Option::as_ref).is_some_and(is_it) {
                mapped.unsaid.retain(|unsaid| usize::from(*unsaid) != index);
                mapped.remote[index] = None;
                return Ok(());
            }
        }
        let at = mapped.local.iter().position(is_it).ok_or(Errno(libc::EINVAL))?;
        mapped.local.swap_remove(at);
        Ok(())
    }

    /// Tells the other end of new buffers, before anything else is sent.
    pub(crate) fn announce_mapped<'a>(
        &'a self,
        mut core: Locked<'a>,
        nonblocking: bool,
    ) -> Result<Locked<'a>> {
        while let Some(index) = core.mapped.unsaid.front().copied() {
            core = self.writable(core, nonblocking, |link| link.flow.has_credit())?;
            let buffer = core.mapped.remote.get(usize::from(index)).and_then(Option::as_ref);
            let mapping = buffer.and_then(Buffer::mapping);
            let (Some(mapping), Some(link)) = (mapping, &mut core.link) else { break };
            let said = link.announce(index, mapping);
            if let Err(Errno(errno)) = said {
                link.fail(errno);
            }
            core.mapped.unsaid.pop_front();
            said?;
        }
        Ok(core)
    }

    /// Writes into buffers that the other end has mapped; how many bytes. It stops at an offset
    /// that stands for nothing.
    ///
    /// # Safety
    /// `data` has `len` bytes.
    pub(crate) unsafe fn write_mapped(
        &self,
        data: *const u8,
        len: usize,
        offset: i64,
        flags: c_int,
    ) -> Result<usize> {
        let _turn = self.sending.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let nonblocking = self.is_nonblocking(flags);
        let mut core = self.opened(self.core(), nonblocking)?;
        core = self.announce_mapped(core, nonblocking)?;
        let mut written = 0_usize;
        while written < len {
            core = match self.writable(core, nonblocking, |link| link.flow.has_credit()) {
                Ok(core) => core,
                Err(_) if written > 0 => return Ok(written),
                Err(error) => return Err(error),
            };
            let Some(link) = &mut core.link else { break };
            let at = offset.cast_unsigned().wrapping_add(written as u64);
            let places = 0..link.flow.sizes().mappings;
            let Some(to) = places.into_iter().find_map(|index| link.mapping(index).find(at)) else {
                break;
            };
            let most = link.flow.largest_len();
            let left = u32::try_from(len - written).unwrap_or(u32::MAX).min(most);
            // SAFETY: by contract.
            match unsafe { link.write_mapped(data.wrapping_add(written), left, to) } {
                Ok(len) => written += len as usize,
                Err(Errno(errno)) => link.fail(errno),
            }
        }
        Ok(written)
    }
}

impl Mapped {
    /// A place in the other end's table, which has `most`.
    fn free(&self, most: u16) -> Option<u16> {
        let is_free =
            |index: &u16| self.remote.get(usize::from(*index)).is_none_or(Option::is_none);
        (0..most).find(is_free)
    }

    fn add(&mut self, index: u16, buffer: Buffer) {
        let at = usize::from(index);
        while self.remote.len() <= at {
            self.remote.push(None);
        }
        self.remote[at] = Some(buffer);
        self.unsaid.push_back(index);
    }
}
