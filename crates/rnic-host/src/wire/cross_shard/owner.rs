//! The side of the shard that owns the wire.

use super::entry::{WORDS, decode_tx, encode_rx};
use super::memory::Area;
use super::{DATAGRAMS, MOST_NEEDLESS, QUANTUM, SMALLEST, TRAINS, Waker, encode_caps};
use crate::wire::LinkCounters;
use rnic_abi::hand_over::{Broken, Consumer, Producer};
use rnic_abi::os::EventFd;
use rnic_abi::words::Words;
use rnic_core::ports::{HopId, RxTrain, TxSlot, TxTrain, Wire, WireCaps};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What the owner counts of a further shard, for all to see.
pub struct BranchStats {
    /// Written when it is cut off.
    pub(super) alarm: Arc<EventFd>,
    pub(super) cut_off: OnceLock<Misuse>,
    pub(super) tx_bytes: AtomicU64,
    pub(super) tx_refused: AtomicU64,
    pub(super) rx_lost: AtomicU64,
}

/// What a shard did that no engine does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// Indexes that make no sense.
    Ring,
    /// Wake-ups without end and without trains.
    WakeUps,
}

impl BranchStats {
    /// Why the shard is cut off, if it is.
    pub fn cut_off(&self) -> Option<Misuse> {
        self.cut_off.get().copied()
    }

    /// Bytes of datagrams that it has sent.
    pub fn tx_bytes(&self) -> u64 {
        self.tx_bytes.load(Ordering::Relaxed)
    }

    /// Trains that were no trains of an engine, or had no source address of the device.
    pub fn tx_refused(&self) -> u64 {
        self.tx_refused.load(Ordering::Relaxed)
    }

    /// Datagrams for it that it did not take in time.
    pub fn rx_lost(&self) -> u64 {
        self.rx_lost.load(Ordering::Relaxed)
    }

    fn break_off(&self, misuse: Misuse) {
        if self.cut_off.set(misuse).is_ok() {
            let _ = self.alarm.wake();
        }
    }
}

/// A further shard as the wire's owner sees it.
pub struct Branch {
    /// Tells it from all others that there ever are.
    pub(super) serial: u64,
    pub(super) caps: Words,
    pub(super) trains: Consumer<WORDS>,
    pub(super) bytes: Area,
    /// The shard makes it readable when the owner sleeps.
    pub(super) woken: EventFd,
    pub(super) stats: Arc<BranchStats>,
    /// Times that it woke the owner, less the trains that it had for it, if there were fewer.
    pub(super) needless: u64,
    /// Bytes that it may send before others have their turn again; less than none after a train
    /// that was longer.
    pub(super) credit: i64,
    /// Once it has ended: at most so many trains of it are still in the ring.
    pub(super) left: Option<usize>,
    /// The wire had no room for what is next.
    pub(super) waits: bool,
    /// A way that the wire has taken nothing for, and since when.
    pub(super) stuck: Option<Stuck>,
}

/// See [`Branch`].
#[derive(Clone, Copy)]
pub(super) struct Stuck {
    stays_on_host: bool,
    since: Instant,
}

impl Branch {
    /// The wire has no room for a train. Whether it may wait in the ring: not for ever, as what is
    /// behind it may go another way.
    fn may_wait(&mut self, stays_on_host: bool) -> bool {
        let new = Stuck { stays_on_host, since: Instant::now() };
        let stuck = self.stuck.filter(|old| old.stays_on_host == stays_on_host).unwrap_or(new);
        self.stuck = Some(stuck);
        new.since.duration_since(stuck.since) < PATIENCE
    }

    /// A train leaves.
    fn has_sent(&mut self, stays_on_host: bool) {
        self.stuck.take_if(|stuck| stuck.stays_on_host == stays_on_host);
    }

    /// Something may still come from it.
    fn is_needed(&mut self) -> bool {
        self.left.is_none_or(|left| left > 0 && self.trains.any().unwrap_or(false))
    }
}

