//! Frames of further shards, which run in other processes.
//!
//! The wire belongs to one shard. Another one has a [`ShardWire`]: what it sends lies in memory
//! that both processes map, from where the owner's wire takes it with its next burst; what the
//! owner receives for the other shard's queue pairs goes the other way through a [`ShardRx`]. A
//! full ring towards the wire is backpressure; a full ring towards a shard loses the frame, as any
//! NIC's would.
//!
//! The owner believes nothing that a shard writes: it keeps its own places for itself, copies an
//! entry once and checks the copy, and copies bytes without a look at them. A shard that breaks its
//! ring is cut off, and its process is [told of](BranchStats) and ended. It can only read the file
//! that the owner writes, and cannot take pages away from its own. Nothing that it does to what
//! wakes a side that sleeps makes the owner wait: that writes to a socket of its own, and reads an
//! eventfd, both without waiting. A shard that wakes the owner again and again and has nothing to
//! send is cut off as well: each time the owner would take the CPU from those that it works for.
//!
//! The wire is shared by shards, which is by users: each that has something to send sends as many
//! bytes as any other, where a train of less than 8 KiB counts as that many. While the wire is
//! full, the owner and the shards have its room by turns, and trains wait in their rings. One for
//! which there is no room for long is lost: what is behind it may go another way.

mod entry;
mod memory;
mod owner;
mod shard_wire;

pub(in crate::wire) use owner::Shards;
pub use owner::{Branch, BranchStats, Misuse, ShardRx};
pub use shard_wire::ShardWire;

use super::MAX_DATAGRAM;
use entry::WORDS;
use memory::Shape;
use rnic_abi::hand_over::{Consumer, Producer};
use rnic_abi::os::EventFd;
use rnic_abi::words::WORD;
use rnic_core::ports::{ArenaId, TxIpId, WireCaps};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

// The wire's capabilities as one word.
const SEGMENTS_SHIFT: u32 = 20;
const TRAIN_SHIFT: u32 = 32;
const OURS: u64 = 1 << 63;

fn encode_caps(caps: WireCaps) -> u64 {
    let ours = if caps.tx_ip_id == TxIpId::Ours { OURS } else { 0 };
    u64::from(caps.max_datagram & 0xf_ffff)
        | u64::from(caps.max_segments & 0xfff) << SEGMENTS_SHIFT
        | u64::from(caps.max_train & 0xff_ffff) << TRAIN_SHIFT
        | ours
}

fn decode_caps(word: u64) -> WireCaps {
    WireCaps {
        max_datagram: (word & 0xf_ffff) as u32,
        max_segments: (word >> SEGMENTS_SHIFT & 0xfff) as u32,
        max_train: (word >> TRAIN_SHIFT & 0xff_ffff) as u32,
        tx_ip_id: if word & OURS != 0 { TxIpId::Ours } else { TxIpId::SegmentIndex },
    }
}

/// A socket by which the owner wakes a shard: the owner only sends, and takes nothing, so that no
/// descriptor can come that way either. Not an eventfd: writing to one can be made to wait by any
/// process that has it.
struct Waker(OwnedFd);

impl Waker {
    /// One end for the owner, and one for the shard.
    fn pair() -> io::Result<[Self; 2]> {
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        shutdown(&here, Shutdown::Read)?;
        Ok([here, there].map(Self))
    }

    fn wake(&self) {
        // A full socket wakes as well, and a closed one has no one to wake.
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes what woke the shard.
    fn drain(&self) {
        for _ in 0..WAKES_AT_ONCE {
            if !matches!(recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT), Ok((1.., _))) {
                return;
            }
        }
    }
}

/// What another process needs for a [`ShardWire`]: the owner's file, its own, the socket that wakes
/// it, and the eventfd by which it wakes the owner.
pub struct Attachment([OwnedFd; 4]);

