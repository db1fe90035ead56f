//! The connection manager of the device, in the daemon, for all users.
//!
//! Its protocol is in [`rnic_core::cm`]. Here are its thread, which takes what arrives at QP1 and
//! does what is due, the sessions of programs, and the way out: finding a neighbour may take
//! seconds, and nothing else waits meanwhile. A datagram that cannot leave at once is dropped; what
//! matters is sent again.

mod events;
mod known;
mod sessions;
mod ways;

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select};
use events::Events;
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
use ways::Ways;

/// See the [module](self).
pub(crate) struct Connections {
    state: Mutex<State>,
    network: Arc<Network>,
    ways: Arc<Ways>,
    /// Has the thread look at its timers again.
    poke: Sender<()>,
    sessions: AtomicU32,
}

struct State {
    cm: Cm,
    events: Events,
}

/// What a user may have of the connection manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    /// The engine of the user's queue pairs.
    pub(crate) shard: u8,
    /// The lowest port that programs may ask for.
    pub(crate) first_port: u16,
    /// Event channels.
    pub(crate) max_channels: u64,
}

/// The manager, as sessions of the daemon's own user have it.
pub(crate) struct OwnConnections(pub(crate) Arc<Connections>);

impl server::Connections for OwnConnections {
    fn open(&self) -> Box<dyn ConnectionSession> {
        // Sessions are charged for their channels.
        let rights = Rights { shard: 0, first_port: 0, max_channels: u64::MAX };
        self.0.open(rights)
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
        let this = Arc::new(Self {
            state: Mutex::new(State { cm: Cm::new(config), events: Events::default() }),
            network: Arc::clone(network),
            ways: Ways::new(Arc::clone(network), engine.clone()),
            poke,
            sessions: AtomicU32::new(0),
        });
        let (sender, arrivals) = bounded(MAX_ARRIVALS);
        let manager = Arc::clone(&this);
        thread::spawn("rnic-cm", thread::STACK, move || manager.run(&arrivals, &poked))?;
        engine.tell(ShardMessage::ServeManagement(sender));
        Ok(this)
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
    fn run(&self, arrivals: &Receiver<Mad>, poked: &Receiver<()>) {
        loop {
            let mut next = match self.next(arrivals, poked) {
                Ok(mad) => mad,
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut state = self.state();
            for _ in 0..AT_ONCE {
                let Some(Mad { flow, sender, mad }) = next else { break };
                state.cm.receive(monotonic(), &Route::back(&flow, sender), &mad);
                self.flush(&mut state);
                next = arrivals.try_recv().ok();
            }
            state.cm.expire(monotonic());
            self.flush(&mut state);
            state.events.flush();
        }
    }

    /// Waits for a datagram, a poke, or until something is due.
    fn next(
        &self,
        arrivals: &Receiver<Mad>,
        poked: &Receiver<()>,
    ) -> Result<Option<Mad>, RecvTimeoutError> {
        let patience = {
            let state = self.state();
            let due = state.cm.next_deadline().map_or(IDLE, |at| at.since(monotonic()));
            if state.events.any_waits() { due.min(RETRY) } else { due }
        };
        select! {
            recv(arrivals) -> mad => mad.map(Some).map_err(|_| RecvTimeoutError::Disconnected),
            recv(poked) -> _ => Ok(None),
            default(patience) => Err(RecvTimeoutError::Timeout),
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

/// Most identifiers of one user, those that peers' requests make included.
const MAX_OF_USER: usize = 8192;
/// Datagrams that wait for the thread.
const MAX_ARRIVALS: usize = 4096;
/// Datagrams that are handled before timers are looked at.
const AT_ONCE: usize = 64;
/// How long to sleep when nothing is due.
const IDLE: Duration = Duration::from_secs(60);
/// When to offer events again to a program that had no room.
const RETRY: Duration = Duration::from_millis(20);
