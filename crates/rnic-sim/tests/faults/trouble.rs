//! What goes wrong in a flow on purpose, and what may come of it.

use crate::area::Area;
use crate::flow::Flow;
use crate::message::Message;
use crate::plan::{Ending, Part};
use rnic_abi::verbs::{AttrMask, QpAttr, QpState, WcStatus};
use rnic_core::time::Instant;
use rnic_sim::host::SPACE;
use rnic_sim::memory::PageAccess;
use rnic_sim::world::World;

/// The trouble that a flow is in.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// It is to fail, and from which of the ends it comes.
    pub(crate) ending: Option<(Ending, Side)>,
    /// Nothing is lost on the way of what tells of it.
    pub(crate) nak_arrives: bool,
    pub(crate) has_failed: bool,
    send_failed: bool,
    /// The application moved both of its ends to ERR.
    pub(crate) is_flushed: bool,
    /// Its send queue is in SQD, and SQ_DRAINED came.
    pub(crate) is_paused: bool,
    pub(crate) is_drained: bool,
    /// The next pause ends without any READs allowed.
    pub(crate) loses_depth: bool,
    /// It posts nothing, so that its connection comes to rest.
    pub(crate) holds: bool,
    /// Nothing can be expected before.
    pub(crate) excused_until: Instant,
    /// The responder's application goes on posting receives after the failure.
    pub(crate) posts_on: bool,
    late_receives: u64,
}

/// Whose fault an ending is, as a flow sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The flow that the ending is made for.
    Mine,
    /// The other direction of its connection, or another connection of a dead wire.
    Others,
}

/// Receives that are posted although everything has failed.
const LATE_RECEIVES: u64 = 4;
/// Their `wr_id`.
const LATE: u64 = 1 << 40;
/// Nanoseconds that any message may take.
const PATIENCE: u64 = 20_000_000_000;

impl Trouble {
    /// May something of this flow complete like this?
    pub(crate) fn allows(&mut self, status: WcStatus, is_receive: bool) -> bool {
        use WcStatus::{RetryExcErr, WrFlushErr};
        let later = self.send_failed && !is_receive;
        self.send_failed |= !is_receive;
        match self.ending {
            None => false,
            Some(_) if later => status == WrFlushErr,
            Some(_) if self.is_flushed && status == WrFlushErr => true,
            Some((ending, Side::Mine)) if is_receive => ending.allows_receive(status),
            Some((ending, Side::Mine)) => ending.allows_send(status, self.nak_arrives),
            // The other end of the connection stopped, or this one did.
            Some((_, Side::Others)) => [RetryExcErr, WrFlushErr].contains(&status),
        }
    }
}

impl Flow {
    /// On a dead wire no pause begins: what was not started when a queue is drained is not waited
    /// for, so that the retries would never end.
    pub(crate) fn may_toggle_pause(&self) -> bool {
        let dies = matches!(self.trouble.ending, Some((Ending::WireDies, _)));
        self.trouble.is_paused || !dies
    }

    /// RTS to SQD, or back. A queue pair that failed stays where it is.
    pub(crate) fn toggle_pause(&mut self, world: &mut World, depth: Option<u8>) {
        let pauses = !self.trouble.is_paused;
        let was_drained = std::mem::take(&mut self.trouble.is_drained);
        self.trouble.is_paused = pauses;
        self.trouble.excused_until = world.now();
        let (host, qp) = (world.host(self.from.host), self.from.qp);
        if self.trouble.has_failed || host.state(qp) == QpState::Err {
            return;
        }
        if pauses {
            let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
            let attr = QpAttr { en_sqd_async_notify: true, ..to(QpState::Sqd) };
            host.modify(qp, mask, attr, None).expect("RTS to SQD");
            return;
        }
        let loses_depth = was_drained && std::mem::take(&mut self.trouble.loses_depth);
        let depth = if loses_depth { Some(0) } else { depth };
        if let Some(max_rd_atomic) = depth {
            let mask = AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC;
            let attr = QpAttr { max_rd_atomic, ..to(QpState::Sqd) };
            host.modify(qp, mask, attr, None).expect("SQD to SQD");
        }
        host.set_state(qp, QpState::Rts);
    }

    /// The memory of a part.
    fn area(&self, part: Part) -> &Area {
        match part {
            Part::Source => &self.source,
            Part::Sink => &self.sink,
            Part::Target => &self.target,
            Part::Store => &self.store,
            Part::Word => &self.word,
            Part::Buffers => &self.queues[0].buffers,
        }
    }

    /// A memory region is deregistered.
    pub(crate) fn deregister(&self, world: &mut World, part: Part) {
        let area = self.area(part);
        world.host(area.host()).dereg_mr(&area.mr());
    }

    /// Its memory is unmapped.
    pub(crate) fn unmap(&self, world: &mut World, part: Part) {
        let area = self.area(part);
        let mr = area.mr();
        world.host(area.host()).memory.protect(SPACE, mr.addr, mr.len, PageAccess::Hole);
    }

    /// More receives than the CQ has room for, which is not polled any more.
    pub(crate) fn flood_receives(&mut self, world: &mut World, count: u64) {
        for number in 0..count {
            self.post_unexpected(world, number);
        }
    }

    /// A receive that is posted when all is lost completes like the others.
    pub(crate) fn post_too_late(&mut self, world: &mut World) {
        let number = self.trouble.late_receives;
        if self.trouble.posts_on && number < LATE_RECEIVES && self.rng.chance(200_000) {
            self.trouble.late_receives += 1;
            self.post_unexpected(world, number);
        }
    }

    /// Posts a receive, of which only its completion is looked at.
    fn post_unexpected(&mut self, world: &mut World, number: u64) {
        let sges = [self.to.mr.sge(0, u32::try_from(self.max_len).unwrap())];
        let host = world.host(self.to.host);
        host.post_recv(self.to.qp, LATE + number, &sges).expect("room for some more");
        self.queues[0].posted.push_back(None);
    }

    /// The oldest message that should have been complete long ago.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&Message> {
        if self.trouble.is_paused || self.trouble.has_failed {
            return None;
        }
        let oldest = self.in_flight.iter().find(|message| message.is_signaled())?;
        let since = oldest.posted.max(self.trouble.excused_until);
        (now > since.after_nanos(PATIENCE)).then_some(oldest)
    }

    /// What the requester was told is complete was received.
    pub(crate) fn check_told(&self, world: &World) {
        if self.told > self.received {
            let (told, received) = (self.told, self.received);
            world.fail(&format!(
                "{} to {}: message {told:?} is complete, but only up to {received:?} came",
                self.from.host, self.to.host
            ));
        }
    }
}

fn to(state: QpState) -> QpAttr {
    QpAttr { state, ..QpAttr::default() }
}
