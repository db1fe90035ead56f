//! Send, receive and shared receive queues: rings of fixed-size slots.
//!
//! A ring is a header of two cache lines and `capacity` slots (a power of two) of `stride` words
//! (a multiple of a 64-byte basic block). The producer index lives in the queue's doorbell record;
//! the header's first word is the engine's **consumer** index: slots below it are free again. The
//! first word of its second line is the engine's **flush mark**.
//!
//! # Why no receive stays unflushed
//!
//! Receives are published without a ring: the engine looks at the index when a message needs one.
//! A QP in ERR gets no messages, so a post must ring. The application: (A1) publishes the index,
//! (A2) SeqCst fence, (A3) reads the mark and rings when it is set. The engine, when the QP enters
//! ERR: (E1) sets the mark, (E2) SeqCst fence, (E3) reads the index and flushes up to it.
//! The two fences are totally ordered. If E2 comes first, A3 sees the mark and rings; if A2 comes
//! first, E3 sees the index.

use crate::mutant::Mutant;
use crate::words::{LINE, Ordering, Words, fence};

const AT_CONSUMER: usize = 0;
/// On a line of its own: it is read at every post and hardly ever written.
const AT_FLUSH_MARK: usize = LINE;
const HEADER_WORDS: usize = 2 * LINE;

/// Shape of a work queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct QueueShape {
    /// Slots; a power of two.
    pub capacity: u32,
    /// Words per slot; a multiple of [`LINE`].
    pub stride: u32,
}

impl QueueShape {
    /// Largest number of slots of one queue.
    pub const MAX_CAPACITY: u32 = 1 << 16;

    /// Words of memory the ring takes, or `None` when the shape is not a valid one.
    pub fn words(self) -> Option<usize> {
        let sane = self.capacity.is_power_of_two()
            && self.capacity <= Self::MAX_CAPACITY
            && self.stride > 0
            && (self.stride as usize).is_multiple_of(LINE)
            && self.stride as usize <= crate::wqe::MAX_SLOT_WORDS;
        sane.then(|| HEADER_WORDS + self.capacity as usize * self.stride as usize)
    }
}

#[derive(Clone, Debug)]
struct Slots {
    words: Words,
    shape: QueueShape,
}

impl Slots {
    fn new(words: Words, shape: QueueShape) -> Option<Self> {
        (words.len() >= shape.words()?).then_some(Self { words, shape })
    }

    #[inline]
    fn start(&self, index: u32) -> usize {
        let slot = index & (self.shape.capacity - 1);
        HEADER_WORDS + slot as usize * self.shape.stride as usize
    }
}

/// The application's side: it writes WQEs.
///
/// One producer at a time: the library holds the queue's lock.
#[derive(Debug)]
pub struct WorkProducer {
    slots: Slots,
    producer: u32,
    consumer: u32,
}

impl WorkProducer {
    /// Starts at index 0 of an empty ring; `None` when the memory is too small for the shape.
    pub fn new(words: Words, shape: QueueShape) -> Option<Self> {
        Some(Self { slots: Slots::new(words, shape)?, producer: 0, consumer: 0 })
    }

    /// Slots that can be written now: at least this many, and 0 only when the queue is full.
    #[inline]
    pub fn free(&mut self) -> u32 {
        let used = self.producer.wrapping_sub(self.consumer);
        if used < self.slots.shape.capacity {
            return self.slots.shape.capacity - used;
        }
        self.refresh();
        self.slots.shape.capacity.saturating_sub(self.producer.wrapping_sub(self.consumer))
    }

    /// WQEs posted that the engine has not released yet.
    pub fn in_use(&mut self) -> u32 {
        self.refresh();
        self.producer.wrapping_sub(self.consumer)
    }

    fn refresh(&mut self) {
        #[expect(clippy::cast_possible_truncation, reason = "the word is a 32-bit index")]
        let consumer = self.slots.words.at(AT_CONSUMER).load(Ordering::Acquire) as u32;
        self.consumer = consumer;
    }

    /// Words of one slot.
    pub fn stride(&self) -> usize {
        self.slots.shape.stride as usize
    }

    /// Writes one WQE at the producer index, which is not yet visible to the engine.
    ///
    /// The caller has checked [`free`](Self::free) and that `wqe` fits [`stride`](Self::stride).
    ///
    /// # Panics
    /// When `wqe` is longer than a slot.
    #[inline]
    pub fn push(&mut self, wqe: &[u64]) -> u32 {
        assert!(wqe.len() <= self.slots.shape.stride as usize, "WQE longer than its slot");
        let index = self.producer;
        self.slots.words.copy_in(self.slots.start(index), wqe);
        self.producer = index.wrapping_add(1);
        index
    }

    /// Takes back the WQEs pushed since the producer index was `index`, none of them published.
    pub fn rewind(&mut self, index: u32) {
        debug_assert!(self.producer.wrapping_sub(index) <= self.slots.shape.capacity);
        self.producer = index;
    }

    /// Reads back a slot that this side wrote (receive WQEs whose data came inside the CQE).
    pub fn read_back(&self, index: u32, out: &mut [u64]) {
        let len = out.len().min(self.slots.shape.stride as usize);
        self.slots.words.copy_out(self.slots.start(index), &mut out[..len]);
    }

