//! Everything outside the engine, in three traits.
//!
//! * [`Wire`]: bursts of received trains in, reserved trains out. One contiguous receive arena and
//!   one contiguous transmit arena per [`ArenaId`]; packets are ranges of them, so that many can
//!   be looked at and filled at once without copying or allocating.
//! * [`Dma`]: reads and writes the memory of applications, many ranges a call.
//! * [`Host`]: tells applications something (completion events, async events).
//!
//! A **train** is a run of datagrams of one flow, all of `segment_len` bytes except the last,
//! which may be shorter: what UDP GSO/GRO moves as one unit. A lone datagram is a train of one.
//! A **datagram** is the UDP payload, BTH to ICRC; L2 to L4 headers are the wire's own business.

use crate::ids::{ChannelId, ClientId};
pub use crate::ids::{HopId, SpaceId};
use rnic_abi::control::AsyncEvent;
use rnic_abi::words::AtomicU64;
use roce_wire::mad::MAD_LEN;
use roce_wire::{Flow, IpIdHint, Qpn};

/// One of the wire's arenas (a composite wire has several).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ArenaId(pub u8);

/// A run of bytes in an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Range {
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// What a wire can do. May change when the link changes (MTU).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireCaps {
    /// Longest datagram (UDP payload), bytes.
    pub max_datagram: u32,
    /// Most datagrams of one train; 1 when the wire has no trains.
    pub max_segments: u32,
    /// Most bytes of one train.
    pub max_train: u32,
    /// What decides the IPv4 identification, which the ICRC covers.
    pub tx_ip_id: TxIpId,
}

/// IPv4 identification of transmitted datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxIpId {
    /// The engine chooses `TxTrain::ip_id`; the wire writes `ip_id + k` into the k-th datagram.
    Ours,
    /// The kernel writes k into the k-th datagram of a train.
    SegmentIndex,
}

/// IPv4 identification of received datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxIpId {
    /// The header of the first datagram was seen. The k-th of a train likely has this plus k; where
    /// the receiving kernel joined what did not leave as a train, it may have any.
    Seen(u16),
    /// No header was seen. The k-th datagram likely has this plus k.
    Likely(u16),
}

impl RxIpId {
    /// The likely identification of the `k`-th datagram.
    #[must_use]
    pub fn likely(self, k: u16) -> u16 {
        let (Self::Seen(first) | Self::Likely(first)) = self;
        first.wrapping_add(k)
    }

    /// The identification of the `k`-th datagram, by itself.
    #[must_use]
    pub fn alone(self, k: u16) -> Self {
        if k == 0 { self } else { Self::Likely(self.likely(k)) }
    }

    /// What is known of the `k`-th datagram.
    #[must_use]
    pub fn hint(self, k: u16) -> IpIdHint {
        match self.alone(k) {
            Self::Seen(id) => IpIdHint::Known(id),
            Self::Likely(id) => IpIdHint::Predicted(id),
        }
    }
}

/// A received train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxTrain {
    /// Addresses, source port, TOS, DF as received (the peer is `src`). Where no header was seen DF
    /// is a guess, as the identification is.
    pub flow: Flow,
    /// Where.
    pub arena: ArenaId,
    /// Bytes of all its datagrams, back to back.
    pub range: Range,
    /// Bytes of each datagram but the last.
    pub segment_len: u32,
    /// Identification.
    pub ip_id: RxIpId,
    /// It was reserved by this engine, in a slot of the same kind: see [`TxSlot::is_internal`].
    pub is_internal: bool,
}

/// A train to be transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxTrain {
    /// Addresses, source port, TOS, hop limit (we are `src`).
    pub flow: Flow,
    /// Next hop.
    pub hop: HopId,
    /// Datagrams; at least 1, at most [`WireCaps::max_segments`].
    pub segments: u32,
    /// Bytes of each datagram but the last.
    pub segment_len: u32,
    /// Bytes of the last, at most `segment_len`.
    pub last_len: u32,
    /// IPv4 identification of the first, where [`TxIpId::Ours`].
    pub ip_id: u16,
    /// It is for a QP of this very engine.
    pub to_self: bool,
}

/// Memory reserved for a train: datagram k starts at `offset + k * stride` of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxSlot {
    /// Where.
    pub arena: ArenaId,
    /// First byte of the first datagram.
    pub offset: u32,
    /// Distance between datagrams, bytes.
    pub stride: u32,
    /// The train ([`TxTrain::to_self`]) never leaves the memory of this engine, which receives it
    /// as it filled it, and nothing else sees it: it needs no ICRC, and its payload may stay where
    /// it is ([`Dma::copies_from`]).
    pub is_internal: bool,
}

/// Frames in and out. One burst in and one burst out per engine turn.
pub trait Wire {
    /// What it can do now.
    fn caps(&self) -> WireCaps;

