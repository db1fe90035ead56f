//! Ethernet frames and trains of them over an AF_PACKET socket, where XDP is impossible.
//!
//! The headers stay the caller's. A *train* is one frame whose UDP payload is several datagrams'
//! payloads back to back; device or kernel splits it into frames (UDP_L4 segmentation) and the
//! receiving side may join such frames again. In a train the IP total (payload) length and the UDP
//! length describe the whole; on the wire
//!
//! * each frame but the last has `gso_size` bytes of UDP payload,
//! * IPv4 identification counts up by one per frame from the value in the header,
//! * lengths and checksums are each frame's own; the UDP checksum is present.
//!
//! Kernels before 6.2 refuse to send trains, and lose a train from another local socket instead of
//! describing it in a vnet header. A port without [`PacketConfig::trains`] uses no vnet header: it
//! sends single frames, and receives what the kernel joined as one frame whose lengths describe the
//! whole, without the segment size.
//!
//! An AF_PACKET socket is only a tap: the kernel processes the frames too, and would answer with
//! ICMP port unreachable. A UDP socket that drops everything is bound to the port to prevent that
//! ([`PortGuard`]).
//!
//! Frames from sockets of this or a neighbouring namespace can carry an unfinished UDP checksum
//! (the pseudo-header sum only): do not verify it. Frames to a foreign destination MAC do not
//! arrive unless the interface is promiscuous.

pub(crate) mod filter;
mod guard;
mod kernel;
mod offload;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::mmsg::{BatchHint, RxBatch, SendOutcome, TxBatch};
use crate::udp::SteerBy;
use crate::{
    Error, Result, TrainCaps, TxErrors, TxRefusal, TxReport, TxSlot, control, netdev, sys,
};
pub use guard::PortGuard;
pub use kernel::knows_trains;
use offload::{VNET_HEADER, VnetHeader};

/// Ethernet header with one VLAN tag, IPv6 header without extensions, UDP header.
const MAX_HEADERS: usize = 18 + 40 + 8;
/// UDP payload of the longest train: an IPv4 packet has at most 65,535 bytes.
const MAX_PAYLOAD: usize = 65_507;
/// Frames of one train that every kernel with UDP_L4 segmentation accepts.
const MAX_SEGMENTS: usize = 64;
/// One receive slot: the longest train, and room in front of it.
const RX_SLOT: usize = 65_536 + 4096;
/// Where a received frame starts in its slot: behind the vnet header, and aligned.
const RX_FRAME: usize = 16;
/// Frames or trains that can wait in the transmit queue.
const TX_MESSAGES: usize = 1024;

/// Socket options and flags of `linux/if_packet.h`.
const PACKET_STATISTICS: i32 = 6;
const PACKET_AUXDATA: i32 = 8;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// Settings of a [`PacketPort`].
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// Interface name.
    pub interface: String,
    /// UDP destination port of the frames to receive.
    pub port: u16,
    /// Own addresses, to hold the UDP port on; none means all addresses. Frames are not filtered
    /// by them.
    pub addresses: Vec<IpAddr>,
    /// Only frames that name receiver 0 are received, and the port is not held: a
    /// [`SteeredPort`](crate::udp::SteeredPort) of the same addresses has it, and its sockets the
    /// rest.
    pub steer: Option<SteerBy>,
    /// Send past the queueing discipline (PACKET_QDISC_BYPASS). Then trains are dropped silently
    /// by devices that do not segment themselves (a veth whose peer has a native XDP program).
    pub qdisc_bypass: bool,
    /// Send and receive trains. By default if the kernel can ([`knows_trains`]).
    pub trains: bool,
    /// Receive slots of 68 KiB, 1..=1024: the most frames or trains between two `release_rx`.
    pub rx_slots: usize,
    /// Size of the transmit arena, at least 128 KiB.
    pub tx_arena_bytes: usize,
    /// Wanted size of the socket's buffers.
    pub socket_buffer_bytes: usize,
}

