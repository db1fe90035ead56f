//! An engine with its ports.

use super::host::ClientEvents;
use super::port::ShardPort;
use crate::dma::SystemDma;
use rnic_core::ports::Ports;
use rnic_core::{Engine, Instant, Turn};

/// See the [module](self).
pub(super) struct Nic {
    pub(super) engine: Engine,
    pub(super) wire: ShardPort,
    pub(super) dma: SystemDma,
    pub(super) events: ClientEvents,
}

impl Nic {
    /// The first half of a turn: what was received.
    pub(super) fn arrivals(&mut self, now: Instant) -> Turn {
        let mut ports = Ports { wire: &mut self.wire, dma: &mut self.dma, host: &mut self.events };
        let turn = self.engine.arrivals(now, &mut ports, &mut ());
        self.events.flush_hand_overs();
        turn
    }

    /// The second half: what is to be sent.
    pub(super) fn departures(&mut self, now: Instant) -> Turn {
        let mut ports = Ports { wire: &mut self.wire, dma: &mut self.dma, host: &mut self.events };
        self.engine.departures(now, &mut ports, &mut ())
    }
}
