//! One UDP socket, set up so that its IP headers are predictable.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::arrivals::Arrivals;
use super::copies::{Copies, SocketCopy};
use super::steered::{RECEIVERS, ReceiverSockets};
use crate::address::SockAddr;
use crate::sys::mmsg::{BatchHint, RxBatch};
use crate::{Error, Result, address, multicast, sys};

/// Answer of SO_MEMINFO: which element counts drops (SK_MEMINFO_DROPS).
const MEMINFO_DROPS: usize = 8;

/// The fields of the IP header that the sender of a datagram chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IpFields {
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub(crate) hops: u8,
}

impl IpFields {
    /// Of a new socket.
    const NEW: IpFields = IpFields { tos: 0, hops: 64 };
}

/// After so many consecutive trains with other fields, the socket adopts those.
const MANY_OTHERS: u32 = 32;

/// A bound socket.
pub(crate) struct Socket {
    fd: OwnedFd,
    /// What is sent leaves through this one, if it is there.
    sender: Option<OwnedFd>,
    /// The address it is bound to.
    pub(crate) address: IpAddr,
    /// The kernel knows UDP_SEGMENT.
    pub(crate) segments: bool,
    /// What the kernel writes for datagrams whose control messages say nothing else.
    pub(crate) fields: IpFields,
    /// Consecutive trains with other fields.
    others: u32,
    hint: BatchHint,
    /// What the kernel counts.
    arrivals: Option<Arrivals>,
    /// What threads with another table of descriptors use.
    copies: Copies,
    /// What the kernel had dropped before this one had the descriptor.
    dropped_before: u32,
}

/// A socket bound to `wanted`, with all options set before the first datagram can arrive.
/// A multicast address is joined on interface `interface` and may be shared with others.
pub(super) fn open(
    wanted: SocketAddr,
    interface: u32,
    buffer_bytes: usize,
    before_bind: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> Result<OwnedFd> {
    let domain = if wanted.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = sys::socket(domain, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)
        .map_err(Error::os("socket(UDP)"))?;
    let set = |level, name, value: i32| sys::set_option(fd.as_fd(), level, name, &value);
    let is_wildcard = wanted.ip().is_unspecified();
    let options =
        if wanted.is_ipv4() { v4_options(set, is_wildcard) } else { v6_options(set, is_wildcard) };
    options.map_err(Error::os("setsockopt on the UDP socket"))?;
    sys::set_buffers(fd.as_fd(), buffer_bytes);
    // Without UDP_GRO (before Linux 5.0) datagrams arrive one by one.
    let _ = set(libc::SOL_UDP, libc::UDP_GRO, 1);
    if wanted.ip().is_multicast() {
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).map_err(Error::os("SO_REUSEADDR"))?;
    }
    make_new(fd.as_fd(), wanted.ip())?;
    before_bind(fd.as_fd()).map_err(Error::os("sharing the UDP port"))?;
    sys::bind(fd.as_fd(), SockAddr::new(&wanted).as_bytes())
        .map_err(|error| bind_error(wanted, error))?;
    if wanted.ip().is_multicast() {
        multicast::only_own(fd.as_fd(), wanted.ip())?;
        multicast::join(fd.as_fd(), interface, wanted.ip())?;
    } else {
        multicast::send_from(fd.as_fd(), interface, wanted.ip())?;
    }
    Ok(fd)
}

/// It sends with the fields that a [`Socket`] expects of a new one, whatever another one of the
/// same descriptor has chosen.
pub(super) fn make_new(fd: BorrowedFd<'_>, address: IpAddr) -> Result<()> {
    write(fd, address, IpFields::NEW).map_err(Error::os("TOS and TTL of the UDP socket"))
}

