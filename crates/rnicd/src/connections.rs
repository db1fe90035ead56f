//! The connection manager of the device, in the daemon, for all users.
//!
//! Its protocol is in [`rnic_core::cm`]. Here are its thread, which takes what arrives at QP1 and
//! does what is due, the sessions of programs, and the way out: finding a neighbour may take
//! seconds, and nothing else waits meanwhile. A datagram that cannot leave at once is dropped; what
//! matters is sent again.

mod askers;
mod events;
mod known;
mod sessions;
mod ways;

use anyhow::{Context, Result};
use askers::Askers;
use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use events::Events;
use known::{Answer, Key};
use rnic_abi::control::DeviceInfo;
use rnic_core::Secret;
use rnic_core::cm::{Cm, CmConfig, Happening, Route};
use rnic_core::qpn::MAX_SHARDS;
use rnic_host::inspect::Numbers;
use rnic_host::refusal::{Refused, refuse};
use rnic_host::server::{self, ConnectionSession};
use rnic_host::shard::{Mad, ShardHandle, ShardMessage, monotonic};
use rnic_host::system::random;
use rnic_host::thread;
use rnic_net::Network;
use sessions::CmSession;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use ways::{Searched, Ways};

/// See the [module](self).
pub(crate) struct Connections {
    state: Mutex<State>,
    network: Arc<Network>,
    ways: Arc<Ways>,
    /// Has the thread look at its timers again.
    poke: Sender<()>,
    sessions: AtomicU32,
    /// Engines of the daemon's own user, a bit each.
    own: Mutex<u128>,
}

struct State {
    cm: Cm,
    events: Events,
    askers: Askers,
}

/// What the thread has waited for; neither when something is due.
type Next = (Option<Mad>, Option<Searched>);

/// What a user may have of the connection manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    /// What its identifiers are known by: [`OWNER`], or an engine of another user.
    pub(crate) user: u8,
    /// All engines that queue pairs of the user may be in, a bit each.
    pub(crate) engines: u128,
    /// The lowest port that programs may ask for.
    pub(crate) first_port: u16,
    /// Event channels.
    pub(crate) max_channels: u64,
}

/// The daemon's own user, wherever the engines of its programs are: they share ports, and their
/// number of identifiers.
pub(crate) const OWNER: u8 = 0;

/// The manager, as sessions of the daemon's own user have it.
pub(crate) struct OwnConnections(pub(crate) Arc<Connections>);

impl server::Connections for OwnConnections {
    fn open(&self) -> Box<dyn ConnectionSession> {
        // Sessions are charged for their channels.
        let engines = self.0.own_engines();
        self.0.open(Rights { user: OWNER, engines, first_port: 0, max_channels: u64::MAX })
    }

    fn counters(&self) -> Numbers {
        let state = self.0.state();
        let (ids, listeners) = (state.cm.len() as u64, state.cm.listeners() as u64);
        let now = [("cm_ids", ids), ("cm_listeners", listeners)];
        let counted = state.cm.counters();
        counted.iter().chain(now).map(|(name, value)| (name.into(), value)).collect()
    }
}

impl Connections {
    /// Starts it: from now on it serves QP1 of the engine.
    ///
    /// # Errors
    /// When there is no thread left.
    pub(crate) fn start(
        device: &DeviceInfo,
        network: &Arc<Network>,
        engine: &ShardHandle,
    ) -> Result<Arc<Self>> {
        let config = CmConfig {
            secret: Secret::new(random().context("no randomness")?),
            guid: u64::from_be_bytes(device.node_guid),
            max_ids: usize::from(MAX_SHARDS) * MAX_OF_USER,
            max_of_user: MAX_OF_USER,
            mtu_code: network.port().active_mtu,
        };
        let (poke, poked) = bounded(1);
        let (search, searched) = unbounded();
        let state =
            State { cm: Cm::new(config), events: Events::default(), askers: Askers::default() };
        let this = Arc::new(Self {
            state: Mutex::new(state),
            network: Arc::clone(network),
            ways: Ways::new(Arc::clone(network), engine.clone(), search),
            poke,
            sessions: AtomicU32::new(0),
            own: Mutex::new(1),
        });
        let (sender, arrivals) = bounded(MAX_ARRIVALS);
        let manager = Arc::clone(&this);
        thread::spawn("rnic-cm", thread::STACK, move || {
            manager.run(&arrivals, &searched, &poked);
        })?;
        engine.tell(ShardMessage::ServeManagement(sender));
        Ok(this)
    }

    /// One more engine is of the daemon's own user: a program may have its queue pairs there, and
    /// its identifiers here.
    pub(crate) fn add_own_engine(&self, shard: u8) {
        *self.own() |= 1 << shard;
    }

    /// It has ended: another user may get its number.
    pub(crate) fn remove_own_engine(&self, shard: u8) {
        *self.own() &= !(1 << shard);
    }

    pub(crate) fn own_engines(&self) -> u128 {
        *self.own()
    }

    fn own(&self) -> MutexGuard<'_, u128> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session begins: what it makes ends with the value.
    pub(crate) fn open(self: &Arc<Self>, rights: Rights) -> Box<dyn ConnectionSession> {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        Box::new(CmSession::new(Arc::clone(self), rights, number))
    }

