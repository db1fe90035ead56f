//! The stories that there are.

mod basics;
mod errors;
mod losses;
mod managing;
mod one_sided;
mod posting;
mod receives;
mod repairs;
mod unreliable;

use crate::teller::Teller;
use rnic_sim::world::WorldConfig;

/// A short program of verbs, and what there is to say about it.
#[derive(Debug)]
pub struct Scenario {
    /// As on the command line.
    pub name: &'static str,
    /// One line.
    pub line: &'static str,
    /// What a reader should know before, in paragraphs.
    pub about: &'static [&'static str],
    /// The world it plays in.
    pub(crate) world: fn() -> WorldConfig,
    /// The program.
    pub(crate) play: fn(&mut Teller),
    /// A question at the end.
    pub ask: &'static str,
    /// Its answer.
    pub answer: &'static str,
    /// Commands to try next.
    pub next: &'static [&'static str],
}

/// The first host, the second, and a third.
pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// All stories, in an order for a newcomer.
pub fn all() -> &'static [&'static Scenario] {
    &[
        &basics::VERBS_VS_SOCKETS,
        &basics::MEMORY_REGISTRATION,
        &basics::QP_STATES,
        &basics::SEND,
        &one_sided::WRITE,
        &one_sided::WRITE_IMM,
        &one_sided::READ,
        &one_sided::ATOMIC,
        &posting::INLINE,
        &posting::UNSIGNALED,
        &posting::EVENTS_VS_POLLING,
        &posting::FENCE,
        &posting::SQD,
        &receives::SRQ,
        &receives::RNR,
        &losses::LOSS,
        &losses::TIMEOUT,
        &losses::REORDER,
        &losses::DUPLICATE,
        &repairs::GHOST_ACK,
        &repairs::ICRC,
        &repairs::PSN_WRAP,
        &errors::BAD_RKEY,
        &errors::BAD_LENGTH,
        &unreliable::UC_LOSS,
        &unreliable::UD,
        &managing::CM_CONNECT,
        &managing::ECN_CNP,
    ]
}

/// The same in chapters.
pub(crate) const CHAPTERS: &[(&str, &[&str])] = &[
    ("First steps", &["verbs-vs-sockets", "memory-registration", "qp-states", "send"]),
    ("Memory of another host", &["write", "write-imm", "read", "atomic"]),
    (
        "Posting and completing",
        &["inline", "unsignaled", "events-vs-polling", "fence", "sqd", "srq", "rnr"],
    ),
    (
        "When packets go astray",
        &["loss", "timeout", "reorder", "duplicate", "ghost-ack", "icrc", "psn-wrap"],
    ),
    ("When programs are wrong", &["bad-rkey", "bad-length"]),
    ("Other transports, and the network", &["uc-loss", "ud", "cm-connect", "ecn-cnp"]),
];

/// The chapters of all stories.
pub fn chapters() -> impl Iterator<Item = (&'static str, Vec<&'static Scenario>)> {
    CHAPTERS
        .iter()
        .map(|(chapter, names)| (*chapter, names.iter().filter_map(|n| named(n)).collect()))
}

/// The story of this name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    all().iter().find(|scenario| scenario.name == name).copied()
}

/// Two hosts and good links of 1 Gbit/s.
pub(crate) fn plain() -> WorldConfig {
    let mut world = WorldConfig::pair(7);
    world.faults.ps_per_byte = 8_000;
    world
}

/// So many bytes of readable text.
pub(crate) fn verse(len: usize) -> Vec<u8> {
    const VERSE: &[u8] = b"The quick brown fox jumps over the lazy dog. ";
    VERSE.iter().copied().cycle().take(len).collect()
}
