//! Frames of further shards.
//!
//! The wire belongs to one shard. Another one has a [`ShardWire`]: what it sends goes through a
//! bounded queue to the owner's wire, which sends it with its next burst; what the owner receives
//! for the other shard's queue pairs goes the other way through an [`ShardRx`]. Buffers travel back
//! and forth, so nothing is allocated once traffic flows. A full queue towards the wire is
//! backpressure; a full queue towards a shard loses the frame, as any NIC's would.
//!
//! Waking: a sender whose train is alone in the queue after it was pushed writes the receiver's
//! eventfd; a receiver clears the eventfd before it empties the queue, and writes it again when it
//! leaves something. So a train that is not seen by the present emptying was pushed alone, or
//! behind one that was, or is left with the eventfd written.

use super::{LinkCounters, MAX_RESERVED, train_len};
use crossbeam_channel::{Receiver, Sender, bounded};
use rnic_core::ports::{ArenaId, Range, RxTrain, TxIpId, TxSlot, TxTrain, Wire, WireCaps};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A train and its bytes.
struct TrainBuf<T> {
    train: T,
    bytes: Vec<u8>,
}

/// Sends trains one way and gets their buffers back.
struct TrainSender<T> {
    trains: Sender<TrainBuf<T>>,
    empties: Receiver<Vec<u8>>,
    wake: Arc<OwnedFd>,
}

/// Takes trains and gives their buffers back.
struct TrainReceiver<T> {
    trains: Receiver<TrainBuf<T>>,
    empties: Sender<Vec<u8>>,
    wake: Arc<OwnedFd>,
}

/// A queue of so many trains, of which the buffers of `kept` stay for later ones: what a burst
/// needed more is given back.
fn queue<T>((capacity, kept): (usize, usize)) -> io::Result<(TrainSender<T>, TrainReceiver<T>)> {
    let (trains, taken) = bounded(capacity);
    let (returned, empties) = bounded(kept);
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let outbox = TrainSender { trains, empties, wake: Arc::clone(&wake) };
    Ok((outbox, TrainReceiver { trains: taken, empties: returned, wake }))
}

fn wake(eventfd: &OwnedFd) {
    // Fails only when the counter is full, and then the other side wakes anyhow.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

impl<T> TrainSender<T> {
    /// False when the queue is full, or the engine that takes them is gone.
    fn send(&self, train: T, bytes: &[u8]) -> bool {
        if self.trains.is_full() {
            return false;
        }
        let mut buffer = self.empties.try_recv().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        let sent = self.trains.try_send(TrainBuf { train, bytes: buffer }).is_ok();
        if self.trains.len() == 1 {
            wake(&self.wake);
        }
        sent
    }
}

impl<T> TrainReceiver<T> {
    /// Shows the trains that wait to `each`, until that refuses one, which is then lost.
    fn empty(&self, mut room: impl FnMut(usize) -> bool, mut each: impl FnMut(T, &[u8])) {
        if self.trains.is_empty() {
            return;
        }
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        let mut taken = 0;
        while room(taken)
            && let Ok(TrainBuf { train, bytes }) = self.trains.try_recv()
        {
            taken += 1;
            each(train, &bytes);
            // A full return queue only means that the buffer is freed.
            let _ = self.empties.try_send(bytes);
        }
        if !self.trains.is_empty() {
            wake(&self.wake);
        }
    }
}

/// The wire's capabilities as one word, for all shards.
#[derive(Default)]
struct SharedCaps(AtomicU64);

const SEGMENTS_SHIFT: u32 = 20;
const TRAIN_SHIFT: u32 = 32;
const OURS: u64 = 1 << 63;

impl SharedCaps {
    fn store(&self, caps: WireCaps) {
        let ours = if caps.tx_ip_id == TxIpId::Ours { OURS } else { 0 };
        let word = u64::from(caps.max_datagram & 0xf_ffff)
            | u64::from(caps.max_segments & 0xfff) << SEGMENTS_SHIFT
            | u64::from(caps.max_train & 0xff_ffff) << TRAIN_SHIFT
            | ours;
        self.0.store(word, Ordering::Relaxed);
    }

    fn load(&self) -> WireCaps {
        let word = self.0.load(Ordering::Relaxed);
        WireCaps {
            max_datagram: (word & 0xf_ffff) as u32,
            max_segments: (word >> SEGMENTS_SHIFT & 0xfff) as u32,
            max_train: (word >> TRAIN_SHIFT & 0xff_ffff) as u32,
            tx_ip_id: if word & OURS != 0 { TxIpId::Ours } else { TxIpId::SegmentIndex },
        }
    }
}

/// Makes wires for further shards, without the thread that owns the wire, which may be busy.
#[derive(Clone)]
pub struct Junction {
    caps: Arc<SharedCaps>,
}

/// A further shard as the wire's owner sees it.
pub struct Branch {
    /// Tells it from all others that there ever are.
    serial: u64,
    from_shard: TrainReceiver<TxTrain>,
    /// It has ended: what is in the queue is all that comes.
    ends: bool,
}

impl Junction {
    /// A wire for one more shard, and what the owner needs for it. The serial number is new.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn branch(&self, serial: u64) -> io::Result<(ShardWire, Branch, ShardRx)> {
        let (to_owner, from_shard) = queue(TRAINS)?;
        let (to_shard, from_owner) = queue(DATAGRAMS)?;
        let wire = ShardWire {
            caps: Arc::clone(&self.caps),
            to_owner,
            from_owner,
            tx: vec![0; ARENA],
            tx_used: 0,
            reserved: Vec::with_capacity(MAX_RESERVED),
            submitted: 0,
            rx: vec![0; ARENA],
            rx_used: 0,
        };
        let receiver = ShardRx { serial, to_shard, lost: AtomicU64::new(0) };
        Ok((wire, Branch { serial, from_shard, ends: false }, receiver))
    }
}

