//! One message of random traffic, and how its verb is chosen.

use rnic_abi::verbs::SendFlags;
use rnic_core::time::Instant;
use rnic_sim::rng::Rng;

/// What a message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Send,
    Write,
    Read,
    /// Compare and swap of the flow's own word.
    CmpSwap,
    /// Fetch and add of the flow's own word.
    FetchAdd,
    /// Fetch and add of the word that all flows to a host share.
    SharedAdd,
    /// Eight bytes, answered when they are in place.
    AtomicWrite,
    /// Answered when all that was written before is in place.
    Flush,
}

/// Which verbs a flow uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taste {
    Everything,
    /// Long READs, one after the other.
    Reads,
    /// Nothing that the peer answers with data.
    Sends,
}

impl Taste {
    fn verb(self, rng: &mut Rng) -> Verb {
        use Verb::{AtomicWrite, CmpSwap, FetchAdd, Flush, Read, Send, SharedAdd, Write};
        match self {
            Self::Everything => rng.pick(&[
                Send,
                Send,
                Send,
                Write,
                Write,
                Write,
                Read,
                Read,
                Read,
                CmpSwap,
                FetchAdd,
                SharedAdd,
                AtomicWrite,
                Flush,
            ]),
            Self::Reads => Read,
            Self::Sends => rng.pick(&[Send, Write]),
        }
    }

    fn length(self, verb: Verb, rng: &mut Rng, mtu: u64, max: u64) -> u64 {
        match verb {
            Verb::Read if self == Self::Reads => max - rng.below(mtu),
            Verb::Send | Verb::Write | Verb::Read => length(rng, mtu, max),
            Verb::CmpSwap | Verb::FetchAdd | Verb::SharedAdd | Verb::AtomicWrite => 8,
            Verb::Flush => 0,
        }
    }
}

/// How its payload is handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Payload {
    Sges,
    Inline,
    Carried,
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// Also its `wr_id`.
    pub(crate) number: u64,
    pub(crate) slot: usize,
    /// When it was posted.
    pub(crate) posted: Instant,
    pub(crate) verb: Verb,
    pub(crate) len: u64,
    pub(crate) imm: Option<u32>,
    pub(crate) payload: Payload,
    pub(crate) flags: SendFlags,
    /// What the requester's memory must hold when it is complete (READ and atomics).
    pub(crate) fetched: Option<Vec<u8>>,
    /// Its payload is what an earlier READ or atomic fetches to this slot; it is fenced.
    pub(crate) forwards: Option<usize>,
    /// The window through which it accesses the peer's memory.
    pub(crate) pane: Option<usize>,
    /// The window that it ends, and its key.
    pub(crate) ends: Option<(usize, u32)>,
    /// The queue whose receive it takes, if it takes one, and that it names (XRC).
    pub(crate) queue: usize,
}

impl Message {
    pub(crate) fn random(
        (number, slot, posted): (u64, usize, Instant),
        taste: Taste,
        rng: &mut Rng,
        (mtu, max_len): (u64, u64),
    ) -> Self {
        let verb = taste.verb(rng);
        let has_payload = matches!(verb, Verb::Send | Verb::Write);
        let len = taste.length(verb, rng, mtu, max_len);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::FENCE, rng.chance(150_000));
        flags.set(SendFlags::SOLICITED, rng.chance(200_000));
        flags.set(SendFlags::SIGNALED, rng.chance(700_000));
        let small = (has_payload || verb == Verb::AtomicWrite) && len <= INLINE;
        let payload = match rng.below(4) {
            0 if small => Payload::Inline,
            // The library must not copy what an earlier READ may still write.
            1 if small && !flags.contains(SendFlags::FENCE) => Payload::Carried,
            _ => Payload::Sges,
        };
        let with_imm = has_payload && rng.chance(300_000);
        let imm = if with_imm { Some(rng.below32(u32::MAX)) } else { None };
        Self {
            number,
            slot,
            posted,
            verb,
            len,
            imm,
            payload,
            flags,
            fetched: None,
            forwards: None,
            pane: None,
            ends: None,
            queue: 0,
        }
    }

    /// It may send what an earlier READ or atomic fetches.
    pub(crate) fn may_forward(&self) -> bool {
        let sends = matches!(self.verb, Verb::Send | Verb::Write);
        sends && self.payload == Payload::Sges && self.flags.contains(SendFlags::FENCE)
    }

    /// The peer sees a receive completion.
    pub(crate) fn consumes_receive(&self) -> bool {
        self.verb == Verb::Send || (self.verb == Verb::Write && self.imm.is_some())
    }

    pub(crate) fn is_signaled(&self) -> bool {
        self.flags.contains(SendFlags::SIGNALED)
    }
}

/// Most inline bytes of the queue pairs.
pub(crate) const INLINE: u64 = 256;

fn length(rng: &mut Rng, mtu: u64, max: u64) -> u64 {
    let len = match rng.below(10) {
        0 => 0,
        1 => 1 + rng.below(8),
        2 | 3 => 1 + rng.below(INLINE),
        4 => mtu - 1,
        5 => mtu,
        6 => mtu + 1,
        7 => mtu * (1 + rng.below(4)),
        _ => rng.below(max),
    };
    len.min(max)
}