    /// Appends what has arrived to `trains`, without blocking, never beyond its capacity.
    /// The bytes stay valid until [`release`](Self::release).
    fn receive(&mut self, trains: &mut Vec<RxTrain>);

    /// The receive arena that the ranges of [`RxTrain`] are in.
    fn rx(&self, arena: ArenaId) -> &[u8];

    /// Gives back everything received.
    fn release(&mut self);

    /// Reserves room for a train in this turn's burst; `None` when the burst is full.
    /// Trains leave in the order they were reserved.
    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot>;

    /// Forgets the train at `slot` and everything reserved after it in this turn.
    fn cancel_from(&mut self, slot: &TxSlot);

    /// The transmit arena that [`TxSlot`]s are in.
    fn tx(&mut self, arena: ArenaId) -> &mut [u8];

    /// Sends everything reserved since the last call. What the link cannot take now is kept and
    /// goes first next time; `reserve` then says `None`.
    fn submit(&mut self);
}

/// A run of bytes in an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemRange {
    /// Virtual address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// The memory could not be accessed at some byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a fault must become a NAK or a completion status"]
pub struct DmaFault {
    /// Bytes transferred before the fault, counted over all ranges in order.
    pub done: u64,
}

/// Access to application memory.
///
/// Source and destination ranges describe the same number of bytes; they need not be cut alike.
/// The engine calls with at most [`MAX_DMA_RANGES`] ranges on either side.
pub trait Dma {
    /// Copies application memory into ranges of a transmit arena.
    ///
    /// # Errors
    /// [`DmaFault`] at the first byte that cannot be read.
    fn read(
        &mut self,
        space: SpaceId,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
    ) -> Result<(), DmaFault>;

    /// Copies ranges of a receive arena into application memory.
    ///
    /// The last 8 bytes of `to`'s last range become visible after all others: programs poll the
    /// last byte of a message. `tails` lists further places, as byte counts from the start of the
    /// transfer, where a message ends and the same holds.
    ///
    /// # Errors
    /// [`DmaFault`] at the first byte that cannot be written.
    fn write(
        &mut self,
        space: SpaceId,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault>;

    /// Whether [`copy`](Self::copy) can take these bytes: they exist and can be read now, and
    /// nothing but a call that changes the set of address spaces changes that.
    fn copies_from(&self, space: SpaceId, from: MemRange) -> bool {
        let _ = (space, from);
        false
    }

    /// Copies application memory, for which [`copies_from`](Self::copies_from) is true, to
    /// application memory; visible in the order of [`write`](Self::write).
    ///
    /// # Errors
    /// [`DmaFault`] at the first byte that cannot be written.
    fn copy(
        &mut self,
        source: SpaceId,
        from: &[MemRange],
        target: SpaceId,
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        let _ = (source, from, target, to, tails);
        Err(DmaFault { done: 0 })
    }

    /// Atomically replaces the aligned 8 bytes at `addr` by what `update` returns for their old
    /// value, which is returned. Atomic with respect to every other call of this method on the
    /// same memory, not to the application's CPU.
    ///
    /// # Errors
    /// [`DmaFault`] when the word cannot be read or written.
    fn atomic(
        &mut self,
        space: SpaceId,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault>;
}

/// Most ranges on either side of one [`Dma`] call.
pub const MAX_DMA_RANGES: usize = 128;

/// What the engine tells the outside about applications.
pub trait Host {
    /// An armed CQ fired: one completion event on its channel.
    fn completion_event(&mut self, client: ClientId, channel: ChannelId, cq: u32);

    /// Threads of a program sleep on this word of the program's shared memory: at most so many of
    /// them must be woken. A host whose programs never sleep has nothing to do.
    fn wake(&mut self, word: &AtomicU64, at_most: u32) {
        let _ = (word, at_most);
    }

    /// An async event for the context.
    fn async_event(&mut self, client: ClientId, event: AsyncEvent);

    /// A management datagram has arrived at QP1, from this queue pair of the sender. False when
    /// there is no room for it.
    fn management(&mut self, flow: &Flow, sender: Qpn, mad: &[u8; MAD_LEN]) -> bool {
        let _ = (flow, sender, mad);
        false
    }

    /// A received datagram belongs to a QP of another shard.
    fn hand_over(&mut self, shard: u8, train: &RxTrain, datagram: &[u8]) {
        let _ = (shard, train, datagram);
    }

    /// A received datagram is for a group, which may have members in other shards. True when a
    /// shard has been given a copy.
    fn hand_over_to_members(&mut self, train: &RxTrain, datagram: &[u8]) -> bool {
        let _ = (train, datagram);
        false
    }
}

/// The ports of one turn.
pub struct Ports<'a, W, D, H> {
    /// Frames.
    pub wire: &'a mut W,
    /// Application memory.
    pub dma: &'a mut D,
    /// Notifications.
    pub host: &'a mut H,
}
