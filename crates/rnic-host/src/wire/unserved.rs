//! Addresses that sockets cannot be bound to are tried again.

use rnic_net::HopTable;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Addresses of the device that a link cannot serve now. The kernel tells of an address before it
/// lets sockets have it, and another program may have its port; nothing tells when that is over.
pub struct Unserved {
    hops: HopTable,
    /// The engine that has to serve them, as the log calls it.
    engine: String,
    /// Those of the last attempt.
    addresses: Vec<IpAddr>,
    /// When they are tried again at the latest, and how long after the attempt before.
    next: Option<(Instant, Duration)>,
    failed: u64,
}

impl Unserved {
    /// None yet of those that `engine` has to serve. The network that has this table tells again
    /// what is to be followed.
    #[must_use]
    pub fn new(hops: HopTable, engine: impl Display) -> Self {
        let engine = engine.to_string();
        Self { hops, engine, addresses: Vec::new(), next: None, failed: 0 }
    }

    /// Attempts that failed so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// What an attempt has left over: all that is not served now. An address that stays unserved is
    /// told of once.
    pub fn note(&mut self, failed: Vec<(IpAddr, xdp_io::Error)>, now: Instant) {
        self.failed += failed.len() as u64;
        let engine = &self.engine;
        for (address, error) in &failed {
            if !self.addresses.contains(address) {
                tracing::warn!("{engine} cannot serve {address} yet: {error}; this is tried again");
            }
        }
        let was_mended = failed.is_empty() && !self.addresses.is_empty();
        if was_mended {
            tracing::info!("{engine} serves all addresses now");
        }
        self.addresses = failed.into_iter().map(|(address, _)| address).collect();
        self.next = match self.next {
            _ if self.addresses.is_empty() => None,
            None => Some((now + FIRST, FIRST)),
            // Other changes are attempts, too, and no reason to wait longer.
            Some((at, _)) if now < at => self.next,
            Some((_, before)) => {
                let wait = (before * 2).min(LONGEST);
                Some((now + wait, wait))
            }
        };
        if let Some((at, _)) = self.next {
            self.hops.tell_again(at);
        }
    }
}

/// The kernel takes less from telling of an address to serving it, unless the machine is busy.
const FIRST: Duration = Duration::from_millis(50);
/// Between attempts, while another program has the port.
const LONGEST: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_fewer_until_all_addresses_are_served() {
        let mut unserved = Unserved::new(HopTable::default(), "the device");
        let start = Instant::now();
        let mut next = |millis: u64, ips: &[&str]| {
            let failed = |ip: &&str| {
                (ip.parse().unwrap(), xdp_io::Error::InvalidConfig("the kernel has it not yet"))
            };
            let now = start + Duration::from_millis(millis);
            unserved.note(ips.iter().map(failed).collect(), now);
            unserved.next.map(|(at, _)| (at - start).as_millis())
        };
        assert_eq!(next(0, &[]), None);
        assert_eq!(next(0, &["10.0.0.1", "fd00::1"]), Some(50));
        assert_eq!(next(20, &["10.0.0.1", "fd00::1"]), Some(50), "another change");
        assert_eq!(next(50, &["10.0.0.1"]), Some(150));
        assert_eq!(next(150, &["10.0.0.1"]), Some(350));
        assert_eq!(next(360, &[]), None);
        assert_eq!(next(400, &["10.0.0.1"]), Some(450), "as at first");
        let mut now = 450;
        for _ in 0..20 {
            now = next(u64::try_from(now).unwrap(), &["10.0.0.1"]).unwrap();
        }
        let last = next(u64::try_from(now).unwrap(), &["10.0.0.1"]).unwrap();
        assert_eq!(last - now, LONGEST.as_millis());
        assert_eq!(unserved.failed(), 28);
    }
}