/// Where the owner puts frames for the other shard.
pub struct ShardRx {
    pub(super) serial: u64,
    pub(super) datagrams: Producer<WORDS>,
    pub(super) bytes: Area,
    pub(super) waker: Waker,
    pub(super) stats: Arc<BranchStats>,
}

/// The owner's side: what the shards want sent.
#[derive(Default)]
pub(in crate::wire) struct Shards {
    branches: Vec<Branch>,
    /// Own addresses: the only ones that shards may send from.
    addresses: Vec<IpAddr>,
    /// The shard that is served first.
    turn: usize,
    /// Trains taken over, and those for which the wire had no room for long.
    sent: u64,
    lost: u64,
    /// Turns of shards that ended because the wire had no more room.
    waited: u64,
    /// Shards cut off for their indexes, and for their wake-ups.
    cut_off: [u64; 2],
    /// A train on its way from shared memory to the wire.
    scratch: Vec<u8>,
}

impl Shards {
    /// One more shard.
    pub(in crate::wire) fn add(&mut self, branch: Branch) {
        self.branches.push(branch);
    }

    /// It has ended; what it still wanted to send leaves.
    pub(in crate::wire) fn end(&mut self, serial: u64) {
        for branch in self.branches.iter_mut().filter(|branch| branch.serial == serial) {
            branch.left = Some(TRAINS.slots);
        }
    }

    /// The device has these addresses.
    pub(in crate::wire) fn follow(&mut self, addresses: &[IpAddr]) {
        addresses.clone_into(&mut self.addresses);
    }

    /// Readable when a shard has something to send and this side sleeps.
    pub(in crate::wire) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.branches.iter().map(|branch| branch.woken.as_fd())
    }

    /// Says to the shards that this side is about to sleep. False when it must not.
    pub(in crate::wire) fn prepare_sleep(&mut self) -> bool {
        let mut may = true;
        for branch in &mut self.branches {
            match branch.trains.prepare_sleep() {
                // Only time tells when the wire has room again.
                Ok(nothing) => may &= branch.waits || nothing && branch.left.is_none(),
                Err(Broken) => branch.stats.break_off(Misuse::Ring),
            }
        }
        may
    }

    /// The wire has yet to take something.
    pub(in crate::wire) fn has_backlog(&self) -> bool {
        self.branches.iter().any(|branch| branch.waits)
    }

    /// It does not sleep any more.
    pub(in crate::wire) fn awake(&mut self) {
        for branch in &mut self.branches {
            branch.trains.awake();
            if branch.woken.drain().unwrap_or(false) {
                branch.needless += 1;
                if branch.needless > MOST_NEEDLESS {
                    branch.stats.break_off(Misuse::WakeUps);
                }
            }
        }
        self.forget_cut_off();
    }

    fn forget_cut_off(&mut self) {
        self.branches.retain(|branch| match branch.stats.cut_off() {
            None => true,
            Some(misuse) => {
                self.cut_off[usize::from(misuse == Misuse::WakeUps)] += 1;
                false
            }
        });
    }

    pub(in crate::wire) fn counters(&self) -> LinkCounters {
        let [ring, wake_ups] = self.cut_off;
        let all = [
            ("shard_tx_trains", self.sent),
            ("shard_tx_lost", self.lost),
            ("shard_tx_waited", self.waited),
            ("shard_cut_off_ring", ring),
            ("shard_cut_off_wake_ups", wake_ups),
        ];
        // None where no frame is handed over.
        if all.iter().all(|(_, count)| *count == 0) { Vec::new() } else { all.into() }
    }

    /// Reserves on `wire` what the shards have sent; it leaves with the next submit.
    pub(in crate::wire) fn collect(&mut self, wire: &mut impl Wire) {
        if self.branches.is_empty() {
            return;
        }
        let caps = wire.caps();
        let count = self.branches.len();
        // The one that had no more room goes on next time.
        let mut refused = None;
        for step in 0..count {
            let at = self.turn.wrapping_add(step) % count;
            let branch = &mut self.branches[at];
            let mut turn = Turn { wire, caps, own: &self.addresses, scratch: &mut self.scratch };
            match turn.serve(branch) {
                Ok((sent, lost)) => {
                    self.sent += sent;
                    self.lost += lost;
                    self.waited += u64::from(branch.waits);
                }
                Err(Broken) => branch.stats.break_off(Misuse::Ring),
            }
            if branch.waits {
                refused.get_or_insert(at);
            }
        }
        self.turn = refused.unwrap_or(self.turn.wrapping_add(1));
        self.forget_cut_off();
        self.branches.retain_mut(Branch::is_needed);
    }
}

