//! Turns of the engine in threads of the program that it is in.
//!
//! While a thread of the program polls again and again, its empty polls turn the engine
//! ([`rnic_abi::os::driving`]), and the engine's own thread sleeps until an [`Alarm`] rings that
//! these turns put off. When the program stops, packets and posts wait until then. A program that
//! has made them wait is given the engine less and less often.
//!
//! The two threads may have different tables of descriptors. The program uses copies of the
//! sockets, which it is offered when it first wishes to drive; what goes to other descriptors is
//! kept for the engine's thread.

mod pace;
mod program;
mod rest;
mod watch;

use super::alarm::Alarm;
use super::cpu_sharing::Crowd;
use super::idle::Did;
use super::monotonic;
use super::run::Shard;
use crate::system::{self, CpuUse};
use pace::Pace;
pub use program::ProgramsEngine;
use rest::Rest;
use rnic_abi::control::MAX_DESCRIPTORS;
use rnic_abi::os::Connection;
use rnic_abi::os::driving::{Driving, Offer, State, Turned};
use rnic_core::{Instant, Turn};
use std::cell::OnceCell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
pub(super) use watch::Watch;
use xdp_io::udp::Use;

/// What an engine needs to be driven by the program that it is in.
pub struct Driven {
    /// What both agree on.
    pub driving: &'static Driving,
    /// Where the program gets copies of the engine's sockets.
    pub offers: Connection,
    /// Whether a handler of the program may run in the thread that drives, and leave a turn in the
    /// middle.
    pub has_handlers: fn() -> bool,
}

/// The engine's side.
pub(super) struct Policy {
    driven: Driven,
    /// None inside where it cannot be had: the engine's thread looks more often then.
    alarm: OnceCell<Option<Arc<Alarm>>>,
    /// When a turn of the program is to put it off.
    put_off_at: Instant,
    /// What the engine's thread has seen of the program, between two sleeps.
    watch: Option<Watch>,
    /// Whether the engine's thread, which was woken, need not make a turn.
    keeps_on: KeepsOn,
    /// When the program got the engine.
    since: Instant,
    pace: Pace,
    /// When the copies of sockets were compared last.
    compared: Instant,
    /// When a turn of the program has received and left sending to the next one.
    owes: Option<Instant>,
    /// The thread that drove cannot copy: it keeps away what tells of missing pages. Or it rests,
    /// and others wait for what its turns bring.
    is_unfit: bool,
    /// How it rests.
    rest: Rest,
    /// What else needs its CPU.
    crowd: Crowd,
    /// When it was found that a thread which wishes to rest may drive.
    found_ready: Instant,
    /// The program may drive again from then on.
    not_before: Instant,
    /// How long the program was kept from driving the last time that it had made packets or posts
    /// wait.
    pause: Duration,
    /// Copies were offered so often since the program took some.
    offers: u32,
}

/// Whether the engine's thread leaves all turns to the program when it was woken: a turn of it
/// would take packets from the program and send acknowledgements ahead of its answers. A peer that
/// watches its memory after the acknowledgement (`ib_write_lat`) makes no turns then, and finds the
/// answer when its alarm rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum KeepsOn {
    /// The program has stopped, or does not drive.
    #[default]
    No,
    /// If all that is wanted of the thread is an answer: the program has made no turn since it last
    /// looked, but may not have had the CPU.
    IfAsked,
    /// The program makes turns.
    Yes,
}

/// How many turns a poll makes of a program that does nothing between its polls. Another poll would
/// have to find its way to the engine, and to keep away the signals that the program handles.
const TURNS: u32 = 8;
/// How often to look between two of these turns whether something has arrived: for a quarter of a
/// microsecond. That is seen at once then, and not behind half a turn on average. Nothing else is
/// looked at, so what other threads post waits for so long.
const LOADS: usize = 128;
/// As many turns take as long.
const LOOK: u32 = 1;
/// For how long a copy of a socket is not compared again. To compare those of a port takes a
/// microsecond, in which nothing is received.
const BELIEVED: Duration = Duration::from_micros(50);
/// The least time from one beginning of driving to the next, which reads files of /proc.
const AGAIN: Duration = Duration::from_millis(5);
/// How soon a program that was offered copies may drive: it takes them with its next poll.
const TAKE: Duration = Duration::from_micros(500);
/// Limits of [`Policy::pause`].
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));
/// A program that has driven for so long is one that polls.
const STEADY: Duration = Duration::from_millis(20);
/// After so many offers that were not taken the program cannot take any.
const OFFERS: u32 = 4;
/// How soon to offer sockets again that could not be passed, or taken.
const REFUSED: Duration = Duration::from_secs(1);
/// Most halves of turns for what is owed: one has room for some queue pairs only.
const DEPARTURES: u32 = 64;
/// How soon after a turn that received something the next one sends first. Later, timers may have
/// expired, and what has arrived counts before them (rule `ArrivalsBeforeTimers`).
const ANSWER: Duration = Duration::from_micros(20);

