//! Frame and datagram I/O for Linux, for a single-threaded engine that polls.
//!
//! Three kinds of port, one manner of use. Every port owns one contiguous receive arena and one
//! contiguous transmit arena:
//!
//! * `receive(&mut out)` fills `out` with *ranges of the receive arena*; they stay valid until
//!   `release_rx()`.
//! * `reserve(..)` hands out a *range of the transmit arena*; the caller writes there, may shorten
//!   the range with `truncate`, and `submit()` sends everything reserved so far, in order.
//!
//! | port | unit | needs |
//! |---|---|---|
//! | [`xsk::XskPort`] | Ethernet frames over AF_XDP | CAP_NET_RAW, CAP_BPF, CAP_NET_ADMIN |
//! | [`packet::PacketPort`] | Ethernet frames and trains of them over AF_PACKET | CAP_NET_RAW |
//! | [`udp::UdpPort`] | UDP datagrams and trains of them | nothing |
//!
//! A *train* is several UDP datagrams of one flow with equal length (the last may be shorter) that
//! cross the kernel as one packet (UDP generic segmentation and receive offload).
//!
//! No port allocates, locks or logs per packet. What the kernel refuses is counted by reason and
//! never ends a port.
#![deny(unsafe_code)]

mod address;
mod control;
mod error;
pub mod multicast;
pub mod netdev;
pub mod packet;
pub mod program;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sys;
pub mod udp;
#[allow(unsafe_code)]
mod umem;
pub mod xsk;

pub use error::{Error, Result};

/// A range of a port's transmit arena, reserved and not yet submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxSlot {
    /// First byte, counted from the start of the transmit arena.
    pub offset: usize,
    /// Bytes reserved.
    pub len: usize,
    /// Which entry of the port's transmit queue this is.
    pub(crate) index: u32,
}

impl TxSlot {
    /// The range itself, to index the transmit arena with.
    #[must_use]
    pub fn range(&self) -> core::ops::Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// Why `reserve` did not hand out a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxRefusal {
    /// Everything is in use: call `submit` and try again.
    Full,
    /// The length is zero, or more than the port's capabilities allow: trying again is useless.
    Length,
    /// The source address is none of the port's addresses: trying again is useless.
    NoSource,
}

/// What one `submit` achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxReport {
    /// Frames or trains handed to the kernel by this call.
    pub sent: usize,
    /// Units still waiting in order (frames or trains; ring descriptors for AF_XDP). Not zero means
    /// backpressure: call `submit` again later.
    pub queued: usize,
}

/// Limits of one train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainCaps {
    /// Datagrams in one train. 1 when the kernel does not segment; it can fall to 1 while running
    /// when a device turns out not to support segmentation.
    pub max_segments: usize,
    /// UDP payload bytes in one train, all datagrams together.
    pub max_bytes: usize,
}

/// Transmissions the kernel refused, by reason. The unit is one frame or train; it is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxErrors {
    /// ECONNREFUSED: an ICMP port unreachable came back.
    pub refused: u64,
    /// EHOSTUNREACH or ENETUNREACH: no route, or no neighbour answers.
    pub unreachable: u64,
    /// EMSGSIZE: a datagram does not fit the MTU of the path.
    pub too_long: u64,
    /// EPERM or EACCES: a firewall rule, or a broadcast address.
    pub not_permitted: u64,
    /// ENETDOWN, ENXIO or ENODEV: the interface is down or gone.
    pub link_down: u64,
    /// EIO: the device cannot segment (see [`TrainCaps::max_segments`]).
    pub no_segmentation: u64,
    /// The port's source address was removed while the unit was waiting.
    pub no_source: u64,
    /// The headers of a train do not describe UDP over IP (only [`packet::PacketPort`]).
    pub malformed: u64,
    /// Any other error.
    pub other: u64,
}

impl TxErrors {
    /// Counts one refusal by its error number.
    pub(crate) fn count(&mut self, errno: i32) {
        let counter = match errno {
            libc::ECONNREFUSED => &mut self.refused,
            libc::EHOSTUNREACH | libc::ENETUNREACH => &mut self.unreachable,
            libc::EMSGSIZE => &mut self.too_long,
            libc::EPERM | libc::EACCES => &mut self.not_permitted,
            libc::ENETDOWN | libc::ENXIO | libc::ENODEV => &mut self.link_down,
            libc::EIO => &mut self.no_segmentation,
            _ => &mut self.other,
        };
        *counter += 1;
    }

    /// The sum over all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.refused
            + self.unreachable
            + self.too_long
            + self.not_permitted
            + self.link_down
            + self.no_segmentation
            + self.no_source
            + self.malformed
            + self.other
    }
}

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Ports move to the engine's thread.
const _: () = {
    const fn movable<T: Send>() {}
    movable::<xsk::XskPort>();
    movable::<packet::PacketPort>();
    movable::<udp::UdpPort>();
};
