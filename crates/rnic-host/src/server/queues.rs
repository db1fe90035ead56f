//! Completion queues and queue pairs: their rings, and what is granted for what was wanted.

use super::accounts::{Account, Charge};
use super::arena::{Arenas, Ring};
use super::link::EngineLink;
use super::records::Records;
use super::reply::{Attached, unexpected_outcome};
use super::service::Service;
use super::xrc::Way;
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_kernel};
use rnic_abi::control::{CreateQp, DeviceLimits, QueuePlace, Reply};
use rnic_abi::cq::{CqProducer, cq_words};
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::verbs::{QpCaps, QpType};
use rnic_abi::words::WORD;
use rnic_abi::work_queue::{QueueShape, WorkConsumer};
use rnic_abi::wqe::{CONTROL_WORDS, MAX_INLINE, SGE_WORDS, recv_stride, send_stride};
use rnic_core::{
    ChannelId, ClientCommand, EngineQueue, NewQp, NewReceives, NewSrq, NewXrcSrq, Outcome,
};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Completions that fit into the smallest completion queue. `ib_send_lat -e` asks for a queue of
/// one, waits for an event of either of its queues, and polls one of them once: when an
/// acknowledgement arrives behind the peer's answer, it is one completion behind from then on. In a
/// queue of one the next completion overflows. Drivers of cards give `cqe` + 1 rounded up, so that
/// programs get by.
const LEAST_CQES: u32 = 2;

/// Shapes of both queues, and the capabilities that they give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant {
    pub(super) sq: QueueShape,
    pub(super) rq: QueueShape,
    pub(super) caps: QpCaps,
}

/// What is granted for `wanted`: at least that.
pub(super) fn grant(wanted: &QpCaps, limits: &DeviceLimits) -> Result<Grant, Refused> {
    let within = |name, wanted: u32, limit: u32| match wanted <= limit {
        true => Ok(()),
        false => Err(refuse(libc::EINVAL, format!("{name} {wanted} is above the limit {limit}"))),
    };
    within("max_send_wr", wanted.max_send_wr, limits.max_qp_wr)?;
    within("max_recv_wr", wanted.max_recv_wr, limits.max_qp_wr)?;
    within("max_send_sge", wanted.max_send_sge, limits.max_sge)?;
    within("max_recv_sge", wanted.max_recv_sge, limits.max_sge)?;
    within("max_inline_data", wanted.max_inline_data, limits.max_inline)?;
    let sges = wanted.max_send_sge.max(1);
    let stride = send_stride(sges, wanted.max_inline_data.max(SMALL_SEND));
    // Whatever is left of the last basic block is inline room, too.
    let room = (stride - CONTROL_WORDS - sges as usize * SGE_WORDS) * WORD;
    let sq = shape(wanted.max_send_wr, stride);
    let rq = shape(wanted.max_recv_wr, recv_stride(wanted.max_recv_sge.max(1)));
    let caps = QpCaps {
        max_send_wr: sq.capacity,
        max_recv_wr: if wanted.max_recv_wr == 0 { 0 } else { rq.capacity },
        max_send_sge: sges,
        max_recv_sge: wanted.max_recv_sge.max(1),
        max_inline_data: room.min(MAX_INLINE).min(limits.max_inline as usize) as u32,
    };
    Ok(Grant { sq, rq, caps })
}

/// The same for a queue pair on a shared receive queue, which counts for its receives.
fn without_receives(wanted: &QpCaps, limits: &DeviceLimits) -> Result<Grant, Refused> {
    let own = QpCaps { max_recv_wr: 0, max_recv_sge: 0, ..*wanted };
    let granted = grant(&own, limits)?;
    let caps = QpCaps { max_recv_wr: 0, max_recv_sge: 0, ..granted.caps };
    Ok(Grant { caps, ..granted })
}

fn shape(wqes: u32, stride: usize) -> QueueShape {
    QueueShape { capacity: wqes.max(1).next_power_of_two(), stride: stride as u32 }
}

