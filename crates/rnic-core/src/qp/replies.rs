//! What a responder owes its peer besides acknowledgements: READ responses and atomic results.
//!
//! Two lists of at most `max_dest_rd_atomic` (rounded up to a power of two) entries: the *queue*
//! of replies not fully sent, in ascending PSN, and the *remembered* requests that a duplicate may
//! ask for again. READ data is not kept: it is read from memory again.

use crate::planted::{Bug, Rule};
use roce_wire::{Opcode, Position, Psn};
use std::collections::VecDeque;

/// What is replied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyKind {
    /// Bytes of a memory region.
    Read { va: u64, rkey: u32, len: u32 },
    /// The original value of an atomic.
    Atomic { value: u64 },
}

/// A reply that is not fully sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
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

impl Reply {
    pub(crate) fn new(kind: ReplyKind, first: Psn, packets: u32, is_duplicate: bool) -> Self {
        Self { kind, first, packets, sent: 0, limit: packets, is_duplicate }
    }

    /// Opcode of its `k`-th packet.
    pub(crate) fn opcode(&self, k: u32) -> Opcode {
        match self.kind {
            ReplyKind::Read { .. } => {
                Opcode::rc_read_response(Position::new(k == 0, k + 1 == self.packets))
            }
            ReplyKind::Atomic { .. } => Opcode::RcAtomicAck,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    first: Psn,
    packets: u32,
    kind: ReplyKind,
}

/// Queue and memory.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    depth: usize,
    queue: VecDeque<Reply>,
    remembered: VecDeque<Remembered>,
}

impl Replies {
    /// Room for `max_dest_rd_atomic` requests; some requesters round their own limit up to a power
    /// of two, so that is tolerated.
    pub(crate) fn resize(&mut self, max_dest_rd_atomic: u8) {
        self.depth = match usize::from(max_dest_rd_atomic) {
            0 if Rule::NoDepthNoReplies.applies() => 0,
            n if Rule::DepthRoundedUp.applies() => n.next_power_of_two(),
            n => n,
        };
        self.queue.reserve_exact(self.depth.saturating_sub(self.queue.len()));
        self.remembered.reserve_exact(self.depth.saturating_sub(self.remembered.len()));
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.remembered.clear();
    }

    /// Room for a new request? A requester within its limit is done with enough of its earlier
    /// ones, so the answer to a duplicate, which only a stale packet asked for, gives way.
    pub(crate) fn make_room(&mut self) -> bool {
        if Rule::StaleGivesWay.applies()
            && self.queue.len() >= self.depth
            && let Some(stale) = self.queue.iter().position(|reply| reply.is_duplicate)
        {
            self.queue.remove(stale);
        }
        self.queue.len() < self.depth || !Rule::ReplyDepth.applies()
    }

    /// Replies not fully sent.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// A new request was executed: answer it, and remember it for duplicates.
    pub(crate) fn push_new(&mut self, kind: ReplyKind, first: Psn, packets: u32) {
        let kept = self.depth.saturating_sub(usize::from(Bug::ResultForgotten.is_planted()));
        let depth = if Rule::OldestForgotten.applies() { kept.max(1) } else { usize::MAX };
        while self.remembered.len() >= depth {
            self.remembered.pop_front();
        }
        self.remembered.push_back(Remembered { first, packets, kind });
        self.queue.push_back(Reply::new(kind, first, packets, false));
    }

