//! Waits that turn the engine of a function: for completion events, and in polls where something
//! else computes.
//!
//! A thread that waits in `ibv_get_cq_event` again and again sleeps on its copies of the engine's
//! sockets, beside the channel. So what arrives wakes this thread alone, and not first the engine's
//! and then this one. Programs that wait otherwise (`poll`, `epoll_wait`) do not.

use std::{
    io,
    os::fd::{OwnedFd, RawFd},
    ptr::null,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use libc::{POLLIN, pollfd, timespec};
use rnic_abi::os::{
    Descriptor, blocking,
    driving::{Driving, NO_LIMIT, RESTS_ON, Resting, Turned},
    signals,
};

use super::{Drives, STREAK_TICKS, THREAD};
use crate::{context::Context, cpu_sharing::ticks, error::Result};

/// How the threads of a program wait for completion events.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Goes up when `ibv_get_cq_event` has to wait, and down when it finds an event.
    times: AtomicU32,
    /// How often events were requested since it was called last, and when that was.
    requests: AtomicU32,
    called: AtomicU64,
    /// When the channel's socket was looked into last.
    looked: AtomicU64,
}

/// One call in five that waits is one of a program that waits in `ibv_get_cq_event`: several events
/// may come at once. One that waits otherwise finds an event there, or a descriptor that does not
/// block.
const WAITED: u32 = 4;
/// From so many on it is believed.
const MANY: u32 = 64;
const MOST: u32 = 2 * MANY;
/// A program that requests so many events and does not call it waits otherwise.
const REQUESTS: u32 = 8;
/// For how long to try for an engine that another thread has, mostly its own, which may have to
/// wake up first: 0.4 ms at 2.5 GHz.
const PATIENCE_TICKS: u64 = 1_000_000;

impl Waits {
    /// An event is requested. Whether the program waits for it here.
    pub(crate) fn note_request(&self) -> bool {
        let requests = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if requests > REQUESTS {
            self.times.store(0, Ordering::Relaxed);
        }
        self.are_many()
    }

    /// `ibv_get_cq_event` was called and had to wait, or not.
    fn note_call(&self, waited: bool) {
        self.requests.store(0, Ordering::Relaxed);
        let now = ticks();
        let is_quick = now.wrapping_sub(self.called.swap(now, Ordering::Relaxed)) < STREAK_TICKS;
        let times = if is_quick { self.times.load(Ordering::Relaxed) } else { 0 };
        let times = if waited { (times + WAITED).min(MOST) } else { times.saturating_sub(1) };
        self.times.store(times, Ordering::Relaxed);
    }

    /// Whether it is time to look into the channel's socket: what is there waits behind what turns
    /// bring.
    fn are_to_look(&self) -> bool {
        let is_time = is_over(self.looked.load(Ordering::Relaxed));
        if is_time {
            self.looked.store(ticks(), Ordering::Relaxed);
        }
        is_time
    }

    fn are_many(&self) -> bool {
        self.times.load(Ordering::Relaxed) >= MANY
    }
}

impl Context {
    /// Whether `ibv_get_cq_event` is to say how it waits.
    pub(crate) fn counts_waits(&self) -> bool {
        self.drives.is_some()
    }

    /// The calling thread has found an event at once.
    pub(crate) fn note_event_found(&self) {
        self.drives.iter().for_each(|drives| drives.waits.note_call(false));
    }

    /// The calling thread has found no event at this end of a channel. Rests if it drives from now
    /// on.
    ///
    /// # Errors
    /// EINTR after a signal.
    pub(crate) fn begin_to_rest(&self, channel: &Descriptor<OwnedFd>) -> Result<Rested> {
        let Some(drives) = self.drives.as_ref().filter(|_| blocks(channel.number())) else {
            return Ok(Rested::No);
        };
        drives.waits.note_call(true);
        let (driving, thread) = (drives.driver.driving(), THREAD.get());
        if !drives.waits.are_many() || driving.calls(thread) {
            return Ok(Rested::No);
        }
        let is_ready = driving.is_ready(thread);
        driving.wish_to_rest(thread);
        if !is_ready {
            return Ok(Rested::No);
        }
        signals::without_but(|blocked| match self.is_given(driving, thread) {
            true => self.rest_at(drives, channel, Some(blocked)),
            false => look_for_signals(Some(blocked)).map(|()| Rested::No),
        })
    }