    /// The link allows this path MTU code from now on.
    pub(crate) fn set_mtu(&self, code: u8) {
        self.state().cm.set_mtu(code);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that an address is the device's.
    fn check_own(&self, address: IpAddr) -> Result<(), Refused> {
        if self.network.local_addresses().contains(&address) {
            return Ok(());
        }
        Err(refuse(libc::EADDRNOTAVAIL, format!("{address} is no address of the device")))
    }

    /// Something may be due earlier than before.
    fn look_at_timers(&self) {
        // A full channel pokes as well.
        let _ = self.poke.try_send(());
    }

    /// Until the engine has ended.
    fn run(&self, arrivals: &Receiver<Mad>, searched: &Receiver<Searched>, poked: &Receiver<()>) {
        while let Some((first, way)) = self.next(arrivals, searched, poked) {
            let mut state = self.state();
            if let Some((key, errno)) = way {
                self.was_searched(&mut state, key, errno);
            }
            for Mad { flow, sender, mad } in burst(first, arrivals) {
                state.cm.receive(monotonic(), &Route::back(&flow, sender), &mad);
                self.flush(&mut state);
            }
            state.cm.expire(monotonic());
            self.flush(&mut state);
            while let Some(id) = state.askers.take_late(monotonic()) {
                state.resolved(id, libc::ETIMEDOUT);
            }
            state.events.flush();
        }
    }

    /// Tells the programs that wait for the way, and looks for ways for which no thread was free.
    fn was_searched(&self, state: &mut State, key: Key, errno: Option<i32>) {
        for id in state.askers.take(key) {
            state.resolved(id, errno.unwrap_or(0));
        }
        let mut refused = None;
        while let Some((user, id, key)) = state.askers.next_delayed() {
            match self.ways.ask(key, user) {
                Answer::Known => {
                    state.askers.remove(id);
                    state.resolved(id, 0);
                }
                Answer::Sought | Answer::Seek => state.askers.begin(id),
                // Another user may have fewer threads; all are asked before this one again.
                Answer::Busy if refused.is_none() => {
                    refused = Some(user);
                    continue;
                }
                Answer::Busy if refused == Some(user) => return,
                Answer::Busy => continue,
            }
            refused = None;
        }
    }

    /// Waits for a datagram, the end of a search, a poke, or until something is due. `None` at the
    /// end of the engine.
    fn next(
        &self,
        arrivals: &Receiver<Mad>,
        searched: &Receiver<Searched>,
        poked: &Receiver<()>,
    ) -> Option<Next> {
        let patience = {
            let state = self.state();
            let both = [state.cm.next_deadline(), state.askers.next_deadline()];
            let due = both.into_iter().flatten().min();
            let due = due.map_or(IDLE, |at| at.since(monotonic()));
            if state.events.any_waits() { due.min(RETRY) } else { due }
        };
        select! {
            recv(arrivals) -> mad => mad.ok().map(|mad| (Some(mad), None)),
            recv(searched) -> way => way.ok().map(|way| (None, Some(way))),
            recv(poked) -> _ => Some((None, None)),
            default(patience) => Some((None, None)),
        }
    }

    /// Passes on what the last call has caused.
    fn flush(&self, state: &mut State) {
        while let Some(event) = state.cm.next_event() {
            let is_new = matches!(event.what, Happening::Request(_) | Happening::Lookup(_));
            if !state.events.tell(&event) && is_new {
                // The program would never know of it.
                let _ = state.cm.release(monotonic(), event.id);
            }
        }
        while let Some(outgoing) = state.cm.next_mad() {
            self.ways.send(&outgoing);
        }
    }
}

/// What has arrived, and some of what waits behind it.
fn burst<T>(first: Option<T>, arrivals: &Receiver<T>) -> impl Iterator<Item = T> {
    let more = std::iter::from_fn(|| arrivals.try_recv().ok()).take(AT_ONCE);
    first.into_iter().chain(more)
}

impl State {
    /// The way to the identifier's peer is found, or is not. False when its program does not read.
    fn resolved(&mut self, id: u32, errno: i32) -> bool {
        let Some(owner) = self.cm.owner_of(id) else { return true };
        self.events.resolved(owner, id, errno)
    }
}

/// Most identifiers of one user, those that peers' requests make included.
const MAX_OF_USER: usize = 8192;
/// Datagrams that wait for the thread.
const MAX_ARRIVALS: usize = 4096;
/// Datagrams that are handled behind the first before timers are looked at.
const AT_ONCE: usize = 64;
/// How long to sleep when nothing is due.
const IDLE: Duration = Duration::from_secs(60);
/// When to offer events again to a program that had no room.
const RETRY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_datagram_of_many_is_lost_between_bursts() {
        let (sender, arrivals) = bounded(1000);
        (0..1000).for_each(|number| sender.send(number).unwrap());
        let mut all = Vec::new();
        while let Ok(first) = arrivals.try_recv() {
            all.extend(burst(Some(first), &arrivals));
            all.extend(burst(None, &arrivals));
        }
        assert!(all.into_iter().eq(0..1000));
    }
}
