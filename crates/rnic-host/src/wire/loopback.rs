//! The internal wire: queue pairs of one device reach each other with real packets and no copy.
//!
//! Two buffers change roles: what was written for transmission is what is received next.

use super::{LinkCounters, train_len};
use rnic_core::ports::{ArenaId, Range, RxIpId, RxTrain, TxIpId, TxSlot, TxTrain};
use roce_wire::headers::Bth;

/// See the [module](self).
pub(super) struct Loopback {
    arena: ArenaId,
    tx_ip_id: TxIpId,
    /// Being filled.
    tx: Vec<u8>,
    tx_used: usize,
    sent: Vec<RxTrain>,
    /// How many of `sent` were submitted.
    submitted: usize,
    /// Being read; stays as it is until everything in it was handed out and looked at.
    rx: Vec<u8>,
    arrived: Vec<RxTrain>,
    /// How many of `arrived` were handed out.
    delivered: usize,
    trains: u64,
    /// A capture or a fault sees the trains: they are made as for another host.
    open: bool,
}

impl Loopback {
    /// An empty one.
    pub(super) fn new(arena: ArenaId, tx_ip_id: TxIpId) -> Self {
        Self {
            arena,
            tx_ip_id,
            tx: vec![0; BUFFER],
            tx_used: 0,
            sent: Vec::with_capacity(MAX_TRAINS),
            submitted: 0,
            rx: vec![0; BUFFER],
            arrived: Vec::with_capacity(MAX_TRAINS),
            delivered: 0,
            trains: 0,
            open: false,
        }
    }

    /// Whether captures or faults see the trains from now on.
    pub(super) fn set_open(&mut self, open: bool) {
        self.open = open;
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.submitted > 0 || self.delivered < self.arrived.len()
    }

    pub(super) fn counters(&self) -> LinkCounters {
        vec![("loopback_trains", self.trains)]
    }

    pub(super) fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        // Between submit and receive nothing is half reserved, so whole buffers can be swapped.
        if self.delivered == self.arrived.len() && self.submitted == self.sent.len() {
            std::mem::swap(&mut self.tx, &mut self.rx);
            std::mem::swap(&mut self.sent, &mut self.arrived);
            self.sent.clear();
            self.tx_used = 0;
            self.submitted = 0;
            self.delivered = 0;
        }
        let room = trains.capacity() - trains.len();
        let left = &self.arrived[self.delivered..];
        let count = left.len().min(room);
        trains.extend_from_slice(&left[..count]);
        self.delivered += count;
    }

    pub(super) fn rx(&self) -> &[u8] {
        &self.rx
    }

    /// Ends the validity of what was received. What was just read is still in the processor's
    /// cache: where the other buffer is empty too, it is the better one to be filled next.
    pub(super) fn release(&mut self) {
        if self.delivered == self.arrived.len() && self.sent.is_empty() {
            std::mem::swap(&mut self.tx, &mut self.rx);
        }
    }

    pub(super) fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let len = train_len(train)?;
        let start = self.tx_used.checked_next_multiple_of(ALIGN)?.checked_add(ALIGN - Bth::LEN)?;
        let end = start.checked_add(len as usize)?;
        let room = if train.to_self { STILL_CACHED } else { self.tx.len() };
        if end > room || self.sent.len() == MAX_TRAINS {
            return None;
        }
        let offset = u32::try_from(start).ok()?;
        let ip_id = match self.tx_ip_id {
            TxIpId::Ours => train.ip_id,
            TxIpId::SegmentIndex => 0,
        };
        let is_internal = train.to_self && !self.open;
        self.sent.push(RxTrain {
            flow: train.flow,
            arena: self.arena,
            range: Range { offset, len },
            segment_len: if train.segments == 1 { train.last_len } else { train.segment_len },
            ip_id: RxIpId::Seen(ip_id),
            is_internal,
        });
        self.tx_used = end;
        Some(TxSlot { arena: self.arena, offset, stride: train.segment_len, is_internal })
    }

    /// Forgets the last reservation of this turn.
    pub(super) fn cancel_last(&mut self) {
        if self.sent.len() > self.submitted
            && let Some(train) = self.sent.pop()
        {
            self.tx_used = train.range.offset as usize;
        }
    }

    pub(super) fn tx(&mut self) -> &mut [u8] {
        &mut self.tx
    }

    pub(super) fn submit(&mut self) {
        self.trains += (self.sent.len() - self.submitted) as u64;
        self.submitted = self.sent.len();
    }
}