    /// Waits until the calling thread has the engine that it wishes for, not for long.
    fn is_given(&self, driving: &Driving, thread: u32) -> bool {
        if self.bell.finds_engine_asleep() {
            self.wake_engine();
        }
        let since = ticks();
        while !driving.calls(thread) {
            if is_over(since) {
                driving.take_wish_back();
                driving.take_ready(thread);
                return false;
            }
            // SAFETY: no arguments; it cannot fail on Linux.
            unsafe { libc::sched_yield() };
        }
        true
    }

    /// Waits for an event of the channel with this end while the calling thread drives.
    ///
    /// # Errors
    /// EINTR after a signal.
    pub(crate) fn rest(&self, channel: &Descriptor<OwnedFd>) -> Result<Rested> {
        let Some(drives) = &self.drives else { return Ok(Rested::No) };
        let driving = drives.driver.driving();
        if !driving.calls(THREAD.get()) || channel.get().is_none() || !blocks(channel.number()) {
            return Ok(Rested::No);
        }
        if drives.waits.are_to_look() {
            return Ok(Rested::Again);
        }
        match driving.is_calm() {
            true => self.rest_at(drives, channel, None),
            // A signal that comes between two sleeps is to end the next one.
            false => signals::without_but(|blocked| self.rest_at(drives, channel, Some(blocked))),
        }
    }

    /// The calling thread is about to sleep in the kernel, where it makes no turn.
    pub(crate) fn before_sleep(&self, channel: RawFd) {
        let Some(drives) = &self.drives else { return };
        if self.is_driving() && blocks(channel) && drives.driver.driving().withdraw() {
            self.wake_engine();
        }
    }

    /// [Rests](Self::rest) while the thread blocks all signals, and before blocked these, or has
    /// handlers for none.
    fn rest_at(
        &self,
        drives: &Drives,
        channel: &Descriptor<OwnedFd>,
        blocked: Option<u64>,
    ) -> Result<Rested> {
        let (driving, thread) = (drives.driver.driving(), THREAD.get());
        let (end, channel) = (channel.number(), channel.inode().number);
        let mut resting = Resting { channel, ..Resting::default() };
        let mut busy_since = None;
        while driving.calls(thread) && !busy_since.is_some_and(is_over) {
            let turned = self.turn(|driver| driver.rest(&mut resting));
            if turned.contains(Turned::EVENT) {
                drives.waits.note_call(true);
                return Ok(Rested::Event(resting.event));
            }
            if turned.contains(Turned::SLEEP) {
                let slept = sleep(&mut resting, end, blocked);
                if !matches!(slept, Ok(Slept::On)) {
                    // Or posts would wake the engine's thread.
                    self.drive();
                    return slept.map(|slept| match slept {
                        Slept::Refused => Rested::No,
                        _ => Rested::Again,
                    });
                }
            } else if drives.waits.are_to_look() {
                return look_for_signals(blocked).map(|()| Rested::Again);
            }
            busy_since = turned.contains(Turned::BUSY).then(|| busy_since.unwrap_or_else(ticks));
        }
        look_for_signals(blocked).map(|()| Rested::No)
    }
}

/// How a wait that turns the engine has ended.
pub(crate) enum Rested {
    /// With this event of the channel.
    Event([u8; 8]),
    /// There may be one in the channel's socket. Where not, the thread rests on.
    Again,
    /// The thread does not drive.
    No,
}

/// Lets in signals that the thread blocks. EINTR where one is to end the wait.
fn look_for_signals(blocked: Option<u64>) -> Result<()> {
    let at_once = timespec_of(0);
    match blocked {
        Some(_) if blocking::ppoll(&mut [], Some(&at_once), blocked) < 0 => interrupted(blocked),
        _ => Ok(()),
    }
}

/// A call has failed while these signals were blocked. EINTR where that is to end the wait.
fn interrupted(blocked: Option<u64>) -> Result<()> {
    let error = io::Error::last_os_error();
    let goes_on = match blocked {
        _ if error.kind() != io::ErrorKind::Interrupted => true,
        // The C library's own signals go on, too.
        None => !signals::are_handled() || signals::restarts(),
        Some(blocked) => signals::restart_but(blocked),
    };
    if goes_on { Ok(()) } else { Err(error.into()) }
}

