//! What a satellite has given back and the daemon does not know yet.

use super::protocol::FromEngine;
use crate::quota::{Amounts, Resource};
use rnic_abi::os::EventFd;
use rnic_core::ports::HopId;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the [module](self). Any thread may call.
pub(super) struct Given {
    what: Mutex<What>,
    /// For the thread that tells: calls that follow are told after it.
    turn: Mutex<()>,
    /// Written when there is something.
    wake: EventFd,
}

#[derive(Default, PartialEq)]
struct What {
    amounts: Amounts,
    /// How many of the ways with each hop.
    ways: BTreeMap<u32, u32>,
}

impl Given {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { what: Mutex::default(), turn: Mutex::default(), wake: EventFd::new()? })
    }

    /// Readable when there is something to [tell](Self::tell_by).
    pub(super) fn wake(&self) -> &EventFd {
        &self.wake
    }

    fn what(&self) -> MutexGuard<'_, What> {
        self.what.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, resource: Resource, amount: u64) {
        self.change(|what| {
            what.amounts[resource] = what.amounts[resource].saturating_add(amount);
        });
    }

    /// One way with this hop.
    pub(super) fn add_way(&self, hop: HopId) {
        self.change(|what| {
            let count = what.ways.entry(hop.0).or_default();
            *count = count.saturating_add(1);
        });
    }

    /// What a session gives back at its end is told in one message.
    fn change(&self, add: impl FnOnce(&mut What)) {
        let mut what = self.what();
        let is_first = *what == What::default();
        add(&mut what);
        drop(what);
        if is_first && let Err(error) = self.wake.wake() {
            tracing::error!("cannot give anything back to the daemon: {error}");
        }
    }

    /// Tells all of it. When this returns, it has been told, by whichever thread: a program that
    /// gives back and takes again is not refused.
    pub(super) fn tell_by(&self, tell: impl Fn(&FromEngine)) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let What { amounts, ways } = std::mem::take(&mut *self.what());
        if amounts != Amounts::default() {
            tell(&FromEngine::Give(amounts));
        }
        let ways: Vec<_> = ways.into_iter().collect();
        for some in ways.chunks(MOST_WAYS) {
            tell(&FromEngine::GiveWays(some.to_vec()));
        }
    }
}

/// Hops in one message.
const MOST_WAYS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn told(given: &Given) -> Vec<FromEngine> {
        let told = RefCell::new(Vec::new());
        given.tell_by(|message| {
            let bytes = rnic_abi::control::encode(message).unwrap();
            told.borrow_mut().push(rnic_abi::control::decode(&bytes).unwrap());
        });
        told.into_inner()
    }

    #[test]
    fn what_is_given_back_is_told_once() {
        let given = Given::new().unwrap();
        assert!(told(&given).is_empty());
        given.add(Resource::Ahs, 2);
        given.add(Resource::Ahs, 1);
        for hop in [7, 9, 7] {
            given.add_way(HopId(hop));
        }
        let said = told(&given);
        let [FromEngine::Give(amounts), FromEngine::GiveWays(ways)] = &said[..] else {
            panic!("{said:?}")
        };
        assert_eq!((amounts[Resource::Ahs], &ways[..]), (3, &[(7, 2), (9, 1)][..]));
        assert!(told(&given).is_empty());
    }

    #[test]
    fn more_ways_than_fit_into_a_message_are_told_in_several() {
        let given = Given::new().unwrap();
        (0..3 * MOST_WAYS as u32).for_each(|i| given.add_way(HopId(u32::MAX - i)));
        assert_eq!(told(&given).len(), 3);
    }
}
