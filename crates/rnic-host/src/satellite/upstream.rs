//! The daemon, as the sessions of a satellite see it.

use super::given::Given;
use super::protocol::{Call, CallAnswer, FromEngine, NetworkState};
use crate::quota::{Amounts, Resource};
use crate::refusal::{Refused, refuse};
use crate::server::{Groups, Ledger, Paths};
use crate::shard::{ShardHandle, ShardMessage};
use crossbeam_channel::{Sender, bounded};
use rnic_abi::control::{GidEntry, PortInfo, encode};
use rnic_abi::os::{Connection, Descriptors, EventFd};
use rnic_abi::verbs::AhAttr;
use rnic_core::command::Path;
use rnic_net::Hold;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the [module](self). Any thread may call.
pub(super) struct Upstream {
    socket: Connection,
    limits: Amounts,
    network: Mutex<NetworkState>,
    /// The engine of this process.
    shard: ShardHandle,
    /// How many queue pairs are attached to a group.
    groups: Mutex<BTreeMap<IpAddr, u32>>,
    calls: Mutex<Calls>,
    /// Also of what outlives this: it tells nothing more then.
    given: Arc<Given>,
}

/// Calls without an answer.
#[derive(Default)]
struct Calls {
    waiting: HashMap<u32, Sender<(CallAnswer, Descriptors)>>,
    next: u32,
    /// There will be no answers.
    over: bool,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Upstream {
    /// The daemon at the other end of a socket.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(super) fn new(
        socket: Connection,
        limits: Amounts,
        network: NetworkState,
        shard: ShardHandle,
    ) -> io::Result<Self> {
        let (network, given) = (Mutex::new(network), Arc::new(Given::new()?));
        let (groups, calls) = (Mutex::default(), Mutex::default());
        Ok(Self { socket, limits, network, shard, groups, calls, given })
    }

    /// Readable when there is something to [give back](Self::give_back).
    pub(super) fn wake(&self) -> &EventFd {
        self.given.wake()
    }

    /// Tells the daemon what was given back.
    pub(super) fn give_back(&self) {
        self.given.tell_by(|message| self.tell(message));
    }

    pub(super) fn socket(&self) -> &Connection {
        &self.socket
    }

    fn network(&self) -> MutexGuard<'_, NetworkState> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The network as it was told last, without what is told once.
    pub(super) fn network_now(&self) -> NetworkState {
        NetworkState { gids_changed: false, ..self.network().clone() }
    }

    pub(super) fn set_network(&self, network: NetworkState) {
        *self.network() = network;
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something that has no answer. Waits while the daemon has much to read.
    pub(super) fn tell(&self, message: &FromEngine) {
        // Once the daemon is gone this satellite ends.
        if let Ok(bytes) = encode(message) {
            let _ = self.socket.send(&bytes, &[]);
        }
    }

    /// The answer to a call has come.
    pub(super) fn answered(&self, number: u32, answer: CallAnswer, fds: Descriptors) {
        if let Some(waiting) = self.calls().waiting.remove(&number) {
            let _ = waiting.try_send((answer, fds));
        }
    }

    /// Calls fail from now on, also those that wait.
    pub(super) fn give_up(&self) {
        let mut calls = self.calls();
        calls.over = true;
        calls.waiting.clear();
    }

    fn call(&self, call: Call) -> Result<CallAnswer, Refused> {
        Ok(self.call_for_fds(call)?.0)
    }

    pub(super) fn call_for_fds(&self, call: Call) -> Result<(CallAnswer, Descriptors), Refused> {
        let (answer, answered) = bounded(1);
        let number = {
            let mut calls = self.calls();
            if calls.over {
                return Err(unexpected());
            }
            calls.next = calls.next.wrapping_add(1);
            let number = calls.next;
            calls.waiting.insert(number, answer);
            number
        };
        self.tell(&FromEngine::Call(number, call));
        answered.recv().map_err(|_| unexpected())
    }
}

pub(super) fn unexpected() -> Refused {
    refuse(libc::EIO, "unexpected answer of the daemon")
}

impl Paths for Upstream {
    fn port(&self) -> PortInfo {
        self.network().port
    }

    fn gids(&self) -> Vec<GidEntry> {
        self.network().gids.clone()
    }

    fn resolve(&self, ah: &AhAttr) -> Result<(Path, Hold), Refused> {
        self.give_back();
        let CallAnswer::Way(way) = self.call(Call::Resolve(*ah))? else {
            return Err(unexpected());
        };
        let path = way?.path(*ah);
        let (given, hop) = (Arc::clone(&self.given), path.hop);
        Ok((path, Hold::elsewhere(hop, move || given.add_way(hop))))
    }
}

impl Groups for Upstream {
    fn join(&self, group: IpAddr) -> Result<(), Refused> {
        // Held while the daemon answers: what joins and leaves keeps its order.
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = groups.get_mut(&group) {
            *count += 1;
            return Ok(());
        }
        match self.call(Call::Join(group))? {
            CallAnswer::Joined(joined) => joined?,
            _ => return Err(unexpected()),
        }
        groups.insert(group, 1);
        Ok(())
    }

    fn leave(&self, group: IpAddr) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = groups.get_mut(&group) else { return };
        *count -= 1;
        if *count == 0 {
            groups.remove(&group);
            self.shard.tell(ShardMessage::Leave(group));
            self.tell(&FromEngine::Leave(group));
        }
    }
}

/// Everything here is of the one user that the satellite is for.
impl Ledger for Upstream {
    fn limit(&self, _: u32, resource: Resource) -> u64 {
        self.limits[resource]
    }

    fn take(&self, _: u32, wanted: &[(Resource, u64)]) -> Result<(), Refused> {
        self.give_back();
        match self.call(Call::Take(wanted.to_vec()))? {
            CallAnswer::Taken(taken) => taken,
            _ => Err(unexpected()),
        }
    }

    fn give(&self, _: u32, resource: Resource, amount: u64) {
        self.given.add(resource, amount);
    }
}
