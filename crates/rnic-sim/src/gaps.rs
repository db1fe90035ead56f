//! Losses that show by what arrives behind them, so that no timer is needed to mend them.

use crate::port::Packet;
use roce_wire::{Operation, Psn};
use std::collections::BTreeMap;

/// Knows which packets of one direction may be lost like that.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    queue_pairs: BTreeMap<u32, Direction>,
}

/// What goes to one queue pair.
#[derive(Debug, Default)]
struct Direction {
    /// The latest request.
    latest: Option<Psn>,
    /// The furthest answer that arrived.
    top: Option<Psn>,
    /// The answer that was lost, how often, and the answers that arrived after the first time.
    lost: Option<(Psn, u32, Vec<Psn>)>,
}

/// An answer is lost at most so often in a row.
const MOST: u32 = 3;

impl Gaps {
    /// Is a packet lost that is followed by these, if `chance` wants it?
    pub(crate) fn loses(
        &mut self,
        packet: &Packet,
        followers: &[Packet],
        chance: impl FnOnce() -> bool,
    ) -> bool {
        let Some(datagram) = packet.parse() else { return false };
        let (bth, info) = (datagram.bth(), datagram.opcode().info());
        let behind: Vec<Psn> = followers
            .iter()
            .filter_map(Packet::parse)
            .filter(|f| f.bth().dest_qp == bth.dest_qp)
            .filter(|f| f.opcode().info().is_request == info.is_request)
            .map(|f| f.bth().psn)
            .collect();
        let direction = self.queue_pairs.entry(bth.dest_qp.value()).or_default();
        if info.is_request {
            return direction.loses_request(bth.psn, &behind) && chance();
        }
        let has_data = matches!(info.operation, Operation::ReadResponse | Operation::AtomicAck);
        let goes = has_data && direction.may_lose_answer(bth.psn, &behind) && chance();
        direction.note_answer(bth.psn, goes);
        goes
    }
}

impl Direction {
    /// A responder answers what is behind a lost request with a NAK, unless it did before: only
    /// requests that were not sent before may go.
    fn loses_request(&mut self, psn: Psn, behind: &[Psn]) -> bool {
        let is_new = self.latest.is_none_or(|latest| psn.distance_from(latest) > 0);
        if is_new {
            self.latest = Some(psn);
        }
        is_new && behind.iter().any(|next| next.distance_from(psn) > 0)
    }

    /// A requester notices a missing answer by one that is beyond it. What arrives again, while it
    /// waits for what is missing, tells it nothing: only new answers go. It notices that the second
    /// is missing too by what it got already and gets again: all of that must come again.
    fn may_lose_answer(&self, psn: Psn, behind: &[Psn]) -> bool {
        let shows = behind.iter().any(|next| next.distance_from(psn) > 0);
        match &self.lost {
            None => shows && self.top.is_none_or(|top| psn.distance_from(top) > 0),
            Some((lost, times, since)) => {
                let again = *lost == psn && *times < MOST && !since.is_empty();
                let last = since.iter().copied().max_by_key(|psn| psn.distance_from(*lost));
                let mirrors = since.iter().all(|psn| behind.contains(psn))
                    && last.is_some_and(|last| behind.iter().all(|b| b.distance_from(last) <= 0));
                again && shows && mirrors
            }
        }
    }

    fn note_answer(&mut self, psn: Psn, goes: bool) {
        if !goes && self.top.is_none_or(|top| psn.distance_from(top) > 0) {
            self.top = Some(psn);
        }
        match &mut self.lost {
            None if goes => self.lost = Some((psn, 1, Vec::new())),
            Some((_, times, _)) if goes => *times += 1,
            // It came at last.
            Some((lost, ..)) if *lost == psn => self.lost = None,
            Some((lost, _, since)) if psn.distance_from(*lost) > 0 && !since.contains(&psn) => {
                since.push(psn);
            }
            _ => {}
        }
    }
}
