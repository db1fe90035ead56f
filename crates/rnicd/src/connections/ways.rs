//! The ways of management datagrams.

use super::known::{Answer, Key, Known};
use crate::resolver::Resolver;
use crossbeam_channel::{Sender, bounded};
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
    /// Ways that have been looked for.
    searched: Sender<Searched>,
}

/// A way, and the errno value of why there is none.
pub(super) type Searched = (Key, Option<i32>);

impl Ways {
    pub(super) fn new(
        network: Arc<Network>,
        engine: ShardHandle,
        searched: Sender<Searched>,
    ) -> Arc<Self> {
        let (resolver, known) = (Resolver::new(), Mutex::default());
        Arc::new(Self { network, engine, resolver, known, searched })
    }

    fn known(&self) -> MutexGuard<'_, Known<Path, Hold>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram, at once if the way is known. Never waits.
    pub(super) fn send(self: &Arc<Self>, outgoing: &Outgoing) {
        let key = key_of(&outgoing.route);
        let step = self.known().step(key, outgoing, Instant::now());
        if let Some(path) = step.leave {
            self.leave(path, outgoing);
        }
        if step.seek {
            self.have_sought(key);
        }
    }

    /// Whether there is a way, for a program of this user. One that is sought is told when it is
    /// [searched](Self::new). Never waits.
    pub(super) fn ask(self: &Arc<Self>, key: Key, user: u8) -> Answer {
        let answer = self.known().ask(key, user, Instant::now());
        if answer == Answer::Seek {
            self.have_sought(key);
        }
        answer
    }

    fn have_sought(self: &Arc<Self>, key: Key) {
        let ways = Arc::clone(self);
        if self.resolver.run(move || ways.seek(key)).is_err() {
            self.known().found(key, None, Instant::now());
            self.tell(key, Some(libc::EAGAIN));
        }
    }

    fn tell(&self, key: Key, errno: Option<i32>) {
        // The receiver goes with the daemon.
        let _ = self.searched.send((key, errno));
    }

    fn seek(&self, key: Key) {
        let found = match self.attr_of(key) {
            Some(attr) => self.network.resolve(&attr).map_err(|refusal| refusal.errno),
            None => Err(libc::EADDRNOTAVAIL),
        };
        let (path, errno) =
            (found.as_ref().map(|(path, _)| *path).ok(), found.as_ref().err().copied());
        let waiting = self.known().found(key, found.ok(), Instant::now());
        self.tell(key, errno);
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

/// The way that a route needs.
pub(super) fn key_of(route: &Route) -> Key {
    (route.local, route.remote, route.traffic_class)
}
