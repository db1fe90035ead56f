//! An engine with its ports.

use super::host::ClientEvents;
use super::port::ShardPort;
use crate::dma::SystemDma;
use crate::observe::{Watcher, Watchers};
use crate::wire::BrokenCq;
use rnic_core::ports::Ports;
use rnic_core::{Engine, Instant, Turn};

/// See the [module](self).
pub(super) struct Nic {
    pub(super) engine: Engine,
    pub(super) wire: ShardPort,
    pub(super) dma: SystemDma,
    pub(super) events: ClientEvents,
    /// Told what happens. Without any, the engine's code is the one that has no events.
    pub(super) watchers: Watchers,
}

impl Nic {
    /// One more watches.
    pub(super) fn observe(&mut self, watcher: Watcher) {
        let watcher = watcher.of_shard(self.engine.config().shard);
        self.wire.observe(&watcher);
        self.watchers.add(watcher);
    }

    /// The first half of a turn: what was received.
    pub(super) fn arrivals(&mut self, now: Instant) -> Turn {
        let Self { engine, wire, dma, events, watchers } = self;
        dma.begin_turn(now);
        let mut ports = Ports { wire, dma, host: events };
        let turn = match watchers.is_empty() {
            true => engine.arrivals(now, &mut ports, &mut ()),
            false => watched(watchers, |tap| engine.arrivals(now, &mut ports, tap)),
        };
        self.events.flush_hand_overs();
        while let Some(broken) = self.wire.take_broken_cq() {
            self.break_cq(now, broken);
        }
        turn
    }

    /// A fault breaks a completion queue.
    #[cold]
    fn break_cq(&mut self, now: Instant, BrokenCq { qpn, receive }: BrokenCq) {
        self.engine.break_cq(now, qpn, receive, &mut self.watchers);
    }

    /// The second half: what is to be sent.
    pub(super) fn departures(&mut self, now: Instant) -> Turn {
        let Self { engine, wire, dma, events, watchers } = self;
        dma.begin_turn(now);
        let mut ports = Ports { wire, dma, host: events };
        match watchers.is_empty() {
            true => engine.departures(now, &mut ports, &mut ()),
            false => watched(watchers, |tap| engine.departures(now, &mut ports, tap)),
        }
    }
}

/// Half a turn that watchers are told of.
#[cold]
fn watched(watchers: &mut Watchers, half: impl FnOnce(&mut Watchers) -> Turn) -> Turn {
    let turn = half(watchers);
    watchers.turn_ends();
    turn
}
