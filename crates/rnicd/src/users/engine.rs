//! One engine process, as the daemon sees it.

use super::connections::Sessions;
use super::groups::Memberships;
use super::protocol::{Call, CallAnswer, FromEngine, Inquiry, ToEngine, Told, Way};
use super::{User, Users};
use crate::log;
use crate::resolver::Resolver;
use crossbeam_channel::{Receiver, Sender, bounded};
use rnic_abi::control::{MAX_MESSAGE, Refusal, decode, encode};
use rnic_abi::os::{Connection, EventFd};
use rnic_abi::verbs::AhAttr;
use rnic_core::ports::HopId;
use rnic_host::discard::Untrusted;
use rnic_host::inspect::Numbers;
use rnic_host::quota::{Amounts, Resource};
use rnic_host::refusal::refuse;
use rnic_host::report;
use rnic_host::server::Ledger;
use rnic_host::shard::ShardMessage;
use rnic_host::thread;
use rnic_host::wire::{self, BranchStats, CaptureTap, FaultChange};
use rnic_net::Hold;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xdp_io::udp::SteeredPort;

/// See the [module](self).
pub(crate) struct EngineProcess {
    user: User,
    number: u8,
    serial: u64,
    socket: Untrusted,
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

#[derive(Default)]
pub(super) struct State {
    /// Clients handed over so far.
    clients: u32,
    /// What was taken in the user's name, to be given back at its end.
    taken: Amounts,
    /// Since when it has no session.
    idle_since: Option<Instant>,
    /// Questions without an answer.
    asked: HashMap<u32, Sender<Told>>,
    next: u32,
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
        (pid, pidfd): (Pid, OwnedFd),
        (wake, wire): (Arc<EventFd>, Option<Arc<BranchStats>>),
    ) -> Self {
        let (started, network) = (Instant::now(), Some(false));
        let state = State { idle_since: Some(started), network, ..State::default() };
        let (resolver, state) = (Resolver::new(), Mutex::new(state));
        let socket = socket.into();
        Self { user, number, serial, socket, pid, pidfd, wake, wire, resolver, started, state }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn user(&self) -> User {
        self.user
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

    pub(super) fn report(&self, sessions: usize, counted: Option<&Numbers>) -> report::User {
        let (uid, gid) = self.user;
        let pid = self.pid().unsigned_abs();
        report::User {
            uid,
            gid,
            pid,
            shard: self.number,
            sessions: sessions as u64,
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

    /// Gives it the connection of a client.
    pub(super) fn hand_over(&self, connection: &Connection) -> io::Result<()> {
        let mut state = self.state();
        if state.ends.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.send(&ToEngine::Client, &[connection.as_fd()])?;
        state.clients = state.clients.wrapping_add(1);
        // It counts the session in a moment.
        state.idle_since = None;
        Ok(())
    }

    /// Asks it something; `None` when it takes no question.
    pub(super) fn ask(&self, inquiry: Inquiry) -> Option<Receiver<Told>> {
        let (answer, answered) = bounded(1);
        let mut state = self.state();
        if state.asked.len() >= MAX_ASKED {
            // It does not answer: those that wait give up before another asks.
            return None;
        }
        state.next = state.next.wrapping_add(1);
        let number = state.next;
        self.send(&ToEngine::Ask(number, inquiry), &[]).ok()?;
        state.asked.insert(number, answer);
        Some(answered)
    }

    /// It is told how the network is.
    pub(super) fn network_changed(&self, gids_changed: bool) {
        let mut state = self.state();
        state.network = Some(state.network.unwrap_or_default() || gids_changed);
        self.wake();
    }

    /// Shows what it sends and receives.
    pub(super) fn show(&self, tap: CaptureTap) -> io::Result<()> {
        let (ours, theirs) = Connection::pair()?;
        let ours = Untrusted::from(ours);
        self.send(&ToEngine::Capture, &[theirs.as_fd()])?;
        thread::spawn("rnic-capture", STACK, move || wire::import(&tap, &ours))
    }

    /// Disturbs what it receives.
    pub(super) fn disturb(&self, change: FaultChange) {
        if let Err(error) = self.send(&ToEngine::Faults(change), &[]) {
            tracing::warn!("what user {} receives is not disturbed: {error}", self.user.0);
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

    pub(super) fn kill(&self) {
        // Fails only when it is dead.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits until it is dead; false when it still runs.
    pub(super) fn wait_until(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(left))).is_ok_and(|count| count > 0)
    }
}

/// Starts the thread that reads what the process says, until it is dead.
pub(super) fn attend_to(
    users: Arc<Users>,
    engine: Arc<EngineProcess>,
    mut child: Child,
) -> io::Result<()> {
    let name = format!("rnic-user-{}", engine.number);
    thread::spawn(&name, STACK, move || {
        let sessions = Sessions::of(&users, &engine);
        let counted = Numbers::new();
        let attendant = Attendant { users: &users, engine: &engine, sessions, counted };
        let counted = attendant.run();
        engine.kill();
        match child.wait() {
            Ok(status) => engine.tell_of_end(status, users.died(&engine)),
            Err(error) => tracing::error!("cannot wait for an engine process: {error}"),
        }
        match &users.parts.shared_port {
            Some(port) => port.close(engine.serial),
            None => users.parts.own.handle().tell(ShardMessage::EndShard(engine.serial)),
        }
        users.leave_all(&engine);
        let taken = std::mem::take(&mut engine.state().taken);
        for resource in Resource::ALL {
            users.parts.ledger.give(engine.user.0, resource, taken[resource]);
        }
        users.gone(&engine, counted);
    })
}

impl Users {
    /// Tells a process how the network is, if it does not know, once it takes that.
    pub(super) fn tell_network(&self, engine: &EngineProcess) {
        let mut state = engine.state();
        let Some(gids_changed) = state.network else { return };
        let network = self.network_state(gids_changed);
        // First: what it sends from an address needs the socket.
        if self.give_sockets(engine, &network.addresses)
            && engine.send(&ToEngine::Network(network), &[]).is_ok()
        {
            state.network = None;
        }
    }

    /// Sockets for each address that has none. False when it takes no more now.
    fn give_sockets(&self, engine: &EngineProcess, addresses: &[IpAddr]) -> bool {
        let Some(port) = &self.parts.shared_port else { return true };
        let (number, owner) = (engine.number, engine.serial);
        for address in addresses.iter().filter(|at| !port.serves(number, owner, **at)) {
            match port.sockets(number, owner, *address) {
                Ok(sockets) => {
                    let fds = [sockets.receives.as_fd(), sockets.sends.as_fd()];
                    if engine.send(&ToEngine::Sockets(*address), &fds).is_err() {
                        // All of them once more, when it takes something.
                        port.close(owner);
                        return false;
                    }
                }
                Err(error) => {
                    tracing::warn!("user {} cannot use {address}: {error}", engine.user.0);
                }
            }
        }
        true
    }
}

impl EngineProcess {
    fn tell_of_end(&self, status: ExitStatus, wait: Duration) {
        let (pid, uid) = (self.pid(), self.user.0);
        if status.success() && self.state().ends.is_some() {
            tracing::info!("engine process {pid} of user {uid} has ended");
            return;
        }
        let how = match status.signal() {
            Some(signal) => format!("was killed by signal {signal}"),
            None => format!("failed ({status})"),
        };
        let when = match wait.is_zero() {
            true => String::new(),
            false => format!(" in {:.2} s", wait.as_secs_f64()),
        };
        tracing::warn!(
            "engine process {pid} of user {uid} {how}: its programs get a fatal device event, and \
             the next one starts it again{when}"
        );
    }
}

/// The thread that reads what a process says.
struct Attendant<'a> {
    users: &'a Arc<Users>,
    engine: &'a Arc<EngineProcess>,
    /// Of the connection manager.
    sessions: Sessions,
    /// What the engine had counted at its end.
    counted: Numbers,
}

/// What an engine process does not do.
type Fault = &'static str;

impl Attendant<'_> {
    /// Until the process is dead, or has to be killed.
    fn run(mut self) -> Numbers {
        thread::lower_priority();
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            match self.turn(&mut buffer) {
                Ok(true) => {}
                Ok(false) => return self.counted,
                Err(fault) => {
                    let (pid, uid) = (self.engine.pid(), self.engine.user.0);
                    tracing::error!("engine process {pid} of user {uid} is killed: it {fault}");
                    return self.counted;
                }
            }
        }
    }

    /// Waits and handles what there is; false when the process is dead or has to be.
    fn turn(&mut self, buffer: &mut [u8]) -> Result<bool, Fault> {
        let engine = self.engine;
        let (pending, ends) = {
            let state = engine.state();
            (state.network.is_some() || !state.unsent.is_empty(), state.ends)
        };
        let left = ends.map(|since| END_PATIENCE.saturating_sub(since.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err("does not end");
        }
        let out = if pending { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [
            PollFd::new(&*engine.socket, PollFlags::IN | out),
            PollFd::new(&engine.pidfd, PollFlags::IN),
            PollFd::from_borrowed_fd(engine.wake.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, left.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err("cannot be polled"),
        }
        let [_, dead, woken] = fds.map(|fd| !fd.revents().is_empty());
        if woken {
            let _ = engine.wake.drain();
        }
        if engine.wire.as_ref().is_some_and(|wire| wire.is_broken()) {
            return Err(
                "misuses the memory that it shares with the daemon, or wakes it for nothing",
            );
        }
        engine.send_answers(&mut engine.state());
        self.users.tell_network(engine);
        for _ in 0..MESSAGES_AT_ONCE {
            match engine.socket.try_recv_plain(buffer) {
                Ok(0) => return Ok(false),
                Ok(len) => {
                    let message = decode(&buffer[..len]).map_err(|_| "says what makes no sense")?;
                    self.handle(message)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(!dead),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(_) => return Err("says what makes no sense"),
            }
        }
        Ok(true)
    }

    fn handle(&mut self, message: FromEngine) -> Result<(), Fault> {
        match message {
            FromEngine::Call(number, Call::Resolve(ah)) => return self.resolve(number, ah),
            FromEngine::Call(number, Call::Join(group)) => {
                let joined = self.users.join(self.engine, group);
                return self.engine.answer(number, CallAnswer::Joined(joined));
            }
            FromEngine::Leave(group) => self.users.leave(self.engine, group),
            FromEngine::Call(number, Call::Connections(session, request)) => {
                let (answer, fd) = match self.engine.keeps_descriptors() {
                    true => (Err(refuse(libc::EAGAIN, "it does not read its answers")), None),
                    false => self.sessions.execute(session, request),
                };
                return self.engine.answer_with(number, CallAnswer::Connections(answer), fd);
            }
            FromEngine::CloseConnections(session) => self.sessions.close(session),
            FromEngine::Call(number, Call::Take(wanted)) => {
                if wanted.len() > Resource::ALL.len() {
                    return Err("takes more than there are resources");
                }
                let taken = self.take(&wanted);
                return self.engine.answer(number, CallAnswer::Taken(taken));
            }
            FromEngine::Give(amounts) => self.give(&amounts),
            FromEngine::Told(number, told) => {
                if let Some(answer) = self.engine.state().asked.remove(&number) {
                    let _ = answer.try_send(told);
                }
            }
            FromEngine::Idle(clients) => {
                self.engine.end_after(clients);
                if self.engine.ends() {
                    self.users.forget(self.engine);
                }
            }
            FromEngine::Log(severity, text) => {
                log::pass_on(self.engine.pid(), self.engine.user.0, severity, &text);
            }
            FromEngine::Counted(counted) => self.counted = counted,
        }
        Ok(())
    }

    fn take(&self, wanted: &[(Resource, u64)]) -> Result<(), Refusal> {
        self.users.parts.ledger.take(self.engine.user.0, wanted)?;
        let mut state = self.engine.state();
        for (resource, amount) in wanted {
            // The ledger has checked the sum.
            state.taken[*resource] = state.taken[*resource].saturating_add(*amount);
        }
        if state.taken[Resource::Sessions] > 0 {
            state.idle_since = None;
        }
        Ok(())
    }

    /// No more than was taken.
    fn give(&self, amounts: &Amounts) {
        let mut state = self.engine.state();
        for resource in Resource::ALL {
            let amount = amounts[resource].min(state.taken[resource]);
            state.taken[resource] -= amount;
            self.users.parts.ledger.give(self.engine.user.0, resource, amount);
        }
        let idle = state.taken[Resource::Sessions] == 0;
        if idle {
            state.idle_since.get_or_insert_with(Instant::now);
        }
        drop(state);
        if idle {
            self.users.wake_idle();
        }
    }

    /// In another thread: a neighbour may take seconds to answer.
    fn resolve(&self, number: u32, ah: AhAttr) -> Result<(), Fault> {
        {
            let mut state = self.engine.state();
            if state.resolving >= MAX_RESOLVING {
                return Err("resolves more addresses at a time than it may have sessions");
            }
            state.resolving += 1;
        }
        let (users, engine) = (Arc::clone(self.users), Arc::clone(self.engine));
        let started = self.engine.resolver.run(move || {
            let network = &users.parts.network;
            let source = |port: &Arc<SteeredPort>| port.source_port(engine.serial);
            let path = match users.parts.shared_port.as_ref().and_then(source) {
                Some(port) => network.resolve_for_sockets(&ah, port),
                None => network.resolve(&ah),
            };
            let way = path.and_then(|(path, hold)| engine.hold(hold).map(|()| Way::from(path)));
            engine.state().resolving -= 1;
            if engine.answer(number, CallAnswer::Way(way)).is_err() {
                engine.kill();
            }
        });
        if let Err(error) = started {
            self.engine.state().resolving -= 1;
            let text = format!("the daemon has no thread to resolve an address: {error}");
            let refused = refuse(libc::EAGAIN, text);
            return self.engine.answer(number, CallAnswer::Way(Err(refused)));
        }
        Ok(())
    }
}

impl EngineProcess {
    /// Keeps a way as long as the process lives: the daemon need not believe it what it still uses.
    fn hold(&self, hold: Hold) -> Result<(), Refusal> {
        let Some(hop) = hold.hop() else { return Ok(()) };
        let mut state = self.state();
        if state.ways.len() >= MAX_WAYS && !state.ways.contains_key(&hop) {
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
/// Messages of a process that are handled before its death is looked for.
const MESSAGES_AT_ONCE: usize = 16;
/// Questions to a process without an answer.
const MAX_ASKED: usize = 64;
/// Answers that wait for a process to read: each of its sessions has one call at a time.
const MAX_UNSENT: usize = 4096;
/// Descriptors among them.
const MAX_UNSENT_FDS: usize = 64;
/// Ways that are looked for at a time for one process: a session waits for one.
const MAX_RESOLVING: u32 = 256;
/// Neighbours that one process may send to through the daemon's wire: all processes together leave
/// half of the table to the daemon's own clients.
const MAX_WAYS: usize = 256;
/// How long a process may take to end when it is told to.
const END_PATIENCE: Duration = Duration::from_secs(1);