    /// A duplicate READ: answered from memory if it lies within a remembered one.
    pub(crate) fn push_duplicate_read(
        &mut self,
        psn: Psn,
        (va, rkey, len): (u64, u32, u32),
        packets: u32,
    ) -> bool {
        let Some(original) = self.remembered.iter().find(|r| {
            let ReplyKind::Read { va: start, rkey: key, len: total } = r.kind else { return false };
            let skipped = psn.distance_from(r.first);
            let inside = va
                .checked_sub(start)
                .and_then(|offset| u64::from(total).checked_sub(offset))
                .is_some_and(|left| u64::from(len) <= left);
            let fits = u32::try_from(skipped)
                .is_ok_and(|skipped| skipped.saturating_add(packets) <= r.packets);
            let matches = fits && key == rkey && (inside || len == 0);
            matches || !Rule::DuplicateReadMatches.applies()
        }) else {
            return false;
        };
        let va = match original.kind {
            ReplyKind::Read { va: start, .. } if Bug::ReadRestartOffset.is_planted() => start,
            _ => va,
        };
        let len = match original.kind {
            ReplyKind::Read { len: total, .. } if Bug::RestartedReadLength.is_planted() => total,
            _ => len,
        };
        let psn = if Rule::DuplicateReadPsn.applies() { psn } else { original.first };
        self.restart(Reply::new(ReplyKind::Read { va, rkey, len }, psn, packets, true))
    }

    /// A duplicate atomic: the saved result is sent again, the operation is not repeated.
    pub(crate) fn push_duplicate_atomic(&mut self, psn: Psn) -> bool {
        let saved = self
            .remembered
            .iter()
            .filter(|r| matches!(r.kind, ReplyKind::Atomic { .. }))
            .find(|r| r.first == psn || !Rule::DuplicateAtomicMatches.applies());
        let Some(saved) = saved else { return false };
        self.restart(Reply::new(saved.kind, psn, 1, true))
    }

    /// The requester went back: replies from its PSN on will be asked for again. False when the
    /// queue is full all the same: only a peer that asks for pieces, and for more of them than it
    /// may have requests outstanding, comes to that.
    fn restart(&mut self, reply: Reply) -> bool {
        if Rule::DuplicateRestartsStream.applies() {
            self.truncate_from(reply.first);
        }
        let has_room = self.queue.len() < self.depth;
        if has_room {
            self.queue.push_back(reply);
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

    /// First PSN of the oldest remembered request after `psn`: an acknowledgement that reached it
    /// would tell the requester that its response was lost.
    pub(crate) fn first_after(&self, psn: Psn) -> Option<Psn> {
        self.remembered.iter().map(|r| r.first).find(|first| first.distance_from(psn) > 0)
    }

    /// The `nth` reply of the queue.
    pub(crate) fn get(&self, nth: usize) -> Option<&Reply> {
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

    /// Memory of the `nth` reply failed at its packet `k`: nothing is sent from there on. Returns
    /// the PSN of that packet and whether it answered a duplicate.
    pub(crate) fn fail(&mut self, nth: usize, k: u32) -> Option<(Psn, bool)> {
        let reply = self.queue.get_mut(nth)?;
        let failed = (reply.first.wrapping_add(k), reply.is_duplicate);
        reply.limit = k;
        let keep = if reply.sent >= reply.limit { nth } else { nth + 1 };
        self.queue.truncate(keep);
        Some(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Replies, ReplyKind};
    use roce_wire::Psn;

    const KEY: u32 = 7;

    fn with_read(first: Psn, packets: u32, len: u32) -> Replies {
        let mut replies = Replies::default();
        replies.resize(4);
        replies.push_new(ReplyKind::Read { va: 0, rkey: KEY, len }, first, packets);
        replies
    }

    #[test]
    fn a_duplicate_of_the_longest_read_takes_the_place_of_the_reply_under_way() {
        let (first, packets, len) = (Psn::new(0x00ff_fff0), 1 << 23, 1 << 31);
        let mut replies = with_read(first, packets, len);
        for _ in 0..3 {
            assert!(replies.push_duplicate_read(first, (0, KEY, len), packets));
            assert_eq!(replies.len(), 1);
        }
    }

    #[test]
    fn a_peer_that_asks_for_piece_after_piece_finds_the_queue_full() {
        let first = Psn::new(5);
        let mut replies = with_read(first, 100, 25_600);
        let mut ask = |k: u32| {
            let piece = (u64::from(k) * 256, KEY, 256);
            replies.push_duplicate_read(first.wrapping_add(k), piece, 1)
        };
        let accepted = (0..100).filter(|k| ask(*k)).count();
        assert_eq!(accepted, 4);
        assert_eq!(replies.len(), 4);
    }
}
