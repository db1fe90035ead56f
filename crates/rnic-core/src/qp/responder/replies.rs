//! What a responder owes its peer besides acknowledgements: READ responses and atomic results.
//!
//! Two lists of at most `max_dest_rd_atomic` (rounded up to a power of two) entries: the *queue*
//! of replies not fully sent, in ascending PSN, and the *remembered* requests that a duplicate may
//! ask for again. READ data is not kept: it is read from memory again.
//!
//! Everything here lies before the expected PSN, less than 2^24 of them: the distance from there
//! orders it, where comparing two PSNs, which only see half as far, would not.

use roce_wire::Psn;
use std::collections::VecDeque;

/// What is replied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyKind {
    /// Bytes of a memory region of this protection domain.
    Read { va: u64, rkey: u32, len: u32, pd: u32 },
    /// The original value of an atomic.
    Atomic { value: u64 },
    /// A FLUSH or ATOMIC_WRITE is done: a READ response without data.
    Done,
}

/// A reply that is not fully sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuedReply {
    pub(crate) kind: ReplyKind,
    /// PSN of its first packet.
    pub(crate) first: Psn,
    /// Packets it takes.
    pub(crate) packets: u32,
    /// Packets already sent.
    pub(crate) sent: u32,
    /// Only packets below this one will be sent: memory failed there.
    pub(crate) limit: u32,
    /// It answers a duplicate request.
    pub(crate) is_duplicate: bool,
}

impl QueuedReply {
    pub(crate) fn new(kind: ReplyKind, first: Psn, packets: u32, is_duplicate: bool) -> Self {
        Self { kind, first, packets, sent: 0, limit: packets, is_duplicate }
    }

    /// PSN of its next packet.
    fn next_psn(&self) -> Psn {
        self.first.wrapping_add(self.sent)
    }

    /// One past the PSN of the last packet that will be sent.
    fn end(&self) -> Psn {
        self.first.wrapping_add(self.limit)
    }
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    first: Psn,
    packets: u32,
    kind: ReplyKind,
}

/// PSNs behind the expected one after which a request may be forgotten. Far more than requesters
/// have outstanding, and a quarter of all PSNs.
pub(in crate::qp) const MEMORY: u32 = 1 << 22;

/// Queue and memory.
#[derive(Debug, Default)]
pub(crate) struct ReplyQueue {
    depth: usize,
    queue: VecDeque<QueuedReply>,
    remembered: VecDeque<Remembered>,
}

impl ReplyQueue {
    /// Room for `max_dest_rd_atomic` requests; some requesters round their own limit up to a power
    /// of two, so that is tolerated.
    pub(crate) fn resize(&mut self, max_dest_rd_atomic: u8) {
        self.depth = match usize::from(max_dest_rd_atomic) {
            // Rule: NoDepthNoReplies
            0 => 0,
            // Rule: DepthRoundedUp
            n => n.next_power_of_two(),
        };
        self.queue.reserve_exact(self.depth.saturating_sub(self.queue.len()));
        self.remembered.reserve_exact(self.depth.saturating_sub(self.remembered.len()));
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.remembered.clear();
    }

    /// Room for a new request? A requester within its limit is done with enough of its earlier
    /// ones, so the answer to a duplicate, which only a stale packet asked for, is dropped.
    pub(crate) fn make_room(&mut self) -> bool {
        // Rule: StaleMakesRoom
        if self.queue.len() >= self.depth
            && let Some(stale) = self.queue.iter().position(|reply| reply.is_duplicate)
        {
            self.queue.remove(stale);
        }
        // Rule: ReplyDepth
        self.queue.len() < self.depth
    }

    /// Replies that are not fully sent.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// A new request was executed: answer it, and remember it for duplicates.
    pub(crate) fn push_new(&mut self, kind: ReplyKind, first: Psn, packets: u32) {
        // Rule: OldestForgotten
        while self.remembered.len() >= self.depth.max(1) {
            self.remembered.pop_front();
        }
        self.remembered.push_back(Remembered { first, packets, kind });
        self.queue.push_back(QueuedReply::new(kind, first, packets, false));
    }

    /// A duplicate READ: answered from memory if it lies within a remembered one.
    pub(crate) fn push_duplicate_read(
        &mut self,
        psn: Psn,
        (va, rkey, len): (u64, u32, u32),
        packets: u32,
        epsn: Psn,
    ) -> bool {
        let matches = |r: &Remembered| {
            let ReplyKind::Read { va: start, rkey: key, len: total, pd } = r.kind else {
                return None;
            };
            let skipped = psn.distance_from(r.first);
            let inside = va
                .checked_sub(start)
                .and_then(|offset| u64::from(total).checked_sub(offset))
                .is_some_and(|left| u64::from(len) <= left);
            let fits = u32::try_from(skipped)
                .is_ok_and(|skipped| skipped.saturating_add(packets) <= r.packets);
            // Rule: DuplicateReadMatches
            (fits && key == rkey && (inside || len == 0)).then_some(pd)
        };
        let Some(pd) = self.remembered.iter().find_map(matches) else { return false };
        let kind = ReplyKind::Read { va, rkey, len, pd };
        // Rule: DuplicateReadPsn
        self.restart(QueuedReply::new(kind, psn, packets, true), epsn)
    }

