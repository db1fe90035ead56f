//! What a world is made of, drawn from its seed.

use crate::ONE_READS;
use crate::message::Taste;
use rnic_abi::verbs::WcStatus;
use rnic_core::config::EngineConfig;
use rnic_core::profile::Profile;
use rnic_sim::link::Faults;
use rnic_sim::port::PortConfig;
use rnic_sim::rng::Rng;
use rnic_sim::verbs::Connection;
use rnic_sim::world::WorldConfig;

/// How a world ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Everything arrives.
    Clean,
    /// In the middle one end of the first connection goes to ERR.
    OneSideFails,
    /// It goes to RESET.
    OneSideResets,
    /// It is destroyed.
    Destroyed,
    /// A memory region that the first flow uses is deregistered.
    KeyVanishes(Part),
    /// The application unmaps such memory.
    PageVanishes(Part),
    /// The receiver of the first flow posts, but does not poll any more.
    CqOverflows,
    /// The wire of one host takes nothing any more.
    WireDies,
    /// The first flow may have no READs and atomics outstanding any more.
    DepthVanishes,
}

/// Memory that a flow uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// What the requester sends.
    Source,
    /// Where it wants fetched data.
    Sink,
    /// Where it writes.
    Target,
    /// What it reads.
    Store,
    /// Its atomic word.
    Word,
    /// Where the responder receives.
    Buffers,
}

const PARTS: [Part; 6] =
    [Part::Source, Part::Sink, Part::Target, Part::Store, Part::Word, Part::Buffers];

impl Ending {
    /// Some memory is not there any more.
    pub(crate) fn memory(rng: &mut Rng) -> Self {
        let part = rng.pick(&PARTS);
        rng.pick(&[Self::KeyVanishes(part), Self::PageVanishes(part)])
    }

    /// Any but the good one.
    pub(crate) fn bad(rng: &mut Rng) -> Self {
        let memory = [Self::memory(rng), Self::memory(rng), Self::memory(rng)];
        rng.pick(&[
            memory[0],
            memory[1],
            memory[2],
            Self::OneSideFails,
            Self::OneSideResets,
            Self::Destroyed,
            Self::CqOverflows,
            Self::WireDies,
            Self::DepthVanishes,
        ])
    }

    /// Only a timer tells that it came.
    pub(crate) fn needs_timer(self) -> bool {
        matches!(self, Self::CqOverflows | Self::WireDies)
    }

    /// Both ends of the first connection stop at once: what they post is not looked at any more.
    pub(crate) fn is_sudden(self) -> bool {
        matches!(self, Self::OneSideFails | Self::OneSideResets | Self::Destroyed)
    }

    /// There is no queue pair any more at one end.
    pub(crate) fn is_gone(self) -> bool {
        matches!(self, Self::OneSideResets | Self::Destroyed)
    }

    /// What the first request of the first flow that fails may complete with, where a NAK arrives
    /// for sure or may be lost.
    pub(crate) fn allows_send(self, status: WcStatus, nak_arrives: bool) -> bool {
        use WcStatus::{LocProtErr, LocQpOpErr, RemAccessErr, RemOpErr, RetryExcErr, WrFlushErr};
        let expected = match self {
            Self::KeyVanishes(part) | Self::PageVanishes(part)
                if matches!(part, Part::Source | Part::Sink) =>
            {
                return status == LocProtErr;
            }
            Self::KeyVanishes(Part::Buffers) | Self::PageVanishes(_) => RemOpErr,
            Self::CqOverflows => RemOpErr,
            Self::KeyVanishes(_) => RemAccessErr,
            Self::DepthVanishes => return status == LocQpOpErr,
            Self::WireDies => RetryExcErr,
            _ => WrFlushErr,
        };
        let unheard = status == RetryExcErr && !nak_arrives;
        status == expected || unheard || self.is_sudden()
    }

    /// What a receive of the first flow that fails may complete with.
    pub(crate) fn allows_receive(self, status: WcStatus) -> bool {
        use WcStatus::{LocAccessErr, LocProtErr, WrFlushErr};
        let expected = match self {
            Self::KeyVanishes(Part::Buffers) | Self::PageVanishes(Part::Buffers) => LocProtErr,
            // A WRITE with immediate data has taken it.
            Self::KeyVanishes(Part::Target) | Self::PageVanishes(Part::Target) => LocAccessErr,
            _ => WrFlushErr,
        };
        [expected, WrFlushErr].contains(&status)
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) salt: u64,
    pub(crate) faults: Faults,
    pub(crate) receive_delay: u64,
    pub(crate) ending: Ending,
    /// Requests that are lost without a trace are sent again after a timeout.
    pub(crate) timer: bool,
    /// Chance per step that a send queue is paused (SQD) or resumed.
    pub(crate) pauses: u32,
    /// Chance per pause that the number of outstanding READs changes.
    pub(crate) depth_changes: u32,
    /// Chance per step that a wire takes nothing for a while.
    pub(crate) stalls: u32,
    /// Chance per step that a connection grows old: its PSNs leap.
    pub(crate) leaps: u32,
    /// Chance that a completion queue changes its size at a step, parts per million.
    pub(crate) resizes: u32,
    /// Responders lend memory by windows, and take it back.
    pub(crate) lends: bool,
    /// Each direction of a connection is one of XRC.
    pub(crate) xrc: bool,
    /// Responders take their receives from shared queues.
    pub(crate) shares: bool,
    /// Everything leaves and arrives in large bursts.
    pub(crate) bursts: bool,
    /// What the two directions of each connection send.
    pub(crate) tastes: [Taste; 2],
    /// Vendor behaviour of the two hosts.
    pub(crate) profiles: [Profile; 2],
    pub(crate) connections: usize,
    path_mtu: u8,
    pub(crate) messages: u64,
    pub(crate) shared_cq: bool,
    pub(crate) lazy: u32,
}

