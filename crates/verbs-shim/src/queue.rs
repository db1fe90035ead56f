//! The library's side of one work queue: what was posted, and what was polled.
//!
//! Posting happens under the producer's lock, polling under the lock of the completion queue. What
//! both need are atomics.

mod outstanding;

use std::sync::atomic::{AtomicU32, Ordering};

use rnic_abi::{
    control::QueuePlace,
    cqe::{Cqe, CqeFlags},
    doorbell::RecordIndex,
    verbs::{SendFlags, WcOpcode, WcStatus},
    words::Words,
    work_queue::WorkProducer,
    wqe::{CONTROL_WORDS, MAX_SGE, RECV_CONTROL_WORDS, RecvControl, SGE_WORDS, SendControl, Sge},
};

use crate::{context::Context, lock::SpinLock};
use outstanding::Outstanding;

/// Words of the longest receive WQE.
pub(crate) const RECV_WORDS: usize = RECV_CONTROL_WORDS + MAX_SGE * SGE_WORDS;

/// What the queue is for. For queues of a QP also what polling must know about the QP.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// A send queue. Either all its WQEs are signaled, or only those with the flag.
    Send { qpn: u32, all_signaled: bool },
    /// A receive queue.
    Receive { qpn: u32 },
    /// A shared receive queue.
    Shared,
}

/// A send, receive or shared receive queue.
pub(crate) struct WorkQueue {
    pub(crate) producer: SpinLock<WorkProducer>,
    pub(crate) record: RecordIndex,
    pub(crate) role: Role,
    /// WQEs that may be outstanding.
    limit: u32,
    capacity: u32,
    /// Only reads slots.
    reader: WorkProducer,
    /// All WQEs below this index were polled.
    polled: AtomicU32,
    /// A shared queue is polled in any order.
    shared: Option<SpinLock<Outstanding>>,
}

impl WorkQueue {
    /// Takes the application's side of a fresh queue; `None` when the daemon's description is
    /// impossible.
    pub(crate) fn new(words: Words, place: &QueuePlace, limit: u32, role: Role) -> Option<Self> {
        let capacity = place.shape.capacity;
        let is_shared = matches!(role, Role::Shared);
        Some(Self {
            producer: SpinLock::new(WorkProducer::new(words.clone(), place.shape)?),
            record: place.record,
            role,
            limit: limit.min(capacity),
            capacity,
            reader: WorkProducer::new(words, place.shape)?,
            polled: AtomicU32::new(0),
            shared: is_shared.then(|| SpinLock::new(Outstanding::new(capacity))),
        })
    }

    /// Whether one more send may be posted: slots are free once the engine released them.
    #[inline]
    pub(crate) fn has_send_room(&self, producer: &mut WorkProducer) -> bool {
        let used = self.capacity.saturating_sub(producer.free());
        used < self.limit || producer.in_use() < self.limit
    }

    /// Whether one more receive may be posted. A poll still reads the slot of a completed receive,
    /// so the slot is free only after that poll; not so in a shared queue.
    #[inline]
    pub(crate) fn has_receive_room(&self, producer: &mut WorkProducer) -> bool {
        let used = match &self.shared {
            Some(shared) => shared.lock().count(),
            None => producer.producer().wrapping_sub(self.polled.load(Ordering::Acquire)),
        };
        used < self.limit && producer.free() > 0
    }

    /// Before a receive is written to the next slot.
    #[inline]
    pub(crate) fn note_posting(&self, producer: &WorkProducer) {
        if let Some(shared) = &self.shared {
            shared.lock().post(producer.producer(), |index| self.read_receive(index));
        }
    }

    fn read_receive(&self, index: u32) -> [u64; RECV_WORDS] {
        let mut words = [0; RECV_WORDS];
        self.reader.read_back(index, &mut words);
        words
    }

    /// Notes that a completion of this queue was polled.
    #[inline]
    pub(crate) fn note_polled(&self, index: u32) {
        match &self.shared {
            Some(shared) => shared.lock().poll(index),
            None => self.polled.store(index.wrapping_add(1), Ordering::Release),
        }
    }

