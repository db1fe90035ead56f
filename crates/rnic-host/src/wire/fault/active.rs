//! The faults in force, and what they strike.

use super::spec::{Fault, FaultKind};
use super::{FaultChange, NoChange};
use crate::observe::Watchers;
use fastrand::Rng;
use rnic_core::Event;
use rnic_core::event::PacketInfo;

/// See the [module](self).
pub(super) struct Active {
    faults: Vec<Fault>,
    /// One of them strikes what is sent.
    has_outgoing: bool,
    /// Number of the last fault.
    last_number: u32,
    /// Begins anew with the seed of the faults.
    pub(super) random: Rng,
    /// Told which packets are disturbed.
    pub(super) watchers: Watchers,
}

impl Active {
    pub(super) fn new() -> Self {
        Self {
            faults: Vec::new(),
            has_outgoing: false,
            last_number: 0,
            random: Rng::with_seed(FIRST_SEED),
            watchers: Watchers::default(),
        }
    }

    /// None is in force.
    pub(super) fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// One strikes what is sent.
    pub(super) fn has_outgoing(&self) -> bool {
        self.has_outgoing
    }

    /// See [`DeviceWire::change_faults`](crate::wire::DeviceWire::change_faults).
    pub(super) fn change(&mut self, change: FaultChange) -> Result<Vec<Fault>, NoChange> {
        match change {
            FaultChange::Keep => {}
            FaultChange::Add(more, _) if self.faults.len() + more.len() > MAX_FAULTS => {
                return Err(NoChange::TooMany);
            }
            FaultChange::Add(more, seed) => {
                // The same commands disturb alike, also in a daemon that was disturbed before.
                if let Some(seed) = seed.or(self.faults.is_empty().then_some(FIRST_SEED)) {
                    self.random = Rng::with_seed(seed);
                }
                for mut fault in more {
                    if fault.number == 0 {
                        fault.number = self.last_number.wrapping_add(1).max(1);
                    }
                    self.last_number = fault.number;
                    fault.begin();
                    self.faults.push(fault);
                }
            }
            FaultChange::Remove(numbers) => {
                let is_there = |number: &u32| self.faults.iter().any(|f| f.number == *number);
                if let Some(number) = numbers.iter().find(|number| !is_there(number)) {
                    return Err(NoChange::NoSuch(*number));
                }
                self.faults.retain(|fault| !numbers.contains(&fault.number));
            }
            FaultChange::Clear => self.faults.clear(),
        }
        self.has_outgoing = self.faults.iter().any(Fault::is_outgoing);
        Ok(self.faults.clone())
    }

    /// How many packets matched each fault, and how many it struck, by its number.
    pub(super) fn counts(&self) -> Vec<(u32, [u64; 2])> {
        self.faults.iter().map(|fault| (fault.number, fault.counts())).collect()
    }

    /// What the first fault that strikes a datagram does to it.
    pub(super) fn strike(&mut self, bytes: &[u8], outgoing: bool) -> Option<FaultKind> {
        for fault in &mut self.faults {
            if fault.is_outgoing() == outgoing
                && fault.matches(bytes)
                && fault.strikes(self.random.u64(..))
            {
                if !self.watchers.is_empty() {
                    let (fault, kind) = (fault.number, fault.kind.disturbance());
                    let packet = PacketInfo::of(bytes);
                    self.watchers.event(Event::Fault { fault, kind, outgoing, packet });
                }
                return Some(fault.kind);
            }
        }
        None
    }

    /// Tells that a datagram which was held back, or another copy of one, goes on.
    pub(super) fn released(&mut self, bytes: &[u8], outgoing: bool) {
        if !self.watchers.is_empty() {
            let packet = PacketInfo::of(bytes);
            self.watchers.event(Event::Released { outgoing, packet });
        }
    }
}

/// Each datagram is compared with all of them.
pub const MAX_FAULTS: usize = 64;
const FIRST_SEED: u64 = 1;
