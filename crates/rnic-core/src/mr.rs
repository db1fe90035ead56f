//! Memory regions: from a key to its client, its memory and what is allowed.
//!
//! A key is `index << 8 | tag`. The upper 24 bits are what a stranger must guess: the slot goes
//! through a keyed permutation together with a per-registration generation, and every check
//! compares the whole key. The low byte belongs to the consumer of type 2 windows
//! (`ibv_inc_rkey`); for regions it is random too. lkey and rkey of a region are the same.

use crate::command::{ClientId, CommandError, Errno, no_such};
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
}

/// Where a checked access goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Address space.
    pub space: SpaceId,
    /// Address there.
    pub addr: u64,
    /// No peer can reach this memory through the region, and its pages stay while it exists.
    pub private: bool,
}

/// Why an access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyFault {
    /// No region has this key.
    UnknownKey,
    /// The region belongs to another protection domain.
    WrongPd,
    /// The region lacks the right.
    Access,
    /// Not all bytes are inside the region.
    Bounds,
}

/// The regions of a shard.
#[derive(Debug)]
pub struct MrTable {
    regions: Slab<Region>,
    by_key: HashMap<u32, u32, KeyHash>,
    /// Handle of the region that was found last: the packets of a message mostly have the same.
    last: Cell<u32>,
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

/// A program may do without a page of on-demand memory, and its library would die where the engine
/// only meets a fault.
const NOT_PRIVATE: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::ON_DEMAND);

/// Rights of operations that the device does not have.
const NOT_SUPPORTED: AccessFlags = AccessFlags::FLUSH_GLOBAL.union(AccessFlags::FLUSH_PERSISTENT);

impl MrTable {
    /// An empty table of at most `max` regions; `secret` makes the keys unpredictable.
    pub fn new(max: usize, secret: Secret) -> Self {
        let last = Cell::new(0);
        Self { regions: Slab::new(max), by_key: HashMap::default(), last, secret, drawn: 0 }
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
            .insert(Region { mr, key })
            .map_err(|_| error(Errno::NoMem, "the device has no free memory region"))?;
        self.by_key.insert(key, handle);
        Ok(MrKeys { mr: handle, lkey: key, rkey: key })
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

    /// Removes a region: its key is dead when this returns.
    ///
    /// # Errors
    /// ENOENT when `client` owns no such region.
    pub fn deregister(&mut self, client: ClientId, mr: u32) -> Result<Region, CommandError> {
        self.owned(client, mr)?;
        let region = self.regions.remove(mr).ok_or(NO_REGION)?;
        self.by_key.remove(&region.key);
        Ok(region)
    }

    /// Removes every region of a client.
    pub fn remove_client(&mut self, client: ClientId) {
        let doomed: Vec<u32> = self
            .regions
            .iter()
            .filter(|(_, region)| region.mr.client == client)
            .map(|(handle, _)| handle)
            .collect();
        for handle in doomed {
            if let Some(region) = self.regions.remove(handle) {
                self.by_key.remove(&region.key);
            }
        }
    }

    /// True while a region of this protection domain exists.
    pub fn pd_in_use(&self, pd: u32) -> bool {
        self.regions.iter().any(|(_, region)| region.mr.pd == pd)
    }

    /// Checks an access of `len` bytes at `va` and says where they are.
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
        let last = self.regions.get(self.last.get()).filter(|region| region.key == key);
        let region = last.or_else(|| self.find(key)).ok_or(KeyFault::UnknownKey)?;
        let mr = &region.mr;
        // Rule: KeyDomain
        if mr.pd != pd {
            return Err(KeyFault::WrongPd);
        }
        if !mr.access.contains(need) {
            return Err(KeyFault::Access);
        }
        let offset = va.checked_sub(mr.iova).ok_or(KeyFault::Bounds)?;
        let inside = offset <= mr.length && len <= mr.length - offset;
        // Rule: KeyBounds
        if !inside {
            return Err(KeyFault::Bounds);
        }
        let private = !mr.access.intersects(NOT_PRIVATE);
        Ok(Target { space: mr.space, addr: mr.addr + offset, private })
    }

    fn find(&self, key: u32) -> Option<&Region> {
        let handle = *self.by_key.get(&key)?;
        self.last.set(handle);
        self.regions.get(handle)
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
            if key >> 8 != 0 && !self.by_key.contains_key(&key) {
                return key;
            }
        }
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
        return Err(error(Errno::NotSupported, "the device has no FLUSH"));
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
mod tests {
    use super::{KeyFault, MrTable, NewMr, WHOLE_SPACE};
    use crate::command::{ClientId, Errno};
    use crate::ports::SpaceId;
    use crate::secret::Secret;
    use proptest::prelude::*;
    use rnic_abi::verbs::AccessFlags;

    fn new_mr(access: AccessFlags) -> NewMr {
        NewMr {
            client: ClientId(1),
            pd: 7,
            space: SpaceId(3),
            addr: 0x10_000,
            length: 0x1000,
            iova: 0x9000_0000,
            access,
        }
    }

    fn table_with(access: AccessFlags) -> (MrTable, u32) {
        let mut table = MrTable::new(8, Secret::new([1, 2]));
        let keys = table.register(new_mr(access)).unwrap();
        (table, keys.rkey)
    }