impl Context {
    /// Something else needs the CPU of the thread that drives.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.drives.as_ref().is_some_and(|drives| drives.driver.driving().is_crowded())
    }

    /// A poll has found nothing: sleeps until a packet comes, if none has for some time. False if
    /// it did not sleep.
    pub(crate) fn rest_in_poll(&self, limit: Duration) -> bool {
        let mut resting = Resting::default();
        let turned = self.turn(|driver| driver.rest(&mut resting));
        if !turned.contains(Turned::SLEEP) {
            return false;
        }
        let (mut fds, count) = waited_for(&resting, -1);
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(NO_LIMIT).min(resting.nanos);
        let limit = timespec_of(limit);
        // SAFETY: so many descriptors, and a time that lives. The C library's own function would be
        // one that ends a cancelled thread, which a poll must not be.
        unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                fds.as_mut_ptr(),
                count,
                &raw const limit,
                null::<u64>(),
                8,
            )
        };
        resting.was_readable = fds[..count].iter().any(|fd| fd.revents != 0);
        if self.turn(|driver| driver.rest(&mut resting)).contains(Turned::SLEEP) {
            // Posts need not wake the engine's thread while this one is awake.
            self.drive();
        }
        true
    }
}

fn is_over(since: u64) -> bool {
    ticks().wrapping_sub(since) >= PATIENCE_TICKS
}

/// What a sleep came to.
enum Slept {
    /// The thread rests on.
    On,
    /// There is something at the channel's end.
    Channel,
    /// There are more descriptors than the program may have, or a sandbox: the channel alone can
    /// still be waited for.
    Refused,
}

/// Sleeps as it was told, with these signals blocked.
fn sleep(resting: &mut Resting, channel: RawFd, blocked: Option<u64>) -> Result<Slept> {
    let (mut fds, count) = waited_for(resting, channel);
    let limit = (resting.nanos != NO_LIMIT).then(|| timespec_of(resting.nanos));
    let ready = blocking::ppoll(&mut fds[..count], limit.as_ref(), blocked);
    if ready < 0 {
        let was_interrupted = io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        let slept = if was_interrupted { Slept::On } else { Slept::Refused };
        return interrupted(blocked).map(|()| slept);
    }
    resting.was_readable = fds[1..count].iter().any(|fd| fd.revents != 0);
    Ok(if fds[0].revents != 0 { Slept::Channel } else { Slept::On })
}

/// The descriptors to wait for, the channel's first, and how many they are. Where that is -1 the
/// kernel leaves it alone.
fn waited_for(resting: &Resting, channel: RawFd) -> ([pollfd; RESTS_ON + 1], usize) {
    let mut fds = [pollfd { fd: channel, events: POLLIN, revents: 0 }; RESTS_ON + 1];
    let count = (resting.count as usize).min(RESTS_ON);
    for (to, from) in fds[1..].iter_mut().zip(&resting.fds[..count]) {
        to.fd = *from;
    }
    (fds, count + 1)
}

fn timespec_of(nanos: u64) -> timespec {
    timespec {
        tv_sec: (nanos / 1_000_000_000).cast_signed(),
        tv_nsec: (nanos % 1_000_000_000).cast_signed(),
    }
}

/// Whether the program has left the descriptor as one that blocks.
fn blocks(fd: RawFd) -> bool {
    // SAFETY: asks about a number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_had_to_wait_now_and_then_waits_here() {
        let waits = Waits::default();
        for round in 0.. {
            assert!(round < MANY, "it is never believed");
            waits.note_call(true);
            if waits.note_request() {
                break;
            }
            (1..WAITED).for_each(|_| waits.note_call(false));
        }
        (0..MOST).for_each(|_| waits.note_call(false));
        assert!(!waits.note_request());
    }

    #[test]
    fn one_that_requests_events_and_does_not_call_does_not() {
        let waits = Waits::default();
        (0..MOST).for_each(|_| waits.note_call(true));
        assert!((0..REQUESTS).all(|_| waits.note_request()));
        assert!(!waits.note_request());
    }
}