/// Picoseconds per byte of a link on which all that may be in flight passes before a timeout.
const FAST: u64 = 800;
/// Packets of a burst, and nanoseconds of a turn in which they pile up.
const MANY: u32 = 256;
const LONG_TURN: u64 = 30_000;
/// Packets that a port receives in a turn, so that a thousand of them wait less than a timeout.
const PROMPT: u32 = 64;
/// So often a request may be lost, and its answer, and then there is a retry left.
const MERCY: u8 = 3;
/// Messages of one world, all flows together.
const MESSAGES: u64 = 240;

impl Plan {
    pub(crate) fn random(seed: u64, salt: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(1000) + salt);
        let connections = rng.pick(&[1, 1, 2, 4]);
        Self {
            seed,
            salt,
            faults: Faults { delay: 500 + rng.below(20_000), mercy: MERCY, ..Faults::default() },
            receive_delay: 0,
            ending: Ending::Clean,
            timer: true,
            pauses: 0,
            depth_changes: 0,
            stalls: 0,
            leaps: 0,
            resizes: 0,
            lends: false,
            xrc: false,
            shares: false,
            bursts: false,
            tastes: [Taste::Everything; 2],
            profiles: [Profile::Spec; 2],
            connections,
            path_mtu: rng.pick(&[1, 1, 2, 3, 4, 5]),
            messages: MESSAGES / (2 * connections as u64),
            shared_cq: rng.chance(500_000),
            lazy: rng.pick(&[0, 0, 500_000, 950_000]),
        }
    }

    /// Nothing is lost, overtaken or late, but for what a peer says in vain: no retry is needed.
    pub(crate) fn is_calm(&self) -> bool {
        let Faults { loss, shown_loss, duplicate, reorder, corrupt, ps_per_byte, .. } = self.faults;
        let harmless = loss + shown_loss + duplicate + reorder + corrupt + self.stalls == 0;
        harmless && ps_per_byte <= FAST
    }

    /// Nothing of a direction ends with the other one.
    pub(crate) fn may_be_xrc(&self) -> bool {
        self.ending == Ending::Clean
    }

    /// Receives of shared queues do not end with a queue pair. Those of XRC are of such queues
    /// anyway.
    pub(crate) fn may_share(&self) -> bool {
        self.ending == Ending::Clean && !self.xrc
    }

    /// The hosts and links of its world.
    pub(crate) fn world(&self, rng: &mut Rng) -> WorldConfig {
        let any = WorldConfig {
            seed: self.seed,
            faults: self.faults,
            profiles: self.profiles.to_vec(),
            ..WorldConfig::random_pair(rng.word())
        };
        let ports = any.ports.iter();
        if !self.bursts {
            // All answers to the end that reads arrive within a timeout.
            let few = if self.tastes == ONE_READS { PROMPT } else { 0 };
            let ports = ports.map(|port| PortConfig { rx_burst: port.rx_burst.max(few), ..*port });
            return WorldConfig { ports: ports.collect(), ..any };
        }
        let ports = ports.map(|port| PortConfig { tx_burst: MANY, rx_burst: MANY, ..*port });
        let engine = EngineConfig::new([0; 2]);
        WorldConfig { ports: ports.collect(), turn_time: LONG_TURN, engine, ..any }
    }

    /// One of its connections.
    pub(crate) fn connection(&self, rng: &mut Rng) -> Connection {
        let depth = rng.pick(&[1, 2, 4, 7, 16]);
        let psn = |rng: &mut Rng| match rng.below(2) {
            // About to wrap around.
            0 => 0x00ff_ffff - rng.below32(200),
            _ => rng.below32(1 << 24),
        };
        let normal = Connection::default();
        Connection {
            path_mtu: self.path_mtu,
            sq_psn: psn(rng),
            rq_psn: psn(rng),
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            min_rnr_timer: rng.pick(&[1, 5, 12]),
            timeout: if self.timer { normal.timeout } else { 0 },
            retry_cnt: if self.is_calm() { 0 } else { normal.retry_cnt },
            ..normal
        }
    }
}