/// Bytes that can be on their way in one turn: more than a few further shards send in one.
const BUFFER: usize = 2 << 20;
/// Bytes of the engine's own in one turn: they are read soon after they were written.
const STILL_CACHED: usize = 256 << 10;
const MAX_TRAINS: usize = 1024;
/// Payload behind a BTH, or behind a BTH and a RETH, begins at a multiple, in every packet of a
/// train: a BTH and an ICRC together are as long as this, and so is a RETH. Copies between aligned
/// places are faster, and some processors take many times longer for one whose target is a few
/// bytes behind its source modulo a page.
const ALIGN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::ports::HopId;
    use roce_wire::Flow;

    fn train(segments: u32, segment_len: u32, last_len: u32) -> TxTrain {
        let address = "10.0.0.1".parse().unwrap();
        let flow = Flow::new(address, address, 0xc001);
        TxTrain { flow, hop: HopId(0), segments, segment_len, last_len, ip_id: 9, to_self: false }
    }

    fn send(wire: &mut Loopback, train: &TxTrain, fill: u8) {
        let slot = wire.reserve(train).unwrap();
        let len = (train.segments - 1) * train.segment_len + train.last_len;
        let at = slot.offset as usize;
        wire.tx()[at..at + len as usize].fill(fill);
    }

    #[test]
    fn trains_arrive_in_order_with_their_bytes() {
        let mut wire = Loopback::new(ArenaId(0), TxIpId::Ours);
        send(&mut wire, &train(3, 100, 50), 1);
        send(&mut wire, &train(1, 20, 20), 2);
        assert!(!wire.has_backlog());
        wire.submit();
        assert!(wire.has_backlog());
        let mut trains = Vec::with_capacity(8);
        wire.receive(&mut trains);
        let shape: Vec<_> = trains.iter().map(|t| (t.range.len, t.segment_len)).collect();
        assert_eq!(shape, [(250, 100), (20, 20)]);
        assert_eq!(trains[0].ip_id, RxIpId::Seen(9));
        for (train, fill) in trains.iter().zip([1, 2]) {
            let Range { offset, len } = train.range;
            let bytes = &wire.rx()[offset as usize..(offset + len) as usize];
            assert!(bytes.iter().all(|b| *b == fill));
        }
        assert!(!wire.has_backlog());
    }

    #[test]
    fn what_was_received_stays_while_more_is_sent() {
        let mut wire = Loopback::new(ArenaId(0), TxIpId::SegmentIndex);
        for fill in 1..=3 {
            send(&mut wire, &train(1, 40, 40), fill);
        }
        wire.submit();
        let mut trains = Vec::with_capacity(2);
        wire.receive(&mut trains);
        assert_eq!(trains.len(), 2);
        send(&mut wire, &train(1, 40, 40), 4);
        assert_eq!(wire.rx()[trains[0].range.offset as usize], 1);
        wire.submit();
        let mut seen = Vec::new();
        for _ in 0..2 {
            trains.clear();
            wire.receive(&mut trains);
            seen.extend(trains.iter().map(|t| wire.rx()[t.range.offset as usize]));
        }
        assert_eq!(seen, [3, 4]);
    }

    #[test]
    fn what_was_released_is_filled_again() {
        let mut wire = Loopback::new(ArenaId(0), TxIpId::Ours);
        let mut trains = Vec::with_capacity(1);
        let mut received = |wire: &mut Loopback| {
            trains.clear();
            wire.receive(&mut trains);
            (wire.rx().as_ptr(), wire.rx()[trains[0].range.offset as usize])
        };
        send(&mut wire, &train(1, 40, 40), 1);
        wire.submit();
        let (first, fill) = received(&mut wire);
        assert_eq!(fill, 1);
        wire.release();
        send(&mut wire, &train(1, 40, 40), 2);
        send(&mut wire, &train(1, 40, 40), 3);
        wire.submit();
        assert_eq!(received(&mut wire), (first, 2));
        // One still waits to be handed out.
        wire.release();
        send(&mut wire, &train(1, 40, 40), 4);
        wire.submit();
        assert_eq!(received(&mut wire), (first, 3));
        // One is on its way.
        wire.release();
        let (other, fill) = received(&mut wire);
        assert_eq!((other == first, fill), (false, 4));
    }

    #[test]
    fn a_cancelled_train_does_not_arrive() {
        let mut wire = Loopback::new(ArenaId(0), TxIpId::Ours);
        send(&mut wire, &train(1, 40, 40), 1);
        send(&mut wire, &train(1, 40, 40), 2);
        wire.cancel_last();
        send(&mut wire, &train(1, 50, 50), 3);
        wire.submit();
        wire.cancel_last();
        let mut trains = Vec::with_capacity(4);
        wire.receive(&mut trains);
        let seen: Vec<_> = trains.iter().map(|t| wire.rx()[t.range.offset as usize]).collect();
        assert_eq!(seen, [1, 3]);
    }

    #[test]
    fn only_trains_that_nobody_else_sees_stay_inside() {
        let mut wire = Loopback::new(ArenaId(0), TxIpId::Ours);
        let to_self = TxTrain { to_self: true, ..train(1, 40, 40) };
        let mut slots = vec![wire.reserve(&to_self), wire.reserve(&train(1, 40, 40))];
        wire.set_open(true);
        slots.push(wire.reserve(&to_self));
        let internal: Vec<_> = slots.into_iter().map(|slot| slot.unwrap().is_internal).collect();
        assert_eq!(internal, [true, false, false]);
        wire.submit();
        let mut trains = Vec::with_capacity(4);
        wire.receive(&mut trains);
        assert!(trains.iter().map(|train| train.is_internal).eq(internal));
    }

    #[test]
    fn payloads_of_requests_are_aligned() {
        let mut wire = Loopback::new(ArenaId(0), TxIpId::Ours);
        let datagram = 4096 + 16;
        for train in [train(3, datagram, datagram), train(1, 21, 21), train(2, datagram, 40)] {
            let slot = wire.reserve(&train).unwrap();
            for k in 0..train.segments {
                let payload = slot.offset as usize + (k * slot.stride) as usize + Bth::LEN;
                assert_eq!(wire.tx()[payload..].as_ptr().addr() % ALIGN, 0);
            }
        }
    }

    #[test]
    fn a_full_buffer_refuses() {
        let mut wire = Loopback::new(ArenaId(0), TxIpId::Ours);
        let mut count = 0;
        while wire.reserve(&train(16, 4096, 4096)).is_some() {
            count += 1;
        }
        assert_eq!(count, BUFFER / (65536 + ALIGN));
        let mut wire = Loopback::new(ArenaId(0), TxIpId::Ours);
        let own = TxTrain { to_self: true, ..train(15, 4136, 4136) };
        while wire.reserve(&own).is_some() {}
        // Each begins behind a gap, and ends so far before a multiple.
        let gap = ALIGN - Bth::LEN;
        let stride = (gap + 15 * 4136).next_multiple_of(ALIGN);
        let short = stride - gap - 15 * 4136;
        assert_eq!(wire.tx_used, STILL_CACHED / stride * stride - short);
        assert!(wire.reserve(&train(16, 4096, 4096)).is_some(), "other shards are not held back");
        assert!(wire.reserve(&train(0, 10, 10)).is_none());
        assert!(wire.reserve(&train(u32::MAX, u32::MAX, 1)).is_none());
    }
}
