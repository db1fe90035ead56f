//! The doorbell area of one device context: the NIC's BAR.
//!
//! One 64-bit **record** per queue holds its producer index. Above the records stands a pending
//! bitmap with two summary levels, so that the engine finds the queues that were rung with work
//! proportional to their number, however many exist:
//!
//! ```text
//! level 0   1 word      bit i: word i of level 1 may be non-zero
//! level 1   32 words    bit i: word i of level 2 may be non-zero
//! level 2   2048 words  bit i: record i was rung
//! records   131072 words
//! ```
//!
//! Ringing = write the WQEs, release-store the record, set the three bits bottom up; then, if the
//! engine asked for it, write the context's eventfd. The engine takes the bits top down, one
//! atomic swap per word, and reads a record after it took the record's bit.
//!
//! # Why no doorbell is lost
//!
//! A bit is set before the bits above it and taken after them. If the engine's swap of level 2
//! misses a bit, the bits above it are set later still, so that the engine comes again. If the
//! swap gets the bit, it synchronises with the ring, and the record read afterwards is at least
//! as new as that ring's.
//!
//! A ring that finds the record's own bit set may leave the upper levels alone. The earlier ring
//! that set it is complete (rings of one record are serialised by the queue's lock), so its upper
//! bits were set after it: they are pending still, or the engine took them and is on its way down.
//! Its swap of level 2 comes after this ring and sees this ring's record.
//!
//! # Why no wake-up is missed
//!
//! The engine, before it sleeps: (E1) stores `need_wakeup = 1`, (E2) SeqCst fence, (E3) reads
//! level 0 and sleeps only when it is zero and nothing taken is left to visit. The application,
//! when it rings: (A1) sets the bits, (A2) SeqCst fence, (A3) reads `need_wakeup` and writes the
//! eventfd when it is 1. The two fences are totally ordered. If E2 comes first, A3 sees the 1 and
//! wakes the engine; if A2 comes first, E3 sees the bit and does not sleep. On x86 the instruction
//! that sets a bit is the fence A2, too ([`fence_behind_rmw`]); the models have one of its own.

use crate::cpu_hints::{CpuHints, HintWord};
use crate::mutant::Mutant;
use crate::words::{AtomicU64, LINE, Ordering, Words, fence, fence_behind_rmw};
use std::ops::Range;

/// Queues (send, receive and shared receive queues together) that one context can have.
pub const MAX_RECORDS: usize = if cfg!(loom) { 2 } else { 1 << 17 };

const MAGIC: u64 = 0x524e_4943_4442_0001;
const AT_MAGIC: usize = 0;
/// Engine to application: non-zero asks for an eventfd write after a doorbell.
const AT_NEED_WAKEUP: usize = LINE;
/// Application to engine: CPU (plus one) of the last thread that posted or polled; 0 unknown.
const AT_CPU: usize = 2 * LINE;
/// Engine to application: how to share CPUs, [`CpuHints`].
const AT_CPU_HINTS: usize = 3 * LINE;
/// Application to engine: one bit for each thread that polled for nothing, see [`Poller`].
const AT_POLLERS: usize = 4 * LINE;
const AT_LEVEL0: usize = 8 * LINE;
const AT_LEVEL1: usize = 16 * LINE;
const LEVEL1_WORDS: usize = LEVEL2_WORDS.div_ceil(64);
/// The next page; loom, which keeps a history of every word, gets a smaller area.
const AT_LEVEL2: usize = if cfg!(loom) { 17 * LINE } else { PAGE_WORDS };
const LEVEL2_WORDS: usize = MAX_RECORDS.div_ceil(64);
const AT_RECORDS: usize = AT_LEVEL2 + LEVEL2_WORDS;
const PAGE_WORDS: usize = 512;

/// Words in a doorbell area. The file is sparse: pages of unused records cost nothing.
pub const AREA_WORDS: usize = AT_RECORDS + MAX_RECORDS;

/// Words of everything that is not a record; to be populated when the area is made.
pub const SUMMARY: Range<usize> = 0..AT_RECORDS;

const _: () = assert!(AT_LEVEL1 + LEVEL1_WORDS <= AT_LEVEL2);
const _: () = assert!(LEVEL1_WORDS <= 64);
const _: () = assert!(cfg!(loom) || AT_RECORDS.is_multiple_of(PAGE_WORDS));

/// The index of a queue's record in its context's doorbell area.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct RecordIndex(u32);

impl RecordIndex {
    /// `None` when `index` is not below [`MAX_RECORDS`].
    pub fn new(index: u32) -> Option<Self> {
        ((index as usize) < MAX_RECORDS).then_some(Self(index))
    }

    /// The number of the record.
    pub fn value(self) -> u32 {
        self.0
    }

    /// Words of the page that holds the record; to be populated before the record is used.
    pub fn page(self) -> Range<usize> {
        let start = self.word() / PAGE_WORDS * PAGE_WORDS;
        start..start + PAGE_WORDS
    }

