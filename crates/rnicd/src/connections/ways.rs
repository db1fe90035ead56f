//! The ways of management datagrams.

use crate::resolver::Resolver;
use crossbeam_channel::bounded;
use rnic_abi::verbs::AhAttr;
use rnic_core::cm::{Outgoing, Route};
use rnic_core::{Command, OutgoingMad, Path};
use rnic_host::shard::{ShardHandle, ShardMessage};
use rnic_net::{Hold, Network};
use roce_wire::{Flow, Gid};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// See the [module](self).
pub(super) struct Ways {
    network: Arc<Network>,
    engine: ShardHandle,
    resolver: Resolver,
    known: Mutex<HashMap<Key, Way>>,
}

/// What a way depends on: both addresses and the traffic class.
type Key = (IpAddr, IpAddr, u8);

enum Way {
    /// A thread looks for it; these are to leave then.
    Sought(Vec<Outgoing>),
    Known {
        path: Path,
        /// As long as the engine may use the path.
        _hold: Hold,
        since: Instant,
    },
}

impl Ways {
    pub(super) fn new(network: Arc<Network>, engine: ShardHandle) -> Arc<Self> {
        Arc::new(Self { network, engine, resolver: Resolver::new(), known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Way>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram, at once if the way is known. Never waits.
    pub(super) fn send(self: &Arc<Self>, outgoing: &Outgoing) {
        let Route { local, remote, traffic_class, .. } = outgoing.route;
        let key = (local, remote, traffic_class);
        let mut known = self.known();
        let now = Instant::now();
        match known.get_mut(&key) {
            Some(Way::Known { path, since, .. }) if now.duration_since(*since) < FRESH => {
                return self.leave(*path, outgoing);
            }
            Some(Way::Sought(waiting)) => {
                // What is lost is sent again.
                if waiting.len() < MAX_WAITING {
                    waiting.push(*outgoing);
                }
                return;
            }
            _ => {}
        }
        make_room(&mut known, now);
        let sought = known.values().filter(|way| matches!(way, Way::Sought(_))).count();
        if sought >= MAX_SOUGHT || known.len() >= MAX_KNOWN {
            return;
        }
        known.insert(key, Way::Sought(vec![*outgoing]));
        drop(known);
        let ways = Arc::clone(self);
        if self.resolver.run(move || ways.seek(key)).is_err() {
            self.known().remove(&key);
        }
    }

    fn seek(&self, key: Key) {
        let found = self.attr_of(key).and_then(|attr| self.network.resolve(&attr).ok());
        let mut known = self.known();
        let Some(Way::Sought(waiting)) = known.remove(&key) else { return };
        let Some((path, hold)) = found else { return };
        waiting.iter().for_each(|outgoing| self.leave(path, outgoing));
        known.insert(key, Way::Known { path, _hold: hold, since: Instant::now() });
    }

    fn attr_of(&self, (local, remote, traffic_class): Key) -> Option<AhAttr> {
        let own = Gid::from_ip(local).0;
        let gids = self.network.gids();
        let index = gids.iter().find(|entry| entry.gid == own)?.index;
        Some(AhAttr {
            dgid: Gid::from_ip(remote).0,
            // That of the connection would be another way for each.
            flow_label: 0,
            sgid_index: u8::try_from(index).ok()?,
            hop_limit: Flow::DEFAULT_HOP_LIMIT,
            traffic_class,
            sl: 0,
            port_num: 1,
            is_global: true,
        })
    }

    fn leave(&self, path: Path, outgoing: &Outgoing) {
        let mad = OutgoingMad { path, dest: outgoing.route.qpn, mad: outgoing.mad };
        // No thread reads the answer: a datagram for which there is no room is lost.
        let (answer, _) = bounded(1);
        self.engine.tell(ShardMessage::Execute(Command::SendMad(Box::new(mad)), answer));
    }
}

/// Forgets what is old where there is much.
fn make_room(known: &mut HashMap<Key, Way>, now: Instant) {
    if known.len() >= MAX_KNOWN {
        known.retain(|_, way| match way {
            Way::Known { since, .. } => now.duration_since(*since) < FRESH,
            Way::Sought(_) => true,
        });
    }
}

/// How long a way stays as it is without a look at the routes.
const FRESH: Duration = Duration::from_secs(10);
/// Ways that are kept.
const MAX_KNOWN: usize = 2048;
/// Datagrams that wait for one way.
const MAX_WAITING: usize = 1024;
/// Ways that are looked for at a time: as many threads.
const MAX_SOUGHT: usize = 16;
