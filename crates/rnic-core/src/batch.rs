//! Accepted payload on its way from the receive arena to application memory.
//!
//! Accepting a packet queues *pieces* (arena range to memory range) and, at the end of a message,
//! a *delivery* (its completion). All pieces are written with as few [`Dma::write`] calls as
//! possible; see [`delivery`](crate::delivery) for what follows.

use crate::by_reference::{AREAS, ARENA, Payload};
use crate::ports::{Dma, MAX_DMA_RANGES, MemRange, Range, SpaceId};
use rnic_abi::cqe::Cqe;
use roce_wire::grh::GRH_LEN;
use roce_wire::{Msn, Psn, Qpn};

/// What a piece is part of; decides how a fault is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PieceKind {
    /// SEND data for a receive WQE.
    Receive,
    /// RDMA WRITE data.
    Write,
    /// READ response data for a send WQE.
    ReadResponse,
}

/// One contiguous copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) slot: u32,
    pub(crate) qpn: Qpn,
    pub(crate) kind: PieceKind,
    /// PSN of the packet.
    pub(crate) psn: Psn,
    /// MSN before the packet.
    pub(crate) msn: Msn,
    pub(crate) space: SpaceId,
    /// Same length as `to`.
    pub(crate) from: Payload,
    pub(crate) to: MemRange,
    /// A message ends here: programs may poll its last byte.
    pub(crate) is_tail: bool,
}

/// A receive completion that waits for its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) slot: u32,
    /// Where it goes: each message of XRC may have another one.
    pub(crate) cq: u32,
    /// PSN of the packet that ends the message.
    pub(crate) psn: Psn,
    /// MSN before the packet.
    pub(crate) msn: Msn,
    /// Pieces queued before it.
    pub(crate) after: usize,
    pub(crate) cqe: Cqe,
}

/// Memory that could not be accessed while placing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) piece: Piece,
}

/// Pieces and deliveries of a burst.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) faults: Vec<Fault>,
    /// What stands in front of datagrams.
    areas: Vec<u8>,
    from: Vec<Range>,
    referred: Vec<MemRange>,
    to: Vec<MemRange>,
    tails: Vec<u64>,
}

/// The memories that a call copies from and to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ends {
    /// As that of the [payload](Payload).
    source: SpaceId,
    target: SpaceId,
}

impl Piece {
    fn ends(&self) -> Ends {
        Ends { source: self.from.source, target: self.space }
    }
}

/// A packet adds at most one piece per SGE.
const ROOM_FOR_ONE_PACKET: usize = rnic_abi::wqe::MAX_SGE + 1;
const CAPACITY: usize = MAX_DMA_RANGES + ROOM_FOR_ONE_PACKET;

impl Batch {
    pub(crate) fn new() -> Self {
        Self {
            pieces: Vec::with_capacity(CAPACITY),
            deliveries: Vec::with_capacity(CAPACITY),
            faults: Vec::new(),
            areas: Vec::with_capacity(CAPACITY * GRH_LEN),
            from: Vec::with_capacity(MAX_DMA_RANGES),
            referred: Vec::with_capacity(MAX_DMA_RANGES),
            to: Vec::with_capacity(MAX_DMA_RANGES),
            tails: Vec::with_capacity(MAX_DMA_RANGES),
        }
    }

    /// Stands in while a batch is being flushed; never used.
    pub(crate) fn detached() -> Self {
        Self {
            pieces: Vec::new(),
            deliveries: Vec::new(),
            faults: Vec::new(),
            areas: Vec::new(),
            from: Vec::new(),
            referred: Vec::new(),
            to: Vec::new(),
            tails: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.deliveries.is_empty()
    }

    /// The next packet might not fit.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.pieces.len() + ROOM_FOR_ONE_PACKET > CAPACITY || self.deliveries.len() + 1 >= CAPACITY
    }

