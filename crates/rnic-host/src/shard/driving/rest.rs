//! Threads of the program that wait for completion events, or poll where something else computes.
//!
//! Such a thread drives as one does that only polls, but sleeps on its copies of the sockets where
//! that one would poll on: whatever comes wakes one thread, and not the engine's before it. While
//! it sleeps, doorbells wake the engine's thread, which takes the engine back for anything that is
//! to be done meanwhile.

use super::super::idle::{Did, Next};
use super::super::monotonic;
use super::super::run::Shard;
use super::watch::ALARM_IN_CROWD;
use super::{AGAIN, Policy, Watch};
use rnic_abi::os::driving::{NO_LIMIT, Resting, Turned};
use rnic_core::Instant;
use std::time::Duration;

/// How soon a program that rests waits again, or its events are sent.
const RETURNS: Duration = Duration::from_millis(1);

/// What is known of a thread that rests.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The program that drives waits for events of the channel whose end at its side has this
    /// inode; 0 where it waits for none.
    channel: u64,
    /// When it waited for them last.
    waited: Instant,
    /// It was told to sleep, and has made no turn since.
    sleeps: bool,
    /// The engine's thread had to make a turn meanwhile.
    is_disturbed: bool,
    /// The last turn did nothing, and there is nothing to do.
    is_idle: bool,
}

impl Rest {
    pub(super) fn is_known(&self) -> bool {
        self.channel != 0
    }

    /// The inode of the program's end of the channel of which it takes events itself; 0 when there
    /// is none. A program that waits there no more, but polls, makes turns all the same: a thread
    /// that waits at the channel itself would get the events when the engine's thread next looks.
    pub(super) fn channel(&self, now: Instant) -> u64 {
        if now < self.waited.after(RETURNS) { self.channel } else { 0 }
    }

    /// The engine's thread had to make a turn while the program slept.
    pub(super) fn is_disturbed(&self) -> bool {
        self.is_disturbed
    }

    /// The last turn did nothing, and there is nothing to do.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// A turn of the program is over.
    #[inline]
    pub(super) fn made_turn(&mut self, is_idle: bool) {
        self.is_idle = is_idle;
    }
}

impl Shard {
    /// Whether a thread that waits for events again and again is given the engine now. It must not
    /// be asleep then, so it is told first that it may have the engine, and waits for that the next
    /// time.
    pub(super) fn may_rest(&mut self, now: Instant, thread: u32) -> bool {
        let Some(policy) = &self.driving else { return false };
        let (driving, found) = (policy.driven.driving, policy.found_ready);
        let was_ready = driving.take_ready(thread);
        if was_ready && now < found.after(AGAIN) {
            return self.may_be_driven();
        }
        if !self.admits(now, thread) {
            return false;
        }
        // One that was ready long ago waits for the engine now.
        if !was_ready {
            driving.set_ready(thread);
            self.driving.iter_mut().for_each(|policy| policy.found_ready = now);
        }
        was_ready
    }

    /// A turn or a few for a thread that waits for an event. It is told to sleep if there is
    /// nothing to do.
    pub(super) fn rest(&mut self, resting: &mut Resting) -> Turned {
        let now = monotonic();
        self.driving.iter_mut().for_each(|policy| policy.rests_for(now, resting.channel));
        let turned = self.driven_turns();
        if turned.contains(Turned::BUSY) {
            return turned;
        }
        if let Some(event) = self.nic.events.take_kept(resting.channel) {
            resting.event = event;
            let wake = self.needs_its_thread(resting.channel);
            return Turned::default().with(Turned::EVENT, true).with(Turned::WAKE, wake);
        }
        if resting.channel != 0 && self.nic.events.any_kept_but_for(resting.channel) {
            // A thread that waits elsewhere would be woken through this one and the engine's.
            return self.is_of_no_use();
        }
        let is_idle = self.driving.as_ref().is_some_and(|policy| policy.rest.is_idle());
        let did = if is_idle { Did::Nothing } else { Did::Work };
        if self.idle.after_turn(monotonic(), did, self.cpu_sharing.may_spin()) == Next::Turn {
            return turned;
        }
        if std::mem::take(&mut resting.was_readable) {
            // Though something was there: it may be in a socket that was not looked at.
            self.nic.wire.awake(true);
            return turned;
        }
        // The engine's thread may have to be told of something.
        self.falls_asleep(resting).with(Turned::WAKE, turned.contains(Turned::WAKE))
    }

