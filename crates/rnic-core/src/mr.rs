//! Memory regions and windows: from a key to its client, its memory and what is allowed.
//!
//! A key is `index << 8 | tag`. The upper 24 bits are what a stranger must guess: they are drawn
//! at random and belong to one region or window, and every check compares the whole key. The low
//! byte of a window's key is its consumer's (`ibv_inc_rkey`); that of a region is random too. lkey
//! and rkey of a region are the same.
//!
//! * this file: regions, and the checks of every access.
//! * `windows`: what is bound, and how that ends.

mod windows;

pub use windows::{Bind, BindFault, Window};

use crate::command::{ClientId, CommandError, Errno, no_such};
use crate::owned::{Owned, OwnedSlab};
use crate::ports::SpaceId;
use crate::secret::{Purpose, Secret, low32};
use crate::slab::Slab;
use rnic_abi::verbs::AccessFlags;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

/// A registration to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewMr {
    /// Owner.
    pub client: ClientId,
    /// Protection domain (its handle).
    pub pd: u32,
    /// Address space of the memory.
    pub space: SpaceId,
    /// Address of the first byte there.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Address that WQEs and peers use for the first byte.
    pub iova: u64,
    /// Rights.
    pub access: AccessFlags,
}

/// Handle and keys of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrKeys {
    /// Handle.
    pub mr: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// As registered.
    pub mr: NewMr,
    /// Its key.
    pub key: u32,
    /// Windows that are bound to it.
    pub windows: u32,
}

impl Owned for Region {
    fn owner(&self) -> Option<ClientId> {
        Some(self.mr.client)
    }
}

/// The queue pair through which a peer accesses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Through {
    /// Its protection domain.
    pub pd: u32,
    /// Its handle.
    pub qp: u32,
}

/// Where a checked access goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Address space.
    pub space: SpaceId,
    /// Address there.
    pub addr: u64,
    /// No peer can reach this memory through the region or a window in it, and its pages stay while
    /// it exists.
    pub private: bool,
    /// A window leads there, which its program may take away at any time.
    pub is_window: bool,
}

reasons! {
    /// Why an access is refused.
    KeyFault:
    /// No region has this key, and no bound window.
    UnknownKey,
    /// The region or window belongs to another protection domain.
    WrongPd,
    /// The window belongs to another queue pair.
    WrongQp,
    /// The region lacks the right.
    Access,
    /// Not all bytes are inside the region.
    Bounds,
}

/// What has a key, by handle.
#[derive(Clone, Copy, Debug)]
enum Named {
    Region(u32),
    Window(u32),
}

/// The regions and windows of a shard.
#[derive(Debug)]
pub struct MrTable {
    regions: OwnedSlab<Region>,
    windows: OwnedSlab<Window>,
    /// By slot of a queue pair: the first of the windows of type 2 that it bound.
    first_of_qp: Vec<Option<u32>>,
    /// By the upper 24 bits of their keys.
    by_index: HashMap<u32, Named, KeyHash>,
    /// Slot of the region that was found last: the packets of a message mostly have the same. Its
    /// key tells whether it still is that one.
    last: Cell<usize>,
    secret: Secret,
    /// Numbers drawn for keys.
    drawn: u64,
}

const NO_REGION: CommandError = no_such("no such memory region");

/// Most bytes of one region: half the address space, so that no sum of ends wraps.
pub const MAX_MR_LENGTH: u64 = 1 << 47;

/// Bytes of a region that is a whole address space, whatever is there or will be: implicit
/// on-demand paging. It begins at address 0, and its key checks rights alone.
pub const WHOLE_SPACE: u64 = u64::MAX;

/// A window gives peers what its region does not. A program may do without a page of on-demand
/// memory, and its library would die where the engine only meets a fault.
const NOT_PRIVATE: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::ON_DEMAND);

/// Rights of operations that the device does not have: it cannot tell what memory is persistent.
const NOT_SUPPORTED: AccessFlags = AccessFlags::FLUSH_PERSISTENT;