impl Policy {
    pub(super) fn new(driven: Driven) -> Self {
        Self {
            driven,
            alarm: OnceCell::new(),
            put_off_at: Instant::ZERO,
            watch: None,
            keeps_on: KeepsOn::default(),
            since: Instant::ZERO,
            pace: Pace::new(Instant::ZERO),
            compared: Instant::ZERO,
            owes: None,
            is_unfit: false,
            rest: Rest::default(),
            crowd: Crowd::default(),
            found_ready: Instant::ZERO,
            not_before: Instant::ZERO,
            pause: Duration::ZERO,
            offers: 0,
        }
    }

    fn begin(&mut self, now: Instant) {
        self.look_for_handlers();
        self.since = now;
        self.put_off_at = now;
        self.pace = self.pace.again(now);
        self.rest = Rest::default();
        self.crowd.forget_sample();
        self.driven.driving.set_ready(0);
        self.offers = 0;
        self.driven.driving.set_state(State::Driven);
        self.watch = Some(self.new_watch(now));
    }

    /// To keep signals away from turns costs a twentieth of half a round trip.
    fn look_for_handlers(&self) {
        let Driven { driving, has_handlers, .. } = self.driven;
        driving.set_calm(!has_handlers());
    }

    /// Time in which another thread had the CPU is not the program's own.
    fn look_for_crowd(&mut self, now: Instant) {
        if self.crowd.look(self.pace.left(), now, CpuUse::now) {
            self.pace.leaves(now, false);
        }
        self.driven.driving.set_crowded(self.crowd.is_on(now));
    }

    /// The engine's own thread turns it again. `waited`: there was something to do, and the program
    /// was away.
    fn end(&mut self, now: Instant, waited: bool) {
        self.driven.driving.set_state(State::Off);
        self.watch = None;
        let waited = waited || self.rest.is_disturbed();
        self.rest = Rest::default();
        if now.since(self.since) > STEADY {
            self.pause = Duration::ZERO;
        }
        let was_unfit = std::mem::take(&mut self.is_unfit);
        if waited || was_unfit || self.pace.is_slow() {
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
        self.watch = None;
        self.not_before = now.after(REFUSED);
    }
}

impl Shard {
    /// What the engine's thread looks at while the program drives; `None` when it does not.
    pub(super) fn is_driven(&mut self, now: Instant, did: Did) -> Option<Watch> {
        let driving = self.driving.as_ref()?.driven.driving;
        self.recall_old_copies(now);
        // Others wait for what they have asked of the engine's thread.
        if self.stopping || !self.inbox.receiver.is_empty() {
            return None;
        }
        let is_driven = match driving.state() {
            State::Driven => self.goes_on(now, did),
            State::Off | State::Offered | State::Stale => {
                let (thread, rests) = driving.take_wish()?;
                let may = match rests {
                    true => self.may_rest(now, thread),
                    false => self.admits(now, thread),
                };
                may && self.begins(now, thread)
            }
        };
        let policy = self.driving.as_mut().filter(|_| is_driven)?;
        // The next turns are the program's.
        self.nic.dma.change_thread();
        let watch = policy.watch.take();
        Some(watch.map_or_else(|| policy.new_watch(now), |watch| watch.looked(now)))
    }

    /// Whether the engine's thread does what others ask for and sleeps on.
    pub(super) fn keeps_on(&mut self) -> KeepsOn {
        let Some(policy) = &mut self.driving else { return KeepsOn::No };
        let keeps_on = std::mem::take(&mut policy.keeps_on);
        if policy.driven.driving.state() != State::Driven {
            return KeepsOn::No;
        }
        // Whatever this thread copies until it sleeps again: that of the program may block other
        // signals.
        self.nic.dma.change_thread();
        keeps_on
    }

