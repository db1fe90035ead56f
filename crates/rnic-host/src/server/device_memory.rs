//! Device memory: memory of the engine's process that a client maps too.

use super::accounts::{Account, Charge};
use super::service::Service;
use crate::dma::Mapping;
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_kernel};
use rnic_abi::os::memory;
use rnic_abi::verbs::AccessFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The device memory of a client.
pub(super) struct DeviceMemories {
    service: Arc<Service>,
    account: Account,
    memories: HashMap<u32, DeviceMemory>,
    next: u32,
}

struct DeviceMemory {
    mapping: Arc<Mapping>,
    length: u64,
    /// Regions in it.
    users: u32,
    _charges: [Charge; 2],
}

impl DeviceMemory {
    /// Frees its pages, which the client could keep for itself else: it has the file.
    fn discard(&self) -> io::Result<()> {
        self.mapping.discard()
    }
}

/// A part of device memory that a client wants to register.
pub(super) struct DmPart {
    pub(super) dm: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) access: AccessFlags,
}

/// What a region in device memory may allow: there are no pages to come and go.
const ALLOWED: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::FLUSH_GLOBAL)
    .union(AccessFlags::ZERO_BASED)
    .union(AccessFlags::RELAXED_ORDERING);

impl DeviceMemories {
    /// None yet.
    pub(super) fn new(service: Arc<Service>, account: Account) -> Self {
        Self { service, account, memories: HashMap::new(), next: 0 }
    }

    /// Makes memory of at least so many bytes, all of which exist from now on: its handle, and the
    /// file for the client.
    pub(super) fn allocate(&mut self, length: u64) -> Result<(u32, OwnedFd), Refused> {
        let page = rustix::param::page_size() as u64;
        let whole = length.checked_next_multiple_of(page).filter(|whole| *whole > 0);
        let whole = whole.ok_or_else(|| refuse(libc::EINVAL, "an impossible length"))?;
        if whole > self.service.device.limits.max_dm_size {
            return Err(refuse(libc::ENOMEM, "more device memory than max_dm_size"));
        }
        let wanted = [(Resource::DeviceMemoryBytes, whole), (Resource::Mappings, 1)];
        let charges = self.account.take_all(wanted)?;
        let no_memory = || refused_by_kernel("no device memory");
        let file = memory::reserve("rnic-device-memory", whole).map_err(no_memory())?;
        let mapping = Mapping::new(&file, 0, whole, true).map_err(no_memory())?;
        while self.memories.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let memory =
            DeviceMemory { mapping: Arc::new(mapping), length, users: 0, _charges: charges };
        self.memories.insert(self.next, memory);
        Ok((self.next, file))
    }

    /// Frees the pages of all that is left. No region uses it any more.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn discard(&self) -> io::Result<()> {
        self.memories.values().try_for_each(DeviceMemory::discard)
    }

    /// Gives memory back in which there is no region.
    pub(super) fn free(&mut self, dm: u32) -> Result<(), Refused> {
        if self.find(dm)?.users > 0 {
            return Err(refuse(libc::EBUSY, "memory regions use the device memory"));
        }
        if let Some(memory) = self.memories.remove(&dm) {
            memory.discard().map_err(refused_by_kernel("the device memory stays"))?;
        }
        Ok(())
    }

    /// What a region may be made of, of which it is a part.
    pub(super) fn locate(&mut self, part: &DmPart) -> Result<Arc<Mapping>, Refused> {
        let memory = self.find(part.dm)?;
        if !part.access.contains(AccessFlags::ZERO_BASED) || !ALLOWED.contains(part.access) {
            let text = "a region of device memory is zero-based, and not on demand";
            return Err(refuse(libc::EINVAL, text));
        }
        if part.offset.checked_add(part.length).is_none_or(|end| end > memory.length) {
            return Err(refuse(libc::EINVAL, "the device memory is shorter"));
        }
        Ok(Arc::clone(&memory.mapping))
    }

    /// A region begins to use the memory.
    pub(super) fn enter(&mut self, dm: u32) {
        if let Some(memory) = self.memories.get_mut(&dm) {
            memory.users += 1;
        }
    }

    /// A region uses it no more.
    pub(super) fn leave(&mut self, dm: u32) {
        if let Some(memory) = self.memories.get_mut(&dm) {
            memory.users -= 1;
        }
    }

    fn find(&self, dm: u32) -> Result<&DeviceMemory, Refused> {
        self.memories.get(&dm).ok_or_else(|| refuse(libc::ENOENT, "no such device memory"))
    }
}
