//! The program's side of an engine that it may turn.

use super::super::held::Held;
use super::super::run::Shard;
use rnic_abi::os::driving::{Driving, Resting, State, Turned};
use std::os::fd::{AsFd, OwnedFd};
use xdp_io::udp::SocketCopy;

/// The program's side.
#[derive(Clone)]
pub struct ProgramsEngine {
    held: Held,
    driving: &'static Driving,
}

impl ProgramsEngine {
    pub(in super::super) fn new(held: Held, driving: &'static Driving) -> Self {
        Self { held, driving }
    }

    /// A turn or a few, if the program drives.
    pub fn turn(&self) -> Turned {
        self.turn_by(Shard::driven_turns)
    }

    /// The same for a thread that is to sleep where there is nothing to do, and on what.
    pub fn rest(&self, resting: &mut Resting) -> Turned {
        self.turn_by(|shard| shard.rest(resting))
    }

    fn turn_by(&self, work: impl FnOnce(&mut Shard) -> Turned) -> Turned {
        let Some(mut held) = self.held.try_lock() else {
            return Turned::default().with(Turned::BUSY, true);
        };
        match held.as_mut() {
            Some(shard) if self.driving.state() == State::Driven => work(shard),
            _ => Turned::default(),
        }
    }

    /// Whether no other thread has the engine at this moment.
    pub fn is_free(&self) -> bool {
        self.held.try_lock().is_some()
    }

    /// Takes copies of the engine's sockets as they were at this number of changes. False when they
    /// are others now, or when another thread has the engine.
    pub fn take_copies(&self, changes: u64, copies: &[OwnedFd]) -> bool {
        let copies = copies.iter().map(|copy| SocketCopy::of(copy.as_fd()));
        let Ok(copies) = copies.collect::<Result<Vec<_>, _>>() else { return false };
        let Some(mut held) = self.held.try_lock() else { return false };
        let port = held.as_mut().and_then(|shard| shard.nic.wire.udp_port());
        port.is_some_and(|port| port.take_copies(changes, &copies))
    }

    /// The copies are about to be closed. False when another thread has the engine.
    pub fn forget_copies(&self) -> bool {
        let Some(mut held) = self.held.try_lock() else { return false };
        if let Some(port) = held.as_mut().and_then(|shard| shard.nic.wire.udp_port()) {
            port.forget_copies();
        }
        true
    }

    /// It has ended, or does so now.
    pub fn has_ended(&self) -> bool {
        self.held.try_lock().is_some_and(|held| held.is_none())
    }
}
