//! Users of a root daemon other than root: each has an engine process of its own.
//!
//! What reads and writes a client's memory must have that client's rights and no more, or a client
//! that turns itself into a setuid program makes the daemon write into it. A thread with a user's
//! rights would not do: its user may kill, stop and limit it, and the kernel then acts on the whole
//! daemon. So this daemon starts a process per user and group, hands the connections of that user's
//! clients to it and never touches anything of theirs. Whatever befalls that process is the trouble
//! of its user alone.
//!
//! Nothing here waits for such a process: it may be stopped, or kept by its clients' memory.

mod connections;
mod engine;
mod groups;
mod inspect;
pub mod protocol;
mod restarts;
mod start;

pub(crate) use engine::EngineProcess;
pub(crate) use protocol::{
    Call, CallAnswer, EngineWire, FromEngine, Inquiry, NetworkState, Start, ToEngine, Told,
};
pub use start::ENGINE_PROCESS;
pub(crate) use start::this_program;

use crate::connections::Connections;
use restarts::{Restarts, TooSoon};
use rnic_abi::control::{DeviceInfo, Refusal};
use rnic_abi::os::{Connection, EventFd};
use rnic_core::Counters;
use rnic_core::qpn::MAX_SHARDS;
use rnic_host::discard;
use rnic_host::inspect::{Numbers, add_up};
use rnic_host::refusal::{refuse, refused_by_kernel};
use rnic_host::server::{Accounts, Admitted, WireGroups};
use rnic_host::settings::{Profile, Settings};
use rnic_host::shard::OwnEngine;
use rnic_host::wire::{CaptureTap, Fault, FaultChange};
use rnic_net::{Change, Network};
use start::Starter;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xdp_io::udp::SteeredPort;

/// A user and a group.
pub(crate) type User = (u32, u32);

/// What engine processes are made of.
pub(crate) struct Parts {
    pub(crate) log: String,
    pub(crate) settings: Settings,
    pub(crate) profile: Profile,
    pub(crate) device: DeviceInfo,
    pub(crate) io: String,
    /// Groups that the clients of one user may be of at the same time.
    pub(crate) groups: u32,
    pub(crate) ledger: Arc<Accounts>,
    pub(crate) network: Arc<Network>,
    pub(crate) wire_groups: Arc<WireGroups>,
    pub(crate) connections: Arc<Connections>,
    /// The engine that has the wire.
    pub(crate) own: Arc<OwnEngine>,
    /// Where engine processes have sockets of their own; without, frames are handed over.
    pub(crate) shared_port: Option<Arc<SteeredPort>>,
    /// What becomes an engine process: a program and its arguments.
    pub(crate) command: Vec<OsString>,
}

/// See the [module](self).
pub(crate) struct Users {
    parts: Parts,
    starter: Starter,
    table: Mutex<Table>,
    /// Written when a process has no session any more, or is gone.
    idle: EventFd,
}

#[derive(Default)]
struct Table {
    /// Those that take clients.
    engines: BTreeMap<User, Arc<EngineProcess>>,
    /// All processes by the numbers of their shards, less one, also those that are ending.
    numbers: [Option<Arc<EngineProcess>>; ENGINES],
    /// Processes started ever.
    started: u64,
    restarts: Restarts,
    /// Clients handed over ever.
    clients: u64,
    /// What those that have ended had counted.
    past: Numbers,
    /// What shows the traffic of all, and what disturbs it, for processes that start.
    taps: Vec<CaptureTap>,
    faults: Vec<Fault>,
    stopping: bool,
}

