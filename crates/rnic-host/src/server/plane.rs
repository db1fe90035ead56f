//! What sessions need of the rest of the device, which may be in another process.

use crate::inspect::{Found, Kind, Numbers, Place, Question};
use crate::observe::Watcher;
use crate::quota::Resource;
use crate::refusal::Refused;
use crate::report::{Object, Session, Totals, User};
use crate::shard::{FaultsChanged, OwnEngine, ShardMessage, ShardStopped};
use crate::wire::FaultChange;
use rnic_abi::control::{CmRequest, GidEntry, PortInfo, Reply};
use rnic_abi::os::{Connection, Credentials};
use rnic_abi::verbs::AhAttr;
use rnic_core::command::Path;
use rnic_net::{Hold, Network};
use std::os::fd::OwnedFd;

/// The network of the device.
pub trait Paths: Send + Sync {
    /// The port, for `ibv_query_port`.
    fn port(&self) -> PortInfo;
    /// Used entries of the GID table.
    fn gids(&self) -> Vec<GidEntry>;
    /// The way to the destination of an address handle, which lasts as long as it is held. May wait
    /// for a neighbour for seconds.
    ///
    /// # Errors
    /// As [`Network::resolve`].
    fn resolve(&self, ah: &AhAttr) -> Result<(Path, Hold), Refused>;
}

impl Paths for Network {
    fn port(&self) -> PortInfo {
        Network::port(self)
    }

    fn gids(&self) -> Vec<GidEntry> {
        Network::gids(self)
    }

    fn resolve(&self, ah: &AhAttr) -> Result<(Path, Hold), Refused> {
        Network::resolve(self, ah)
    }
}

/// The connection manager of the device.
pub trait Connections: Send + Sync {
    /// A session begins to use it: what it makes ends with the value.
    fn open(&self) -> Box<dyn ConnectionSession>;
    /// What it has counted, as far as users of this process see that.
    fn counters(&self) -> Numbers;
}

/// One session's part of the connection manager.
pub trait ConnectionSession {
    /// Does what a program asks for. It waits for no peer and no program.
    ///
    /// # Errors
    /// As the call of librdmacm.
    fn execute(&mut self, request: CmRequest) -> Result<(Reply, Option<OwnedFd>), Refused>;
}

/// What each user has of the device, and may have.
pub trait Ledger: Send + Sync + std::fmt::Debug {
    /// How much a user may have.
    fn limit(&self, user: u32, resource: Resource) -> u64;
    /// Notes that a user takes so much of each: all of it or nothing.
    ///
    /// # Errors
    /// EAGAIN for a session, EMFILE for a descriptor, else ENOMEM, when this user or all users
    /// together have as much as they may have.
    fn take(&self, user: u32, wanted: &[(Resource, u64)]) -> Result<(), Refused>;
    /// Notes that a user gives it back.
    fn give(&self, user: u32, resource: Resource, amount: u64);
}

/// The engines of the device, as far as sessions of this process may see them.
pub trait Engines: Send + Sync {
    /// How many objects they have, and the users that have an engine process of their own.
    fn overview(&self) -> Overview;
    /// What they have counted.
    fn counters(&self) -> Numbers;
    /// Sessions with engines outside of this service, from a number on, in their order. None is
    /// missing before the last of these.
    fn sessions(&self, from: u32) -> Vec<Session>;
    /// A few objects of a kind from a place on, with their places, and where to go on.
    fn objects(&self, kind: Kind, from: Place) -> (Vec<(Place, Object)>, Option<Place>);
    /// Tells one more watcher what they do.
    fn observe(&self, watcher: &Watcher);
    /// Changes the faults that are injected, as
    /// [`DeviceWire::change_faults`](crate::wire::DeviceWire::change_faults).
    ///
    /// # Errors
    /// When the engine has ended.
    fn change_faults(&self, change: FaultChange) -> Result<FaultsChanged, ShardStopped>;
}

/// What starts engines in programs.
pub trait Functions: Send + Sync {
    /// Makes a program that has connected a [satellite](crate::satellite) of the daemon. Returns
    /// its end of their socket. `process` is its pidfd.
    ///
    /// # Errors
    /// When there are as many as there can be, or it may have none.
    fn start(&self, peer: Credentials, process: OwnedFd) -> Result<OwnedFd, Refused>;
}

/// Engines for clients of the daemon's own user, beside the one that serves the sessions of this
/// process.
pub trait MoreEngines: Send + Sync {
    /// The one that is to serve one more client; `None` where that is this process's own, which has
    /// so many.
    fn least_busy(&self, own: usize) -> Option<usize>;
    /// Gives it a client that is opening the device of this name. False when it takes none.
    fn serve(&self, engine: usize, client: &Connection, device: &str) -> bool;
}

/// What `rnic status` says of engines.
#[derive(Default)]
pub struct Overview {
    /// Objects of all that answer.
    pub totals: Totals,
    /// Users with an engine process of their own.
    pub users: Vec<User>,
}

impl Engines for OwnEngine {
    fn overview(&self) -> Overview {
        let totals = match self.inspect(Question::Totals) {
            Some(Found::Totals(totals)) => totals,
            _ => Totals::default(),
        };
        Overview { totals, users: Vec::new() }
    }

    fn counters(&self) -> Numbers {
        match self.inspect(Question::Counters) {
            Some(Found::Counters(counted)) => counted,
            _ => Numbers::new(),
        }
    }

    fn sessions(&self, _: u32) -> Vec<Session> {
        Vec::new()
    }

    fn objects(&self, kind: Kind, from: Place) -> (Vec<(Place, Object)>, Option<Place>) {
        let shard = self.number();
        // Places of other shards come before or behind all of this one.
        let slot = match from.shard.cmp(&shard) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => from.slot,
            std::cmp::Ordering::Greater => return (Vec::new(), None),
        };
        let Some(Found::Objects { objects, next }) = self.inspect(Question::Objects(kind, slot))
        else {
            return (Vec::new(), None);
        };
        let place = |slot| Place { shard, slot };
        let objects = objects.into_iter().map(|(slot, object)| (place(slot), object)).collect();
        (objects, next.map(place))
    }

    fn observe(&self, watcher: &Watcher) {
        self.handle().tell(ShardMessage::Observe(watcher.clone()));
    }

    fn change_faults(&self, change: FaultChange) -> Result<FaultsChanged, ShardStopped> {
        self.handle().ask(|answer| ShardMessage::Faults(change, answer))
    }
}