    /// The engine's thread has watched, until the program stopped, it was time to look, or someone
    /// asked for something.
    pub(super) fn watched(&mut self, mut watch: Watch, was_called: bool) {
        let Some(policy) = &mut self.driving else { return };
        let was_quiet = was_called && watch.was_quiet();
        // Where no alarm tells, the next question might come before it is known.
        policy.keeps_on = if watch.is_away() || was_quiet && watch.alarm().is_none() {
            KeepsOn::No
        } else if was_quiet {
            KeepsOn::IfAsked
        } else {
            KeepsOn::Yes
        };
        if policy.driven.driving.state() == State::Driven {
            policy.watch = Some(watch);
        }
        // It was not taken, and this thread does not wait for that any more.
        policy.driven.driving.leave(State::Offered);
    }

    /// A client has rung, for which the engine's thread was woken.
    pub(super) fn note_ring(&mut self) {
        if let Some(policy) = &mut self.driving
            && policy.keeps_on == KeepsOn::IfAsked
        {
            policy.keeps_on = KeepsOn::No;
        }
    }

    fn goes_on(&mut self, now: Instant, did: Did) -> bool {
        // Another thread of the program may have closed the copies.
        let has_copies = self.nic.wire.udp_port().is_some_and(|port| port.has_copies());
        let may = has_copies && self.may_be_driven();
        let Some(policy) = &mut self.driving else { return false };
        let is_away = policy.watch.as_ref().is_some_and(Watch::is_away);
        // A turn was made for it while it slept.
        let is_left = is_away || policy.rest.is_disturbed();
        let goes_on = may && !is_left && !policy.driven.driving.is_withdrawn();
        if !goes_on {
            policy.end(now, is_away && did == Did::Work);
        } else if policy.watch.as_ref().is_none_or(|watch| watch.is_due(now)) {
            policy.look_for_handlers();
        }
        goes_on
    }

    /// Not while events or frames are watched: they are told over descriptors that the program's
    /// threads do not have. Not where more threads poll than there are CPUs: a thread that drives
    /// would keep its CPU from them.
    fn may_be_driven(&self) -> bool {
        self.nic.watchers.is_empty() && self.cpu_sharing.may_spin() && self.idle.is_adaptive()
    }

    /// Whether this thread may drive. It is not asked again for some time.
    fn admits(&mut self, now: Instant, thread: u32) -> bool {
        if !self.may_be_driven() {
            return false;
        }
        let Some(policy) = self.driving.as_mut().filter(|policy| now >= policy.not_before) else {
            return false;
        };
        let may = system::may_do_as_this(thread);
        policy.not_before = now.after(if may { AGAIN } else { REFUSED });
        may
    }

