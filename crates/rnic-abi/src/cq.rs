//! Completion queues: the engine writes, the application polls without a system call.
//!
//! A CQE carries, in its last word of the first line, the number of completions written before it
//! plus one. The application waits for exactly the number it expects next: a phase bit that cannot
//! be mistaken after a lap.
//!
//! # Why no event is missed
//!
//! The engine: (E1) writes CQEs, (E2) SeqCst fence, (E3) reads the arm word and, when it is armed
//! for what it wrote, disarms it by a swap and sends one event. The application: (A1) arms by
//! compare-and-swap, (A2) SeqCst fence, (A3) polls once more. If E2 comes first, A3 sees the CQE;
//! if A2 comes first, E3 sees the arming.
//!
//! The engine swaps and never retries, so that an application which rewrites the word all the time
//! cannot delay it. Between the engine's load and its swap, a correct application can only have
//! turned an arming for solicited completions into one for any, and that event is due as well.
//!
//! # Why no sleeper is missed
//!
//! The same argument with another word. A thread that sleeps instead of polling: (S1) stores 1 in
//! the sleeper word, (S2) SeqCst fence, (S3) checks once more and, where there is still nothing,
//! sleeps on the word as long as it is 1 (futex). The engine: after (E2), (E4) reads the word and,
//! when it is not 0, swaps it for 0 and wakes the sleepers. If E2 comes first, S3 sees the CQE; if
//! S2 comes first, E4 sees the sleeper, and the kernel compares the word before it lets a thread
//! sleep. Every sleep has a time limit, so that an error in all this would only delay the program.

use crate::cqe::{CQE_WORDS, Cqe};
use crate::mutant::Mutant;
use crate::words::{AtomicU64, LINE, Ordering, Words, fence};

/// Application to engine: completions polled.
const AT_CONSUMER: usize = 0;
/// Both: what the application waits for.
const AT_ARM: usize = LINE;
/// Both: threads sleep until there is a completion. Next to the arm word, so that the engine reads
/// one cache line.
const AT_SLEEPER: usize = AT_ARM + 1;
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

const AWAKE: u64 = 0;
/// What a sleeping thread writes into the sleeper word: the thread sleeps only while the word has
/// this value.
pub const ASLEEP: u32 = 1;

