//! Questions to an engine process, whose answers are only displayed.
//!
//! It may be stopped, or its engine be kept by its clients' memory. What misses a deadline is
//! called silent, and no answer is waited for until there was one: else a user could make each look
//! at the device take as long as a deadline.

use super::EngineProcess;
use crossbeam_channel::{Receiver, Sender, bounded};
use rnic_host::inspect::Found;
use rnic_host::satellite::protocol::{Inquiry, ToEngine, Told};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// See the [module](self).
#[derive(Default)]
pub(super) struct Questions {
    /// Those without an answer.
    open: HashMap<u32, (Part, Sender<Told>)>,
    next: u32,
    silent: [bool; 2],
    /// How long its answers to looks for one list have taken.
    listing: Duration,
}

/// What answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Engine,
    Process,
}

impl From<Inquiry> for Part {
    fn from(inquiry: Inquiry) -> Self {
        match inquiry {
            Inquiry::Engine(_) => Self::Engine,
            Inquiry::Sessions(_) => Self::Process,
        }
    }
}

impl Questions {
    /// There will be no answers.
    pub(super) fn give_up(&mut self) {
        self.open.clear();
    }
}

impl EngineProcess {
    /// Asks it something. `None` when no answer is to be waited for: it takes no question, or is
    /// silent, and is asked only to find out when that is over.
    pub(in crate::users) fn ask(&self, inquiry: Inquiry) -> Option<Receiver<Told>> {
        let (part, (answer, answered)) = (Part::from(inquiry), bounded(1));
        let mut state = self.state();
        if state.ends.is_some() {
            return None;
        }
        let questions = &mut state.questions;
        let is_silent = questions.silent[part as usize];
        let is_asked = questions.open.values().any(|(other, _)| *other == part);
        if is_silent && is_asked || questions.open.len() >= MAX_ASKED {
            return None;
        }
        questions.next = questions.next.wrapping_add(1);
        let number = questions.next;
        self.send(&ToEngine::Ask(number, inquiry), &[]).ok()?;
        questions.open.insert(number, (part, answer));
        (!is_silent).then_some(answered)
    }

    /// It has answered a question.
    pub(super) fn told(&self, number: u32, told: Told) {
        if let Told::Engine(Some(Found::Counters(counted))) = &told {
            self.has_counted(counted);
        }
        let questions = &mut self.state().questions;
        if let Some((part, answer)) = questions.open.remove(&number) {
            // Its engine has not answered in time.
            questions.silent[part as usize] = matches!(told, Told::Engine(None));
            let _ = answer.try_send(told);
        }
    }

    /// It has not answered in time.
    pub(in crate::users) fn is_late(&self, inquiry: Inquiry) {
        self.state().questions.silent[Part::from(inquiry) as usize] = true;
    }

    /// A list of all objects begins.
    pub(in crate::users) fn begin_list(&self) {
        self.state().questions.listing = Duration::ZERO;
    }

    /// Asks for a part of the list, and waits. It answers each time in time, and all of the list
    /// takes it no longer than [`LIST_PATIENCE`], or it is late.
    pub(in crate::users) fn look(&self, inquiry: Inquiry, patience: Duration) -> Option<Told> {
        let answered = self.ask(inquiry)?;
        let (began, spent) = (Instant::now(), self.state().questions.listing);
        let told = answered.recv_timeout(patience.min(LIST_PATIENCE.saturating_sub(spent)));
        self.state().questions.listing = spent + began.elapsed();
        told.inspect_err(|_| self.is_late(inquiry)).ok()
    }
}

/// Questions to a process without an answer.
const MAX_ASKED: usize = 64;
/// How long answers of one process may keep a list, all together.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
