//! Engines beside the one that has the wire: those of users other than root, functions, and with
//! `--engines` more of this process's own.
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
mod functions;
mod groups;
mod inspect;
mod own;
mod restarts;
mod start;

pub(crate) use functions::FunctionStarter;
pub(crate) use own::OwnEngines;
pub use start::ENGINE_PROCESS;
pub(crate) use start::this_program;

use crate::connections::Connections;
use engine::EngineProcess;
use restarts::{Restarts, TooSoon};
use rnic_abi::control::{DeviceInfo, Refusal};
use rnic_abi::os::{Connection, EventFd};
use rnic_core::qpn::MAX_SHARDS;
use rnic_host::discard;
use rnic_host::inspect::{Numbers, add_up};
use rnic_host::observe::{Wants, Watcher};
use rnic_host::refusal::{refuse, refused_by_kernel};
use rnic_host::report::EnginePlace;
use rnic_host::satellite::protocol::{NetworkState, ToEngine};
use rnic_host::server::{Accounts, Admitted, WireGroups};
use rnic_host::settings::{Profile, Settings};
use rnic_host::shard::OwnEngine;
use rnic_host::wire::{Fault, FaultChange};
use rnic_net::{Change, Network};
use start::Starter;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xdp_io::udp::SteeredPort;

/// A user and a group.
pub(crate) type User = (u32, u32);

/// What engine processes are made of.
pub(crate) struct Parts {
    pub(crate) log: crate::log::Filter,
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
    /// What becomes an engine process: a program and its arguments. None where the daemon is not
    /// root: it has one user.
    pub(crate) command: Option<Vec<OsString>>,
}

/// See the [module](self).
pub(crate) struct Users {
    parts: Parts,
    starter: Option<Starter>,
    table: Mutex<Table>,
    /// Held while faults are changed.
    changing_faults: Mutex<()>,
    /// Attempts to give a satellite the sockets of an address that failed.
    unserved: AtomicU64,
    /// Written when a process has no session any more, or is gone.
    idle: EventFd,
}

