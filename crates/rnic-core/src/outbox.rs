//! Management datagrams that wait for the wire.

use crate::command::{CommandError, Errno, OutgoingMad};
use roce_wire::Psn;
use std::collections::VecDeque;

/// What waits to be sent from QP1.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) waiting: VecDeque<OutgoingMad>,
    /// Of the next one.
    pub(crate) psn: Psn,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(MAX_WAITING), psn: Psn::ZERO }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, mad: OutgoingMad) -> Result<(), CommandError> {
        if self.waiting.len() >= MAX_WAITING {
            let reason = "more management datagrams wait than the wire takes";
            return Err(CommandError { errno: Errno::NoMem, reason });
        }
        self.waiting.push_back(mad);
        Ok(())
    }
}

/// The control plane sends again what it needs, so that more would only be older.
const MAX_WAITING: usize = 1024;
