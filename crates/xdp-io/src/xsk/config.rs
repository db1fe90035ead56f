//! Settings, capabilities and counters of an AF_XDP port.

use crate::udp::SteerBy;
use std::net::IpAddr;

use crate::TxErrors;
use crate::program::AttachMode;

/// Which kind of XDP to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// The best the driver offers: zero-copy, else native, else generic.
    #[default]
    Auto,
    /// The device reads and writes the arenas itself.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies frames.
    Native,
    /// The program runs in the network stack; the kernel copies frames. On virtual links this has
    /// the shortest round trip.
    Generic,
}

/// Settings of an [`super::XskPort`].
#[derive(Clone, Debug)]
pub struct XskConfig {
    /// Interface name.
    pub interface: String,
    /// Its index, where it is known: another interface may have got the name meanwhile. None for
    /// the interface that has the name now.
    pub index: Option<u32>,
    /// Queue of the interface. Only frames that the interface puts on this queue arrive.
    pub queue: u32,
    /// UDP destination port of the frames to receive.
    pub port: u16,
    /// Only frames that name receiver 0 are received; the kernel keeps the others for the sockets
    /// of a [`SteeredPort`](crate::udp::SteeredPort).
    pub steer: Option<SteerBy>,
    /// Own addresses at the start; see [`super::XskPort::add_address`].
    pub addresses: Vec<IpAddr>,
    /// XDP mode.
    pub mode: XdpMode,
    /// Receive chunks of 4 KiB, 64..=65,536. A frame uses one per 3840 bytes.
    pub rx_frames: usize,
    /// Transmit frames of 8 KiB, 16..=32,768.
    pub tx_frames: usize,
    /// Bytes for frames that arrive in several chunks and are delivered in one piece, at least
    /// 128 KiB; bounds how many of them are received between two `release_rx`.
    pub bounce_bytes: usize,
    /// Frames the kernel sends per system call in copy mode, where it lets us choose.
    pub tx_budget: u32,
}

impl XskConfig {
    /// The defaults for queue 0 of `interface`.
    #[must_use]
    pub fn new(interface: &str, port: u16) -> XskConfig {
        XskConfig {
            interface: interface.to_owned(),
            index: None,
            queue: 0,
            port,
            steer: None,
            addresses: Vec::new(),
            mode: XdpMode::Auto,
            rx_frames: 4096,
            tx_frames: 1024,
            bounce_bytes: 2 << 20,
            tx_budget: 256,
        }
    }
}

/// What was negotiated with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XskCaps {
    /// Where the program runs.
    pub mode: AttachMode,
    /// The device uses the arenas directly.
    pub zero_copy: bool,
    /// Frames can span several chunks (XDP_USE_SG): any MTU works.
    pub multi_buffer: bool,
    /// Longest frame `reserve` accepts: 8192, or 4096 without `multi_buffer`.
    pub max_frame: usize,
    /// Frames per system call on transmit, when the kernel accepted the setting (Linux 6.17).
    pub tx_budget: Option<u32>,
}

/// Counters of an [`super::XskPort`].
#[derive(Clone, Copy, Debug, Default)]
pub struct XskStats {
    /// Frames delivered.
    pub rx_frames: u64,
    /// Of these, frames copied together from several chunks.
    pub rx_linearised: u64,
    /// Frames dropped because they exceed the bounce area.
    pub rx_oversized: u64,
    /// Descriptors from the kernel that pointed outside the receive chunks.
    pub rx_bad_descriptors: u64,
    /// Kernel: frames dropped for another reason than the next two.
    pub rx_dropped: u64,
    /// Kernel: frames dropped because the RX ring was full (`receive` called too rarely).
    pub rx_ring_full: u64,
    /// Kernel: frames that found no free chunk (`release_rx` called too rarely).
    pub fill_empty: u64,
    /// Kernel: invalid entries of the fill ring.
    pub rx_invalid: u64,
    /// Frames given to the kernel.
    pub tx_frames: u64,
    /// `submit` calls that ended with backpressure.
    pub tx_backpressure: u64,
    /// System calls that failed, by reason.
    pub tx_errors: TxErrors,
    /// Kernel: descriptors swallowed as invalid, which would be an error of this crate.
    pub tx_invalid: u64,
    /// Kernel: times it found the TX ring empty.
    pub tx_ring_empty: u64,
}
