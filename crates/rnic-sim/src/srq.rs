//! Shared receive queues of a host, and their judge: each receive completes once, whichever queue
//! pair takes it.

use crate::host::{AppQueue, Host};
use crate::verbs::{CqId, PostError};
use rnic_abi::cqe::Cqe;
use rnic_abi::wqe::{RecvControl, Sge, recv_stride};
use rnic_core::command::{ClientCommand, CommandError, NewSrq, NewXrcSrq, Outcome};
use std::collections::BTreeMap;

/// A shared receive queue of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqId(pub usize);

#[derive(Debug)]
pub(crate) struct AppSrq {
    pub(crate) handle: u32,
    /// XRC: its number in packets, and where it completes.
    pub(crate) srqn: u32,
    pub(crate) cq: Option<CqId>,
    queue: AppQueue,
    /// Receives that are posted and not polled, by index: `wr_id` and SGEs.
    posted: BTreeMap<u32, (u64, Vec<Sge>)>,
}

impl Host {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn create_srq(
        &mut self,
        pd: u32,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SrqId, CommandError> {
        self.new_srq(pd, (max_wr, max_sge), None)
    }

    pub(crate) fn new_srq(
        &mut self,
        pd: u32,
        (max_wr, max_sge): (u32, u32),
        xrc: Option<NewXrcSrq>,
    ) -> Result<SrqId, CommandError> {
        let name = format!("{} SRQ {}", self.ip, self.srqs.len());
        let (queue, engine_queue) = self.queue(name, max_wr, recv_stride(max_sge));
        let new = NewSrq { pd, queue: engine_queue, max_wr, max_sge, xrc };
        let (handle, srqn) = match self.command(ClientCommand::CreateSrq(new))? {
            Outcome::NewSrq { srq, srqn } => (srq, srqn),
            other => panic!("CreateSrq has the outcome {other:?}"),
        };
        self.srqs.push(AppSrq { handle, srqn, cq: None, queue, posted: BTreeMap::new() });
        Ok(SrqId(self.srqs.len() - 1))
    }

    /// Arms the limit event.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<Outcome, CommandError> {
        // The control plane wakes the engine's thread for every command.
        self.called = true;
        self.command(ClientCommand::SetSrqLimit { srq: self.srqs[srq.0].handle, limit })
    }

    /// Its handle.
    pub fn srq_handle(&self, srq: SrqId) -> u32 {
        self.srqs[srq.0].handle
    }

    /// Posts a receive. A slot is free when its completion was polled.
    ///
    /// # Errors
    /// As `ibv_post_srq_recv`.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let AppSrq { queue, posted, .. } = &mut self.srqs[srq.0];
        let oldest = posted.keys().next().copied().unwrap_or(queue.ring.producer());
        let used = queue.ring.producer().wrapping_sub(oldest);
        if used >= queue.capacity || queue.ring.free() == 0 {
            return Err(PostError::Full);
        }
        let num_sge = u8::try_from(sges.len()).map_err(|_| PostError::Invalid)?;
        let mut words = RecvControl { num_sge, wr_id }.encode().to_vec();
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        if words.len() > queue.stride {
            return Err(PostError::Invalid);
        }
        let index = queue.ring.push(&words);
        posted.insert(index, (wr_id, sges.to_vec()));
        self.bell.publish(queue.record, queue.ring.producer());
        if queue.ring.must_ring() {
            self.verdicts.push("a shared receive queue asks to be rung".into());
        }
        Ok(())
    }

    /// Receives that are posted and not polled.
    pub fn srq_posted(&self, srq: SrqId) -> usize {
        self.srqs[srq.0].posted.len()
    }

    /// The shared receive queue of XRC that this is a completion of.
    pub(crate) fn srq_completing_to(&self, cq: CqId, cqe: &Cqe) -> Option<SrqId> {
        let is_of = |srq: &AppSrq| srq.cq == Some(cq) && srq.queue.record.value() == cqe.record;
        self.srqs.iter().position(is_of).map(SrqId)
    }

    /// Judges the completion of a receive of this queue, and places what it carries.
    pub(crate) fn complete_shared(&mut self, srq: SrqId, cqe: &Cqe) {
        let AppSrq { queue, posted, .. } = &mut self.srqs[srq.0];
        if cqe.record != queue.record.value() {
            self.verdicts.push(format!("a completion names another doorbell record: {cqe:?}"));
        }
        match posted.remove(&cqe.wqe_index) {
            Some((wr_id, sges)) if wr_id == cqe.wr_id => self.unpack_carried(cqe, &sges),
            Some((wr_id, _)) => {
                self.verdicts.push(format!("wr_id {wr_id:#x} was posted there: {cqe:?}"));
            }
            None => self.verdicts.push(format!("no receive is posted there: {cqe:?}")),
        }
    }
}
