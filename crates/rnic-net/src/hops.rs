//! Next hops: what the control plane finds out and the wires look up per train.
//!
//! The table is shared between threads. A hop is two atomic words, so that a wire reads it without
//! waiting, and a neighbour that changes its address takes effect with the next frame. Hops are
//! never removed: a queue pair may refer to one as long as the daemon runs.

use rnic_core::ports::HopId;
use roce_wire::{MacAddr, VlanTag};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The destination is the device itself.
pub const LOOPBACK: HopId = HopId(0);
/// The kernel finds the way: only for wires that send through its UDP sockets.
pub(crate) const KERNEL: HopId = HopId(1);

const FIRST: usize = 2;
/// The interface, and VLAN interfaces above it with addresses of their own.
const MAX_OWN: usize = 8;
/// Most next hops of one device.
const MAX_HOPS: usize = 16 * 1024;

/// First word: known, tagged, VLAN id, destination MAC. (The priority is in the second.)
const KNOWN: u64 = 1 << 63;
const TAGGED: u64 = 1 << 62;
const VLAN_SHIFT: u32 = 48;
/// Second word: priority, source MAC.
const PRIORITY_SHIFT: u32 = 48;
const MAC_MASK: u64 = (1 << 48) - 1;

/// Where frames go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Ethernet address of the neighbour.
    pub dst_mac: MacAddr,
    /// Ethernet address of the interface that sends.
    pub src_mac: MacAddr,
    /// Tag, when frames need one.
    pub vlan: Option<VlanTag>,
}

/// A neighbour as one traffic class reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct HopKey {
    pub(super) neighbour: IpAddr,
    pub(super) ifindex: u32,
    /// VLAN priority; 0 without VLAN.
    pub(super) priority: u8,
}

type Words = [AtomicU64; 2];

/// All next hops of a device; a cheap handle.
#[derive(Clone)]
pub struct HopTable {
    words: Arc<[Words]>,
    /// Own Ethernet addresses; zero where there is none.
    own: Arc<[AtomicU64; MAX_OWN]>,
    known: Arc<Mutex<HashMap<HopKey, HopId>>>,
}

impl Default for HopTable {
    fn default() -> Self {
        let words = (0..MAX_HOPS).map(|_| Words::default()).collect();
        Self { words, own: Arc::default(), known: Arc::default() }
    }
}

