//! The interoperability suite: our NIC against another implementation, each side as server and as
//! client.
//!
//! [`cases`] has the cases as data; [`InteropRun`] runs them; [`peers`] prepares the two sides. The
//! peer is anything that implements [`Peer`]. The suite is the same for all; where a known peer
//! differs from the specification, the case says so.

pub mod card;
pub mod cases;
pub mod endings;
mod evidence;
pub mod peers;

use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::inspect::ask;
use crate::place::{Node, OverV6, Place, active_mtu};
use crate::programs::{Dialogue, Transcript};
use crate::{checker, choice, interrupt, lab, native};
pub use cases::Case;

/// Which of the known implementations a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linux's soft RoCE, whose divergences the cases know.
    Rxe,
    /// Anything else: what the specification says is expected.
    Standard,
}

/// Another implementation and the host it is on.
pub trait Peer: Place {
    /// Which implementation it is.
    fn kind(&self) -> Kind;

    /// Copies a program of this machine there, so that [`Place::start`] finds it by its name.
    ///
    /// # Errors
    /// When it cannot be copied.
    fn install(&self, program: &Path) -> Result<()>;

    /// What its kernel or scripts logged, to explain a failure.
    fn log(&self) -> String;

    /// Counters and queue pairs of its device now, to explain a stall.
    fn state(&self) -> String;
}

/// The programs of the suite that are built here, and the folder they are in.
///
/// # Errors
/// As [`native::build`].
pub fn programs() -> Result<PathBuf> {
    checker::build()?;
    native::refusals()
}

/// Copies [`programs`] to a peer.
///
/// # Errors
/// When they cannot be built or copied.
pub fn equip(peer: &dyn Peer) -> Result<()> {
    let folder = programs()?;
    [checker::PROGRAM, native::REFUSALS]
        .iter()
        .try_for_each(|name| peer.install(&folder.join(name)))
}

/// The kind of packets of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// RoCE over IPv6, else over IPv4.
    pub v6: bool,
    /// Path MTU in bytes.
    pub path_mtu: u32,
}

/// All kinds of packets that the suite runs over.
pub const WIRES: [Wire; 4] = [
    Wire { v6: false, path_mtu: 1024 },
    Wire { v6: false, path_mtu: 4096 },
    Wire { v6: true, path_mtu: 1024 },
    Wire { v6: true, path_mtu: 4096 },
];

/// [`WIRES`] in the long form; otherwise two of them, which have both versions of IP and both path
/// MTUs.
#[must_use]
pub fn wires() -> Vec<Wire> {
    if lab::long_form() { WIRES.to_vec() } else { vec![WIRES[0], WIRES[3]] }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv{}, {}", if self.v6 { 6 } else { 4 }, self.path_mtu)
    }
}

/// Which side connects. The client of a one-way program is its requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Our NIC calls the peer.
    Client,
    /// The peer calls our NIC.
    Server,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Client { "we call" } else { "we serve" })
    }
}

/// How one dialogue went.
pub struct Outcome {
    /// The case.
    pub title: String,
    /// Its packets.
    pub wire: Wire,
    /// Our part.
    pub role: Role,
    /// From start to end.
    pub took: Duration,
    /// What went wrong.
    pub error: Option<String>,
}

/// Our NIC and a peer, ready to talk.
pub struct InteropRun<'a> {
    ours: &'a Node,
    peer: &'a dyn Peer,
    /// Where both have an IPv6 address.
    over_v6: Option<[OverV6<'a>; 2]>,
    /// The link between them loses packets.
    lossy: bool,
    /// rxe may still repeat its last message to a queue pair that has gone.
    patient: Cell<bool>,
}

impl<'a> InteropRun<'a> {
    /// Looks up the IPv6 addresses of both sides.
    ///
    /// # Errors
    /// When a device cannot be asked.
    pub fn new(ours: &'a Node, peer: &'a dyn Peer) -> Result<Self> {
        let over_v6 = match (OverV6::global(ours)?, OverV6::global(peer)?) {
            (Some(ours), Some(peer)) => Some([ours, peer]),
            _ => None,
        };
        let patient = Cell::new(peer.kind() == Kind::Rxe);
        Ok(Self { ours, peer, over_v6, lossy: false, patient })
    }

    /// The same over a link that loses packets.
    #[must_use]
    pub fn over_a_lossy_link(self) -> Self {
        Self { lossy: true, ..self }
    }

    /// The kinds of packets that both sides support. The others are named on standard error.
    ///
    /// # Errors
    /// When a device cannot be asked.
    pub fn possible(&self, wires: &[Wire]) -> Result<Vec<Wire>> {
        let largest = active_mtu(self.ours)?.min(active_mtu(self.peer)?);
        let (can, cannot): (Vec<_>, Vec<_>) = wires
            .iter()
            .partition(|wire| wire.path_mtu <= largest && (!wire.v6 || self.over_v6.is_some()));
        for wire in cannot {
            eprintln!("skipped: {wire} (path MTU {largest}, IPv6: {})", self.over_v6.is_some());
        }
        Ok(can)
    }

    /// Runs cases over one kind of packets, each in all its roles, and continues after a failure.
    ///
    /// # Errors
    /// When an interrupt arrives.
    pub fn run(&self, cases: &[Case], wire: Wire) -> Result<Vec<Outcome>> {
        let all = cases.iter().flat_map(|case| case.roles().iter().map(move |role| (case, *role)));
        all.map(|(case, role)| self.outcome(case, wire, role)).collect()
    }