    /// A thread of the program wishes to drive. True when it does so from now on, or when the
    /// engine's thread is to sleep for a moment, so that the program can take what it is offered.
    fn begins(&mut self, now: Instant, thread: u32) -> bool {
        let Some(port) = self.nic.wire.udp_port() else { return false };
        let Some(policy) = &mut self.driving else { return false };
        policy.driven.driving.admit(thread);
        if port.has_copies() {
            policy.begin(now);
            return true;
        }
        let (sockets, changes) = port.sockets();
        let is_offered = policy.offer(changes, &sockets);
        policy.offers += 1;
        let may_be_taken = is_offered && policy.offers <= OFFERS;
        policy.not_before = now.after(if may_be_taken { TAKE } else { REFUSED });
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

    /// Whether a turn of the program has left sending to the next turn, which is to follow.
    pub(super) fn take_owed(&mut self) -> bool {
        self.driving.as_mut().is_some_and(|policy| policy.owes.take().is_some())
    }

    /// Whether the program does not seem to answer soon what a turn of it has received.
    fn owes_for_long(&self) -> bool {
        let owes = self.driving.as_ref().and_then(|policy| policy.owes);
        owes.is_some_and(|since| monotonic() >= since.after(ANSWER))
    }

    /// Sends what a turn of the program has left to the next one. Before anything that may take the
    /// queue pair away which owes it: what was received would never be acknowledged.
    pub(super) fn send_owed(&mut self) {
        let is_old = self.owes_for_long();
        if !self.take_owed() {
            return;
        }
        if is_old {
            let now = monotonic();
            self.nic.arrivals(now);
        }
        for _ in 0..DEPARTURES {
            if !self.nic.departures(monotonic()).more {
                break;
            }
        }
    }

    /// How many turns threads of the program have made.
    pub(super) fn count_driven_turns(&self) -> u64 {
        self.driving.as_ref().map_or(0, |policy| policy.driven.driving.turns())
    }

    /// Turns in a poll of the program.
    fn driven_turns(&mut self) -> Turned {
        let mut now = monotonic();
        self.rested(now);
        let Some(policy) = &mut self.driving else { return Turned::default() };
        let withdrawn = Turned::default().with(Turned::BUSY, true);
        if policy.driven.driving.is_withdrawn() {
            return withdrawn;
        }
        policy.look_for_crowd(now);
        let at_once = policy.pace.is_back(now);
        self.nic.dma.begin_turn(now);
        // Where this thread blocks the signals of missing pages the kernel would have to copy,
        // which a sandbox may forbid.
        let copies_plainly = self.nic.dma.copies_plainly();
        if policy.pace.is_slow() || !copies_plainly {
            // The engine's thread takes the engine back.
            policy.is_unfit = !copies_plainly;
            policy.driven.driving.withdraw();
            return withdrawn.with(Turned::WAKE, true);
        }
        let mut turned = Turned::default();
        let mut left = if at_once { TURNS } else { 1 };
        while left > 0 {
            turned = self.driven_turn(now);
            if turned != Turned::default() {
                break;
            }
            self.compare_early(now);
            left = left.saturating_sub(if left > 1 && self.looks_in_vain() { 1 + LOOK } else { 1 });
            now = monotonic();
        }
        if let Some(policy) = &mut self.driving {
            policy.pace.leaves(now, turned == Turned::default());
        }
        turned
    }

    /// After a turn that did nothing: waits a moment for something to arrive. True if nothing has.
    fn looks_in_vain(&mut self) -> bool {
        let is_idle = self.driving.as_ref().is_some_and(|policy| policy.rest.is_idle());
        is_idle && self.nic.wire.udp_port().is_some_and(|port| !port.look(LOADS))
    }

    /// Compares the copies after a turn that found nothing, so that one that finds something seldom
    /// has to.
    fn compare_early(&mut self, now: Instant) {
        let Some(policy) = &mut self.driving else { return };
        if now >= policy.compared.after(BELIEVED / 2)
            && let Some(port) = self.nic.wire.udp_port()
        {
            policy.compared = now;
            port.compare_copies();
        }
    }

    /// A turn in a thread of the program.
    fn driven_turn(&mut self, now: Instant) -> Turned {
        let Some(policy) = &mut self.driving else { return Turned::default() };
        policy.note_turn(now);
        let may_wait = policy.pace.answers();
        let owed = policy.owes.take();
        let is_late = |than| owed.is_some_and(|since: Instant| now >= since.after(than));
        let (answers, must) = (owed.is_some() && !is_late(ANSWER), is_late(pace::PATIENCE));
        let compare = now >= policy.compared.after(BELIEVED);
        if compare {
            policy.compared = now;
        }
        self.use_copies(if compare { Use::Compared } else { Use::Believed });
        // The program's answer to what the turn before has delivered need not wait.
        let answered = if answers { self.nic.departures(now) } else { Turn::default() };
        let arrived = self.nic.arrivals(now);
        let departs = must || !(arrived.delivered() && may_wait);
        let is_due = departs && (arrived.worked || !answers);
        let departed = if is_due { self.nic.departures(now) } else { Turn::default() };
        let turn = answered.and(arrived).and(departed);
        self.use_copies(Use::No);
        if let Some(policy) = &mut self.driving {
            policy.owes = (!departs).then_some(owed.filter(|_| !answers).unwrap_or(now));
            policy.pace.posted(now, turn.posted);
            policy.pace.delivered(arrived.delivered().then_some(now));
            policy.rest.made_turn(departs && !turn.worked && !turn.more);
        }
        let turned = Turned::default().with(Turned::DELIVERED, turn.delivered());
        let channel = self.driving.as_ref().map_or(0, |policy| policy.rest.channel(now));
        turned.with(Turned::WAKE, self.needs_its_thread(channel))
    }

    /// Something is to be done that only the engine's thread can do. A thread that rests takes the
    /// events of its channel itself.
    fn needs_its_thread(&mut self, channel: u64) -> bool {
        self.nic.events.any_kept_but_for(channel)
            || self.nic.wire.udp_port().is_none_or(|port| !port.has_copies())
    }

    /// The turns of the program use its copies of the sockets.
    fn use_copies(&mut self, how: Use) {
        self.nic.events.keep(how != Use::No);
        if let Some(port) = self.nic.wire.udp_port() {
            port.use_copies(how);
        }
    }
}

#[cfg(test)]
mod tests;
