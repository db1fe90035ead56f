//! Stories of RDMA, played by real engines in a deterministic world.
//!
//! A [`Scenario`] is a short program of verbs. [`play`] runs it with whatever faults are asked for,
//! and makes a [`Story`] of what happened; [`text()`] and [`markdown()`] show it, and so does the
//! page of `rnic-page`.
#![forbid(unsafe_code)]

mod calls;
mod decode;
mod levels;
mod markdown;
mod narrate;
mod reasons;
mod rules;
mod scenarios;
mod setup;
mod teller;
#[cfg(test)]
mod tests;
mod text;

pub use markdown::{index, markdown};
pub use rnic_page::{Story, html};
pub use rnic_sim::link::Blow;
pub use scenarios::{Scenario, all, chapters, named};
pub use text::{answer, parts, text};

use rnic_page::{Question, SCHEMA};
use std::io;
use teller::Teller;

/// What a scenario became.
#[derive(Debug)]
pub struct Played {
    /// What happened.
    pub story: Story,
    /// Packets, as their hosts sent them, for Wireshark.
    pub pcap: Vec<u8>,
    /// Explanations that found nothing to explain; none without faults.
    pub unmet: Vec<String>,
}

/// Plays a scenario. The packets with these numbers, from 1, suffer these blows.
///
/// # Errors
/// None that can happen: a buffer takes all that is written to it.
pub fn play(scenario: &Scenario, blows: &[(u64, Blow)]) -> io::Result<Played> {
    let mut teller = Teller::new(&(scenario.world)(), blows);
    (scenario.play)(&mut teller);
    teller.settle();
    let mut pcap = Vec::new();
    teller.world.capture().write(&mut pcap)?;
    let unmet = teller.unmet().into_iter().map(str::to_owned).collect();
    let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    let story = Story {
        schema: SCHEMA,
        name: scenario.name.to_owned(),
        title: scenario.line.to_owned(),
        about: owned(scenario.about),
        hosts: teller.hosts(),
        steps: teller.steps,
        series: teller.levels.series(),
        question: Some(Question {
            ask: scenario.ask.to_owned(),
            answer: scenario.answer.to_owned(),
        }),
        next: owned(scenario.next),
    };
    Ok(Played { story, pcap, unmet })
}
