//! RoCEv2 over the kernel's UDP sockets.
//!
//! A root daemon shares the port with the engine processes of other users: each has sockets of its
//! own, and the kernel leads a datagram to the one that its DestQP names (bits 23..17).
//!
//! The source port is the destination port: one socket per address serves all queue pairs, so the
//! control plane gives their flows that port (the ICRC covers it).

use super::unserved::Unserved;
use super::{
    Link, LinkCounters, MAX_BURST, MAX_RESERVED, Membership, OUTSIDE, max_datagram, train_len,
};
use rnic_core::ports::{ArenaId, Range, RxIpId, RxTrain, TxIpId, TxSlot, TxTrain, WireCaps};
use rnic_core::qpn::SHARD_IN_BYTE;
use rnic_net::{Change, HopTable};
use roce_wire::{Flow, ROCE_PORT};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xdp_io::TxRefusal;
use xdp_io::udp::{self, ReceiverSockets, SteerBy, SteeredPort, UdpConfig, UdpPort};

/// See the [module](self).
pub(super) struct UdpWire {
    port: UdpPort,
    scope_id: u32,
    max_datagram: u32,
    /// What the last receive call filled.
    trains: Vec<udp::RxTrain>,
    /// Reserved since the last submit.
    reserved: Vec<xdp_io::TxSlot>,
    backlog: bool,
    /// Where the sockets are this process's own, not the daemon's gifts.
    unserved: Option<Unserved>,
    /// What the kernel drops in front of the sockets is a loss.
    drops_are_losses: bool,
}

impl UdpWire {
    /// Binds port 4791 on the addresses of `now`, which are those of interface `scope_id` (0:
    /// none). The network that `hops` are of tells again what could not be followed.
    ///
    /// # Errors
    /// As [`UdpPort::bind`].
    pub(super) fn new(
        now: &Change,
        scope_id: u32,
        shared: Option<Arc<SteeredPort>>,
        hops: HopTable,
    ) -> xdp_io::Result<Self> {
        let mut config = UdpConfig::new(now.addresses.clone(), ROCE_PORT);
        config.scope_id = scope_id;
        config.shared = shared;
        Self::on(config, now.mtu, Some(Unserved::new(hops, "the device")))
    }

    /// Without sockets: the daemon [gives](Link::add_sockets) some.
    ///
    /// # Errors
    /// When there is no memory.
    pub(super) fn of_shard(scope_id: u32, mtu: u32) -> xdp_io::Result<Self> {
        let mut config = UdpConfig::new(Vec::new(), ROCE_PORT);
        config.scope_id = scope_id;
        Self::on(config, mtu, None)
    }

    fn on(mut config: UdpConfig, mtu: u32, unserved: Option<Unserved>) -> xdp_io::Result<Self> {
        config.tx_arena_bytes = TX_ARENA;
        let (addresses, scope_id) = (&config.addresses, config.scope_id);
        Ok(Self {
            port: bind(&config)?,
            scope_id,
            max_datagram: max_datagram(mtu, addresses),
            trains: vec![udp::RxTrain::default(); MAX_BURST],
            reserved: Vec::with_capacity(MAX_RESERVED),
            backlog: false,
            unserved,
            drops_are_losses: true,
        })
    }

    /// Beside a link that receives what other hosts send, too, and leaves it to the kernel: it
    /// comes to the sockets as well, which drop it. The kernel counts it with what had no room.
    pub(super) fn beside_a_tap(self) -> Self {
        Self { drops_are_losses: false, ..self }
    }

    fn destination(&self, address: IpAddr) -> SocketAddr {
        match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(v6, ROCE_PORT, 0, self.scope_id))
            }
            _ => SocketAddr::new(address, ROCE_PORT),
        }
    }
}

impl Link for UdpWire {
    fn caps(&self) -> WireCaps {
        let caps = self.port.caps();
        WireCaps {
            max_datagram: self.max_datagram,
            max_segments: caps.max_segments as u32,
            max_train: caps.max_bytes as u32,
            tx_ip_id: TxIpId::SegmentIndex,
        }
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.port.fds().collect()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let room = (trains.capacity() - trains.len()).min(self.trains.len());
        let count = self.port.receive(&mut self.trains[..room]);
        trains.extend(self.trains[..count].iter().map(|train| RxTrain {
            flow: Flow {
                src: train.src.ip(),
                dst: train.dst,
                sport: train.src.port(),
                tos: train.tos,
                hop_limit: train.hop_limit,
                flow_label: 0,
                df: true,
            },
            arena: OUTSIDE,
            range: Range { offset: train.offset as u32, len: train.len as u32 },
            segment_len: train.segment_len as u32,
            ip_id: RxIpId::Likely(0),
            is_internal: false,
        }));
    }

    fn rx(&self, _: ArenaId) -> &[u8] {
        self.port.rx_arena()
    }

    fn release(&mut self) {
        self.port.release_rx();
    }

    fn reserve(&mut self, train: &TxTrain) -> Result<TxSlot, TxRefusal> {
        let len = train_len(train).ok_or(TxRefusal::Length)?;
        let to = udp::TxTrain {
            src: train.flow.src,
            dst: self.destination(train.flow.dst),
            tos: train.flow.tos,
            hop_limit: train.flow.hop_limit.max(1),
            segment_len: u16::try_from(train.segment_len).map_err(|_| TxRefusal::Length)?,
        };
        let slot = self.port.reserve(&to, len as usize)?;
        self.reserved.push(slot);
        Ok(TxSlot {
            arena: OUTSIDE,
            offset: slot.offset as u32,
            stride: train.segment_len,
            is_internal: false,
        })
    }

