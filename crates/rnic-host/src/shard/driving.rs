//! Turns of the engine in threads of the program that it is in.
//!
//! While a thread of the program polls again and again, its empty polls turn the engine
//! ([`rnic_abi::os::driving`]), and the engine's own thread only looks now and then whether that
//! goes on. When the program stops, packets and posts wait until the next look. A program that has
//! made them wait is given the engine less and less often.
//!
//! The two threads may have different tables of descriptors. The program uses copies of the
//! sockets, which it is offered when it first wishes to drive; what goes to other descriptors is
//! kept for the engine's thread.

use super::held::Held;
use super::idle::Did;
use super::monotonic;
use super::run::Shard;
use crate::system;
use rnic_abi::control::MAX_DESCRIPTORS;
use rnic_abi::os::Connection;
use rnic_abi::os::driving::{Driving, Offer, State, Turned};
use rnic_core::Instant;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use xdp_io::udp::{SocketCopy, Use};

/// What an engine needs to be driven by the program that it is in.
pub struct Driven {
    /// What both agree on.
    pub driving: &'static Driving,
    /// Where the program gets copies of the engine's sockets.
    pub offers: Connection,
}

/// The engine's side.
pub(super) struct Policy {
    driven: Driven,
    /// The program made no turn between the last two looks.
    is_away: bool,
    /// When the program got the engine.
    since: Instant,
    /// When the copies of sockets were compared last.
    compared: Instant,
    /// When a turn of the program last sent what was due.
    departed: Instant,
    /// A turn of the program has received since, and left sending to the next one.
    owes: bool,
    /// The program may drive again from then on.
    not_before: Instant,
    /// How long the program was kept from driving the last time that it had made packets or posts
    /// wait.
    pause: Duration,
}

/// How often the engine's thread looks while the program drives. A packet may wait twice as long
/// after the program's last poll: the first look may still see a turn made just after the look
/// before it.
pub(super) const LOOK: Duration = Duration::from_micros(200);
/// After so many looks the thread makes a turn, too: it sees then whether the program should go on.
const LOOKS: u32 = 16;
/// For how long a copy of a socket is not compared again.
const BELIEVED: Duration = Duration::from_micros(20);
/// The least time from one beginning of driving to the next, which reads files of /proc.
const AGAIN: Duration = Duration::from_millis(5);
/// Limits of [`Policy::pause`].
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));
/// A program that has driven for so long is one that polls.
const STEADY: Duration = Duration::from_millis(20);
/// How soon to offer sockets again that could not be passed.
const REFUSED: Duration = Duration::from_secs(1);
/// How long a turn that received something may leave sending to the next turn, so that the
/// program's answer leaves together with the acknowledgement. Bounded, because a program that takes
/// long over each completion would make its peers and its other threads wait.
const PATIENCE: Duration = Duration::from_micros(50);

impl Policy {
    pub(super) fn new(driven: Driven) -> Self {
        Self {
            driven,
            is_away: false,
            since: Instant::ZERO,
            compared: Instant::ZERO,
            departed: Instant::ZERO,
            owes: false,
            not_before: Instant::ZERO,
            pause: Duration::ZERO,
        }
    }

    fn begin(&mut self, now: Instant) {
        self.since = now;
        self.is_away = false;
        self.driven.driving.set_state(State::Driven);
    }

    /// The engine's own thread turns it again. `waited`: there was something to do, and the program
    /// was away.
    fn end(&mut self, now: Instant, waited: bool) {
        self.driven.driving.set_state(State::Off);
        if now.since(self.since) > STEADY {
            self.pause = Duration::ZERO;
        }
        if waited {
            self.pause = (self.pause * 2).clamp(PAUSE.0, PAUSE.1);
        }
        self.not_before = now.after(self.pause.max(AGAIN));
    }

