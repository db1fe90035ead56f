//! The thread that attends to one engine process: it does what the process asks for.

use super::{EngineProcess, Fault, Place, STACK};
use crate::log;
use crate::users::Users;
use crate::users::connections::Sessions;
use rnic_abi::control::{MAX_MESSAGE, Refusal, decode};
use rnic_abi::verbs::AhAttr;
use rnic_host::quota::{Amounts, Resource};
use rnic_host::refusal::refuse;
use rnic_host::satellite::protocol::{Call, CallAnswer, FromEngine, ToEngine, Way};
use rnic_host::server::Ledger;
use rnic_host::shard::ShardMessage;
use rnic_host::thread;
use rnic_host::wire::{Misuse, Unserved};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xdp_io::udp::SteeredPort;

/// Starts the thread that reads what the process says, until it is dead.
pub(in crate::users) fn attend_to(
    users: Arc<Users>,
    engine: Arc<EngineProcess>,
    child: Option<Child>,
) -> io::Result<()> {
    let name = format!("rnic-user-{}", engine.number);
    thread::spawn(&name, STACK, move || {
        let sessions = Sessions::of(&users, &engine);
        let attendant = Attendant { users: &users, engine: &engine, sessions };
        attendant.run();
        engine.is_gone();
        engine.kill();
        engine.state().questions.give_up();
        match child.map(|mut child| child.wait()) {
            None => tracing::info!("{engine} has ended"),
            Some(Ok(status)) => engine.tell_of_end(status, users.died(&engine)),
            Some(Err(error)) => tracing::error!("cannot wait for an engine process: {error}"),
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
        users.gone(&engine);
    })
}

impl Users {
    /// Tells a process how the network is, if it does not know, once it takes that.
    pub(in crate::users) fn tell_network(&self, engine: &EngineProcess) {
        let mut state = engine.state();
        let Some(gids_changed) = state.network else { return };
        let network = self.network_state(gids_changed);
        self.join_anew(engine, &mut state.groups);
        // First: what it sends from an address needs the socket.
        if self.give_sockets(engine, &network.addresses, &mut state.unserved)
            && engine.send(&ToEngine::Network(network), &[]).is_ok()
        {
            state.network = None;
        }
    }

    /// Sockets for each address that has none. False when it takes no more now.
    pub(in crate::users) fn give_sockets(
        &self,
        engine: &EngineProcess,
        addresses: &[IpAddr],
        unserved: &mut Option<Unserved>,
    ) -> bool {
        let Some(port) = &self.parts.shared_port else { return true };
        let mut failed = Vec::new();
        let (number, owner) = (engine.number, engine.serial);
        for address in addresses.iter().filter(|at| !port.serves(number, owner, **at)) {
            match port.sockets(number, owner, *address) {
                Ok(sockets) => {
                    let mut fds = vec![sockets.receives.as_fd(), sockets.sends.as_fd()];
                    fds.extend(sockets.arrivals.as_ref().map(|(counts, _)| counts.as_fd()));
                    if engine.send(&ToEngine::Sockets(*address), &fds).is_err() {
                        // All of them once more, when it takes something.
                        port.close(owner);
                        return false;
                    }
                }
                Err(error) => failed.push((*address, error)),
            }
        }
        self.unserved.fetch_add(failed.len() as u64, Ordering::Relaxed);
        unserved
            .get_or_insert_with(|| Unserved::new(self.parts.network.hops(), engine))
            .note(failed, Instant::now());
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
}

impl Attendant<'_> {
    /// Until the process is dead, or has to be killed.
    fn run(mut self) {
        thread::lower_priority();
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            match self.turn(&mut buffer) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fault) => {
                    let end = match self.engine.place {
                        Place::Process => "killed",
                        Place::Program | Place::Daemon => "cut off",
                    };
                    return tracing::error!("{} is {end}: it {fault}", self.engine);
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
        match poll(&mut fds, left.and_then(|left| Timespec::try_from(left).ok()).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err("cannot be polled"),
        }
        let [_, dead, woken] = fds.map(|fd| !fd.revents().is_empty());
        if woken {
            let _ = engine.wake.drain();
        }
        match engine.wire.as_ref().and_then(|wire| wire.cut_off()) {
            None => {}
            Some(Misuse::Ring) => {
                return Err("writes nonsense into the memory that it shares with the daemon");
            }
            Some(Misuse::WakeUps) => return Err("wakes the daemon without end and sends nothing"),
        }
        engine.send_unsent(&mut engine.state());
        self.users.tell_network(engine);
        for _ in 0..MESSAGES_AT_ONCE {
            match engine.socket.try_recv_plain(buffer) {
                Ok(0) => return Ok(false),
                Ok(len) => {
                    let message = decode(&buffer[..len]).map_err(|_| "says what makes no sense")?;
                    self.handle(message)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(!dead),
                // Told once, before what it had said until then: it has left something unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
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
            FromEngine::GiveWays(ways) => self.engine.let_go(&ways),
            FromEngine::Told(number, told) => self.engine.told(number, told),
            FromEngine::Idle(clients) if self.engine.place == Place::Daemon => {
                self.engine.is_idle_after(clients);
                self.users.wake_idle();
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
            FromEngine::Counted(counted) => self.engine.has_counted(&counted),
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
            if state.resolving < MAX_RESOLVING {
                state.resolving += 1;
            } else if self.engine.place == Place::Daemon {
                drop(state);
                let refused = refuse(libc::EAGAIN, "too many addresses are looked for already");
                return self.engine.answer(number, CallAnswer::Way(Err(refused)));
            } else {
                return Err("resolves more addresses at a time than it may have sessions");
            }
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

/// Messages of a process that are handled before its death is looked for.
const MESSAGES_AT_ONCE: usize = 16;
/// Ways that are looked for at a time for one process: a session waits for one.
const MAX_RESOLVING: u32 = 256;
/// How long a process may take to end when it is told to.
const END_PATIENCE: Duration = Duration::from_secs(1);
