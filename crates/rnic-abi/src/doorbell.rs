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
//! engine asked for it, write the context's eventfd.
//!
//! # Why no wake-up is missed
//!
//! The engine, before it sleeps: (E1) stores `need_wakeup = 1`, (E2) SeqCst fence, (E3) reads
//! level 0 and sleeps only when it is zero. The application, when it rings: (A1) sets the bits,
//! (A2) SeqCst fence, (A3) reads `need_wakeup` and writes the eventfd when it is 1. The two fences
//! are totally ordered. If E2 comes first, A3 sees the 1 and wakes the engine; if A2 comes first,
//! E3 sees the bit and does not sleep.

use crate::words::{AtomicU64, LINE, Ordering, Words, fence};

/// Queues (send, receive and shared receive queues together) that one context can have.
pub const MAX_RECORDS: usize = 1 << 17;

const MAGIC: u64 = 0x524e_4943_4442_0001;
const AT_MAGIC: usize = 0;
/// Engine to application: non-zero asks for an eventfd write after a doorbell.
const AT_NEED_WAKEUP: usize = LINE;
/// Application to engine: CPU (plus one) of the last thread that posted or polled; 0 unknown.
const AT_CPU: usize = 2 * LINE;
const AT_LEVEL0: usize = 8 * LINE;
const AT_LEVEL1: usize = 16 * LINE;
const LEVEL1_WORDS: usize = MAX_RECORDS / 64 / 64;
const AT_LEVEL2: usize = 512;
const LEVEL2_WORDS: usize = MAX_RECORDS / 64;
const AT_RECORDS: usize = AT_LEVEL2 + LEVEL2_WORDS;

/// Words in a doorbell area. The file is sparse: pages of unused records cost nothing.
pub const AREA_WORDS: usize = AT_RECORDS + MAX_RECORDS;

const _: () = assert!(AT_LEVEL1 + LEVEL1_WORDS <= AT_LEVEL2);
const _: () = assert!(LEVEL1_WORDS <= 64);
const _: () = assert!(AT_RECORDS.is_multiple_of(512));

/// The index of a queue's record in its context's doorbell area.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
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

    fn word(self) -> usize {
        AT_RECORDS + self.0 as usize
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
        self.area.at(record.word()).store(u64::from(producer), Ordering::Release);
    }

    /// Publishes a producer index and marks the queue pending.
    ///
    /// Returns true when the engine sleeps and the caller must write the context's eventfd.
    #[inline]
    #[must_use = "a sleeping engine must be woken"]
    pub fn ring(&self, record: RecordIndex, producer: u32) -> bool {
        self.publish(record, producer);
        let index = record.0 as usize;
        self.area.at(AT_LEVEL2 + index / 64).fetch_or(1 << (index % 64), Ordering::AcqRel);
        self.area.at(AT_LEVEL1 + index / 4096).fetch_or(1 << (index / 64 % 64), Ordering::AcqRel);
        self.area.at(AT_LEVEL0).fetch_or(1 << (index / 4096), Ordering::AcqRel);
        // (A2) in the module's argument.
        fence(Ordering::SeqCst);
        self.area.at(AT_NEED_WAKEUP).load(Ordering::Relaxed) != 0
    }

    /// Tells the engine on which CPU this application runs.
    #[inline]
    pub fn publish_cpu(&self, cpu: u32) {
        let cpu = u64::from(cpu) + 1;
        if self.area.get(AT_CPU) != cpu {
            self.area.set(AT_CPU, cpu);
        }
    }
}

/// The engine's side: it looks.
#[derive(Debug)]
pub struct Doorbells {
    area: Words,
    /// Summary bits already taken from shared memory but not yet followed, when a visit ended
    /// early because its budget was used up.
    pending0: u64,
    pending1: [u64; LEVEL1_WORDS],
}

impl Doorbells {
    /// Initialises the area and takes the engine's side of it; `None` when it is too small.
    pub fn new(area: Words) -> Option<Self> {
        if area.len() < AREA_WORDS {
            return None;
        }
        area.at(AT_MAGIC).store(MAGIC, Ordering::Release);
        Some(Self { area, pending0: 0, pending1: [0; LEVEL1_WORDS] })
    }

    /// The producer index that the application last published for `record`.
    #[inline]
    pub fn producer(&self, record: RecordIndex) -> u32 {
        // The upper half is reserved; a hostile writer gains nothing by setting it.
        #[expect(clippy::cast_possible_truncation, reason = "the record is a 32-bit index")]
        let index = self.area.at(record.word()).load(Ordering::Acquire) as u32;
        index
    }

    /// True when something was rung: one load, no write.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.pending0 != 0 || self.area.at(AT_LEVEL0).load(Ordering::Relaxed) != 0
    }

    /// Takes the records rung since the last call, visiting at most `budget` level-2 words
    /// (64 records each). Returns true when more are left.
    pub fn take(&mut self, mut budget: usize, mut visit: impl FnMut(RecordIndex)) -> bool {
        self.pending0 |= take_word(self.area.at(AT_LEVEL0));
        while self.pending0 != 0 {
            let i = self.pending0.trailing_zeros() as usize;
            // A hostile application may set bits above the geometry: they name nothing.
            if i >= LEVEL1_WORDS {
                self.pending0 = 0;
                break;
            }
            self.pending1[i] |= take_word(self.area.at(AT_LEVEL1 + i));
            while self.pending1[i] != 0 {
                if budget == 0 {
                    return true;
                }
                budget -= 1;
                let j = self.pending1[i].trailing_zeros() as usize;
                self.pending1[i] &= self.pending1[i] - 1;
                let word = i * 64 + j;
                let mut bits = take_word(self.area.at(AT_LEVEL2 + word));
                while bits != 0 {
                    let bit = bits.trailing_zeros();
                    bits &= bits - 1;
                    #[expect(clippy::cast_possible_truncation, reason = "word < 2048")]
                    visit(RecordIndex(word as u32 * 64 + bit));
                }
            }
            self.pending0 &= self.pending0 - 1;
        }
        false
    }

    /// (E1) to (E3): asks to be woken. Returns false when a doorbell rang meanwhile; the engine
    /// must then not sleep.
    #[must_use = "when this is false a doorbell is pending"]
    pub fn prepare_sleep(&self) -> bool {
        self.area.at(AT_NEED_WAKEUP).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.is_rung()
    }

    /// The engine polls this area again: doorbells need no eventfd write.
    pub fn awake(&self) {
        self.area.at(AT_NEED_WAKEUP).store(0, Ordering::Relaxed);
    }

    /// CPU of the application's last thread to post or poll, when it told.
    pub fn client_cpu(&self) -> Option<u32> {
        self.area.get(AT_CPU).checked_sub(1).and_then(|cpu| u32::try_from(cpu).ok())
    }
}

fn take_word(word: &AtomicU64) -> u64 {
    if word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    word.swap(0, Ordering::AcqRel)
}
