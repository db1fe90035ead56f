//! Rings that hand entries from one process to another.
//!
//! A ring has one producer and one consumer, and two runs of words: one that only the producer
//! writes (its index, then the entries), and one that only the consumer writes (its index, and
//! whether it sleeps). They may lie in different files, so that neither side can write what the
//! other one wrote.
//!
//! Entry `n` is in slot `n % capacity`. Each side keeps its own index for itself and only publishes
//! it; the other side's index is read once, and one that is impossible breaks the ring for good.
//!
//! # Why no entry is overlooked
//!
//! The consumer, before it sleeps: (C1) stores `asleep = 1`, (C2) SeqCst fence, (C3) reads the
//! producer's index and sleeps only if there is no new entry. The producer, when it publishes: (P1)
//! stores its index, (P2) SeqCst fence, (P3) reads `asleep` and wakes the consumer if it is 1. The
//! two fences are totally ordered: if C2 comes first, P3 sees the 1; if P2 comes first, C3 sees the
//! index.

use crate::mutant::Mutant;
use crate::words::{LINE, Ordering, Words, fence};

/// Words of the run that the producer of a ring writes.
pub const fn producer_words(capacity: usize, entry_words: usize) -> usize {
    LINE + capacity * entry_words
}

/// Words of the run that the consumer of a ring writes.
pub const CONSUMER_WORDS: usize = 2 * LINE;

const INDEX: usize = 0;
const ASLEEP: usize = LINE;

/// The index of the other side is one that it cannot have: nothing in the ring means anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// Puts entries of `N` words in.
#[derive(Debug)]
pub struct Producer<const N: usize> {
    own: Words,
    theirs: Words,
    capacity: u64,
    /// Entries put in ever, also those that are not published yet.
    head: u64,
    published: u64,
    /// The consumer's index when it was read last.
    tail: u64,
}

/// Takes entries of `N` words out.
#[derive(Debug)]
pub struct Consumer<const N: usize> {
    own: Words,
    theirs: Words,
    capacity: u64,
    /// Entries taken ever.
    tail: u64,
    /// Those of which the slots were given back.
    released: u64,
    /// The producer's index when it was read last.
    head: u64,
}

fn capacity_of(producer: &Words, consumer: &Words, entry_words: usize) -> Option<u64> {
    let entries = producer.len().checked_sub(LINE)?;
    if entry_words == 0 || entries < entry_words || consumer.len() < CONSUMER_WORDS {
        return None;
    }
    u64::try_from(entries / entry_words).ok()
}

impl<const N: usize> Producer<N> {
    /// The producer of an empty ring: the run that it writes, and the one that it reads. `None`
    /// when they are too short.
    pub fn new(own: Words, theirs: Words) -> Option<Self> {
        let capacity = capacity_of(&own, &theirs, N)?;
        Some(Self { own, theirs, capacity, head: 0, published: 0, tail: 0 })
    }

    /// The slot of the next entry; `None` when all are taken.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn free_slot(&mut self) -> Result<Option<usize>, Broken> {
        if self.head - self.tail == self.capacity {
            let tail = self.theirs.at(INDEX).load(Ordering::Acquire);
            // It only grows, and not beyond what was published.
            if tail.wrapping_sub(self.tail) > self.published - self.tail {
                return Err(Broken);
            }
            self.tail = tail;
        }
        let has_room = self.head - self.tail < self.capacity;
        Ok(has_room.then_some((self.head % self.capacity) as usize))
    }

    /// The slot of the next entry, free or not.
    pub fn next_slot(&self) -> usize {
        (self.head % self.capacity) as usize
    }

    /// Puts an entry into the [free slot](Self::free_slot).
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn push(&mut self, entry: &[u64; N]) {
        assert!(self.head - self.tail < self.capacity, "the ring is full");
        let slot = (self.head % self.capacity) as usize;
        self.own.copy_in(LINE + slot * N, entry);
        self.head += 1;
    }

    /// Takes the last entry back, which is not published yet; its slot is free again. False when
    /// there is none.
    pub fn take_back(&mut self) -> bool {
        let any = self.head != self.published;
        self.head -= u64::from(any);
        any
    }

    /// Shows what was put in to the consumer. True when that sleeps and must be woken.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        let order = match Mutant::RelaxedHandOver.is_on() {
            true => Ordering::Relaxed,
            false => Ordering::Release,
        };
        self.own.at(INDEX).store(self.head, order);
        if !Mutant::NoFencePublish.is_on() {
            fence(Ordering::SeqCst);
        }
        self.theirs.get(ASLEEP) != 0
    }
}

impl<const N: usize> Consumer<N> {
    /// The consumer of an empty ring: the run that it writes, and the one that it reads. `None`
    /// when they are too short.
    pub fn new(own: Words, theirs: Words) -> Option<Self> {
        let capacity = capacity_of(&theirs, &own, N)?;
        Some(Self { own, theirs, capacity, tail: 0, released: 0, head: 0 })
    }

    /// Whether there are entries to take.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn any(&mut self) -> Result<bool, Broken> {
        if self.head == self.tail {
            let head = self.theirs.at(INDEX).load(Ordering::Acquire);
            if head.wrapping_sub(self.tail) > self.capacity {
                return Err(Broken);
            }
            self.head = head;
        }
        Ok(self.head != self.tail)
    }

    /// Takes an entry, with its slot, which stays the consumer's until [`release`](Self::release).
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<(usize, [u64; N])>, Broken> {
        if !self.any()? {
            return Ok(None);
        }
        let slot = (self.tail % self.capacity) as usize;
        let mut entry = [0; N];
        self.theirs.copy_out(LINE + slot * N, &mut entry);
        self.tail += 1;
        Ok(Some((slot, entry)))
    }

    /// Puts the last entry back, whose slot was not [released](Self::release): it is the next to be
    /// taken again. False when there is none.
    pub fn put_back(&mut self) -> bool {
        let any = self.tail != self.released;
        self.tail -= u64::from(any);
        any
    }

    /// Gives the slots of all entries taken so far back.
    #[inline]
    pub fn release(&mut self) {
        self.released = self.tail;
        self.own.at(INDEX).store(self.tail, Ordering::Release);
    }

    /// Says that the consumer is about to sleep. False when it must not: there are entries.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn prepare_sleep(&mut self) -> Result<bool, Broken> {
        self.own.set(ASLEEP, 1);
        if !Mutant::NoFenceHandOverSleep.is_on() {
            fence(Ordering::SeqCst);
        }
        Ok(!self.any()?)
    }

    /// It does not sleep any more.
    pub fn awake(&mut self) {
        self.own.set(ASLEEP, 0);
    }
}