    /// The index to publish in the doorbell record.
    pub fn producer(&self) -> u32 {
        self.producer
    }

    /// Whether the engine must be rung for the receives just published: while it flushes this queue
    /// it looks at the queue only when rung. (A2) and (A3) in the module's argument.
    ///
    /// To be called after the index was published, under the queue's lock.
    #[inline]
    #[must_use = "a queue that is flushed must be rung"]
    pub fn must_ring(&self) -> bool {
        if !Mutant::NoFenceMarkCheck.is_on() {
            fence(Ordering::SeqCst);
        }
        self.slots.words.get(AT_FLUSH_MARK) != 0
    }

    /// Restarts at index 0: the QP went to RESET.
    pub fn reset(&mut self) {
        self.producer = 0;
        self.consumer = 0;
    }
}

/// The engine's side: it copies WQEs out.
#[derive(Debug)]
pub struct WorkConsumer {
    slots: Slots,
    /// Next slot to fetch.
    fetched: u32,
    /// Slots below are free.
    released: u32,
}

/// The application published a producer index that is further ahead than the ring is long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerOverrun;

impl WorkConsumer {
    /// Takes the engine's side of a fresh ring; `None` when memory and shape do not fit.
    pub fn new(words: Words, shape: QueueShape) -> Option<Self> {
        let mut ring = Self { slots: Slots::new(words, shape)?, fetched: 0, released: 0 };
        ring.reset();
        Some(ring)
    }

    /// WQEs ready to be fetched, given the published producer index.
    ///
    /// # Errors
    /// [`ProducerOverrun`] when the index is impossible: a full lap ahead of what was released.
    #[inline]
    pub fn available(&self, producer: u32) -> Result<u32, ProducerOverrun> {
        let outstanding = producer.wrapping_sub(self.released);
        let fetched = self.fetched.wrapping_sub(self.released);
        if outstanding > self.slots.shape.capacity || outstanding < fetched {
            return Err(ProducerOverrun);
        }
        Ok(outstanding - fetched)
    }

    /// Copies the next slot's first `out.len()` words (at most a slot) and returns its index.
    #[inline]
    pub fn fetch(&mut self, out: &mut [u64]) -> u32 {
        let index = self.fetched;
        self.copy(index, 0, out);
        self.fetched = index.wrapping_add(1);
        index
    }

    /// Copies words of a slot, from `start` within the slot on.
    #[inline]
    pub fn copy(&self, index: u32, start: usize, out: &mut [u64]) {
        let stride = self.slots.shape.stride as usize;
        let at = self.slots.start(index);
        if start + out.len() <= stride {
            return self.slots.words.copy_out(at + start, out);
        }
        // What lies behind the slot is not looked at.
        let start = start.min(stride);
        let len = out.len().min(stride - start);
        self.slots.words.copy_out(at + start, &mut out[..len]);
        out[len..].fill(0);
    }

    /// Words of one slot.
    pub fn stride(&self) -> usize {
        self.slots.shape.stride as usize
    }

    /// Slots of the ring.
    pub fn capacity(&self) -> u32 {
        self.slots.shape.capacity
    }

    /// Index of the next slot to fetch.
    pub fn next_index(&self) -> u32 {
        self.fetched
    }

    /// Frees every slot below `index` for the application.
    #[inline]
    pub fn release(&mut self, index: u32) {
        self.released = index;
        self.slots.words.at(AT_CONSUMER).store(u64::from(index), Ordering::Release);
    }

    /// From now on every post rings: (E1) and (E2) in the module's argument. What was published
    /// without a ring is in the producer index that is read after this.
    pub fn mark_flushed(&mut self) {
        self.slots.words.set(AT_FLUSH_MARK, 1);
        if !Mutant::NoFenceMark.is_on() {
            fence(Ordering::SeqCst);
        }
    }

    /// Starts over at index 0: the QP went to RESET.
    pub fn reset(&mut self) {
        self.slots.words.set(AT_FLUSH_MARK, 0);
        self.fetched = 0;
        self.release(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Slot numbers stay in step when a 32-bit index wraps.
    #[test]
    fn indices_wrap_at_32_bits() {
        let shape = QueueShape { capacity: 4, stride: 8 };
        let words = Words::heap(shape.words().unwrap());
        let mut consumer = WorkConsumer::new(words.clone(), shape).unwrap();
        let mut producer = WorkProducer::new(words, shape).unwrap();
        let start = u32::MAX - 1;
        (producer.producer, producer.consumer) = (start, start);
        consumer.fetched = start;
        consumer.release(start);
        for number in 0..4 {
            assert!(producer.free() > 0);
            producer.push(&[number]);
        }
        assert_eq!((producer.free(), producer.producer()), (0, 2));
        assert_eq!(consumer.available(start), Ok(0));
        assert_eq!(consumer.available(2), Ok(4));
        assert_eq!(consumer.available(3), Err(ProducerOverrun));
        assert_eq!(consumer.available(start - 1), Err(ProducerOverrun));
        for number in 0..4 {
            let mut wqe = [0];
            let index = consumer.fetch(&mut wqe);
            assert_eq!(wqe, [number]);
            consumer.release(index.wrapping_add(1));
        }
        assert_eq!(consumer.available(1), Err(ProducerOverrun), "an index that went back");
        assert_eq!((producer.in_use(), producer.free()), (0, 4));
    }
}
