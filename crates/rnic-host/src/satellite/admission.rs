//! Where the clients that the daemon hands over get their sessions, one after the other.
//!
//! In a thread of its own: what a session costs is asked of the daemon, whose answers come to the
//! thread that reads what the daemon says. In one thread: a flood of clients must not become a
//! flood of threads and calls.

use crate::server::{Service, TurnedAway, serve};
use crate::thread;
use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};
use rnic_abi::os::{Connection, EventFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// See the [module](self).
pub(super) struct Admission {
    /// `None` at the end.
    queue: Option<Sender<Client>>,
    /// Written when there is something in the queue.
    wake: Arc<EventFd>,
    /// Clients that have no session yet, and will have one or be turned away.
    waiting: Arc<AtomicUsize>,
}

/// A connection, and the device that the client is opening if its greeting is answered.
type Client = (Connection, Option<String>);

impl Admission {
    /// Starts the thread.
    pub(super) fn start(service: Arc<Service>) -> Result<Self> {
        let (queue, clients) = bounded(MAX_QUEUED);
        let wake = Arc::new(EventFd::new()?);
        let (woken, waiting) = (Arc::clone(&wake), Arc::<AtomicUsize>::default());
        let left = Arc::clone(&waiting);
        thread::spawn("rnic-admission", STACK, move || attend(&service, &clients, &woken, &left))
            .context("cannot start the thread that admits clients")?;
        Ok(Self { queue: Some(queue), wake, waiting })
    }

    /// Clients that wait for the daemon's word on what a session costs, or for their turn.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// A client that comes when too many wait already is hung up on.
    pub(super) fn admit(&self, connection: Connection, opening: Option<String>) {
        let Some(queue) = &self.queue else { return };
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if let Err(TrySendError::Full(_)) = queue.try_send((connection, opening)) {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!("a client is not served: {MAX_QUEUED} wait for a session already");
        }
        if let Err(error) = self.wake.wake() {
            tracing::error!("cannot admit a client: {error}");
        }
    }
}

impl Drop for Admission {
    /// Ends the thread: a program may have many functions, one after the other.
    fn drop(&mut self) {
        self.queue = None;
        if let Err(error) = self.wake.wake() {
            tracing::error!("the thread that admits clients goes on: {error}");
        }
    }
}

/// Until no client can come any more.
fn attend(
    service: &Arc<Service>,
    clients: &Receiver<Client>,
    woken: &EventFd,
    waiting: &AtomicUsize,
) {
    // Also that of the sessions, which it starts.
    thread::lower_priority();
    let mut turned_away = TurnedAway::default();
    loop {
        let until = match clients.is_empty() {
            true => turned_away.deadline(),
            false => Some(Instant::now()),
        };
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let woken_fd = PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN);
        let mut fds: Vec<_> = std::iter::once(woken_fd).chain(turned_away.fds()).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return tracing::error!("no more clients are served: poll: {error}"),
        }
        let _ = woken.drain();
        turned_away.answer(Instant::now());
        for _ in 0..AT_ONCE {
            let (connection, opening) = match clients.try_recv() {
                Ok(client) => client,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            };
            // The daemon has read what it wants.
            let was_read = opening.is_some();
            let served = serve(service, connection, opening);
            // Not earlier: the satellite must not end for want of clients.
            waiting.fetch_sub(1, Ordering::AcqRel);
            match served {
                Err((connection, why)) if was_read => TurnedAway::tell(connection, &why),
                served => turned_away.add(served, Instant::now()),
            }
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