impl MrTable {
    /// An empty table of at most `max` regions and windows; `secret` makes the keys unpredictable.
    pub fn new([max_mr, max_mw]: [usize; 2], secret: Secret) -> Self {
        Self {
            regions: OwnedSlab::new(max_mr),
            windows: OwnedSlab::new(max_mw),
            first_of_qp: Vec::new(),
            by_index: HashMap::default(),
            last: Cell::new(0),
            secret,
            drawn: 0,
        }
    }

    /// Registers a region.
    ///
    /// # Errors
    /// EINVAL for impossible ranges or rights, ENOMEM when the table is full.
    pub fn register(&mut self, mr: NewMr) -> Result<MrKeys, CommandError> {
        check_new(&mr)?;
        let key = self.fresh_key();
        let handle = self
            .regions
            .insert(Region { mr, key, windows: 0 })
            .map_err(|_| error(Errno::NoMem, "the device has no free memory region"))?;
        self.by_index.insert(key >> 8, Named::Region(handle));
        Ok(MrKeys { mr: handle, lkey: key, rkey: key })
    }

    /// Changes what a region is; its keys stay.
    ///
    /// # Errors
    /// ENOENT when the client owns no such region, EBUSY while windows are bound to it, EINVAL for
    /// what no region can be. Then nothing has changed.
    pub fn reregister(&mut self, mr: u32, new: NewMr) -> Result<MrKeys, CommandError> {
        self.idle(new.client, mr)?;
        check_new(&new)?;
        let region = self.regions.get_mut(mr).ok_or(NO_REGION)?;
        region.mr = new;
        Ok(MrKeys { mr, lkey: region.key, rkey: region.key })
    }

    /// The region of a handle, when `client` owns it.
    ///
    /// # Errors
    /// ENOENT when it does not.
    pub fn owned(&self, client: ClientId, mr: u32) -> Result<&Region, CommandError> {
        self.regions
            .get(mr)
            // Rule: OwnRegions
            .filter(|region| region.mr.client == client)
            .ok_or(NO_REGION)
    }

    /// As [`owned`](Self::owned), when no window is bound to it.
    fn idle(&self, client: ClientId, mr: u32) -> Result<(), CommandError> {
        // Rule: BoundRegionStays
        if self.owned(client, mr)?.windows > 0 {
            return Err(error(Errno::Busy, "memory windows are bound to the region"));
        }
        Ok(())
    }

    /// Removes a region: its key is dead when this returns.
    ///
    /// # Errors
    /// ENOENT when `client` owns no such region, EBUSY while windows are bound to it.
    pub fn deregister(&mut self, client: ClientId, mr: u32) -> Result<Region, CommandError> {
        self.idle(client, mr)?;
        let region = self.regions.remove(mr).ok_or(NO_REGION)?;
        self.by_index.remove(&(region.key >> 8));
        Ok(region)
    }

    /// Removes every region and window of a client.
    pub fn remove_client(&mut self, client: ClientId) {
        self.remove_windows_of(client);
        for handle in self.regions.of(client) {
            if let Some(region) = self.regions.remove(handle) {
                self.by_index.remove(&(region.key >> 8));
            }
        }
    }

    /// Checks a local access of `len` bytes at `va` and says where they are.
    ///
    /// # Errors
    /// The first of: key, protection domain, right, range. The range check subtracts and so
    /// cannot wrap.
    #[inline]
    pub fn check(
        &self,
        key: u32,
        pd: u32,
        va: u64,
        len: u64,
        need: AccessFlags,
    ) -> Result<Target, KeyFault> {
        let region = self.find(key).ok_or(KeyFault::UnknownKey)?;
        region.mr.locate(pd, va, len, need)
    }

    /// What WQEs and peers call the first byte of the region with this key.
    pub fn start_of(&self, key: u32) -> Option<u64> {
        self.find(key).map(|region| region.mr.iova)
    }

    /// Checks an access of a peer, which may use the key of a window as well.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    #[inline(always)]
    pub fn check_remote(
        &self,
        key: u32,
        through: Through,
        va: u64,
        len: u64,
        need: AccessFlags,
    ) -> Result<Target, KeyFault> {
        match self.find(key) {
            Some(region) => region.mr.locate(through.pd, va, len, need),
            None => self.check_window(key, through, va, len, need),
        }
    }

