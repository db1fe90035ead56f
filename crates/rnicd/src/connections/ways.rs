//! The ways of management datagrams.

use super::known::{Key, Known};
use crate::resolver::Resolver;
use crossbeam_channel::bounded;
use rnic_abi::verbs::AhAttr;
use rnic_core::cm::{Outgoing, Route};
use rnic_core::{Command, OutgoingMad, Path};
use rnic_host::shard::{ShardHandle, ShardMessage};
use rnic_net::{Hold, Network};
use roce_wire::{Flow, Gid};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// See the [module](self).
pub(super) struct Ways {
    network: Arc<Network>,
    engine: ShardHandle,
    resolver: Resolver,
    known: Mutex<Known<Path, Hold>>,
}

impl Ways {
    pub(super) fn new(network: Arc<Network>, engine: ShardHandle) -> Arc<Self> {
        Arc::new(Self { network, engine, resolver: Resolver::new(), known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, Known<Path, Hold>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram, at once if the way is known. Never waits.
    pub(super) fn send(self: &Arc<Self>, outgoing: &Outgoing) {
        let Route { local, remote, traffic_class, .. } = outgoing.route;
        let key = (local, remote, traffic_class);
        let step = self.known().step(key, outgoing, Instant::now());
        if let Some(path) = step.leave {
            self.leave(path, outgoing);
        }
        let ways = Arc::clone(self);
        if step.seek && self.resolver.run(move || ways.seek(key)).is_err() {
            self.known().found(key, None, Instant::now());
        }
    }

    fn seek(&self, key: Key) {
        let found = self.attr_of(key).and_then(|attr| self.network.resolve(&attr).ok());
        let path = found.as_ref().map(|(path, _)| *path);
        let waiting = self.known().found(key, found, Instant::now());
        if let Some(path) = path {
            waiting.iter().for_each(|outgoing| self.leave(path, outgoing));
        }
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
