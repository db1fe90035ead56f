//! Completion queues: the engine writes, the application polls without a system call.
//!
//! A CQE carries, in its last word of the first line, the number of completions written before it
//! plus one. The application waits for exactly the number it expects next: a phase bit that cannot
//! be mistaken after a lap.
//!
//! # Why no event is missed
//!
//! The engine: (E1) writes CQEs, (E2) SeqCst fence, (E3) reads the arm word and, when it is armed
//! for what it wrote, disarms it by compare-and-swap and sends one event. The application: (A1)
//! arms by compare-and-swap, (A2) SeqCst fence, (A3) polls once more. If E2 comes first, A3 sees
//! the CQE; if A2 comes first, E3 sees the arming.

use crate::cqe::{CQE_WORDS, Cqe};
use crate::words::{LINE, Ordering, Words, fence};

/// Application to engine: completions polled.
const AT_CONSUMER: usize = 0;
/// Both: arm sequence and kind.
const AT_ARM: usize = LINE;
const HEADER_WORDS: usize = 4 * LINE;
const AT_SEQUENCE: usize = 7;

/// Largest number of CQEs of one completion queue.
pub const MAX_CQE: u32 = 1 << 22;

/// Words of memory a CQ of `capacity` CQEs takes; `None` unless a power of two in range.
pub fn cq_words(capacity: u32) -> Option<usize> {
    (capacity.is_power_of_two() && capacity <= MAX_CQE)
        .then(|| HEADER_WORDS + capacity as usize * CQE_WORDS)
}

/// What an armed CQ waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArmKind {
    /// The next completion.
    Any,
    /// The next completion that is solicited or in error.
    Solicited,
}

const KIND_MASK: u64 = 3;
const KIND_ANY: u64 = 1;
const KIND_SOLICITED: u64 = 2;

/// The engine's side.
#[derive(Debug)]
pub struct CqProducer {
    words: Words,
    mask: u64,
    /// Completions written since creation.
    written: u64,
    /// Last consumer index read from the application.
    polled: u64,
}

/// The application did not poll: the CQE was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqOverflow;

impl CqProducer {
    /// Takes the engine's side of a zeroed ring; `None` when memory and capacity do not fit.
    pub fn new(words: Words, capacity: u32) -> Option<Self> {
        (words.len() >= cq_words(capacity)?).then(|| Self {
            words,
            mask: u64::from(capacity) - 1,
            written: 0,
            polled: 0,
        })
    }

    /// Writes one completion.
    ///
    /// # Errors
    /// [`CqOverflow`] when the application's consumer index says that the ring is full, or is
    /// itself impossible.
    #[inline]
    pub fn push(&mut self, cqe: &Cqe) -> Result<(), CqOverflow> {
        if self.written.wrapping_sub(self.polled) > self.mask {
            self.polled = self.words.at(AT_CONSUMER).load(Ordering::Acquire);
            // Also refuses a consumer index ahead of what was ever written.
            if self.written.wrapping_sub(self.polled) > self.mask {
                self.polled = self.written.wrapping_sub(self.mask + 1);
                return Err(CqOverflow);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "masked by the capacity")]
        let at = HEADER_WORDS + (self.written & self.mask) as usize * CQE_WORDS;
        let encoded = cqe.encode();
        if cqe.carried_len() > 0 {
            self.words.copy_in(at + LINE, &encoded[LINE..]);
        }
        self.words.copy_in(at, &encoded[..AT_SEQUENCE]);
        self.written = self.written.wrapping_add(1);
        self.words.at(at + AT_SEQUENCE).store(self.written, Ordering::Release);
        Ok(())
    }

    /// Completions written since creation.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Completions that the application says it polled, for display.
    pub fn polled(&self) -> u64 {
        self.words.at(AT_CONSUMER).load(Ordering::Acquire)
    }

    /// (E2): one fence covers every CQ written before it.
    #[inline]
    pub fn fence_before_arm_check() {
        fence(Ordering::SeqCst);
    }

    /// (E3): disarms when armed for what was written. True when an event must be sent.
    #[inline]
    #[must_use = "the application waits for the event"]
    pub fn take_arm(&self, solicited: bool) -> bool {
        let arm = self.words.at(AT_ARM);
        let mut current = arm.load(Ordering::Relaxed);
        loop {
            let due = match current & KIND_MASK {
                KIND_ANY => true,
                KIND_SOLICITED => solicited,
                _ => false,
            };
            if !due {
                return false;
            }
            match arm.compare_exchange(
                current,
                current & !KIND_MASK,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => current = now,
            }
        }
    }
}

/// The application's side. One consumer at a time: the library holds the CQ's lock.
#[derive(Debug)]
pub struct CqConsumer {
    words: Words,
    mask: u64,
    polled: u64,
}

impl CqConsumer {
    /// Takes the application's side; `None` when memory and capacity do not fit.
    pub fn new(words: Words, capacity: u32) -> Option<Self> {
        (words.len() >= cq_words(capacity)?).then(|| Self {
            words,
            mask: u64::from(capacity) - 1,
            polled: 0,
        })
    }

    /// The next completion, if there is one.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        #[expect(clippy::cast_possible_truncation, reason = "masked by the capacity")]
        let at = HEADER_WORDS + (self.polled & self.mask) as usize * CQE_WORDS;
        let expected = self.polled.wrapping_add(1);
        if self.words.at(at + AT_SEQUENCE).load(Ordering::Acquire) != expected {
            return None;
        }
        let mut encoded = [0; CQE_WORDS];
        self.words.copy_out(at, &mut encoded[..LINE]);
        if Cqe::carried_len_of(&encoded) > 0 {
            self.words.copy_out(at + LINE, &mut encoded[LINE..]);
        }
        self.polled = expected;
        Some(Cqe::decode(&encoded))
    }

    /// Tells the engine what was polled; once per batch is enough.
    #[inline]
    pub fn publish(&self) {
        self.words.at(AT_CONSUMER).store(self.polled, Ordering::Release);
    }

    /// (A1) and (A2): asks for one event. Poll once more afterwards.
    ///
    /// Arming for any completion overrides an arming for solicited ones, not the other way round.
    pub fn arm(&self, kind: ArmKind) {
        let arm = self.words.at(AT_ARM);
        let mut current = arm.load(Ordering::Relaxed);
        loop {
            let kind = match kind {
                ArmKind::Solicited if current & KIND_MASK != KIND_ANY => KIND_SOLICITED,
                _ => KIND_ANY,
            };
            let next = ((current >> 2).wrapping_add(1) << 2) | kind;
            match arm.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => current = now,
            }
        }
        fence(Ordering::SeqCst);
    }
}
