//! Receivers by the order in which their sockets were bound, which takes no privilege.
//!
//! The kernel numbers the sockets that share a port as they are bound, and a classic program
//! returns a number. So there is a socket for each receiver up to the highest one that was ever
//! wanted, and this process keeps a copy of each: a number changes only when a socket is closed for
//! good. One that has no owner refuses everything by a filter, or datagrams would wait in it for
//! its next one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::SteerBy;
use crate::packet::filter::{nothing, receiver_below};
use crate::{Error, Result, sys};

/// Sockets of all receivers but the first, in their order. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Order(Vec<OwnedFd>);

impl Order {
    /// The socket of this receiver, which gets its datagrams from now on. `open` makes a socket,
    /// and calls what it is given before it binds it.
    pub(super) fn socket(
        &mut self,
        receiver: u8,
        first: BorrowedFd<'_>,
        by: SteerBy,
        open: impl Fn(fn(BorrowedFd<'_>) -> io::Result<()>) -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        let os = |error| Error::os("giving a UDP socket its datagrams")(error);
        while self.0.len() < usize::from(receiver) {
            self.0.push(open(|socket| {
                sys::attach_filter(socket, &nothing())?;
                super::join(socket)
            })?);
            steer(first, by, self.0.len() as u32 + 1).map_err(os)?;
        }
        let socket = &self.0[usize::from(receiver) - 1];
        unmute(socket.as_fd()).map_err(os)?;
        socket.try_clone().map_err(os)
    }

    /// Whether there was ever a receiver but the first.
    pub(super) fn has_sockets(&self) -> bool {
        !self.0.is_empty()
    }

    /// This receiver gets nothing any more, also from a copy of its socket.
    pub(super) fn close(&self, receiver: u32) {
        let at = (receiver as usize).checked_sub(1);
        let Some(socket) = at.and_then(|at| self.0.get(at)) else { return };
        // If it fails, the owner goes on to hear what is for its next one, which hears nothing of
        // before.
        let _ = mute(socket.as_fd());
    }
}

/// This socket gets nothing any more, and nothing waits in it.
pub(super) fn mute(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::attach_filter(socket, &nothing())?;
    while sys::take_away(socket).is_ok() {}
    Ok(())
}

/// It gets what comes from now on.
pub(super) fn unmute(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Once more: a datagram may have passed the filter that was there before, and come afterwards.
    mute(socket)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
}

/// The program of all that share the port with this socket: which of so many gets a datagram.
pub(super) fn steer(socket: BorrowedFd<'_>, by: SteerBy, receivers: u32) -> io::Result<()> {
    sys::attach_program(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &receiver_below(by, receivers))
}