    /// A duplicate atomic: the saved result is sent again, the operation is not repeated.
    pub(crate) fn push_duplicate_atomic(&mut self, psn: Psn, epsn: Psn) -> bool {
        let saved = self
            .remembered
            .iter()
            .filter(|r| matches!(r.kind, ReplyKind::Atomic { .. } | ReplyKind::Done))
            // Rule: DuplicateAtomicMatches
            .find(|r| r.first == psn);
        let Some(saved) = saved else { return false };
        self.restart(QueuedReply::new(saved.kind, psn, 1, true), epsn)
    }

    /// Queues the answer to a duplicate where its PSNs belong. What is owed for the same PSNs
    /// begins anew with it; what is owed beyond it stays, as the duplicate may be a late copy of
    /// something that the requester never missed. Where that does not all fit, what duplicates cut
    /// short goes: a requester that asks from there on has it. Returns false when the queue is
    /// still full, which only a peer that exceeds its max_rd_atomic can cause.
    fn restart(&mut self, reply: QueuedReply, epsn: Psn) -> bool {
        let behind = |psn: Psn| psn.steps_to(epsn);
        let (first, end) = (behind(reply.first), behind(reply.end()));
        // Rule: DuplicateKeepsAnswers
        for owed in &mut self.queue {
            // Rule: DuplicateRestartsStream
            let overlaps = behind(owed.end()) < first && behind(owed.end()) >= end;
            if overlaps {
                owed.limit = behind(owed.first).saturating_sub(first);
            }
        }
        self.queue.retain(|owed| owed.sent < owed.limit);
        // Rule: CutAnswersMakeRoom
        if self.queue.len() >= self.depth {
            self.queue.retain(|owed| owed.limit == owed.packets);
        }
        let has_room = self.queue.len() < self.depth;
        if has_room {
            let after = |owed: &QueuedReply| behind(owed.next_psn()) <= first;
            let at = self.queue.iter().position(after).unwrap_or(self.queue.len());
            self.queue.insert(at, reply);
        }
        has_room
    }

    /// Forgets replies that reach `psn` or beyond.
    pub(crate) fn truncate_from(&mut self, psn: Psn) {
        // The longest reply takes half of all PSNs: its end is no serial number to compare with.
        self.queue.retain(|r| {
            u32::try_from(psn.distance_from(r.first)).is_ok_and(|ahead| ahead >= r.packets)
        });
    }

    /// First PSN of the oldest remembered request after `psn`, a duplicate of what is before
    /// `epsn`: an acknowledgement that reached it would tell the requester that its response was
    /// lost.
    pub(crate) fn first_after(&self, psn: Psn, epsn: Psn) -> Option<Psn> {
        let behind = psn.steps_to(epsn);
        self.remembered.iter().map(|r| r.first).find(|first| first.steps_to(epsn) < behind)
    }

    /// Whether an answer that is still to be sent acknowledges `psn`, which is before `epsn`.
    pub(crate) fn will_acknowledge(&self, psn: Psn, epsn: Psn) -> bool {
        let behind = psn.steps_to(epsn);
        self.queue.back().is_some_and(|last| last.end().steps_to(epsn) < behind)
    }

    /// Forgets what is so far behind `epsn` that its PSNs will soon mean other requests.
    ///
    /// To be called each time that `epsn` has passed a multiple of [`MEMORY`]. What is remembered
    /// then ends less than two of these behind `epsn`, and at most the longest READ, half of all
    /// PSNs, is added to that before the next call: `steps_to` tells all of it apart.
    #[cold]
    pub(crate) fn forget_behind(&mut self, epsn: Psn) {
        self.remembered.retain(|r| {
            let end = r.first.wrapping_add(r.packets);
            // Rule: DistantForgotten
            end.steps_to(epsn) < MEMORY
        });
    }

    /// The `nth` reply of the queue.
    pub(crate) fn get(&self, nth: usize) -> Option<&QueuedReply> {
        self.queue.get(nth)
    }

    /// The oldest reply got one packet further.
    pub(crate) fn advance(&mut self) {
        let Some(front) = self.queue.front_mut() else { return };
        front.sent += 1;
        if front.sent >= front.limit {
            self.queue.pop_front();
        }
    }

