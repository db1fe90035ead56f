//! Next hops: what the control plane finds out and the wires look up per train.
//!
//! The table is shared between threads. A hop is two atomic words, so that a wire reads it without
//! waiting, and a neighbour that changes its address takes effect with the next frame. A hop stays
//! while anything [holds](Hold) it; its place is then another one's, so that no client fills the
//! table with ways that it once asked for.

mod wire;

use rnic_core::ports::HopId;
use roce_wire::{MacAddr, VlanTag};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Wire;

/// The kernel finds the way: only for wires that send through its UDP sockets.
pub(crate) const KERNEL: HopId = HopId(1);

const FIRST: usize = 2;
/// The interface, and VLAN interfaces above it with addresses of their own.
pub(super) const MAX_OWN: usize = 8;
/// Most next hops of one device.
const MAX_HOPS: usize = 16 * 1024;

/// First word: known, tagged, VLAN id, destination MAC. (The priority is in the second.)
const KNOWN: u64 = 1 << 63;
const TAGGED: u64 = 1 << 62;
const VLAN_SHIFT: u32 = 48;
/// Second word: priority, source MAC.
const PRIORITY_SHIFT: u32 = 48;
const MAC_MASK: u64 = (1 << 48) - 1;
/// Of VLANs (IEEE 802.1Q): a field of three bits.
const PRIORITIES: u8 = 8;
/// An id has twelve.
const VLAN_WORDS: usize = (1 << 12) / 64;

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
    /// Own Ethernet addresses; zero where there is none. One place more than addresses: one of them
    /// can be at two while they change.
    own: Arc<[AtomicU64; MAX_OWN + 1]>,
    /// A bit for each VLAN id that has an interface.
    vlans: Arc<[AtomicU64; VLAN_WORDS]>,
    wire: Arc<Wire>,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    hops: HashMap<HopKey, Held>,
    /// What each place is used for.
    keys: HashMap<HopId, HopKey>,
    /// Places that were given back, the one that was first first: what left just now may still
    /// name the others.
    free: VecDeque<HopId>,
}

struct Held {
    hop: HopId,
    holds: u32,
}

/// Keeps a hop as it is: as long as something may send there.
#[must_use = "the hop is forgotten without it"]
pub struct Hold(Option<(HopId, Keeper)>);

enum Keeper {
    Table(HopTable),
    /// The table is in another process, which is told so.
    Elsewhere(Box<dyn FnOnce() + Send>),
}

impl Hold {
    /// Of what needs none: the device itself, and ways that the kernel finds.
    pub const fn nothing() -> Self {
        Self(None)
    }

    /// Of a hop that another process found for this one; `give_back` tells it that this one needs
    /// the hop no more.
    pub fn elsewhere(hop: HopId, give_back: impl FnOnce() + Send + 'static) -> Self {
        let is_of_table = hop.0 as usize >= FIRST;
        Self(is_of_table.then(|| (hop, Keeper::Elsewhere(Box::new(give_back)))))
    }

    /// The hop, if it is one of the table.
    pub fn hop(&self) -> Option<HopId> {
        self.0.as_ref().map(|(hop, _)| *hop)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match self.0.take() {
            Some((hop, Keeper::Table(table))) => table.release(hop),
            Some((_, Keeper::Elsewhere(give_back))) => give_back(),
            None => {}
        }
    }
}

impl Default for HopTable {
    fn default() -> Self {
        let words = (0..MAX_HOPS).map(|_| Words::default()).collect();
        let vlans = Arc::new([const { AtomicU64::new(0) }; VLAN_WORDS]);
        let (own, wire, known) = (Arc::default(), Arc::default(), Arc::default());
        Self { words, own, vlans, wire, known }
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
        // A thread that sees the new first one sees the one of before at its other place.
        wanted != 0 && self.own.iter().any(|own| own.load(Ordering::Acquire) == wanted)
    }

