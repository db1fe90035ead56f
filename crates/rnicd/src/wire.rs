//! The device's wire: where the engine's frames go and come from.
//!
//! A [`DeviceWire`] joins the internal [`loopback`] (queue pairs of the device among themselves)
//! with at most one way outside. A train's [`HopId`](rnic_core::ports::HopId) says which of the
//! two it takes.

mod auto;
mod frames;
mod loopback;
mod packet;
mod split;
mod udp;
mod xdp;

use crate::net;
use rnic_core::ports::{ArenaId, RxTrain, TxIpId, TxSlot, TxTrain, Wire, WireCaps};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use xdp_io::TxRefusal;

pub(crate) use auto::{WireConfig, WireError, open};
use loopback::Loopback;

/// A way outside.
trait Link: Send {
    /// What it can do now.
    fn caps(&self) -> WireCaps;
    /// Readable while frames wait.
    fn fd(&self) -> BorrowedFd<'_>;
    /// As [`Wire::receive`].
    fn receive(&mut self, trains: &mut Vec<RxTrain>);
    /// As [`Wire::rx`].
    fn rx(&self) -> &[u8];
    /// As [`Wire::release`].
    fn release(&mut self);
    /// As [`Wire::reserve`], with the reason of a refusal.
    fn reserve(&mut self, train: &TxTrain) -> Result<TxSlot, TxRefusal>;
    /// Gives up a reservation of this turn.
    fn cancel(&mut self, slot: &TxSlot);
    /// As [`Wire::tx`].
    fn tx(&mut self) -> &mut [u8];
    /// As [`Wire::submit`].
    fn submit(&mut self);
    /// Frames wait that the link could not take yet.
    fn has_backlog(&self) -> bool;
    /// Follows a change of the interface: its addresses and its MTU.
    fn follow(&mut self, addresses: &[IpAddr], mtu: u32);
    /// What it counts.
    fn counters(&mut self) -> LinkCounters;
}

/// Counters by the names that `rnic counters` shows.
pub(crate) type LinkCounters = Vec<(&'static str, u64)>;

/// Loopback and the way outside.
pub(crate) struct DeviceWire {
    mode: String,
    loopback: Loopback,
    outside: Option<Box<dyn Link>>,
    /// Where trains go that can never be sent: the transport's retries decide what follows.
    sink: Vec<u8>,
    sunk: u64,
    /// Reservations since the last submit, in order.
    reserved: Vec<TxSlot>,
}

impl DeviceWire {
    /// A device with `outside`, or with loopback only.
    fn new(mode: String, outside: Option<Box<dyn Link>>) -> Self {
        let caps = outside.as_ref().map_or(LOOPBACK_CAPS, |link| link.caps());
        Self {
            mode,
            loopback: Loopback::new(LOOPBACK, caps.tx_ip_id),
            outside,
            sink: vec![0; SINK_LEN],
            sunk: 0,
            reserved: Vec::with_capacity(MAX_RESERVED),
        }
    }

    /// The packet I/O in use, e.g. `udp` or `af-xdp native`.
    pub(crate) fn mode(&self) -> &str {
        &self.mode
    }

    /// The descriptor that is readable while frames wait.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.outside.as_ref().map(|link| link.fd())
    }

    /// Frames wait that no descriptor tells about: what was looped back, or what the link could
    /// not take yet.
    pub(crate) fn has_backlog(&self) -> bool {
        self.loopback.has_backlog() || self.outside.as_ref().is_some_and(|link| link.has_backlog())
    }

    /// Follows a change of the interface.
    pub(crate) fn follow(&mut self, addresses: &[IpAddr], mtu: u32) {
        if let Some(link) = &mut self.outside {
            link.follow(addresses, mtu);
        }
    }

    /// Counters of the link.
    pub(crate) fn counters(&mut self) -> LinkCounters {
        let mut counters = self.loopback.counters();
        counters.push(("link_tx_no_route", self.sunk));
        if let Some(link) = &mut self.outside {
            counters.extend(link.counters());
        }
        counters
    }

    fn reserve_outside(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let refusal = match &mut self.outside {
            Some(link) => match link.reserve(train) {
                Ok(slot) => return Some(slot),
                Err(refusal) => refusal,
            },
            None => TxRefusal::NoSource,
        };
        if refusal == TxRefusal::Full {
            return None;
        }
        self.sunk += 1;
        let len = train_len(train)? as usize;
        if self.sink.len() < len {
            return None;
        }
        Some(TxSlot { arena: SINK, offset: 0, stride: train.segment_len })
    }
}