    /// Memory of the `nth` reply failed at its packet `k`: nothing of it is sent from there on, and
    /// nothing behind it unless it answered a duplicate. Returns the PSN of that packet and whether
    /// it did.
    pub(crate) fn fail(&mut self, nth: usize, k: u32) -> Option<(Psn, bool)> {
        let reply = self.queue.get_mut(nth)?;
        let failed = (reply.first.wrapping_add(k), reply.is_duplicate);
        reply.limit = k;
        let ended = reply.sent >= reply.limit;
        if !reply.is_duplicate {
            self.queue.truncate(nth + 1);
        }
        if ended {
            self.queue.remove(nth);
        }
        Some(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::{MEMORY, QueuedReply, ReplyKind, ReplyQueue};
    use roce_wire::Psn;

    const KEY: u32 = 7;

    fn with_read(first: Psn, packets: u32, len: u32) -> ReplyQueue {
        let mut replies = ReplyQueue::default();
        replies.resize(4);
        replies.push_new(ReplyKind::Read { va: 0, rkey: KEY, len, pd: 0 }, first, packets);
        replies
    }

    #[test]
    fn a_duplicate_of_the_longest_read_takes_the_place_of_the_reply_under_way() {
        let (first, packets, len) = (Psn::new(0x00ff_fff0), 1 << 23, 1 << 31);
        let mut replies = with_read(first, packets, len);
        let epsn = first.wrapping_add(packets);
        for _ in 0..3 {
            assert!(replies.push_duplicate_read(first, (0, KEY, len), packets, epsn));
            assert_eq!(replies.len(), 1);
        }
    }

    #[test]
    fn a_peer_that_asks_for_piece_after_piece_finds_the_queue_full() {
        let first = Psn::new(5);
        let mut replies = with_read(first, 100, 25_600);
        let mut ask = |k: u32| {
            let piece = (u64::from(k) * 256, KEY, 256);
            replies.push_duplicate_read(first.wrapping_add(k), piece, 1, first.wrapping_add(100))
        };
        let accepted = (0..99).filter(|k| ask(*k)).count();
        assert_eq!(accepted, 3, "beside the whole, which is owed");
        assert!(ask(99), "in the place of the whole: the requester has the rest of it");
        assert_eq!(replies.len(), 4);
    }

    /// First PSNs, as offsets from `start`, and packets left of everything queued.
    fn queue(replies: &ReplyQueue, start: Psn) -> Vec<(u32, u32)> {
        let left = |r: &QueuedReply| (start.steps_to(r.next_psn()), r.limit - r.sent);
        (0..).map_while(|nth| replies.get(nth)).map(left).collect()
    }

    #[test]
    fn a_duplicate_takes_its_place_among_what_is_owed() {
        for start in [Psn::new(5), Psn::new(0x00ff_fffa), Psn::new(0x007f_fffa)] {
            let epsn = start.wrapping_add(30);
            let ask = |replies: &mut ReplyQueue, k: u32| {
                let request = (u64::from(k) * 256, KEY, (10 - k) * 256);
                assert!(replies.push_duplicate_read(start.wrapping_add(k), request, 10 - k, epsn));
            };
            let mut replies = with_read(start, 10, 2560);
            for k in [10, 20] {
                let kind = ReplyKind::Read { va: 0, rkey: KEY, len: 2560, pd: 0 };
                replies.push_new(kind, start.wrapping_add(k), 10);
            }
            for _ in 0..6 {
                replies.advance();
            }
            // Behind what is under way, and before it: its rest is asked for anew.
            ask(&mut replies, 8);
            assert_eq!(queue(&replies, start), [(6, 2), (8, 2), (10, 10), (20, 10)]);
            ask(&mut replies, 0);
            assert_eq!(queue(&replies, start), [(0, 10), (10, 10), (20, 10)]);
            for _ in 0..10 {
                replies.advance();
            }
            // A late copy of something that is answered.
            ask(&mut replies, 0);
            assert_eq!(queue(&replies, start), [(0, 10), (10, 10), (20, 10)]);
            // Its memory is gone: that is no reason to keep silent about the others.
            assert_eq!(replies.fail(0, 0), Some((start, true)));
            assert_eq!(queue(&replies, start), [(10, 10), (20, 10)]);
        }
    }

    /// However the expected PSN moves on, what is remembered stays told apart from what comes.
    #[test]
    fn what_is_far_behind_is_forgotten_before_its_psns_come_again() {
        let start = Psn::new(0x00c0_0005);
        for step in [1, 1000, MEMORY - 1, MEMORY, 1 << 23] {
            let mut replies = with_read(start, 1 << 23, 1 << 31);
            let mut epsn = start.wrapping_add(1 << 23);
            let mut moved: u64 = 0;
            while moved < 1 << 24 {
                let next = epsn.wrapping_add(step);
                if (epsn.value() ^ next.value()) / MEMORY != 0 {
                    replies.forget_behind(next);
                }
                epsn = next;
                moved += u64::from(step);
                let remembered = replies.first_after(start.wrapping_sub(1), epsn).is_some();
                assert!(!remembered || moved < 1 << 23, "{step}: {moved}");
                assert!(remembered || moved >= u64::from(MEMORY), "{step}: {moved}");
            }
        }
    }
}