    /// Whether frames with this tag are for us: the VLAN has an interface here, or the tag only
    /// gives a priority.
    #[inline]
    pub fn serves_vlan(&self, tag: VlanTag) -> bool {
        let id = usize::from(tag.id());
        id == 0 || self.vlans[id / 64].load(Ordering::Relaxed) >> (id % 64) & 1 != 0
    }

    /// Sets the VLANs that have an interface.
    pub(super) fn set_vlans(&self, ids: impl Iterator<Item = u16>) {
        let mut words = [0; VLAN_WORDS];
        for id in ids.map(|id| VlanTag::new(0, id)).map(|tag| usize::from(tag.id())) {
            words[id / 64] |= 1 << (id % 64);
        }
        for (place, word) in self.vlans.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// The interface's Ethernet address; zero where there is none.
    pub fn own(&self) -> MacAddr {
        mac(self.own[0].load(Ordering::Relaxed))
    }

    /// Sets our own Ethernet addresses, the interface's first: the first [`MAX_OWN`] of them. One
    /// that was there before and still is never goes: frames to it would be refused meanwhile.
    pub(super) fn set_own(&self, macs: &[MacAddr]) {
        let [first, others @ ..] = &*self.own;
        let mut words = macs.iter().take(MAX_OWN).map(|mac| word(*mac));
        let main = words.next().unwrap_or(0);
        let wanted: Vec<u64> = words.filter(|word| *word != 0).collect();
        let word_at = |place: &AtomicU64| place.load(Ordering::Relaxed);
        // What the first place had may be wanted, and what it gets may be at another one.
        let known: Vec<u64> = others.iter().map(word_at).collect();
        let missing = wanted.iter().filter(|word| !known.contains(word));
        let is_free = |place: &&AtomicU64| {
            let word = word_at(place);
            word == 0 || word != main && !wanted.contains(&word)
        };
        for (place, word) in others.iter().filter(is_free).zip(missing) {
            place.store(*word, Ordering::Release);
        }
        first.store(main, Ordering::Release);
        for place in others.iter().filter(is_free) {
            place.store(0, Ordering::Release);
        }
    }

    /// The hop for `key`, learnt or changed now; `None` when the table is full.
    pub(super) fn learn(&self, key: HopKey, hop: Hop) -> Option<(HopId, Hold)> {
        let mut known = self.lock();
        let known = &mut *known;
        let next = FIRST + known.hops.len() + known.free.len();
        let id = match known.hops.get_mut(&key) {
            Some(held) => {
                held.holds = held.holds.checked_add(1)?;
                held.hop
            }
            None => {
                let fresh = || (next < MAX_HOPS).then_some(HopId(next as u32));
                let hop = fresh().or_else(|| known.free.pop_front())?;
                known.hops.insert(key, Held { hop, holds: 1 });
                known.keys.insert(hop, key);
                hop
            }
        };
        self.store(id, hop);
        Some((id, Hold(Some((id, Keeper::Table(self.clone()))))))
    }

    /// One hold less. The last one takes the hop with it.
    fn release(&self, hop: HopId) {
        let mut known = self.lock();
        let Some(key) = known.keys.get(&hop).copied() else { return };
        let Some(held) = known.hops.get_mut(&key) else { return };
        held.holds -= 1;
        if held.holds > 0 {
            return;
        }
        known.hops.remove(&key);
        known.keys.remove(&hop);
        known.free.push_back(hop);
        if let Some([first, _]) = self.words.get(hop.0 as usize) {
            first.store(0, Ordering::Relaxed);
        }
    }

    /// A neighbour told its address. Unknown neighbours are no hops and stay so.
    pub(super) fn refresh(&self, neighbour: IpAddr, ifindex: u32, dst_mac: MacAddr) {
        for held in hops_of(&self.lock(), neighbour, ifindex) {
            if let Some(hop) = self.get(held.hop) {
                self.store(held.hop, Hop { dst_mac, ..hop });
            }
        }
    }

    /// Whether a hop leads to this neighbour.
    pub(super) fn has(&self, neighbour: IpAddr, ifindex: u32) -> bool {
        hops_of(&self.lock(), neighbour, ifindex).next().is_some()
    }

    /// Own interfaces have these Ethernet addresses now.
    pub(super) fn move_sources(&self, macs: &HashMap<u32, MacAddr>) {
        let known = self.lock();
        for (key, held) in &known.hops {
            if let Some((src_mac, hop)) = macs.get(&key.ifindex).zip(self.get(held.hop)) {
                self.store(held.hop, Hop { src_mac: *src_mac, ..hop });
            }
        }
    }

    /// An interface has another index now. What holds a hop on it goes on with that one.
    pub(super) fn rename(&self, from: u32, to: u32) {
        let mut known = self.lock();
        let known = &mut *known;
        for (hop, key) in known.keys.iter_mut().filter(|(_, key)| key.ifindex == from) {
            let new = HopKey { ifindex: to, ..*key };
            // What is known by the new key already stays; then the old one is as it was.
            if !known.hops.contains_key(&new)
                && let Some(held) = known.hops.remove(key)
            {
                debug_assert_eq!(held.hop, *hop);
                known.hops.insert(new, held);
                *key = new;
            }
        }
    }

    /// Every neighbour in use, with its interface.
    pub(super) fn neighbours(&self) -> Vec<(IpAddr, u32)> {
        let known = self.lock();
        let mut all: Vec<_> = known.hops.keys().map(|key| (key.neighbour, key.ifindex)).collect();
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

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those to one neighbour: one for each priority. To look at all hops would cost too much: a host
/// hears of all its neighbours, and a device may have thousands of hops.
fn hops_of(known: &Known, neighbour: IpAddr, ifindex: u32) -> impl Iterator<Item = &Held> {
    let key = move |priority| HopKey { neighbour, ifindex, priority };
    (0..PRIORITIES).filter_map(move |priority| known.hops.get(&key(priority)))
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
        let (id, _hold) = hops.learn(key, hop).unwrap();
        assert!(id != HopId::LOCAL && id != KERNEL);
        assert_eq!(hops.get(id), Some(hop));
        hops.refresh(neighbour, 4, B);
        assert_eq!(hops.get(id), Some(hop), "another interface's neighbour");
        hops.refresh(neighbour, 3, B);
        assert_eq!(hops.get(id), Some(Hop { dst_mac: B, ..hop }));
        hops.move_sources(&HashMap::from([(3, A), (4, B)]));
        assert_eq!(hops.get(id), Some(Hop { dst_mac: B, src_mac: A, ..hop }));
        hops.rename(3, 9);
        hops.refresh(neighbour, 3, A);
        assert_eq!(hops.get(id).unwrap().dst_mac, B, "that interface is gone");
        hops.refresh(neighbour, 9, A);
        assert_eq!(hops.get(id).unwrap().dst_mac, A);
        hops.rename(9, 3);
        let untagged = Hop { vlan: None, ..hop };
        let (again, _again) = hops.learn(key, untagged).unwrap();
        assert_eq!(again, id);
        assert_eq!(hops.get(id), Some(untagged));
        assert_eq!(hops.neighbours(), [(neighbour, 3)]);
        assert!(hops.has(neighbour, 3) && !hops.has(neighbour, 4));
        assert_eq!((hops.get(HopId(77)), hops.get(HopId(u32::MAX))), (None, None));
    }

    #[test]
    fn own_addresses_are_known() {
        let hops = HopTable::default();
        hops.set_own(&[MacAddr::default(), MacAddr::default(), A]);
        assert!(hops.is_own(A), "the interface has no address");
        hops.set_own(&[A, MacAddr::default()]);
        assert!(hops.is_own(A) && !hops.is_own(B) && !hops.is_own(MacAddr::default()));
        hops.set_own(&[B]);
        assert!(hops.is_own(B) && !hops.is_own(A));
    }

    #[test]
    fn own_addresses_that_stay_are_known_all_the_time() {
        let mac = |last: usize| MacAddr([2, 0, 0, 0, 1, last as u8]);
        let all = |numbers: &[usize]| numbers.iter().map(|last| mac(*last)).collect::<Vec<_>>();
        let hops = HopTable::default();
        let full: Vec<usize> = (1..=MAX_OWN).collect();
        let changes: [&[usize]; 6] =
            [&[1, 2, 3], &[1, 4, 2, 3], &[3, 1, 2], &full, &[8, 7, 6, 5, 4, 3, 2, 1], &[9, 1]];
        let stop = AtomicU64::new(0);
        let goes = || stop.load(Ordering::Relaxed) == 0;
        hops.set_own(&all(changes[0]));
        std::thread::scope(|scope| {
            let missed = scope.spawn(|| {
                let mut missed = 0;
                while goes() {
                    missed += u32::from(!hops.is_own(mac(1)));
                }
                missed
            });
            for _ in 0..5_000 {
                for numbers in changes {
                    hops.set_own(&all(numbers));
                    assert_eq!(hops.own(), mac(numbers[0]));
                    let known: Vec<_> = (0..=10).filter(|last| hops.is_own(mac(*last))).collect();
                    let mut expected = numbers.to_vec();
                    expected.sort_unstable();
                    assert_eq!(known, expected);
                }
            }
            stop.store(1, Ordering::Relaxed);
            assert_eq!(missed.join().unwrap(), 0);
        });
    }

    #[test]
    fn vlans_with_an_interface_are_served() {
        let hops = HopTable::default();
        hops.set_vlans([1, 64, 4095].into_iter());
        let served = |ids: &[u16]| {
            ids.iter().map(|id| hops.serves_vlan(VlanTag::new(7, *id))).collect::<Vec<_>>()
        };
        assert_eq!(served(&[1, 64, 4095, 0]), [true; 4], "0 only has a priority");
        assert_eq!(served(&[2, 63, 65, 4094]), [false; 4]);
        hops.set_vlans([2].into_iter());
        assert_eq!(served(&[1, 2]), [false, true]);
    }

    #[test]
    fn the_table_is_bounded() {
        let hops = HopTable::default();
        let hop = Hop { dst_mac: A, src_mac: B, vlan: None };
        let key =
            |i: u32| HopKey { neighbour: IpAddr::from(i.to_be_bytes()), ifindex: 1, priority: 0 };
        let mut held: Vec<_> = (0..).map_while(|i| hops.learn(key(i), hop)).collect();
        assert_eq!(held.len(), MAX_HOPS - FIRST);
        let known = hops.learn(key(5), hop);
        assert!(known.is_some(), "a known one still works");
        assert!(hops.learn(key(1 << 20), hop).is_none());
        // One that is not held any more makes room for another, and leads nowhere until then.
        let (gone, hold) = held.swap_remove(77);
        drop(hold);
        assert_eq!(hops.get(gone), None);
        let (place, _new) = hops.learn(key(1 << 20), hop).unwrap();
        assert_eq!((place, hops.get(place)), (gone, Some(hop)));
        // One that is held twice stays.
        drop(held);
        let (five, _) = known.as_ref().unwrap();
        assert_eq!(hops.get(*five), Some(hop));
        assert_eq!(hops.neighbours().len(), 2);
    }

    #[test]
    fn asking_for_ever_more_ways_fills_nothing() {
        let hops = HopTable::default();
        let hop = Hop { dst_mac: A, src_mac: B, vlan: None };
        for i in 0..3 * MAX_HOPS as u32 {
            let neighbour = IpAddr::from(i.to_be_bytes());
            let learnt = hops.learn(HopKey { neighbour, ifindex: 1, priority: 0 }, hop);
            assert!(learnt.is_some_and(|(id, _hold)| hops.get(id).is_some()), "{i}");
        }
        assert!(hops.neighbours().is_empty());
    }
}
