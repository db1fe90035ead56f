//! Where the clients that the daemon hands over get their sessions, one after the other.
//!
//! In a thread of its own: what a session costs is asked of the daemon, whose answers come to the
//! thread that reads what the daemon says. In one thread: a flood of clients must not become a
//! flood of threads and calls.

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rnic_abi::os::{Connection, EventFd};
use rnic_host::server::{Service, TurnedAway, serve};
use rnic_host::thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// See the [module](self).
pub(super) struct Admission {
    queue: Sender<Connection>,
    /// Written when there is something in the queue.
    wake: Arc<EventFd>,
}

impl Admission {
    /// Starts the thread.
    pub(super) fn start(service: Arc<Service>) -> Result<Self> {
        let (queue, clients) = bounded(MAX_QUEUED);
        let wake = Arc::new(EventFd::new()?);
        let woken = Arc::clone(&wake);
        thread::spawn("rnic-admission", STACK, move || attend(&service, &clients, &woken))
            .context("cannot start the thread that admits clients")?;
        Ok(Self { queue, wake })
    }

    /// A client that comes when too many wait already is hung up on.
    pub(super) fn admit(&self, connection: Connection) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(connection) {
            tracing::warn!("a client is not served: {MAX_QUEUED} wait for a session already");
        }
        if let Err(error) = self.wake.wake() {
            tracing::error!("cannot admit a client: {error}");
        }
    }
}

/// Until the process ends.
fn attend(service: &Arc<Service>, clients: &Receiver<Connection>, woken: &EventFd) {
    // Also that of the sessions, which it starts.
    thread::lower_priority();
    let mut turned_away = TurnedAway::default();
    loop {
        let until = match clients.is_empty() {
            true => turned_away.deadline(),
            false => Some(Instant::now()),
        };
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        let woken_fd = PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN);
        let mut fds: Vec<_> = std::iter::once(woken_fd).chain(turned_away.fds()).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return tracing::error!("no more clients are served: poll: {error}"),
        }
        let _ = woken.drain();
        turned_away.answer(Instant::now());
        for connection in clients.try_iter().take(AT_ONCE) {
            turned_away.add(serve(service, connection), Instant::now());
        }
    }
}

/// Clients that wait for a session. More come only in a flood: one takes a fraction of a
/// millisecond.
const MAX_QUEUED: usize = 256;
/// Clients served before those that were turned away are answered.
const AT_ONCE: usize = 32;
/// A session's place and its thread need no more.
const STACK: usize = 256 * 1024;
