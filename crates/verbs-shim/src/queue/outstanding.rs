//! What a shared receive queue has outstanding.
//!
//! Its receives complete in any order, each at the queue pair that took it, and the oldest may last
//! for ever: its peer has sent half a message and died. So the engine frees a slot when it takes
//! the receive, and the next post may use it. What a poll still needs of the slot, the buffers for
//! data that the completion carries, is set aside then.

use std::collections::HashMap;

use super::RECV_WORDS;

/// See the [module](self).
pub(super) struct Outstanding {
    count: u32,
    /// By slot: the receive in it, until its completion is polled.
    in_slot: Box<[Option<u32>]>,
    /// Receives whose slot was used again before that.
    aside: HashMap<u32, Box<[u64; RECV_WORDS]>>,
}

impl Outstanding {
    /// Nothing, in so many slots, a power of two.
    pub(super) fn new(capacity: u32) -> Self {
        let in_slot = vec![None; capacity as usize].into_boxed_slice();
        Self { count: 0, in_slot, aside: HashMap::new() }
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
            self.aside.insert(older, Box::new(read(older)));
        }
    }

    /// What was in the slot of a receive, if it is not any more.
    pub(super) fn set_aside(&self, index: u32) -> Option<&[u64; RECV_WORDS]> {
        self.aside.get(&index).map(Box::as_ref)
    }

    /// A completion was polled. One that belongs to no receive changes nothing.
    #[inline]
    pub(super) fn poll(&mut self, index: u32) {
        let is_known = match self.slot(index) {
            slot if *slot == Some(index) => slot.take().is_some(),
            _ => self.aside.remove(&index).is_some(),
        };
        self.count -= u32::from(is_known);
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
        assert_eq!(outstanding.set_aside(0), Some(&read(0)));
        outstanding.poll(0);
        assert_eq!(outstanding.set_aside(0), None);
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
