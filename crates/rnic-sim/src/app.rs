//! Posting, polling and events: what the library does for an application without the daemon.

use crate::datagrams::To;
use crate::host::{AppQp, AppQueue, Host, SPACE};
use crate::oracle::Posted;
use crate::verbs::{CqId, PostError, QpId, SendWr};
use rnic_abi::control::AsyncEvent;
use rnic_abi::cq::ArmKind;
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{AsyncEventType, SendFlags, WcStatus};
use rnic_abi::words::WORD;
use rnic_abi::wqe::{RecvControl, SendControl, Sge};
use roce_wire::grh::GRH_LEN;

impl Host {
    /// Posts a send and rings the doorbell.
    ///
    /// # Errors
    /// As `ibv_post_send`.
    pub fn post_send(&mut self, qp: QpId, wr: &SendWr) -> Result<(), PostError> {
        self.write_send(qp, wr)?;
        self.ring_sends(qp);
        Ok(())
    }

    /// Posts a list of sends with one doorbell.
    ///
    /// # Errors
    /// As `ibv_post_send`: those before the refused one are posted.
    pub fn post_sends(&mut self, qp: QpId, wrs: &[SendWr]) -> Result<(), PostError> {
        if wrs.is_empty() {
            return Ok(());
        }
        let result = wrs.iter().try_for_each(|wr| self.write_send(qp, wr));
        self.ring_sends(qp);
        result
    }

