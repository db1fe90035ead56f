//! More engines for programs of the daemon's own user (`--engines`), in threads of this process.
//!
//! Each is a satellite like an engine process, so that sockets, groups, counters, faults and what
//! `rnic` shows come to it in the same way. A program is led to one when it opens the device: what
//! `rnic` asks for concerns all engines, and is answered where the first one is.

use super::engine::{self, EngineProcess, Place};
use super::{ENGINES, User, Users, number_of};
use anyhow::{Context, Result};
use rnic_abi::os::{Connection, EventFd};
use rnic_host::satellite::protocol::{FromEngine, ToEngine};
use rnic_host::satellite::{self, Satellite, receive_start};
use rnic_host::server::{ClientMemory, MoreEngines};
use rnic_host::shard::ShardMessage;
use rnic_host::thread;
use rnic_host::wire::NewBranch;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What leads programs to these engines.
pub(crate) struct OwnEngines {
    users: Arc<Users>,
    /// Clients so far.
    clients: AtomicUsize,
}

impl OwnEngines {
    pub(crate) fn new(users: Arc<Users>) -> Self {
        Self { users, clients: AtomicUsize::new(0) }
    }
}

impl MoreEngines for OwnEngines {
    fn least_busy(&self, own: usize) -> Option<usize> {
        let table = self.users.table();
        let others = table.own.iter().map(|engine| engine.clients());
        let clients: Vec<u64> = std::iter::once(own as u64).chain(others).collect();
        // Those with as few take turns: a client that comes at the same time is not counted yet.
        let first = self.clients.fetch_add(1, Ordering::Relaxed);
        let turns = (0..clients.len()).map(|step| first.wrapping_add(step) % clients.len());
        turns.min_by_key(|at| clients[*at])?.checked_sub(1)
    }

    fn serve(&self, engine: usize, client: &Connection, device: &str) -> bool {
        let engine = self.users.table().own.get(engine).cloned();
        let message = ToEngine::Opening(device.to_owned());
        engine.is_some_and(|engine| engine.hand_over(&message, client).is_ok())
    }
}

impl Users {
    /// Starts so many.
    ///
    /// # Errors
    /// When threads, descriptors or numbers are used up.
    pub(crate) fn start_own(self: &Arc<Self>, count: u8) -> Result<()> {
        let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        for _ in 0..count {
            let mut table = self.table();
            let place = table.vacant();
            let place =
                place.with_context(|| format!("there are no more than {ENGINES} engines"))?;
            // Before it has a program.
            self.parts.connections.add_own_engine(number_of(place));
            let engine = self.begin_own(user, number_of(place), table.started)?;
            self.enter(&mut table, place, &engine);
            table.own.push(engine);
        }
        Ok(())
    }

    fn begin_own(
        self: &Arc<Self>,
        user: User,
        number: u8,
        serial: u64,
    ) -> Result<Arc<EngineProcess>> {
        let wake = Arc::new(EventFd::new()?);
        let ([ours, theirs], branch) = self.tie(user, number, serial, &wake)?;
        let process = (Place::Daemon, getpid(), pidfd_open(getpid(), PidfdFlags::empty())?);
        let stats = branch.as_ref().map(|branch| Arc::clone(&branch.stats));
        let engine = EngineProcess::new(user, (number, serial), ours, process, (wake, stats));
        let engine = Arc::new(engine);
        self.tell_network(&engine);
        if let Some(NewBranch { branch, receiver, .. }) = branch {
            self.parts.own.handle().tell(ShardMessage::AddShard(
                number,
                Box::new(branch),
                receiver,
            ));
        }
        thread::spawn(&format!("rnic-own-{number}"), thread::STACK, move || live(theirs))?;
        engine::attend_to(Arc::clone(self), Arc::clone(&engine), None)?;
        Ok(engine)
    }
}

/// Until the daemon ends.
fn live(socket: Connection) {
    if let Err(error) = serve(socket) {
        tracing::error!("an engine of this daemon ends: {error:#}");
    }
}

fn serve(socket: Connection) -> Result<()> {
    let (start, fds) = receive_start(&socket)?;
    let satellite = Satellite::new(start, fds, socket, ClientMemory::OfProcesses)?;
    let result = satellite.attend(&mut Here);
    satellite.end();
    result
}

/// This process, which ends them when it ends.
struct Here;

impl satellite::Place for Here {
    /// The daemon may end when nothing is used.
    fn is_idle(&mut self, satellite: &Satellite, clients: u32) -> bool {
        satellite.tell(&FromEngine::Idle(clients));
        false
    }

    fn look(&mut self, _: Instant) -> Option<Instant> {
        None
    }
}