    fn cancel(&mut self, slot: &TxSlot) {
        let found = self.reserved.iter().rposition(|r| r.offset == slot.offset as usize);
        if let Some(index) = found {
            self.port.truncate(&self.reserved.swap_remove(index), 0);
        }
    }

    fn tx(&mut self) -> &mut [u8] {
        self.port.tx_arena_mut()
    }

    fn submit(&mut self) {
        self.reserved.clear();
        self.backlog = self.port.submit().queued > 0;
    }

    fn has_backlog(&self) -> bool {
        self.backlog
    }

    fn awake(&mut self) {
        self.port.awake();
    }

    fn follow(&mut self, change: &Change) -> bool {
        let Change { addresses, mtu, interface, .. } = change;
        if self.scope_id != 0 {
            self.scope_id = interface.index;
        }
        if self.unserved.is_some() {
            self.port.move_to(interface.index);
        }
        let is_gone = |bound: &IpAddr| !bound.is_multicast() && !addresses.contains(bound);
        let gone: Vec<_> = self.port.local_addresses().filter(is_gone).collect();
        gone.into_iter().for_each(|address| self.port.remove_address(address));
        if let Some(unserved) = &mut self.unserved {
            let port = &mut self.port;
            let failed = |ip: &IpAddr| Some((*ip, port.add_address(*ip).err()?));
            unserved.note(addresses.iter().filter_map(failed).collect(), Instant::now());
        }
        self.max_datagram = max_datagram(*mtu, addresses);
        true
    }

    fn add_sockets(&mut self, address: IpAddr, sockets: ReceiverSockets) {
        self.port.add_sockets(address, sockets);
    }

    fn udp_port(&mut self) -> Option<&mut UdpPort> {
        Some(&mut self.port)
    }

    fn join(&mut self, group: IpAddr, membership: Membership) {
        if let Some(socket) = membership.into_socket() {
            self.port.add_group(group, socket);
        }
    }

    fn leave(&mut self, group: IpAddr) {
        self.port.remove_address(group);
    }

    fn counters(&mut self) -> LinkCounters {
        let stats = self.port.stats();
        let mut counters = vec![
            ("link_rx_trains", stats.rx_trains),
            ("link_rx_bytes", stats.rx_bytes),
            ("link_rx_malformed", stats.rx_truncated + stats.rx_without_address),
            ("link_rx_errors", stats.rx_errors),
            ("link_tx_trains", stats.tx_trains),
            ("link_tx_backpressure", stats.tx_backpressure),
            ("link_tx_errors", stats.tx_errors.total()),
        ];
        if let Some(unserved) = &self.unserved {
            counters.push(("link_bind_failed", unserved.failed()));
        }
        if self.drops_are_losses {
            counters.push(("link_rx_no_buffer", stats.rx_kernel_drops));
        }
        counters
    }
}

/// Binds, also where programs still have sockets of a daemon that has died just now: their engines
/// close them as soon as they notice.
fn bind(config: &UdpConfig) -> xdp_io::Result<UdpPort> {
    let until = Instant::now() + LEFT_OVER;
    loop {
        match UdpPort::bind(config) {
            Err(xdp_io::Error::AddressInUse { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// The port with sockets for all shards; none where the kernel does not let us have it. Beside a
/// link of frames, which receives what other hosts send to the first shard, that shard's own socket
/// `is_local`.
pub(super) fn shared_port(scope_id: u32, is_local: bool) -> Option<Arc<SteeredPort>> {
    let buffer = UdpConfig::new(Vec::new(), ROCE_PORT).socket_buffer_bytes;
    match SteeredPort::new(ROCE_PORT, scope_id, buffer, STEER, is_local) {
        Ok(port) => Some(Arc::new(port)),
        Err(error) => {
            tell_of_hand_over(&error);
            None
        }
    }
}

/// The same for engines in programs of the daemon's own user, which takes no privilege.
pub(super) fn own_port(scope_id: u32) -> Arc<SteeredPort> {
    let buffer = UdpConfig::new(Vec::new(), ROCE_PORT).socket_buffer_bytes;
    Arc::new(SteeredPort::in_order(ROCE_PORT, scope_id, buffer, STEER))
}

pub(super) fn tell_of_hand_over(error: &xdp_io::Error) {
    tracing::warn!("other users have no sockets of their own, which costs speed: {error}");
}

/// By the number of the shard in DestQP.
pub const STEER: SteerBy = SteerBy { offset: DEST_QP, shift: SHARD_IN_BYTE };
const TX_ARENA: usize = 4 << 20;
/// How long sockets of a dead daemon's functions may stay open.
const LEFT_OVER: Duration = Duration::from_millis(700);
/// Offset of DestQP in a datagram (IBTA 9.2, BTH).
const DEST_QP: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::qpn::{MAX_SHARDS, SHARD_SHIFT, shard_of};
    use roce_wire::Qpn;
    use roce_wire::headers::Bth;

    #[test]
    fn a_byte_of_the_datagram_names_the_shard() {
        for shard in 0..u32::from(MAX_SHARDS) {
            let dest_qp = Qpn::new(shard << SHARD_SHIFT | 0x1_1234);
            let bytes = Bth::cnp(dest_qp).to_bytes();
            let found = bytes[usize::from(DEST_QP)] >> SHARD_IN_BYTE;
            assert_eq!((u32::from(found), shard_of(dest_qp)), (shard, found));
        }
    }
}
