//! UDP datagrams and trains of them through kernel sockets; no privilege needed.
//!
//! One unconnected socket per local address. What the caller can rely on for the IP headers that
//! the kernel writes (Linux; unconnected, IP_MTU_DISCOVER = DO):
//!
//! * IPv4: DF set, identification 0; the k-th datagram of a train (from 0) has identification k.
//! * TOS / traffic class and TTL / hop limit are the ones given to [`UdpPort::reserve`].
//! * The UDP checksum is present, computed by the kernel or the device: zero checksums cannot be
//!   combined with segmentation. Received IPv6 datagrams may carry a zero checksum.

mod arrivals;
mod copies;
mod fields;
mod socket;
mod steered;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::address::{self, SockAddr};
use crate::sys::mmsg::{RxBatch, SendOutcome, TxBatch};
use crate::{Error, Result, TrainCaps, TxErrors, TxRefusal, TxReport, TxSlot};
pub use copies::{SocketCopy, Use};
use fields::{describe, describe_to_kernel};
pub use socket::group_socket;
use socket::{IpFields, Socket};
pub use steered::{ReceiverSockets, SteerBy, SteeredPort};

/// Most payload bytes of one datagram or train (65,535 less the IPv4 and UDP headers).
const MAX_BYTES: usize = 65_507;
/// Datagrams of one train that every kernel with segmentation accepts.
const MAX_SEGMENTS: usize = 64;
/// One receive slot holds the longest train.
const RX_SLOT: usize = 65_536;
/// Messages that can wait in the transmit queue.
const TX_MESSAGES: usize = 1024;
/// Every so many calls of [`UdpPort::receive`] ask a second socket.
const CALLS_PER_OTHER: u32 = 4;

/// Settings of a [`UdpPort`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Local addresses, one socket each. An unspecified address (`0.0.0.0`, `::`) receives for all
    /// addresses of its family.
    pub addresses: Vec<IpAddr>,
    /// Local port, and destination port of received datagrams. 0 lets the kernel choose (tests).
    pub port: u16,
    /// Interface index, for link-local IPv6 addresses and for sending multicast; 0 if there are
    /// none, or for the interface that the routes say.
    pub scope_id: u32,
    /// Receive slots of 64 KiB, 1..=1024: the most trains between two `release_rx`.
    pub rx_slots: usize,
    /// Size of the transmit arena, at least 128 KiB.
    pub tx_arena_bytes: usize,
    /// The sockets are receiver 0 of this port, which others share.
    pub shared: Option<Arc<SteeredPort>>,
    /// Wanted size of each socket's buffers; the system's limit applies without CAP_NET_ADMIN.
    pub socket_buffer_bytes: usize,
}

impl UdpConfig {
    /// The defaults for `addresses` and `port`.
    #[must_use]
    pub fn new(addresses: Vec<IpAddr>, port: u16) -> UdpConfig {
        UdpConfig {
            addresses,
            port,
            scope_id: 0,
            shared: None,
            rx_slots: 64,
            tx_arena_bytes: 8 << 20,
            socket_buffer_bytes: 16 << 20,
        }
    }
}

/// A received datagram, or several of one flow in one piece.
#[derive(Clone, Copy, Debug)]
pub struct RxTrain {
    /// First payload byte in the receive arena.
    pub offset: usize,
    /// Payload bytes of all datagrams together.
    pub len: usize,
    /// Payload bytes of each datagram but the last, which may be shorter. Equal to `len` for a
    /// single datagram; at least 1 unless `len` is 0.
    pub segment_len: usize,
    /// Sender.
    pub src: SocketAddr,
    /// The local address it was sent to.
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit as received.
    pub hop_limit: u8,
}

impl Default for RxTrain {
    fn default() -> Self {
        let none = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        RxTrain {
            offset: 0,
            len: 0,
            segment_len: 0,
            src: SocketAddr::new(none, 0),
            dst: none,
            tos: 0,
            hop_limit: 0,
        }
    }
}

/// Where a datagram or train goes.
#[derive(Clone, Copy, Debug)]
pub struct TxTrain {
    /// Local address to send from: one of the port's, or any of the host's when the port has an
    /// unspecified one.
    pub src: IpAddr,
    /// Destination.
    pub dst: SocketAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit, 1..=255.
    pub hop_limit: u8,
    /// Payload bytes of each datagram but the last. Longer payloads are split by the kernel; 0
    /// means a single datagram of any length.
    pub segment_len: u16,
}