    /// Whether a completion belongs to this queue, not to an earlier queue with the same record.
    #[inline]
    pub(crate) fn owns(&self, cqe: &Cqe) -> bool {
        match self.role {
            Role::Send { qpn, .. } => qpn == cqe.qpn && !cqe.flags.contains(CqeFlags::RECV),
            Role::Receive { qpn } => qpn == cqe.qpn && cqe.flags.contains(CqeFlags::RECV),
            Role::Shared => cqe.flags.contains(CqeFlags::RECV),
        }
    }

    /// Restarts at index 0: the QP went to RESET.
    pub(crate) fn reset(&self) {
        self.producer.visit(WorkProducer::reset);
        self.polled.store(0, Ordering::Release);
    }

    /// Copies received data that came inside the completion to the buffers of its receive WQE.
    #[cold]
    pub(crate) fn place_carried(&self, context: &Context, cqe: &Cqe) {
        let index = cqe.wqe_index;
        let slot = match &self.shared {
            // Under the lock: the slot may be used again, and is set aside then.
            Some(shared) => {
                let outstanding = shared.lock();
                outstanding.set_aside(index).unwrap_or_else(|| self.read_receive(index))
            }
            None => self.read_receive(index),
        };
        let stride = self.reader.stride();
        let Ok(control) = RecvControl::decode(&[slot[0], slot[1]], stride) else { return };
        let carried = cqe.carried();
        let mut data = &carried[..cqe.carried_len()];
        let (sges, _) = slot[RECV_CONTROL_WORDS..].as_chunks::<SGE_WORDS>();
        for sge in sges.iter().take(control.num_sge.into()) {
            let sge = Sge::decode(*sge);
            let (here, rest) = data.split_at(data.len().min(sge.length as usize));
            data = rest;
            // A null region has no memory.
            let region = context.mrs.find_settled(sge.lkey);
            let to = region.and_then(|region| region.locate(sge.addr, here.len() as u64));
            if let Some(to) = to {
                // SAFETY: the application registered this memory and posted it as a receive
                // buffer; it must not touch it before it has polled this completion.
                unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), to, here.len()) };
            }
        }
    }

    /// After the daemon died: a flushed completion for the next WQE that will never complete.
    pub(crate) fn next_orphan(&self) -> Option<Cqe> {
        // Which queue pair would complete a receive of a shared queue is not known.
        if self.shared.is_some() {
            return None;
        }
        // A slot is not overwritten while it is read here.
        self.producer.visit(|producer| self.next_orphan_of(producer.producer(), producer.in_use()))
    }

    fn next_orphan_of(&self, end: u32, in_use: u32) -> Option<Cqe> {
        loop {
            let index = self.polled.load(Ordering::Relaxed);
            if index == end {
                return None;
            }
            // Older slots were overwritten: their WQEs completed long ago.
            let oldest = end.wrapping_sub(self.capacity);
            let index = if end.wrapping_sub(index) > self.capacity { oldest } else { index };
            self.note_polled(index);
            let was_released = end.wrapping_sub(index) > in_use;
            if let Some(cqe) = self.flushed(index, was_released) {
                return Some(cqe);
            }
        }
    }

    /// The flushed completion of one WQE; `None` when the WQE is unsignaled and had succeeded.
    fn flushed(&self, index: u32, was_released: bool) -> Option<Cqe> {
        let (qpn, opcode, wr_id) = match self.role {
            Role::Send { qpn, all_signaled } => {
                let mut words = [0; CONTROL_WORDS];
                self.reader.read_back(index, &mut words);
                let control = SendControl::decode(&words, self.reader.stride()).ok()?;
                let signaled = all_signaled || control.flags.contains(SendFlags::SIGNALED);
                if was_released && !signaled {
                    return None;
                }
                (qpn, control.opcode.completion(), control.wr_id)
            }
            Role::Receive { qpn } => {
                let mut words = [0; RECV_CONTROL_WORDS];
                self.reader.read_back(index, &mut words);
                (qpn, WcOpcode::Recv, words[1])
            }
            Role::Shared => return None,
        };
        let mut cqe = Cqe::new(wr_id, qpn, opcode);
        cqe.status = WcStatus::WrFlushErr;
        cqe.record = self.record.value();
        cqe.wqe_index = index;
        Some(cqe)
    }
}