/// The owner's side: what the shards want sent.
#[derive(Default)]
pub(super) struct Shards {
    caps: Arc<SharedCaps>,
    branches: Vec<Branch>,
    /// The shard that is served first.
    turn: usize,
    /// Trains taken over, and those for which the wire had no room after all.
    sent: u64,
    lost: u64,
}

impl Shards {
    /// Where further shards are made, for a wire that can do `caps`.
    pub(super) fn junction(&self, caps: WireCaps) -> Junction {
        self.caps.store(caps);
        Junction { caps: Arc::clone(&self.caps) }
    }

    /// One more shard.
    pub(super) fn add(&mut self, branch: Branch) {
        self.branches.push(branch);
    }

    /// It has ended; what it still wanted to send leaves.
    pub(super) fn end(&mut self, serial: u64) {
        for branch in self.branches.iter_mut().filter(|branch| branch.serial == serial) {
            branch.ends = true;
        }
    }

    /// Readable while a shard has something to send.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.branches.iter().map(|branch| branch.from_shard.wake.as_fd())
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.branches.iter().any(|branch| !branch.from_shard.trains.is_empty())
    }

    pub(super) fn counters(&self) -> LinkCounters {
        if self.sent + self.lost == 0 {
            return Vec::new();
        }
        vec![("shard_tx_trains", self.sent), ("shard_tx_lost", self.lost)]
    }

    /// Reserves on `wire` what the shards have sent; it leaves with the next submit.
    pub(super) fn collect(&mut self, wire: &mut impl Wire) {
        if self.branches.is_empty() {
            return;
        }
        self.caps.store(wire.caps());
        self.turn = self.turn.wrapping_add(1);
        let count = self.branches.len();
        let (mut sent, mut lost) = (0, 0);
        for step in 0..count {
            let inbox = &self.branches[(self.turn.wrapping_add(step)) % count].from_shard;
            inbox.empty(
                |taken| taken < TRAINS_A_TURN,
                |train, bytes| match reserve(wire, &train, bytes) {
                    Some(()) => sent += 1,
                    None => lost += 1,
                },
            );
        }
        self.sent += sent;
        self.lost += lost;
        self.branches.retain(|branch| !branch.ends || !branch.from_shard.trains.is_empty());
    }
}

/// Copies a train's datagrams to where the wire wants them. They were made by another engine than
/// the one that receives what stays inside.
fn reserve(wire: &mut impl Wire, train: &TxTrain, bytes: &[u8]) -> Option<()> {
    let slot = wire.reserve(&TxTrain { to_self: false, ..*train })?;
    let arena = wire.tx(slot.arena);
    let mut at = slot.offset as usize;
    for datagram in bytes.chunks(train.segment_len.max(1) as usize) {
        arena.get_mut(at..at + datagram.len())?.copy_from_slice(datagram);
        at += slot.stride as usize;
    }
    Some(())
}

/// Where the owner puts frames for the other shard.
pub struct ShardRx {
    serial: u64,
    to_shard: TrainSender<RxTrain>,
    lost: AtomicU64,
}