/// Counters of a [`UdpPort`].
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpStats {
    /// Trains received (a single datagram is one).
    pub rx_trains: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Datagrams dropped because they were longer than a slot.
    pub rx_truncated: u64,
    /// Datagrams dropped because the kernel did not say where they came from or went to.
    pub rx_without_address: u64,
    /// Receive calls that failed with an error other than "nothing there".
    pub rx_errors: u64,
    /// Datagrams the kernel dropped because a socket's receive buffer was full.
    pub rx_kernel_drops: u64,
    /// Trains sent.
    pub tx_trains: u64,
    /// `submit` calls that ended with backpressure.
    pub tx_backpressure: u64,
    /// Trains the kernel refused.
    pub tx_errors: TxErrors,
}

/// UDP sockets on one port. See the [module](self).
pub struct UdpPort {
    /// By stable index; `None` after [`UdpPort::remove_address`].
    sockets: Vec<Option<Socket>>,
    rx: RxBatch,
    tx: TxBatch,
    port: u16,
    scope_id: u32,
    shared: Option<Arc<SteeredPort>>,
    buffer_bytes: usize,
    max_segments: usize,
    /// The socket that had something last.
    busy: usize,
    /// The other socket that was asked last.
    other: usize,
    /// Calls of [`UdpPort::receive`].
    calls: u32,
    /// The caller has slept since: any socket may be what it slept on.
    has_slept: bool,
    /// How often sockets were added or closed.
    changes: u64,
    /// That number when copies were taken.
    copied_at: Option<u64>,
    stats: UdpStats,
}

impl UdpPort {
    /// Binds the sockets.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotLocal`], [`Error::Privilege`] for ports below
    /// 1024, [`Error::InvalidConfig`].
    pub fn bind(config: &UdpConfig) -> Result<UdpPort> {
        if !(1..=1024).contains(&config.rx_slots) {
            return Err(Error::InvalidConfig("rx_slots must be 1..=1024"));
        }
        if config.tx_arena_bytes < 128 << 10 {
            return Err(Error::InvalidConfig("tx_arena_bytes must be at least 131072"));
        }
        let mut port = UdpPort {
            sockets: Vec::new(),
            rx: RxBatch::new(config.rx_slots, RX_SLOT, 0).map_err(Error::os("receive arena"))?,
            tx: TxBatch::new(TX_MESSAGES, config.tx_arena_bytes, 0)
                .map_err(Error::os("transmit arena"))?,
            port: config.port,
            scope_id: config.scope_id,
            shared: config.shared.clone(),
            buffer_bytes: config.socket_buffer_bytes,
            max_segments: MAX_SEGMENTS,
            busy: 0,
            other: 0,
            calls: 0,
            has_slept: false,
            changes: 0,
            copied_at: None,
            stats: UdpStats::default(),
        };
        for address in &config.addresses {
            port.add_address(*address)?;
        }
        Ok(port)
    }

    /// Binds one more address. An address already bound is left as it is.
    ///
    /// # Errors
    /// As [`UdpPort::bind`].
    pub fn add_address(&mut self, address: IpAddr) -> Result<()> {
        if self.local_addresses().any(|bound| bound == address) {
            return Ok(());
        }
        let (fd, arrivals) = match &self.shared {
            Some(shared) => shared.first_socket(address)?,
            None => {
                let wanted = address::scoped(address, self.port, self.scope_id);
                (socket::open(wanted, self.scope_id, self.buffer_bytes, |_| Ok(()))?, None)
            }
        };
        let socket = Socket::new(fd, address).counted(arrivals);
        if self.port == 0 {
            self.port = socket.local_port()?;
        }
        self.adopt(socket);
        Ok(())
    }

    /// Uses sockets that another process has opened for `address`, from a [`SteeredPort`]. Those
    /// that were there for the address are closed.
    pub fn add_sockets(&mut self, address: IpAddr, sockets: ReceiverSockets) {
        self.remove_address(address);
        self.adopt(Socket::of(sockets, address));
    }

    /// Receives with a [`group_socket`] until the group is [removed](Self::remove_address).
    pub fn add_group(&mut self, group: IpAddr, socket: OwnedFd) {
        self.remove_address(group);
        self.adopt(Socket::new(socket, group));
    }

    fn adopt(&mut self, socket: Socket) {
        if !socket.segments {
            self.max_segments = 1;
        }
        self.changes += 1;
        match self.sockets.iter_mut().find(|socket| socket.is_none()) {
            Some(free) => *free = Some(socket),
            None => self.sockets.push(Some(socket)),
        }
    }