    #[test]
    fn an_access_is_translated_from_iova_to_address() {
        let (table, key) = table_with(AccessFlags::LOCAL_WRITE);
        let target = table.check(key, 7, 0x9000_0010, 16, AccessFlags::LOCAL_WRITE).unwrap();
        assert_eq!((target.space, target.addr, target.private), (SpaceId(3), 0x10_010, true));
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let none = AccessFlags::empty();
        let (table, key) = table_with(none);
        assert_eq!(table.check(key ^ 1, 7, 0x9000_0000, 1, none), Err(KeyFault::UnknownKey));
        assert_eq!(table.check(0, 7, 0x9000_0000, 1, none), Err(KeyFault::UnknownKey));
        assert_eq!(table.check(key, 8, 0x9000_0000, 1, none), Err(KeyFault::WrongPd));
        let write = AccessFlags::REMOTE_WRITE;
        assert_eq!(table.check(key, 7, 0x9000_0000, 1, write), Err(KeyFault::Access));
        assert_eq!(table.check(key, 7, 0x8fff_ffff, 1, none), Err(KeyFault::Bounds));
        assert_eq!(table.check(key, 7, 0x9000_0fff, 2, none), Err(KeyFault::Bounds));
        assert_eq!(table.check(key, 7, 0x9000_0000, u64::MAX, none), Err(KeyFault::Bounds));
        assert_eq!(table.check(key, 7, u64::MAX, 1, none), Err(KeyFault::Bounds));
        assert!(table.check(key, 7, 0x9000_0fff, 1, none).is_ok());
        assert!(table.check(key, 7, 0x9000_1000, 0, none).is_ok());
    }

    #[test]
    fn impossible_registrations_are_refused() {
        let mut table = MrTable::new(1, Secret::new([1, 2]));
        let mut refuse = |mr: NewMr| table.register(mr).map_err(|e| e.errno);
        assert_eq!(refuse(new_mr(AccessFlags::REMOTE_WRITE)), Err(Errno::Invalid));
        assert_eq!(refuse(new_mr(AccessFlags::REMOTE_ATOMIC)), Err(Errno::Invalid));
        let ok = new_mr(AccessFlags::REMOTE_READ);
        assert_eq!(refuse(NewMr { length: u64::MAX / 2, ..ok }), Err(Errno::Invalid));
        assert_eq!(refuse(NewMr { addr: u64::MAX - 10, ..ok }), Err(Errno::Invalid));
        assert_eq!(refuse(NewMr { iova: u64::MAX - 10, ..ok }), Err(Errno::Invalid));
        assert!(refuse(ok).is_ok());
        assert_eq!(refuse(ok), Err(Errno::NoMem));
    }

    #[test]
    fn a_whole_address_space_is_a_region_only_on_demand_and_from_zero() {
        let mut table = MrTable::new(8, Secret::new([1, 2]));
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
        let whole = NewMr { addr: 0, iova: 0, length: WHOLE_SPACE, ..new_mr(access) };
        for wrong in [
            NewMr { access: AccessFlags::LOCAL_WRITE, ..whole },
            NewMr { addr: 0x1000, ..whole },
            NewMr { iova: 0x1000, ..whole },
            NewMr { length: WHOLE_SPACE - 1, ..whole },
        ] {
            assert_eq!(table.register(wrong).map_err(|e| e.errno), Err(Errno::Invalid));
        }
        let key = table.register(whole).unwrap().lkey;
        for va in [0, 0x7fff_0000_1234, u64::MAX - 8] {
            let target = table.check(key, 7, va, 8, access).unwrap();
            assert_eq!((target.addr, target.private), (va, false));
        }
        assert_eq!(table.check(key, 7, u64::MAX, 1, access), Err(KeyFault::Bounds));
        assert_eq!(table.check(key, 7, 0, 1, AccessFlags::REMOTE_READ), Err(KeyFault::Access));
    }

    #[test]
    fn no_byte_is_inside_an_empty_region() {
        let mut table = MrTable::new(8, Secret::new([1, 2]));
        let access = AccessFlags::LOCAL_WRITE;
        let key = table.register(NewMr { length: 0, ..new_mr(access) }).unwrap().lkey;
        assert_eq!(table.check(key, 7, 0x9000_0000, 1, access), Err(KeyFault::Bounds));
        assert!(table.check(key, 7, 0x9000_0000, 0, access).is_ok());
    }

    #[test]
    fn a_deregistered_key_is_dead_and_only_its_owner_can_kill_it() {
        let mut table = MrTable::new(8, Secret::new([1, 2]));
        let keys = table.register(new_mr(AccessFlags::empty())).unwrap();
        assert!(table.deregister(ClientId(2), keys.mr).is_err());
        assert!(table.deregister(ClientId(1), keys.mr).is_ok());
        let access = AccessFlags::empty();
        assert_eq!(table.check(keys.rkey, 7, 0x9000_0000, 1, access), Err(KeyFault::UnknownKey));
        assert!(table.deregister(ClientId(1), keys.mr).is_err());
    }

    proptest! {
        #[test]
        fn what_is_granted_is_inside(va: u64, len: u64) {
            let (table, key) = table_with(AccessFlags::empty());
            if let Ok(target) = table.check(key, 7, va, len, AccessFlags::empty()) {
                prop_assert!(target.addr >= 0x10_000);
                prop_assert!(target.addr.checked_add(len).unwrap() <= 0x11_000);
            }
        }
    }
}