#[derive(Default)]
struct Table {
    /// Those that take clients.
    engines: BTreeMap<User, Arc<EngineProcess>>,
    /// Those in programs of the daemon's own user.
    functions: Vec<Arc<EngineProcess>>,
    /// Those in threads of this process.
    own: Vec<Arc<EngineProcess>>,
    /// All satellites by the numbers of their shards, less one, also those that are ending.
    numbers: BTreeMap<usize, Arc<EngineProcess>>,
    /// Those that are ending, and whose numbers may be others' already.
    ending: Vec<Arc<EngineProcess>>,
    /// When each number that was given back was, counted in such events.
    given_back: BTreeMap<usize, u64>,
    ever_given_back: u64,
    /// Processes started ever.
    started: u64,
    restarts: Restarts,
    /// Clients handed over ever.
    clients: u64,
    /// What those that have ended had counted.
    past: Numbers,
    /// What shows the traffic of all, and what disturbs it, for processes that start.
    watchers: Vec<Watcher>,
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
        let (starter, idle) = (parts.command.clone().map(Starter::new), EventFd::new()?);
        let starter = starter.transpose()?;
        let (table, changing_faults) = (Mutex::default(), Mutex::default());
        let unserved = AtomicU64::new(0);
        Ok(Arc::new(Self { parts, starter, table, changing_faults, unserved, idle }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether other users' clients have engine processes.
    pub(crate) fn have_processes(&self) -> bool {
        self.starter.is_some()
    }

    /// Readable after a process has become idle.
    pub(crate) fn idle(&self) -> &EventFd {
        &self.idle
    }

    /// Processes with sessions, and clients handed over or given functions ever.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let table = self.table();
        let busy = table.running().iter().filter(|engine| engine.idle_since().is_none()).count();
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
            match engine.hand_over(&ToEngine::Client, &connection) {
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
        let engine = self
            .start(user, number_of(place), table.started)
            .map_err(refused_by_kernel("no engine process for this user"))?;
        self.enter(&mut table, place, &engine);
        table.engines.insert(user, Arc::clone(&engine));
        Ok(engine)
    }

    /// A satellite has started.
    fn enter(&self, table: &mut Table, place: usize, engine: &Arc<EngineProcess>) {
        table.started += 1;
        table.watchers.retain(|watcher| !watcher.is_over());
        table.watchers.iter().for_each(|watcher| self.show(engine, watcher));
        if !table.faults.is_empty() {
            engine.disturb(FaultChange::Add(table.faults.clone(), None));
        }
        table.numbers.insert(place, Arc::clone(engine));
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
        self.table().forget(engine);
    }

    /// The process is dead, and nothing of it is left.
    fn gone(&self, engine: &Arc<EngineProcess>) {
        if engine.place() == EnginePlace::Daemon {
            self.parts.connections.remove_own_engine(engine.number());
        }
        let mut table = self.table();
        table.forget(engine);
        table.give_back(engine);
        table.ending.retain(|other| !Arc::ptr_eq(other, engine));
        let past = std::mem::take(&mut table.past);
        table.past = add_up([past, engine.counted(Instant::now())]);
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
        for engine in self.all() {
            engine.network_changed(change.port.gids_changed);
        }
    }

    fn network_state(&self, gids_changed: bool) -> NetworkState {
        let network = &self.parts.network;
        // Without sockets of their own they send and receive through the wire of this process.
        let port = match &self.parts.shared_port {
            Some(_) => network.port_of_interface(),
            None => network.port(),
        };
        let (gids, now) = (network.gids(), network.now());
        let (addresses, interface) = (now.addresses, now.interface.index);
        NetworkState { port, gids, addresses, interface, gids_changed }
    }

    /// Shows what happens in a process. What it hands over is seen on the daemon's wire.
    fn show(&self, engine: &EngineProcess, watcher: &Watcher) {
        let has_sockets = self.parts.shared_port.is_some();
        let wants = watcher.wants();
        let wants = Wants { frames: wants.frames && has_sockets, ..wants };
        if (wants.frames || wants.events)
            && let Err(error) = engine.show(watcher.clone().wanting(wants))
        {
            tracing::warn!("user {} is not observed: {error}", engine.user().0);
        }
    }

    fn all(&self) -> Vec<Arc<EngineProcess>> {
        self.table().running()
    }

    /// Tells all processes to end, and takes no client any more.
    pub(crate) fn end(&self) {
        let mut table = self.table();
        table.stopping = true;
        table.engines.clear();
        table.functions.clear();
        table.own.clear();
        table.numbers.values().for_each(|engine| engine.end());
    }

    /// Waits until all processes have [ended](Self::end), and kills the others at the deadline.
    pub(crate) fn stop(&self, deadline: Instant) {
        self.end();
        let all: Vec<_> = self.table().numbers.values().cloned().collect();
        for engine in &all {
            if !engine.wait_until(deadline) {
                tracing::warn!("{engine} does not end");
                engine.kill();
            }
        }
    }
}

impl Table {
    /// Those that serve.
    fn running(&self) -> Vec<Arc<EngineProcess>> {
        self.engines.values().chain(&self.functions).chain(&self.own).cloned().collect()
    }

    /// Those whose numbers count, also while they end, and the sum of those that are gone.
    fn all_that_counted(&self) -> (Vec<Arc<EngineProcess>>, Numbers) {
        let engines = self.numbers.values().chain(&self.ending).cloned();
        (engines.collect(), self.past.clone())
    }

    /// One more watcher. The processes that run are to be shown to it; those that start later are,
    /// and none is both.
    fn watch(&mut self, watcher: &Watcher) -> Vec<Arc<EngineProcess>> {
        self.watchers.retain(|watcher| !watcher.is_over());
        self.watchers.push(watcher.clone());
        self.running()
    }

    /// Other faults. The processes that run are to be told the change; those that start later get
    /// these, and none is both.
    fn disturb(&mut self, faults: &[Fault]) -> Vec<Arc<EngineProcess>> {
        self.faults = faults.to_vec();
        self.running()
    }

    fn forget(&mut self, engine: &Arc<EngineProcess>) {
        self.engines.retain(|_, other| !Arc::ptr_eq(other, engine));
        self.functions.retain(|other| !Arc::ptr_eq(other, engine));
        self.own.retain(|other| !Arc::ptr_eq(other, engine));
    }

    /// A number that no process has, and that was given back before all others: the QP numbers of
    /// the next process are those that peers of the last one may still send to. When all are taken,
    /// an idle process makes room.
    fn vacant(&mut self) -> Option<usize> {
        let free = self.free_number();
        if free.is_some() || !self.end_idle(|_| true) {
            return free;
        }
        self.free_number()
    }

    fn free_number(&self) -> Option<usize> {
        let free = (0..ENGINES).filter(|place| !self.numbers.contains_key(place));
        // One that was never given back comes first.
        free.min_by_key(|place| self.given_back.get(place))
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
        self.give_back(&engine);
        self.ending.push(engine);
        true
    }

    /// The number of this process, if it still has one, may be another's.
    fn give_back(&mut self, engine: &Arc<EngineProcess>) {
        let mut numbers = self.numbers.iter();
        let place = numbers.find(|(_, other)| Arc::ptr_eq(other, engine)).map(|(place, _)| *place);
        if let Some(place) = place {
            self.numbers.remove(&place);
            self.ever_given_back += 1;
            self.given_back.insert(place, self.ever_given_back);
        }
    }
}

/// The number of the shard at this place of the table.
fn number_of(place: usize) -> u8 {
    u8::try_from(place + 1).unwrap_or(u8::MAX)
}

/// Satellites at a time. Shard 0 is the daemon's own, and the last one is not given away: its
/// QP numbers end with that of multicast.
const ENGINES: usize = MAX_SHARDS as usize - 2;

#[cfg(test)]
mod tests;