    /// Goes on with the interface of this index, as when the one of [`UdpConfig::scope_id`] was
    /// deleted and made anew: all sockets but those of groups are closed, and the addresses are to
    /// be added again. Does nothing on the same interface, and for a port without.
    pub fn move_to(&mut self, interface: u32) {
        if [0, interface].contains(&self.scope_id) {
            return;
        }
        self.scope_id = interface;
        let own: Vec<_> = self.local_addresses().filter(|ip| !ip.is_multicast()).collect();
        own.into_iter().for_each(|address| self.remove_address(address));
    }

    /// Closes the socket of an address. What still waits to be sent from it is dropped and counted.
    pub fn remove_address(&mut self, address: IpAddr) {
        let bound_here = |s: &Option<Socket>| s.as_ref().is_some_and(|s| s.address == address);
        let Some(index) = self.sockets.iter().position(bound_here) else { return };
        self.tx.retag(index as u32, u32::MAX);
        // Counters never go back.
        self.stats.rx_kernel_drops += self.sockets[index].take().map_or(0, |s| s.dropped());
        self.changes += 1;
    }

    /// The addresses bound.
    pub fn local_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.sockets.iter().flatten().map(|socket| socket.address)
    }

    /// The local port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Limits of one train.
    #[must_use]
    pub fn caps(&self) -> TrainCaps {
        TrainCaps { max_segments: self.max_segments, max_bytes: MAX_BYTES }
    }

    /// Bytes the kernel queues for the smallest of the sockets, its own overhead included: what
    /// peers may have in flight to this port without loss. The wanted size with CAP_NET_ADMIN, else
    /// at most twice net.core.rmem_max, which is a few trains by default.
    #[must_use]
    pub fn receive_buffer_bytes(&self) -> usize {
        self.sockets.iter().flatten().map(Socket::receive_buffer).min().unwrap_or(0)
    }

    /// Receives into the arena, up to `out.len()` trains, without waiting. The ranges stay valid
    /// until [`UdpPort::release_rx`]; when all slots are in use nothing more is received. After
    /// calls that found one train each, a call asks the kernel for one only, which is cheaper.
    ///
    /// A call looks at the socket that last had something, and now and then at one of the others,
    /// each within `4 * addresses` calls. To ask all of them would take a system call each, and
    /// with an epoll instance the kernel would walk its wait queue for every datagram. Where the
    /// kernel counts what arrives, a look asks only when something may be there, and now and then.
    /// The first call after a [sleep](Self::awake) looks at all of them.
    pub fn receive(&mut self, out: &mut [RxTrain]) -> usize {
        if self.has_slept {
            return self.receive_from_all(out);
        }
        self.calls = self.calls.wrapping_add(1);
        let busy = self.busy;
        let is_others_turn =
            self.sockets.len() > 1 && self.calls.is_multiple_of(CALLS_PER_OTHER) && !out.is_empty();
        // First: the busy one may fill all the room in every call.
        let from_other = if is_others_turn { self.receive_from_other(out) } else { 0 };
        from_other + self.receive_from(busy, &mut out[from_other..])
    }

    /// The busy one last: it may fill all the room. Those that there is no room for are left to the
    /// next call.
    fn receive_from_all(&mut self, out: &mut [RxTrain]) -> usize {
        let (first, count) = (self.busy + 1, self.sockets.len());
        let mut filled = 0;
        for index in (first..first + count).map(|at| at % count) {
            if filled == out.len() {
                return filled;
            }
            let found = self.receive_from(index, &mut out[filled..]);
            if found > 0 {
                self.busy = index;
            }
            filled += found;
        }
        self.has_slept = false;
        filled
    }

    fn receive_from_other(&mut self, out: &mut [RxTrain]) -> usize {
        let next = |index: usize| (index + 1) % self.sockets.len();
        self.other = next(self.other);
        if self.other == self.busy {
            self.other = next(self.other);
        }
        let filled = self.receive_from(self.other, out);
        if filled > 0 {
            self.busy = self.other;
        }
        filled
    }

    fn receive_from(&mut self, index: usize, out: &mut [RxTrain]) -> usize {
        let Some(Some(socket)) = self.sockets.get_mut(index).filter(|_| !out.is_empty()) else {
            return 0;
        };
        let slots = match socket.receive(&mut self.rx, out.len()) {
            Ok(slots) => slots,
            Err(error) => {
                self.stats.rx_errors += u64::from(error.kind() != io::ErrorKind::WouldBlock);
                return 0;
            }
        };
        let mut filled = 0;
        for slot in slots {
            let message = self.rx.message(slot);
            if message.flags & libc::MSG_TRUNC != 0 {
                self.stats.rx_truncated += 1;
                continue;
            }
            let Some(mut train) = describe(message, socket.address) else {
                self.stats.rx_without_address += 1;
                continue;
            };
            train.offset = self.rx.offset(slot);
            self.stats.rx_trains += 1;
            self.stats.rx_bytes += train.len as u64;
            out[filled] = train;
            filled += 1;
        }
        filled
    }

    /// The caller has slept on the [descriptors](Self::fds): one of the sockets may have something,
    /// whatever was counted before.
    pub fn awake(&mut self) {
        self.has_slept = true;
        self.sockets.iter_mut().flatten().for_each(Socket::may_be_behind);
    }

    /// The receive arena.
    #[must_use]
    pub fn rx_arena(&self) -> &[u8] {
        self.rx.arena()
    }

    /// Ends the validity of everything received so far.
    pub fn release_rx(&mut self) {
        self.rx.release();
    }

    /// Descriptors of which at least one is readable while something waits.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().flatten().map(Socket::fd)
    }

    /// Reserves `len` bytes of the transmit arena for one datagram or train.
    ///
    /// # Errors
    /// [`TxRefusal::Length`] for `len` of 0 or above the limits of [`UdpPort::caps`],
    /// [`TxRefusal::NoSource`], [`TxRefusal::Full`].
    pub fn reserve(
        &mut self,
        train: &TxTrain,
        len: usize,
    ) -> std::result::Result<TxSlot, TxRefusal> {
        let segment = if train.segment_len == 0 { len } else { usize::from(train.segment_len) };
        if !(1..=MAX_BYTES).contains(&len) || len.div_ceil(segment) > self.max_segments {
            return Err(TxRefusal::Length);
        }
        let index = self.socket_of(train.src).ok_or(TxRefusal::NoSource)?;
        let Some(Some(socket)) = self.sockets.get_mut(index) else {
            return Err(TxRefusal::NoSource);
        };
        let is_first = self.tx.queued().is_empty();
        let slot = self.tx.reserve(len, index as u32)?;
        // The IP fields of queued trains depend on the socket's current ones.
        if is_first {
            socket.adapt(IpFields { tos: train.tos, hops: train.hop_limit });
        }
        let control = describe_to_kernel(train, segment < len, socket);
        self.tx.address(&slot, SockAddr::new(&train.dst), control);
        Ok(slot)
    }

    /// Shortens a reserved range; 0 gives it up. Without effect after `submit`.
    pub fn truncate(&mut self, slot: &TxSlot, len: usize) {
        self.tx.truncate(slot, len);
    }

    /// The transmit arena. Write only to reserved ranges.
    pub fn tx_arena_mut(&mut self) -> &mut [u8] {
        self.tx.arena_mut()
    }

    /// Sends everything reserved, in order. On backpressure the rest stays queued, in order.
    pub fn submit(&mut self) -> TxReport {
        let mut sent = 0;
        while let Some(first) = self.tx.first() {
            let Some(Some(socket)) = self.sockets.get_mut(self.tx.socket(first) as usize) else {
                self.stats.tx_errors.no_source += 1;
                self.tx.drop_first();
                continue;
            };
            // A thread without the socket leaves it to one that has it.
            let Some(sender) = socket.sender() else { break };
            match self.tx.send_run(sender) {
                SendOutcome::Sent(count) => sent += count,
                SendOutcome::Full => {
                    self.stats.tx_backpressure += 1;
                    break;
                }
                SendOutcome::Failed(errno) => {
                    self.stats.tx_errors.count(errno);
                    if errno == libc::EIO {
                        self.max_segments = 1;
                    }
                    self.tx.drop_first();
                }
            }
        }
        self.stats.tx_trains += sent as u64;
        TxReport { sent, queued: self.tx.queued().len() }
    }

    /// Counters so far; asks the kernel for its drops.
    #[must_use]
    pub fn stats(&self) -> UdpStats {
        let open: u64 = self.sockets.iter().flatten().map(Socket::dropped).sum();
        UdpStats { rx_kernel_drops: self.stats.rx_kernel_drops + open, ..self.stats }
    }

    /// The socket that sends from `source`: its own, else one bound to all addresses.
    fn socket_of(&self, source: IpAddr) -> Option<usize> {
        if source.is_multicast() {
            return None;
        }
        let bound_to = |wanted: fn(IpAddr, IpAddr) -> bool| {
            self.sockets.iter().position(|s| s.as_ref().is_some_and(|s| wanted(s.address, source)))
        };
        bound_to(|bound, source| bound == source).or_else(|| {
            bound_to(|bound, source| bound.is_unspecified() && bound.is_ipv4() == source.is_ipv4())
        })
    }
}
