//! Data of stream rsockets.

use std::{ffi::c_int, sync::PoisonError};

use super::{
    link::Link,
    stream::{Core, Locked, Phase, Stream},
    waiting::Waits,
};
use crate::error::{Errno, Result};

/// Bytes of the program, in pieces as of an `iovec`.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
}

impl Stream {
    /// Sends all bytes; fewer where the stream ends or would wait.
    ///
    /// # Safety
    /// All pieces are readable.
    pub(crate) unsafe fn send(&self, pieces: &[Piece], flags: c_int) -> Result<usize> {
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.is_nonblocking(flags);
        let mut core = self.opened(self.core(), nonblocking)?;
        core = self.announce_mapped(core, nonblocking)?;
        let mut total = 0;
        let mut most = core.link.as_ref().map_or(0, |link| link.flow.first_len());
        for piece in pieces {
            let mut sent = 0;
            while sent < piece.len {
                core = match self.room(core, nonblocking) {
                    Ok(core) => core,
                    Err(_) if total > 0 => return Ok(total),
                    Err(error) => return Err(error),
                };
                let Some(link) = &mut core.link else { return Err(Errno(libc::ENOTCONN)) };
                let len = u32::try_from(piece.len - sent).unwrap_or(u32::MAX).min(most);
                // SAFETY: by contract.
                match unsafe { link.send(piece.at.wrapping_add(sent), len) } {
                    Ok(len) => {
                        sent += len as usize;
                        total += len as usize;
                    }
                    Err(Errno(errno)) => link.fail(errno),
                }
                most = (most * 2).min(link.flow.largest_len());
            }
        }
        Ok(total)
    }

    /// Waits until a message can be sent.
    fn room<'a>(&'a self, core: Locked<'a>, nonblocking: bool) -> Result<Locked<'a>> {
        let can_send = |link: &Link| link.flow.can_send();
        if core.link.as_ref().is_some_and(can_send) {
            return Ok(core);
        }
        self.writable(core, nonblocking, can_send)
    }

    /// Waits until something can be sent, and says why it never can.
    pub(crate) fn writable<'a>(
        &'a self,
        core: Locked<'a>,
        nonblocking: bool,
        can_send: fn(&Link) -> bool,
    ) -> Result<Locked<'a>> {
        let is_over = |link: &Link| !link.flow.is_writable();
        let ready =
            |core: &Core| core.link.as_ref().is_none_or(|link| can_send(link) || is_over(link));
        let mut core = self.wait(core, (nonblocking, None), ready)?;
        let over = core.link.as_ref().filter(|link| is_over(link));
        let errno = match over {
            None => return Ok(core),
            Some(link) if link.flow.is_up() => libc::EPIPE,
            Some(link) if link.flow.error() != 0 => link.flow.error(),
            Some(_) => libc::ECONNRESET,
        };
        core.error = 0;
        Err(Errno(errno))
    }

    /// Receives what there is; all that fits with `MSG_WAITALL`. 0 at the end of the stream.
    ///
    /// # Safety
    /// All pieces are writable.
    pub(crate) unsafe fn receive(&self, pieces: &[Piece], flags: c_int) -> Result<usize> {
        let _turn = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.is_nonblocking(flags);
        let mut core = self.opened(self.core(), nonblocking)?;
        let peeks = flags & libc::MSG_PEEK != 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && !peeks;
        let wanted: usize = pieces.iter().map(|piece| piece.len).sum();
        let mut total = 0;
        while total < wanted {
            core = match self.data(core, nonblocking) {
                Ok(core) => core,
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(error),
            };
            let Some(link) = &mut core.link else { break };
            // SAFETY: by contract.
            let got = unsafe { take(link, pieces, total, peeks) };
            total += got;
            // Tells the other end that it may send more.
            link.grant();
            if got == 0 || !wants_all {
                break;
            }
        }
        Ok(total)
    }

    /// Waits until there is data, or none comes any more.
    fn data<'a>(&'a self, core: Locked<'a>, nonblocking: bool) -> Result<Locked<'a>> {
        let has_data = |core: &Core| core.link.as_ref().is_none_or(|link| link.flow.unread().0 > 0);
        if has_data(&core) {
            return Ok(core);
        }
        let is_over = |core: &Core| core.link.as_ref().is_none_or(|link| !link.flow.is_readable());
        let core = self.wait(core, (nonblocking, None), |core| has_data(core) || is_over(core))?;
        let error = core.link.as_ref().map_or(0, |link| link.flow.error());
        if error != 0 && !has_data(&core) {
            return Err(Errno(error));
        }
        Ok(core)
    }

    /// What `poll` says of it now, of all that may be asked for.
    pub(crate) fn readiness(&self, core: &mut Core) -> i16 {
        self.advance(core);
        match core.phase {
            Phase::Failed => libc::POLLIN | libc::POLLOUT | libc::POLLERR,
            Phase::Fresh | Phase::Bound => libc::POLLOUT | libc::POLLHUP,
            Phase::Open => core.link.as_ref().map_or(libc::POLLERR, |link| {
                let flow = &link.flow;
                let has_end = !flow.is_readable();
                let mut ready = 0;
                if flow.unread().0 > 0 || has_end {
                    ready |= libc::POLLIN;
                }
                // Sending does not wait either where it fails.
                if flow.can_send() || !flow.is_writable() {
                    ready |= libc::POLLOUT;
                }
                match flow.error() {
                    // Programs take a hang-up for the end also of what has come before.
                    0 if flow.is_up() || flow.unread().0 > 0 => ready,
                    0 => ready | libc::POLLHUP | libc::POLLOUT,
                    _ => ready | libc::POLLERR | libc::POLLOUT,
                }
            }),
            _ => 0,
        }
    }
}

/// Copies unread bytes behind the first `skip` of the pieces.
///
/// # Safety
/// All pieces are writable.
unsafe fn take(link: &mut Link, pieces: &[Piece], mut skip: usize, peeks: bool) -> usize {
    let (unread, mut at) = link.flow.unread();
    let ring = link.flow.sizes().receive_bytes;
    let mut copied = 0_u32;
    for piece in pieces {
        let begin = skip.min(piece.len);
        skip -= begin;
        let room = u32::try_from(piece.len - begin).unwrap_or(u32::MAX);
        let len = room.min(unread - copied);
        // SAFETY: by contract.
        unsafe { link.copy_out(at, piece.at.wrapping_add(begin), len) };
        at = (at + len) % ring;
        copied += len;
    }
    if !peeks {
        link.flow.read(copied);
    }
    copied as usize
}
