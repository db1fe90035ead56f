//! The memory behind each local key, for the data path: found without a lock in constant time.
//!
//! A hash table with a sequence count. A reader that races with a writer finds nothing. It then
//! loses only an optimization: the engine reads the memory itself.

use std::{
    sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence},
    sync::{Mutex, PoisonError},
};

/// What the data path needs to know of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// First address of the region in work requests.
    pub(crate) iova: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Address of its first byte in this process.
    pub(crate) address: u64,
}

impl Region {
    /// Converts a range given by iova to an address in this process; `None` unless the whole range
    /// is in the region.
    #[inline]
    pub(crate) fn locate(&self, iova: u64, length: u64) -> Option<*mut u8> {
        let offset = iova.checked_sub(self.iova)?;
        (length <= self.length && offset <= self.length - length)
            .then(|| self.address.wrapping_add(offset) as *mut u8)
    }
}

const EMPTY: u64 = 0;
const REMOVED: u64 = 1;
const FIRST_SIZE: usize = 64;

fn tag(lkey: u32) -> u64 {
    u64::from(lkey) << 32 | 2
}

#[derive(Default)]
struct Entry {
    tag: AtomicU64,
    iova: AtomicU64,
    length: AtomicU64,
    address: AtomicU64,
}

impl Entry {
    #[inline]
    fn region(&self) -> Region {
        Region {
            iova: self.iova.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            address: self.address.load(Ordering::Relaxed),
        }
    }
}

type Slots = [Entry];

/// The table of one context.
pub(crate) struct LkeyTable {
    /// Odd while a writer changes entries.
    sequence: AtomicU64,
    slots: AtomicPtr<Generation>,
    writer: Mutex<Writer>,
}

struct Generation {
    slots: Box<Slots>,
}

struct Writer {
    /// Slots that are not [`EMPTY`].
    taken: usize,
    live: usize,
    /// Every generation, the current one last: a reader may still use an old one.
    #[expect(clippy::vec_box, reason = "readers hold the address of a generation")]
    generations: Vec<Box<Generation>>,
}

impl LkeyTable {
    pub(crate) fn new() -> Self {
        let first = Box::new(Generation::new(FIRST_SIZE));
        Self {
            sequence: AtomicU64::new(0),
            slots: AtomicPtr::new((&raw const *first).cast_mut()),
            writer: Mutex::new(Writer { taken: 0, live: 0, generations: vec![first] }),
        }
    }

    /// The region of a key; `None` when it is unknown or a writer is changing the table.
    #[inline]
    pub(crate) fn find(&self, lkey: u32) -> Option<Region> {
        let before = self.sequence.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        // SAFETY: generations live as long as the table, and the pointer is always to one of them.
        let slots = unsafe { &(*self.slots.load(Ordering::Acquire)).slots };
        let region = slots[position(slots, lkey)?].region();
        fence(Ordering::Acquire);
        (self.sequence.load(Ordering::Relaxed) == before).then_some(region)
    }

