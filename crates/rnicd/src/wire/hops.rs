//! Next hops: what the control plane finds out and the wires look up.
//!
//! The table is shared between threads. A hop is one atomic word, so that a wire reads it without
//! waiting and a neighbour that changes its address takes effect with the next frame.

use rnic_core::ports::HopId;
use roce_wire::MacAddr;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The device itself.
pub(crate) const LOCAL: HopId = HopId(0);
/// Through the kernel, which finds the next hop by itself (UDP sockets).
pub(crate) const KERNEL: HopId = HopId(1);

const FIRST: usize = 2;
/// Most neighbours of one device.
const MAX_HOPS: usize = 16 * 1024;
/// The hop's address is known.
const KNOWN: u64 = 1 << 63;
const TAGGED: u64 = 1 << 62;
const VLAN_SHIFT: u32 = 48;

/// Where frames of a hop go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hop {
    /// Its Ethernet address.
    pub(crate) mac: MacAddr,
    /// VLAN id, when frames must be tagged.
    pub(crate) vlan: Option<u16>,
}

/// All next hops of a device.
#[derive(Clone)]
pub(crate) struct HopTable {
    words: Arc<[AtomicU64]>,
    by_neighbour: Arc<Mutex<HashMap<IpAddr, HopId>>>,
}

impl HopTable {
    /// Without any hop.
    pub(crate) fn new() -> Self {
        Self {
            words: (0..MAX_HOPS).map(|_| AtomicU64::new(0)).collect(),
            by_neighbour: Arc::default(),
        }
    }

    /// What is known about a hop.
    #[inline]
    pub(crate) fn get(&self, hop: HopId) -> Option<Hop> {
        let word = self.words.get(hop.0 as usize)?.load(Ordering::Relaxed);
        if word & KNOWN == 0 {
            return None;
        }
        let [a, b, c, d, e, f, ..] = word.to_le_bytes();
        let vlan = (word & TAGGED != 0).then_some((word >> VLAN_SHIFT) as u16 & 0xfff);
        Some(Hop { mac: MacAddr([a, b, c, d, e, f]), vlan })
    }

    /// The hop through `neighbour`, learnt or changed now; `None` when the table is full.
    pub(crate) fn learn(&self, neighbour: IpAddr, hop: Hop) -> Option<HopId> {
        let mut known = self.by_neighbour.lock().unwrap_or_else(PoisonError::into_inner);
        let next = FIRST + known.len();
        let id = match known.get(&neighbour) {
            Some(id) => *id,
            None if next == MAX_HOPS => return None,
            None => HopId(u32::try_from(next).ok()?),
        };
        known.insert(neighbour, id);
        self.words[id.0 as usize].store(encode(hop), Ordering::Relaxed);
        Some(id)
    }

    /// A neighbour that is in use got another address.
    pub(crate) fn refresh(&self, neighbour: IpAddr, mac: MacAddr) {
        let known = self.by_neighbour.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(id) = known.get(&neighbour) else { return };
        if let Some(hop) = self.get(*id) {
            self.words[id.0 as usize].store(encode(Hop { mac, ..hop }), Ordering::Relaxed);
        }
    }
}

fn encode(hop: Hop) -> u64 {
    let [a, b, c, d, e, f] = hop.mac.0;
    let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    let vlan = hop.vlan.map_or(0, |id| TAGGED | u64::from(id & 0xfff) << VLAN_SHIFT);
    KNOWN | vlan | mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_is_learnt_once_and_follows_its_neighbour() {
        let hops = HopTable::new();
        let peer: IpAddr = "10.0.0.2".parse().unwrap();
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([0xfe, 1, 2, 3, 4, 0xff]));
        let id = hops.learn(peer, Hop { mac: a, vlan: Some(4094) }).unwrap();
        assert!(id != LOCAL && id != KERNEL);
        assert_eq!(hops.get(id), Some(Hop { mac: a, vlan: Some(4094) }));
        hops.refresh(peer, b);
        assert_eq!(hops.get(id), Some(Hop { mac: b, vlan: Some(4094) }));
        assert_eq!(hops.learn(peer, Hop { mac: a, vlan: None }), Some(id));
        assert_eq!(hops.get(id), Some(Hop { mac: a, vlan: None }));
        assert_eq!(hops.get(HopId(77)), None);
        assert_eq!(hops.get(HopId(u32::MAX)), None);
    }
}
