//! Gathering: payloads of planned packets from application memory into the transmit arena, with as
//! few [`Dma::read`] calls as possible.

use crate::by_reference::{self, REFER_FROM};
use crate::event::{NakReason, Tap};
use crate::mr::{KeyFault, Through};
use crate::ports::{ArenaId, Dma, MAX_DMA_RANGES, MemRange, Range, SpaceId, Wire};
use crate::qp::Qp;
use crate::qp::plan::{Segment, Source};
use crate::qp::responder::replies::ReplyKind;
use crate::shared::Ctx;
use rnic_abi::verbs::AccessFlags;
use rnic_abi::wqe::Sge;
use roce_wire::datagram::{ICRC_LEN, pad_for};

/// Copies for one [`Dma::read`] call.
#[derive(Debug)]
pub(super) struct Gather {
    space: SpaceId,
    arena: ArenaId,
    from: Vec<MemRange>,
    to: Vec<Range>,
    /// Segment and bytes up to its end.
    ends: Vec<(usize, u64)>,
    bytes: u64,
}

/// The payload of a planned segment could not be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreadable {
    pub(super) segment: usize,
    pub(super) reason: NakReason,
}

/// Where the payload of a segment goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) arena: ArenaId,
    pub(super) to: Range,
    /// It may take a note of where the payload is instead: its train is
    /// [internal](crate::ports::TxSlot), and the payload stays as it is until it is placed.
    pub(super) may_refer: bool,
}

impl Place {
    /// Splits off the place of the first `len` bytes.
    #[inline]
    fn take(&mut self, len: u32) -> Self {
        let first = Self { to: Range { len, ..self.to }, ..*self };
        self.to = Range { offset: self.to.offset + len, len: self.to.len - len };
        first
    }
}

/// Application memory that may be read.
#[derive(Clone, Copy, Debug)]
struct Memory {
    space: SpaceId,
    range: MemRange,
}