impl HopTable {
    /// What is known about a hop.
    #[inline]
    pub fn get(&self, hop: HopId) -> Option<Hop> {
        let [first, second] = self.words.get(hop.0 as usize)?;
        let (first, second) = (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
        if first & KNOWN == 0 {
            return None;
        }
        let id = (first >> VLAN_SHIFT) as u16 & 0xfff;
        let priority = (second >> PRIORITY_SHIFT) as u8;
        Some(Hop {
            dst_mac: mac(first),
            src_mac: mac(second),
            vlan: (first & TAGGED != 0).then_some(VlanTag::new(priority, id)),
        })
    }

    /// Whether frames to `mac` are for us.
    #[inline]
    pub fn is_own(&self, mac: MacAddr) -> bool {
        let wanted = word(mac);
        wanted != 0 && self.own.iter().any(|own| own.load(Ordering::Relaxed) == wanted)
    }

    /// The interface's Ethernet address; zero where there is none.
    pub fn own(&self) -> MacAddr {
        mac(self.own[0].load(Ordering::Relaxed))
    }

    /// Sets our own Ethernet addresses.
    pub(super) fn set_own(&self, macs: &[MacAddr]) {
        for (place, at) in self.own.iter().zip(0..) {
            place.store(macs.get(at).map_or(0, |mac| word(*mac)), Ordering::Relaxed);
        }
    }

    /// The hop for `key`, learnt or changed now; `None` when the table is full.
    pub(super) fn learn(&self, key: HopKey, hop: Hop) -> Option<HopId> {
        let mut known = self.lock();
        let next = FIRST + known.len();
        let id = match known.get(&key) {
            Some(id) => *id,
            None if next == MAX_HOPS => return None,
            None => HopId(next as u32),
        };
        known.insert(key, id);
        self.store(id, hop);
        Some(id)
    }

    /// A neighbour told its address. Unknown neighbours are no hops and stay so.
    pub(super) fn refresh(&self, neighbour: IpAddr, ifindex: u32, dst_mac: MacAddr) {
        let known = self.lock();
        for (key, id) in known.iter() {
            if (key.neighbour, key.ifindex) == (neighbour, ifindex)
                && let Some(hop) = self.get(*id)
            {
                self.store(*id, Hop { dst_mac, ..hop });
            }
        }
    }

    /// An interface changed its own address.
    pub(super) fn move_source(&self, ifindex: u32, src_mac: MacAddr) {
        let known = self.lock();
        for (_, id) in known.iter().filter(|(key, _)| key.ifindex == ifindex) {
            if let Some(hop) = self.get(*id) {
                self.store(*id, Hop { src_mac, ..hop });
            }
        }
    }

    /// Every neighbour in use, with its interface.
    pub(super) fn neighbours(&self) -> Vec<(IpAddr, u32)> {
        let mut all: Vec<_> = self.lock().keys().map(|key| (key.neighbour, key.ifindex)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn store(&self, id: HopId, hop: Hop) {
        let Some([first, second]) = self.words.get(id.0 as usize) else { return };
        let (tag, priority) = match hop.vlan {
            Some(tag) => (TAGGED | u64::from(tag.id()) << VLAN_SHIFT, tag.priority()),
            None => (0, 0),
        };
        second.store(word(hop.src_mac) | u64::from(priority) << PRIORITY_SHIFT, Ordering::Relaxed);
        first.store(KNOWN | tag | word(hop.dst_mac), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HopKey, HopId>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn word(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn mac(word: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = (word & MAC_MASK).to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([0xfe, 1, 2, 3, 4, 0xff]);

    #[test]
    fn a_hop_is_learnt_once_and_follows_its_neighbour() {
        let hops = HopTable::default();
        let neighbour: IpAddr = "10.0.0.2".parse().unwrap();
        let key = HopKey { neighbour, ifindex: 3, priority: 5 };
        let hop = Hop { dst_mac: A, src_mac: B, vlan: Some(VlanTag::new(5, 4094)) };
        let id = hops.learn(key, hop).unwrap();
        assert!(id != LOOPBACK && id != KERNEL);
        assert_eq!(hops.get(id), Some(hop));
        hops.refresh(neighbour, 4, B);
        assert_eq!(hops.get(id), Some(hop), "another interface's neighbour");
        hops.refresh(neighbour, 3, B);
        assert_eq!(hops.get(id), Some(Hop { dst_mac: B, ..hop }));
        hops.move_source(3, A);
        assert_eq!(hops.get(id), Some(Hop { dst_mac: B, src_mac: A, ..hop }));
        let untagged = Hop { vlan: None, ..hop };
        assert_eq!(hops.learn(key, untagged), Some(id));
        assert_eq!(hops.get(id), Some(untagged));
        assert_eq!(hops.neighbours(), [(neighbour, 3)]);
        assert_eq!((hops.get(HopId(77)), hops.get(HopId(u32::MAX))), (None, None));
    }

    #[test]
    fn own_addresses_are_known() {
        let hops = HopTable::default();
        hops.set_own(&[A, MacAddr::default()]);
        assert!(hops.is_own(A) && !hops.is_own(B) && !hops.is_own(MacAddr::default()));
        hops.set_own(&[B]);
        assert!(hops.is_own(B) && !hops.is_own(A));
    }

    #[test]
    fn the_table_is_bounded() {
        let hops = HopTable::default();
        let hop = Hop { dst_mac: A, src_mac: B, vlan: None };
        let key =
            |i: u32| HopKey { neighbour: IpAddr::from(i.to_be_bytes()), ifindex: 1, priority: 0 };
        let learnt = (0..).take_while(|i| hops.learn(key(*i), hop).is_some()).count();
        assert_eq!(learnt, MAX_HOPS - FIRST);
        assert!(hops.learn(key(5), hop).is_some(), "a known one still works");
    }
}