    #[inline]
    pub(crate) fn place(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// Marks the last piece as the end of a message, if it belongs to this packet.
    #[inline]
    pub(crate) fn end_message(&mut self, slot: u32, psn: Psn) {
        if let Some(piece) = self.pieces.last_mut()
            && piece.slot == slot
            && piece.psn == psn
        {
            piece.is_tail = true;
        }
    }

    /// Queues the completion of the message that ends with packet `psn`; `msn` is the one before.
    #[inline]
    pub(crate) fn deliver(&mut self, slot: u32, cq: u32, (psn, msn): (Psn, Msn), cqe: Cqe) {
        self.deliveries.push(Delivery { slot, cq, psn, msn, after: self.pieces.len(), cqe });
    }

    /// Keeps the bytes in front of a datagram's payload until they are placed.
    pub(crate) fn add_area(&mut self, area: &[u8; GRH_LEN]) -> Payload {
        #[expect(clippy::cast_possible_truncation, reason = "a few kilobytes")]
        let range = Range { offset: self.areas.len() as u32, len: GRH_LEN as u32 };
        self.areas.extend_from_slice(area);
        Payload::own(range)
    }

    /// Number of pieces; with [`truncate`](Self::truncate) a packet that fails halfway is undone.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.pieces.truncate(len);
    }

    /// Everything was delivered.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.deliveries.clear();
        self.faults.clear();
        self.areas.clear();
    }

    fn is_faulted(&self, slot: u32) -> bool {
        !self.faults.is_empty() && self.faults.iter().any(|fault| fault.piece.slot == slot)
    }

    /// Collects the ranges of one call from piece `start` on; returns the piece it stops before.
    fn collect(&mut self, start: usize) -> usize {
        self.from.clear();
        self.referred.clear();
        self.to.clear();
        self.tails.clear();
        let mut bytes = 0;
        let mut ends = None;
        let mut end = start;
        for i in start..self.pieces.len() {
            let piece = self.pieces[i];
            end = i;
            if self.is_faulted(piece.slot) {
                // The call must stop here, so that byte counts name pieces without gaps.
                break;
            }
            let sources = self.from.len().max(self.referred.len());
            let fits = sources < MAX_DMA_RANGES && self.to.len() < MAX_DMA_RANGES;
            if ends.is_some_and(|ends| ends != piece.ends()) || !fits {
                break;
            }
            ends = Some(piece.ends());
            match piece.from.source {
                ARENA | AREAS => push_range(&mut self.from, piece.from.in_arena()),
                _ => push_mem_range(&mut self.referred, piece.from.in_memory()),
            }
            push_mem_range(&mut self.to, piece.to);
            bytes += u64::from(piece.to.len);
            if piece.is_tail {
                self.tails.push(bytes);
            }
            end = i + 1;
        }
        // The end of the last range is a tail by itself.
        self.tails.pop_if(|tail| *tail == bytes);
        end
    }

    pub(crate) fn write_all<D: Dma>(&mut self, dma: &mut D, arena: &[u8]) {
        let mut start = 0;
        while let Some(first) = self.pieces.get(start).copied() {
            if self.is_faulted(first.slot) {
                start += 1;
                continue;
            }
            let end = self.collect(start);
            let Ends { source, target } = first.ends();
            let written = match source {
                ARENA => dma.write(target, arena, &self.from, &self.to, &self.tails),
                AREAS => dma.write(target, &self.areas, &self.from, &self.to, &self.tails),
                source => dma.copy(source, &self.referred, target, &self.to, &self.tails),
            };
            match written {
                Ok(()) => start = end,
                Err(fault) => {
                    let at = self.piece_of_byte(start, end, fault.done);
                    if let Some(piece) = self.pieces.get(at).copied() {
                        self.faults.push(Fault { at, piece });
                    }
                    start = at + 1;
                }
            }
        }
    }

    fn piece_of_byte(&self, start: usize, end: usize, byte: u64) -> usize {
        let mut ahead = byte;
        for at in start..end {
            let len = u64::from(self.pieces[at].to.len);
            if ahead < len {
                return at;
            }
            ahead -= len;
        }
        end.saturating_sub(1).max(start)
    }
}

fn push_range(ranges: &mut Vec<Range>, range: Range) {
    if let Some(last) = ranges.last_mut()
        && last.offset + last.len == range.offset
    {
        last.len += range.len;
        return;
    }
    ranges.push(range);
}

fn push_mem_range(ranges: &mut Vec<MemRange>, range: MemRange) {
    if let Some(last) = ranges.last_mut()
        && last.addr.wrapping_add(u64::from(last.len)) == range.addr
    {
        last.len += range.len;
        return;
    }
    ranges.push(range);
}