/// A socket that receives what is sent to port `port` of `group` on `interface`, for
/// [`UdpPort::add_group`](super::UdpPort::add_group). Several may be open at the same time, also in
/// several processes; each gets a copy. It is a member until it is closed, or [leaves](
/// multicast::leave).
///
/// # Errors
/// [`Error::InvalidConfig`] when `group` is no multicast address, else as
/// [`UdpPort::bind`](super::UdpPort::bind).
pub fn group_socket(
    group: IpAddr,
    port: u16,
    interface: u32,
    buffer_bytes: usize,
) -> Result<OwnedFd> {
    if !group.is_multicast() {
        return Err(Error::InvalidConfig("the group to join is no multicast address"));
    }
    open(address::scoped(group, port, interface), interface, buffer_bytes, |_| Ok(()))
}

/// The port that a socket is bound to.
pub(super) fn port_of(socket: &OwnedFd) -> Result<u16> {
    let duplicate = socket.try_clone().map_err(Error::os("dup"))?;
    let address = std::net::UdpSocket::from(duplicate).local_addr();
    address.map(|a| a.port()).map_err(Error::os("getsockname"))
}

impl Socket {
    /// That was [opened](open) for `address`, here or in another process.
    pub(crate) fn new(fd: OwnedFd, address: IpAddr) -> Socket {
        let segments = sys::option(fd.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0i32).is_ok();
        let (fields, others, hint) = (IpFields::NEW, 0, BatchHint::default());
        let copies = Copies::default();
        let (arrivals, sender) = (None, None);
        let dropped_before = dropped(fd.as_fd());
        Socket {
            fd,
            sender,
            address,
            segments,
            fields,
            others,
            hint,
            arrivals,
            copies,
            dropped_before,
        }
    }

    /// As [`Socket::new`], with another one to send.
    pub(super) fn of(sockets: ReceiverSockets, address: IpAddr) -> Socket {
        let ReceiverSockets { receives, sends, arrivals } = sockets;
        Socket { sender: Some(sends), ..Socket::new(receives, address).counted(arrivals) }
    }

    /// Asks the kernel only when something arrived, where that can be seen.
    pub(super) fn counted(mut self, arrivals: Option<(OwnedFd, u8)>) -> Socket {
        self.arrivals = arrivals
            .and_then(|(counts, receiver)| Arrivals::new(counts.as_fd(), receiver, RECEIVERS).ok());
        self
    }

