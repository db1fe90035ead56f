//! The headers of reserved trains, and payload that came with the WQEs.

use super::headers::{self, datagram_headers};
use super::{Egress, Train};
use crate::by_reference;
use crate::ports::Wire;
use crate::profile::Profile;
use crate::qp::Qp;
use crate::qp::plan::{Segment, Source};

impl Egress {
    #[inline(always)]
    pub(super) fn write_headers<W: Wire>(&self, profile: Profile, qp: &Qp, wire: &mut W) {
        if !qp.rules.is_connected {
            return self.write_datagram_headers(qp, wire);
        }
        for train in &self.trains {
            let arena = wire.tx(train.slot.arena);
            for (segment, datagram) in self.datagrams(train, arena) {
                let start = headers::write(qp, segment, profile, datagram);
                if train.slot.is_internal {
                    by_reference::mark_carried(datagram);
                }
                copy_carried(qp, segment, datagram.get_mut(start..));
            }
        }
    }

    /// The same without a connection. Apart, so that headers that no connection has cost none.
    #[inline(never)]
    fn write_datagram_headers<W: Wire>(&self, qp: &Qp, wire: &mut W) {
        for train in &self.trains {
            let arena = wire.tx(train.slot.arena);
            for (segment, datagram) in self.datagrams(train, arena) {
                let start = datagram_headers(qp, segment).emit(datagram);
                if train.slot.is_internal {
                    by_reference::mark_carried(datagram);
                }
                copy_carried(qp, segment, datagram.get_mut(start..));
            }
        }
    }

    /// The segments of a train with the bytes of their datagrams.
    pub(super) fn datagrams<'a>(
        &'a self,
        train: &Train,
        arena: &'a mut [u8],
    ) -> impl Iterator<Item = (&'a Segment, &'a mut [u8])> {
        let segments = self.plan.get(train.first..train.end).unwrap_or(&[]);
        let rest = arena.get_mut(train.slot.offset as usize..).unwrap_or(&mut []);
        let mut places = rest.chunks_mut((train.slot.stride as usize).max(1));
        segments.iter().map_while(move |segment| {
            let place = places.next()?;
            let len = (segment.datagram_len as usize).min(place.len());
            Some((segment, &mut place[..len]))
        })
    }
}

/// Copies payload that came with its WQE behind the headers.
#[inline(always)]
fn copy_carried(qp: &Qp, segment: &Segment, rest: Option<&mut [u8]>) {
    if let Source::Request { index, offset } = segment.source
        && qp.sq.wr(index).control.data_len > 0
        && let Some(payload) = rest.and_then(|rest| rest.get_mut(..segment.len as usize))
    {
        qp.sq.copy_data(index, offset as usize, payload);
    }
}
