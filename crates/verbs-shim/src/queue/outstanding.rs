//! What a shared receive queue has outstanding.
//!
//! Its receives complete in any order, each at the queue pair that took it, and the oldest may last
//! for ever: its peer has sent half a message and died. So the engine frees a slot when it takes
//! the receive, and the next post may use it. What a poll still needs of the slot, the buffers for
//! data that the completion carries, is set aside then.

use super::RECV_WORDS;

/// See the [module](self). Nothing is allocated once it is made: posts and polls are the data path.
pub(super) struct Outstanding {
    count: u32,
    /// By slot: the receive in it, until its completion is polled.
    in_slot: Box<[Option<u32>]>,
    aside: Aside,
}

/// Receives whose slot was used again before their completion was polled, no more than there are
/// slots. Those of one slot form a list: mostly there is one.
struct Aside {
    /// By slot: the first of its list.
    first: Box<[u32]>,
    entries: Box<[Entry]>,
    /// By entry: what was in the slot. Memory that is not used yet costs nothing.
    words: Box<[u64]>,
    /// The list of entries without a receive.
    free: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    index: u32,
    next: u32,
}

/// The end of a list.
const NONE: u32 = u32::MAX;

impl Outstanding {
    /// Nothing, in so many slots, a power of two.
    pub(super) fn new(capacity: u32) -> Self {
        let in_slot = vec![None; capacity as usize].into_boxed_slice();
        Self { count: 0, in_slot, aside: Aside::new(capacity) }
    }

    /// Receives that were posted, and whose completion was not polled.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    fn slot(&mut self, index: u32) -> &mut Option<u32> {
        let slot = index as usize & (self.in_slot.len() - 1);
        &mut self.in_slot[slot]
    }

    /// A receive is about to be written. `read` reads the slot of another.
    #[inline]
    pub(super) fn post(&mut self, index: u32, read: impl FnOnce(u32) -> [u64; RECV_WORDS]) {
        self.count += 1;
        if let Some(older) = self.slot(index).replace(index) {
            self.aside.insert(older, &read(older));
        }
    }

    /// What was in the slot of a receive, if it is not any more.
    pub(super) fn set_aside(&self, index: u32) -> Option<[u64; RECV_WORDS]> {
        self.aside.get(index)
    }

    /// A completion was polled. One that belongs to no receive changes nothing.
    #[inline]
    pub(super) fn poll(&mut self, index: u32) {
        let is_known = match self.slot(index) {
            slot if *slot == Some(index) => slot.take().is_some(),
            _ => self.aside.remove(index),
        };
        self.count -= u32::from(is_known);
    }
}

impl Aside {
    fn new(capacity: u32) -> Self {
        let len = capacity as usize;
        let next = |at| if at + 1 < capacity { at + 1 } else { NONE };
        Self {
            first: vec![NONE; len].into_boxed_slice(),
            entries: (0..capacity).map(|at| Entry { index: 0, next: next(at) }).collect(),
            words: vec![0; len * RECV_WORDS].into_boxed_slice(),
            free: if capacity == 0 { NONE } else { 0 },
        }
    }

    fn slot(&self, index: u32) -> usize {
        index as usize & (self.first.len() - 1)
    }

    fn words_of(entry: u32) -> std::ops::Range<usize> {
        let start = entry as usize * RECV_WORDS;
        start..start + RECV_WORDS
    }

    /// There is room: what is outstanding fits the slots.
    fn insert(&mut self, index: u32, words: &[u64; RECV_WORDS]) {
        let (slot, at) = (self.slot(index), self.free);
        let Some(entry) = self.entries.get_mut(at as usize) else { return };
        self.free = entry.next;
        *entry = Entry { index, next: self.first[slot] };
        self.first[slot] = at;
        self.words[Self::words_of(at)].copy_from_slice(words);
    }

    fn get(&self, index: u32) -> Option<[u64; RECV_WORDS]> {
        let mut at = self.first[self.slot(index)];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.index == index {
                return self.words[Self::words_of(at)].first_chunk().copied();
            }
            at = entry.next;
        }
        None
    }

    /// False when there is none.
    fn remove(&mut self, index: u32) -> bool {
        let slot = self.slot(index);
        let (mut before, mut at) = (None, self.first[slot]);
        while let Some(entry) = self.entries.get(at as usize).copied() {
            if entry.index == index {
                match before {
                    None => self.first[slot] = entry.next,
                    Some(before) => self.entries[before as usize].next = entry.next,
                }
                self.entries[at as usize].next = std::mem::replace(&mut self.free, at);
                return true;
            }
            (before, at) = (Some(at), entry.next);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(index: u32) -> [u64; RECV_WORDS] {
        [index.into(); RECV_WORDS]
    }

    #[test]
    fn the_oldest_receive_may_last() {
        let mut outstanding = Outstanding::new(4);
        for index in 0..4 {
            outstanding.post(index, read);
        }
        // All others complete, and what they make room for is posted.
        for index in 4..100 {
            outstanding.poll(index - 3);
            assert_eq!(outstanding.count(), 3);
            outstanding.post(index, read);
        }
        assert_eq!(outstanding.set_aside(0), Some(read(0)));
        outstanding.poll(0);
        assert_eq!(outstanding.set_aside(0), None);
    }

    #[test]
    fn receives_of_one_slot_last_in_any_number_and_complete_in_any_order() {
        let orders = [[0_usize, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let mut outstanding = Outstanding::new(4);
        let mut index = 0;
        for order in orders.into_iter().cycle().take(100) {
            let last = index;
            for round in 0..4 {
                // All but those of slot 0 complete.
                for other in 1..4 {
                    outstanding.post(index + other, read);
                    outstanding.poll(index + other);
                }
                if round < 3 {
                    index += 4;
                    outstanding.post(index, read);
                }
            }
            let lasting = [1, 2, 3].map(|round| last + 4 * round);
            assert_eq!(outstanding.count(), 3);
            for index in &lasting[..2] {
                assert_eq!(outstanding.set_aside(*index), Some(read(*index)));
            }
            order.iter().for_each(|at| outstanding.poll(lasting[*at]));
            assert_eq!((outstanding.count(), outstanding.set_aside(lasting[0])), (0, None));
        }
    }

    #[test]
    fn a_completion_of_nothing_makes_no_room() {
        let mut outstanding = Outstanding::new(2);
        outstanding.post(u32::MAX, read);
        outstanding.post(0, read);
        for index in [1, 2, 7, u32::MAX - 1] {
            outstanding.poll(index);
        }
        assert_eq!(outstanding.count(), 2);
        outstanding.poll(u32::MAX);
        outstanding.poll(u32::MAX);
        assert_eq!(outstanding.count(), 1);
        outstanding.poll(0);
        assert_eq!(outstanding.count(), 0);
    }
}
