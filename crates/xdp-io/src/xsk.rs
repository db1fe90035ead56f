//! Ethernet frames over an AF_XDP socket.
//!
//! Only UDP frames to the port's own addresses and its UDP port arrive (see [`crate::program`]);
//! the rest of the interface's traffic stays with the kernel. The program runs before the
//! interface's address filter: frames to a foreign destination MAC can arrive, so check it.
//!
//! Frames from sockets of this or a neighbouring namespace can carry an unfinished UDP checksum
//! (the pseudo-header sum only): do not verify it.

mod config;
mod receive;
mod setup;
mod transmit;

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::program::XdpProgram;
use crate::ring::{Consumer, Descriptor, Producer};
use crate::umem::Umem;
use crate::{Error, Result, TxRefusal, TxReport, TxSlot, sys};

pub use config::{XdpMode, XskCaps, XskConfig, XskStats};
use receive::Receiver;
use transmit::Transmitter;

/// A received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxFrame {
    /// First byte (of the Ethernet header) in the receive arena.
    pub offset: usize,
    /// Bytes of the frame, without FCS.
    pub len: usize,
}

/// The kernel's side of the port: rings before the socket, because a mapped ring keeps the socket,
/// and with it the queue, in use after it was closed.
struct Rings {
    fill: Producer<u64>,
    completion: Consumer<u64>,
    rx: Consumer<Descriptor>,
    tx: Producer<Descriptor>,
    socket: OwnedFd,
}

/// An AF_XDP socket on one queue of one interface. See the [module](self).
pub struct XskPort {
    rings: Rings,
    umem: Umem,
    receiver: Receiver,
    transmitter: Transmitter,
    program: Arc<XdpProgram>,
    caps: XskCaps,
    passed_over: Option<Error>,
}

impl XskPort {
    /// Opens the socket, then attaches the program to the interface.
    ///
    /// # Errors
    /// Any [`crate::Error`]; the text says what to do.
    pub fn open(config: &XskConfig) -> Result<XskPort> {
        setup::open(config, None)
    }

    /// Opens a socket on a further queue of an interface whose program is attached already; the
    /// mode is the program's.
    ///
    /// # Errors
    /// As [`XskPort::open`].
    pub fn open_queue(config: &XskConfig, program: Arc<XdpProgram>) -> Result<XskPort> {
        setup::open(config, Some(program))
    }

    /// The program, to be shared with [`XskPort::open_queue`].
    #[must_use]
    pub fn program(&self) -> &Arc<XdpProgram> {
        &self.program
    }

    /// Receives frames to `address` from now on.
    ///
    /// # Errors
    /// As [`XdpProgram::add_address`].
    pub fn add_address(&self, address: IpAddr) -> Result<()> {
        self.program.add_address(address)
    }

    /// Leaves frames to `address` to the kernel from now on.
    ///
    /// # Errors
    /// As [`XdpProgram::remove_address`].
    pub fn remove_address(&self, address: IpAddr) -> Result<()> {
        self.program.remove_address(address)
    }

    /// What was negotiated with the kernel.
    #[must_use]
    pub fn caps(&self) -> XskCaps {
        self.caps
    }

    /// Why a better mode did not work, where that was not only that the driver does not offer it.
    #[must_use]
    pub fn passed_over(&self) -> Option<&Error> {
        self.passed_over.as_ref()
    }

    /// Receives up to `out.len()` frames without waiting. The ranges stay valid until
    /// [`XskPort::release_rx`].
    ///
    /// In generic mode a frame can be a train that the sender's kernel did not segment: UDP over
    /// IP with a total length of up to 65,535 bytes, whose segmentation unit is not known here. It
    /// is delivered whole; the caller takes it apart by its IP and UDP lengths and the path MTU.
    pub fn receive(&mut self, out: &mut [RxFrame]) -> usize {
        if self.rings.fill.needs_wakeup() {
            sys::kick_rx(self.rings.socket.as_fd());
        }
        self.receiver.receive(&mut self.rings.rx, &mut self.umem, out)
    }

    /// The receive arena.
    #[must_use]
    pub fn rx_arena(&self) -> &[u8] {
        self.umem.rx_arena()
    }

    /// Ends the validity of everything received so far and returns the memory to the kernel.
    pub fn release_rx(&mut self) {
        self.receiver.release(&mut self.rings.fill);
    }

    /// Reserves a frame of `len` bytes, contiguous in the transmit arena.
    ///
    /// # Errors
    /// [`TxRefusal::Length`] for `len` of 0 or above [`XskCaps::max_frame`], [`TxRefusal::Full`].
    pub fn reserve(&mut self, len: usize) -> std::result::Result<TxSlot, TxRefusal> {
        if len == 0 || len > self.caps.max_frame {
            return Err(TxRefusal::Length);
        }
        if self.transmitter.is_exhausted() {
            self.transmitter.reap(&mut self.rings.completion, &self.umem);
        }
        self.transmitter.reserve(len)
    }

    /// Shortens a reserved frame; 0 gives it up. Without effect after `submit`.
    pub fn truncate(&mut self, slot: &TxSlot, len: usize) {
        self.transmitter.truncate(slot, len);
    }

    /// The transmit arena. Write only to reserved ranges.
    pub fn tx_arena_mut(&mut self) -> &mut [u8] {
        self.umem.tx_arena_mut()
    }

    /// Sends everything reserved, in order. On backpressure the rest stays queued, in order; when
    /// the kernel refuses to send, as while the interface is down, it is dropped and counted.
    pub fn submit(&mut self) -> TxReport {
        let Rings { tx, completion, socket, .. } = &mut self.rings;
        let kernel = (&self.umem, !self.caps.zero_copy);
        self.transmitter.submit(tx, completion, socket.as_fd(), kernel)
    }

    /// Counters so far; asks the kernel for its part.
    #[must_use]
    pub fn stats(&self) -> XskStats {
        let mut stats = XskStats::default();
        self.receiver.add_stats(&mut stats);
        self.transmitter.add_stats(&mut stats);
        setup::add_kernel_stats(self.rings.socket.as_fd(), &mut stats);
        stats
    }
}

impl AsFd for XskPort {
    /// Readable while frames wait; for epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rings.socket.as_fd()
    }
}
