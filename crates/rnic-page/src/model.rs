//! What a story consists of. The JSON of `rnic lab --json` is this.

use serde::{Deserialize, Serialize};

/// Version of the model. It changes when a reader of an older one would misunderstand.
pub const SCHEMA: u32 = 1;

/// What happened between some hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Story {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Short, as on a command line.
    pub name: String,
    /// One line.
    pub title: String,
    /// What a reader should know before, in paragraphs.
    pub about: Vec<String>,
    /// Between which. Steps and packets name them by their place here.
    pub hosts: Vec<Party>,
    /// What happened, in order.
    pub steps: Vec<Step>,
    /// Numbers that change over time.
    pub series: Vec<Series>,
    /// To think about.
    pub question: Option<Question>,
    /// Commands to try next.
    pub next: Vec<String>,
}

/// A host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Party {
    /// What the story calls it.
    pub name: String,
    /// IP address.
    pub address: String,
}

/// What kind of thing happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The program called a verb.
    Call,
    /// A work request was written into a ring.
    Wqe,
    /// A doorbell was rung, or found.
    Doorbell,
    /// The NIC fetched, changed, or decided something.
    Nic,
    /// A packet left.
    Packet,
    /// A packet arrived.
    Arrival,
    /// A packet or request was refused or dropped.
    Refusal,
    /// Something is sent again.
    Retry,
    /// Bytes in a program's memory.
    Memory,
    /// A queue pair changed its state.
    State,
    /// A completion was written or polled, or an event was delivered.
    Completion,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Nanoseconds since the beginning of the story.
    pub at: u64,
    /// On which host.
    pub host: usize,
    /// Kind.
    pub kind: Kind,
    /// One line.
    pub title: String,
    /// Explanations, in paragraphs.
    pub text: Vec<String>,
    /// The queue pair that it is about: host and number.
    pub qp: Option<String>,
    /// Why something was dropped, refused or sent again, in a word or two.
    pub reason: Option<String>,
    /// Rules that decided.
    pub rules: Vec<Rule>,
    /// Bytes, explained.
    pub blocks: Vec<Block>,
    /// The packet that left.
    pub flight: Option<Flight>,
}

impl Step {
    /// With a title only.
    pub fn new(kind: Kind, at: u64, host: usize, title: String) -> Self {
        Self {
            at,
            host,
            kind,
            title,
            text: Vec::new(),
            qp: None,
            reason: None,
            rules: Vec::new(),
            blocks: Vec::new(),
            flight: None,
        }
    }
}

/// A rule of the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// Its name in docs/compliance.md.
    pub name: String,
    /// What it says.
    pub what: String,
}

/// Bytes that mean something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// What they are.
    pub title: String,
    /// Two digits a byte.
    pub hex: String,
    /// What they mean, in order.
    pub fields: Vec<Field>,
}

/// The meaning of some bytes of a [`Block`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Field {
    /// First byte.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// What that means, if it is not obvious.
    pub note: String,
}

/// A packet on its way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Flight {
    /// Its number among all packets of the story, from 1.
    pub number: u64,
    /// Where it goes to.
    pub to: usize,
    /// A few words for an arrow.
    pub label: String,
    /// When it arrives: never, once or more than once. For a packet of a capture, which was seen
    /// in one place only, this is when it was seen.
    pub arrivals: Vec<u64>,
    /// What happened to it on the way, if anything.
    pub fate: Option<String>,
    /// It was sent before.
    pub again: bool,
}

/// A number that changes over time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// What it counts.
    pub name: String,
    /// Series of one group share a chart.
    pub group: String,
    /// On which host.
    pub host: usize,
    /// Its values; each lasts until the next.
    pub points: Vec<Point>,
}

/// A value from a moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Nanoseconds since the beginning of the story.
    pub at: u64,
    /// Value.
    pub value: i64,
}

/// Something to think about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The question.
    pub ask: String,
    /// Its answer.
    pub answer: String,
}
