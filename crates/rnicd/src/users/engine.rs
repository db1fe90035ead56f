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
use rnic_host::counters::meanings;
use rnic_host::discard::Untrusted;
use rnic_host::inspect::{Numbers, raise};
use rnic_host::observe::{self, Watcher};
use rnic_host::quota::{Amounts, Resource};
use rnic_host::refusal::refuse;
use rnic_host::report;
pub(super) use rnic_host::report::EnginePlace as Place;
use rnic_host::satellite::protocol::{CallAnswer, ToEngine};
use rnic_host::thread;
use rnic_host::wire::{BranchStats, FaultChange, Unserved};
use rnic_net::Hold;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// See the [module](self).
pub(crate) struct EngineProcess {
    user: User,
    number: u8,
    pub(super) serial: u64,
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
    /// Nothing of it is left to be read.
    gone: Condvar,
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
    /// What it had counted when it last told.
    counted: Numbers,
    /// It can tell no more: its connection is gone, and all that came over it was read.
    is_gone: bool,
    /// It has not been told yet how the network is; whether the GID table changed.
    network: Option<bool>,
    /// Addresses that it got no sockets for.
    unserved: Option<Unserved>,
    /// It was told to end, or has said that it will.
    ends: Option<Instant>,
    /// Its death has been counted.
    died: bool,
    /// Answers and changes of faults that it has not taken yet, the oldest first.
    unsent: VecDeque<(ToEngine, Option<OwnedFd>)>,
    /// Ways that are being looked for.
    resolving: u32,
    /// Those that it was given and has not given back, and how often each.
    ways: HashMap<HopId, (Hold, u32)>,
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
            gone: Condvar::new(),
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

    /// For `rnic status`: whether it answers, and what it has counted, if it told.
    pub(super) fn report(&self, answers: bool, counted: Option<&Numbers>) -> report::User {
        let (uid, gid) = self.user;
        let pid = self.pid().unsigned_abs();
        report::User {
            uid,
            gid,
            pid,
            shard: self.number,
            place: self.place,
            sessions: self.clients(),
            answers: answers && counted.is_some(),
            tx_bytes: counted.and_then(|counted| counted.get("tx_bytes").copied()),
            rx_bytes: counted.and_then(|counted| counted.get("rx_bytes").copied()),
            handed_over: self.wire.as_ref().map(|wire| report::HandedOver {
                tx_refused: wire.tx_refused(),
                rx_lost: wire.rx_lost(),
            }),
        }
    }

    /// It tells what it has counted: in answers that may overtake each other, so that the highest
    /// is the last. Names that no engine has are not kept.
    fn has_counted(&self, counted: &Numbers) {
        let is_known = |name: &str| meanings().any(|(known, _)| known == name);
        let known = counted.iter().filter(|(name, _)| is_known(name));
        raise(&mut self.state().counted, known.map(|(name, number)| (name.clone(), *number)));
    }

    /// It will tell no more.
    fn is_gone(&self) {
        self.state().is_gone = true;
        self.gone.notify_all();
    }