impl Users {
    /// Without any.
    ///
    /// # Errors
    /// When there is no thread left.
    pub(crate) fn new(parts: Parts) -> std::io::Result<Arc<Self>> {
        discard::start()?;
        let (starter, idle) = (Starter::new(parts.command.clone())?, EventFd::new()?);
        Ok(Arc::new(Self { parts, starter, table: Mutex::default(), idle }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable after a process has become idle.
    pub(crate) fn idle(&self) -> &EventFd {
        &self.idle
    }

    /// Processes with sessions, and clients handed over ever.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let table = self.table();
        let busy = table.engines.values().filter(|engine| engine.idle_since().is_none()).count();
        (busy, table.clients)
    }

    /// Hands a client to the engine process of its user, which is started when there is none.
    pub(crate) fn admit(self: &Arc<Self>, user: User, connection: Connection) -> Admitted {
        // Twice: the first attempt may find out that the process has died.
        for _ in 0..2 {
            let engine = match self.engine_of(user) {
                Ok(engine) => engine,
                Err(why) => return Err((connection, why)),
            };
            match engine.hand_over(&connection) {
                Ok(()) => {
                    // The process may have closed its own already.
                    discard::discard(connection);
                    self.table().clients += 1;
                    return Ok(());
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let text = format!(
                        "the engine process {} of user {} takes no more clients: is it stopped?",
                        engine.pid(),
                        user.0
                    );
                    return Err((connection, refuse(libc::EAGAIN, text)));
                }
                Err(_) => {
                    self.died(&engine);
                    self.forget(&engine);
                }
            }
        }
        let text = format!("the engine process of user {} does not stay alive", user.0);
        Err((connection, refuse(libc::EAGAIN, text)))
    }

    fn engine_of(self: &Arc<Self>, user: User) -> Result<Arc<EngineProcess>, Refusal> {
        let mut table = self.table();
        if let Some(engine) = table.engines.get(&user) {
            return Ok(Arc::clone(engine));
        }
        if table.stopping {
            return Err(refuse(libc::EAGAIN, "the daemon is stopping"));
        }
        if let Some(TooSoon { deaths, left }) = table.restarts.too_soon(user.0, Instant::now()) {
            let text = format!(
                "the engine process of user {} has died {deaths} times in a row: it is started \
                 again in {:.2} s",
                user.0,
                left.as_secs_f64()
            );
            return Err(refuse(libc::EAGAIN, text));
        }
        let groups = table.engines.keys().filter(|(uid, _)| *uid == user.0).count();
        if groups >= self.parts.groups as usize && !table.end_idle(|(uid, _)| uid == user.0) {
            let text = format!(
                "the daemon serves {} groups of one user at a time (quota.groups)",
                self.parts.groups
            );
            return Err(refuse(libc::EUSERS, text));
        }
        let Some(place) = table.vacant() else {
            let text = format!("this daemon serves {ENGINES} users at a time: try again later");
            return Err(refuse(libc::EUSERS, text));
        };
        let serial = table.started;
        let number = u8::try_from(place + 1).unwrap_or(u8::MAX);
        let engine = self
            .start(user, number, serial)
            .map_err(refused_by_kernel("no engine process for this user"))?;
        table.started += 1;
        table.taps.retain(|tap| !tap.is_over());
        table.taps.iter().for_each(|tap| self.show(&engine, tap));
        if !table.faults.is_empty() {
            engine.disturb(FaultChange::Add(table.faults.clone(), None));
        }
        table.numbers[place] = Some(Arc::clone(&engine));
        table.engines.insert(user, Arc::clone(&engine));
        Ok(engine)
    }

    /// The process is dead. One that was not told to end makes its user wait for the next one, and
    /// for how long, is returned.
    fn died(&self, engine: &EngineProcess) -> Duration {
        let (mut table, uid, now) = (self.table(), engine.user().0, Instant::now());
        if let Some(lived) = engine.died(now) {
            table.restarts.died(uid, lived, now);
        }
        table.restarts.too_soon(uid, now).map_or(Duration::ZERO, |soon| soon.left)
    }

    /// It gets no more clients.
    fn forget(&self, engine: &Arc<EngineProcess>) {
        self.table().engines.retain(|_, other| !Arc::ptr_eq(other, engine));
    }

    /// The process is dead, and nothing of it is left.
    fn gone(&self, engine: &Arc<EngineProcess>, counted: Numbers) {
        let mut table = self.table();
        table.engines.retain(|_, other| !Arc::ptr_eq(other, engine));
        for place in &mut table.numbers {
            place.take_if(|other| Arc::ptr_eq(other, engine));
        }
        // Names that no engine has are not kept.
        let known = Counters::default();
        let known = |name: &str| known.iter().any(|(other, _)| other == name);
        let counted = counted.into_iter().filter(|(name, _)| known(name)).collect();
        let past = std::mem::take(&mut table.past);
        table.past = add_up([past, counted]);
        drop(table);
        self.wake_idle();
    }

    fn wake_idle(&self) {
        if let Err(error) = self.idle.wake() {
            tracing::error!("cannot tell that an engine process is idle: {error}");
        }
    }

    /// The network changed.
    pub(crate) fn follow(&self, change: &Change) {
        let engines: Vec<_> = self.table().engines.values().cloned().collect();
        for engine in engines {
            engine.network_changed(change.port.gids_changed);
        }
    }

    fn network_state(&self, gids_changed: bool) -> NetworkState {
        let network = &self.parts.network;
        let (port, gids, addresses) = (network.port(), network.gids(), network.now().addresses);
        NetworkState { port, gids, addresses, gids_changed }
    }

    /// Shows what a process sends and receives through sockets of its own; what is handed over is
    /// seen on the daemon's wire.
    fn show(&self, engine: &EngineProcess, tap: &CaptureTap) {
        if self.parts.shared_port.is_some()
            && let Err(error) = engine.show(tap.clone())
        {
            tracing::warn!("a capture does not see user {}: {error}", engine.user().0);
        }
    }

    fn all(&self) -> Vec<Arc<EngineProcess>> {
        self.table().engines.values().cloned().collect()
    }

    /// Tells all processes to end, and takes no client any more.
    pub(crate) fn end(&self) {
        let mut table = self.table();
        table.stopping = true;
        table.engines.clear();
        table.numbers.iter().flatten().for_each(|engine| engine.end());
    }

    /// Waits until all processes have [ended](Self::end), and kills the others at the deadline.
    pub(crate) fn stop(&self, deadline: Instant) {
        self.end();
        let all: Vec<_> = self.table().numbers.iter().flatten().cloned().collect();
        for engine in &all {
            if !engine.wait_until(deadline) {
                tracing::warn!("the engine process of user {} does not end", engine.user().0);
                engine.kill();
            }
        }
    }
}

impl Table {
    /// A number that no process has, and that was not given back just now: the QP numbers of the
    /// next process are those that peers of the last one may still send to. When all are taken, an
    /// idle process makes room.
    fn vacant(&mut self) -> Option<usize> {
        let free = self.free_number();
        if free.is_some() || !self.end_idle(|_| true) {
            return free;
        }
        self.free_number()
    }

    fn free_number(&self) -> Option<usize> {
        let start = usize::try_from(self.started).unwrap_or(0);
        let places = (0..ENGINES).map(|step| start.wrapping_add(step) % ENGINES);
        places.into_iter().find(|place| self.numbers[*place].is_none())
    }

    /// Ends the process without clients that has been without them longest.
    fn end_idle(&mut self, may: impl Fn(User) -> bool) -> bool {
        let idle = self.engines.values().filter(|engine| may(engine.user()));
        let idle = idle.filter_map(|engine| Some((engine.idle_since()?, Arc::clone(engine))));
        let Some((_, engine)) = idle.min_by_key(|(since, _)| *since) else { return false };
        if !engine.end_if_idle() {
            return false;
        }
        self.engines.retain(|_, other| !Arc::ptr_eq(other, &engine));
        // It has no queue pair, so that its number may be used before it is dead.
        for place in &mut self.numbers {
            place.take_if(|other| Arc::ptr_eq(other, &engine));
        }
        true
    }
}

/// Numbers of sessions and clients of one process, which differ from those of others.
const NUMBERS: u32 = 1_000_000;

/// The first of these numbers.
pub(crate) fn first_number(shard: u8) -> u32 {
    u32::from(shard) * NUMBERS
}

/// Engine processes at a time. Shard 0 is the daemon's own, and the last one is not given away: its
/// QP numbers end with that of multicast.
const ENGINES: usize = MAX_SHARDS as usize - 2;

#[cfg(test)]
mod tests;