    /// The descriptor to send through; `None` in a thread that has lost its copy.
    pub(crate) fn sender(&mut self) -> Option<BorrowedFd<'_>> {
        match self.copies.in_use() {
            false => Some(self.sender.as_ref().unwrap_or(&self.fd).as_fd()),
            true => self.copies.sender(),
        }
    }

    /// All of its descriptors: the one that receives, and the one that sends, if that is another.
    pub(super) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(&self.fd).chain(&self.sender).map(AsFd::as_fd)
    }

    /// Takes the copies of [`all`](Self::all).
    pub(super) fn take_copies(&mut self, from: &mut impl Iterator<Item = SocketCopy>) {
        let receiver = from.next();
        let sender = if self.sender.is_some() { from.next() } else { receiver };
        self.copies = Copies::new(receiver.zip(sender));
    }

    /// The copies of its descriptors.
    pub(super) fn copies(&mut self) -> &mut Copies {
        &mut self.copies
    }

    /// Called before a train with the fields `wanted` is queued, when nothing else is queued. Two
    /// control messages add about 4 % to a datagram's cost in the kernel, so the socket adopts
    /// fields that are wanted repeatedly.
    pub(crate) fn adapt(&mut self, wanted: IpFields) {
        if wanted == self.fields {
            self.others = 0;
            return;
        }
        self.others += 1;
        if self.others >= MANY_OTHERS {
            self.others = 0;
            let address = self.address;
            // When the kernel refuses a field here, control messages continue to set it.
            if self.sender().is_some_and(|sender| write(sender, address, wanted).is_ok()) {
                self.fields = wanted;
            }
        }
    }

    /// Receives up to `max` messages, as [`RxBatch::receive`].
    pub(crate) fn receive(&mut self, batch: &mut RxBatch, max: usize) -> io::Result<Range<usize>> {
        let waiting = self.arrivals.as_mut().map_or(max, Arrivals::wanted);
        if waiting == 0 {
            self.hint.learn(0);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let from = match self.copies.in_use() {
            false => self.fd.as_fd(),
            true => self.copies.receiver().ok_or(io::ErrorKind::WouldBlock)?,
        };
        let received = batch.receive(from, max.min(waiting), &mut self.hint);
        let told = match &received {
            Ok(slots) => Some(slots.len()).filter(|some| *some > 0),
            Err(error) => (error.kind() == io::ErrorKind::WouldBlock).then_some(0),
        };
        if let Some((arrivals, told)) = self.arrivals.as_mut().zip(told) {
            arrivals.note(told);
        }
        received
    }

    /// Whether it may have something. True where the kernel does not count.
    #[inline]
    pub(super) fn may_have_some(&self) -> bool {
        self.arrivals.as_ref().is_none_or(Arrivals::any)
    }

    /// The caller has slept.
    pub(super) fn may_be_behind(&mut self) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.may_be_behind();
        }
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The port the kernel chose.
    pub(crate) fn local_port(&self) -> Result<u16> {
        port_of(&self.fd)
    }

    /// Size of the receive buffer, as the kernel accounts for it.
    pub(crate) fn receive_buffer(&self) -> usize {
        let size = sys::option(self.fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0i32);
        size.map_or(0, |size| usize::try_from(size).unwrap_or(0))
    }

    /// Datagrams dropped for lack of buffer space.
    pub(crate) fn dropped(&self) -> u64 {
        dropped(self.fd()).wrapping_sub(self.dropped_before).into()
    }
}

/// What the kernel has dropped since the socket was opened, whatever process had it.
fn dropped(fd: BorrowedFd<'_>) -> u32 {
    sys::option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, [0u32; 9])
        .map_or(0, |info| info[MEMINFO_DROPS])
}

/// What the kernel writes from now on.
fn write(fd: BorrowedFd<'_>, address: IpAddr, wanted: IpFields) -> io::Result<()> {
    let (level, tos, hops) = if address.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS)
    };
    sys::set_option(fd, level, hops, &i32::from(wanted.hops))?;
    sys::set_option(fd, level, tos, &i32::from(wanted.tos))
}

/// DF on every datagram makes the identification of an unconnected socket 0. Without it, or on a
/// connected socket, whose route need not be looked up for every datagram, the kernel writes a
/// number that cannot be known. A wildcard socket must be told where datagrams went to.
fn v4_options(set: impl Fn(i32, i32, i32) -> io::Result<()>, is_wildcard: bool) -> io::Result<()> {
    set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    set(libc::IPPROTO_IP, libc::IP_PKTINFO, is_wildcard.into())?;
    set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1)
}

fn v6_options(set: impl Fn(i32, i32, i32) -> io::Result<()>, is_wildcard: bool) -> io::Result<()> {
    set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
    set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, is_wildcard.into())?;
    set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
    // RoCEv2 senders write a zero UDP checksum on IPv6 too.
    set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)
}

/// `linux/udp.h`.
const UDP_NO_CHECK6_RX: i32 = 102;

fn bind_error(wanted: SocketAddr, error: io::Error) -> Error {
    let address = wanted.ip();
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => Error::AddressInUse { address, port: wanted.port() },
        Some(libc::EADDRNOTAVAIL | libc::EINVAL) => Error::AddressNotLocal { address },
        Some(libc::EACCES) => Error::Privilege {
            operation: "binding a UDP port below 1024",
            needs: "CAP_NET_BIND_SERVICE",
        },
        _ => Error::Os { operation: "bind(UDP)", source: error },
    }
}