    fn write_send(&mut self, qp: QpId, wr: &SendWr) -> Result<(), PostError> {
        let data = self.payload_in_wqe(wr);
        let app = &mut self.qps[qp.0];
        let mut control = SendControl::new(wr.opcode, wr.flags, wr.wr_id);
        control.num_sge = u8::try_from(wr.sges.len()).map_err(|_| PostError::Invalid)?;
        control.data_len = u16::try_from(data.len()).map_err(|_| PostError::Invalid)?;
        control.carried = wr.carried;
        control.imm_or_key = wr.imm;
        control.remote_addr = wr.remote.addr;
        control.rkey = wr.remote.rkey;
        control.compare_add = wr.compare_add;
        control.swap = wr.swap;
        control.qkey = wr.lkey;
        control.srqn = wr.srqn;
        if let Some(To { ah, qpn, qkey }) = wr.to {
            (control.ah, control.remote_qpn, control.qkey) = (ah, qpn, qkey);
        }
        if app.sq.ring.free() == 0 {
            return Err(PostError::Full);
        }
        let mut words = control.encode().to_vec();
        words.extend(wr.sges.iter().flat_map(|sge| sge.encode()));
        words.extend(data.chunks(WORD).map(word));
        if words.len() > app.sq.stride {
            return Err(PostError::Invalid);
        }
        let index = app.sq.ring.push(&words);
        let signaled = app.setup.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED);
        let opcode = Some(wr.opcode.completion());
        app.sq.oracle.post(Posted { index, wr_id: wr.wr_id, signaled, opcode });
        Ok(())
    }

    /// Inline data, or the library's copy of what the SGEs name.
    fn payload_in_wqe(&self, wr: &SendWr) -> Vec<u8> {
        match &wr.inline {
            Some(data) => data.clone(),
            None if wr.carried => wr
                .sges
                .iter()
                .flat_map(|sge| self.bytes(sge.addr, u64::from(sge.length)))
                .copied()
                .collect(),
            None => Vec::new(),
        }
    }

    fn ring_sends(&mut self, qp: QpId) {
        let AppQp { qpn, sq: queue, .. } = &self.qps[qp.0];
        self.trace.witness.posted(*qpn, queue.ring.producer());
        self.rang |= self.bell.ring(queue.record, queue.ring.producer());
        self.called = true;
    }

    /// The words of the send queue's slot that a request was written to so many requests ago; 0 is
    /// the last one. With them its index.
    pub fn send_slot(&self, qp: QpId, ago: u32) -> (u32, Vec<u64>) {
        slot_of(&self.qps[qp.0].sq, ago)
    }

    /// The same of the receive queue.
    pub fn recv_slot(&self, qp: QpId, ago: u32) -> (u32, Vec<u64>) {
        slot_of(&self.qps[qp.0].rq, ago)
    }

    /// Doorbell record and producer index of a send queue.
    pub fn send_doorbell(&self, qp: QpId) -> (u32, u32) {
        let queue = &self.qps[qp.0].sq;
        (queue.record.value(), queue.ring.producer())
    }

    /// Requests in a send queue whose slots the engine has not released.
    pub fn sends_in_use(&mut self, qp: QpId) -> u32 {
        self.qps[qp.0].sq.ring.in_use()
    }

    /// The application wrote its eventfd, as the engine sleeps, and the engine's thread has not
    /// looked at it.
    pub fn has_rung(&self) -> bool {
        self.rang
    }

    /// Publishes a producer index that no send queue of that size can have, silently.
    pub fn break_sends(&mut self, qp: QpId) {
        let queue = &self.qps[qp.0].sq;
        let impossible = queue.ring.producer().wrapping_add(2 * queue.capacity);
        self.bell.publish(queue.record, impossible);
    }

    /// Posts a receive. Slots count as used until their completion is polled.
    ///
    /// # Errors
    /// As `ibv_post_recv`.
    pub fn post_recv(&mut self, qp: QpId, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let app = &mut self.qps[qp.0];
        if app.receives.len() >= app.rq.capacity as usize || app.rq.ring.free() == 0 {
            return Err(PostError::Full);
        }
        let num_sge = u8::try_from(sges.len()).map_err(|_| PostError::Invalid)?;
        let mut words = RecvControl { num_sge, wr_id }.encode().to_vec();
        words.extend(sges.iter().flat_map(|sge| sge.encode()));
        if words.len() > app.rq.stride {
            return Err(PostError::Invalid);
        }
        self.publish_recv(qp, wr_id, &words, sges);
        Ok(())
    }

    /// Posts a receive with more SGEs than there is room for, as no library does.
    pub fn post_invalid_recv(&mut self, qp: QpId, wr_id: u64) {
        self.publish_recv(qp, wr_id, &RecvControl { num_sge: u8::MAX, wr_id }.encode(), &[]);
    }

    fn publish_recv(&mut self, qp: QpId, wr_id: u64, words: &[u64], sges: &[Sge]) {
        let app = &mut self.qps[qp.0];
        let index = app.rq.ring.push(words);
        app.rq.oracle.post(Posted { index, wr_id, signaled: true, opcode: None });
        app.receives.push_back(sges.to_vec());
        self.bell.publish(app.rq.record, app.rq.ring.producer());
        if app.rq.ring.must_ring() {
            self.called = true;
            self.rang |= self.bell.ring(app.rq.record, app.rq.ring.producer());
        }
    }

    /// Polls one completion, and has the oracles judge it.
    pub fn poll(&mut self, cq: CqId) -> Option<Cqe> {
        let cqe = self.cqs[cq.0].ring.poll()?;
        self.polled += 1;
        let is_receive = cqe.flags.contains(CqeFlags::RECV);
        if is_receive && let Some(srq) = self.srq_completing_to(cq, &cqe) {
            self.complete_shared(srq, &cqe);
            return Some(cqe);
        }
        let owner = self.qps.iter().position(|app| {
            let expected = if is_receive { app.setup.recv_cq } else { app.setup.send_cq };
            // A shared receive that was in use is flushed when its queue pair is destroyed.
            let may_complete = !app.is_gone || (is_receive && app.setup.srq.is_some());
            app.qpn == cqe.qpn && expected == cq && may_complete
        });
        let Some(owner) = owner else {
            self.verdicts.push(format!("a completion of no QP of this CQ: {cqe:?}"));
            return Some(cqe);
        };
        if is_receive && let Some(srq) = self.qps[owner].setup.srq {
            self.complete_shared(srq, &cqe);
            return Some(cqe);
        }
        let app = &mut self.qps[owner];
        let queue = if is_receive { &mut app.rq } else { &mut app.sq };
        let first_error = cqe.status != WcStatus::Success && !queue.oracle.has_failed();
        if let Err(verdict) = judge(queue, &cqe) {
            self.verdicts.push(verdict);
        }
        let witness = &self.trace.witness;
        if first_error && !is_receive && witness.is_acknowledged(cqe.qpn, cqe.wqe_index) {
            self.verdicts.push(format!("what was acknowledged completes in error: {cqe:?}"));
        }
        if is_receive {
            let sges = self.qps[owner].receives.pop_front().unwrap_or_default();
            self.unpack_carried(&cqe, &sges);
        }
        Some(cqe)
    }

    /// Polls everything there is.
    pub fn drain(&mut self, cq: CqId) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll(cq)).collect()
    }

    /// Copies data that came inside the CQE to where the receive wanted it.
    pub(crate) fn unpack_carried(&mut self, cqe: &Cqe, sges: &[Sge]) {
        if cqe.status != WcStatus::Success || cqe.carried_len() == 0 {
            return;
        }
        // The area in front of a datagram's payload comes in the completion by itself, too.
        let is_area = cqe.flags.contains(CqeFlags::GRH) && cqe.carried_len() == GRH_LEN;
        if cqe.carried_len() != cqe.byte_len as usize && !is_area {
            self.verdicts.push(format!("a completion carries part of its message: {cqe:?}"));
        }
        let carried = cqe.carried();
        let mut data = &carried[..cqe.carried_len()];
        for sge in sges {
            let (now, later) = data.split_at(data.len().min(sge.length as usize));
            self.memory.bytes_mut(SPACE, sge.addr, now.len() as u64).copy_from_slice(now);
            data = later;
        }
        if !data.is_empty() {
            self.verdicts.push(format!("a carried message is longer than its buffers: {cqe:?}"));
        }
    }

    /// Asks for a completion event.
    pub fn arm(&mut self, cq: CqId, kind: ArmKind) {
        self.cqs[cq.0].ring.arm().set(kind);
    }

    /// Completion events since the last call, by CQ.
    pub fn take_completion_events(&mut self) -> Vec<CqId> {
        let handles = std::mem::take(&mut self.notices.completions);
        let find = |handle| self.cqs.iter().position(|cq| cq.handle == handle).map(CqId);
        handles.into_iter().filter_map(find).collect()
    }

    /// Async events since the last call.
    pub fn take_async_events(&mut self) -> Vec<AsyncEvent> {
        std::mem::take(&mut self.notices.asyncs)
    }

    /// Async events of a QP since the last call; those of others are forgotten.
    pub fn take_qp_events(&mut self, qp: QpId) -> Vec<AsyncEventType> {
        let handle = self.qp_handle(qp);
        let events = self.take_async_events();
        events.into_iter().filter(|e| e.element == handle).map(|e| e.event).collect()
    }

    /// Sends and receives of a QP that must still complete.
    pub fn owed(&self, qp: QpId) -> (usize, usize) {
        let app = &self.qps[qp.0];
        (app.sq.oracle.owed(), app.rq.oracle.owed())
    }

    /// Receives posted and not polled.
    pub fn receives_posted(&self, qp: QpId) -> usize {
        self.qps[qp.0].receives.len()
    }
}

fn judge(queue: &mut AppQueue, cqe: &Cqe) -> Result<(), String> {
    if cqe.record != queue.record.value() {
        return Err(format!("a completion names another doorbell record: {cqe:?}"));
    }
    queue.oracle.complete(cqe).map(drop)
}

fn slot_of(queue: &AppQueue, ago: u32) -> (u32, Vec<u64>) {
    let index = queue.ring.producer().wrapping_sub(ago + 1);
    let mut words = vec![0; queue.stride];
    queue.ring.read_back(index, &mut words);
    (index, words)
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
