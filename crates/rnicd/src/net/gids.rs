//! The GID table.

use std::net::IpAddr;

/// Entries, used or not. `ibv_global_route` has 8 bits for the index.
pub(crate) const GID_TABLE_LEN: u32 = 256;

/// Addresses by index. An index never changes its meaning while its address exists. Index 0 is
/// kept for the first IPv4 address: it is what programs use when nobody tells them otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GidTable {
    entries: Vec<Option<IpAddr>>,
}

impl GidTable {
    /// Takes over the addresses that exist now.
    pub(crate) fn update(&mut self, addresses: &[IpAddr]) {
        for entry in &mut self.entries {
            if entry.is_some_and(|address| !addresses.contains(&address)) {
                *entry = None;
            }
        }
        let rank = |address: &IpAddr| match address {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
            IpAddr::V6(_) => 2,
        };
        let mut fresh: Vec<_> = addresses.iter().copied().filter(|a| !self.contains(*a)).collect();
        fresh.sort_by_key(rank);
        fresh.into_iter().for_each(|address| self.add(address));
    }

    fn add(&mut self, address: IpAddr) {
        if self.contains(address) {
            return;
        }
        if self.entries.is_empty() {
            self.entries.push(None);
        }
        let first = if address.is_ipv4() { 0 } else { 1 };
        let free = self.entries.iter().skip(first).position(Option::is_none);
        match free {
            Some(at) => self.entries[first + at] = Some(address),
            None if self.entries.len() < GID_TABLE_LEN as usize => {
                self.entries.push(Some(address));
            }
            None => tracing::warn!("the GID table is full: {address} is not served"),
        }
    }

    /// The address at `index`.
    pub(crate) fn get(&self, index: u32) -> Option<IpAddr> {
        *self.entries.get(index as usize)?
    }

    /// Whether `address` is ours.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.entries.contains(&Some(address))
    }

    /// Used entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, IpAddr)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| Some((index, (*entry)?)))
    }

    /// All addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.iter().map(|(_, address)| address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn shown(table: &GidTable) -> Vec<(u32, String)> {
        table.iter().map(|(index, address)| (index, address.to_string())).collect()
    }

    fn entry(index: u32, address: &str) -> (u32, String) {
        (index, address.into())
    }

    #[test]
    fn index_0_is_the_first_ipv4_address() {
        let mut table = GidTable::default();
        table.update(&ips("fe80::1 2001:db8::1 10.0.0.1 10.0.0.2"));
        let (a, b) = (entry(0, "10.0.0.1"), entry(1, "10.0.0.2"));
        assert_eq!(shown(&table), [a, b, entry(2, "2001:db8::1"), entry(3, "fe80::1")]);
    }

    #[test]
    fn index_0_waits_for_an_ipv4_address() {
        let mut table = GidTable::default();
        table.update(&ips("fe80::1"));
        assert_eq!(shown(&table), [entry(1, "fe80::1")]);
        assert_eq!(table.get(0), None);
        table.update(&ips("fe80::1 10.0.0.1"));
        assert_eq!(shown(&table), [entry(0, "10.0.0.1"), entry(1, "fe80::1")]);
    }

    #[test]
    fn indices_stay_while_their_addresses_exist() {
        let mut table = GidTable::default();
        table.update(&ips("10.0.0.1 10.0.0.2 fe80::1"));
        table.update(&ips("fe80::1 10.0.0.2"));
        assert_eq!(shown(&table), [entry(1, "10.0.0.2"), entry(2, "fe80::1")]);
        table.update(&ips("fe80::1 10.0.0.2 2001:db8::7"));
        let kept = [entry(1, "10.0.0.2"), entry(2, "fe80::1"), entry(3, "2001:db8::7")];
        assert_eq!(shown(&table), kept);
        table.update(&ips("10.0.0.9 10.0.0.2 10.0.0.2"));
        assert_eq!(shown(&table), [entry(0, "10.0.0.9"), entry(1, "10.0.0.2")]);
    }

    #[test]
    fn the_table_has_an_end() {
        let mut table = GidTable::default();
        let many: Vec<IpAddr> =
            (0..300u32).map(|i| IpAddr::from((0x0a00_0000 + i).to_be_bytes())).collect();
        table.update(&many);
        assert_eq!(table.iter().count(), GID_TABLE_LEN as usize);
    }
}
