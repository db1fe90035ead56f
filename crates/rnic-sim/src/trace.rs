//! What an engine did last, for a world that failed.

use crate::witness::Witness;
use rnic_core::event::{Event, Tap};
use rnic_core::time::Instant;
use std::collections::VecDeque;
use std::fmt;

/// The last events of one engine.
#[derive(Debug, Default)]
pub struct Trace {
    events: VecDeque<(Instant, Event)>,
    all: Option<Vec<(Instant, Event)>>,
    /// Judges them.
    pub witness: Witness,
}

/// Events kept for a report.
const KEPT: usize = 200;

impl Trace {
    /// From now on every event is kept, for [`take`](Self::take).
    pub fn keep_all(&mut self) {
        self.all.get_or_insert_default();
    }

    /// Every event since the last call, when all are kept.
    pub fn take(&mut self) -> Vec<(Instant, Event)> {
        self.all.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// All events that are kept: every one since the last [`take`](Self::take), or the last ones.
    pub fn kept(&self) -> impl Iterator<Item = &(Instant, Event)> {
        let all = self.all.iter().flatten();
        let last = self.events.iter().filter(|_| self.all.is_none());
        all.chain(last)
    }
}

impl Tap for Trace {
    fn on(&mut self, now: Instant, event: impl FnOnce() -> Event) {
        let event = event();
        self.witness.saw(now, &event);
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back((now, event));
        if let Some(all) = &mut self.all {
            all.push((now, event));
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, event) in self.kept() {
            writeln!(f, "{:>14} {event:?}", at.as_nanos())?;
        }
        Ok(())
    }
}
