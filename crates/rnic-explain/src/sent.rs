//! The requests whose answers are awaited, in bounded memory.

use roce_wire::{Datagram, HeaderRepr, Opcode, Psn};
use std::collections::VecDeque;
use std::time::Duration;

/// Requests that are kept; of more, the oldest are forgotten.
const MOST: usize = 1024;

/// A request that will be answered, or that begins a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    psn: Psn,
    at: Duration,
    opcode: Opcode,
    /// Address, key and length of the remote memory.
    memory: Option<(u64, u32, u64)>,
    asks: bool,
    /// Its answer could be that of either transmission.
    is_repeated: bool,
}

impl Sent {
    pub(crate) fn of(datagram: &Datagram<'_>, at: Duration) -> Self {
        let HeaderRepr { bth, reth, atomic, .. } = datagram.headers();
        let memory = reth.map(|reth| (reth.va, reth.rkey.0, u64::from(reth.dma_len)));
        let memory = memory.or(atomic.map(|atomic| (atomic.va, atomic.rkey.0, 8)));
        let info = bth.opcode.info();
        // READs and atomics are answered without being asked to be.
        let asks = bth.ack_req || info.payload == roce_wire::PayloadRule::Zero;
        Self { psn: bth.psn, at, opcode: bth.opcode, memory, asks, is_repeated: false }
    }

    fn is_worth_keeping(&self) -> bool {
        self.asks || self.memory.is_some() || self.opcode.position().is_start()
    }

    /// The request in words.
    pub(crate) fn in_words(&self) -> String {
        let opcode = self.opcode;
        match self.memory {
            Some((va, rkey, len)) => {
                format!("{opcode} of {len} bytes at {va:#x} with rkey {rkey:#010x}")
            }
            None => opcode.to_string(),
        }
    }
}

/// Requests by PSN, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    requests: VecDeque<Sent>,
}

impl Recent {
    /// A request, in the order of PSNs where `is_new`.
    pub(crate) fn note(&mut self, sent: Sent, is_new: bool) {
        if !is_new {
            if let Some(before) = self.at(sent.psn) {
                before.is_repeated = true;
            }
        } else if sent.is_worth_keeping() {
            if self.requests.len() == MOST {
                self.requests.pop_front();
            }
            self.requests.push_back(sent);
        }
    }

    /// The request with this PSN. A file without acknowledgements fills the list, and each of its
    /// packets may be one that was sent again: looking at all of the list would cost too much.
    fn at(&mut self, psn: Psn) -> Option<&mut Sent> {
        let at = self.requests.partition_point(|sent| sent.psn.distance_from(psn) < 0);
        self.requests.get_mut(at).filter(|sent| sent.psn == psn)
    }

    /// Everything up to a PSN is answered. Returns when the request with this PSN was sent, where
    /// it asked for an answer and was sent once.
    pub(crate) fn answered(&mut self, psn: Psn) -> Option<Duration> {
        let is_behind = |sent: &Sent| sent.psn.distance_from(psn) > 0;
        let count = self.requests.iter().take_while(|sent| !is_behind(sent)).count();
        let last = self.requests.drain(..count).next_back()?;
        (last.psn == psn && last.asks && !last.is_repeated).then_some(last.at)
    }

    /// When this request, or the last one before it that is kept, was sent for the first time.
    /// `None` where all of them are answered or forgotten.
    pub(crate) fn first_sent(&self, psn: Psn) -> Option<Duration> {
        let behind = self.requests.partition_point(|sent| sent.psn.distance_from(psn) <= 0);
        Some(self.requests.get(behind.checked_sub(1)?)?.at)
    }

    /// The message to which a PSN belongs.
    pub(crate) fn message_of(&self, psn: Psn) -> Option<&Sent> {
        let until = self.requests.iter().take_while(|sent| sent.psn.distance_from(psn) <= 0);
        until.filter(|sent| sent.opcode.position().is_start()).last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_sent_again_tells_no_time() {
        let mut recent = Recent::default();
        let begin = Psn::new(0xff_fff0);
        let sent = |place: u32| Sent {
            psn: begin.wrapping_add(2 * place),
            at: Duration::from_secs(u64::from(place)),
            opcode: Opcode::RcSendOnly,
            memory: None,
            asks: true,
            is_repeated: false,
        };
        (0..20).for_each(|place| recent.note(sent(place), true));
        recent.note(sent(3), false);
        recent.note(sent(12), false);
        // Between two that are kept.
        recent.note(Sent { psn: begin.wrapping_add(11), ..sent(0) }, false);
        let mut answered = |place: u32| recent.answered(begin.wrapping_add(2 * place));
        let again: Vec<_> = (0..20).filter(|place| answered(*place).is_none()).collect();
        assert_eq!(again, [3, 12]);
    }
}