    fn word(self) -> usize {
        AT_RECORDS + self.0 as usize
    }
}

/// The number of a polling thread within its process, modulo 64.
#[derive(Clone, Copy, Debug)]
pub struct Poller(u32);

impl Poller {
    /// The thread's number; those of a process should differ.
    pub fn new(number: u32) -> Self {
        Self(number % u64::BITS)
    }
}

impl From<RecordIndex> for u32 {
    fn from(index: RecordIndex) -> Self {
        index.0
    }
}

impl TryFrom<u32> for RecordIndex {
    type Error = &'static str;

    fn try_from(index: u32) -> Result<Self, Self::Error> {
        Self::new(index).ok_or("no such doorbell record")
    }
}

/// The application's side: it rings.
#[derive(Clone, Debug)]
pub struct Bell {
    area: Words,
}

impl Bell {
    /// Views a mapped area; `None` when it is too small or not a doorbell area.
    pub fn new(area: Words) -> Option<Self> {
        (area.len() >= AREA_WORDS && area.get(AT_MAGIC) == MAGIC).then_some(Self { area })
    }

    /// Publishes a producer index without asking for attention (receive queues).
    #[inline]
    pub fn publish(&self, record: RecordIndex, producer: u32) {
        self.area.at(record.word()).store(u64::from(producer), record_store());
    }

    /// Publishes a producer index and marks the queue pending.
    ///
    /// Returns true when the engine sleeps and the caller must write the context's eventfd. Calls
    /// for one record must not overlap: the caller holds the queue's lock.
    #[inline]
    #[must_use = "a sleeping engine must be woken"]
    pub fn ring(&self, record: RecordIndex, producer: u32) -> bool {
        self.publish(record, producer);
        let index = record.0 as usize;
        let bit = 1 << (index % 64);
        if Mutant::BitsTopDown.is_on() {
            self.set_summary_bits(index);
        }
        let before = self.area.at(AT_LEVEL2 + index / 64).fetch_or(bit, bit_ordering());
        let others_too = Mutant::SkipOnOthersBit.is_on() && before != 0;
        if before & bit == 0 && !others_too && !Mutant::BitsTopDown.is_on() {
            self.set_summary_bits(index);
        }
        // (A2) in the module's argument.
        if !Mutant::NoFenceRing.is_on() {
            fence_behind_rmw();
        }
        self.area.at(AT_NEED_WAKEUP).load(Ordering::Relaxed) != 0
    }

