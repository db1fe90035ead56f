//! Gathering: payloads of planned packets from application memory into the transmit arena, with as
//! few [`Dma::read`] calls as possible.

use crate::by_reference::{self, REFER_FROM};
use crate::event::{NakReason, Tap};
use crate::ports::{ArenaId, Dma, MAX_DMA_RANGES, MemRange, Range, SpaceId, Wire};
use crate::qp::Qp;
use crate::qp::plan::{Segment, Source};
use crate::qp::responder::replies::ReplyKind;
use crate::shared::Ctx;
use rnic_abi::verbs::AccessFlags;
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
    /// See [`TxSlot::inside`](crate::ports::TxSlot).
    pub(super) inside: bool,
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

    /// Adds the payload of one segment; executes first when it does not fit the running call.
    pub(super) fn add_segment<W: Wire, D: Dma, T: Tap>(
        &mut self,
        ctx: &Ctx<'_, T>,
        qp: &Qp,
        wire: &mut W,
        dma: &mut D,
        (at, segment, mut place): (usize, Segment, Place),
    ) -> Result<(), Unreadable> {
        let unreadable = |reason| Unreadable { segment: at, reason };
        match segment.source {
            Source::Request { index, offset } => {
                let control = &qp.sq.wr(index).control;
                let is_inside = control.data_len > 0;
                let mut skip = offset;
                for sge in qp.sq.sges(index) {
                    let to = place.to;
                    if to.len == 0 {
                        break;
                    }
                    if skip >= sge.length {
                        skip -= sge.length;
                        continue;
                    }
                    let len = to.len.min(sge.length - skip);
                    let va = sge.addr.wrapping_add(skip.into());
                    skip = 0;
                    let need = AccessFlags::empty();
                    let target = ctx.shared.mrs.check(sge.lkey, qp.pd, va, len.into(), need);
                    let target = target.map_err(|fault| unreadable(NakReason::Key(fault)))?;
                    // A carried copy travels, but its key must be as good as any other.
                    if !is_inside {
                        let from = MemRange { addr: target.addr, len };
                        if len == segment.len && refer(wire, dma, place, target.space, from) {
                            return Ok(());
                        }
                        let here = Place { to: Range { len, ..to }, ..place };
                        self.add(wire, dma, at, from, (target.space, here))?;
                    }
                    place.to = Range { offset: to.offset + len, len: to.len - len };
                }
                Ok(())
            }
            Source::Reply { nth, k } => {
                let Some(reply) = qp.responder.replies.get(nth) else { return Ok(()) };
                let ReplyKind::Read { va, rkey, .. } = reply.kind else { return Ok(()) };
                let va = va.wrapping_add(u64::from(k) * u64::from(qp.mtu));
                // Rule: ReadNeedsRight
                let need = AccessFlags::REMOTE_READ;
                let target = ctx.shared.mrs.check(rkey, qp.pd, va, segment.len.into(), need);
                let target = target.map_err(|fault| unreadable(NakReason::Key(fault)))?;
                let from = MemRange { addr: target.addr, len: segment.len };
                if refer(wire, dma, place, target.space, from) {
                    return Ok(());
                }
                self.add(wire, dma, at, from, (target.space, place))
            }
            Source::Ack => Ok(()),
        }
    }

    fn add<W: Wire, D: Dma>(
        &mut self,
        wire: &mut W,
        dma: &mut D,
        segment: usize,
        from: MemRange,
        (space, Place { arena, to, .. }): (SpaceId, Place),
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
        self.ends.push((segment, self.bytes));
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

/// Passes the whole payload of a segment by reference instead of copying it, where that is
/// possible.
fn refer<W: Wire, D: Dma>(
    wire: &mut W,
    dma: &D,
    Place { arena, to, inside }: Place,
    space: SpaceId,
    from: MemRange,
) -> bool {
    if !inside || from.len < REFER_FROM || !dma.copies_from(space, from) {
        return false;
    }
    let end =
        to.offset as usize + to.len as usize + usize::from(pad_for(to.len as usize)) + ICRC_LEN;
    let Some(payload) = wire.tx(arena).get_mut(to.offset as usize..end) else { return false };
    by_reference::refer(payload, space, from.addr)
}