impl Gather {
    pub(super) fn new() -> Self {
        Self {
            space: SpaceId(0),
            arena: ArenaId::default(),
            from: Vec::with_capacity(MAX_DMA_RANGES),
            to: Vec::with_capacity(MAX_DMA_RANGES),
            ends: Vec::with_capacity(MAX_DMA_RANGES),
            bytes: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.from.clear();
        self.to.clear();
        self.ends.clear();
        self.bytes = 0;
    }

    /// Adds the payload of one planned segment, which has this number in the plan.
    pub(super) fn add_segment<W: Wire, D: Dma, T: Tap>(
        &mut self,
        ctx: &Ctx<'_, T>,
        qp: &Qp,
        wire: &mut W,
        dma: &mut D,
        (number, segment, mut place): (usize, Segment, Place),
    ) -> Result<(), Unreadable> {
        let unreadable = |fault| Unreadable { segment: number, reason: NakReason::Key(fault) };
        match segment.source {
            Source::Request { index, offset } => {
                let is_carried = qp.sq.wr(index).control.data_len > 0;
                for part in qp.sq.parts(index, offset, segment.len) {
                    let from = readable(ctx, qp, part).map_err(unreadable)?;
                    let to = place.take(part.length);
                    // A carried copy travels, but its key must be as good as any other.
                    if !is_carried {
                        self.add(wire, dma, (number, &segment), from, to)?;
                    }
                }
                Ok(())
            }
            Source::QueuedReply { nth, k } => {
                let Some((part, pd)) = response_part(qp, nth, k, segment.len) else {
                    return Ok(());
                };
                let (from, is_window) =
                    answerable(ctx, qp.through_domain(pd), part).map_err(unreadable)?;
                // Nothing is read through a window whose program has taken it away.
                // Rule: WindowedAnswerCopied
                let may_refer = place.may_refer && !is_window;
                self.add(wire, dma, (number, &segment), from, Place { may_refer, ..place })
            }
            Source::Ack => Ok(()),
        }
    }

    /// Adds memory of a segment: by reference where that is possible, otherwise to the running
    /// call.
    #[inline]
    fn add<W: Wire, D: Dma>(
        &mut self,
        wire: &mut W,
        dma: &mut D,
        (number, segment): (usize, &Segment),
        from: Memory,
        to: Place,
    ) -> Result<(), Unreadable> {
        let is_whole = from.range.len == segment.len;
        if is_whole && refer(wire, dma, from, to) {
            return Ok(());
        }
        self.add_copy(wire, dma, number, from, to)
    }

    /// Adds a copy to the running call; executes that first when the copy does not fit it. It runs
    /// for each packet: a call of its own costs 30 instructions.
    #[inline(always)]
    fn add_copy<W: Wire, D: Dma>(
        &mut self,
        wire: &mut W,
        dma: &mut D,
        number: usize,
        Memory { space, range: from }: Memory,
        Place { arena, to, .. }: Place,
    ) -> Result<(), Unreadable> {
        let full = self.from.len() == MAX_DMA_RANGES || self.to.len() == MAX_DMA_RANGES;
        if self.bytes > 0 && (full || self.space != space || self.arena != arena) {
            self.execute(wire, dma)?;
        }
        self.space = space;
        self.arena = arena;
        match self.from.last_mut() {
            Some(last)
                if last.addr.wrapping_add(last.len.into()) == from.addr
                    && last.len <= u32::MAX - from.len =>
            {
                last.len += from.len;
            }
            _ => self.from.push(from),
        }
        match self.to.last_mut() {
            Some(last) if last.offset + last.len == to.offset => last.len += to.len,
            _ => self.to.push(to),
        }
        self.bytes += u64::from(from.len);
        self.ends.push((number, self.bytes));
        Ok(())
    }

    pub(super) fn execute<W: Wire, D: Dma>(
        &mut self,
        wire: &mut W,
        dma: &mut D,
    ) -> Result<(), Unreadable> {
        if self.bytes == 0 {
            return Ok(());
        }
        let arena = wire.tx(self.arena);
        let read = dma.read(self.space, &self.from, arena, &self.to);
        let result = read.map_err(|fault| {
            let hit = self.ends.iter().find(|(_, end)| *end > fault.done);
            let segment = hit.or(self.ends.last()).map_or(0, |(segment, _)| *segment);
            Unreadable { segment, reason: NakReason::RemoteMemory }
        });
        self.clear();
        result
    }
}

/// The memory that a part of a request names, where its key allows that.
#[inline]
fn readable<T: Tap>(ctx: &Ctx<'_, T>, qp: &Qp, part: Sge) -> Result<Memory, KeyFault> {
    let Sge { lkey: key, addr, length: len } = part;
    let target = ctx.shared.mrs.check(key, qp.pd, addr, len.into(), AccessFlags::empty())?;
    Ok(Memory { space: target.space, range: MemRange { addr: target.addr, len } })
}

/// The memory that a READ of the peer names, where its key allows that, and whether that is the
/// key of a window.
#[inline]
fn answerable<T: Tap>(
    ctx: &Ctx<'_, T>,
    through: Through,
    part: Sge,
) -> Result<(Memory, bool), KeyFault> {
    let Sge { lkey: key, addr, length: len } = part;
    let need = AccessFlags::REMOTE_READ;
    // Rule: ReadNeedsRight
    let target = ctx.shared.mrs.check_remote(key, through, addr, len.into(), need)?;
    let memory = Memory { space: target.space, range: MemRange { addr: target.addr, len } };
    Ok((memory, target.is_window))
}

/// What the `k`-th packet of the `nth` queued reply carries, where that is the answer to a READ,
/// and its protection domain.
#[inline]
fn response_part(qp: &Qp, nth: usize, k: u32, length: u32) -> Option<(Sge, u32)> {
    let ReplyKind::Read { va, rkey, pd, .. } = qp.responder.replies.get(nth)?.kind else {
        return None;
    };
    let addr = va.wrapping_add(u64::from(k) * u64::from(qp.mtu));
    Some((Sge { addr, length, lkey: rkey }, pd))
}

/// Passes the whole payload of a segment by reference instead of copying it, where that is
/// possible.
#[inline]
fn refer<W: Wire, D: Dma>(
    wire: &mut W,
    dma: &D,
    Memory { space, range: from }: Memory,
    Place { arena, to, may_refer }: Place,
) -> bool {
    if !may_refer || from.len < REFER_FROM || !dma.copies_from(space, from) {
        return false;
    }
    let end =
        to.offset as usize + to.len as usize + usize::from(pad_for(to.len as usize)) + ICRC_LEN;
    let Some(payload) = wire.tx(arena).get_mut(to.offset as usize..end) else { return false };
    by_reference::refer(payload, space, from.addr)
}