    #[inline(always)]
    fn find(&self, key: u32) -> Option<&Region> {
        match self.regions.by_slot(self.last.get()) {
            Some(region) if region.key == key => Some(region),
            _ => self.find_anew(key),
        }
    }

    #[inline(never)]
    fn find_anew(&self, key: u32) -> Option<&Region> {
        let Named::Region(handle) = *self.by_index.get(&(key >> 8))? else { return None };
        let region = self.regions.get(handle).filter(|region| region.key == key)?;
        self.last.set(Slab::<Region>::slot_of(handle));
        Some(region)
    }

    /// The regions in some slots, with their handles.
    pub fn within(&self, slots: Range<usize>) -> impl Iterator<Item = (u32, &Region)> {
        self.regions.within(slots)
    }

    /// Slots of regions that were ever used.
    pub fn slots(&self) -> usize {
        self.regions.slots()
    }

    /// All regions with their handles.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.regions.iter()
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    fn fresh_key(&mut self) -> u32 {
        loop {
            self.drawn += 1;
            let key = low32(self.secret.draw(Purpose::MemoryKeys, self.drawn));
            // Key 0 is what an uninitialised program uses; it must never work.
            if key >> 8 != 0 && !self.by_index.contains_key(&(key >> 8)) {
                return key;
            }
        }
    }
}

impl NewMr {
    /// See [`MrTable::check`].
    #[inline(always)]
    fn locate(&self, pd: u32, va: u64, len: u64, need: AccessFlags) -> Result<Target, KeyFault> {
        // Rule: KeyDomain
        if self.pd != pd {
            return Err(KeyFault::WrongPd);
        }
        if !self.access.contains(need) {
            return Err(KeyFault::Access);
        }
        let offset = va.checked_sub(self.iova).ok_or(KeyFault::Bounds)?;
        let inside = offset <= self.length && len <= self.length - offset;
        // Rule: KeyBounds
        if !inside {
            return Err(KeyFault::Bounds);
        }
        let private = !self.access.intersects(NOT_PRIVATE);
        Ok(Target { space: self.space, addr: self.addr + offset, private, is_window: false })
    }
}

fn check_new(mr: &NewMr) -> Result<(), CommandError> {
    let writable = mr.access.contains(AccessFlags::LOCAL_WRITE);
    let needs_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    // Rule: RemoteWriteNeedsLocal
    if mr.access.intersects(needs_write) && !writable {
        return Err(error(
            Errno::Invalid,
            "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well",
        ));
    }
    // Rule: RegionRights
    if mr.access.intersects(NOT_SUPPORTED) {
        return Err(error(Errno::NotSupported, "the device has no persistent memory"));
    }
    let on_demand = mr.access.contains(AccessFlags::ON_DEMAND);
    // Rule: WholeSpace
    if (mr.addr, mr.iova, mr.length) == (0, 0, WHOLE_SPACE) && on_demand {
        return Ok(());
    }
    // None at all is a length: no byte can be reached through it, and messages without data can.
    // Rule: RegionLength
    if mr.length > MAX_MR_LENGTH {
        return Err(error(Errno::Invalid, "the length is beyond max_mr_size"));
    }
    let ends = [mr.addr, mr.iova].map(|start| start.checked_add(mr.length));
    // Rule: RegionWraps
    if ends.contains(&None) {
        return Err(error(Errno::Invalid, "the range wraps around the address space"));
    }
    Ok(())
}

fn error(errno: Errno, reason: &'static str) -> CommandError {
    CommandError { errno, reason }
}

/// Keys are already random: hashing them again would be work for nothing.
#[derive(Clone, Copy, Default, Debug)]
struct KeyHash;

impl std::hash::BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(0)
    }
}

#[derive(Debug)]
struct KeyHasher(u64);

impl std::hash::Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, key: u32) {
        // Both ends of the value matter to the table, so spread the key over them.
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests;