impl ShardRx {
    /// Hands over one datagram of a received train. When the shard does not keep up it is lost.
    pub fn hand_over(&self, train: &RxTrain, datagram: &[u8]) {
        if !self.to_shard.send(*train, datagram) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The shard's serial number.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Datagrams lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The wire of a further shard. See the [module](self).
pub struct ShardWire {
    caps: Arc<SharedCaps>,
    to_owner: TrainSender<TxTrain>,
    from_owner: TrainReceiver<RxTrain>,
    tx: Vec<u8>,
    tx_used: usize,
    /// Trains with their bytes in `tx`, in order; the first `submitted` wait for the queue.
    reserved: Vec<(TxTrain, Range)>,
    submitted: usize,
    rx: Vec<u8>,
    rx_used: usize,
}

impl ShardWire {
    /// Readable while frames wait, for epoll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.from_owner.wake.as_fd()
    }

    /// Frames wait that the descriptor may not tell about.
    pub fn has_backlog(&self) -> bool {
        self.submitted > 0 || !self.from_owner.trains.is_empty()
    }
}

impl Wire for ShardWire {
    fn caps(&self) -> WireCaps {
        self.caps.load()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let Self { from_owner, rx, rx_used, .. } = self;
        let room = trains.capacity() - trains.len();
        let mut used = *rx_used;
        let free = (rx.len() - used) / LONGEST;
        from_owner.empty(
            |taken| taken < room.min(free),
            |train, bytes| {
                let Some(place) = rx.get_mut(used..used + bytes.len()) else { return };
                place.copy_from_slice(bytes);
                let len = bytes.len() as u32;
                let range = Range { offset: used as u32, len };
                trains.push(RxTrain { arena: ARENA_ID, range, segment_len: len, ..train });
                used += bytes.len();
            },
        );
        *rx_used = used;
    }

    fn rx(&self, _: ArenaId) -> &[u8] {
        &self.rx
    }

    fn release(&mut self) {
        self.rx_used = 0;
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let len = train_len(train)?;
        let end = self.tx_used.checked_add(len as usize)?;
        if self.submitted > 0 || end > self.tx.len() || self.reserved.len() == MAX_RESERVED {
            return None;
        }
        let offset = self.tx_used as u32;
        self.reserved.push((*train, Range { offset, len }));
        self.tx_used = end;
        Some(TxSlot { arena: ARENA_ID, offset, stride: train.segment_len, is_internal: false })
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        let found = self.reserved.iter().rposition(|(_, range)| range.offset == slot.offset);
        if let Some(first) = found.filter(|first| *first >= self.submitted) {
            self.reserved.truncate(first);
            self.tx_used = slot.offset as usize;
        }
    }

    fn tx(&mut self, _: ArenaId) -> &mut [u8] {
        &mut self.tx
    }

    fn submit(&mut self) {
        let mut sent = 0;
        for (train, range) in &self.reserved {
            let start = range.offset as usize;
            if !self.to_owner.send(*train, &self.tx[start..start + range.len as usize]) {
                break;
            }
            sent += 1;
        }
        self.reserved.drain(..sent);
        self.submitted = self.reserved.len();
        if self.submitted == 0 {
            self.tx_used = 0;
        }
    }
}

const ARENA_ID: ArenaId = ArenaId(0);
/// Bytes of a shard's arenas: a turn's worth.
const ARENA: usize = 2 << 20;
/// Longest train.
const LONGEST: usize = 64 * 1024;
/// Trains on their way to the wire, of up to 64 KiB, and buffers kept for them.
const TRAINS: (usize, usize) = (256, 64);
/// Datagrams on their way to a shard, and buffers kept for them.
const DATAGRAMS: (usize, usize) = (4096, 512);
/// Trains taken over from one shard between two submits.
const TRAINS_A_TURN: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::tests::exchange::{self, Seen, Shape};
    use super::super::{DeviceWire, tests};
    use super::*;
    use rnic_core::ports::RxIpId;
    use rnic_net::HopTable;

    #[test]
    fn capabilities_fit_a_word() {
        for tx_ip_id in [TxIpId::Ours, TxIpId::SegmentIndex] {
            let caps =
                WireCaps { max_datagram: 65_507, max_segments: 64, max_train: 65_536, tx_ip_id };
            let shared = SharedCaps::default();
            shared.store(caps);
            assert_eq!(shared.load(), caps);
        }
    }