    /// Offers copies of the sockets. False when there are none, or when they cannot be passed.
    fn offer(&self, changes: u64, sockets: &[BorrowedFd<'_>]) -> bool {
        if sockets.is_empty() {
            return false;
        }
        let parts = sockets.chunks(MAX_DESCRIPTORS);
        let mut left = parts.len() as u64;
        for part in parts {
            left -= 1;
            if self.driven.offers.try_send(&Offer { changes, left }.encode(), part).is_err() {
                return false;
            }
        }
        self.driven.driving.set_state(State::Offered);
        true
    }

    /// The program is to close its copies.
    fn recall(&mut self, now: Instant) {
        self.driven.driving.set_state(State::Stale);
        self.not_before = now.after(REFUSED);
    }
}

/// What the engine's thread looks at while the program drives, without the lock.
pub(super) struct Watch {
    driving: &'static Driving,
    turns: u64,
    looks: u32,
    is_away: bool,
}

impl Watch {
    /// Whether the program has made turns since the last look.
    pub(super) fn goes_on(&mut self) -> bool {
        let turns = self.driving.turns();
        self.is_away = std::mem::replace(&mut self.turns, turns) == turns;
        self.looks += 1;
        !self.is_away && self.looks < LOOKS && !self.driving.is_withdrawn()
    }

    /// The program made no turn before the last look.
    pub(super) fn is_away(&self) -> bool {
        self.is_away
    }
}

impl Shard {
    /// What the engine's thread looks at while the program drives; `None` when it does not.
    pub(super) fn is_driven(&mut self, now: Instant, did: Did) -> Option<Watch> {
        self.driving.as_ref()?;
        self.recall_old_copies(now);
        // Others wait for what they have asked of the engine's thread.
        if self.stopping || !self.inbox.receiver.is_empty() {
            return None;
        }
        let policy = self.driving.as_mut()?;
        let driving = policy.driven.driving;
        let is_driven = match driving.state() {
            State::Driven => self.goes_on(now, did),
            State::Off | State::Offered | State::Stale => {
                let thread = driving.take_wish()?;
                now >= policy.not_before && self.begins(now, thread)
            }
        };
        is_driven.then(|| Watch { driving, turns: driving.turns(), looks: 0, is_away: false })
    }

    /// The engine's thread has watched.
    pub(super) fn watched(&mut self, watch: &Watch) {
        if let Some(policy) = &mut self.driving {
            policy.is_away = watch.is_away();
        }
    }

    fn goes_on(&mut self, now: Instant, did: Did) -> bool {
        // Another thread of the program may have closed the copies.
        let has_copies = self.nic.wire.udp_port().is_some_and(|port| port.has_copies());
        let may = has_copies && self.may_be_driven();
        let Some(policy) = &mut self.driving else { return false };
        let is_away = std::mem::take(&mut policy.is_away);
        let goes_on = may && !is_away && !policy.driven.driving.is_withdrawn();
        if !goes_on {
            policy.end(now, is_away && did == Did::Work);
        }
        goes_on
    }

    /// Not while events or frames are watched: they are told over descriptors that the program's
    /// threads do not have. Not where more threads poll than there are CPUs: a thread that drives
    /// would keep its CPU from them.
    fn may_be_driven(&self) -> bool {
        self.nic.watchers.is_empty() && self.cpu_sharing.may_spin() && self.idle.is_adaptive()
    }

    /// A thread of the program wishes to drive. True when it does so from now on, or when the
    /// engine's thread is to sleep for a moment, so that the program can take what it is offered.
    fn begins(&mut self, now: Instant, thread: u32) -> bool {
        if !self.may_be_driven() {
            return false;
        }
        let Some(port) = self.nic.wire.udp_port() else { return false };
        let Some(policy) = &mut self.driving else { return false };
        policy.not_before = now.after(AGAIN);
        if !system::may_do_as_this(thread) {
            policy.not_before = now.after(REFUSED);
            return false;
        }
        policy.driven.driving.admit(thread);
        if port.has_copies() {
            policy.begin(now);
            return true;
        }
        let (sockets, changes) = port.sockets();
        let is_offered = policy.offer(changes, &sockets);
        if !is_offered {
            policy.not_before = now.after(REFUSED);
        }
        is_offered
    }