const NOT_ARMED: u64 = 0;
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
    /// Empties the ring and takes the engine's side of it; `None` when memory and capacity do not
    /// fit.
    ///
    /// The memory may have been another ring: clear its sequence numbers.
    pub fn new(words: Words, capacity: u32) -> Option<Self> {
        if words.len() < cq_words(capacity)? {
            return None;
        }
        words.set(AT_CONSUMER, 0);
        words.set(AT_ARM, NOT_ARMED);
        words.set(AT_SLEEPER, AWAKE);
        for slot in 0..capacity as usize {
            words.set(HEADER_WORDS + slot * CQE_WORDS + AT_SEQUENCE, 0);
        }
        Some(Self { words, mask: u64::from(capacity) - 1, written: 0, polled: 0 })
    }

    /// Moves to an empty ring of another size, which starts with the completions not polled yet; an
    /// arming that was not answered moves along. `None` when the completions do not fit. That takes
    /// as long as there are completions: the ring was emptied when it was made.
    ///
    /// The application must not poll or arm meanwhile.
    pub fn resized(&self, mut larger: Self) -> Option<Self> {
        let unpolled = self.written.wrapping_sub(self.polled());
        if unpolled > larger.mask.min(self.mask) + 1 {
            return None;
        }
        for index in self.written.wrapping_sub(unpolled)..self.written {
            let mut encoded = [0; CQE_WORDS];
            self.words.copy_out(slot(index, self.mask), &mut encoded);
            larger.push(&Cqe::decode(&encoded)).ok()?;
        }
        larger.words.set(AT_ARM, self.words.at(AT_ARM).swap(NOT_ARMED, Ordering::AcqRel));
        Some(larger)
    }

    /// Writes one completion.
    ///
    /// # Errors
    /// [`CqOverflow`] when the application's consumer index says that the ring is full, or is
    /// itself impossible.
    #[inline(always)]
    pub fn push(&mut self, cqe: &Cqe) -> Result<(), CqOverflow> {
        if self.written.wrapping_sub(self.polled) > self.mask {
            self.polled = self.words.at(AT_CONSUMER).load(Ordering::Acquire);
            // Also refuses a consumer index ahead of what was ever written. Either way the next
            // push looks again.
            let full = self.written.wrapping_sub(self.polled) > self.mask;
            if full && !Mutant::CqNeverFull.is_on() {
                return Err(CqOverflow);
            }
        }
        let at = slot(self.written, self.mask);
        if cqe.carried_len() > 0 {
            self.words.copy_in(at + LINE, cqe.carried_words());
        }
        self.words.copy_in(at, &cqe.encode_head());
        self.written = self.written.wrapping_add(1);
        self.words.at(at + AT_SEQUENCE).store(self.written, sequence_store());
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
        if !Mutant::NoFenceArmCheck.is_on() {
            fence(Ordering::SeqCst);
        }
    }

    /// (E3): disarms when armed for what was written. True when an event must be sent.
    #[inline]
    #[must_use = "the application waits for the event"]
    pub fn take_arm(&self, solicited: bool) -> bool {
        let arm = self.words.at(AT_ARM);
        let due = |kind| kind == KIND_ANY || (kind == KIND_SOLICITED && solicited);
        due(arm.load(Ordering::Relaxed)) && due(arm.swap(NOT_ARMED, Ordering::AcqRel))
    }

    /// (E4): the word by which threads that sleep must be woken, when there are any.
    #[inline]
    #[must_use = "the application sleeps"]
    pub fn take_sleepers(&self) -> Option<&AtomicU64> {
        let word = self.words.at(AT_SLEEPER);
        let asleep = word.load(Ordering::Relaxed) != AWAKE;
        (asleep && word.swap(AWAKE, Ordering::AcqRel) != AWAKE).then_some(word)
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

    /// The next completion, if there is one. Its slot is free again at once, not only at the end of
    /// a batch: a program may post what the completion made room for before it takes the next one.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let at = slot(self.polled, self.mask);
        let expected = self.polled.wrapping_add(1);
        if self.words.at(at + AT_SEQUENCE).load(sequence_load()) != expected {
            return None;
        }
        let mut encoded = [0; CQE_WORDS];
        self.words.copy_out(at, &mut encoded[..LINE]);
        if Cqe::carried_len_of(&encoded) > 0 {
            self.words.copy_out(at + LINE, &mut encoded[LINE..]);
        }
        self.polled = expected;
        self.words.at(AT_CONSUMER).store(expected, Ordering::Release);
        Some(Cqe::decode(&encoded))
    }

    /// (S1) to (S3): says that this thread is going to sleep on the returned word, as long as that
    /// is [`ASLEEP`]. `None` when there is a completion: the thread must then not sleep.
    #[must_use = "the engine is going to wake a thread"]
    pub fn prepare_sleep(&self) -> Option<CqSleep> {
        self.words.at(AT_SLEEPER).store(ASLEEP.into(), Ordering::Relaxed);
        if !Mutant::NoFencePrepare.is_on() {
            fence(Ordering::SeqCst);
        }
        let sequence = self.words.at(slot(self.polled, self.mask) + AT_SEQUENCE);
        let is_empty = sequence.load(Ordering::Relaxed) != self.polled.wrapping_add(1);
        is_empty.then(|| CqSleep(self.words.clone()))
    }

    /// One thread woke up and others did not: the next completion must wake another one.
    pub fn others_sleep(&self) {
        self.words.at(AT_SLEEPER).store(ASLEEP.into(), Ordering::Relaxed);
    }

    /// What asks for events, which needs no lock.
    pub fn arm(&self) -> CqArm {
        CqArm(self.words.clone())
    }
}

/// The application's side of the arm word. Any thread may use it while another one polls.
#[derive(Clone, Debug)]
pub struct CqArm(Words);

impl CqArm {
    /// (A1) and (A2): asks for one event. Poll once more afterwards.
    ///
    /// Arming for any completion overrides an arming for solicited ones, not the other way round.
    pub fn set(&self, kind: ArmKind) {
        let arm = self.0.at(AT_ARM);
        let mut current = arm.load(Ordering::Relaxed);
        loop {
            let next = match kind {
                ArmKind::Solicited if current != KIND_ANY => KIND_SOLICITED,
                _ => KIND_ANY,
            };
            match arm.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => current = now,
            }
        }
        if !Mutant::NoFenceArm.is_on() {
            fence(Ordering::SeqCst);
        }
    }

    /// Disarms after the engine died. True when the CQ was armed.
    pub fn take(&self) -> bool {
        self.0.at(AT_ARM).swap(NOT_ARMED, Ordering::AcqRel) != NOT_ARMED
    }
}

/// A thread that is going to sleep. It keeps the memory mapped, and holds no lock.
#[derive(Debug)]
pub struct CqSleep(Words);

impl CqSleep {
    /// Where it sleeps.
    pub fn word(&self) -> &AtomicU64 {
        self.0.at(AT_SLEEPER)
    }
}

/// First word of the slot of completion number `index`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked by the capacity")]
fn slot(index: u64, mask: u64) -> usize {
    HEADER_WORDS + (index & mask) as usize * CQE_WORDS
}

/// Pairs with [`sequence_load`]: a CQE is visible with its number.
#[inline]
fn sequence_store() -> Ordering {
    if Mutant::RelaxedSequenceStore.is_on() { Ordering::Relaxed } else { Ordering::Release }
}

#[inline]
fn sequence_load() -> Ordering {
    if Mutant::RelaxedSequenceLoad.is_on() { Ordering::Relaxed } else { Ordering::Acquire }
}
