//! Objects by handle: a dense table whose handles carry a generation.
//!
//! A handle is `slot | generation << 20`, so a stale one misses instead of naming the next owner
//! of the slot. Slots are dense and stable: the data path indexes by slot.

use std::ops::Range;

/// Bits of a handle that name the slot.
pub const SLOT_BITS: u32 = 20;
/// A handle of no object, in tables that are not as large as handles allow.
pub const NO_HANDLE: u32 = u32::MAX;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: u32 = u32::MAX >> SLOT_BITS;

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of at most `max` objects.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    max: usize,
    len: usize,
}

impl<T> Slab<T> {
    /// An empty table; `max` is capped at 2^20.
    pub fn new(max: usize) -> Self {
        Self { entries: Vec::new(), free: Vec::new(), max: max.min(1 << SLOT_BITS), len: 0 }
    }

    /// Stores an object and gives its handle, or gives the object back when the table is full.
    ///
    /// # Errors
    /// The object itself.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.entries.len() < self.max => {
                self.entries.push(Entry { generation: 0, value: None });
                u32::try_from(self.entries.len() - 1).unwrap_or(SLOT_MASK)
            }
            None => return Err(value),
        };
        let Some(entry) = self.entries.get_mut(slot as usize) else { return Err(value) };
        entry.value = Some(value);
        self.len += 1;
        Ok(slot | entry.generation << SLOT_BITS)
    }

    /// The handle that the next [`insert`](Self::insert) will give, unless the table is full.
    pub fn next_handle(&self) -> Option<u32> {
        match self.free.last() {
            Some(slot) => {
                self.entries.get(*slot as usize).map(|entry| slot | entry.generation << SLOT_BITS)
            }
            None if self.entries.len() < self.max => u32::try_from(self.entries.len()).ok(),
            None => None,
        }
    }

    /// The slot a handle names, whether or not the handle is still good.
    pub fn slot_of(handle: u32) -> usize {
        (handle & SLOT_MASK) as usize
    }

    fn entry(&self, handle: u32) -> Option<&Entry<T>> {
        self.entries
            .get(Self::slot_of(handle))
            .filter(|entry| entry.generation == handle >> SLOT_BITS)
    }

    /// The object of a handle.
    pub fn get(&self, handle: u32) -> Option<&T> {
        self.entry(handle)?.value.as_ref()
    }

    /// The object of a handle.
    pub fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.entries
            .get_mut(Self::slot_of(handle))
            .filter(|entry| entry.generation == handle >> SLOT_BITS)?
            .value
            .as_mut()
    }

    /// The object in a slot.
    #[inline]
    pub fn by_slot(&self, slot: usize) -> Option<&T> {
        self.entries.get(slot)?.value.as_ref()
    }

    /// The object in a slot.
    #[inline]
    pub fn by_slot_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.entries.get_mut(slot)?.value.as_mut()
    }

    /// Takes an object out; its handle is dead from here on.
    pub fn remove(&mut self, handle: u32) -> Option<T> {
        let entry = self
            .entries
            .get_mut(Self::slot_of(handle))
            .filter(|entry| entry.generation == handle >> SLOT_BITS)?;
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        self.free.push(handle & SLOT_MASK);
        self.len -= 1;
        Some(value)
    }

    /// All objects with their handles, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.within(0..self.entries.len())
    }

    /// The objects in some of the slots, with their handles.
    pub fn within(&self, slots: Range<usize>) -> impl Iterator<Item = (u32, &T)> {
        let end = slots.end.min(self.entries.len());
        let first = slots.start.min(end);
        let entries = self.entries.get(first..end).unwrap_or_default();
        (first..).zip(entries).filter_map(|(slot, entry)| {
            let slot = u32::try_from(slot).unwrap_or(SLOT_MASK);
            entry.value.as_ref().map(|value| (slot | entry.generation << SLOT_BITS, value))
        })
    }

    /// Slots that were ever used.
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Objects stored.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_stale_handle_misses_the_next_owner_of_its_slot() {
        let mut slab = Slab::new(2);
        let first = slab.insert("first").unwrap();
        assert_eq!(slab.next_handle(), Some(1));
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second").unwrap();
        assert_eq!(Slab::<&str>::slot_of(first), Slab::<&str>::slot_of(second));
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
    }

    #[test]
    fn a_table_is_seen_in_pieces() {
        let mut slab = Slab::new(100);
        let handles: Vec<_> = (0..10).map(|n| slab.insert(n).unwrap()).collect();
        slab.remove(handles[4]);
        let in_slots = |slots| slab.within(slots).map(|(_, n)| *n).collect::<Vec<_>>();
        assert_eq!(in_slots(3..6), [3, 5]);
        assert_eq!(in_slots(8..1000), [8, 9]);
        assert_eq!(in_slots(10..20), []);
        assert_eq!(in_slots(5000..usize::MAX), []);
        assert_eq!((slab.len(), slab.slots()), (9, 10));
    }

    #[test]
    fn a_full_table_gives_the_object_back() {
        let mut slab = Slab::new(1);
        let handle = slab.insert(1).unwrap();
        assert_eq!(slab.insert(2), Err(2));
        assert_eq!(slab.next_handle(), None);
        assert_eq!(slab.remove(handle), Some(1));
        assert_eq!(slab.remove(handle), None);
        assert!(slab.is_empty());
        assert!(slab.insert(3).is_ok());
    }
}