impl PacketConfig {
    /// The defaults for `interface` and `port`.
    #[must_use]
    pub fn new(interface: &str, port: u16) -> PacketConfig {
        PacketConfig {
            interface: interface.to_owned(),
            port,
            addresses: Vec::new(),
            steer: None,
            qdisc_bypass: false,
            trains: knows_trains(),
            rx_slots: 64,
            tx_arena_bytes: 8 << 20,
            socket_buffer_bytes: 16 << 20,
        }
    }
}

/// A received frame or train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxTrain {
    /// First byte of the Ethernet header in the receive arena.
    pub offset: usize,
    /// Bytes of the frame, headers included, without FCS.
    pub len: usize,
    /// UDP payload bytes of each frame of a train but the last; 0 for a single frame, and always
    /// without [`PacketConfig::trains`].
    pub gso_size: usize,
}

/// Counters of a [`PacketPort`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketStats {
    /// Frames and trains received.
    pub rx_trains: u64,
    /// Bytes received, headers included.
    pub rx_bytes: u64,
    /// Frames dropped because they did not fit a slot or their vnet header is broken.
    pub rx_malformed: u64,
    /// Receive calls that failed with an error other than "nothing there".
    pub rx_errors: u64,
    /// Frames the kernel dropped because the receive buffer was full.
    pub rx_kernel_drops: u64,
    /// Frames and trains sent.
    pub tx_trains: u64,
    /// `submit` calls that ended with backpressure.
    pub tx_backpressure: u64,
    /// Frames and trains refused.
    pub tx_errors: TxErrors,
}

/// An AF_PACKET socket on one interface. See the [module](self).
pub struct PacketPort {
    socket: OwnedFd,
    hint: BatchHint,
    rx: RxBatch,
    tx: TxBatch,
    guard: Option<PortGuard>,
    /// A vnet header is in front of every frame, and frames can be trains.
    trains: bool,
    /// Queued entries below this index have their vnet header written.
    prepared: usize,
    stats: PacketStats,
}