    /// Whether the engine seems to sleep, for what needs no answer in time.
    pub fn finds_engine_asleep(&self) -> bool {
        self.area.at(AT_NEED_WAKEUP).load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn set_summary_bits(&self, index: usize) {
        let (bit1, bit0) = (1 << (index / 64 % 64), 1 << (index / 4096));
        self.area.at(AT_LEVEL1 + index / 4096).fetch_or(bit1, bit_ordering());
        self.area.at(AT_LEVEL0).fetch_or(bit0, bit_ordering());
    }

    /// Tells the engine on which CPU this thread runs.
    #[inline]
    pub fn publish_cpu(&self, cpu: u32) {
        let cpu = u64::from(cpu) + 1;
        if self.area.get(AT_CPU) != cpu {
            self.area.set(AT_CPU, cpu);
        }
    }

    /// Tells the engine that this thread's poll found nothing.
    #[inline]
    pub fn publish_poller(&self, poller: Poller) {
        let bit = 1 << poller.0;
        if self.area.get(AT_POLLERS) & bit == 0 {
            self.area.at(AT_POLLERS).fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// How the engine asks this program to share CPUs.
    #[inline]
    pub fn cpu_hints(&self) -> HintWord {
        HintWord(self.area.get(AT_CPU_HINTS))
    }
}

/// The engine's side: it takes what was rung.
#[derive(Debug)]
pub struct Doorbells {
    area: Words,
    /// Level 0 bits of the pass under way: words of level 1 still to be taken, and the lowest one
    /// taken but not yet visited to its end.
    pending0: u64,
    /// What is left of that lowest one; zero when it has not been taken yet.
    pending1: u64,
}

impl Doorbells {
    /// Initialises the area and takes the engine's side of it; `None` when it is too small.
    pub fn new(area: Words) -> Option<Self> {
        if area.len() < AREA_WORDS {
            return None;
        }
        area.at(AT_MAGIC).store(MAGIC, Ordering::Release);
        Some(Self { area, pending0: 0, pending1: 0 })
    }

    /// The producer index that the application last published for `record`.
    #[inline]
    pub fn producer(&self, record: RecordIndex) -> u32 {
        // The upper half is reserved; a hostile writer gains nothing by setting it.
        #[expect(clippy::cast_possible_truncation, reason = "the record is a 32-bit index")]
        let index = self.area.at(record.word()).load(Ordering::Acquire) as u32;
        index
    }

    /// Sets a record to 0: its queue is new, or went to RESET. Without this, a new queue would
    /// begin at the index where the record's previous queue stopped.
    ///
    /// A bit left by the previous queue is harmless: one visit finds nothing to do.
    pub fn reset(&self, record: RecordIndex) {
        self.area.at(record.word()).store(0, Ordering::Release);
    }

    /// True when something was rung: one load, no write.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.pending0 != 0 || self.area.at(AT_LEVEL0).load(Ordering::Relaxed) & LEVEL0_VALID != 0
    }

    /// Takes the records rung since the last call, visiting at most `budget` level-2 words
    /// (64 records each). Returns true when the pass is not over and must be continued.
    ///
    /// A pass visits each level-2 word at most once and the next begins only when it is over, so
    /// that queues which ring all the time, honest or not, do not starve those behind them.
    pub fn take(&mut self, mut budget: usize, mut visit: impl FnMut(RecordIndex)) -> bool {
        if self.pending0 == 0 {
            // A hostile application may set bits above the geometry: they name nothing.
            self.pending0 = take_word(self.area.at(AT_LEVEL0)) & LEVEL0_VALID;
        }
        while self.pending0 != 0 {
            let i = self.pending0.trailing_zeros() as usize;
            if self.pending1 == 0 {
                self.pending1 = take_word(self.area.at(AT_LEVEL1 + i)) & LEVEL1_VALID;
            }
            while self.pending1 != 0 {
                if budget == 0 {
                    return true;
                }
                budget -= 1;
                let word = i * 64 + self.pending1.trailing_zeros() as usize;
                self.pending1 &= self.pending1 - 1;
                self.take_records(word, &mut visit);
            }
            self.pending0 &= self.pending0 - 1;
        }
        false
    }

    #[inline]
    fn take_records(&self, word: usize, visit: &mut impl FnMut(RecordIndex)) {
        let mut bits = take_word(self.area.at(AT_LEVEL2 + word)) & LEVEL2_VALID;
        while bits != 0 {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            #[expect(clippy::cast_possible_truncation, reason = "word < 2048")]
            visit(RecordIndex(word as u32 * 64 + bit));
        }
    }

    /// (E1) to (E3): asks to be woken. Returns false, and takes the request back, when a doorbell
    /// rang meanwhile; the engine must then not sleep.
    #[must_use = "when this is false a doorbell is pending"]
    pub fn prepare_sleep(&self) -> bool {
        self.area.at(AT_NEED_WAKEUP).store(1, Ordering::Relaxed);
        if !Mutant::NoFenceSleep.is_on() {
            fence(Ordering::SeqCst);
        }
        let may_sleep = !self.is_rung();
        if !may_sleep {
            self.awake();
        }
        may_sleep
    }

    /// The engine polls this area again, so doorbells need no eventfd write.
    pub fn awake(&self) {
        self.area.at(AT_NEED_WAKEUP).store(0, Ordering::Relaxed);
    }

    /// Asks the program to share CPUs like this.
    pub fn ask(&self, hints: CpuHints) {
        self.area.set(AT_CPU_HINTS, hints.encode());
    }

    /// How many threads' polls found nothing since the last call, according to the application: at
    /// most 64.
    pub fn take_pollers(&self) -> u32 {
        match self.area.get(AT_POLLERS) {
            0 => 0,
            _ => self.area.at(AT_POLLERS).swap(0, Ordering::Relaxed).count_ones(),
        }
    }

    /// CPU of the application's last thread that posted or polled, if published. Any number: check
    /// it before use.
    pub fn client_cpu(&self) -> Option<u32> {
        self.area.get(AT_CPU).checked_sub(1).and_then(|cpu| u32::try_from(cpu).ok())
    }
}

/// Takes all bits of a word; the swap synchronises with every ring whose bit it gets.
#[inline]
fn take_word(word: &AtomicU64) -> u64 {
    if word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    word.swap(0, bit_ordering())
}

/// Bits of a summary word that name one of `words` words below it.
const fn valid_bits(words: usize) -> u64 {
    if words >= 64 { u64::MAX } else { (1 << words) - 1 }
}

const LEVEL0_VALID: u64 = valid_bits(LEVEL1_WORDS);
const LEVEL1_VALID: u64 = valid_bits(LEVEL2_WORDS);
const LEVEL2_VALID: u64 = valid_bits(MAX_RECORDS);

// Every word but a last one is full, and only loom's small geometry has a last one that is not.
const _: () = assert!(cfg!(loom) || MAX_RECORDS.is_multiple_of(64 * 64));

/// Pairs with the load in [`Doorbells::producer`]: a WQE is visible with its index.
#[inline]
fn record_store() -> Ordering {
    if Mutant::RelaxedRecord.is_on() { Ordering::Relaxed } else { Ordering::Release }
}

/// A bit releases what was written below it, and taking it acquires that.
#[inline]
fn bit_ordering() -> Ordering {
    if Mutant::RelaxedBits.is_on() { Ordering::Relaxed } else { Ordering::AcqRel }
}