/// The completion queues and queue pairs of a client.
pub(super) struct Queues {
    service: Arc<Service>,
    link: EngineLink,
    account: Account,
    limits: DeviceLimits,
    arenas: Arenas,
    records: Records,
    cqs: HashMap<u32, (Ring, Charge)>,
    qps: HashMap<u32, (QueueParts, Charge)>,
    srqs: HashMap<u32, (QueueParts, Charge)>,
}

/// The memory of a queue pair or shared receive queue that this side made: of its send queue, if it
/// has one, then of its receives, if they are its own.
#[derive(Default)]
struct QueueParts {
    rings: Vec<Ring>,
    records: Vec<RecordIndex>,
    /// The way to the peer.
    way: Way,
}

impl Queues {
    /// Frees the memory of all queues, which the client could keep for itself else. None is used
    /// any more.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn discard(&self) -> io::Result<()> {
        self.records.discard()?;
        self.arenas.discard()
    }

    /// Of the client at the other end of `link`, whose doorbells are `records`.
    pub(super) fn new(
        service: Arc<Service>,
        link: EngineLink,
        account: Account,
        records: Records,
    ) -> Self {
        let limits = service.device.limits;
        let arenas = Arenas::new(account.clone());
        let (cqs, qps, srqs) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { service, link, account, limits, arenas, records, cqs, qps, srqs }
    }

    pub(super) fn create_cq(
        &mut self,
        cqe: u32,
        channel: Option<ChannelId>,
    ) -> Result<(Reply, Attached), Refused> {
        let charge = self.account.take(Resource::Cqs, 1)?;
        let (memory, capacity) = self.cq_ring(cqe)?;
        let created = match CqProducer::new(memory.words(), capacity) {
            Some(ring) => self.link.execute(ClientCommand::CreateCq { ring, capacity, channel }),
            None => Err(unexpected_outcome()),
        };
        let cq = match created {
            Ok(Outcome::Handle(cq)) => cq,
            other => {
                self.arenas.free(memory);
                return other.and_then(|_| Err(unexpected_outcome()));
            }
        };
        let mut attached = Vec::new();
        let ring = self.arenas.announce(&memory, &mut attached);
        self.cqs.insert(cq, (memory, charge));
        Ok((Reply::Cq { cq, ring, cqe: capacity }, attached))
    }

    /// Memory for at least `cqe` completions, and how many fit.
    fn cq_ring(&mut self, cqe: u32) -> Result<(Ring, u32), Refused> {
        let limit = self.limits.max_cqe;
        if cqe == 0 || cqe > limit {
            return Err(refuse(libc::EINVAL, format!("cqe {cqe} is not in 1..={limit}")));
        }
        let capacity = cqe.max(LEAST_CQES).next_power_of_two();
        let words = cq_words(capacity).ok_or_else(|| refuse(libc::EINVAL, "too many CQEs"))?;
        Ok((self.ring(words)?, capacity))
    }

    pub(super) fn resize_cq(&mut self, cq: u32, cqe: u32) -> Result<(Reply, Attached), Refused> {
        if !self.cqs.contains_key(&cq) {
            return Err(refuse(libc::ENOENT, "no such completion queue"));
        }
        let (mut memory, capacity) = self.cq_ring(cqe)?;
        // Emptied here: the engine has other things to do.
        let resized = match CqProducer::new(memory.words(), capacity) {
            Some(ring) => self.link.execute(ClientCommand::ResizeCq { cq, ring, capacity }),
            None => Err(unexpected_outcome()),
        };
        if let Err(refusal) = resized {
            self.arenas.free(memory);
            return Err(refusal);
        }
        let mut attached = Vec::new();
        let ring = self.arenas.announce(&memory, &mut attached);
        if let Some((present, _)) = self.cqs.get_mut(&cq) {
            std::mem::swap(present, &mut memory);
        }
        self.arenas.free(memory);
        Ok((Reply::Cq { cq, ring, cqe: capacity }, attached))
    }

    pub(super) fn destroy_cq(&mut self, cq: u32) -> Result<Reply, Refused> {
        let Outcome::CqGone { completion_events, async_events } =
            self.link.execute(ClientCommand::DestroyCq { cq })?
        else {
            return Err(unexpected_outcome());
        };
        if let Some((ring, _)) = self.cqs.remove(&cq) {
            self.arenas.free(ring);
        }
        Ok(Reply::CqGone { completion_events, async_events })
    }

    pub(super) fn create_qp(&mut self, wanted: &CreateQp) -> Result<(Reply, Attached), Refused> {
        let unsupported =
            |what: &str| refuse(libc::EOPNOTSUPP, format!("this device does not support {what}"));
        let limits = &self.limits;
        if limits.qp_types & 1 << wanted.qp_type.number() == 0 {
            return Err(unsupported(&format!("{:?} queue pairs", wanted.qp_type)));
        }
        if wanted.qp_type == QpType::XrcRecv {
            return self.create_target(wanted);
        }
        let (send_cq, recv_cq) = match (wanted.send_cq, wanted.recv_cq, wanted.qp_type) {
            (Some(send), _, QpType::XrcSend) => (send, send),
            (Some(send), Some(receive), _) => (send, receive),
            _ => return Err(refuse(libc::EINVAL, "a queue pair needs completion queues")),
        };
        let charge = self.account.take(Resource::Qps, 1)?;
        let has_receives = wanted.srq.is_none() && wanted.qp_type != QpType::XrcSend;
        let grant = match has_receives {
            true => grant(&wanted.caps, limits)?,
            false => without_receives(&wanted.caps, limits)?,
        };
        let parts = self.qp_parts(&grant, has_receives)?;
        let created = queues(&parts, &grant, wanted, has_receives).and_then(|(sq, rq)| {
            self.link.execute(ClientCommand::CreateQp(Box::new(NewQp {
                pd: wanted.pd,
                qp_type: wanted.qp_type,
                send_cq,
                recv_cq,
                caps: grant.caps,
                sq_sig_all: wanted.sq_sig_all,
                sq,
                rq,
            })))
        });
        let (qp, qpn) = match created {
            Ok(Outcome::Qp { qp, qpn }) => (qp, qpn),
            other => {
                self.free_parts(parts);
                return other.and_then(|_| Err(unexpected_outcome()));
            }
        };
        let mut attached = Vec::new();
        let mut places = [grant.sq, grant.rq].into_iter().zip(&parts.records).zip(&parts.rings);
        let mut next = || {
            let ((shape, record), memory) = places.next()?;
            let ring = self.arenas.announce(memory, &mut attached);
            Some(QueuePlace { ring, shape, record: *record })
        };
        let (sq, rq) = (next(), next());
        drop(places);
        self.qps.insert(qp, (parts, charge));
        Ok((Reply::Qp { qp, qpn, caps: grant.caps, sq, rq }, attached))
    }

    /// An XRC target has no queues: nothing of it is shared memory.
    fn create_target(&mut self, wanted: &CreateQp) -> Result<(Reply, Attached), Refused> {
        let Some(xrcd) = wanted.xrcd else {
            return Err(refuse(libc::EINVAL, "an XRC target belongs to an XRC domain"));
        };
        let charge = self.account.take(Resource::Qps, 1)?;
        let made = self.link.execute(ClientCommand::CreateTarget { xrcd })?;
        let Outcome::Qp { qp, qpn } = made else { return Err(unexpected_outcome()) };
        let way = self.service.registry.targets.add(qpn);
        Ok(self.refer(qp, qpn, way, charge))
    }

    /// A further reference to an XRC target.
    pub(super) fn open_qp(&mut self, xrcd: u32, qpn: u32) -> Result<(Reply, Attached), Refused> {
        // First: while this is held, the target's way lasts, whichever client gives it up.
        let way = self.service.registry.targets.find(qpn).unwrap_or_default();
        let charge = self.account.take(Resource::Qps, 1)?;
        let opened = self.link.execute(ClientCommand::OpenQp { xrcd, qpn })?;
        let Outcome::Qp { qp, qpn } = opened else { return Err(unexpected_outcome()) };
        Ok(self.refer(qp, qpn, way, charge))
    }

    fn refer(&mut self, qp: u32, qpn: u32, way: Way, charge: Charge) -> (Reply, Attached) {
        self.qps.insert(qp, (QueueParts { way, ..QueueParts::default() }, charge));
        let caps = QpCaps::default();
        (Reply::Qp { qp, qpn, caps, sq: None, rq: None }, Vec::new())
    }

    /// The way of a queue pair.
    pub(super) fn way_of(&self, qp: u32) -> Option<Way> {
        self.qps.get(&qp).map(|(parts, _)| parts.way.clone())
    }

    pub(super) fn destroy_qp(&mut self, qp: u32) -> Result<Reply, Refused> {
        let Outcome::QpGone { async_events } =
            self.link.execute(ClientCommand::DestroyQp { qp })?
        else {
            return Err(unexpected_outcome());
        };
        if let Some((parts, _)) = self.qps.remove(&qp) {
            self.free_parts(parts);
        }
        Ok(Reply::QpGone { async_events })
    }

    pub(super) fn create_srq(
        &mut self,
        pd: u32,
        (max_wr, max_sge): (u32, u32),
        limit: u32,
        xrc: Option<NewXrcSrq>,
    ) -> Result<(Reply, Attached), Refused> {
        let within = |name, wanted: u32, limit: u32| match wanted <= limit {
            true => Ok(()),
            false => {
                Err(refuse(libc::EINVAL, format!("{name} {wanted} is above the limit {limit}")))
            }
        };
        within("max_wr", max_wr, self.limits.max_qp_wr)?;
        within("max_sge", max_sge, self.limits.max_sge)?;
        within("srq_limit", limit, max_wr)?;
        let charge = self.account.take(Resource::Qps, 1)?;
        let max_sge = max_sge.max(1);
        let shape = shape(max_wr, recv_stride(max_sge));
        let max_wr = shape.capacity;
        let parts = self.parts(&[shape])?;
        let created = engine_queue(&parts, 0, shape).and_then(|queue| {
            let new = NewSrq { pd, queue, max_wr, max_sge, xrc };
            self.link.execute(ClientCommand::CreateSrq(new))
        });
        let (srq, srqn) = match created {
            Ok(Outcome::NewSrq { srq, srqn }) => (srq, srqn),
            other => {
                self.free_parts(parts);
                return other.and_then(|_| Err(unexpected_outcome()));
            }
        };
        // First: whatever fails below, it exists and is paid for.
        let (parts, _) = self.srqs.entry(srq).insert_entry((parts, charge)).into_mut();
        let mut attached = Vec::new();
        let memory = parts.rings.first().ok_or_else(unexpected_outcome)?;
        let ring = self.arenas.announce(memory, &mut attached);
        let record = *parts.records.first().ok_or_else(unexpected_outcome)?;
        if limit > 0 {
            self.link.execute(ClientCommand::SetSrqLimit { srq, limit })?;
        }
        let queue = QueuePlace { ring, shape, record };
        Ok((Reply::Srq { srq, queue, max_wr, max_sge, srqn }, attached))
    }

    pub(super) fn set_srq_limit(&self, srq: u32, limit: u32) -> Result<Reply, Refused> {
        self.link.execute(ClientCommand::SetSrqLimit { srq, limit })?;
        Ok(Reply::Done)
    }

    pub(super) fn query_srq(&self, srq: u32) -> Result<Reply, Refused> {
        match self.link.execute(ClientCommand::QuerySrq { srq })? {
            Outcome::Srq { max_wr, max_sge, limit } => {
                Ok(Reply::SrqState { max_wr, max_sge, limit })
            }
            _ => Err(unexpected_outcome()),
        }
    }

    pub(super) fn destroy_srq(&mut self, srq: u32) -> Result<Reply, Refused> {
        self.link.execute(ClientCommand::DestroySrq { srq })?;
        if let Some((parts, _)) = self.srqs.remove(&srq) {
            self.free_parts(parts);
        }
        Ok(Reply::Done)
    }

    fn ring(&mut self, words: usize) -> Result<Ring, Refused> {
        self.arenas.allocate(words)
    }

    fn record(&mut self) -> Result<RecordIndex, Refused> {
        self.records.allocate().map_err(refused_by_kernel("no doorbell is left"))
    }

    /// Rings and records of a QP: all or nothing.
    fn qp_parts(&mut self, grant: &Grant, has_receives: bool) -> Result<QueueParts, Refused> {
        let shapes = [grant.sq, grant.rq];
        self.parts(if has_receives { &shapes } else { &shapes[..1] })
    }

    /// Rings of these shapes and their records: all or nothing.
    fn parts(&mut self, shapes: &[QueueShape]) -> Result<QueueParts, Refused> {
        let mut parts = QueueParts::default();
        match shapes.iter().try_for_each(|shape| self.add_queue(&mut parts, *shape)) {
            Ok(()) => Ok(parts),
            Err(refusal) => {
                self.free_parts(parts);
                Err(refusal)
            }
        }
    }

    fn add_queue(&mut self, parts: &mut QueueParts, shape: QueueShape) -> Result<(), Refused> {
        let words = shape.words().ok_or_else(|| refuse(libc::EINVAL, "the queue is too large"))?;
        parts.rings.push(self.ring(words)?);
        parts.records.push(self.record()?);
        Ok(())
    }

    fn free_parts(&mut self, parts: QueueParts) {
        parts.rings.into_iter().for_each(|ring| self.arenas.free(ring));
        parts.records.into_iter().for_each(|record| self.records.free(record));
    }
}

