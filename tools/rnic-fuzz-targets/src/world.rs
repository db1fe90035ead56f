//! An engine, its port, the memory of its clients, and the promises that hold for every input.
//!
//! * No panic, no overflow, no endless loop.
//! * No DMA outside memory that the QP's own client registered, and no write without the right to
//!   (witnessed by [`rnic_sim::memory::Memory`], one address space per client).
//! * What leaves is well-formed and within the limits of the wire ([`rnic_sim::port::Port`]).
//! * A turn does a bounded amount of work.
//! * Every received datagram is accepted, or dropped with a reason and a counter.
//! * Completions of honest queues come once, in order, and all of them
//!   ([`rnic_sim::oracle::QueueOracle`]).
//! * QPs of other clients are not affected.

use crate::ledger::Ledger;
use rnic_abi::control::AsyncEvent;
use rnic_core::config::EngineConfig;
use rnic_core::engine::{Engine, Turn};
use rnic_core::ports::{Host, Ports, RxTrain};
use rnic_core::time::Instant;
use rnic_core::{ChannelId, ClientCommand, ClientId, Command, CommandError, Outcome};
use rnic_sim::memory::Memory;
use rnic_sim::port::{Packet, Port, PortConfig};
use std::net::{IpAddr, Ipv4Addr};

/// Our address.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// Bytes that one turn may send: few, so that the budget is often used up.
const TURN_BYTES: u32 = 16 * 1024;
const VISIT_BYTES: u32 = 6 * 1024;
const WINDOW_BYTES: u32 = 8 * 1024;
/// One visit may end in a packet beyond its budget.
const MOST_SENT: u64 = (TURN_BYTES + VISIT_BYTES + 5 * 1024) as u64;
/// Events of one turn: a few per datagram of the largest burst in both directions.
const MOST_EVENTS: u64 = 2_000;
const TURN_NANOS: u64 = 1_000;

/// What the engine reported to its clients.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(crate) handed_over: u64,
    asyncs: u64,
}

impl Host for Notices {
    fn completion_event(&mut self, _client: ClientId, _channel: ChannelId, _cq: u32) {}

    fn async_event(&mut self, _client: ClientId, _event: AsyncEvent) {
        self.asyncs += 1;
    }

    fn hand_over(&mut self, _shard: u8, _train: &RxTrain, _datagram: &[u8]) {
        self.handed_over += 1;
    }
}

/// Everything but the clients.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) port: Port,
    pub(crate) memory: Memory,
    pub(crate) ledger: Ledger,
    pub(crate) now: Instant,
    notices: Notices,
}

impl World {
    pub(crate) fn new(port: PortConfig) -> Self {
        let mut config = EngineConfig::new([0x5eed_0001, 0x5eed_0002]);
        config.window_bytes = WINDOW_BYTES;
        config.visit_bytes = VISIT_BYTES;
        config.turn_bytes = TURN_BYTES;
        let now = Instant::from_nanos(1_000_000_000);
        Self {
            engine: Engine::new(config, now),
            port: Port::new(port),
            memory: Memory::default(),
            ledger: Ledger::default(),
            now,
            notices: Notices::default(),
        }
    }

    pub(crate) fn execute(&mut self, command: Command) -> Result<Outcome, CommandError> {
        self.engine.execute(self.now, command)
    }

    pub(crate) fn command(
        &mut self,
        client: ClientId,
        command: ClientCommand,
    ) -> Result<Outcome, CommandError> {
        self.execute(Command::Client(client, command))
    }

    /// One turn, after which every promise is checked that can be checked at once.
    pub(crate) fn turn(&mut self) -> Turn {
        self.now = self.now.after_nanos(TURN_NANOS);
        self.ledger.begin();
        let before = *self.engine.counters();
        let (events, dma) = (self.ledger.events, self.memory.counts.bytes);
        let Self { engine, port, memory, ledger, notices, now } = self;
        let mut ports = Ports { wire: port, dma: memory, host: notices };
        let turn = engine.turn(*now, &mut ports, ledger);
        let after = self.engine.counters();
        let sent = after.tx_bytes - before.tx_bytes;
        assert!(sent <= MOST_SENT, "{sent} bytes sent in one turn");
        let events = self.ledger.events - events;
        assert!(events <= MOST_EVENTS, "{events} events in one turn");
        let moved = self.memory.counts.bytes - dma;
        // What arrived is stored at most once, what leaves is read at most once.
        let limit = MOST_SENT + (after.rx_bytes - before.rx_bytes);
        assert!(moved <= limit, "{moved} bytes of DMA for {limit} bytes of datagrams");
        self.ledger.check(after, self.notices.handed_over);
        turn
    }

    /// Advances time to the engine's next deadline, by at most `nanos`.
    pub(crate) fn wait(&mut self, nanos: u64) {
        let latest = self.now.after_nanos(nanos);
        self.now = match self.engine.next_deadline() {
            Some(deadline) => deadline.clamp(self.now, latest),
            None => latest,
        };
    }

    /// What was sent since the last call.
    pub(crate) fn take_sent(&mut self) -> Vec<Packet> {
        self.port.take_output()
    }

    /// What was sent to our own address is received again; the rest is lost.
    pub(crate) fn loop_back(&mut self) {
        for packet in self.port.take_output() {
            if packet.flow.dst == HERE {
                self.port.deliver(packet);
            }
        }
    }

    /// Checks the promises that other parts recorded.
    pub(crate) fn check(&self) {
        assert!(self.memory.violations().is_empty(), "{:#?}", self.memory.violations());
        assert!(self.port.violations().is_empty(), "{:#?}", self.port.violations());
    }
}