impl PacketPort {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`Error::Privilege`], [`Error::InterfaceMissing`], [`Error::InvalidConfig`]. A taken UDP
    /// port is no error: see [`PacketPort::guard`].
    pub fn open(config: &PacketConfig) -> Result<PacketPort> {
        if !(1..=1024).contains(&config.rx_slots) {
            return Err(Error::InvalidConfig("rx_slots must be 1..=1024"));
        }
        if config.tx_arena_bytes < 128 << 10 {
            return Err(Error::InvalidConfig("tx_arena_bytes must be at least 131072"));
        }
        let ifindex = netdev::index(&config.interface)?;
        // Protocol 0: nothing is received before filter and interface are set.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => Error::Privilege {
                    operation: "opening an AF_PACKET socket",
                    needs: "CAP_NET_RAW",
                },
                _ => Error::Os { operation: "socket(AF_PACKET)", source: error },
            })?;
        let fd = socket.as_fd();
        sys::attach_filter(fd, &filter::udp_port(config.port, config.steer))
            .map_err(Error::os("attaching the packet filter"))?;
        for (option, value) in [
            (PACKET_VNET_HDR, i32::from(config.trains)),
            (PACKET_AUXDATA, 1),
            (PACKET_IGNORE_OUTGOING, 1),
            (PACKET_QDISC_BYPASS, i32::from(config.qdisc_bypass)),
        ] {
            sys::set_option(fd, libc::SOL_PACKET, option, &value)
                .map_err(Error::os("setsockopt on the AF_PACKET socket"))?;
        }
        sys::set_buffers(fd, config.socket_buffer_bytes);
        sys::bind_packet(fd, ifindex).map_err(Error::os("bind(AF_PACKET)"))?;
        let PacketConfig { port, trains, .. } = *config;
        let guard = || PortGuard::new(port, &config.addresses, ifindex, trains);
        let guard = config.steer.is_none().then(guard).transpose()?;
        let vnet = vnet_bytes(trains);
        Ok(PacketPort {
            rx: RxBatch::new(config.rx_slots, RX_SLOT, RX_FRAME - vnet)
                .map_err(Error::os("receive arena"))?,
            tx: TxBatch::new(TX_MESSAGES, config.tx_arena_bytes, vnet)
                .map_err(Error::os("transmit arena"))?,
            guard,
            socket,
            hint: BatchHint::default(),
            trains: config.trains,
            prepared: 0,
            stats: PacketStats::default(),
        })
    }

    /// Goes on with another interface, as when one was deleted and made anew. What waits to be sent
    /// leaves through that one. Does nothing when it uses that interface already.
    ///
    /// # Errors
    /// [`Error::InterfaceMissing`], [`Error::Os`]; it then has no interface, and may try again.
    pub fn move_to(&mut self, ifindex: u32) -> Result<()> {
        if let Some(guard) = &mut self.guard {
            guard.move_to(ifindex);
        }
        sys::bind_packet(self.socket.as_fd(), ifindex).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => {
                Error::InterfaceMissing { interface: format!("number {ifindex}") }
            }
            _ => Error::Os { operation: "bind(AF_PACKET)", source: error },
        })
    }

    /// Which addresses the UDP port is held on. Addresses may be added and removed.
    pub fn guard(&mut self) -> Option<&mut PortGuard> {
        self.guard.as_mut()
    }

    /// Limits of one train; `max_bytes` counts UDP payload.
    #[must_use]
    pub fn caps(&self) -> TrainCaps {
        let max_segments = if self.trains { MAX_SEGMENTS } else { 1 };
        TrainCaps { max_segments, max_bytes: MAX_PAYLOAD }
    }

    /// Receives up to `out.len()` frames or trains without waiting. The ranges stay valid until
    /// [`PacketPort::release_rx`]; when all slots are in use nothing more is received. After calls
    /// that found one frame each, a call asks the kernel for one only, which is cheaper.
    pub fn receive(&mut self, out: &mut [RxTrain]) -> usize {
        let slots = match self.rx.receive(self.socket.as_fd(), out.len(), &mut self.hint) {
            Ok(slots) => slots,
            Err(error) => {
                self.stats.rx_errors += u64::from(error.kind() != io::ErrorKind::WouldBlock);
                return 0;
            }
        };
        let mut filled = 0;
        for slot in slots {
            match self.take(slot) {
                Some(train) => {
                    self.stats.rx_trains += 1;
                    self.stats.rx_bytes += train.len as u64;
                    out[filled] = train;
                    filled += 1;
                }
                None => self.stats.rx_malformed += 1,
            }
        }
        filled
    }

    /// The frame in a slot, with a VLAN tag put back that the kernel had taken out.
    fn take(&mut self, slot: usize) -> Option<RxTrain> {
        let message = self.rx.message(slot);
        if message.flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let vnet = vnet_bytes(self.trains);
        let mut len = message.len.checked_sub(vnet)?;
        let tag = message.control.filter_map(vlan_tag).next();
        let start = self.rx.offset(slot) + RX_FRAME;
        let bytes = self.rx.slot_mut(slot);
        let gso_size = if self.trains {
            VnetHeader::decode(&bytes[RX_FRAME - vnet..RX_FRAME])?.segment_bytes()?
        } else {
            0
        };
        let mut offset = start;
        if let Some(tag) = tag {
            // The addresses move to the front, over the end of the vnet header.
            bytes.copy_within(RX_FRAME..RX_FRAME + 12, RX_FRAME - 4);
            bytes[RX_FRAME + 8..RX_FRAME + 12].copy_from_slice(&tag);
            offset -= 4;
            len += 4;
        }
        Some(RxTrain { offset, len, gso_size })
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

    /// Reserves `len` bytes of the transmit arena for one frame (`gso_size` 0) or for a train with
    /// `gso_size` bytes of UDP payload per frame.
    ///
    /// # Errors
    /// [`TxRefusal::Length`] for a `len` of 0, or above the limits of [`PacketPort::caps`] and
    /// headers; [`TxRefusal::Full`].
    pub fn reserve(&mut self, len: usize, gso_size: u16) -> std::result::Result<TxSlot, TxRefusal> {
        let per_frame = usize::from(gso_size);
        let fits = match per_frame {
            0 => true,
            _ => len <= per_frame.saturating_mul(self.caps().max_segments) + MAX_HEADERS,
        };
        if len == 0 || len > MAX_PAYLOAD + MAX_HEADERS || !fits {
            return Err(TxRefusal::Length);
        }
        // The socket number of an entry carries its segment size: one socket sends everything.
        self.tx.reserve(len, u32::from(gso_size))
    }

    /// Shortens a reserved range; 0 gives it up. Without effect after `submit`.
    pub fn truncate(&mut self, slot: &TxSlot, len: usize) {
        self.tx.truncate(slot, len);
    }

    /// The transmit arena. Write only to reserved ranges.
    pub fn tx_arena_mut(&mut self) -> &mut [u8] {
        self.tx.arena_mut()
    }

    /// Sends everything reserved, in order. On backpressure the rest stays queued, in order. For
    /// trains the UDP checksum field is overwritten as segmentation requires.
    pub fn submit(&mut self) -> TxReport {
        self.prepare();
        let mut sent = 0;
        while self.tx.first().is_some() {
            match self.tx.send_run(self.socket.as_fd()) {
                SendOutcome::Sent(count) => sent += count,
                SendOutcome::Full => {
                    self.stats.tx_backpressure += 1;
                    break;
                }
                SendOutcome::Failed(errno) => {
                    self.stats.tx_errors.count(errno);
                    self.tx.drop_first();
                }
            }
        }
        self.stats.tx_trains += sent as u64;
        let queued = self.tx.queued();
        self.prepared = queued.end;
        TxReport { sent, queued: queued.len() }
    }

    /// Writes the vnet headers of the entries reserved since the last `submit`.
    fn prepare(&mut self) {
        let queued = self.tx.queued();
        for index in self.prepared.max(queued.start)..queued.end {
            let gso_size = self.tx.socket(index) as u16;
            self.tx.set_socket(index, 0);
            if !self.trains {
                continue;
            }
            let entry = self.tx.entry_mut(index);
            if entry.is_empty() {
                continue;
            }
            let (header, frame) = entry.split_at_mut(VNET_HEADER);
            match offload::prepare(frame, gso_size) {
                Some(vnet) => header.copy_from_slice(&vnet.encode()),
                None => {
                    self.stats.tx_errors.malformed += 1;
                    self.tx.cancel(index);
                }
            }
        }
    }

    /// Counters so far; asks the kernel for its drops, which it counts from one call to the next.
    pub fn stats(&mut self) -> PacketStats {
        // struct tpacket_stats: packets, drops.
        let kernel =
            sys::option(self.socket.as_fd(), libc::SOL_PACKET, PACKET_STATISTICS, [0u32; 2]);
        if let Ok([_, drops]) = kernel {
            self.stats.rx_kernel_drops += u64::from(drops);
        }
        self.stats
    }
}

impl AsFd for PacketPort {
    /// Readable while frames wait; for epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes that the kernel reads and writes in front of each frame.
fn vnet_bytes(trains: bool) -> usize {
    if trains { VNET_HEADER } else { 0 }
}

/// The VLAN tag the kernel took out of a frame, as its four bytes (`struct tpacket_auxdata`).
fn vlan_tag((level, kind, data): (i32, i32, &[u8])) -> Option<[u8; 4]> {
    if (level, kind) != (libc::SOL_PACKET, PACKET_AUXDATA) {
        return None;
    }
    let status = control::as_int(data)? as u32;
    let field = |at: usize| Some(u16::from_ne_bytes(data.get(at..at + 2)?.try_into().ok()?));
    let (tci, tpid) = (field(16)?, field(18)?);
    if status & TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tpid = if status & TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { 0x8100 };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}
