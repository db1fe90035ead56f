//! The GID table: which index means which address.
//!
//! * Index 0 is kept for the first IPv4 address, so that `-g 0` works wherever IPv4 does.
//! * An index never changes its meaning while its address exists.
//! * A new address takes an index that was never used; when all were, the one freed longest ago.

use std::net::IpAddr;

/// Entries of the table, used or not.
pub(super) const GID_TABLE_LEN: usize = 128;

/// An address and the interface that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Served {
    pub(super) ip: IpAddr,
    pub(super) ifindex: u32,
}

#[derive(Clone, Copy)]
enum Slot {
    NeverUsed,
    /// When, in table updates.
    Freed(u64),
    Used(Served),
}

/// See the [module](self).
pub(super) struct GidTable {
    slots: [Slot; GID_TABLE_LEN],
    updates: u64,
}

impl GidTable {
    pub(super) fn new() -> Self {
        Self { slots: [Slot::NeverUsed; GID_TABLE_LEN], updates: 0 }
    }

    /// Follows a change of the addresses; tells whether the table changed. What does not fit is
    /// left out.
    pub(super) fn update(&mut self, addresses: &[Served]) -> bool {
        self.updates += 1;
        let mut changed = false;
        for slot in &mut self.slots {
            if let Slot::Used(served) = slot
                && !addresses.contains(served)
            {
                *slot = Slot::Freed(self.updates);
                changed = true;
            }
        }
        let mut new: Vec<_> =
            addresses.iter().copied().filter(|served| self.index_of(*served).is_none()).collect();
        new.sort_by_key(|served| rank(served.ip));
        for served in new {
            let free = match self.slots[0] {
                Slot::NeverUsed | Slot::Freed(_) if served.ip.is_ipv4() => Some(0),
                _ => self.best_free(),
            };
            match free {
                _ if self.index_of(served).is_some() => {}
                Some(index) => {
                    self.slots[index] = Slot::Used(served);
                    changed = true;
                }
                None => tracing::warn!(
                    "the GID table is full: {} is not served; name fewer addresses with --address",
                    served.ip
                ),
            }
        }
        changed
    }

    /// An interface has another index now; tells whether the table changed. An address that was
    /// there all the time as far as is known keeps its place.
    pub(super) fn rename(&mut self, from: u32, to: u32) -> bool {
        let mut changed = false;
        for slot in &mut self.slots {
            if let Slot::Used(served) = slot
                && served.ifindex == from
            {
                served.ifindex = to;
                changed = true;
            }
        }
        changed
    }

    fn best_free(&self) -> Option<usize> {
        let free = |(index, slot): (usize, &Slot)| match slot {
            Slot::NeverUsed => Some((0, index)),
            Slot::Freed(when) => Some((*when, index)),
            Slot::Used(_) => None,
        };
        self.slots.iter().enumerate().skip(1).filter_map(free).min().map(|(_, index)| index)
    }

    fn index_of(&self, wanted: Served) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::Used(served) if *served == wanted))
    }

    pub(super) fn get(&self, index: usize) -> Option<Served> {
        match self.slots.get(index)? {
            Slot::Used(served) => Some(*served),
            _ => None,
        }
    }

    /// Used entries, by index.
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, Served)> + '_ {
        (0..GID_TABLE_LEN).filter_map(|index| Some((index, self.get(index)?)))
    }
}

/// Order in which addresses that appear together get their indices.
fn rank(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(text: &str) -> Served {
        Served { ip: text.parse().unwrap(), ifindex: 3 }
    }

    fn list(texts: &[&str]) -> Vec<Served> {
        texts.iter().map(|text| served(text)).collect()
    }

    fn at(table: &GidTable, text: &str) -> Option<usize> {
        table.index_of(served(text))
    }

    #[test]
    fn ipv4_comes_first_and_link_local_last() {
        let mut table = GidTable::new();
        assert!(table.update(&list(&["fe80::1", "fd00::1", "10.0.0.1", "10.0.0.2"])));
        let order: Vec<_> = table.entries().map(|(i, s)| (i, s.ip.to_string())).collect();
        let expected = [(0, "10.0.0.1"), (1, "10.0.0.2"), (2, "fd00::1"), (3, "fe80::1")];
        assert_eq!(order, expected.map(|(i, s)| (i, s.to_owned())));
        assert!(!table.update(&list(&["10.0.0.2", "fd00::1", "10.0.0.1", "fe80::1"])));
    }

    #[test]
    fn index_0_waits_for_an_ipv4_address() {
        let mut table = GidTable::new();
        table.update(&list(&["fe80::1"]));
        assert_eq!((at(&table, "fe80::1"), table.get(0)), (Some(1), None));
        table.update(&list(&["fe80::1", "fd00::1"]));
        assert_eq!(at(&table, "fd00::1"), Some(2));
        table.update(&list(&["fe80::1", "fd00::1", "10.0.0.1"]));
        assert_eq!(at(&table, "10.0.0.1"), Some(0));
        assert_eq!(at(&table, "fe80::1"), Some(1));
    }

    #[test]
    fn an_index_keeps_its_meaning_and_is_reused_last() {
        let mut table = GidTable::new();
        table.update(&list(&["10.0.0.1", "10.0.0.2", "fd00::1"]));
        assert!(table.update(&list(&["10.0.0.2", "fd00::1"])));
        assert_eq!((at(&table, "10.0.0.2"), table.get(0)), (Some(1), None));
        table.update(&list(&["10.0.0.2", "fd00::2"]));
        assert_eq!(at(&table, "fd00::2"), Some(3), "index 2 was used before");
        table.update(&list(&["10.0.0.2", "fd00::2", "10.0.0.3", "10.0.0.4"]));
        assert_eq!((at(&table, "10.0.0.3"), at(&table, "10.0.0.4")), (Some(0), Some(4)));
    }

    #[test]
    fn a_full_table_reuses_what_was_freed_longest_ago() {
        let mut table = GidTable::new();
        let mut all: Vec<_> = (1..GID_TABLE_LEN).map(|i| served(&format!("fd00::{i:x}"))).collect();
        table.update(&all);
        assert_eq!(table.entries().count(), GID_TABLE_LEN - 1, "index 0 is not for IPv6");
        table.update(&[all.clone(), list(&["fd00::aaaa"])].concat());
        assert_eq!(at(&table, "fd00::aaaa"), None);
        for gone in ["fd00::20", "fd00::10"] {
            all.retain(|s| *s != served(gone));
            table.update(&all);
        }
        table.update(&[all, list(&["fd00::ffff"])].concat());
        assert_eq!(at(&table, "fd00::ffff"), Some(0x20));
    }

    #[test]
    fn the_same_address_on_another_interface_is_another_entry() {
        let mut table = GidTable::new();
        let (a, b) = (served("fe80::1"), Served { ifindex: 4, ..served("fe80::1") });
        table.update(&[a, b, a]);
        assert_eq!(table.entries().count(), 2);
    }
}