    fn add_shard(owner: &mut DeviceWire) -> (ShardWire, ShardRx) {
        let (wire, branch, receiver) = owner.junction().branch(1).unwrap();
        owner.add_shard(branch);
        (wire, receiver)
    }

    fn turn(owner: &mut DeviceWire, receiver: &ShardRx) {
        let mut trains = Vec::with_capacity(64);
        owner.receive(&mut trains);
        for train in &trains {
            let start = train.range.offset as usize;
            let bytes = &owner.rx(train.arena)[start..start + train.range.len as usize];
            for (k, datagram) in bytes.chunks(train.segment_len as usize).enumerate() {
                let RxIpId::Seen(first) = train.ip_id else { panic!() };
                let ip_id = RxIpId::Seen(first + k as u16);
                receiver.hand_over(&RxTrain { ip_id, ..*train }, datagram);
            }
        }
        owner.release();
        owner.submit();
    }

    #[test]
    fn a_shard_reaches_itself_through_the_owner() {
        let mut owner = DeviceWire::new("loopback".into(), None, HopTable::default());
        let (mut shard, receiver) = add_shard(&mut owner);
        assert_eq!(shard.caps(), owner.caps());
        let path = tests::loopback_path();
        let mut seen = Seen::default();
        let shape = Shape { count: 15, len: 4136, last: 1000 };
        let mut number = 0;
        while number < 60_000 {
            while exchange::put(&mut shard, &path, 0, number, shape).is_some() {
                number += shape.count;
            }
            shard.submit();
            while owner.has_backlog() || shard.has_backlog() {
                turn(&mut owner, &receiver);
                exchange::take(&mut shard, &path.flow, &mut seen);
                shard.submit();
            }
        }
        assert!(seen.numbers.iter().copied().eq(0..number));
        assert_eq!(receiver.lost(), 0);
    }

    #[test]
    fn a_parcel_wakes_the_other_side() {
        let mut owner = DeviceWire::new("loopback".into(), None, HopTable::default());
        let (mut shard, receiver) = add_shard(&mut owner);
        let path = tests::loopback_path();
        let readable = |fd: BorrowedFd<'_>| {
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&none)).unwrap() == 1
        };
        let shape = Shape { count: 1, len: 64, last: 64 };
        for _ in 0..3 {
            assert!(!owner.fds().into_iter().any(readable) && !readable(shard.fd()));
            exchange::put(&mut shard, &path, 0, 0, shape).unwrap();
            exchange::put(&mut shard, &path, 0, 1, shape).unwrap();
            shard.submit();
            assert!(owner.fds().into_iter().any(readable) && owner.has_backlog());
            turn(&mut owner, &receiver);
            turn(&mut owner, &receiver);
            assert!(readable(shard.fd()) && shard.has_backlog());
            let mut seen = Seen::default();
            exchange::take(&mut shard, &path.flow, &mut seen);
            assert_eq!(seen.numbers, [0, 1]);
        }
    }

    #[test]
    fn a_shard_that_does_not_keep_up_loses_frames_and_is_not_waited_for() {
        let mut owner = DeviceWire::new("loopback".into(), None, HopTable::default());
        let (shard, receiver) = add_shard(&mut owner);
        let flow = tests::loopback_path().flow;
        let range = Range { offset: 0, len: 64 };
        let (arena, ip_id) = (ArenaId(0), RxIpId::Likely(0));
        let train = RxTrain { flow, arena, range, segment_len: 64, ip_id, is_internal: false };
        for _ in 0..DATAGRAMS.0 + 10 {
            receiver.hand_over(&train, &[0; 64]);
        }
        assert_eq!(receiver.lost(), 10);
        drop(shard);
        receiver.hand_over(&train, &[0; 64]);
        assert_eq!(receiver.lost(), 11);
    }

    #[test]
    fn what_a_shard_sent_before_its_end_leaves_and_then_it_is_forgotten() {
        let mut owner = DeviceWire::new("loopback".into(), None, HopTable::default());
        let (mut shard, receiver) = add_shard(&mut owner);
        let path = tests::loopback_path();
        let shape = Shape { count: 1, len: 64, last: 64 };
        exchange::put(&mut shard, &path, 0, 0, shape).unwrap();
        shard.submit();
        drop(shard);
        owner.end_shard(1);
        let before = owner.fds().len();
        turn(&mut owner, &receiver);
        assert_eq!(owner.fds().len(), before - 1);
        assert!(owner.counters().contains(&("shard_tx_trains", 1)));
    }
}
