//! Where clients come in: each gets a session, or is told why not.

use super::turned_away::{Admitted, TurnedAway};
use crate::{discard, thread};
use rnic_abi::os::{Connection, Listener};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Door {
    listener: Listener,
    turned_away: TurnedAway,
    /// The daemon's own user.
    owner: u32,
    /// No connection is taken before: there was no descriptor for one, or many are to be closed.
    pause: Option<Instant>,
}

impl Door {
    /// Accepts at `listener`, on the calling thread, whose priority becomes lower, and with it that
    /// of the sessions that it starts.
    ///
    /// # Errors
    /// When there is no thread left.
    pub fn new(listener: Listener) -> io::Result<Self> {
        discard::start()?;
        listener.set_nonblocking(true)?;
        thread::lower_priority();
        let owner = rustix::process::geteuid().as_raw();
        Ok(Self { listener, turned_away: TurnedAway::default(), owner, pause: None })
    }

    /// Lets no one in any more. Clients that were not let in yet are hung up on.
    pub fn close(self) {
        discard::discard(self.listener);
    }

    /// What to poll before [`attend`](Self::attend).
    pub fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let door = if self.pause.is_some() { PollFlags::empty() } else { PollFlags::IN };
        std::iter::once(PollFd::from_borrowed_fd(self.listener.as_fd(), door))
            .chain(self.turned_away.fds())
    }

    /// When to attend even if nothing is readable.
    pub fn deadline(&self) -> Option<Instant> {
        self.pause.into_iter().chain(self.turned_away.deadline()).min()
    }

    /// Lets `admit` take clients for a bounded time, and answers those that it turns away.
    pub fn attend(&mut self, now: Instant, mut admit: impl FnMut(Connection) -> Admitted) {
        self.turned_away.answer(now);
        if self.pause.is_some_and(|until| now < until) {
            return;
        }
        self.pause = None;
        for _ in 0..AT_ONCE {
            // Clients come faster than others are hung up on: each takes a descriptor until then.
            if discard::waiting() > MOST_WAITING {
                self.pause = Some(now + SHORT_PAUSE);
                return;
            }
            match self.listener.accept() {
                Ok(connection) => {
                    self.turned_away.add(admit(connection), now);
                    // One may need a process that has to be started.
                    if now.elapsed() > TURN {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::error!("cannot accept a client: {error}");
                    // Out of descriptors: a client that leaves makes room.
                    self.turned_away.clear(self.owner);
                    self.pause = Some(now + PAUSE);
                    return;
                }
            }
        }
    }
}

/// Clients let in before the daemon looks at something else.
const AT_ONCE: usize = 32;
/// How long clients may take until then.
const TURN: Duration = Duration::from_millis(20);
/// How long no client is let in when there is no descriptor left.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections that are to be closed while more are accepted.
const MOST_WAITING: usize = 256;
/// How long no client is let in when there are more.
const SHORT_PAUSE: Duration = Duration::from_millis(2);
