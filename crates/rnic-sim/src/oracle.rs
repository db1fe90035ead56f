//! Judges of what every application may rely on, whatever the links do.
//!
//! [`QueueOracle`] watches one work queue of one queue pair: completions come exactly once, in the
//! order of posting, with the identity of their work request; a successful unsignaled send makes
//! none; after the first error everything is flushed, nothing succeeds, and nothing is left out.

use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{WcOpcode, WcStatus};
use std::collections::VecDeque;

/// A posted work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posted {
    /// Index in its ring.
    pub index: u32,
    /// Given by the application.
    pub wr_id: u64,
    /// A completion is due on success.
    pub signaled: bool,
    /// Opcode of a successful completion; `None` where the peer decides.
    pub opcode: Option<WcOpcode>,
}

/// Watches one work queue.
#[derive(Debug, Default)]
pub struct QueueOracle {
    name: String,
    posted: VecDeque<Posted>,
    failed: bool,
    /// Work requests that were posted and are no longer.
    gone: usize,
    /// The queue went on when so many were posted, all of which end with the flush before.
    resumes: VecDeque<usize>,
    completions: u64,
}

impl QueueOracle {
    /// Judge of an empty queue; `name` appears in its verdicts.
    pub fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// The application posted something.
    pub fn post(&mut self, posted: Posted) {
        self.posted.push_back(posted);
    }

    /// Work requests without a completion so far, those included that will not have any.
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Work requests that must still complete.
    pub fn owed(&self) -> usize {
        self.posted.iter().filter(|posted| posted.signaled || self.failed).count()
    }

    /// An error completion was seen.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Completions seen.
    pub fn completions(&self) -> u64 {
        self.completions
    }

    /// Forgets everything: the queue pair went to RESET.
    pub fn reset(&mut self) {
        self.posted.clear();
        self.failed = false;
        (self.gone, self.resumes) = (0, VecDeque::new());
    }

    /// The queue pair left SQE: what was posted until now is flushed, what comes now is not.
    pub fn resume(&mut self) {
        self.resumes.push_back(self.gone + self.posted.len());
        self.end_flush();
    }

    fn end_flush(&mut self) {
        while self.resumes.front().is_some_and(|at| *at <= self.gone) {
            self.resumes.pop_front();
            self.failed = false;
        }
    }

    /// A completion was polled.
    ///
    /// # Errors
    /// Why no queue may complete like this.
    pub fn complete(&mut self, cqe: &Cqe) -> Result<Posted, String> {
        self.completions += 1;
        let posted = self.find(cqe)?;
        let success = cqe.status == WcStatus::Success;
        if posted.wr_id != cqe.wr_id {
            return self.refuse(cqe, &format!("wr_id {:#x} was posted there", posted.wr_id));
        }
        if success && !posted.signaled {
            return self.refuse(cqe, "an unsignaled send completed with success");
        }
        if self.failed && cqe.status != WcStatus::WrFlushErr {
            return self.refuse(cqe, "after an error everything must be flushed");
        }
        let is_receive = cqe.flags.contains(CqeFlags::RECV);
        if is_receive != posted.opcode.is_none() {
            return self.refuse(cqe, "it is on the wrong side");
        }
        if let Some(opcode) = posted.opcode
            && success
            && opcode != cqe.opcode
        {
            return self.refuse(cqe, &format!("it was posted as {opcode:?}"));
        }
        self.failed |= !success;
        self.end_flush();
        Ok(posted)
    }

    /// The posted request that `cqe` is about. Requests before it must be unsignaled ones that
    /// succeeded.
    fn find(&mut self, cqe: &Cqe) -> Result<Posted, String> {
        while let Some(posted) = self.posted.pop_front() {
            self.gone += 1;
            if posted.index == cqe.wqe_index {
                return Ok(posted);
            }
            if posted.signaled || self.failed {
                let why =
                    format!("index {} is due first (wr_id {:#x})", posted.index, posted.wr_id);
                return self.refuse(cqe, &why);
            }
        }
        self.refuse(cqe, "nothing is posted there: a completion too many")
    }

    fn refuse<T>(&self, cqe: &Cqe, why: &str) -> Result<T, String> {
        Err(format!(
            "{}: completion of index {} (wr_id {:#x}, {:?}, {:?}): {why}",
            self.name, cqe.wqe_index, cqe.wr_id, cqe.status, cqe.opcode
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{Posted, QueueOracle};
    use rnic_abi::cqe::Cqe;
    use rnic_abi::verbs::{WcOpcode, WcStatus};

    fn oracle(signaled: &[bool]) -> QueueOracle {
        let mut oracle = QueueOracle::new("test".into());
        for (index, signaled) in (0..).zip(signaled) {
            let opcode = Some(WcOpcode::Write);
            let wr_id = u64::from(index) + 100;
            oracle.post(Posted { index, wr_id, signaled: *signaled, opcode });
        }
        oracle
    }

    fn cqe(index: u32, status: WcStatus) -> Cqe {
        let mut cqe = Cqe::new(u64::from(index) + 100, 7, WcOpcode::Write);
        cqe.wqe_index = index;
        cqe.status = status;
        cqe
    }

    #[test]
    fn completions_in_order_are_accepted_and_unsignaled_ones_skipped() {
        let mut oracle = oracle(&[true, false, false, true]);
        assert!(oracle.complete(&cqe(0, WcStatus::Success)).is_ok());
        assert!(oracle.complete(&cqe(3, WcStatus::Success)).is_ok());
        assert_eq!(oracle.outstanding(), 0);
        assert!(oracle.complete(&cqe(3, WcStatus::Success)).is_err(), "twice");
    }

    #[test]
    fn skipping_a_signaled_one_is_refused() {
        assert!(oracle(&[true, true]).complete(&cqe(1, WcStatus::Success)).is_err());
    }

    #[test]
    fn after_an_error_all_are_flushed_one_by_one() {
        let mut flushed = oracle(&[false, false, false]);
        assert!(flushed.complete(&cqe(1, WcStatus::RetryExcErr)).is_ok());
        assert!(flushed.complete(&cqe(2, WcStatus::WrFlushErr)).is_ok());
        let mut revived = oracle(&[true, true]);
        assert!(revived.complete(&cqe(0, WcStatus::RetryExcErr)).is_ok());
        assert!(revived.complete(&cqe(1, WcStatus::Success)).is_err());
        let mut skipped = oracle(&[false, false, false]);
        assert!(skipped.complete(&cqe(0, WcStatus::WrFlushErr)).is_ok());
        assert!(skipped.complete(&cqe(2, WcStatus::WrFlushErr)).is_err());
    }
}
