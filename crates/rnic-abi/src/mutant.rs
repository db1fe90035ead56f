//! Faults that the loom models put into this crate to prove that they would notice them.
//!
//! In every other build they are constant `false` and leave nothing behind.

/// An ordering or check taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for the loom models only"))]
pub enum Mutant {
    /// A ring sets the summary bits before the record's own.
    BitsTopDown,
    /// Doorbell bits order nothing.
    RelaxedBits,
    /// A ring leaves the summary bits alone when any bit of the word is set.
    SkipOnOthersBit,
    /// A ring reads `need_wakeup` without a fence.
    NoFenceRing,
    /// The engine looks for doorbells before it sleeps without a fence.
    NoFenceSleep,
    /// A producer index does not release its WQEs.
    RelaxedRecord,
    /// A CQE's number does not release the CQE.
    RelaxedSequenceStore,
    /// A CQE's number is read without acquiring the CQE.
    RelaxedSequenceLoad,
    /// A full completion queue is overwritten.
    CqNeverFull,
    /// Arming without a fence.
    NoFenceArm,
    /// A thread looks for completions before it sleeps without a fence.
    NoFencePrepare,
    /// The engine looks at arming and sleepers without a fence.
    NoFenceArmCheck,
    /// The engine marks a queue as flushed without a fence.
    NoFenceMark,
    /// The application looks at the flush mark without a fence.
    NoFenceMarkCheck,
    /// The index of a hand-over does not release its entries.
    RelaxedHandOver,
    /// A producer looks for a sleeping consumer without a fence.
    NoFencePublish,
    /// A consumer looks for entries before it sleeps without a fence.
    NoFenceHandOverSleep,
}

#[cfg(not(loom))]
impl Mutant {
    #[inline]
    pub(crate) const fn is_on(self) -> bool {
        false
    }
}

#[cfg(loom)]
impl Mutant {
    pub(crate) fn is_on(self) -> bool {
        ACTIVE.get() == Some(self)
    }

    /// Runs a model with this fault in place. Loom runs all threads of a model on this one.
    pub fn during<T>(self, model: impl FnOnce() -> T) -> T {
        ACTIVE.set(Some(self));
        let result = model();
        ACTIVE.set(None);
        result
    }
}

#[cfg(loom)]
std::thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}