    fn falls_asleep(&mut self, resting: &mut Resting) -> Turned {
        if !self.is_quiet() {
            self.awake(false);
            return Turned::default();
        }
        let now = monotonic();
        let has_alarm = self.driving.as_mut().is_some_and(|policy| policy.falls_asleep(now));
        if !has_alarm || !self.tells_sockets(resting) {
            self.rested(now);
            // A poll need not sleep.
            let waits = resting.channel != 0;
            return if waits { self.is_of_no_use() } else { Turned::default() };
        }
        let deadline = self.nic.engine.next_deadline().map(|deadline| deadline.since(now));
        // Behind the alarm the engine's thread looks.
        let limit = deadline.filter(|limit| *limit < ALARM_IN_CROWD);
        resting.nanos = limit.map_or(NO_LIMIT, |limit| limit.as_nanos() as u64);
        Turned::default().with(Turned::SLEEP, true)
    }

    /// What to sleep on. False where it is too much.
    fn tells_sockets(&mut self, resting: &mut Resting) -> bool {
        let Some(port) = self.nic.wire.udp_port() else { return false };
        let mut room = resting.fds.iter_mut();
        resting.count = 0;
        for fd in port.copied_fds() {
            let Some(place) = room.next() else { return false };
            *place = fd;
            resting.count += 1;
        }
        true
    }

    /// The engine's thread takes the engine back, for some time.
    fn is_of_no_use(&mut self) -> Turned {
        if let Some(policy) = &mut self.driving {
            policy.is_unfit = true;
            policy.driven.driving.withdraw();
        }
        Turned::default().with(Turned::BUSY, true).with(Turned::WAKE, true)
    }

    /// A thread of the program begins a turn: if it has slept it does so no more.
    #[inline]
    pub(super) fn rested(&mut self, now: Instant) {
        let Some(policy) = &mut self.driving else { return };
        if std::mem::take(&mut policy.rest.sleeps) {
            policy.pace.leaves(now, false);
            policy.crowd.forget_sample();
            self.awake(false);
        }
    }

    /// The engine's thread was woken: whether it is to sleep on, which it is anyway if it
    /// `keeps_on`. Not where something is to be done while the program sleeps.
    pub(in super::super) fn lets_rest(&mut self, keeps_on: bool, was_told: bool) -> bool {
        let Some(policy) = self.driving.as_mut().filter(|policy| policy.rest.sleeps) else {
            return keeps_on;
        };
        let is_away = policy.watch.as_ref().is_none_or(Watch::is_away);
        if !is_away && !was_told && self.is_quiet() {
            return true;
        }
        self.awake(false);
        if let Some(policy) = &mut self.driving {
            policy.rest.sleeps = false;
            // The alarm is no disturbance.
            policy.rest.is_disturbed = !is_away;
        }
        false
    }

    /// Nothing is left to do, and from now on doorbells wake the engine's thread.
    fn is_quiet(&mut self) -> bool {
        !self.nic.wire.has_backlog()
            && self.nic.engine.prepare_sleep()
            && self.nic.wire.prepare_sleep()
    }
}

impl Policy {
    /// The program sleeps until packets or the alarm come. False where there is no alarm.
    fn falls_asleep(&mut self, now: Instant) -> bool {
        self.rest.sleeps = true;
        if now >= self.put_off_at {
            self.put_off(now);
        }
        self.alarm.get().is_some_and(Option::is_some)
    }

    /// It is one that rests, so the alarm may be as late as it ever is. Not one that polls.
    fn rests_for(&mut self, now: Instant, channel: u64) {
        if channel == 0 {
            return;
        }
        self.rest.waited = now;
        if std::mem::replace(&mut self.rest.channel, channel) == 0 {
            self.put_off_at = Instant::ZERO;
        }
    }
}
