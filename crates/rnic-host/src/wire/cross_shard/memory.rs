//! The memory of a hand-over: two files, each written by one side.
//!
//! | file | words |
//! |---|---|
//! | the owner's, which the shard can only read | capabilities of the wire, the consumer's words of the ring of trains, the producer's of the ring of datagrams, the datagrams |
//! | the shard's | the consumer's words of the ring of datagrams, the producer's of the ring of trains, the trains |

#![allow(unsafe_code, reason = "bytes of shared memory")]

use rnic_abi::hand_over::{CONSUMER_WORDS, producer_words};
use rnic_abi::os::memory;
use rnic_abi::words::{LINE, WORD, Words};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A part of the memory as bytes.
pub(super) struct Area {
    words: Words,
}

impl Area {
    fn len(&self) -> usize {
        self.words.len() * WORD
    }

    fn start(&self) -> *mut u8 {
        self.words.as_ptr().as_ptr().cast()
    }

    /// Copies bytes out, while the other process may write them: any bytes are as good as any
    /// others. False when they are not all inside.
    pub(super) fn copy_out(&self, at: usize, to: &mut [u8]) -> bool {
        let inside = at.checked_add(to.len()).is_some_and(|end| end <= self.len());
        if inside {
            // SAFETY: the range is inside of memory that is mapped while `words` lives, and `to` is
            // memory of our own elsewhere. No reference to the shared bytes exists, and no value
            // that is read decides what is touched.
            unsafe { self.start().add(at).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        }
        inside
    }

    /// Copies bytes in, where this process is the only one that writes. False when they do not fit.
    pub(super) fn copy_in(&mut self, at: usize, from: &[u8]) -> bool {
        let inside = at.checked_add(from.len()).is_some_and(|end| end <= self.len());
        if inside {
            // SAFETY: as above, the other way.
            unsafe { self.start().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        }
        inside
    }

    /// The bytes of a part that the owner of the wire writes, for the shard, which trusts it: those
    /// that it was shown do not change until it gives them back.
    pub(super) fn shown(&self) -> &[u8] {
        // SAFETY: mapped while `words` lives; see above.
        unsafe { std::slice::from_raw_parts(self.start(), self.len()) }
    }

    /// The bytes of a part that this process alone writes, and the other only copies.
    pub(super) fn own(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow of `self` is the only one in this process.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len()) }
    }
}

/// A file, cut into its parts.
pub(super) struct Parts {
    pub(super) caps: Words,
    /// For the consumer of the other side's ring.
    pub(super) consumer: Words,
    /// For the producer of this side's ring.
    pub(super) producer: Words,
    pub(super) bytes: Area,
}

/// Slots of a ring: how many, and how many words an entry and its bytes take.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) slots: usize,
    pub(super) entry: usize,
    pub(super) bytes: usize,
}

impl Shape {
    fn producer(self) -> usize {
        producer_words(self.slots, self.entry).next_multiple_of(LINE)
    }

    fn words(self) -> usize {
        LINE + CONSUMER_WORDS + self.producer() + self.slots * self.bytes / WORD
    }

    fn cut(self, words: &Words) -> Option<Parts> {
        let produced = LINE + CONSUMER_WORDS;
        let bytes = produced + self.producer();
        Some(Parts {
            caps: words.slice(0, LINE)?,
            consumer: words.slice(LINE, CONSUMER_WORDS)?,
            producer: words.slice(produced, producer_words(self.slots, self.entry))?,
            bytes: Area { words: words.slice(bytes, self.slots * self.bytes / WORD)? },
        })
    }

    fn parts(self, words: &Words) -> io::Result<Parts> {
        self.cut(words).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

/// Makes the file that only the calling process writes.
pub(super) fn create_to_read(name: &str, shape: Shape) -> io::Result<(OwnedFd, Parts)> {
    let (file, words) = memory::create_to_read(name, shape.words())?;
    Ok((file, shape.parts(&words)?))
}

/// Makes the file that the other process writes.
pub(super) fn create(name: &str, shape: Shape) -> io::Result<(OwnedFd, Parts)> {
    let (file, words) = memory::create_for_good(name, shape.words())?;
    Ok((file, shape.parts(&words)?))
}

/// Maps the file that the other process alone writes.
pub(super) fn map_to_read(file: impl AsFd, shape: Shape) -> io::Result<Parts> {
    shape.parts(&memory::map_to_read(file, shape.words())?)
}

/// Maps the file that this process writes.
pub(super) fn map(file: impl AsFd, shape: Shape) -> io::Result<Parts> {
    shape.parts(&memory::map_for_good(file, shape.words())?)
}
