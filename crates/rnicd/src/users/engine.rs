//! One satellite, as the daemon sees it: an engine process, or a function.

mod attendant;
mod questions;

pub(super) use attendant::attend_to;

use super::User;
use super::groups::Memberships;
use crate::resolver::Resolver;
use questions::Questions;
use rnic_abi::control::{Refusal, encode};
use rnic_abi::os::{Connection, EventFd};
use rnic_core::ports::HopId;
use rnic_host::discard::Untrusted;
use rnic_host::inspect::Numbers;
use rnic_host::observe::{self, Watcher};
use rnic_host::quota::{Amounts, Resource};
use rnic_host::refusal::refuse;
use rnic_host::report;
pub(super) use rnic_host::report::EnginePlace as Place;
use rnic_host::satellite::protocol::{CallAnswer, ToEngine};
use rnic_host::thread;
use rnic_host::wire::{BranchStats, FaultChange};
use rnic_net::Hold;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// See the [module](self).
pub(crate) struct EngineProcess {
    user: User,
    number: u8,
    serial: u64,
    socket: Untrusted,
    place: Place,
    pid: Pid,
    pidfd: OwnedFd,
    /// Written when the thread that attends to it has something to send.
    wake: Arc<EventFd>,
    /// Its part of the daemon's wire, if it has no sockets of its own.
    wire: Option<Arc<BranchStats>>,
    resolver: Resolver,
    started: Instant,
    state: Mutex<State>,
}

impl std::fmt::Display for EngineProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, uid) = (self.pid(), self.user.0);
        match self.place {
            Place::Process => write!(f, "engine process {pid} of user {uid}"),
            Place::Program => write!(f, "the function of process {pid}"),
            Place::Daemon => write!(f, "engine {} of this daemon", self.number),
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    /// Clients handed over so far.
    clients: u32,
    /// What was taken in the user's name, to be given back at its end.
    taken: Amounts,
    /// Since when it has no session.
    idle_since: Option<Instant>,
    questions: Questions,
    /// It has not been told yet how the network is; whether the GID table changed.
    network: Option<bool>,
    /// It was told to end, or has said that it will.
    ends: Option<Instant>,
    /// Its death has been counted.
    died: bool,
    /// Answers that it has not taken yet, the oldest first.
    unsent: VecDeque<(ToEngine, Option<OwnedFd>)>,
    /// Ways that are being looked for.
    resolving: u32,
    /// Those that it was given.
    ways: HashMap<HopId, Hold>,
    /// Groups that it is a member of.
    pub(super) groups: Memberships,
}