/// One turn of the wire among the shards.
struct Turn<'a, W> {
    wire: &'a mut W,
    caps: WireCaps,
    own: &'a [IpAddr],
    scratch: &'a mut Vec<u8>,
}

impl<W: Wire> Turn<'_, W> {
    /// Takes what a shard may send in one turn, as far as the wire has room. Returns how many
    /// trains left, and how many were lost.
    fn serve(&mut self, branch: &mut Branch) -> Result<(u64, u64), Broken> {
        branch.caps.set(0, encode_caps(self.caps));
        let (mut sent, mut lost) = (0, 0);
        // A train that is longer than the credit leaves, and is paid for in later turns: so shares
        // are in bytes, whatever the lengths of trains.
        if !std::mem::take(&mut branch.waits) {
            branch.credit = branch.credit.saturating_add(QUANTUM).min(QUANTUM);
        }
        while branch.credit > 0 && branch.left != Some(0) {
            let Some((slot, entry)) = branch.trains.take()? else { break };
            let decoded = decode_tx(&entry, &self.caps, self.own, TRAINS.bytes);
            if let Ok((train, len)) = decoded {
                let stays_on_host = train.hop == HopId::LOCAL;
                if let Some(place) = self.wire.reserve(&train) {
                    self.scratch.resize(len, 0);
                    branch.bytes.copy_out(slot * TRAINS.bytes, self.scratch);
                    fill(self.wire, &place, self.scratch, &train);
                    branch.has_sent(stays_on_host);
                    sent += 1;
                    branch.stats.tx_bytes.fetch_add(len as u64, Ordering::Relaxed);
                } else if branch.may_wait(stays_on_host) {
                    branch.waits = branch.trains.put_back();
                    break;
                } else {
                    lost += 1;
                }
            } else {
                branch.stats.tx_refused.fetch_add(1, Ordering::Relaxed);
            }
            branch.needless = branch.needless.saturating_sub(1);
            branch.left = branch.left.map(|left| left - 1);
            // One that is refused costs something, too.
            branch.credit -= SMALLEST.max(decoded.map_or(0, |(_, len)| len as i64));
        }
        branch.trains.release();
        Ok((sent, lost))
    }
}

/// Copies a train's datagrams to where the wire wants them.
fn fill(wire: &mut impl Wire, place: &TxSlot, bytes: &[u8], train: &TxTrain) {
    let arena = wire.tx(place.arena);
    let mut at = place.offset as usize;
    for datagram in bytes.chunks(train.segment_len.max(1) as usize) {
        if let Some(to) = arena.get_mut(at..at + datagram.len()) {
            to.copy_from_slice(datagram);
        }
        at += place.stride as usize;
    }
}

impl ShardRx {
    /// Hands over one datagram of a received train. When the shard does not keep up it is lost. The
    /// shard sees it after a [`flush`](Self::flush).
    pub(crate) fn hand_over(&mut self, train: &RxTrain, datagram: &[u8]) {
        match self.datagrams.free_slot() {
            Ok(Some(slot)) if datagram.len() <= DATAGRAMS.bytes => {
                self.bytes.copy_in(slot * DATAGRAMS.bytes, datagram);
                self.datagrams.push(&encode_rx(train, datagram.len()));
            }
            Ok(_) => {
                self.stats.rx_lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(Broken) => self.stats.break_off(Misuse::Ring),
        }
    }

    /// Shows the shard what was handed over.
    pub(crate) fn flush(&mut self) {
        if self.datagrams.publish() {
            self.waker.wake();
        }
    }

    /// The shard's serial number.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Datagrams lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.stats.rx_lost()
    }
}

/// How long a train waits for a wire that takes nothing for its way.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