/// The engine's side of the queues of a QP.
fn queues(
    parts: &QueueParts,
    grant: &Grant,
    wanted: &CreateQp,
    has_receives: bool,
) -> Result<(EngineQueue, NewReceives), Refused> {
    let sq = engine_queue(parts, 0, grant.sq)?;
    let receives = match wanted.srq {
        _ if has_receives => NewReceives::Own(engine_queue(parts, 1, grant.rq)?),
        Some(srq) if wanted.qp_type != QpType::XrcSend => NewReceives::Shared(srq),
        _ => NewReceives::None,
    };
    Ok((sq, receives))
}

fn engine_queue(parts: &QueueParts, at: usize, shape: QueueShape) -> Result<EngineQueue, Refused> {
    let (Some(memory), Some(record)) = (parts.rings.get(at), parts.records.get(at)) else {
        return Err(unexpected_outcome());
    };
    let ring = WorkConsumer::new(memory.words(), shape).ok_or_else(unexpected_outcome)?;
    Ok(EngineQueue { ring, record: *record })
}

/// Small messages are copied into the WQE beside their SGE; this is what they need.
const SMALL_SEND: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::config::default_limits;

    #[test]
    fn at_least_what_was_wanted_is_granted() {
        for wr in [0, 1, 3, 128, 32_768] {
            for sge in [0, 1, 2, 16, 32] {
                for inline in [0, 1, 36, 220, 512, 1024] {
                    let wanted = QpCaps {
                        max_send_wr: wr,
                        max_recv_wr: wr,
                        max_send_sge: sge,
                        max_recv_sge: sge,
                        max_inline_data: inline,
                    };
                    let Grant { sq, rq, caps } = grant(&wanted, &default_limits()).unwrap();
                    assert!(caps.max_send_wr >= wr && caps.max_recv_wr >= wr, "{caps:?}");
                    assert!(caps.max_send_sge >= sge && caps.max_recv_sge >= sge, "{caps:?}");
                    assert!(caps.max_inline_data >= inline, "{caps:?}");
                    assert!(sq.words().is_some() && rq.words().is_some());
                    let used = CONTROL_WORDS
                        + caps.max_send_sge as usize * SGE_WORDS
                        + caps.max_inline_data as usize / WORD;
                    assert!(used <= sq.stride as usize);
                }
            }
        }
    }

    #[test]
    fn above_the_limits_is_refused_by_name() {
        let wanted = QpCaps { max_send_sge: 33, ..QpCaps::default() };
        let refusal = grant(&wanted, &default_limits()).unwrap_err();
        assert_eq!(refusal.errno, libc::EINVAL);
        assert!(refusal.message.contains("max_send_sge 33"), "{refusal}");
        let wanted = QpCaps { max_send_wr: u32::MAX, ..QpCaps::default() };
        assert!(grant(&wanted, &default_limits()).is_err());
    }
}