    /// What it had counted when it last told. If it has hung up, that is in its connection, and is
    /// waited for.
    pub(super) fn counted(&self, deadline: Instant) -> Numbers {
        let has_hung_up = self.wait_until(Instant::now());
        let left = deadline.saturating_duration_since(Instant::now());
        let waits = |state: &mut State| has_hung_up && !state.is_gone;
        let waited = self.gone.wait_timeout_while(self.state(), left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.counted.clone()
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

    /// Disturbs what it receives, or does so no more. One that takes no message now is told when it
    /// does: it would keep a fault that is in force nowhere else.
    pub(super) fn disturb(&self, change: FaultChange) {
        if let Err(fault) = self.send_later(ToEngine::Faults(change), None) {
            tracing::error!("{self} is ended: it {fault}");
            self.kill();
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
        poll(&mut fds, Timespec::try_from(left).ok().as_ref()).is_ok_and(|count| count > 0)
    }
}

/// What an engine process does that none should, or not.
type Fault = &'static str;

impl EngineProcess {
    /// Keeps a way until the process has given it back as often as it was given. What it goes on
    /// sending there then reaches the neighbour that has the place, as if it had asked for that.
    fn hold(&self, hold: Hold) -> Result<(), Refusal> {
        let Some(hop) = hold.hop() else { return Ok(()) };
        let mut state = self.state();
        if let Some((_, given)) = state.ways.get_mut(&hop) {
            *given = given.saturating_add(1);
            return Ok(());
        }
        if self.place != Place::Daemon && state.ways.len() >= MAX_WAYS {
            let user = self.user.0;
            let text = format!("user {user} may send to {MAX_WAYS} neighbours at a time here");
            return Err(refuse(libc::ENOMEM, text));
        }
        state.ways.insert(hop, (hold, 1));
        Ok(())
    }

    /// It needs no more so many of the ways with each hop. Others than it was given mean nothing.
    fn let_go(&self, ways: &[(u32, u32)]) {
        let mut state = self.state();
        for (hop, times) in ways {
            let Some((_, given)) = state.ways.get_mut(&HopId(*hop)) else { continue };
            *given = given.saturating_sub(*times);
            if *given == 0 {
                state.ways.remove(&HopId(*hop));
            }
        }
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
        self.send_later(ToEngine::Answer(number, answer), fd)
    }

    /// Sends what it must not miss, behind what waits already.
    fn send_later(&self, message: ToEngine, fd: Option<OwnedFd>) -> Result<(), Fault> {
        let mut state = self.state();
        if state.unsent.len() >= MAX_UNSENT {
            return Err("does not read what it is told");
        }
        state.unsent.push_back((message, fd));
        self.send_unsent(&mut state);
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
    fn send_unsent(&self, state: &mut State) {
        while let Some((message, fd)) = state.unsent.front() {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            let sent = self.send(message, &fds);
            if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
            // Also when it is dead: that is seen in a moment.
            state.unsent.pop_front();
        }
    }
}

/// Messages, and system calls for them, need no more.
const STACK: usize = 256 * 1024;
/// Messages that wait for a process to read: each of its sessions has one call at a time.
const MAX_UNSENT: usize = 4096;
/// Descriptors among them.
const MAX_UNSENT_FDS: usize = 64;
/// Neighbours that one process may send to through the daemon's wire: all processes together leave
/// half of the table to the daemon's own clients.
const MAX_WAYS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_abi::control::{MAX_MESSAGE, decode};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn engine(place: Place) -> EngineProcess {
        let (ours, _) = Connection::pair().unwrap();
        engine_at(place, ours)
    }

    fn engine_at(place: Place, ours: Connection) -> EngineProcess {
        let pid = getpid();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let wake = Arc::new(EventFd::new().unwrap());
        EngineProcess::new((1000, 1000), (1, 1), ours, (place, pid, pidfd), (wake, None))
    }

    /// Hops that are not held any more.
    #[derive(Clone, Default)]
    struct Released(Arc<AtomicUsize>);

    impl Released {
        fn hold(&self, hop: u32) -> Hold {
            let released = Arc::clone(&self.0);
            Hold::elsewhere(HopId(hop), move || _ = released.fetch_add(1, Ordering::Relaxed))
        }

        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_way_is_kept_until_it_is_given_back_as_often_as_it_was_given() {
        let (engine, released) = (engine(Place::Process), Released::default());
        for _ in 0..3 {
            engine.hold(released.hold(7)).unwrap();
        }
        // One hold of the table is enough.
        assert_eq!(released.count(), 2);
        engine.let_go(&[(7, 2), (8, 1)]);
        assert_eq!(released.count(), 2);
        engine.let_go(&[(7, 1)]);
        assert_eq!(released.count(), 3);
        engine.let_go(&[(7, u32::MAX)]);
        engine.hold(released.hold(7)).unwrap();
        assert_eq!(released.count(), 3);
        engine.let_go(&[(7, u32::MAX)]);
        assert_eq!(released.count(), 4);
    }

    #[test]
    fn a_process_that_is_stopped_misses_no_change_of_faults() {
        let (ours, theirs) = Connection::pair().unwrap();
        let engine = engine_at(Place::Program, ours);
        let add = FaultChange::Add(vec!["drop".parse().unwrap()], None);
        engine.disturb(add.clone());
        // Its queue is full.
        while engine.send(&ToEngine::Client, &[]).is_ok() {}
        engine.disturb(FaultChange::Clear);
        engine.disturb(add);
        assert!(engine.wake.drain().unwrap(), "the thread that attends to it sleeps on");
        let mut heard = Vec::new();
        let mut buffer = vec![0; MAX_MESSAGE];
        while let Ok((len, _)) = theirs.try_recv(&mut buffer) {
            match decode(&buffer[..len]).unwrap() {
                ToEngine::Faults(FaultChange::Clear) => heard.push("clear"),
                ToEngine::Faults(_) => heard.push("add"),
                _ => {}
            }
            // As that thread does.
            engine.send_unsent(&mut engine.state());
        }
        assert_eq!(heard, ["add", "clear", "add"]);
    }

    #[test]
    fn a_process_has_so_many_ways_at_a_time() {
        let (engine, released) = (engine(Place::Process), Released::default());
        let first = 2..2 + MAX_WAYS as u32;
        for hop in first.clone() {
            engine.hold(released.hold(hop)).unwrap();
        }
        assert_eq!(engine.hold(released.hold(9999)).unwrap_err().errno, libc::ENOMEM);
        engine.hold(released.hold(first.start)).unwrap();
        // One after the other there may be more.
        for hop in first.end..3 * first.end {
            engine.let_go(&[(hop - MAX_WAYS as u32, 2)]);
            engine.hold(released.hold(hop)).unwrap();
        }
        let before = released.count();
        drop(engine);
        assert_eq!(released.count(), before + MAX_WAYS);
    }
}
