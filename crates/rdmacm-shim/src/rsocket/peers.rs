//! What a datagram rsocket knows of others.

use std::{
    collections::HashMap,
    mem,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// By address. `W` is a way there.
pub(super) struct Peers<W> {
    known: HashMap<SocketAddr, Peer<W>>,
}

pub(super) struct Peer<W> {
    pub(super) qpn: Option<u32>,
    pub(super) way: Option<W>,
    /// When a way was looked for, until there is one.
    sought: Option<Instant>,
    /// What datagrams to it begin with, and the own address that is in there.
    pub(super) header: Option<(Vec<u8>, IpAddr)>,
}

impl<W> Default for Peers<W> {
    fn default() -> Self {
        Self { known: HashMap::new() }
    }
}

impl<W> Default for Peer<W> {
    fn default() -> Self {
        Self { qpn: None, way: None, sought: None, header: None }
    }
}

impl<W> Peers<W> {
    pub(super) fn has_way(&self, to: SocketAddr) -> bool {
        self.known.get(&to).is_some_and(|peer| peer.way.is_some())
    }

    /// The one at this address. Where there are too many, another one is forgotten, since any host
    /// can make addresses known: one to which no way is held, if there is such, and never `target`.
    pub(super) fn at(&mut self, address: SocketAddr, target: Option<SocketAddr>) -> &mut Peer<W> {
        if self.known.len() >= MOST && !self.known.contains_key(&address) {
            let others = || self.known.iter().filter(|(known, _)| Some(**known) != target);
            let unused = others().find(|(_, peer)| peer.way.is_none());
            if let Some(other) = unused.or_else(|| others().next()).map(|(other, _)| *other) {
                self.known.remove(&other);
            }
        }
        self.known.entry(address).or_default()
    }

    /// The search for a way is over. Returns one that is not needed.
    pub(super) fn found(&mut self, to: SocketAddr, way: Option<W>) -> Option<W> {
        let Some(peer) = self.known.get_mut(&to) else { return way };
        match way {
            None => None,
            way => mem::replace(&mut peer.way, way),
        }
    }
}

impl<W> Peer<W> {
    /// Whether a way has to be looked for, by the caller then.
    pub(super) fn begins_search(&mut self, now: Instant) -> bool {
        let is_due = self.sought.is_none_or(|at| now.duration_since(at) >= AGAIN);
        let begins = self.qpn.is_some() && self.way.is_none() && is_due;
        if begins {
            self.sought = Some(now);
        }
        begins
    }
}

/// How long a way that was not found is not looked for again: looking may take seconds.
const AGAIN: Duration = Duration::from_secs(10);
/// Addresses that are known, at most.
const MOST: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, net::Ipv4Addr, rc::Rc};

    fn address(n: usize) -> SocketAddr {
        let ip = Ipv4Addr::from(0x0a00_0000 + u32::try_from(n).unwrap());
        SocketAddr::new(ip.into(), 7)
    }

    /// A way that counts how many of them are given up.
    struct Way(Rc<Cell<u32>>);

    impl Drop for Way {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn one_that_names_other_queue_pairs_keeps_its_way() {
        let (now, gone) = (Instant::now(), Rc::new(Cell::new(0)));
        let mut peers = Peers::default();
        peers.at(address(1), None).qpn = Some(7);
        assert!(peers.at(address(1), None).begins_search(now));
        assert!(peers.found(address(1), Some(Way(gone.clone()))).is_none());
        for qpn in 0..100 {
            peers.at(address(1), None).qpn = Some(qpn);
            assert!(peers.has_way(address(1)) && !peers.at(address(1), None).begins_search(now));
        }
        assert_eq!(gone.get(), 0);
    }

    #[test]
    fn a_way_that_was_not_found_is_looked_for_later() {
        let now = Instant::now();
        let mut peers: Peers<()> = Peers::default();
        assert!(!peers.at(address(1), None).begins_search(now), "it has no queue pair");
        for (qpn, at, begins) in [(1, now, true), (2, now, false), (2, now + AGAIN, true)] {
            let peer = peers.at(address(1), None);
            peer.qpn = Some(qpn);
            assert_eq!(peer.begins_search(at), begins);
            assert_eq!(peers.found(address(1), None), None);
        }
        assert_eq!(peers.found(address(2), Some(())), Some(()), "it is known no more");
    }

    #[test]
    fn those_that_are_forgotten_have_no_way() {
        let gone = Rc::new(Cell::new(0));
        let mut peers = Peers::default();
        peers.at(address(1), None);
        assert!(peers.found(address(1), Some(Way(gone.clone()))).is_none());
        for n in 2..3 * MOST {
            peers.at(address(n), Some(address(2))).qpn = Some(1);
        }
        assert_eq!((peers.known.len(), gone.get()), (MOST, 0));
        assert!(peers.has_way(address(1)) && peers.at(address(2), None).qpn == Some(1));
    }
}