impl Attachment {
    /// To be sent.
    pub fn fds(&self) -> [BorrowedFd<'_>; 4] {
        self.0.each_ref().map(AsFd::as_fd)
    }
}

impl From<[OwnedFd; 4]> for Attachment {
    /// As it was sent.
    fn from(fds: [OwnedFd; 4]) -> Self {
        Self(fds)
    }
}

/// All that belongs to a new further shard.
pub struct NewBranch {
    /// For its process.
    pub attachment: Attachment,
    /// For the owner of the wire.
    pub branch: Branch,
    /// For the owner's engine.
    pub receiver: ShardRx,
    /// For display.
    pub stats: Arc<BranchStats>,
}

/// Makes what a further shard needs, and its owner. The serial number is new; `alarm` is written
/// when the shard has to be ended.
///
/// # Errors
/// When there are too many open files, or no memory.
pub fn branch(serial: u64, alarm: Arc<EventFd>) -> io::Result<NewBranch> {
    let (to_read, ours) = memory::create_to_read("rnic-to-engine", DATAGRAMS)?;
    let (to_write, theirs) = memory::create("rnic-from-engine", TRAINS)?;
    let [waker, theirs_to_drain] = Waker::pair()?;
    let woken = EventFd::new()?;
    let theirs_to_write = woken.as_fd().try_clone_to_owned()?;
    let stats = Arc::new(BranchStats {
        alarm,
        cut_off: OnceLock::new(),
        tx_bytes: AtomicU64::new(0),
        tx_refused: AtomicU64::new(0),
        rx_lost: AtomicU64::new(0),
    });
    let impossible = || io::Error::from(io::ErrorKind::InvalidInput);
    let datagrams = Producer::new(ours.producer, theirs.consumer).ok_or_else(impossible)?;
    let trains = Consumer::new(ours.consumer, theirs.producer).ok_or_else(impossible)?;
    ours.caps.set(0, encode_caps(FIRST_CAPS));
    let branch = Branch {
        serial,
        caps: ours.caps,
        trains,
        bytes: theirs.bytes,
        woken,
        stats: Arc::clone(&stats),
        needless: 0,
        credit: 0,
        left: None,
        waits: false,
        stuck: None,
    };
    let receiver =
        ShardRx { serial, datagrams, bytes: ours.bytes, waker, stats: Arc::clone(&stats) };
    let attachment = Attachment([to_read, to_write, theirs_to_drain.0, theirs_to_write]);
    Ok(NewBranch { attachment, branch, receiver, stats })
}

const ARENA_ID: ArenaId = ArenaId(0);
/// Trains on their way to the wire. Slots are a little longer than the longest train: at a distance
/// of a power of two all would use the same lines of the CPU's caches.
const TRAINS: Shape =
    Shape { slots: 64, entry: WORDS, bytes: (64 * 1024 + 4096 + 64) / WORD * WORD };
/// Datagrams on their way to a shard.
const DATAGRAMS: Shape = Shape { slots: 1024, entry: WORDS, bytes: 4416 };
/// Until the owner has looked at its wire.
const FIRST_CAPS: WireCaps = WireCaps {
    max_datagram: MAX_DATAGRAM,
    max_segments: 1,
    max_train: MAX_DATAGRAM,
    tx_ip_id: TxIpId::SegmentIndex,
};
/// Bytes that one shard may send in one turn of the wire.
const QUANTUM: i64 = 128 * 1024;
/// What a train costs at least, however short it is: about as many bytes are copied and checked in
/// the time that its entry, its packets and their way back to a shard take.
const SMALLEST: i64 = 8192;
/// A shard wakes the owner for a train that it has published, so no more often than it publishes
/// some. Those are taken, but for the few that the ring holds: twice as many are never needless.
const MOST_NEEDLESS: u64 = 2 * TRAINS.slots as u64;
/// Wake-ups taken in one go; a ready socket stays ready.
const WAKES_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests;
