//! Closing sockets whose queues other users fill.
//!
//! A message may carry descriptors, and its sender may have closed its own. A thread that then
//! closes the queue, or takes the message without room for them, closes the files for good, and
//! that takes as long as the sender likes: a TCP socket with `SO_LINGER` waits until its peer has
//! read everything. The kernel does not let a thread wait so that is ending. So such sockets are
//! closed by threads that end with that.

use crate::thread;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rnic_abi::os::Connection;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// A connection to another user's process. It is [discarded](discard), not closed.
#[derive(Debug)]
pub struct Untrusted(ManuallyDrop<Connection>);

impl From<Connection> for Untrusted {
    fn from(connection: Connection) -> Self {
        Self(ManuallyDrop::new(connection))
    }
}

impl Deref for Untrusted {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl Drop for Untrusted {
    #[allow(unsafe_code, reason = "a field is moved out of what is dropped")]
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        discard(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// Has it closed in a moment, without waiting for that; at once where this was not
/// [started](start).
pub fn discard(socket: impl Into<OwnedFd>) {
    if let Some(discarded) = DISCARDED.get() {
        // The thread lives as long as the process.
        let _ = discarded.send(socket.into());
    }
}

/// Sockets that are not being closed yet.
pub(crate) fn waiting() -> usize {
    DISCARDED.get().map_or(0, Sender::len)
}

/// Starts the thread that closes what is discarded.
///
/// # Errors
/// When there is no thread left.
pub fn start() -> io::Result<()> {
    if DISCARDED.get().is_none() {
        let (discarded, sockets) = unbounded();
        thread::spawn("rnic-discard", STACK, move || close_all(&sockets))?;
        // Another one may have been first: then the thread ends.
        let _ = DISCARDED.set(discarded);
    }
    Ok(())
}

static DISCARDED: OnceLock<Sender<OwnedFd>> = OnceLock::new();

fn close_all(sockets: &Receiver<OwnedFd>) {
    for first in sockets {
        let some: Vec<_> = std::iter::once(first).chain(sockets.try_iter().take(AT_ONCE)).collect();
        let (has_them, held) = bounded::<()>(1);
        let (closed, until_closed) = bounded::<()>(1);
        let started = thread::spawn("rnic-discard", STACK, move || {
            #[allow(unsafe_code, reason = "a table of descriptors of its own")]
            // SAFETY: this thread uses no descriptor from here on, and ends.
            let own_table = unsafe { unshare_unsafe(UnshareFlags::FILES) };
            if own_table.is_ok() {
                let _ = has_them.send(());
                let _ = until_closed.recv();
            }
        });
        if started.is_ok() {
            let _ = held.recv();
        }
        // The other thread still has them: it is the last one, and ends.
        drop(some);
        drop(closed);
    }
}

/// Sockets for one thread.
const AT_ONCE: usize = 64;
const STACK: usize = 64 * 1024;
