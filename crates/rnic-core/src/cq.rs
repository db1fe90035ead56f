//! Completion queues: the only place that writes CQEs and fires completion events.

use crate::command::{ChannelId, ClientId, CommandError, Errno};
use crate::owned::Owned;
use rnic_abi::cq::{CqOverflow, CqProducer};
use rnic_abi::cqe::Cqe;
use rnic_abi::words::AtomicU64;
use std::collections::BTreeSet;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) client: ClientId,
    ring: CqProducer,
    pub(crate) capacity: u32,
    pub(crate) channel: Option<ChannelId>,
    /// Queues that complete here.
    pub(crate) users: u32,
    /// The queue pairs that they are of.
    qps: BTreeSet<u32>,
    /// Shared receive queues of XRC domains among them.
    srqs: BTreeSet<u32>,
    /// On the engine's list of CQs whose arming must be looked at.
    pub(crate) is_dirty: bool,
    /// Something written since the last look was solicited or in error.
    solicited: bool,
    /// It overflowed: nothing is written any more.
    pub(crate) broken: bool,
    /// Completions written when threads were woken last.
    woken_at: u64,
    pub(crate) completion_events: u64,
    pub(crate) async_events: u64,
}

impl Owned for Cq {
    fn owner(&self) -> Option<ClientId> {
        Some(self.client)
    }
}

/// Threads woken in one visit of a CQ.
const MOST_WOKEN: u32 = 16;

impl Cq {
    pub(crate) fn new(
        client: ClientId,
        ring: CqProducer,
        capacity: u32,
        channel: Option<ChannelId>,
    ) -> Self {
        Self {
            client,
            ring,
            capacity,
            channel,
            users: 0,
            qps: BTreeSet::new(),
            srqs: BTreeSet::new(),
            is_dirty: false,
            solicited: false,
            broken: false,
            woken_at: 0,
            completion_events: 0,
            async_events: 0,
        }
    }

    /// The queue pairs whose queues complete here.
    pub(crate) fn qps(&self) -> impl Iterator<Item = u32> {
        self.qps.iter().copied()
    }

    /// The shared receive queues of XRC that complete here.
    pub(crate) fn srqs(&self) -> impl Iterator<Item = u32> {
        self.srqs.iter().copied()
    }

    /// One of the queues of a queue pair completes here.
    pub(crate) fn add_qp(&mut self, qp: u32) {
        self.users += 1;
        self.qps.insert(qp);
    }

    /// One of the queues of a queue pair that is gone completed here.
    pub(crate) fn remove_qp(&mut self, qp: u32) {
        self.users -= 1;
        self.qps.remove(&qp);
    }

    /// The receives of a shared receive queue of XRC complete here.
    pub(crate) fn add_srq(&mut self, srq: u32) {
        self.users += 1;
        self.srqs.insert(srq);
    }

    /// They did, and it is gone.
    pub(crate) fn remove_srq(&mut self, srq: u32) {
        self.users -= 1;
        self.srqs.remove(&srq);
    }

    /// Writes a completion.
    #[inline]
    pub(crate) fn push(&mut self, cqe: &Cqe) -> Result<(), CqOverflow> {
        self.ring.push(cqe)?;
        // Rule: ErrorsAreSolicited
        self.solicited |= cqe.is_solicited();
        Ok(())
    }

    /// Moves to another ring. Nothing changes when that is refused.
    pub(crate) fn resize(&mut self, ring: CqProducer, capacity: u32) -> Result<(), CommandError> {
        // Rule: ResizeKeepsCompletions
        let Some(ring) = self.ring.resized(ring) else {
            return Err(CommandError {
                errno: Errno::Invalid,
                reason: "the completion queue has more completions than would fit",
            });
        };
        (self.ring, self.capacity) = (ring, capacity);
        // Threads that sleep have seen none of the completions that moved.
        self.woken_at = 0;
        Ok(())
    }

    /// After the fence: the channel that must be told, if the CQ was armed for what was written.
    pub(crate) fn fire(&mut self) -> Option<ChannelId> {
        self.is_dirty = false;
        // Rule: SolicitedArmWaits
        let solicited = std::mem::take(&mut self.solicited);
        let channel = self.channel?;
        // Rule: EventsNeedArming
        if !self.ring.take_arm(solicited) {
            return None;
        }
        self.completion_events += 1;
        Some(channel)
    }

    /// After the fence: the word on which threads sleep until there is a completion, if any do, and
    /// how many of them there is a completion for.
    #[inline]
    pub(crate) fn wake(&mut self) -> Option<(&AtomicU64, u32)> {
        let word = self.ring.take_sleepers()?;
        let written = self.ring.written();
        let fresh = written.wrapping_sub(std::mem::replace(&mut self.woken_at, written));
        // The program says how many threads sleep; a wrong number costs the engine nothing.
        Some((word, u32::try_from(fresh).unwrap_or(MOST_WOKEN).min(MOST_WOKEN)))
    }

    pub(crate) fn written(&self) -> u64 {
        self.ring.written()
    }

    pub(crate) fn polled(&self) -> u64 {
        self.ring.polled()
    }
}