    /// Copies that the program has of sockets that are gone would keep them open.
    fn recall_old_copies(&mut self, now: Instant) {
        let Some(port) = self.nic.wire.udp_port() else { return };
        if port.copied_at().is_none() || port.has_copies() {
            return;
        }
        port.forget_copies();
        if let Some(policy) = &mut self.driving {
            policy.recall(now);
        }
    }

    /// Sends what a turn of the program has left to the next one. Before anything that may take the
    /// queue pair away which owes it: what was received would never be acknowledged.
    pub(super) fn send_owed(&mut self) {
        if self.driving.as_mut().is_some_and(|policy| std::mem::take(&mut policy.owes)) {
            self.nic.departures(monotonic());
        }
    }

    /// How many turns threads of the program have made.
    pub(super) fn driven_turns(&self) -> u64 {
        self.driving.as_ref().map_or(0, |policy| policy.driven.driving.turns())
    }

    /// A turn in a thread of the program.
    fn driven_turn(&mut self) -> Turned {
        let now = monotonic();
        let Some(policy) = &mut self.driving else { return Turned::default() };
        policy.driven.driving.note_turn();
        let may_wait = now < policy.departed.after(PATIENCE);
        let compare = now >= policy.compared.after(BELIEVED);
        if compare {
            policy.compared = now;
        }
        self.use_copies(if compare { Use::Compared } else { Use::Believed });
        self.nic.dma.begin_turn();
        let mut turn = self.nic.arrivals(now);
        let departs = !(turn.delivered() && may_wait);
        if departs {
            turn = turn.and(self.nic.departures(now));
        }
        self.use_copies(Use::No);
        if let Some(policy) = &mut self.driving {
            policy.owes = !departs;
            if departs {
                policy.departed = now;
            }
        }
        let has_lost = self.nic.wire.udp_port().is_none_or(|port| !port.has_copies());
        Turned::default()
            .with(Turned::DELIVERED, turn.delivered())
            .with(Turned::WAKE, self.nic.events.any_kept() || has_lost)
    }

    fn use_copies(&mut self, how: Use) {
        self.nic.events.keep(how != Use::No);
        if let Some(port) = self.nic.wire.udp_port() {
            port.use_copies(how);
        }
    }
}

/// The program's side.
#[derive(Clone)]
pub struct ProgramsEngine {
    held: Held,
    driving: &'static Driving,
}

impl ProgramsEngine {
    pub(super) fn new(held: Held, driving: &'static Driving) -> Self {
        Self { held, driving }
    }

    /// A turn, if the program drives.
    pub fn turn(&self) -> Turned {
        let Some(mut held) = self.held.try_lock() else {
            return Turned::default().with(Turned::BUSY, true);
        };
        match held.as_mut() {
            Some(shard) if self.driving.state() == State::Driven => shard.driven_turn(),
            _ => Turned::default(),
        }
    }

    /// Takes copies of the engine's sockets as they were at this number of changes. False when they
    /// are others now, or when another thread has the engine.
    pub fn take_copies(&self, changes: u64, copies: &[OwnedFd]) -> bool {
        let copies = copies.iter().map(|copy| SocketCopy::of(copy.as_fd()));
        let Ok(copies) = copies.collect::<Result<Vec<_>, _>>() else { return false };
        let Some(mut held) = self.held.try_lock() else { return false };
        let port = held.as_mut().and_then(|shard| shard.nic.wire.udp_port());
        port.is_some_and(|port| port.take_copies(changes, &copies))
    }

    /// The copies are about to be closed. False when another thread has the engine.
    pub fn forget_copies(&self) -> bool {
        let Some(mut held) = self.held.try_lock() else { return false };
        if let Some(port) = held.as_mut().and_then(|shard| shard.nic.wire.udp_port()) {
            port.forget_copies();
        }
        true
    }

    /// It has ended, or does so now.
    pub fn has_ended(&self) -> bool {
        self.held.try_lock().is_some_and(|held| held.is_none())
    }
}

#[cfg(test)]
mod tests;