impl Wire for DeviceWire {
    fn caps(&self) -> WireCaps {
        self.outside.as_ref().map_or(LOOPBACK_CAPS, |link| link.caps())
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        self.loopback.receive(trains);
        if let Some(link) = &mut self.outside {
            link.receive(trains);
        }
    }

    fn rx(&self, arena: ArenaId) -> &[u8] {
        match (arena, &self.outside) {
            (LOOPBACK, _) => self.loopback.rx(),
            (OUTSIDE, Some(link)) => link.rx(),
            _ => &[],
        }
    }

    fn release(&mut self) {
        if let Some(link) = &mut self.outside {
            link.release();
        }
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        if self.reserved.len() == MAX_RESERVED {
            return None;
        }
        let slot = match train.hop {
            net::LOOPBACK => self.loopback.reserve(train),
            _ => self.reserve_outside(train),
        }?;
        self.reserved.push(slot);
        Some(slot)
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        let Some(first) = self.reserved.iter().rposition(|reserved| reserved == slot) else {
            return;
        };
        for slot in self.reserved.drain(first..).rev() {
            match (slot.arena, &mut self.outside) {
                (LOOPBACK, _) => self.loopback.cancel_last(),
                (OUTSIDE, Some(link)) => link.cancel(&slot),
                _ => {}
            }
        }
    }

    fn tx(&mut self, arena: ArenaId) -> &mut [u8] {
        match (arena, &mut self.outside) {
            (LOOPBACK, _) => self.loopback.tx(),
            (OUTSIDE, Some(link)) => link.tx(),
            (SINK, _) => &mut self.sink,
            _ => &mut [],
        }
    }

    fn submit(&mut self) {
        self.reserved.clear();
        self.loopback.submit();
        if let Some(link) = &mut self.outside {
            link.submit();
        }
    }
}

/// What the loopback can do when there is nothing else.
const LOOPBACK_CAPS: WireCaps = WireCaps {
    max_datagram: MAX_DATAGRAM,
    max_segments: 64,
    max_train: 64 * 1024,
    tx_ip_id: TxIpId::Ours,
};

/// UDP payload that an interface of this MTU carries, in the family with the longer header when
/// IPv6 is among `addresses`.
fn max_datagram(mtu: u32, addresses: &[IpAddr]) -> u32 {
    let headers = if addresses.iter().any(IpAddr::is_ipv6) { IPV6_UDP } else { IPV4_UDP };
    mtu.saturating_sub(headers).min(MAX_DATAGRAM)
}

/// Bytes of all datagrams of a train; `None` for one without datagrams.
fn train_len(train: &TxTrain) -> Option<u32> {
    let before_last = train.segments.checked_sub(1)?.checked_mul(train.segment_len)?;
    before_last.checked_add(train.last_len)
}

const LOOPBACK: ArenaId = ArenaId(0);
const OUTSIDE: ArenaId = ArenaId(1);
const SINK: ArenaId = ArenaId(2);
/// The longest train.
const SINK_LEN: usize = 64 * 1024;
/// The longest datagram of RoCEv2: path MTU 4096 and every header there is.
const MAX_DATAGRAM: u32 = 4096 + 96;
const IPV4_UDP: u32 = 28;
const IPV6_UDP: u32 = 48;
/// Most reservations of one turn.
const MAX_RESERVED: usize = 1024;
/// Most trains that a link takes from the kernel at once.
const MAX_BURST: usize = 64;

#[cfg(test)]
mod tests;