    /// Runs cases that have both roles, each in one of them and over one of these kinds of packets,
    /// by the commit; its neighbours have others. The long form combines all.
    ///
    /// # Errors
    /// As [`InteropRun::run`].
    pub fn run_in_turn(&self, test: &str, cases: &[Case], wires: &[Wire]) -> Result<Vec<Outcome>> {
        let ways: Vec<_> =
            wires.iter().flat_map(|wire| cases::BOTH.iter().map(|role| (*wire, *role))).collect();
        let dealt = choice::pairs(test, &ways, cases).into_iter();
        dealt.map(|((wire, role), case)| self.outcome(case, wire, role)).collect()
    }

    fn outcome(&self, case: &Case, wire: Wire, role: Role) -> Result<Outcome> {
        let began = Instant::now();
        let error = self.attempt(case, wire, role)?;
        let outcome = Outcome { title: case.title(), wire, role, took: began.elapsed(), error };
        eprintln!("{outcome}");
        Ok(outcome)
    }

    /// What went wrong, in the last of the dialogues. A dialogue whose last ACK was lost is
    /// repeated.
    fn attempt(&self, case: &Case, wire: Wire, role: Role) -> Result<Option<String>> {
        let mut left = if self.lossy { LOSSY_ATTEMPTS - 1 } else { 0 };
        loop {
            let error = self.one(case, wire, role).err().map(|error| format!("{error:#}"));
            interrupt::check()?;
            let Some(text) = &error else { return Ok(None) };
            let reason = if left > 0 && last_ack_lost(text) {
                left -= 1;
                "the last ACK was lost, and its sender gone"
            } else if self.peer_talked_to_nobody() {
                "the peer repeated what was acknowledged, and its receiver gone"
            } else {
                return Ok(error);
            };
            lab::note(&format!("{} {}: {reason}", lab::AGAIN, case.title()));
        }
    }

    /// True for the first dialogue over a faultless link that ended like that: see
    /// [`MANY_UNHEARD`].
    fn peer_talked_to_nobody(&self) -> bool {
        if self.lossy || !self.patient.get() {
            return false;
        }
        // Without a daemon, the dialogue's own error explains more.
        let unheard = ask(self.ours, "counters").ok().and_then(|found| found["rx_no_qp"].as_u64());
        let excused = unheard.is_some_and(|unheard| unheard > MANY_UNHEARD);
        self.patient.set(!excused);
        excused
    }

    fn one(&self, case: &Case, wire: Wire, role: Role) -> Result<()> {
        let sides: [&dyn Place; 2] = match (&self.over_v6, wire.v6) {
            (Some([ours, peer]), true) => [ours, peer],
            (None, true) => bail!("one of the devices has no IPv6 address"),
            (_, false) => [self.ours, self.peer],
        };
        let (dialogue, more) = (case.dialogue(wire.path_mtu), case.peer_args(self.peer.kind()));
        let dialogue = match role {
            Role::Client => dialogue.server(more),
            Role::Server => dialogue.client(more),
        };
        let transcript = self.talk(&dialogue, sides, role)?;
        case.check(&transcript, self.peer.kind(), role).with_context(|| shown(&transcript))
    }

    fn talk(&self, dialogue: &Dialogue, sides: [&dyn Place; 2], role: Role) -> Result<Transcript> {
        let [ours, peer] = sides;
        let (server, client) = if role == Role::Client { (peer, ours) } else { (ours, peer) };
        evidence::if_slow(self.ours, self.peer, || dialogue.run(server, client))
    }
}

/// The program on one side ended with success; the other never learned that its last message had
/// arrived. perftest's latency programs end like that when the link loses the ACK of the last
/// message. That is no fault of a NIC: the QP that could acknowledge a retransmission is gone.
fn last_ack_lost(error: &str) -> bool {
    error.contains("_lat ") && error.contains("Failed status 12") && error.contains("ended with 0")
}

/// More packets than this to a destroyed queue pair of ours mean that a program on rxe repeats its
/// last message until it is killed.
///
/// rxe's retransmission timer also expires during a later message than the one it was started for.
/// While rxe then repeats that message, it drops the ACK of the first transmission, although it had
/// sent all of it: a capture shows whole messages repeated after our ACKs, one in 2000 here. If
/// that was the last message, our program has ended, and with seven retries rxe never gives up. One
/// case of a run may be repeated for this: if our NIC withheld ACKs, other cases would fail too.
const MANY_UNHEARD: u64 = 1000;

/// How many dialogues in a row may end like that over a lossy link before the case fails.
const LOSSY_ATTEMPTS: u32 = 3;

fn shown(transcript: &Transcript) -> String {
    let server = transcript.server.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("client: {}\nserver: {server}", transcript.client)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { title, wire, role, took, error } = self;
        let verdict = if error.is_some() { "FAILED" } else { "ok" };
        write!(f, "{verdict:<6} {:>5.1} s  {title}  ({wire}, {role})", took.as_secs_f64())?;
        error.as_ref().map_or(Ok(()), |error| write!(f, "\n{error}"))
    }
}

/// Fails when an outcome is a failure, and names them.
///
/// # Errors
/// See there.
pub fn all_well(outcomes: &[Outcome]) -> Result<()> {
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|outcome| outcome.error.is_some())
        .map(ToString::to_string)
        .collect();
    ensure!(
        failed.is_empty(),
        "{} of {} failed:\n{}",
        failed.len(),
        outcomes.len(),
        failed.join("\n")
    );
    Ok(())
}
