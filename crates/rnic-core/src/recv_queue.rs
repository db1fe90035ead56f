//! The engine's side of receive queues, own and shared: WQEs are taken one at a time, in order.

use crate::clients::Clients;
use crate::command::EngineQueue;
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::words::LINE;
use rnic_abi::work_queue::WorkConsumer;
use rnic_abi::wqe::{MAX_SGE, RECV_CONTROL_WORDS, RecvControl, SGE_WORDS, Sge};

/// A receive WQE in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) index: u32,
    /// Bytes of all its SGEs.
    pub(crate) room: u64,
    /// Bytes of the message so far.
    pub(crate) filled: u64,
    /// SGE that takes the next byte.
    pub(crate) sge: usize,
    /// Bytes already in that SGE.
    pub(crate) in_sge: u32,
}

impl Recv {
    /// One that is invalid: nothing is left to do but to fail it.
    pub(crate) fn broken(wr_id: u64, index: u32) -> Self {
        Self { wr_id, index, room: 0, filled: 0, sge: 0, in_sge: 0 }
    }

    /// The message is given up: the next one fills the WQE from its beginning.
    pub(crate) fn start_over(&mut self) {
        (self.filled, self.sge, self.in_sge) = (0, 0, 0);
    }
}

/// Why no WQE could be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRecv {
    /// None is posted.
    Empty,
    /// The one that is posted is invalid.
    Broken { wr_id: u64, index: u32 },
}

/// The engine's side of a receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    ring: WorkConsumer,
    pub(crate) record: RecordIndex,
    /// Producer index as last seen.
    producer: u32,
}

impl RecvQueue {
    pub(crate) fn new(queue: EngineQueue) -> Self {
        Self { ring: queue.ring, record: queue.record, producer: 0 }
    }

    /// SGEs that a WQE may have.
    pub(crate) fn max_sges(&self) -> usize {
        (self.ring.stride().saturating_sub(RECV_CONTROL_WORDS) / SGE_WORDS).min(MAX_SGE)
    }

    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.producer = 0;
    }

    /// The QP is in ERR: what is posted from now on must be told, as it waits for no message. What
    /// is posted already is seen by the next [`refresh_producer`](Self::refresh_producer).
    pub(crate) fn mark_flushed(&mut self) {
        // Rule: ErrFlushesLateReceives
        self.ring.mark_flushed();
    }

    /// Reads the doorbell record.
    pub(crate) fn refresh_producer(&mut self, clients: &Clients, client: u32) {
        self.producer = clients.producer(client, self.record);
    }

    /// WQEs posted and not yet fetched.
    pub(crate) fn waiting(&self) -> u32 {
        self.ring.available(self.producer).unwrap_or(0)
    }

    /// WQEs posted and not yet fetched, as the doorbell record says now.
    pub(crate) fn posted(&self, clients: &Clients, client: u32) -> u32 {
        self.ring.available(clients.producer(client, self.record)).unwrap_or(0)
    }

    /// Takes the next WQE into use; its SGEs replace those in `sges`.
    pub(crate) fn take(
        &mut self,
        clients: &Clients,
        client: u32,
        sges: &mut Vec<Sge>,
    ) -> Result<Recv, NoRecv> {
        if self.waiting() == 0 {
            self.refresh_producer(clients, client);
            if self.waiting() == 0 {
                return Err(NoRecv::Empty);
            }
        }
        let mut line = [0; LINE];
        let index = self.ring.fetch(&mut line);
        let broken = NoRecv::Broken { wr_id: line[1], index };
        let control =
            RecvControl::decode(&[line[0], line[1]], self.ring.stride()).map_err(|_| broken)?;
        self.copy_sges(index, usize::from(control.num_sge), &line, sges);
        Ok(Recv {
            wr_id: control.wr_id,
            index,
            room: sges.iter().map(|sge| u64::from(sge.length)).sum(),
            filled: 0,
            sge: 0,
            in_sge: 0,
        })
    }

    /// The first three SGEs came with the first line of the slot.
    fn copy_sges(&mut self, index: u32, count: usize, line: &[u64; LINE], sges: &mut Vec<Sge>) {
        sges.clear();
        let (pairs, _) = line[RECV_CONTROL_WORDS..].as_chunks::<SGE_WORDS>();
        sges.extend(pairs.iter().take(count).map(|pair| Sge::decode(*pair)));
        while sges.len() < count {
            let mut pair = [0; SGE_WORDS];
            self.ring.copy(index, RECV_CONTROL_WORDS + sges.len() * SGE_WORDS, &mut pair);
            sges.push(Sge::decode(pair));
        }
    }

    /// The WQE at `index` is complete: it and everything before it may be used again.
    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        self.ring.release(index.wrapping_add(1));
    }

    /// Takes the next WQE of a QP in ERR: index and `wr_id`.
    pub(crate) fn flush_next(&mut self) -> Option<(u32, u64)> {
        if self.waiting() == 0 {
            return None;
        }
        let mut words = [0; RECV_CONTROL_WORDS];
        let index = self.ring.fetch(&mut words);
        Some((index, words[1]))
    }
}