    /// As [`find`](Self::find), but waits for writers, so that `None` means an unknown key.
    pub(crate) fn find_settled(&self, lkey: u32) -> Option<Region> {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if let Some(region) = self.find(lkey) {
                return Some(region);
            }
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Adds or replaces the region of a key.
    pub(crate) fn insert(&self, lkey: u32, region: Region) {
        self.change(|writer, table| {
            if position(&writer.current().slots, lkey).is_none() {
                writer.make_room(table);
                writer.live += 1;
            }
            writer.taken += usize::from(writer.current().put(lkey, region));
        });
    }

    /// Removes a key.
    pub(crate) fn remove(&self, lkey: u32) {
        self.change(|writer, _| {
            let slots = &writer.current().slots;
            if let Some(entry) = position(slots, lkey) {
                slots[entry].tag.store(REMOVED, Ordering::Relaxed);
                writer.live -= 1;
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Writer, &AtomicPtr<Generation>)) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change(&mut writer, &self.slots);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

impl Writer {
    fn current(&self) -> &Generation {
        self.generations.last().expect("there is a first generation")
    }

    /// Keeps a third of the slots empty, so that every search ends soon.
    fn make_room(&mut self, slots: &AtomicPtr<Generation>) {
        let size = self.current().slots.len();
        if (self.taken + 1) * 3 <= size * 2 {
            return;
        }
        let entries = self.current().drain();
        self.taken = entries.len();
        if (self.live + 1) * 3 > size {
            let larger = Box::new(Generation::new(size * 2));
            slots.store((&raw const *larger).cast_mut(), Ordering::Release);
            self.generations.push(larger);
        }
        for (lkey, region) in entries {
            self.current().put(lkey, region);
        }
    }
}

impl Generation {
    fn new(size: usize) -> Self {
        Self { slots: (0..size).map(|_| Entry::default()).collect() }
    }

    /// Removes and returns all entries.
    fn drain(&self) -> Vec<(u32, Region)> {
        let taken = self.slots.iter().filter_map(|entry| {
            let tag = entry.tag.swap(EMPTY, Ordering::Relaxed);
            (tag > REMOVED).then(|| ((tag >> 32) as u32, entry.region()))
        });
        taken.collect()
    }

    /// Writes an entry; true when it used an empty slot.
    fn put(&self, lkey: u32, region: Region) -> bool {
        let is_free = |&at: &usize| self.slots[at].tag.load(Ordering::Relaxed) <= REMOVED;
        let at = position(&self.slots, lkey)
            .or_else(|| probe(&self.slots, lkey).find(is_free))
            .expect("a third of the slots is empty");
        let entry = &self.slots[at];
        let was_empty = entry.tag.load(Ordering::Relaxed) == EMPTY;
        entry.iova.store(region.iova, Ordering::Relaxed);
        entry.length.store(region.length, Ordering::Relaxed);
        entry.address.store(region.address, Ordering::Relaxed);
        entry.tag.store(tag(lkey), Ordering::Relaxed);
        was_empty
    }
}

#[inline]
fn probe(slots: &Slots, lkey: u32) -> impl Iterator<Item = usize> + use<> {
    let mask = slots.len() - 1;
    // Fibonacci hashing: keys share low and high parts.
    let start = (u64::from(lkey).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..=mask).map(move |step| (start + step) & mask)
}

#[inline]
fn position(slots: &Slots, lkey: u32) -> Option<usize> {
    let wanted = tag(lkey);
    for at in probe(slots, lkey) {
        match slots[at].tag.load(Ordering::Relaxed) {
            found if found == wanted => return Some(at),
            EMPTY => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(n: u64) -> Region {
        Region { iova: n << 12, length: 4096, address: n << 12 }
    }

    #[test]
    fn keys_come_and_go_through_growth() {
        let table = LkeyTable::new();
        for n in 1..=5_000_u32 {
            table.insert(n << 8, region(n.into()));
            if n > 100 {
                table.remove((n - 100) << 8);
            }
        }
        for n in 1..=4_900_u32 {
            assert_eq!(table.find(n << 8), None, "{n}");
        }
        for n in 4_901..=5_000_u32 {
            assert_eq!(table.find(n << 8), Some(region(n.into())), "{n}");
        }
        table.insert(5_000 << 8, region(1));
        assert_eq!(table.find(5_000 << 8), Some(region(1)));
        assert!(table.writer.lock().unwrap().current().slots.len() <= 1024);
    }

    #[test]
    fn a_range_is_inside_or_refused() {
        let region = Region { iova: 0x1000, length: 0x100, address: 0x7000 };
        assert_eq!(region.locate(0x1010, 0xf0), Some(0x7010 as *mut u8));
        assert_eq!(region.locate(0x1010, 0xf1), None);
        assert_eq!(region.locate(0xfff, 1), None);
        assert_eq!(region.locate(0x1100, 0), Some(0x7100 as *mut u8));
        assert_eq!(region.locate(0x1101, 0), None);
        assert_eq!(region.locate(u64::MAX, 2), None);
    }

    #[test]
    fn readers_never_see_a_torn_entry() {
        let table = LkeyTable::new();
        std::thread::scope(|scope| {
            scope.spawn(|| (1..20_000).for_each(|n| table.insert(7, region(n))));
            let mut seen = 0;
            while seen < 10_000 {
                if let Some(found) = table.find(7) {
                    assert_eq!(found.iova, found.address);
                }
                seen += 1;
            }
        });
    }
}