impl EngineProcess {
    pub(super) fn new(
        user: User,
        (number, serial): (u8, u64),
        socket: Connection,
        (place, pid, pidfd): (Place, Pid, OwnedFd),
        (wake, wire): (Arc<EventFd>, Option<Arc<BranchStats>>),
    ) -> Self {
        let (started, network) = (Instant::now(), Some(false));
        let state = State { idle_since: Some(started), network, ..State::default() };
        let (resolver, state) = (Resolver::new(), Mutex::new(state));
        let socket = socket.into();
        Self {
            user,
            number,
            serial,
            socket,
            place,
            pid,
            pidfd,
            wake,
            wire,
            resolver,
            started,
            state,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn user(&self) -> User {
        self.user
    }

    /// It serves programs of the daemon's own user.
    pub(super) fn is_own(&self) -> bool {
        self.place != Place::Process
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Since when it has no session; `None` while it has one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.state().idle_since
    }

    /// For `rnic status`. What it did not answer is `None`.
    pub(super) fn report(
        &self,
        sessions: Option<usize>,
        counted: Option<&Numbers>,
    ) -> report::User {
        let (uid, gid) = self.user;
        let pid = self.pid().unsigned_abs();
        let known = self.state().taken[Resource::Sessions];
        report::User {
            uid,
            gid,
            pid,
            shard: self.number,
            place: self.place,
            sessions: sessions.map_or(known, |sessions| sessions as u64),
            answers: sessions.is_some() && counted.is_some(),
            tx_bytes: counted.and_then(|counted| counted.get("tx_bytes").copied()),
            rx_bytes: counted.and_then(|counted| counted.get("rx_bytes").copied()),
            handed_over: self.wire.as_ref().map(|wire| report::HandedOver {
                tx_refused: wire.tx_refused(),
                rx_lost: wire.rx_lost(),
            }),
        }
    }

    /// Sends without waiting.
    pub(super) fn send(&self, message: &ToEngine, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = encode(message).map_err(|_| io::ErrorKind::InvalidData)?;
        self.socket.try_send(&bytes, fds)
    }

    /// Clients that it has.
    pub(super) fn clients(&self) -> u64 {
        self.state().taken[Resource::Sessions]
    }

    /// Gives it the connection of a client, with this message.
    pub(super) fn hand_over(&self, client: &ToEngine, connection: &Connection) -> io::Result<()> {
        let mut state = self.state();
        if state.ends.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.send(client, &[connection.as_fd()])?;
        state.clients = state.clients.wrapping_add(1);
        // It counts the session in a moment.
        state.idle_since = None;
        Ok(())
    }

    /// It is told how the network is.
    pub(super) fn network_changed(&self, gids_changed: bool) {
        let mut state = self.state();
        state.network = Some(state.network.unwrap_or_default() || gids_changed);
        self.wake();
    }

    /// Shows what happens in it.
    pub(super) fn show(&self, watcher: Watcher) -> io::Result<()> {
        let (ours, theirs) = Connection::pair()?;
        let ours = Untrusted::from(ours);
        self.send(&ToEngine::Observe(watcher.wants()), &[theirs.as_fd()])?;
        let watcher = watcher.of_shard(self.number());
        thread::spawn("rnic-watch", STACK, move || observe::import(&watcher, &ours))
    }

    /// Disturbs what it receives.
    pub(super) fn disturb(&self, change: FaultChange) {
        if let Err(error) = self.send(&ToEngine::Faults(change), &[]) {
            tracing::warn!("what {self} receives is not disturbed: {error}");
        }
    }

    fn wake(&self) {
        if let Err(error) = self.wake.wake() {
            tracing::error!("cannot wake the thread of an engine process: {error}");
        }
    }

    /// Tells it to end. It is killed when it does not.
    pub(super) fn end(&self) {
        self.end_at(&mut self.state());
    }

    /// Tells it to end if it was given no more than so many clients. No client is handed over
    /// between the look and the end.
    pub(super) fn end_after(&self, clients: u32) {
        let mut state = self.state();
        if state.clients == clients {
            self.end_at(&mut state);
        }
    }

    /// It has no session, if it was given no more than so many clients.
    pub(super) fn is_idle_after(&self, clients: u32) {
        let mut state = self.state();
        if state.clients == clients && state.taken[Resource::Sessions] == 0 {
            state.idle_since.get_or_insert_with(Instant::now);
            // Nothing is sent any more.
            state.ways.clear();
        }
    }

    /// Tells it to end if it has no session, and no client that may become one. False when it has.
    pub(super) fn end_if_idle(&self) -> bool {
        let mut state = self.state();
        let is_idle = state.idle_since.is_some();
        if is_idle {
            self.end_at(&mut state);
        }
        is_idle
    }

    fn end_at(&self, state: &mut State) {
        let _ = self.send(&ToEngine::End, &[]);
        state.ends.get_or_insert_with(Instant::now);
        state.questions.give_up();
        self.wake();
    }

    /// How long it lived, told once: it died `now`, and was not told to end.
    pub(super) fn died(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state();
        let is_first = !std::mem::replace(&mut state.died, true);
        (is_first && state.ends.is_none()).then(|| now.saturating_duration_since(self.started))
    }

    /// It takes no clients any more.
    pub(super) fn ends(&self) -> bool {
        self.state().ends.is_some()
    }

    /// Ends it at once. Of a program only the function ends, which notices that.
    pub(super) fn kill(&self) {
        // Both fail only when it is dead.
        match self.place {
            Place::Process => drop(pidfd_send_signal(&self.pidfd, Signal::KILL)),
            Place::Program | Place::Daemon => drop(shutdown(&*self.socket, Shutdown::Both)),
        }
    }

    /// Waits until it has ended; false when it still runs.
    pub(super) fn wait_until(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [match self.place {
            Place::Process => PollFd::new(&self.pidfd, PollFlags::IN),
            // Its socket hangs up, which is told in any case.
            Place::Program | Place::Daemon => PollFd::new(&*self.socket, PollFlags::empty()),
        }];
        poll(&mut fds, Some(&timespec(left))).is_ok_and(|count| count > 0)
    }
}

/// What an engine process does that none should, or not.
type Fault = &'static str;

impl EngineProcess {
    /// Keeps a way as long as the process lives: the daemon need not believe it what it still uses.
    fn hold(&self, hold: Hold) -> Result<(), Refusal> {
        let Some(hop) = hold.hop() else { return Ok(()) };
        let mut state = self.state();
        let is_limited = self.place != Place::Daemon;
        if is_limited && state.ways.len() >= MAX_WAYS && !state.ways.contains_key(&hop) {
            let text = format!("user {} may send to {MAX_WAYS} neighbours here", self.user.0);
            return Err(refuse(libc::ENOMEM, text));
        }
        // One hold each is enough.
        state.ways.insert(hop, hold);
        Ok(())
    }

    /// Answers a call, in a moment if the process has too much to read already.
    fn answer(&self, number: u32, answer: CallAnswer) -> Result<(), Fault> {
        self.answer_with(number, answer, None)
    }

    fn answer_with(
        &self,
        number: u32,
        answer: CallAnswer,
        fd: Option<OwnedFd>,
    ) -> Result<(), Fault> {
        let mut state = self.state();
        if state.unsent.len() >= MAX_UNSENT {
            return Err("does not read the answers to its calls");
        }
        state.unsent.push_back((ToEngine::Answer(number, answer), fd));
        self.send_answers(&mut state);
        if !state.unsent.is_empty() {
            // The thread that attends to it may be asleep, and not wait for room.
            self.wake();
        }
        Ok(())
    }

    /// So many descriptors wait for it that there must not be more.
    fn keeps_descriptors(&self) -> bool {
        self.state().unsent.iter().filter(|(_, fd)| fd.is_some()).count() >= MAX_UNSENT_FDS
    }

    /// As many as it takes now.
    fn send_answers(&self, state: &mut State) {
        while let Some((answer, fd)) = state.unsent.front() {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            let sent = self.send(answer, &fds);
            if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
            // Also when it is dead: that is seen in a moment.
            state.unsent.pop_front();
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Messages, and system calls for them, need no more.
const STACK: usize = 256 * 1024;
/// Answers that wait for a process to read: each of its sessions has one call at a time.
const MAX_UNSENT: usize = 4096;
/// Descriptors among them.
const MAX_UNSENT_FDS: usize = 64;
/// Neighbours that one process may send to through the daemon's wire: all processes together leave
/// half of the table to the daemon's own clients.
const MAX_WAYS: usize = 256;
